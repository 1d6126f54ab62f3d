"""One round, whatever executes it: download · receive · work · fold, group by group, then absorb."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from stratafl.algorithm import Round, Total
from stratafl.errors import DataError, MemoryLimitError
from stratafl.execute.clients import Clients
from stratafl.layout import Layout, Rows
from stratafl.parcel import Bytes, Parcel, count_bytes
from stratafl.state import State, rows_of

if TYPE_CHECKING:
    from stratafl.execute.simulation import Simulation


class Executor(Protocol):
    """How a round is executed: in which groups, over which wire, under whose eyes."""

    def groups(self, sim: "Simulation", ids: Tensor) -> Iterator[Tensor]:
        """The cohort in groups that work together."""

    def carry(self, parcel: Parcel, layout: Layout) -> Parcel:
        """The parcel as it arrives on the other side."""

    def stage(self, name: str, ids: Tensor, layout: Layout) -> AbstractContextManager["Watch"]:
        """Runs around each stage; the watch is told what the stage gave."""


class Watch(Protocol):
    """Is told what a stage gave."""

    def __call__(self, state: State | Parcel) -> None:
        """Look at it."""


Examiner = Callable[[Tensor, Rows, Rows], None]  # clients, their models as received, and after training


def unwatched(state: State | Parcel) -> None:
    """The watch of executors that trust what they run."""


@dataclass(frozen=True, eq=False)
class Report:
    """What a round cost."""

    cohort: Tensor
    down: Bytes
    up: Bytes
    notes: State  # what steps noted about each client, in the order of the cohort
    train_seconds: float
    server_seconds: float


def run_round(
    sim: "Simulation",
    executor: Executor,
    rnd: Round,
    server: State,
    clients: Clients,
    ids: Tensor,
    examine: Examiner | None = None,
    watched: bool = False,
) -> tuple[State, Clients, Report]:
    """The server's next state, the clients' next memories, and what it cost; nothing given is written to.

    `examine` is shown each group's models as received and right after training, which nobody keeps.
    """
    if len(ids) == 0:
        raise DataError("the cohort is empty: a round needs at least one client")
    algorithm, layout = sim.algorithm, rnd.layout
    total, kept, notes = Total(), clients, list[tuple[int, Mapping[str, Tensor]]]()
    weights: list[tuple[Bytes, Bytes]] = []
    served = 0.0
    begin = time.perf_counter()
    for group in executor.groups(sim, ids):
        task = sim.task(group, rnd, watched)
        with executor.stage("download", group, layout) as watch:
            parcel = algorithm.download(rnd, server, group)
            down = count_bytes(parcel, layout, len(group))
            watch(parcel)
        with executor.stage("receive", group, layout) as watch:
            desk = algorithm.receive(rnd, sim.memories(clients, group), executor.carry(parcel, layout), task)
            watch(desk)
        with executor.stage("work", group, layout) as watch:
            memory, upload, trained = algorithm.work(rnd, desk, task)
            watch(memory)
        if examine is not None:
            examine(group, rows_of(desk, algorithm.row), trained)
        notes.append((len(group), task.notes))
        weights.append((down, count_bytes(upload, layout, len(group))))
        _check_rows(sim, weights[-1][1], len(group), len(ids))
        paused = time.perf_counter()
        with executor.stage("fold", group, layout) as watch:
            total = algorithm.fold(rnd, server, total, executor.carry(upload, layout), group)
        served += time.perf_counter() - paused
        kept = kept.updated(group.tolist(), memory)  # group by group, so that no cohort is held in RAM
    paused = time.perf_counter()
    with executor.stage("absorb", ids, layout) as watch:
        server = algorithm.absorb(rnd, server, total)
        watch(server)
    served += time.perf_counter() - paused
    down, up = (sum(side[1:], side[0]) for side in zip(*weights, strict=True))
    return server, kept, Report(ids, down, up, _joined(notes), time.perf_counter() - begin - served, served)


def _joined(notes: list[tuple[int, Mapping[str, Tensor]]]) -> State:
    """The notes in the order of the cohort; a group that left none has zeros."""
    like = {name: value for _, note in notes for name, value in note.items()}
    return {
        name: torch.cat([note[name] if name in note else one.new_zeros(size, *one.shape[1:]) for size, note in notes])
        for name, one in like.items()
    }


def _check_rows(sim: "Simulation", upload: Bytes, group: int, cohort: int) -> None:
    """Refuse to keep more uploads side by side than memory allows."""
    if sim.memory is None or not sim.algorithm.keeps_rows:
        return
    needed = upload.total // group * cohort
    if needed > sim.memory:
        raise MemoryLimitError(
            f"this merge needs the uploads of all {cohort} clients side by side, {needed:,} bytes, "
            f"and the limit is {sim.memory:,}: raise it, or let fewer clients take part"
        )
