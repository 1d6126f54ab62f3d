"""What clients have: models at their stages, and what they score on a split of the clients' own data.

Stages, everywhere: `received` (where training would start), `trained` (right after local training, for those who took
part) and `deployed` (what a client would use in production; may be tuned on its training split); `global` is the
server's model for everybody, of methods that have one beside what they send.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.reprs import short_repr
from stratafl.core.round import Round
from stratafl.core.state import State, expand, join, rows_of
from stratafl.core.task import Scores, Task
from stratafl.execute.matrix import evaluation_size
from stratafl.execute.process_group import ProcessGroup, places
from stratafl.execute.simulation import Progress, Simulation

Board = dict[str, Scores]  # by "split.stage", such as "test.deployed"
STAGES = ("received", "deployed")


@short_repr
@dataclass(frozen=True, eq=False)
class Visit:
    """Some clients, with what they have received for a round; nothing of it is kept."""

    sim: Simulation
    rnd: Round
    ids: Tensor
    task: Task
    client: State
    server: State

    def rows(self, stage: str) -> Rows:
        """Their models at a stage."""
        if stage == "global":
            return {
                **self.rows("received"),
                **expand(rows_of(self.server, str(self.sim.algorithm.global_model)), len(self.ids)),
            }
        if stage == "received":
            return rows_of(self.client, self.sim.algorithm.row)
        if stage == "trained":
            return self.sim.algorithm.work(self.rnd, self.client, self.task).trained
        return self.sim.algorithm.deploy(self.rnd, self.client, self.task)

    def board(self, splits: Iterable[str], stages: Iterable[str]) -> Board:
        """What their models score; a stage with the very tensors of another is not scored twice."""
        models = {stage: self.rows(stage) for stage in stages}
        board: Board = {}
        for split in splits:
            for stage, rows in models.items():
                twin = next(
                    (s for s in models if s != stage and f"{split}.{s}" in board and _same(models[s], rows)), None
                )
                found = None if twin is None else board[f"{split}.{twin}"]
                board[f"{split}.{stage}"] = found or _score(self.sim, self.rnd, rows, self.ids, split)
        return board


def received(sim: Simulation, progress: Progress, ids: Tensor) -> Rows:
    """The model that each of these clients would start its next round from."""
    return _models(sim, progress, ids, "received")


def deployed(sim: Simulation, progress: Progress, ids: Tensor) -> Rows:
    """The model that each of these clients would use in production; it may have been tuned on its training split."""
    return _models(sim, progress, ids, "deployed")


def score(sim: Simulation, progress: Progress, rows: Rows, ids: Tensor, split: str) -> Scores:
    """What these rows score on the clients' own samples; here, and only here, the split may be `test`."""
    return _score(sim, sim.at(progress.t), rows, ids, split)


def scoreboard(
    sim: Simulation, progress: Progress, ids: Tensor, splits: Sequence[str], stages: Sequence[str] = STAGES
) -> Board:
    """Scores of these clients' models at each stage on each split, some clients at a time."""
    with sim.arithmetic():
        return joined([visit.board(splits, stages) for visit in _visits(sim, progress, sim.checked(ids))])


def new_clients(sim: Simulation, progress: Progress, splits: Sequence[str], ids: Tensor | None = None) -> Board:
    """Scores of clients that never took part: as admitted, after training once from there, and deployed."""
    with sim.arithmetic():
        visits = _visits(sim, progress, sim.new_clients if ids is None else ids, new=True)
        return joined([visit.board(splits, ("received", "trained", "deployed")) for visit in visits])


def score_trained(sim: Simulation, rnd: Round, rows: Rows, ids: Tensor, splits: Sequence[str]) -> Board:
    """Scores of models right after training, as `Simulation.round(examine=…)` shows them."""
    size = evaluation_size(sim, len(ids))
    parts = [({n: x[at : at + size] for n, x in rows.items()}, ids[at : at + size]) for at in range(0, len(ids), size)]
    return joined([{f"{split}.trained": _score(sim, rnd, some, who, split) for split in splits} for some, who in parts])


def state_dict(sim: Simulation, progress: Progress, client: int) -> dict[str, Tensor]:
    """One client's deployed model, for `module.load_state_dict(…, strict=False)`: counters are not in it."""
    rows = deployed(sim, progress, torch.tensor([client]))
    return {name: block[0].clone() for name, block in rows.items()}


def accuracy(sim: Simulation, progress: Progress, split: str = "test") -> float:
    """The share of all clients' samples that their deployed models classify correctly."""
    scores = scoreboard(sim, progress, torch.arange(sim.setup.clients), (split,), ("deployed",))[f"{split}.deployed"]
    return float(scores.hits.sum() / scores.count.sum())


def joined(boards: Sequence[Board]) -> Board:
    """The boards of several groups of clients as one."""
    names = ("hits", "loss", "count")
    return {k: Scores(*(torch.cat([getattr(b[k], n) for b in boards]) for n in names)) for k in boards[0]}


def shared(process_group: ProcessGroup, sim: Simulation, ids: Tensor, scored: Callable[[Tensor], Board]) -> Board:
    """The board of these clients, where each process of a process group has those of its share `scored`."""
    mine = process_group.share(sim, ids)
    return gathered(process_group, mine, scored(mine) if len(mine) else {}, ids)


def gathered(process_group: ProcessGroup, mine: Tensor, board: Board, ids: Tensor) -> Board:
    """The board of these clients, from what each process of a process group has of it."""
    parts = [part for part in process_group.gather((mine, board)) if len(part[0])]
    if not parts:
        return {}
    order = places(torch.cat([found for found, _ in parts]), ids)
    whole = joined([board for _, board in parts])
    return {k: Scores(*(x[order.to(x.device)] for x in (s.hits, s.loss, s.count))) for k, s in whole.items()}


def _models(sim: Simulation, progress: Progress, ids: Tensor, stage: str) -> Rows:
    with sim.arithmetic():
        visits = _visits(sim, progress, sim.checked(ids))
        return rows_of(join([{"rows": visit.rows(stage)} for visit in visits]), "rows")


def _visits(sim: Simulation, progress: Progress, ids: Tensor, new: bool = False) -> Iterator[Visit]:
    """Visits to as many clients at a time as memory allows."""
    rnd, algorithm = sim.at(progress.t), sim.algorithm
    serve = algorithm.admit if new else algorithm.download
    for group in ids.split(evaluation_size(sim, len(ids))):
        task = sim.task(group, rnd)
        memory = sim.client_states({} if new else progress.clients, group)
        client = algorithm.receive(rnd, memory, serve(rnd, progress.server, group), task)
        yield Visit(sim, rnd, group, task, client, progress.server)


def _score(sim: Simulation, rnd: Round, rows: Rows, ids: Tensor, split: str) -> Scores:
    with sim.arithmetic():
        return sim.task(ids, rnd, splits=(split,)).scores(rows, split)


def _same(a: Rows, b: Rows) -> bool:
    return a.keys() == b.keys() and all(x is b[name] for name, x in a.items())
