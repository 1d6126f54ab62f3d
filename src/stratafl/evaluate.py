"""What clients have: the model as received and as deployed, and what it scores on a split of their own data."""

from collections.abc import Callable
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
    return _read(sim, progress, ids, lambda rnd, desk, task: rows_of(desk, sim.algorithm.row))


def deployed(sim: Simulation, progress: Progress, ids: Tensor) -> Rows:
    """The model that each of these clients would use in production; it may have been tuned on its training split."""
    return _read(sim, progress, ids, sim.algorithm.deploy)


def _read(sim: Simulation, progress: Progress, ids: Tensor, reader: Reader) -> Rows:
    rnd, parts = sim.at(progress.t), []
    for group in ids.split(chunk_size(sim, len(ids))):
        task = sim.task(group, rnd)
        parcel = sim.algorithm.download(rnd, progress.server, group)
        desk = sim.algorithm.receive(rnd, sim.memories(progress.clients, group), parcel, task)
        parts.append({"rows": reader(rnd, desk, task)})
    return rows_of(join(parts), "rows")


def score(sim: Simulation, progress: Progress, rows: Rows, ids: Tensor, split: str) -> Scores:
    """What these rows score on the clients' own samples; here, and only here, the split may be `test`."""
    return sim.workshop.task(ids, sim.at(progress.t), (split,)).scores(rows, split)


def accuracy(sim: Simulation, progress: Progress, split: str = "test") -> float:
    """The share of all clients' samples that their deployed models classify correctly."""
    ids = torch.arange(sim.setup.clients)
    scores = score(sim, progress, deployed(sim, progress, ids), ids, split)
    return float(scores.hits.sum() / scores.count.sum())
