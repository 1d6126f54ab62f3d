"""Compression: a field of the upload travels as differences in few bytes; merges read the decoded values.

`algorithms/compress_on.py` puts it on a method. Compressed are trained tensors of the model that are not small;
statistics, counts, prototypes and small tensors travel as they are. The server adds a difference to what the client has
in common with it (`Base`): what it was sent in this round, or what it sent last.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Literal

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.annotations import Range
from stratafl.core.fields import FieldSpec, Filled, Start
from stratafl.core.footprint import Footprint
from stratafl.core.form import Bound
from stratafl.core.layers import Select, select
from stratafl.core.layout import Layout, Rows, flat_rows, per_row
from stratafl.core.parcel import Field, Packed, Parcel
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of
from stratafl.core.steps import Mix, Names, Pack, Unpacked
from stratafl.core.task import Task
from stratafl.errors import RecordError
from stratafl.policies.codecs import Codec, Decoded, Quantise
from stratafl.policies.mix import received

Base = Literal["received", "latest", "received or latest", "none"]
Size = Annotated[int, Range(least=1)]


@record
class Compress(Pack):
    """C(θ − base + residual), tensor by tensor; what C leaves out is the residual of the next round (`feedback`).

    The base is what was received of the field, or the `latest` that this client sent and the server keeps; without
    one, values themselves are sent. From the latest upload nothing is lost, because what C leaves out is in the next
    difference, so there is no residual.
    """

    codec: Codec = Quantise()
    field: str = "theta"
    layers: Select = select("all")
    base: Base = "received"
    rows: str | None = None  # the server's field with every client's latest
    own: bool = False  # whether that starts as a model that each client draws for itself
    feedback: bool = False
    min_size: Size = 64

    @property
    def _residual(self) -> str:
        return f"{self.field}.residual"

    @property
    def _latest(self) -> str:
        return f"{self.field}.latest"

    @property
    def _base(self) -> str | None:
        """The field of the client that holds the base."""
        names = {"none": None, "latest": self._latest}
        return names.get(self.base, f"{self.field}.received")

    @property
    def keeps(self) -> Mapping[str, FieldSpec]:
        residual = {self._residual: Filled(0.0, self.layers)} if self.feedback else {}
        latest = {self._latest: Start(self.layers, own=self.own, columns="trainable")} if self.rows else {}
        return {**residual, **latest}

    @property
    def reads(self) -> Names:
        base = () if self._base is None else (self._base,)
        return tuple(dict.fromkeys((*base, *self.keeps)))

    @property
    def writes(self) -> Names:
        return tuple(self.keeps)

    @property
    def served(self) -> Names:
        return (self.field,) if self.base.startswith("received") else ()

    @property
    def parts(self) -> Names:
        return tuple(f"{self.field}.{part}" for part in self.codec.parts)

    @property
    def bounds(self) -> Mapping[str, Bound]:
        return {f"{self.field}.{part}": bound for part, bound in self.codec.bounds.items()}

    @property
    def mix(self) -> tuple[Mix, ...]:
        """What the client has to note before it trains."""
        if not self.base.startswith("received"):
            return ()
        return (Received(self.field, self._latest if self.rows else None, self._residual if self.feedback else None),)

    def footprint(self, setup: Setup) -> Footprint:
        """The received rows, and the upload before and after packing."""
        return Footprint(client=3 * setup.row_bytes())

    def names(self, tensors: Iterable[str], layout: Layout) -> Names:
        """Those of these tensors that are compressed."""
        large = {name for name in tensors if layout.specs[name].trainable and layout.specs[name].size >= self.min_size}
        return tuple(name for name in layout.specs if name in large)

    def pack(self, rnd: Round, client: State, field: Field, task: Task) -> tuple[Mapping[str, Field], State]:
        if field.mask is not None:
            raise RecordError(f"field '{self.field}' is sent in parts: it cannot be compressed")
        value, base = field.rows, {} if self._base is None else rows_of(client, self._base)
        names = self.names(value, rnd.layout)
        state: dict[str, Rows] = {name: dict(rows_of(client, name)) for name in self.keeps}
        travels: dict[str, Rows] = {part: {} for part in self.codec.parts}
        for name in names:
            self._check(name, base)
            x = flat_rows(value[name] - base[name] if name in base else value[name])
            adds_up = self.feedback and (name in base or self._base is None)  # errors of values do not
            if adds_up:
                x = x + flat_rows(state[self._residual][name])
            parts = self.codec.encode(x, partial(self._draws, rnd, task.ids, name, x))
            arrives = self.codec.decode(parts, x.shape[1]).x  # as the server reads it
            for part, numbers in parts.items():
                travels[part][name] = numbers
            if adds_up:
                state[self._residual][name] = (x - arrives).reshape(value[name].shape)
            if self.rows:
                state[self._latest][name] = base[name] + arrives.reshape(value[name].shape)
        rest = {name: x for name, x in value.items() if name not in names}
        packed = {f"{self.field}.{part}": self._part(part, travels[part]) for part in travels}
        return {self.field: Field(rest), **packed}, dict(state)

    def _part(self, part: str, numbers: Rows) -> Field:
        return Field(numbers, packed=Packed(self.codec.parts[part]))

    def _check(self, name: str, base: Mapping[str, Tensor]) -> None:
        if self.codec.sparse and self._base is not None and name not in base:
            why = f"the server sends no '{name}' to add them to"
            raise RecordError(f"top-k sends differences, but {why}: choose q8 or q4")

    def _draws(self, rnd: Round, ids: Tensor, name: str, like: Tensor) -> Tensor:
        key = rnd.keys(ids, f"compress/{self.field}/{name}").to(like.device)
        return keys.uniform(key[:, None], torch.arange(like.shape[1], device=like.device), like.dtype)

    def unpack(self, rnd: Round, server: State, up: Parcel, down: Parcel, ids: Tensor) -> Unpacked:
        rest, layout = up[self.field].rows, rnd.layout
        travels = {part: up[f"{self.field}.{part}"].rows for part in self.codec.parts}
        first = next(iter(travels.values()))
        base = self._known(rnd, server, down, ids, first)
        rows, wrong = dict(rest), dict[str, Tensor]()
        for name in first:
            decoded = self.codec.decode({part: of[name] for part, of in travels.items()}, layout.specs[name].size)
            x = _marked(decoded).reshape(-1, *layout.specs[name].shape)
            rows[name] = base[name] + x if name in base else x
            for what, who in decoded.wrong.items():
                reason = f"field '{self.field}' of its upload holds {what}, in '{name}'"
                wrong[reason] = who
        return Unpacked(Field({name: rows[name] for name in layout.specs if name in rows}), wrong)

    def _known(self, rnd: Round, server: State, down: Parcel, ids: Tensor, names: Iterable[str]) -> Rows:
        """The base, as the server knows it."""
        if self.base == "none":
            return {}
        latest = {}
        if self.rows:
            stored = rows_of(server, self.rows)
            latest = {name: stored[name][ids.to(stored[name].device)] for name in names}
        return latest if self.base == "latest" else _base_of(down[self.field], latest, rnd, len(ids))


@record
class Received(Mix):
    """Note what is received, from which differences are sent; of a layer that is not, what was sent last, or 0.

    Of such a layer the residual is dropped: what was left out is in the difference from what was sent last, or values
    are sent, to which it does not belong.
    """

    field: str = "theta"
    latest: str | None = None
    residual: str | None = None

    @property
    def reads(self) -> Names:
        optional = (name for name in (self.latest, self.residual) if name is not None)
        return (f"down.{self.field}", *optional)

    @property
    def writes(self) -> Names:
        return (f"{self.field}.received", *(() if self.residual is None else (self.residual,)))

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        field = down[self.field]
        latest = {} if self.latest is None else rows_of(client, self.latest)
        noted: State = {f"{self.field}.received": _base_of(field, latest, rnd, len(task))}
        sent = field.sent(rnd.layout)
        if self.residual is not None and sent is not None:
            residual = rows_of(client, self.residual)
            noted[self.residual] = {n: torch.where(sent[n], x, 0) if n in sent else x for n, x in residual.items()}
        elif self.residual is not None:
            noted[self.residual] = client[self.residual]
        return noted


def _base_of(field: Field, latest: Rows, rnd: Round, count: int) -> Rows:
    """What was received; of what was not, what was sent last, or 0."""
    if field.mask is None:
        return received(field, {}, rnd, count)
    whole = replace(field, mask=None)
    rows = received(whole, {}, rnd, count)
    return received(field, {n: latest[n] if n in latest else torch.zeros_like(x) for n, x in rows.items()}, rnd, count)


def _marked(decoded: Decoded) -> Tensor:
    """NaN for clients that sent invalid bytes, so that they are never read."""
    x = decoded.x
    for who in decoded.wrong.values():
        x = torch.where(per_row(who, x), torch.nan, x)
    return x
