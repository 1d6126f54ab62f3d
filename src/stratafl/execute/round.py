"""One round, whatever executes it: download · receive · work · fold, group by group, then absorb."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from stratafl.algorithm import Round, Total
from stratafl.errors import DataError, MemoryLimitError
from stratafl.execute.clients import Clients
from stratafl.execute.memory import give_back
from stratafl.execute.team import Team, places
from stratafl.layout import Layout, Rows
from stratafl.parcel import Bytes, Parcel, count_bytes
from stratafl.state import State, rows_of

if TYPE_CHECKING:
    from stratafl.execute.simulation import Simulation


class Executor(Protocol):
    """How a round is executed: with whom, in which groups, over which wire, under whose eyes."""

    @property
    def team(self) -> Team:
        """The processes that execute it together, each with its share of the clients."""

    def groups(self, sim: "Simulation", ids: Tensor) -> Iterator[Tensor]:
        """This process's share of the cohort, in groups that work together."""

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


@dataclass(frozen=True, eq=False)
class Shift:
    """What the work of a group weighed, and what its steps noted."""

    ids: Tensor
    down: Bytes
    up: Bytes
    notes: Mapping[str, Tensor]


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
    """The server's next state, the clients' next memories here, and what it cost; nothing given is written to.

    `examine` is shown each group's models as received and right after training, which nobody keeps.
    """
    if len(ids) == 0:
        raise DataError("the cohort is empty: a round needs at least one client")
    algorithm, layout, team = sim.algorithm, rnd.layout, executor.team
    total, kept, shifts = Total(), clients, list[Shift]()
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
        shifts.append(Shift(group, down, count_bytes(upload, layout, len(group)), dict(task.notes)))
        _check_rows(sim, shifts[-1].up, len(group), len(ids))
        _wait(sim.workshop.device)
        paused = time.perf_counter()
        with executor.stage("fold", group, layout) as watch:
            total = algorithm.fold(rnd, server, total, executor.carry(upload, layout), group)
        served += time.perf_counter() - paused
        kept = kept.updated(group.tolist(), memory)  # group by group, so that no cohort is held in RAM
        del parcel, desk, memory, upload, trained, task, watch  # else they are there while the next group works
        if sim.memory is not None:
            give_back()
    shifts = [shift for each in team.gather(shifts) for shift in each]  # who is done first waits here for the others
    paused = time.perf_counter()
    with executor.stage("absorb", ids, layout) as watch:
        server = algorithm.absorb(rnd, server, team.merge(total, ids, algorithm.keeps_rows))
        watch(server)
    served += time.perf_counter() - paused
    down, up, notes = _summed(shifts, ids)
    return server, kept, Report(ids, down, up, notes, time.perf_counter() - begin - served, served)


def _wait(device: torch.device) -> None:
    """Until a GPU has done what it was told: else the time of training would be counted where it is waited for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _summed(shifts: list[Shift], ids: Tensor) -> tuple[Bytes, Bytes, State]:
    """The bytes down and up and the notes of all groups, in the order of the cohort; a group without a note has 0."""
    order = places(torch.cat([shift.ids for shift in shifts]), ids)
    down, up = (sum(side[1:], side[0]) for side in zip(*((shift.down, shift.up) for shift in shifts), strict=True))
    like = {name: value for shift in shifts for name, value in shift.notes.items()}
    notes: State = {
        name: torch.cat(
            [s.notes[name] if name in s.notes else one.new_zeros(len(s.ids), *one.shape[1:]) for s in shifts]
        )[order.to(one.device)]
        for name, one in like.items()
    }
    return replace(down, clients=down.clients[order]), replace(up, clients=up.clients[order]), notes


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
