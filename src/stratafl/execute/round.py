"""One round, whatever executes it: download · receive · work · inspect · fold, group by group, then absorb."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from stratafl.core.algorithm import Total
from stratafl.core.layout import Layout, Rows
from stratafl.core.parcel import Bytes, Parcel, count_bytes
from stratafl.core.reprs import short_repr
from stratafl.core.round import Round
from stratafl.core.state import State, pick, rows_of
from stratafl.errors import DataError, MemoryLimitError
from stratafl.execute.clients import Clients
from stratafl.execute.memory import give_back
from stratafl.execute.process_group import ProcessGroup, places
from stratafl.execute.uploads import Inspection, LeftOut, Outlier, inspect, outliers

if TYPE_CHECKING:
    from stratafl.execute.simulation import Simulation


class Executor(Protocol):
    """How a round is executed: with whom, in which groups, over which wire, under whose eyes."""

    @property
    def process_group(self) -> ProcessGroup:
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


Examiner = Callable[[Tensor, Rows, Rows], None]  # clients that take part, their models as received, and as trained


def unwatched(state: State | Parcel) -> None:
    """The watch of executors that trust what they run."""


@short_repr
@dataclass(frozen=True, eq=False)
class Report:
    """What a round cost, and which clients to look at."""

    cohort: Tensor
    down: Bytes
    up: Bytes
    notes: State  # what steps noted about each client, in the order of the cohort
    train_seconds: float
    server_seconds: float
    left_out: tuple[LeftOut, ...] = ()  # in the order of the cohort
    outliers: tuple[Outlier, ...] = ()

    @property
    def took_part(self) -> Tensor:
        """`[C]` booleans: whose upload was not left out."""
        return ~torch.isin(self.cohort, torch.tensor([each.client for each in self.left_out], dtype=torch.int64))

    @property
    def present(self) -> Tensor:
        """The clients of the cohort whose upload was not left out."""
        return self.cohort[self.took_part]


@short_repr
@dataclass(frozen=True, eq=False)
class Shift:
    """What the work of a group weighed, what its steps noted, and what was found in its uploads."""

    ids: Tensor
    down: Bytes
    up: Bytes
    notes: Mapping[str, Tensor]
    found: Inspection
    served: float  # seconds of the server


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

    `examine` is shown each group's models as received and right after training, which nobody keeps. A client whose
    upload is left out keeps the state it had before; if all are, so does the server.
    """
    if len(ids) == 0:
        raise DataError("the cohort is empty: a round needs at least one client")
    algorithm, layout, process_group = sim.algorithm, rnd.layout, executor.process_group
    among = _Among(sim, executor, rnd, server, clients, len(ids), examine, watched)
    total, kept, shifts = Total(), clients, list[Shift]()
    begin = time.perf_counter()
    for group in executor.groups(sim, ids):
        total, kept, shift = _shift(among, total, kept, group)
        shifts.append(shift)
        if sim.round_limit is not None:
            give_back()
    mine = sum(shift.served for shift in shifts)
    shifts = [
        shift for each in process_group.gather(shifts) for shift in each
    ]  # who is done first waits here for the others
    paused = time.perf_counter()
    left_out, far = _conspicuous(shifts, ids)
    present = ids[~torch.isin(ids, torch.tensor([each.client for each in left_out], dtype=torch.int64))]
    with executor.stage("absorb", ids, layout) as watch:
        if len(present):
            server = algorithm.absorb(rnd, server, process_group.merge(total, present, algorithm.requires.rows))
        watch(server)
    served = mine + time.perf_counter() - paused
    down, up, notes = _summed(shifts, ids)
    return server, kept, Report(ids, down, up, notes, time.perf_counter() - begin - served, served, left_out, far)


@short_repr
@dataclass(frozen=True, eq=False)
class _Among:
    """What is the same for all groups of a round."""

    sim: "Simulation"
    executor: Executor
    rnd: Round
    server: State
    clients: Clients
    cohort: int
    examine: Examiner | None
    watched: bool


def _shift(among: _Among, total: Total, kept: Clients, group: Tensor) -> tuple[Total, Clients, Shift]:
    """The work of a group, folded into the total; a function of its own, so that nothing of it stays for the next."""
    sim, rnd, layout, algorithm = among.sim, among.rnd, among.rnd.layout, among.sim.algorithm
    executor, task = among.executor, sim.task(group, rnd, among.watched)
    with executor.stage("download", group, layout) as watch:
        parcel = algorithm.download(rnd, among.server, group)
        down = count_bytes(parcel, layout, len(group))
        watch(parcel)
    with executor.stage("receive", group, layout) as watch:
        client = algorithm.receive(rnd, sim.client_states(among.clients, group), executor.carry(parcel, layout), task)
        watch(client)
    with executor.stage("work", group, layout) as watch:
        memory, upload, trained = algorithm.work(rnd, client, task)
        watch(memory)
        watch(upload)
    up = count_bytes(upload, layout, len(group))
    _check_rows(sim, up, len(group), among.cohort)
    _wait(sim.runtime.device)
    paused, received = time.perf_counter(), rows_of(client, algorithm.row)
    with executor.stage("fold", group, layout) as watch:
        arrived = executor.carry(upload, layout)
        samples = sim.runtime.federation.counts("train")[group]
        found = inspect(arrived, memory, received, algorithm.row, samples, layout)
        some = _Some(group, arrived, memory, received, trained)
        if len(found.sound) < len(group):
            some = some.pick(found.sound, sim.runtime.device)
        if len(some.ids):
            total = algorithm.fold(rnd, among.server, total, some.upload, some.ids)
    shift = Shift(group, down, up, dict(task.notes), found, time.perf_counter() - paused)
    if len(some.ids):
        if among.examine is not None:
            among.examine(some.ids, some.received, some.trained)
        kept = kept.updated(some.ids.tolist(), some.memory)  # group by group, so that no cohort is held in RAM
    return total, kept, shift


@short_repr
@dataclass(frozen=True, eq=False)
class _Some:
    """Clients of a group, with what came of their work."""

    ids: Tensor
    upload: Parcel
    memory: State
    received: Rows
    trained: Rows

    def pick(self, places: Tensor, device: torch.device) -> "_Some":
        """Those at these places."""
        there = places.to(device)
        rows = ({name: x[there] for name, x in each.items()} for each in (self.received, self.trained))
        return _Some(self.ids[places], self.upload.pick(there), pick(self.memory, there), *rows)


def _conspicuous(shifts: list[Shift], ids: Tensor) -> tuple[tuple[LeftOut, ...], tuple[Outlier, ...]]:
    """Who was left out and whose update is far from the others', from all groups, in the order of the cohort."""
    each = [found for s in shifts for found in zip(s.ids.tolist(), s.found.reasons, s.found.norms, strict=True)]
    place = {client: at for at, client in enumerate(ids.tolist())}
    each.sort(key=lambda found: place[found[0]])
    sound = [(client, norm) for client, reason, norm in each if not reason]
    left_out = tuple(LeftOut(client, reason) for client, reason, _ in each if reason)
    return left_out, outliers([client for client, _ in sound], [norm for _, norm in sound])


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
    if sim.round_limit is None or not sim.algorithm.requires.rows:
        return
    needed = upload.total // group * cohort
    if needed > sim.round_limit:
        raise MemoryLimitError(
            f"this merge needs the uploads of all {cohort} clients side by side, {needed:,} bytes, "
            f"and the limit is {sim.round_limit:,}: raise it, or let fewer clients take part"
        )
