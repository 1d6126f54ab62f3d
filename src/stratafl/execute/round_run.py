"""One round, the same for every executor: download · receive · work · inspect · fold, group by group, then absorb."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import field, replace
from typing import Protocol

import torch
from torch import Tensor

from stratafl.core.algorithm import Total
from stratafl.core.form import Form
from stratafl.core.layout import Layout, Rows
from stratafl.core.machine import in_units
from stratafl.core.parcel import Bytes, Field, Parcel, count_bytes
from stratafl.core.reprs import holder
from stratafl.core.round import Round
from stratafl.core.schema import misfit
from stratafl.core.state import State, pick, rows_of, stored_bytes
from stratafl.errors import DataError, MemoryLimitError, WireError
from stratafl.execute.client_states import ClientStates
from stratafl.execute.context import SimulationContext
from stratafl.execute.memory import release_freed_memory
from stratafl.execute.process_group import ProcessGroup, places
from stratafl.execute.transfers import on_host
from stratafl.execute.uploads import (
    Flagged,
    Inspection,
    LeftOut,
    OutlyingUpdate,
    flagged,
    inspect,
    with_shorter_updates,
)

log = logging.getLogger("stratafl")


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
        """Runs around each stage; the stage calls the watch with its results."""


Watch = Callable[[State | Parcel], None]
Examine = Callable[[Tensor, Rows, Rows], None]  # clients that take part, their models as received, and as trained


class Examiner(ABC):
    """Stores the models that it sees, so it must start over when the round is repeated with fewer clients."""

    @abstractmethod
    def __call__(self, clients: Tensor, received: Rows, trained: Rows) -> None:
        """See the models of some clients that take part."""

    @abstractmethod
    def restart(self) -> None:
        """Forget the models seen so far."""


def unwatched(state: State | Parcel) -> None:
    """The watch of executors that check nothing."""


@holder
class Report:
    """What a round cost, which clients were left out, and whose updates stand out."""

    cohort: Tensor
    down: Bytes
    up: Bytes
    notes: State  # what steps noted about each client, in the order of the cohort, on the CPU
    train_seconds: float
    server_seconds: float
    left_out: tuple[LeftOut, ...] = ()  # in the order of the cohort
    outliers: tuple[OutlyingUpdate, ...] = ()
    shortened: tuple[OutlyingUpdate, ...] = ()  # by their longest part

    @property
    def took_part(self) -> Tensor:
        """`[C]` booleans: whose upload was not left out."""
        return _not_among(self.cohort, self.left_out)

    @property
    def present(self) -> Tensor:
        return self.cohort[self.took_part]


@holder
class GroupReport:
    """The bytes of a group of clients, what its steps noted, and what the server found in its uploads."""

    ids: Tensor
    down: Bytes
    up: Bytes
    notes: Mapping[str, Tensor]
    inspection: Inspection
    server_seconds: float


@holder
class _GroupWork:
    """What a group of clients did in a round, before the server looks at its uploads."""

    ids: Tensor
    parcel: Parcel  # what the server sent
    received: Rows  # the clients' models after `receive`
    trained: Rows
    state: State  # what the clients would keep
    upload: Parcel
    notes: Mapping[str, Tensor]

    def only(self, accepted: Tensor, device: torch.device) -> "_GroupWork":
        """The work of those clients whose uploads are accepted, by their places in the group."""
        if len(accepted) == len(self.ids):
            return self
        places = accepted.to(device)
        received, trained = ({name: x[places] for name, x in rows.items()} for rows in (self.received, self.trained))
        state = pick(self.state, places)
        return replace(self, ids=self.ids[accepted], received=received, trained=trained, state=state)


@holder
class RoundRun:
    """A round to run; it does not write to its inputs.

    `examine` sees each group's models as received and right after training, which are not kept. A client whose upload
    is left out keeps the state that it had before the round. If all uploads are left out, so does the server.
    """

    sim: SimulationContext
    executor: Executor
    rnd: Round
    server: State
    clients: ClientStates
    ids: Tensor
    examine: Examine | Examiner | None = None
    watched: bool = False
    scales: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # of updates that are too long

    def run(self) -> tuple[State, ClientStates, Report]:
        """The server's next state, the next states of this process's clients, and a report.

        Which updates are too long is known only when all have arrived. The round is then repeated without those
        clients, or with shorter updates, from the states it began with: keeping all uploads instead would take the
        memory of a whole cohort.
        """
        server, states, report, flags = self._run_once()
        if not flags.too_long and not flags.scales:
            return server, states, report
        if isinstance(self.examine, Examiner):
            self.examine.restart()
        without = replace(self, ids=self.ids[_not_among(self.ids, flags.too_long)], scales=flags.scales)
        if len(without.ids) == 0:
            return self.server, self.clients, report
        server, states, repeated, _ = without._run_once()
        # All have worked and sent their bytes, in the first pass.
        train_seconds = report.train_seconds + repeated.train_seconds
        server_seconds = report.server_seconds + repeated.server_seconds
        return server, states, replace(report, train_seconds=train_seconds, server_seconds=server_seconds)

    def _run_once(self) -> tuple[State, ClientStates, Report, Flagged]:
        """The round with all of its clients, and those whose update is too long."""
        sim, rnd, ids, process_group = self.sim, self.rnd, self.ids, self.executor.process_group
        now = sim.runtime.now
        if len(ids) == 0:
            raise DataError("the cohort is empty: a round needs at least one client")
        sim.upload_form(rnd, self.server)  # found once for each phase; here, so that it is not counted as training
        begin = now()
        total, states, reports = self._run_groups()
        own_seconds = sum(report.server_seconds for report in reports)
        # The process that is done first waits here for the others.
        reports = [report for of_process in process_group.gather(reports) for report in of_process]
        all_arrived = now()
        inspections = ((report.ids.tolist(), report.inspection) for report in reports)
        flags = flagged(inspections, ids.tolist(), sim.norm_limit, sim.norm_clip)
        refused = [each for each in flags.left_out if each not in flags.too_long]  # the others are in the total
        present = ids[_not_among(ids, refused)]
        unopened = sim.unopened(rnd, self.server, len(present))
        if unopened:
            log.warning("round %d changes nothing: %s", rnd.t + 1, unopened)
            named = {each.client for each in refused}
            skipped = (LeftOut(client, unopened) for client in ids.tolist() if client not in named)
            flags, states = Flagged((*refused, *skipped), (), (), {}, ()), self.clients
        server = self.server if unopened else self._absorbed(total, present)
        server_seconds = own_seconds + now() - all_arrived
        down, up, notes = _summed(reports, ids)
        train_seconds = now() - begin - server_seconds
        report = Report(
            ids, down, up, notes, train_seconds, server_seconds, flags.left_out, flags.outliers, flags.shortened
        )
        return server, states, report, flags

    def _run_groups(self) -> tuple[Total, ClientStates, list[GroupReport]]:
        """The work of this process's clients, group by group."""
        total, states, reports = Total(), self.clients, list[GroupReport]()
        for group in self.executor.groups(self.sim, self.ids):
            total, states, report = self._run_group(total, states, group)
            reports.append(report)
            if self.sim.round_limit is not None:
                release_freed_memory()
        return total, states, reports

    def _run_group(self, total: Total, states: ClientStates, group: Tensor) -> tuple[Total, ClientStates, GroupReport]:
        """The work of a group, folded into the total. A function of its own, so that its tensors are freed."""
        sim, rnd, layout, now = self.sim, self.rnd, self.rnd.layout, self.sim.runtime.now
        work, down = self._work(group)
        form = sim.upload_form(rnd, self.server)
        up = _upload_bytes(work.upload, form, layout, len(group))
        if sim.secure:
            up = sim.secure_sums(rnd, self.server).sent(layout, len(group))
        _check_rows(sim, up, len(group), len(self.ids))
        if sim.runtime.device.type == "cuda":
            # Otherwise the time of training would be counted where its result is first read.
            torch.cuda.synchronize(sim.runtime.device)
        begin = now()
        with self.executor.stage("fold", group, layout):
            uploads, inspection = self._arrived(work, form)
            accepted = work.only(inspection.sound, sim.runtime.device)
            if len(accepted.ids) < len(group):
                uploads = uploads.pick(inspection.sound.to(sim.runtime.device))
            if len(accepted.ids):
                total = sim.fold(rnd, self.server, total, uploads, accepted.ids)
        report = GroupReport(group, down, up, work.notes, inspection, now() - begin)
        if len(accepted.ids):
            if self.examine is not None:
                self.examine(accepted.ids, accepted.received, accepted.trained)
            # Group by group, so that no more than one group's states are held in RAM.
            states = states.updated(accepted.ids.tolist(), accepted.state)
        return total, states, report

    def _work(self, group: Tensor) -> tuple[_GroupWork, Bytes]:
        """What the clients of a group do from their download to their upload, and the bytes that they download."""
        sim, rnd, stage, layout = self.sim, self.rnd, self.executor.stage, self.rnd.layout
        task = sim.task(group, rnd, self.watched)
        with stage("download", group, layout) as watch:
            parcel = sim.algorithm.download(rnd, self.server, group)
            down = count_bytes(parcel, layout, len(group))
            watch(parcel)
        with stage("receive", group, layout) as watch:
            arrived = self.executor.carry(parcel, layout)
            client = sim.algorithm.receive(rnd, sim.client_states(self.clients, group), arrived, task)
            watch(client)
        with stage("work", group, layout) as watch:
            state, upload, trained = sim.algorithm.work(rnd, client, task)
            watch(state)
            watch(upload)
        received = rows_of(client, sim.algorithm.row)
        return _GroupWork(group, parcel, received, trained, state, upload, dict(task.notes)), down

    def _arrived(self, work: _GroupWork, form: Form) -> tuple[Parcel, Inspection]:
        """The uploads of a group as the server gets them, and what it finds in them."""
        sim, layout, clients = self.sim, self.rnd.layout, len(work.ids)
        try:
            arrived = self.executor.carry(work.upload, layout, form)
        except WireError as error:
            return Parcel({}), Inspection.refused(str(error), clients)
        wrong = misfit(arrived, form, layout, clients)
        if wrong:
            return arrived, Inspection.refused(wrong, clients)
        opened = sim.algorithm.open(self.rnd, self.server, arrived, work.ids)
        # For a limit, updates count from what a server in a deployment knows: what it sent.
        sent = work.parcel if sim.measured else None
        received, samples = {sim.algorithm.row: Field(work.received)}, sim.samples[work.ids]
        inspection = inspect(arrived, form, work.state, received, samples, layout, opened, sent=sent)
        if sim.secure:
            too_large = sim.overflowing(self.rnd, self.server, opened.uploads, work.ids)
            reasons = [reason or other for reason, other in zip(inspection.reasons, too_large, strict=True)]
            inspection = replace(inspection, reasons=reasons)
        scales = [self.scales.get(client, {}) for client in work.ids.tolist()]
        return with_shorter_updates(opened.uploads, work.parcel, scales, layout), inspection

    def _absorbed(self, total: Total, present: Tensor) -> State:
        """The server's next state, from the uploads of the clients that are present."""
        sim, server = self.sim, self.server
        with self.executor.stage("absorb", self.ids, self.rnd.layout) as watch:
            if len(present):
                total = self.executor.process_group.merge(total, present, sim.requires.rows)
            if len(present) or sim.requires.noise:
                server = sim.absorbed(self.rnd, server, total)
            watch(server)
        return server


def _not_among(ids: Tensor, left_out: Sequence[LeftOut]) -> Tensor:
    """`[C]` booleans: which of the clients were not left out."""
    return ~torch.isin(ids, torch.tensor([each.client for each in left_out], dtype=torch.int64))


def _summed(reports: list[GroupReport], ids: Tensor) -> tuple[Bytes, Bytes, State]:
    """The bytes down and up and the notes of all groups, in the order of the cohort; a group without a note has 0."""
    order = places(torch.cat([report.ids for report in reports]), ids)
    down, up = (sum(side[1:], side[0]) for side in zip(*((report.down, report.up) for report in reports), strict=True))
    examples = {name: value for report in reports for name, value in report.notes.items()}

    def noted(report: GroupReport, name: str, example: Tensor) -> Tensor:
        if name in report.notes:
            return report.notes[name]
        return example.new_zeros(len(report.ids), *example.shape[1:])

    columns = [torch.cat([noted(report, *named) for report in reports]) for named in examples.items()]
    notes: State = {name: values[order] for name, values in zip(examples, on_host(columns), strict=True)}
    return replace(down, clients=down.clients[order]), replace(up, clients=up.clients[order]), notes


def _upload_bytes(upload: Parcel, form: Form, layout: Layout, clients: int) -> Bytes:
    """The bytes of uploads. Those of another form may have any layers, so theirs are not counted by layer."""
    if not misfit(upload, form, layout, clients):
        return count_bytes(upload, layout, clients)
    per_client = sum(stored_bytes({name: field.value}) for name, field in upload.items()) // clients
    unknown_layers = torch.zeros(len(layout.layers), dtype=torch.int64)
    return Bytes(torch.full((clients,), per_client), unknown_layers, per_client * clients, unknown_layers)


def _check_rows(sim: SimulationContext, upload: Bytes, group: int, cohort: int) -> None:
    """Refuse to keep more uploads than memory allows."""
    if sim.round_limit is None or not sim.requires.rows:
        return
    needed = upload.total // group * cohort
    if needed > sim.round_limit:
        raise MemoryLimitError(
            f"this merge keeps the uploads of all {cohort} clients, which take {in_units(needed)}, but the limit "
            f"is {in_units(sim.round_limit)}: raise it, or let fewer clients take part"
        )
