"""Layer-wise algorithms: five slots in the order of a round, serve · mix · train · send · merge.

The normal way to fill the waist. An algorithm is one frozen record of steps; a variant is `dataclasses.replace`, never
a subclass. Each step says which fields it reads and writes, so that a record in which nobody sends what somebody reads
is refused when it is made, not when it runs.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from stratafl.core.algorithm import Algorithm, Opened, Requirements, Total, Work
from stratafl.core.fields import FieldSpec, Side
from stratafl.core.footprint import Footprint, together
from stratafl.core.form import BOUNDS, Bound
from stratafl.core.layers import Select, select
from stratafl.core.layout import Layout, Rows
from stratafl.core.parcel import Parcel, join_parcels
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, Value, rows_of
from stratafl.core.steps import MergeRows, MergeSums, Mix, Pack, Send, Serve, Step, Train
from stratafl.core.task import Task
from stratafl.errors import ModelError, RecordError

log = logging.getLogger("stratafl")
SLOTS = ("serve", "mix", "train", "send", "pack", "merge", "tune", "welcome")


class Extension(Protocol):
    """New layers on a model."""

    def __call__(self, module: nn.Module, example: Tensor, classes: int | None, head: str) -> nn.Module:
        """The extended model, the given one changed in place or a new one that wraps it.

        `example` is a batch of zeros of the data's shape, `head` the path of the head. What replaces the head has its
        path (`stratafl.models.replace_head`).
        """


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
    welcome: tuple[Serve, ...] = ()  # what new clients are sent, where that differs from `serve`
    global_model: str | None = None
    leaks: str | None = None
    extension: Extension | None = None
    pack: tuple[Pack, ...] = ()  # how fields of the upload travel, where not as they are

    def __post_init__(self) -> None:
        _check_flow(self)

    @property
    def steps(self) -> tuple[Step, ...]:
        """The steps of all slots, in the order of a round."""
        return tuple(step for slot in SLOTS for step in getattr(self, slot))

    @property
    def server_fields(self) -> Mapping[str, FieldSpec]:
        """The fields that the server keeps: those that are declared, and those of its steps."""
        return {**_kept_by((*self.serve, *self.merge)), **self.server}

    @property
    def client_fields(self) -> Mapping[str, FieldSpec]:
        """The fields that a client keeps: those that are declared, and those of its steps."""
        return {**_kept_by((*self.mix, *self.train, *self.send, *self.pack)), **self.client}

    @property
    def requires(self) -> Requirements:  # type: ignore[override]
        """What its steps declare, together."""
        return Requirements(
            splits=tuple(dict.fromkeys(["train", *(split for step in self.steps for split in step.splits)])),
            batchings=tuple(step.batching for step in self.steps if step.batching is not None),
            scores=any(step.scores for step in self.steps),
            rows=any(isinstance(step, MergeRows) for step in self.merge),
            noise=any(step.noisy for step in self.merge),
            client_noise=any(step.noisy_client for step in self.steps),
            secure=any(step.secure for step in self.merge),
        )

    def check(self, setup: Setup) -> None:
        """Resolve every selection of layers, in steps and declared fields; then each step checks for itself."""
        fields = (*self.server_fields.values(), *self.client_fields.values())
        _resolve((*self.steps, *fields, self.extension), setup.layout)
        for step in self.steps:
            step.check(setup)

    def footprint(self, setup: Setup) -> Footprint:
        """What its steps take, and the uploads where they are kept side by side."""
        uploads = Footprint(upload=setup.row_bytes() if self.requires.rows else 0)
        return together([*(step.footprint(setup) for step in self.steps), uploads])

    def extend(self, module: nn.Module, example: Tensor, classes: int | None, head: str) -> nn.Module:
        return module if self.extension is None else self.extension(module, example, classes, head)

    def init(self, setup: Setup) -> State:
        return {name: spec.create(setup, None, "server") for name, spec in self.server_fields.items()}

    def enrol(self, setup: Setup, ids: Tensor) -> State:
        return {name: spec.create(setup, ids, "client") for name, spec in self.client_fields.items()}

    def download(self, rnd: Round, server: State, ids: Tensor, new: bool = False) -> Parcel:
        steps = self.welcome if new and self.welcome else self.serve
        if new and not self.welcome:
            _check_common(self)
        return Parcel({k: f for step in steps for k, f in step(rnd, server, ids).items()})

    def receive(self, rnd: Round, client: State, parcel: Parcel, task: Task) -> State:
        client = dict(client)
        for step in self.mix:
            client |= step(rnd, client, parcel, task)
        _check_whole(client[self.row], rnd.layout)
        return client

    def work(self, rnd: Round, client: State, task: Task) -> Work:
        """The declared fields of the client after training, and the sent fields that a merge reads."""
        client = _after(self.train, rnd, client, task)
        asked = {name for step in self.merge for name in step.reads}
        upload = {k: f for step in self.send for k, f in step(rnd, client, task).items() if f"up.{k}" in asked}
        for step in self.pack:
            travels, changed = step.pack(rnd, {name: client[name] for name in step.reads}, upload[step.field], task)
            upload, client = {**upload, **travels}, {**client, **changed}
        fields = {name: _kept(client[name], spec, rnd.layout, "client") for name, spec in self.client_fields.items()}
        return Work(fields, Parcel(upload), cast(Rows, client[self.row]))

    def open(self, rnd: Round, server: State, uploads: Parcel, ids: Tensor) -> Opened:
        """Every packed field unpacked; what the server sent is served again, because differences are from it."""
        packed = [step for step in self.pack if all(name in uploads for name in step.parts)]
        if not packed:
            return Opened(uploads)
        asked = {f"down.{name}" for step in packed for name in step.served}
        serving = [step for step in self.serve if asked & set(step.writes)]
        down = Parcel({k: f for step in serving for k, f in step(rnd, server, ids).items()})
        unpacked = {step.field: step.unpack(rnd, server, uploads, down, ids) for step in packed}
        parts = {name for step in packed for name in step.parts}
        rest = {name: uploads[name] for name in uploads if name not in parts and name not in unpacked}
        opened = Parcel({**{name: each.field for name, each in unpacked.items()}, **rest})
        return Opened(opened, {reason: rows for each in unpacked.values() for reason, rows in each.wrong.items()})

    def fold(self, rnd: Round, server: State, total: Total, uploads: Parcel, ids: Tensor) -> Total:
        """Each merge adds to its own sums; uploads are kept only if some merge needs rows."""
        uploads = self.open(rnd, server, uploads, ids).uploads
        before = total.sums or ({},) * len(self.merge)
        sums = tuple(
            step_sums if isinstance(step, MergeRows) else step.fold(rnd, server, step_sums, uploads, ids)
            for step, step_sums in zip(self.merge, before, strict=True)
        )
        if not self.requires.rows:
            return Total(sums)
        return Total(sums, (*total.rows, uploads), (*total.ids, ids))

    def absorb(self, rnd: Round, server: State, total: Total) -> State:
        """The merge steps in their order; each sees what the ones before it changed."""
        state = dict(server)
        sums = total.sums or ({},) * len(self.merge)  # merges that add noise do so without an upload
        for step, step_sums in zip(self.merge, sums, strict=True):
            if isinstance(step, MergeRows):
                state |= step.absorb(rnd, state, join_parcels(total.rows, lazily=True), torch.cat(total.ids))
            else:
                state |= step.finish(rnd, state, step_sums)
        return {name: _kept(state[name], spec, rnd.layout, "server") for name, spec in self.server_fields.items()}

    @property
    def bounds(self) -> Mapping[str, Bound]:
        """What its merges demand of uploads, where several demand something the strictest; and counts above 0."""
        bounds = dict(super().bounds)
        for name, bound in (each for step in self.merge for each in step.bounds.items()):
            name = name.removeprefix("up.")
            bounds[name] = max(bounds.get(name, bound), bound, key=BOUNDS.index)
        return {**bounds, **{name: bound for step in self.pack for name, bound in step.bounds.items()}}

    def tell(self, rnd: Round, server: State) -> dict[str, Tensor]:
        return {name: value for step in self.steps for name, value in step.tell(rnd, server).items()}

    def communication(self, rnd: Round, server: State) -> dict[str, float]:
        return {name: value for step in self.steps for name, value in step.communication(rnd, server).items()}

    def spent(self, rnd: Round) -> dict[str, float]:
        return {name: value for step in self.merge for name, value in step.spent(rnd).items()}

    def secure_unit(self, rnd: Round) -> float | None:
        return self.merge[0].secure_unit(rnd) if len(self.merge) == 1 else None  # beside noise there is no other merge

    def secure_noise(self, rnd: Round, client: int, numbers: Tensor) -> Tensor:
        return self.merge[0].secure_noise(rnd, client, numbers)

    @property
    def promise(self) -> str:
        return "; ".join(step.promise for step in self.merge if step.promise)

    def deploy(self, rnd: Round, client: State, task: Task) -> Rows:
        """The row after the tune steps, on a copy."""
        return rows_of(_after(self.tune, rnd, client, task), self.row)


def _resolve(part: object, layout: Layout) -> None:
    """Resolve the selections in a record and in the records it holds."""
    if isinstance(part, Select):
        if layout.frozen and "head" in part.terms and not any(layer.head for layer in layout.layers):
            raise ModelError("the head of this model is frozen: set requires_grad=True for it, or name other layers")
        if not layout.resolve(part) and not part.inverted and part != select("none"):
            log.warning("'%s' matches no layer of this model, so it selects nothing here", part)
    elif isinstance(part, tuple):
        for value in part:
            _resolve(value, layout)
    elif is_dataclass(part):
        _resolve(tuple(vars(part).values()), layout)


def _kept_by(steps: Iterable[Step]) -> dict[str, FieldSpec]:
    return {name: spec for step in steps for name, spec in step.keeps.items()}


def _check_whole(row: Value, layout: Layout) -> None:
    """A client's model has every layer: each is in the download or in the client's state."""
    if isinstance(row, Tensor):
        return
    missing = dict.fromkeys(layout.layers[spec.layer].name for name, spec in layout.specs.items() if name not in row)
    if missing:
        named = ", ".join(map(repr, missing))
        raise RecordError(f"mix: the client's model lacks {named}: neither the download nor the client's state has it")


def _after(steps: tuple[Train, ...], rnd: Round, client: State, task: Task) -> State:
    client = dict(client)
    for step in steps:
        client |= step(rnd, client, task)
    return client


def _kept(value: Value, spec: FieldSpec, layout: Layout, side: Side) -> Value:
    names = spec.names(layout, side)
    return value if names is None or isinstance(value, Tensor) else {name: value[name] for name in names}


def _check_flow(alg: Layerwise) -> None:
    """Refuse a record in which a step reads a field that no step writes, or a merge writes a field that is not kept."""
    down: set[str] = set()
    up: set[str] = set()
    _walk(alg, "serve", set(alg.server_fields), down)
    _walk(alg, "welcome", set(alg.server_fields), set(down))
    client = set(alg.client_fields)
    _walk(alg, "mix", client, client, down)
    if alg.row not in client:
        raise RecordError(f"the model is field '{alg.row}', but before training clients have only: {_listed(client)}")
    tuned = set(client)  # deployment tunes the received model, not the trained one
    _walk(alg, "tune", tuned, tuned)
    _walk(alg, "train", client, client)
    _walk(alg, "send", client, up)
    _walk(alg, "pack", client | up, set())
    # What two descents of a round count under one name cannot be read: it would be the second one's.
    counted = Counter(name for step in alg.train for name in step.counts)
    readers = [(name, _name(step)) for step in (*alg.train, *alg.send) for name in step.reads]
    for name, reader in [*readers, *((name, "the client's state") for name in alg.client_fields)]:
        if counted[name] > 1:
            raise RecordError(f"train: two descents write '{name}', which {reader} reads: give them different purposes")
    server = set(alg.server_fields)
    _walk(alg, "merge", server, server, up)
    if len(alg.merge) > 1 and any(step.promise for step in alg.merge):
        others = _listed(_name(step) for step in alg.merge if not step.promise)
        raise RecordError(f"merge: the results of {others} would reach clients without noise: leave it out")
    for step in alg.merge:
        for name in set(step.writes) - set(alg.server_fields):
            declared = _listed(alg.server_fields)
            raise RecordError(f"merge: {_name(step)} writes '{name}', but the server declares only: {declared}")


def _check_common(alg: Layerwise) -> None:
    """Refuse to serve new clients rows by their ids: on a GPU a row that is not there would end the process."""
    for step in alg.serve:
        for name in step.reads:
            if name in alg.server_fields and _per_client(alg.server_fields[name]):
                reason = f"{_name(step)} reads '{name}', but the server has no row of it for a new client"
                raise RecordError(f"serve: {reason}: declare `welcome`, the steps that serve new clients")


def _per_client(spec: object) -> bool:
    return getattr(spec, "per_client", False) or any(map(_per_client, getattr(spec, "parts", ())))


def _walk(
    alg: Layerwise, slot: str, available: set[str], written: set[str], parcel: set[str] | frozenset[str] = frozenset()
) -> None:
    for step in getattr(alg, slot):
        for name in step.reads:
            if name not in available | parcel:
                choices = _listed(available | parcel)
                raise RecordError(
                    f"{slot}: {_name(step)} reads '{name}', which nothing writes; choose one of: {choices}"
                )
        written |= set(step.writes)


def _name(step: object) -> str:
    return type(step).__name__


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
