"""What crosses between server and clients, and what becomes of it: the slots serve, mix, send and merge."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.layout import Rows
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import record
from stratafl.core.reduce import add_rows, add_weights, mean_or_hold
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, Value, expand, rows_of
from stratafl.core.steps import MergeSums, Mix, Names, Send, Serve
from stratafl.core.task import Task
from stratafl.errors import RecordError


@record
class Download(Serve):
    """Layers of a server field."""

    layers: Select = select("all")
    field: str = "theta"

    @property
    def reads(self) -> Names:
        return (self.field,)

    @property
    def writes(self) -> Names:
        return (f"down.{self.field}",)


@record
class Broadcast(Download):
    """The same layers of a server field to every client."""

    def footprint(self, setup: Setup) -> Footprint:
        """Nothing: clients look at the server's own tensors."""
        return Footprint()

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        return {self.field: Field(_layers(server[self.field], rnd, self.layers), common=True)}


@record
class Deliver(Download):
    """To each client its own row of a server field that keeps a row per client."""

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        rows = _layers(server[self.field], rnd, self.layers)
        return {self.field: Field(rows[ids] if isinstance(rows, Tensor) else {n: x[ids] for n, x in rows.items()})}


def _layers(value: Value, rnd: Round, layers: Select) -> Value:
    return value if isinstance(value, Tensor) else {name: value[name] for name in rnd.layout.travelling(layers)}


@record
class Take(Mix):
    """What was sent replaces what the client has; the rest of the row is the client's own."""

    field: str = "theta"
    into: str = "theta"

    @property
    def reads(self) -> Names:
        return (f"down.{self.field}",)

    @property
    def writes(self) -> Names:
        return (self.into,)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        own = rows_of(client, self.into) if self.into in client else {}
        row = {**own, **received(down[self.field], own, rnd, len(task))}
        _refuse([name for name in rnd.layout.specs if name not in row], rnd)
        return {self.into: {name: row[name] for name in rnd.layout.specs}}


def received(field: Field, own: Rows, rnd: Round, count: int) -> Rows:
    """The blocks of a field with a row per client; where a mask says that nothing was sent, the client's own."""
    rows = expand(field.rows, count) if field.common else field.rows
    sent = field.sent(rnd.layout)
    if sent is None:
        return rows
    _refuse([name for name in rows if name not in own], rnd)
    return {name: torch.where(sent[name], block, own[name]) for name, block in rows.items()}


def _refuse(missing: list[str], rnd: Round) -> None:
    if missing:
        layers = dict.fromkeys(rnd.layout.layers[rnd.layout.specs[name].layer].name for name in missing)
        named = ", ".join(map(repr, layers))
        raise RecordError(f"mix: Take finds nobody who has all of {named}: neither the download nor the client's state")


@record
class Remember(Mix):
    """Keep what was mixed under another name for the rest of the round, as an anchor."""

    field: str = "theta"
    name: str = "anchor"

    @property
    def reads(self) -> Names:
        return (self.field,)

    @property
    def writes(self) -> Names:
        return (self.name,)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        return {self.name: client[self.field]}


@record
class TakeNumber(Mix):
    """A tensor of the download, one row per client."""

    field: str

    @property
    def reads(self) -> Names:
        return (f"down.{self.field}",)

    @property
    def writes(self) -> Names:
        return (self.field,)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        field = down[self.field]
        value: Tensor = field.tensor.expand(len(task), *field.tensor.shape) if field.common else field.tensor
        return {self.field: value}


@record
class Upload(Send):
    """Layers of the client's row, and its number of training samples n_k, which is sent only if a merge reads it."""

    layers: Select = select("all")
    field: str = "theta"

    @property
    def reads(self) -> Names:
        return (self.field,)

    @property
    def writes(self) -> Names:
        return (f"up.{self.field}", "up.samples")

    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        row = rows_of(client, self.field)
        layers = {name: row[name] for name in rnd.layout.travelling(self.layers)}
        return {self.field: Field(layers), "samples": Field(task.sizes("train"))}


@record
class Mean(MergeSums):
    """Σ w_k·θ_k / Σ w_k, column by column over those who sent it; what nobody sent is held.

    With `unsent="zero"` a column that a client did not send counts as 0 in the mean over all.
    """

    field: str = "theta"
    weights: Literal["samples", "uniform"] = "samples"
    unsent: Literal["held", "zero"] = "held"

    @property
    def reads(self) -> Names:
        counts = ("up.samples",) if self.weights == "samples" else ()
        return (f"up.{self.field}", *counts, self.field)

    @property
    def writes(self) -> Names:
        return (self.field,)

    def footprint(self, setup: Setup) -> Footprint:
        """The numerator; the denominator is as large only where columns are masked, which their sender says."""
        return Footprint(sums=setup.row_bytes(dtype=torch.float64))

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        """Numerator and denominator, client by client."""
        field = up[self.field]
        weights = up["samples"].tensor if self.weights == "samples" else torch.ones_like(ids)
        sent = field.sent(rnd.layout)
        top, bottom = (rows_of(sums, name) if sums else {} for name in ("top", "bottom"))
        return {
            "top": add_rows(top, weights, field.rows, sent),
            "bottom": add_weights(bottom, weights, field.rows, sent if self.unsent == "held" else None),
        }

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        return {self.field: mean_or_hold(rows_of(sums, "top"), rows_of(sums, "bottom"), rows_of(server, self.field))}
