"""Five slots in the order a round happens: serve · mix · train · send · merge.

The normal way to fill the waist. An algorithm is one frozen record of steps; a variant is `dataclasses.replace`, never
a subclass. Each step says which fields it reads and writes, so that a record in which nobody sends what somebody reads
is refused when it is made, not when it runs.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import is_dataclass
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from stratafl.core.algorithm import Algorithm, Total, Work
from stratafl.core.fields import FieldSpec, Side
from stratafl.core.footprint import Footprint, together
from stratafl.core.layers import Select, select
from stratafl.core.layout import Layout, Rows
from stratafl.core.parcel import Field, Parcel, join
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, Value, rows_of
from stratafl.core.task import Task
from stratafl.errors import RecordError


class Step(Protocol):
    """A step of any slot: the fields it reads (`down.x` and `up.x` are fields of parcels) and writes."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields it needs."""

    @property
    def writes(self) -> tuple[str, ...]:
        """The fields it gives."""


class Serve(Step, Protocol):
    """Server → download."""

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        """The fields for these clients."""


class Mix(Step, Protocol):
    """Download and memory → where training starts."""

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        """The fields that change."""


class Train(Step, Protocol):
    """A phase of local training."""

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        """The fields that change."""


class Send(Step, Protocol):
    """Memory → upload."""

    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        """The fields to send."""


class MergeSums(Step, Protocol):
    """Uploads → server, through sums that add up chunk by chunk and rank by rank."""

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        """The sums with the uploads of these clients in them; `{}` is nothing yet."""

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        """The server's fields that change."""


@runtime_checkable
class MergeRows(Step, Protocol):
    """Uploads → server, where all uploads are needed side by side."""

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        """The server's fields that change, from the uploads of these clients."""


class Extension(Protocol):
    """New layers on a model."""

    def __call__(self, module: nn.Module, example: Tensor, classes: int | None) -> nn.Module:
        """The extended model; `example` is a batch of zeros of the data's shape."""


log = logging.getLogger("stratafl")
MOMENTUM = 4  # rows more of a client whose velocity of one step becomes that of the next; measured
SLOTS = ("serve", "mix", "train", "send", "merge", "tune", "welcome")


@record
class Layerwise(Algorithm):
    """An algorithm as a record of steps and declared fields."""

    serve: tuple[Serve, ...]
    mix: tuple[Mix, ...]
    train: tuple[Train, ...]
    send: tuple[Send, ...]
    merge: tuple[MergeSums | MergeRows, ...]
    server: Mapping[str, FieldSpec]
    client: Mapping[str, FieldSpec]
    row: str = "theta"
    tune: tuple[Train, ...] = ()  # on a copy, before the row is deployed
    welcome: tuple[Serve, ...] = ()  # what new clients are sent, where it differs from what is served
    global_model: str | None = None
    leaks: str | None = None
    extension: Extension | None = None

    def __post_init__(self) -> None:
        for name in SLOTS:
            value = getattr(self, name)
            object.__setattr__(self, name, tuple(value) if isinstance(value, tuple | list) else (value,))
        _check_flow(self)

    @property
    def steps(self) -> tuple[Step, ...]:  # type: ignore[override]
        """The steps of all slots, in the order of a round."""
        return tuple(step for slot in SLOTS for step in getattr(self, slot))

    @property
    def splits(self) -> tuple[str, ...]:  # type: ignore[override]
        """The splits that some step needs."""
        return tuple(dict.fromkeys(["train", *(s for step in self.steps for s in getattr(step, "splits", ()))]))

    @property
    def batch(self) -> int:  # type: ignore[override]
        """The largest batch of its steps."""
        return max((getattr(step, "batch", 1) for step in self.steps), default=1)

    def check(self, setup: Setup) -> None:
        """Resolve every selection of layers, in steps and declared fields; ask the steps that check for themselves."""
        _resolve((*self.steps, *self.server.values(), *self.client.values(), self.extension), setup.layout)
        for step in self.steps:
            own = getattr(step, "check", None)
            if own is not None:
                own(setup)

    def footprint(self, setup: Setup) -> Footprint:
        """What its steps say that they take, or where one says nothing, what is usual for its slot."""
        parts = [_footprint(step, slot, setup) for slot in SLOTS for step in getattr(self, slot)]
        return together([*parts, Footprint(upload=setup.row_bytes() if self.keeps_rows else 0)])

    @property
    def keeps_rows(self) -> bool:  # type: ignore[override]
        """Whether some merge needs all uploads side by side."""
        return any(isinstance(step, MergeRows) for step in self.merge)

    def extend(self, module: nn.Module, example: Tensor, classes: int | None) -> nn.Module:
        """The model with the extension's layers."""
        return module if self.extension is None else self.extension(module, example, classes)

    def init(self, setup: Setup) -> State:
        """The declared server fields at their start."""
        return {name: spec.create(setup, None, "server") for name, spec in self.server.items()}

    def enrol(self, setup: Setup, ids: Tensor) -> State:
        """The declared client fields at their start."""
        return {name: spec.create(setup, ids, "client") for name, spec in self.client.items()}

    def download(self, rnd: Round, server: State, ids: Tensor) -> Parcel:
        """What the serve steps give, together."""
        return Parcel({k: f for step in self.serve for k, f in step(rnd, server, ids).items()})

    def admit(self, rnd: Round, server: State, ids: Tensor) -> Parcel:
        """What the welcome steps give, or else what is served."""
        return Parcel({k: f for step in self.welcome or self.serve for k, f in step(rnd, server, ids).items()})

    def receive(self, rnd: Round, client: State, parcel: Parcel, task: Task) -> State:
        """The memory after the mix steps."""
        client = dict(client)
        for step in self.mix:
            client |= step(rnd, client, parcel, task)
        return client

    def work(self, rnd: Round, client: State, task: Task) -> Work:
        """The memory after the train steps, cut down to what is declared, and what of the send steps a merge reads."""
        client = _after(self.train, rnd, client, task)
        asked = {name for step in self.merge for name in step.reads}
        upload = Parcel({k: f for step in self.send for k, f in step(rnd, client, task).items() if f"up.{k}" in asked})
        kept = {name: _kept(client[name], spec, rnd.layout, "client") for name, spec in self.client.items()}
        return Work(kept, upload, cast(Rows, client[self.row]))

    def fold(self, rnd: Round, server: State, total: Total, uploads: Parcel, ids: Tensor) -> Total:
        """Each sums-step adds to its own sums; uploads are kept only if some step needs rows."""
        sums: State = dict(total.sums)
        for i, step in enumerate(self.merge):
            if not isinstance(step, MergeRows):
                own = step.fold(rnd, server, _own(sums, i), uploads, ids)
                sums |= {f"{i}:{name}": value for name, value in own.items()}
        if not self.keeps_rows:
            return Total(sums)
        return Total(sums, (*total.rows, uploads), (*total.ids, ids))

    def absorb(self, rnd: Round, server: State, total: Total) -> State:
        """The merge steps in their order; each sees what the ones before it changed."""
        state = dict(server)
        for i, step in enumerate(self.merge):
            if isinstance(step, MergeRows):
                state |= step.absorb(rnd, state, join(total.rows, lazily=True), torch.cat(total.ids))
            else:
                state |= step.finish(rnd, state, _own(total.sums, i))
        return {name: _kept(state[name], spec, rnd.layout, "server") for name, spec in self.server.items()}

    def tell(self, rnd: Round, server: State) -> dict[str, Tensor]:
        """What the steps that tell something tell."""
        told = (step.tell(rnd, server) for step in self.steps if hasattr(step, "tell"))
        return {name: value for each in told for name, value in each.items()}

    def costs(self, rnd: Round, server: State) -> dict[str, float]:
        """What the steps that cost something else cost."""
        each = (step.costs(rnd, server) for step in self.steps if hasattr(step, "costs"))
        return {name: value for costs in each for name, value in costs.items()}

    def deploy(self, rnd: Round, client: State, task: Task) -> Rows:
        """The row after the tune steps, on a copy."""
        return rows_of(_after(self.tune, rnd, client, task), self.row)


def _resolve(part: object, layout: Layout) -> None:
    """Resolve the selections in a record and in the records it holds."""
    if isinstance(part, Select):
        if not layout.resolve(part) and not part.inverted and part != select("none"):
            log.warning("'%s' chooses no layer of this model", part)
    elif isinstance(part, tuple):
        for value in part:
            _resolve(value, layout)
    elif is_dataclass(part):
        _resolve(tuple(vars(part).values()), layout)


def _after(steps: tuple[Train, ...], rnd: Round, client: State, task: Task) -> State:
    client = dict(client)
    for step in steps:
        client |= step(rnd, client, task)
    return client


def _footprint(step: object, slot: str, setup: Setup) -> Footprint:
    """A step may have a function `footprint(setup)`; a merge without one adds up rows and weights in float64."""
    own = getattr(step, "footprint", None)
    if own is not None:
        return cast(Footprint, own(setup))
    row = setup.row_bytes()
    if slot == "merge":
        rows = isinstance(step, MergeRows)
        return Footprint(absorbed=row) if rows else Footprint(sums=2 * setup.row_bytes(dtype=torch.float64))
    if slot in ("serve", "welcome"):
        return Footprint(client=row)
    return Footprint(client=MOMENTUM * row if getattr(step, "momentum", 0) else 0)


def _own(sums: State, step: int) -> State:
    return {name.partition(":")[2]: value for name, value in sums.items() if name.startswith(f"{step}:")}


def _kept(value: Value, spec: FieldSpec, layout: Layout, side: Side) -> Value:
    names = spec.names(layout, side)
    return value if names is None or isinstance(value, Tensor) else {name: value[name] for name in names}


def _check_flow(alg: Layerwise) -> None:
    """Refuse a record in which a step reads what nobody gives, or a field is declared that nobody can keep up."""
    down: set[str] = set()
    up: set[str] = set()
    _walk(alg, "serve", set(alg.server), down)
    _walk(alg, "welcome", set(alg.server), set(down))
    client = set(alg.client)
    _walk(alg, "mix", client, client, down)
    if alg.row not in client:
        raise RecordError(f"the model is field '{alg.row}', but before training clients have only: {_listed(client)}")
    tuned = set(client)  # what is deployed is tuned from what was received, not from what was trained
    _walk(alg, "tune", tuned, tuned)
    _walk(alg, "train", client, client)
    _walk(alg, "send", client, up)
    _check_counts(alg)
    server = set(alg.server)
    _walk(alg, "merge", server, server, up)
    for step in alg.merge:
        for name in set(step.writes) - set(alg.server):
            raise RecordError(f"merge: {_name(step)} writes '{name}', the server declares only: {_listed(alg.server)}")


def _check_counts(alg: Layerwise) -> None:
    """Refuse to read what two descents of a round count under one name: the second one's would be read."""
    counted = Counter(name for step in alg.train for name in getattr(step, "counts", ()))
    readers = [(name, _name(step)) for step in (*alg.train, *alg.send) for name in step.reads]
    for name, reader in [*readers, *((name, "the client's state") for name in alg.client)]:
        if counted[name] > 1:
            raise RecordError(
                f"train: two descents count '{name}', which {reader} reads: give each of them another purpose"
            )


def _walk(
    alg: Layerwise, slot: str, known: set[str], written: set[str], parcel: set[str] | frozenset[str] = frozenset()
) -> None:
    for step in getattr(alg, slot):
        for name in step.reads:
            if name not in known | parcel:
                there = _listed(known | parcel)
                raise RecordError(f"{slot}: {_name(step)} reads '{name}', which nobody gives; choose one of: {there}")
        written |= set(step.writes)


def _name(step: object) -> str:
    return type(step).__name__


def _listed(names: Any) -> str:
    return ", ".join(sorted(names)) or "nothing"
