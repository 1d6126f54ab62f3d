"""One round, the same for every executor: download · receive · work · inspect · fold, group by group, then absorb."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from stratafl.core.algorithm import Total
from stratafl.core.form import Form
from stratafl.core.layout import Layout, Rows
from stratafl.core.machine import in_units
from stratafl.core.parcel import Bytes, Field, Parcel, count_bytes
from stratafl.core.reprs import short_repr
from stratafl.core.round import Round
from stratafl.core.schema import misfit
from stratafl.core.state import State, pick, rows_of, stored_bytes
from stratafl.errors import DataError, MemoryLimitError, WireError
from stratafl.execute.client_states import ClientStates
from stratafl.execute.context import SimulationContext
from stratafl.execute.memory import release_freed_memory
from stratafl.execute.process_group import ProcessGroup, places
from stratafl.execute.transfers import on_host
from stratafl.execute.uploads import Inspection, LeftOut, Outlier, inspect, outliers, too_long


class Executor(Protocol):
    """How a round is executed: by which processes, in which groups, how parcels travel, and who checks each stage."""

    @property
    def process_group(self) -> ProcessGroup:
        """The processes that execute a round together, each with its share of the clients."""

    def groups(self, sim: SimulationContext, ids: Tensor) -> Iterator[Tensor]:
        """This process's share of the cohort, in groups that work together."""

    def carry(self, parcel: Parcel, layout: Layout, form: Form | None = None) -> Parcel:
        """The parcel as it arrives on the other side; a `WireError` if it travels as bytes and has another form."""

    def stage(self, name: str, ids: Tensor, layout: Layout) -> AbstractContextManager["Watch"]:
        """Runs around each stage; the watch is called with what the stage returns."""


Watch = Callable[[State | Parcel], None]
Examine = Callable[[Tensor, Rows, Rows], None]  # clients that take part, their models as received, and as trained


class Examiner(ABC):
    """What remembers the models it is shown: if the round is repeated with fewer clients, it starts anew."""

    @abstractmethod
    def __call__(self, clients: Tensor, received: Rows, trained: Rows) -> None:
        """See the models of some clients that take part."""

    @abstractmethod
    def restart(self) -> None:
        """Forget the models seen so far."""


def unwatched(state: State | Parcel) -> None:
    """The watch of executors that check nothing."""


@short_repr
@dataclass(frozen=True, eq=False)
class Report:
    """What a round cost, and which clients were left out or stand out."""

    cohort: Tensor
    down: Bytes
    up: Bytes
    notes: State  # what steps noted about each client, in the order of the cohort, on the CPU
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
        return self.cohort[self.took_part]


@short_repr
@dataclass(frozen=True, eq=False)
class GroupReport:
    """The bytes of a group of clients, what its steps noted, and what was found in its uploads."""

    ids: Tensor
    down: Bytes
    up: Bytes
    notes: Mapping[str, Tensor]
    found: Inspection
    served: float  # seconds of the server


@short_repr
@dataclass(frozen=True, eq=False)
class RoundRun:
    """A round to run; nothing given is written to.

    `examine` is shown each group's models as received and right after training, which are not kept. A client whose
    upload is left out keeps the state it had before; if all are left out, so does the server. Which updates are too
    long is known when all have arrived: the round is then repeated without those clients, from the states it began
    with, so that no uploads are kept for it.
    """

    sim: SimulationContext
    executor: Executor
    rnd: Round
    server: State
    clients: ClientStates
    ids: Tensor
    examine: Examine | Examiner | None = None
    watched: bool = False

    def run(self) -> tuple[State, ClientStates, Report]:
        """The server's next state, the next states of this process's clients, and a report."""
        server, kept, report, far = self._run()
        if not far:
            return server, kept, report
        if isinstance(self.examine, Examiner):
            self.examine.restart()
        away = torch.tensor([each.client for each in far], dtype=torch.int64)
        again = replace(self, ids=self.ids[~torch.isin(self.ids, away)])
        if len(again.ids) == 0:
            return self.server, self.clients, _left_out(report, far)
        server, kept, repeated, _ = again._run()
        return server, kept, _repeated(report, far, repeated)

    def _run(self) -> tuple[State, ClientStates, Report, tuple[LeftOut, ...]]:
        """The round with all of its clients, and those whose update is too long."""
        sim, rnd, ids, server, process_group = self.sim, self.rnd, self.ids, self.server, self.executor.process_group
        now = sim.runtime.now
        if len(ids) == 0:
            raise DataError("the cohort is empty: a round needs at least one client")
        total, kept, reports = Total(), self.clients, list[GroupReport]()
        sim.upload_form(rnd, server)  # once for each phase, and no client's time
        begin = now()
        for group in self.executor.groups(sim, ids):
            total, kept, report = self._run_group(total, kept, group)
            reports.append(report)
            if sim.round_limit is not None:
                release_freed_memory()
        mine = sum(report.served for report in reports)
        # The process that is done first waits here for the others.
        reports = [report for each in process_group.gather(reports) for report in each]
        paused = now()
        left_out, named, far = _flagged(reports, ids, sim.norm_limit)
        present = ids[~torch.isin(ids, torch.tensor([each.client for each in left_out], dtype=torch.int64))]
        with self.executor.stage("absorb", ids, rnd.layout) as watch:
            if len(present):
                total = process_group.merge(total, present, sim.requires.rows)
            if len(present) or sim.requires.noise:
                server = sim.absorbed(rnd, server, total)
            watch(server)
        served = mine + now() - paused
        down, up, notes = _summed(reports, ids)
        done = Report(ids, down, up, notes, now() - begin - served, served, left_out, named)
        return server, kept, done, far

    def _run_group(self, total: Total, kept: ClientStates, group: Tensor) -> tuple[Total, ClientStates, GroupReport]:
        """The work of a group, folded into the total; a function of its own, so that its tensors are freed."""
        sim, rnd, executor, device = self.sim, self.rnd, self.executor, self.sim.runtime.device
        carry, layout, algorithm, now = executor.carry, rnd.layout, sim.algorithm, sim.runtime.now
        task = sim.task(group, rnd, self.watched)
        with executor.stage("download", group, layout) as watch:
            parcel = algorithm.download(rnd, self.server, group)
            down = count_bytes(parcel, layout, len(group))
            watch(parcel)
        with executor.stage("receive", group, layout) as watch:
            client = algorithm.receive(rnd, sim.client_states(self.clients, group), carry(parcel, layout), task)
            watch(client)
        with executor.stage("work", group, layout) as watch:
            state, upload, trained = algorithm.work(rnd, client, task)
            watch(state)
            watch(upload)
        form = sim.upload_form(rnd, self.server)
        up = _upload_bytes(upload, form, layout, len(group))
        _check_rows(sim, up, len(group), len(self.ids))
        if device.type == "cuda":  # else the time of training would be counted where its result is read
            torch.cuda.synchronize(device)
        paused, received, sound = now(), rows_of(client, algorithm.row), group
        # With a limit, updates count from what a server in a deployment knows: what it sent.
        start = {algorithm.row: Field(received)} if sim.norm_limit is None else parcel
        with executor.stage("fold", group, layout) as watch:
            arrived, found = self._arrived(upload, form, state, start, group)
            if len(found.sound) < len(group):
                there = found.sound.to(device)
                sound, arrived, state = group[found.sound], arrived.pick(there), pick(state, there)
                received, trained = ({name: x[there] for name, x in rows.items()} for rows in (received, trained))
            if len(sound):
                total = algorithm.fold(rnd, self.server, total, arrived, sound)
        report = GroupReport(group, down, up, dict(task.notes), found, now() - paused)
        if len(sound):
            if self.examine is not None:
                self.examine(sound, received, trained)
            kept = kept.updated(sound.tolist(), state)  # group by group, so that no cohort is held in RAM
        return total, kept, report

    def _arrived(
        self, upload: Parcel, form: Form, state: State, received: Mapping[str, Field], group: Tensor
    ) -> tuple[Parcel, Inspection]:
        """The uploads of a group as the server gets them, and what it finds in them."""
        sim, layout = self.sim, self.rnd.layout
        try:
            arrived = self.executor.carry(upload, layout, form)
        except WireError as error:
            return Parcel({}), Inspection.refused(str(error), len(group))
        wrong = misfit(arrived, form, layout, len(group))
        if wrong:
            return arrived, Inspection.refused(wrong, len(group))
        opened = sim.algorithm.open(self.rnd, self.server, arrived, group)
        samples = sim.samples[group]
        limited = sim.norm_limit is not None
        return opened.uploads, inspect(arrived, form, state, received, samples, layout, opened, limited=limited)


def _flagged(
    reports: list[GroupReport], ids: Tensor, limit: float | None
) -> tuple[tuple[LeftOut, ...], tuple[Outlier, ...], tuple[LeftOut, ...]]:
    """Clients that were left out, outliers, and those above the limit, from all groups in the order of the cohort."""
    each = [
        found
        for s in reports
        for found in zip(s.ids.tolist(), s.found.reasons, s.found.norms, s.found.parts, strict=True)
    ]
    place = {client: at for at, client in enumerate(ids.tolist())}
    each.sort(key=lambda found: place[found[0]])
    left_out = tuple(LeftOut(client, reason) for client, reason, *_ in each if reason)
    sound = [found for found in each if not found[1]]
    clients = [client for client, *_ in sound]
    return (
        left_out,
        outliers(clients, [norm for _, _, norm, _ in sound]),
        too_long(clients, [parts for *_, parts in sound], limit),
    )


def _repeated(first: Report, far: tuple[LeftOut, ...], again: Report) -> Report:
    """The report of a round that was repeated without some clients: all have worked and sent their bytes."""
    return replace(
        _left_out(first, far),
        train_seconds=first.train_seconds + again.train_seconds,
        server_seconds=first.server_seconds + again.server_seconds,
    )


def _left_out(first: Report, far: tuple[LeftOut, ...]) -> Report:
    reasons = {each.client: each for each in (*first.left_out, *far)}
    return replace(
        first,
        left_out=tuple(reasons[client] for client in first.cohort.tolist() if client in reasons),
        outliers=tuple(each for each in first.outliers if each.client not in reasons),
    )


def _summed(reports: list[GroupReport], ids: Tensor) -> tuple[Bytes, Bytes, State]:
    """The bytes down and up and the notes of all groups, in the order of the cohort; a group without a note has 0."""
    order = places(torch.cat([report.ids for report in reports]), ids)
    down, up = (sum(side[1:], side[0]) for side in zip(*((report.down, report.up) for report in reports), strict=True))
    like = {name: value for report in reports for name, value in report.notes.items()}
    each = [
        torch.cat([s.notes[name] if name in s.notes else one.new_zeros(len(s.ids), *one.shape[1:]) for s in reports])
        for name, one in like.items()
    ]
    notes: State = {name: values[order] for name, values in zip(like, on_host(each), strict=True)}
    return replace(down, clients=down.clients[order]), replace(up, clients=up.clients[order]), notes


def _upload_bytes(upload: Parcel, form: Form, layout: Layout, clients: int) -> Bytes:
    """The bytes of uploads; of those that have another form, whose layers may be anything, only how many."""
    if not misfit(upload, form, layout, clients):
        return count_bytes(upload, layout, clients)
    each = sum(stored_bytes({name: field.value}) for name, field in upload.items()) // clients
    none = torch.zeros(len(layout.layers), dtype=torch.int64)
    return Bytes(torch.full((clients,), each), none, each * clients, none)


def _check_rows(sim: SimulationContext, upload: Bytes, group: int, cohort: int) -> None:
    """Refuse to keep more uploads than memory allows."""
    if sim.round_limit is None or not sim.requires.rows:
        return
    needed = upload.total // group * cohort
    if needed > sim.round_limit:
        raise MemoryLimitError(
            f"this merge keeps the uploads of all {cohort} clients, which take {in_units(needed)}, and the limit "
            f"is {in_units(sim.round_limit)}: raise it, or let fewer clients take part"
        )
