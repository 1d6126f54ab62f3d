"""Parcels: the only thing that crosses between server and clients.

A parcel holds named fields. A field is `each` (a row per client, `[C, …]`) or `common` (one value for all, no client
axis). It carries a tensor or blocks of the matrix. A block that is not in it was not sent; where that differs between
clients or columns, the field is dense and a mask says what was sent: a `LayerMask` or a `ColumnMask`, two types,
because a shape is not a meaning. What a mask leaves out is absent on the wire and NaN on the other side.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from stratafl.core.layout import Layout, Rows
from stratafl.core.reprs import holder, short_repr
from stratafl.core.state import Computed, Index, Value, apply, combine, stack
from stratafl.errors import WireError, unknown


@holder
class LayerMask:
    """Which layers were sent: booleans `[C, L]`, or `[L]` in a common field."""

    sent: Tensor

    def apply(self, function: Callable[[Tensor], Tensor]) -> "LayerMask":
        return LayerMask(function(self.sent))


@holder
class ColumnMask:
    """Which columns were sent: booleans of the shape of each block."""

    sent: Rows

    def apply(self, function: Callable[[Tensor], Tensor]) -> "ColumnMask":
        return ColumnMask({name: function(sent) for name, sent in self.sent.items()})


Mask = LayerMask | ColumnMask


@dataclass(frozen=True)
class Packed:
    """Tensors that were packed, in one axis: how many of their values each number stands for; 0 for a scale."""

    values: int


@holder
class Field:
    """One value of a parcel, with what of it was sent."""

    value: Value
    common: bool = False
    mask: Mask | None = None
    packed: Packed | None = None  # blocks are not the tensors themselves, but what they were packed into

    @property
    def rows(self) -> Rows:
        if isinstance(self.value, Tensor):
            raise WireError("this field is a tensor, not blocks of the matrix")
        return self.value

    @property
    def tensor(self) -> Tensor:
        if not isinstance(self.value, Tensor):
            raise WireError("this field is blocks of the matrix, not one tensor")
        return self.value

    def sent(self, layout: Layout) -> Rows | None:
        """Booleans that broadcast against the blocks, or None if all that is here was sent."""
        if isinstance(self.mask, LayerMask):
            return layout.spread(self.mask.sent, self.rows)
        return None if self.mask is None else self.mask.sent

    def apply(self, function: Callable[[Tensor], Tensor]) -> "Field":
        """The function on every tensor, those of the mask too."""
        mask = None if self.mask is None else self.mask.apply(function)
        return replace(self, value=apply(function, self.value), mask=mask)

    def pick(self, index: Index) -> "Field":
        return self if self.common else self.apply(lambda x: x[index])

    def poisoned(self, layout: Layout) -> "Field":
        sent = self.sent(layout)
        if sent is None:
            return self
        return replace(self, value={n: torch.where(sent[n], x, torch.nan) for n, x in self.rows.items()})


class Parcel(Mapping[str, Field]):
    """What one side sends to the other: named fields for C clients."""

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = dict(fields)

    def __getitem__(self, name: str) -> Field:
        if name not in self._fields:
            raise unknown("field of the parcel", name, self._fields)
        return self._fields[name]

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def __repr__(self) -> str:
        return f"Parcel({', '.join(self._fields)})"

    def pick(self, index: Index) -> "Parcel":
        return Parcel({name: field.pick(index) for name, field in self.items()})

    def to(self, device: torch.device) -> "Parcel":
        return Parcel({name: field.apply(lambda x: x.to(device)) for name, field in self.items()})

    def poisoned(self, layout: Layout) -> "Parcel":
        """The parcel with NaN wherever nothing was sent."""
        return Parcel({name: field.poisoned(layout) for name, field in self.items()})


def join_parcels(parcels: Sequence[Parcel], *, lazily: bool = False) -> Parcel:
    """The parcels of several groups of clients as one; `lazily`, blocks are joined whenever they are asked for."""
    if len(parcels) == 1:
        return parcels[0]
    return Parcel({name: _join_fields([p[name] for p in parcels], lazily) for name in parcels[0]})


def _join_fields(fields: Sequence[Field], lazily: bool) -> Field:
    first = fields[0]
    if first.common:
        return first
    masks = [f.mask for f in fields]
    if len({type(mask) for mask in masks}) > 1:
        raise WireError("fields with different kinds of masks cannot be joined")
    mask: Mask | None = None
    if isinstance(first.mask, LayerMask):
        mask = LayerMask(torch.cat([m.sent for m in masks if isinstance(m, LayerMask)]))
    elif first.mask is not None:
        columns = [m.sent for m in masks if isinstance(m, ColumnMask)]
        mask = ColumnMask({name: torch.cat([c[name] for c in columns]) for name in columns[0]})
    values, rows = [f.value for f in fields], first.value
    if not lazily or isinstance(rows, Tensor):
        return Field(combine(stack, values), mask=mask, packed=first.packed)
    blocks = [f.rows for f in fields]
    joined: Any = Computed(rows, lambda name: stack([block[name] for block in blocks]))
    return Field(joined, mask=mask, packed=first.packed)


@short_repr
@dataclass(frozen=True)
class Bytes:
    """What a parcel weighs on the wire: per client, and per layer over all clients."""

    clients: Tensor  # [C]
    layers: Tensor  # [L]
    other: int
    values: Tensor  # [L]: how many values that is, over all clients

    @property
    def total(self) -> int:
        return int(self.clients.sum())

    def __add__(self, more: "Bytes") -> "Bytes":
        clients = torch.cat([self.clients, more.clients])
        return Bytes(clients, self.layers + more.layers, self.other + more.other, self.values + more.values)


def count_bytes(parcel: Parcel, layout: Layout, clients: int) -> Bytes:
    """Values that were sent, plus one bit per column (or layer) for each mask; a common field goes to every client."""
    last = len(layout.layers)
    whole, values = [0] * (last + 1), [0] * last  # of every client
    masked: list[tuple[int, int, Tensor]] = []  # layer, size of a value, how many of them each client sends
    for field in parcel.values():
        if isinstance(field.value, Tensor):
            whole[last] += field.value.numel() * field.value.element_size() // (1 if field.common else clients)
            continue
        sent = field.sent(layout)
        for name, block in field.value.items():
            layer, size = layout.specs[name].layer, block.numel() // (1 if field.common else clients)
            if sent is not None:
                masked.append((layer, block.element_size(), _columns(block, sent[name], field, clients)))
            else:
                whole[layer] += size * block.element_size()
                # The last byte of packed numbers may hold one value instead of two.
                per_number, most = (1, size) if field.packed is None else (field.packed.values, layout.specs[name].size)
                values[layer] += min(size * per_number, most)
            whole[layer] += (size + 7) // 8 if isinstance(field.mask, ColumnMask) else 0
        whole[last] += (last + 7) // 8 if isinstance(field.mask, LayerMask) else 0
    weights = torch.tensor(whole).expand(clients, -1).clone()
    counts = torch.tensor(values) * clients
    fetched = torch.stack([each for _, _, each in masked]).cpu() if masked else ()  # at once: each waits for the device
    for (layer, size, _), columns in zip(masked, fetched, strict=True):
        weights[:, layer] += columns * size
        counts[layer] += columns.sum()
    return Bytes(weights.sum(1), weights[:, :-1].sum(0), int(weights[:, -1].sum()), counts)


def _columns(block: Tensor, sent: Tensor, field: Field, clients: int) -> Tensor:
    """How many columns of a block each client sends or is sent."""
    dense = sent.expand(block.shape)
    return dense.sum().expand(clients) if field.common else dense.reshape(clients, -1).sum(1)
