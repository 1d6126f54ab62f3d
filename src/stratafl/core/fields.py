"""Declared state: each field of the server or a client declares its initial value and the layers that it keeps.

A field that is not declared ends with the round. So a FedPer client stores its head, not a model.
"""

from typing import Annotated, Literal, Protocol

import torch
from torch import Tensor

from stratafl.core.annotations import Range
from stratafl.core.layers import Select, select
from stratafl.core.layout import Columns, Layout, Rows
from stratafl.core.records import record
from stratafl.core.round import Setup
from stratafl.core.state import Value, expand
from stratafl.errors import RecordError, unknown

Side = Literal["server", "client"]
Names = tuple[str, ...]


class FieldSpec(Protocol):
    """How a declared field comes into being, and which tensors of the model it keeps (None: it is not a model)."""

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Value:
        """The field's first value: one row per id, or a single one without ids."""

    def names(self, layout: Layout, side: Side) -> Names | None:
        return None


@record
class ShareOfClients:
    """A number that grows with the federation: a share of its clients, rounded down, from `least` to `most`."""

    share: Annotated[float, Range(least=0, most=1)]
    least: Annotated[int, Range(least=1)] = 1
    most: int | None = None

    def of(self, clients: int) -> int:
        most = clients if self.most is None else min(self.most, clients)
        return min(max(self.least, int(self.share * clients + 1e-9)), most)  # 0.29 of 100 is 29


Count = int | ShareOfClients


def count_of(count: Count, clients: int) -> int:
    """The number itself, or that share of so many clients."""
    return count.of(clients) if isinstance(count, ShareOfClients) else count


@record
class Start:
    """Layers of the initial model: the common one, or with `own` one that each client draws for itself.

    On the server, `per_client` keeps a row for every client of the federation, and `copies` is a number of rows, or
    a share of the clients. With `own`, copies are drawn one by one. `columns="statistics"` keeps the running statistics
    alone.
    """

    layers: Select = select("all")
    own: bool = False
    per_client: bool = False
    copies: Count | None = None
    columns: Columns = "all"

    def names(self, layout: Layout, side: Side) -> Names:
        tensors = layout.staying(self.layers) if side == "client" else layout.travelling(self.layers)
        return layout.only(tensors, self.columns)

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Rows:
        if self.per_client and side == "client":
            raise RecordError("Start(per_client=True) is for the server: a client keeps its own row only")
        if self.per_client:
            ids = torch.arange(setup.clients, device="cpu")  # on meta it would import sympy
        names = self.names(setup.layout, side)
        start = {name: setup.start[name] for name in names}
        if self.copies is not None:
            copies = count_of(self.copies, setup.clients)
            rows = expand(start, copies)
            drawn = setup.fresh(torch.arange(copies)) if self.own else {}
            return {name: drawn[name] if name in drawn else x.clone() for name, x in rows.items()}
        if self.own and ids is None:
            raise RecordError("Start(own=True) draws a model for each client: a server field needs per_client as well")
        if ids is None:
            return start
        rows = expand(start, len(ids))
        if self.own:  # only the chosen layers: local statistics of the others stay as they were given
            chosen = {n for layer in setup.layout.resolve(self.layers) for n in setup.layout.layer(layer).tensors}
            rows |= {name: x for name, x in setup.fresh(ids).items() if name in chosen and name in rows}
        return rows


@record
class Filled:
    """One value, 0 unless given, in the shape of these layers' trainable tensors."""

    value: float = 0.0
    layers: Select = select("all")
    per_client: bool = False

    def names(self, layout: Layout, side: Side) -> Names:
        return layout.trainable(self.layers)

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Rows:
        count = setup.clients if self.per_client else None if ids is None else len(ids)
        lead = () if count is None else (count,)
        start = {name: setup.start[name] for name in self.names(setup.layout, side)}
        return {name: x.new_full((*lead, *x.shape), self.value) for name, x in start.items()}


@record
class Number(FieldSpec):
    """One number, or a tensor of them, for the server or for each client.

    A width may be named after what only the federation knows: `clients`, `layers`, `classes`, `features`; several make
    a tensor of several axes, such as `("classes", "features")` for a prototype of each class.
    """

    value: float = 0.0
    width: int | str | tuple[int | str, ...] | None = None
    per_client: bool = False

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Tensor:
        count = setup.clients if self.per_client else None if ids is None else len(ids)
        widths = () if self.width is None else self.width if isinstance(self.width, tuple) else (self.width,)
        shape = [*(() if count is None else (count,)), *(_width(each, setup) for each in widths)]
        like = next(iter(setup.start.values()))
        return torch.full(shape, self.value, dtype=like.dtype, device=like.device)


def _width(width: int | str, setup: Setup) -> int:
    if not isinstance(width, str):
        return width
    widths = {"clients": setup.clients, "layers": len(setup.layout.layers), "features": setup.features}
    widths |= {} if setup.classes is None else {"classes": setup.classes}
    if width not in widths:
        raise unknown("width", width, widths)
    return widths[width]


def holds_model(spec: FieldSpec | None) -> bool:
    """Whether a field holds tensors of the model."""
    return isinstance(spec, Start | Filled | Together)


@record
class Together:
    """The layers of several declarations of one field, as the phases of an algorithm make them."""

    parts: tuple[FieldSpec, ...]

    def names(self, layout: Layout, side: Side) -> Names | None:
        parts = [part.names(layout, side) for part in self.parts]
        chosen = {name for part in parts if part is not None for name in part}
        return None if None in parts else tuple(name for name in layout.specs if name in chosen)

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Value:
        # The first part that has a tensor decides what it starts as.
        values = [part.create(setup, ids, side) for part in self.parts]
        rows: Rows = {}
        for value in reversed(values):
            if isinstance(value, Tensor):
                return values[0]
            rows |= value
        return rows
