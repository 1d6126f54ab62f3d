"""Phases: algorithms that run one after the other and pass on their declared fields.

    Phased((Phase(fedavg(), rounds=30), Phase(alone(), participation="all")))

Every phase works on the union of what the phases declare: a field that a later phase needs is kept up to date by the
earlier ones. A client that was not reached before a change still has what it had: where that matters, a phase of one
round with `participation="all"` reaches all clients, and with `only_sampled_learn` teaches only the sampled ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import accumulate
from typing import Annotated

import torch
from torch import Tensor, nn

from stratafl.core.algorithm import Algorithm, Opened, Requirements, Total, Work
from stratafl.core.annotations import Range
from stratafl.core.fields import FieldSpec, Together
from stratafl.core.footprint import Footprint, largest
from stratafl.core.form import Form
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Rows, per_row
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.round import Participation, Plan, Round, Setup
from stratafl.core.state import State, combine
from stratafl.core.task import Task
from stratafl.errors import PhaseError, RecordError


@record
class ShareOfRounds:
    """A length in rounds that grows with the run: a share of its rounds, rounded down, less a few that follow it."""

    share: Annotated[float, Range(least=0, below=1)]
    less: int = 0

    def of(self, rounds: int) -> int:
        return max(0, int(self.share * rounds + 1e-9) - self.less)  # 0.29 of 100 is 29


def warm_up(rounds: int | None, share: float, less: int = 0) -> int | ShareOfRounds:
    """The length of a warm-up, in rounds or else as a share of the run's; the last `less` of its rounds are a phase."""
    return ShareOfRounds(share, less) if rounds is None else max(0, rounds - less)


@record
class Phase:
    """A record, for how many rounds (None: for the rest), and who takes part."""

    algorithm: Layerwise
    rounds: Annotated[int, Range(least=0)] | ShareOfRounds | None = None
    participation: Participation = "sampled"
    evaluated: bool = True
    only_sampled_learn: bool = False  # clients that take part without being sampled keep what they received

    def length(self, rounds: int) -> int:
        """How many rounds it takes in a run of `rounds` rounds."""
        if self.rounds is None:
            return rounds
        return self.rounds.of(rounds) if isinstance(self.rounds, ShareOfRounds) else self.rounds


@record
class Phased(Algorithm):
    """Phases in their order; `finish` is one more pass after the last round."""

    phases: tuple[Phase, ...]
    finish: Phase | None = None

    def __post_init__(self) -> None:
        if not self.phases:
            raise RecordError("Phased needs at least one phase")
        for i, phase in enumerate(self.phases[:-1]):
            if phase.rounds is None:
                raise RecordError(f"phase {i} has no number of rounds, so phase {i + 1} would never begin")
        if len({phase.algorithm.row for phase in self._all}) > 1:
            raise RecordError("the phases deploy different fields: " + ", ".join(p.algorithm.row for p in self._all))
        if any(phase.algorithm.promise for phase in self._all):
            raise RecordError("a phase adds noise for privacy, which the others would undo: use that method alone")

    @property
    def _all(self) -> tuple[Phase, ...]:
        return self.phases if self.finish is None else (*self.phases, self.finish)

    @cached_property
    def records(self) -> tuple[Layerwise, ...]:
        """The record of each phase, on the fields of all."""
        server = _union([phase.algorithm.server_fields for phase in self._all])
        client = _union([phase.algorithm.client_fields for phase in self._all])
        return tuple(replace(phase.algorithm, server=server, client=client) for phase in self._all)

    @property
    def row(self) -> str:  # type: ignore[override]
        return self.phases[0].algorithm.row

    @property
    def requires(self) -> Requirements:  # type: ignore[override]
        requirements = [phase.algorithm.requires for phase in self._all]
        return Requirements(
            splits=tuple(dict.fromkeys(split for needs in requirements for split in needs.splits)),
            batchings=tuple(batching for needs in requirements for batching in needs.batchings),
            scores=any(needs.scores for needs in requirements),
            participation="all" if any(phase.participation == "all" for phase in self._all) else "sampled",
            rows=any(needs.rows for needs in requirements),
            extra_rounds=int(self.finish is not None),
        )

    @property
    def global_model(self) -> str | None:  # type: ignore[override]
        """The last phase's global model."""
        return self._all[-1].algorithm.global_model

    @property
    def leaks(self) -> str | None:  # type: ignore[override]
        return next((phase.algorithm.leaks for phase in self._all if phase.algorithm.leaks), None)

    def check(self, setup: Setup) -> None:
        """Check every phase, and refuse a run that ends before the last one begins."""
        for phase in self._all:
            phase.algorithm.check(setup)
        before = self.before(setup.rounds)
        if setup.rounds and before >= setup.rounds:
            raise PhaseError(before, setup.rounds)

    def before(self, rounds: int) -> int:
        """How many rounds of a run it takes until the last phase begins."""
        return sum(phase.length(rounds) for phase in self.phases[:-1])

    def footprint(self, setup: Setup) -> Footprint:
        return largest(record.footprint(setup) for record in self.records)

    def extend(self, module: nn.Module, example: Tensor, classes: int | None, head: str) -> nn.Module:
        """The model with the extension of the first phase that has one."""
        for phase in self._all:
            if phase.algorithm.extension is not None:
                return phase.algorithm.extend(module, example, classes, head)
        return module

    def plan(self, t: int, rounds: int) -> Plan:
        """The phase that round t falls into."""
        ends = accumulate(phase.length(rounds) for phase in self.phases)
        index = next((i for i, end in enumerate(ends) if t < end), len(self.phases) - 1)
        if self.finish is not None and t >= rounds:
            index = len(self.phases)
        schedule = (0, 1) if index == len(self.phases) else None  # the finish is a run of its own
        return Plan(index, self._all[index].participation, self._all[index].evaluated, schedule)

    def init(self, setup: Setup) -> State:
        return self.records[0].init(setup)

    def enrol(self, setup: Setup, ids: Tensor) -> State:
        return self.records[0].enrol(setup, ids)

    def download(self, rnd: Round, server: State, ids: Tensor, new: bool = False) -> Parcel:
        return self._of(rnd).download(rnd, server, ids, new)

    def receive(self, rnd: Round, client: State, parcel: Parcel, task: Task) -> State:
        return self._of(rnd).receive(rnd, client, parcel, task)

    def work(self, rnd: Round, client: State, task: Task) -> Work:
        """How the round's phase trains and what it sends."""
        work = self._of(rnd).work(rnd, client, task)
        if not self._all[rnd.plan.phase].only_sampled_learn:
            return work
        return work._replace(client=_where(rnd.sampled(task.ids), work.client, client))

    def open(self, rnd: Round, server: State, uploads: Parcel, ids: Tensor) -> Opened:
        return self._of(rnd).open(rnd, server, uploads, ids)

    def fold(self, rnd: Round, server: State, total: Total, uploads: Parcel, ids: Tensor) -> Total:
        return self._of(rnd).fold(rnd, server, total, uploads, ids)

    def absorb(self, rnd: Round, server: State, total: Total) -> State:
        return self._of(rnd).absorb(rnd, server, total)

    def upload_form(self, rnd: Round, server: State) -> Form:
        return self._of(rnd).upload_form(rnd, server)

    def tell(self, rnd: Round, server: State) -> dict[str, Tensor]:
        return self._of(rnd).tell(rnd, server)

    def communication(self, rnd: Round, server: State) -> dict[str, float]:
        """That of the round's phase; 0 of what only other phases send, so that every round has the same keys."""
        zeros = {name: 0.0 for record in self.records for name in record.communication(rnd, server)}
        return {**zeros, **self._of(rnd).communication(rnd, server)}

    def deploy(self, rnd: Round, client: State, task: Task) -> Rows:
        return self._of(rnd).deploy(rnd, client, task)

    def _of(self, rnd: Round) -> Layerwise:
        return self.records[rnd.plan.phase]


def records_of(algorithm: Algorithm) -> tuple[Layerwise, ...]:
    """The record of each phase of a method, or its only one; none of a method that is not written as records."""
    if isinstance(algorithm, Phased):
        return tuple(phase.algorithm for phase in algorithm._all)
    return (algorithm,) if isinstance(algorithm, Layerwise) else ()


def with_records(algorithm: Algorithm, change: Callable[[Layerwise], Layerwise]) -> Algorithm:
    """The method with each of its records changed."""

    def changed(phase: Phase) -> Phase:
        return replace(phase, algorithm=change(phase.algorithm))

    if isinstance(algorithm, Phased):
        finish = None if algorithm.finish is None else changed(algorithm.finish)
        return replace(algorithm, phases=tuple(map(changed, algorithm.phases)), finish=finish)
    return change(algorithm) if isinstance(algorithm, Layerwise) else algorithm


def _where(chosen: Tensor, a: State, b: State) -> State:
    """The fields of `a`, for clients that were not chosen as they are in `b`."""

    def pick(pair: Sequence[Tensor]) -> Tensor:
        after, before = pair
        return torch.where(per_row(chosen, after), after, before)

    return {name: combine(pick, (value, b[name])) for name, value in a.items()}


def _union(declared: list[Mapping[str, FieldSpec]]) -> dict[str, FieldSpec]:
    union: dict[str, FieldSpec] = {}
    for fields in declared:
        for name, spec in fields.items():
            before = union.get(name, spec)
            union[name] = spec if before == spec else Together((before, spec))
    return union
