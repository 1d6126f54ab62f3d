"""Wrappers of an algorithm for the laws: they watch inputs, change uploads, hide undeclared fields and trace steps."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from math import isfinite
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from stratafl.core.algorithm import Algorithm, Opened, Total, Work
from stratafl.core.fields import FieldSpec
from stratafl.core.form import Form
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Rows
from stratafl.core.parcel import ColumnMask, Field, Parcel, join_parcels
from stratafl.core.phased import Phased
from stratafl.core.round import Plan, Round, Setup
from stratafl.core.state import State, Value, clone, flatten, pick
from stratafl.core.steps import Mix, Names, Send, Step, Train
from stratafl.core.task import ScanStep, Stack, Task
from stratafl.errors import ContractError
from stratafl.execute import Simulation
from stratafl.runtime.batches import Batches
from stratafl.runtime.cohort_task import CohortTask
from stratafl.testing.case import difference


class Watched(Algorithm):
    """An algorithm whose inputs are compared with copies of them after every call."""

    def __init__(self, inner: Algorithm) -> None:
        self.inner = inner
        self.row, self.requires = inner.row, inner.requires

    def plan(self, t: int, rounds: int) -> Plan:
        return self.inner.plan(t, rounds)

    def init(self, setup: Setup) -> State:
        with unchanged("init", {"start": setup.start}):
            return self.inner.init(setup)

    def enrol(self, setup: Setup, ids: Tensor) -> State:
        with unchanged("enrol", {"start": setup.start, "ids": ids}):
            return self.inner.enrol(setup, ids)

    def download(self, rnd: Round, server: State, ids: Tensor, new: bool = False) -> Parcel:
        with unchanged("download", server, {"ids": ids}):
            return self.inner.download(rnd, server, ids, new)

    def receive(self, rnd: Round, client: State, parcel: Parcel, task: Task) -> State:
        with unchanged("receive", client, _values(parcel)):
            return self.inner.receive(rnd, client, parcel, task)

    def work(self, rnd: Round, client: State, task: Task) -> Work:
        with unchanged("work", client):
            return self.inner.work(rnd, client, task)

    def upload_form(self, rnd: Round, server: State) -> Form:
        """That of the algorithm, whatever a watcher does to uploads."""
        with unchanged("upload_form", server):
            return self.inner.upload_form(rnd, server)

    def open(self, rnd: Round, server: State, uploads: Parcel, ids: Tensor) -> Opened:
        with unchanged("open", server, _values(uploads)):
            return self.inner.open(rnd, server, uploads, ids)

    def fold(self, rnd: Round, server: State, total: Total, uploads: Parcel, ids: Tensor) -> Total:
        with unchanged("fold", server, *total.sums, _values(uploads)):
            return self.inner.fold(rnd, server, total, uploads, ids)

    def absorb(self, rnd: Round, server: State, total: Total) -> State:
        with unchanged("absorb", server, *total.sums):
            return self.inner.absorb(rnd, server, total)

    def secure_unit(self, rnd: Round) -> float | None:
        return self.inner.secure_unit(rnd)

    def secure_noise(self, rnd: Round, client: int, numbers: Tensor) -> Tensor:
        with unchanged("secure_noise", {"numbers": numbers}):
            return self.inner.secure_noise(rnd, client, numbers)

    def deploy(self, rnd: Round, client: State, task: Task) -> Rows:
        with unchanged("deploy", client):
            return self.inner.deploy(rnd, client, task)


Change = Callable[[Parcel], Parcel]  # of one client's upload


class Tampered(Watched):
    """An algorithm in which these clients' uploads are changed on their way, so that no server can use them."""

    def __init__(self, inner: Algorithm, changes: Mapping[int, Change]) -> None:
        super().__init__(inner)
        self.changes = changes

    def work(self, rnd: Round, client: State, task: Task) -> Work:
        done = super().work(rnd, client, task)
        upload = done.upload
        for place, number in enumerate(task.ids.tolist()):
            if number in self.changes:  # an upload that does not fit the others' can only be sent alone
                changed = self.changes[number](upload.pick(slice(place, place + 1)))
                parts = [upload.pick(slice(place)), changed, upload.pick(slice(place + 1, None))]
                upload = changed if len(task) == 1 else join_parcels(parts)
        return done._replace(upload=upload)


def not_finite(value: float = torch.nan) -> Change:
    """One value that is sent becomes NaN or infinite: the last of the last field of numbers that are not whole."""

    def change(parcel: Parcel) -> Parcel:
        for name, field in reversed(list(parcel.items())):
            blocks = {"": field.value} if isinstance(field.value, Tensor) else dict(field.value)
            sent = field.mask.sent if isinstance(field.mask, ColumnMask) else {}
            places = {key: sent.get(key, torch.ones_like(x)).reshape(-1).nonzero() for key, x in blocks.items()}
            last = next(
                (key for key, x in reversed(blocks.items()) if x.is_floating_point() and len(places[key])), None
            )
            if last is not None:
                blocks[last] = blocks[last].clone()
                blocks[last].reshape(-1)[places[last][-1]] = value
                spoilt = blocks[""] if isinstance(field.value, Tensor) else blocks
                return Parcel({**parcel, name: replace(field, value=spoilt)})
        return parcel

    return change


def claiming(samples: float) -> Change:
    """Another number of samples than the client has; in methods that do not send it, a value that is not finite."""

    def change(parcel: Parcel) -> Parcel:
        if "samples" not in parcel or not isfinite(samples):  # a count is a whole number
            return not_finite(-torch.inf)(parcel)
        return Parcel({**parcel, "samples": Field(torch.full_like(parcel["samples"].tensor, samples))})

    return change


@contextmanager
def unchanged(where: str, *states: Mapping[str, Value]) -> Iterator[None]:
    """Raises if any of the states changed inside."""
    copies = [clone(state) for state in states]
    yield
    for state, copy in zip(states, copies, strict=True):
        if difference(flatten(state), flatten(copy)) != 0:
            raise ContractError("purity", f"'{where}' changes its inputs")


class WatchedParcel(Parcel):
    """A parcel that knows which of its fields were read."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        super().__init__(fields)
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Field:
        self.read.add(name)
        return super().__getitem__(name)


def _values(parcel: Parcel) -> State:
    return {name: field.value for name, field in parcel.items()}


def with_declared_steps(algorithm: Algorithm) -> Algorithm:
    """The algorithm with every client-side step shut off from fields that it does not declare."""
    if isinstance(algorithm, Phased):
        phases = tuple(replace(p, algorithm=with_declared_steps(p.algorithm)) for p in algorithm.phases)  # type: ignore[arg-type]
        finish = algorithm.finish
        if finish is not None:
            finish = replace(finish, algorithm=with_declared_steps(finish.algorithm))  # type: ignore[arg-type]
        return replace(algorithm, phases=phases, finish=finish)
    if not isinstance(algorithm, Layerwise):
        return algorithm
    kinds = {"mix": Mix, "train": Train, "tune": Train, "send": Send}
    declared = {slot: type(f"Declared{kind.__name__}", (_Declared, kind), {}) for slot, kind in kinds.items()}
    slots: dict[str, Any] = {slot: tuple(map(kind, getattr(algorithm, slot))) for slot, kind in declared.items()}
    return replace(algorithm, **slots)


class _Declared(Step):
    """A step that sees only the fields it declares, and may give only those it declares."""

    def __init__(self, step: Any) -> None:
        self.step = step

    @property
    def reads(self) -> Names:
        return self.step.reads  # type: ignore[no-any-return]

    @property
    def writes(self) -> Names:
        return self.step.writes  # type: ignore[no-any-return]

    @property
    def keeps(self) -> Mapping[str, FieldSpec]:
        return self.step.keeps  # type: ignore[no-any-return]

    @property
    def splits(self) -> Names:
        return self.step.splits  # type: ignore[no-any-return]

    def __call__(self, rnd: Round, client: State, *rest: Any) -> Any:
        """The step on its own fields; a field it writes it may also look at."""
        visible = {*self.reads, *self.writes}
        changed = self.step(rnd, _Fields(self.step, {k: v for k, v in client.items() if k in visible}), *rest)
        extra = [name for name in changed if not {name, f"up.{name}"} & set(self.writes)]
        if extra:
            raise ContractError("declared", f"{type(self.step).__name__} returns '{extra[0]}', which is not declared")
        return changed


class _Fields(dict[str, Value]):
    """The fields that a step declares."""

    def __init__(self, step: object, fields: State) -> None:
        super().__init__(fields)
        self.step = step

    def __missing__(self, name: str) -> Value:
        raise ContractError("declared", f"{type(self.step).__name__} reads '{name}', which it does not declare")


class TracingTask(CohortTask):
    """A task that traces the first step of every scan before it runs."""

    def __init__(self, sim: Simulation, ids: Tensor, rnd: Round) -> None:
        super().__init__(sim.runtime, ids, rnd, sim.algorithm.requires.splits)

    def _pieces(self, carry: State) -> list[slice]:
        return [slice(0, len(self))]  # in this thread, since tracing patches torch for all of them

    def _steps(
        self, step: ScanStep, carry: State, constants: State, steps: Sequence[int], batches: list[Batches]
    ) -> State:
        if steps[0] > 0:
            active, stacks = next(self._stacks(batches, steps))
            tensors = [(s.x, s.y, s.weight, s.keys) for s in stacks]
            here = slice(0, active)

            def traced(carry: State, constants: State, tensors: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> State:
                return step(carry, constants, *(Stack(*t, s.sizes) for t, s in zip(tensors, stacks, strict=True)))

            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                arguments = (clone(pick(carry, here)), pick(constants, here), tensors)
                traced(*tree_map_only(Tensor, mode.from_tensor, arguments))
        return super()._steps(step, carry, constants, steps, batches)
