"""What clients have: the model as received and as deployed, and what it scores on a split of their own data."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stratafl.execute.matrix import chunk_size
from stratafl.execute.simulation import Progress, Simulation
from stratafl.layout import Rows
from stratafl.state import State, join, rows_of
from stratafl.task import Scores, Task

if TYPE_CHECKING:
    from stratafl.algorithm import Round

Reader = Callable[["Round", State, Task], Rows]


def received(sim: Simulation, progress: Progress, ids: Tensor) -> Rows:
    """The model that each of these clients would start its next round from; nothing is kept of it."""
    return rows_of(join([{"rows": rows} for _, rows in _models(sim, progress, ids, _as_received(sim))]), "rows")


def deployed(sim: Simulation, progress: Progress, ids: Tensor) -> Rows:
    """The model that each of these clients would use in production; it may have been tuned on its training split."""
    return rows_of(join([{"rows": rows} for _, rows in _models(sim, progress, ids, sim.algorithm.deploy)]), "rows")


def score(sim: Simulation, progress: Progress, rows: Rows, ids: Tensor, split: str) -> Scores:
    """What these rows score on the clients' own samples; here, and only here, the split may be `test`."""
    return sim.workshop.task(ids, sim.at(progress.t), (split,)).scores(rows, split)


def score_received(sim: Simulation, progress: Progress, ids: Tensor, split: str) -> Scores:
    """Scores of the models as received, some clients at a time."""
    return _scores(sim, progress, _models(sim, progress, ids, _as_received(sim)), split)


def score_deployed(sim: Simulation, progress: Progress, ids: Tensor, split: str) -> Scores:
    """Scores of the models as deployed, some clients at a time."""
    return _scores(sim, progress, _models(sim, progress, ids, sim.algorithm.deploy), split)


def state_dict(sim: Simulation, progress: Progress, client: int) -> dict[str, Tensor]:
    """One client's deployed model, for `module.load_state_dict(…, strict=False)`: counters are not in it."""
    rows = deployed(sim, progress, torch.tensor([client]))
    return {name: block[0].clone() for name, block in rows.items()}


def accuracy(sim: Simulation, progress: Progress, split: str = "test") -> float:
    """The share of all clients' samples that their deployed models classify correctly."""
    scores = score_deployed(sim, progress, torch.arange(sim.setup.clients), split)
    return float(scores.hits.sum() / scores.count.sum())


def _as_received(sim: Simulation) -> Reader:
    return lambda rnd, desk, task: rows_of(desk, sim.algorithm.row)


def _models(sim: Simulation, progress: Progress, ids: Tensor, reader: Reader) -> Iterator[tuple[Tensor, Rows]]:
    """Models of as many clients at a time as memory allows."""
    rnd, ids = sim.at(progress.t), sim.checked(ids)
    for group in ids.split(chunk_size(sim, len(ids))):
        task = sim.task(group, rnd)
        parcel = sim.algorithm.download(rnd, progress.server, group)
        desk = sim.algorithm.receive(rnd, sim.memories(progress.clients, group), parcel, task)
        yield group, reader(rnd, desk, task)


def _scores(sim: Simulation, progress: Progress, models: Iterator[tuple[Tensor, Rows]], split: str) -> Scores:
    parts = [score(sim, progress, rows, group, split) for group, rows in models]
    return Scores(*(torch.cat([getattr(part, name) for part in parts]) for name in ("hits", "loss", "count")))
