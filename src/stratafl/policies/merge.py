"""Merge: the server's next state from the uploads."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from stratafl.core.annotations import Range
from stratafl.core.fields import FieldSpec, Filled
from stratafl.core.footprint import Footprint
from stratafl.core.form import Bound
from stratafl.core.layout import Layout, Rows
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import record
from stratafl.core.reduce import add_rows, add_weights, mean_or_hold
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, Value, rows_of
from stratafl.core.steps import Merge, MergeRows, MergeSums, Names, field_names
from stratafl.policies.clip import clipped

TENSOR = "tensor"  # the name of the only block of a field that is a tensor
Positive = Annotated[float, Range(above=0)]


@record
class Averaged(Merge):
    """A field of the server from the same field of uploads, with weights: what a mean and its robust kin declare."""

    field: str = "theta"
    weights: str = "samples"

    @property
    def reads(self) -> Names:
        counts = () if self.weights == "uniform" else (f"up.{self.weights}",)
        return (f"up.{self.field}", *counts, self.field)

    @property
    def writes(self) -> Names:
        return (self.field,)

    @property
    def bounds(self) -> Mapping[str, Bound]:
        return {} if self.weights == "uniform" else {f"up.{self.weights}": "nonnegative"}

    def weights_of(self, up: Parcel, ids: Tensor) -> Tensor:
        """`[C]`, or `[C, …]` for each entry of the leading axes of a tensor."""
        return torch.ones_like(ids) if self.weights == "uniform" else up[self.weights].tensor


@record
class Mean(Averaged, MergeSums):
    """Σ w_k·θ_k / Σ w_k, column by column over the clients that sent it; a column that no client sent keeps its value.

    The weights are n_k, equal (`uniform`), or any field that clients send: a number each, or a number for each entry of
    the leading axes of a tensor, such as class counts for prototypes. Columns that the server does not keep are left
    out. With `unsent="zero"` a column that a client did not send counts as 0 in the mean over all. With `clip` no
    update, from what the server holds, is longer than this norm.
    """

    unsent: Literal["held", "zero"] = "held"
    clip: Positive | None = None

    def footprint(self, setup: Setup) -> Footprint:
        """The numerator; the denominator is as large only where columns are masked, which their sender says.

        Clipping takes a tensor of each client in float64 three times.
        """
        clipping = 0 if self.clip is None else 3 * setup.block_bytes(torch.float64)
        return Footprint(client=clipping, sums=setup.row_bytes(dtype=torch.float64))

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        """Numerator and denominator, client by client."""
        top, bottom = (rows_of(sums, name) if sums else {} for name in ("top", "bottom"))
        rows, sent = self.uploaded(rnd, server, up)
        weights = self.weights_of(up, ids)
        if weights.ndim > 1:
            once = torch.ones_like(ids)
            spread_weights = {n: broadcast(weights.to(x.dtype), x) for n, x in rows.items()}
            weighted = {n: x * spread_weights[n] for n, x in rows.items()}
            return {"top": add_rows(top, once, weighted, None), "bottom": add_rows(bottom, once, spread_weights, None)}
        return {
            "top": add_rows(top, weights, rows, sent),
            "bottom": add_weights(bottom, weights, rows, sent if self.unsent == "held" else None),
        }

    def uploaded(self, rnd: Round, server: State, up: Parcel) -> tuple[Mapping[str, Tensor], Rows | None]:
        """The blocks to average, clipped if that is asked for, and where they have a mask, what of them was sent."""
        rows, sent = kept_blocks(up[self.field], server[self.field], rnd.layout)
        if self.clip is None:
            return rows, sent
        return clipped(rows, sent, blocks(server[self.field]), rnd.layout, self.clip), sent

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        return {self.field: as_field(self.mean(server, sums), server[self.field])}

    def mean(self, server: State, sums: State) -> Rows:
        """The mean of each block; columns that no client sent keep the server's values."""
        return mean_or_hold(rows_of(sums, "top"), rows_of(sums, "bottom"), blocks(server[self.field]))


def blocks(value: Value) -> Rows:
    """A field as blocks: a tensor is one."""
    return {TENSOR: value} if isinstance(value, Tensor) else value


def kept_blocks(field: Field, server_value: Value, layout: Layout) -> tuple[Rows, Rows | None]:
    """The blocks of an upload that the server keeps, and where they have a mask, what of them was sent."""
    rows, sent = blocks(field.value), None if isinstance(field.value, Tensor) else field.sent(layout)
    names = [name for name in rows if name in blocks(server_value)]
    return {n: rows[n] for n in names}, None if sent is None else {n: sent[n] for n in names}


def broadcast(weights: Tensor, block: Tensor) -> Tensor:
    """Weights of the leading axes of a block, in its shape."""
    return weights.reshape((*weights.shape, *(1,) * (block.ndim - weights.ndim))).expand(block.shape)


def as_field(rows: Rows, value: Value) -> Value:
    """Blocks as what the field is: rows, or a tensor."""
    return rows[TENSOR] if isinstance(value, Tensor) else rows


@record
class ServerOptimizer(Mean):
    """θ moves from what it was towards the mean by a server optimiser (FedOpt, Reddi et al., 2021).

    With Δ = mean − θ: `sgd` θ + lr·Δ; `momentum` m ← β₁·m + Δ, θ + lr·m; `adam` m ← β₁·m + (1 − β₁)·Δ, v ← β₂·v +
    (1 − β₂)·Δ², θ + lr·m/(√v + τ); `yogi` v ← v − (1 − β₂)·Δ²·sign(v − Δ²). v starts at τ². Statistics take the mean.
    """

    optimizer: Literal["sgd", "momentum", "adam", "yogi"] = "sgd"
    lr: Positive = 1.0
    beta1: Annotated[float, Range(least=0, below=1)] = 0.9
    beta2: Annotated[float, Range(least=0, below=1)] = 0.99
    tau: Positive = 1e-3

    @property
    def keeps(self) -> Mapping[str, FieldSpec]:
        moment = {} if self.optimizer == "sgd" else {f"{self.field}.moment": Filled()}
        square = {f"{self.field}.square": Filled(self.tau**2)} if self.optimizer in ("adam", "yogi") else {}
        return {**moment, **square}

    @property
    def writes(self) -> Names:
        return (self.field, *self.keeps)

    def footprint(self, setup: Setup) -> Footprint:
        """The sums of the mean, and three rows to compute with."""
        return replace(super().footprint(setup), merge=3 * setup.row_bytes())

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        mean, old = self.mean(server, sums), blocks(server[self.field])
        delta = {n: mean[n] - old[n] for n in old if n == TENSOR or rnd.layout.specs[n].trainable}
        moments, squares = (_rows(server, f"{self.field}.{name}") for name in ("moment", "square"))
        step = {n: self._step(d, moments.get(n), squares.get(n)) for n, d in delta.items()}
        moved = {**mean, **{n: old[n] + self.lr * direction for n, (direction, _, _) in step.items()}}
        state: dict[str, Value] = {f"{self.field}.moment": {n: m for n, (_, m, _) in step.items() if m is not None}}
        state[f"{self.field}.square"] = {n: v for n, (_, _, v) in step.items() if v is not None}
        return {self.field: as_field(moved, server[self.field]), **{name: state[name] for name in self.keeps}}

    def _step(self, delta: Tensor, m: Tensor | None, v: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The direction, and the next m and v."""
        if m is None:
            return delta, None, None
        if v is None:
            m = self.beta1 * m + delta
            return m, m, None
        m, square = self.beta1 * m + (1 - self.beta1) * delta, delta.square()
        towards = (v - square).sign() * square if self.optimizer == "yogi" else v - square
        v = v - (1 - self.beta2) * towards
        return m / (v.sqrt() + self.tau), m, v


def _rows(server: State, name: str) -> Rows:
    return rows_of(server, name) if name in server else {}


@record
class Increment(MergeSums):
    """The server's field grows by Σ_k up_k / N: the sum over those who took part, divided by all N clients."""

    field: str
    by: str
    divides_by_clients = True
    reads = field_names("up.{by}", "{field}")
    writes = field_names("{field}")

    def footprint(self, setup: Setup) -> Footprint:
        return Footprint(sums=setup.row_bytes(dtype=torch.float64))

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        rows, sent = kept_blocks(up[self.by], server[self.field], rnd.layout)
        return {"sum": add_rows(rows_of(sums, "sum") if sums else {}, torch.ones_like(ids), rows, sent)}

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        old, clients = blocks(server[self.field]), rnd.setup.clients
        grown = {n: (old[n] + x / clients).to(old[n].dtype) for n, x in rows_of(sums, "sum").items()}
        return {self.field: as_field({**old, **grown}, server[self.field])}


@record
class StoreRows(MergeRows):
    """The server keeps each client's latest upload; the rows of clients that sent nothing stay unchanged."""

    rows: str = "rows"
    field: str = "theta"
    reads = field_names("up.{field}", "{rows}")
    writes = field_names("{rows}")

    @property
    def stores(self) -> Mapping[str, str]:
        return {self.field: self.rows}

    def footprint(self, setup: Setup) -> Footprint:
        """Uploads of one tensor at a time."""
        return Footprint(absorbed=setup.block_bytes())

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        new, old = up[self.field].value, server[self.rows]
        if isinstance(old, Tensor):
            return {self.rows: old.index_copy(0, ids.to(old.device), up[self.field].tensor.to(old.dtype))}
        stored = {n: x.index_copy(0, ids.to(x.device), up[self.field].rows[n]) for n, x in old.items() if n in new}
        return {self.rows: {**old, **stored}}
