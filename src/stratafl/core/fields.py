"""Declared state: each field of the server or of a client says what it starts as and which layers it keeps.

What is not declared dies with the round. So a FedPer client stores its head, not a model.
"""

from typing import Literal, Protocol

import torch
from torch import Tensor

from stratafl.core.layers import Select, select
from stratafl.core.layout import Layout, Rows
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

    def names(self, layout: Layout, side: Side) -> Names | None: ...


@record
class Start:
    """Layers of the initial model: the common one, or with `own` one that each client draws for itself.

    On the server, `per_client` keeps a row for every client of the federation, and `copies` so many rows.
    """

    layers: Select = select("all")
    own: bool = False
    per_client: bool = False
    copies: int | None = None

    def names(self, layout: Layout, side: Side) -> Names:
        return layout.staying(self.layers) if side == "client" else layout.travelling(self.layers)

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Rows:
        if self.per_client and side == "client":
            raise RecordError("Start(per_client=True) is for the server: a client keeps its own row only")
        if self.per_client:
            ids = torch.arange(setup.clients)
        names = self.names(setup.layout, side)
        if self.own and ids is None:
            raise RecordError("Start(own=True) draws a model for each client: a server field needs per_client as well")
        start = {name: setup.start[name] for name in names}
        if self.copies is not None:
            return {name: x.expand(self.copies, *x.shape).clone() for name, x in start.items()}
        if ids is None:
            return start
        rows = expand(start, len(ids))
        if self.own:  # only the chosen layers: local statistics of the others stay as they were given
            chosen = {n for layer in setup.layout.resolve(self.layers) for n in setup.layout.layer(layer).tensors}
            rows |= {name: x for name, x in setup.fresh(ids).items() if name in chosen}
        return rows


@record
class Zeros:
    """Zeros of the shape of these layers' trainable tensors."""

    layers: Select = select("all")
    per_client: bool = False

    def names(self, layout: Layout, side: Side) -> Names:
        return layout.trainable(self.layers)

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Rows:
        count = setup.clients if self.per_client else None if ids is None else len(ids)
        lead = () if count is None else (count,)
        start = {name: setup.start[name] for name in self.names(setup.layout, side)}
        return {name: x.new_zeros(*lead, *x.shape) for name, x in start.items()}


@record
class Number:
    """One number, or a vector of them, for the server or for each client.

    The width may be named after what only the federation knows: `clients`, `layers`, `classes`, `features`.
    """

    value: float = 0.0
    width: int | str | None = None
    per_client: bool = False

    def names(self, layout: Layout, side: Side) -> None:
        return

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Tensor:
        count = setup.clients if self.per_client else None if ids is None else len(ids)
        shape = [n for n in (count, self._width(setup)) if n is not None]
        like = next(iter(setup.start.values()))
        return torch.full(shape, self.value, dtype=like.dtype, device=like.device)

    def _width(self, setup: Setup) -> int | None:
        if not isinstance(self.width, str):
            return self.width
        known = {"clients": setup.clients, "layers": len(setup.layout.layers), "features": setup.features}
        known |= {} if setup.classes is None else {"classes": setup.classes}
        if self.width not in known:
            raise unknown("width", self.width, known)
        return known[self.width]


@record
class Together:
    """The layers of several declarations of one field, as the phases of an algorithm make them."""

    parts: tuple[FieldSpec, ...]

    def names(self, layout: Layout, side: Side) -> Names | None:
        parts = [part.names(layout, side) for part in self.parts]
        known = {name for part in parts if part is not None for name in part}
        return None if None in parts else tuple(name for name in layout.specs if name in known)

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Value:
        # The first part that has a tensor decides what it starts as.
        values = [part.create(setup, ids, side) for part in self.parts]
        rows: Rows = {}
        for value in reversed(values):
            if isinstance(value, Tensor):
                return values[0]
            rows |= value
        return rows
