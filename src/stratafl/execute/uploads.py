"""Checks of uploads: which are left out of a round, and whose update is far from the others'.

An upload is left out if it has another form than the method's uploads, if a value is outside the form's bounds (every
value is finite, counts are above 0), if a value that the client would keep is not finite, or if its `samples` are not
the client's number of training samples: it would spoil the next model of all clients, or its own for good. An update
whose norm is at least ten times the cohort's median is reported and takes part, because a client may well have more to
learn than the others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median

import torch
from torch import Tensor

from stratafl.core.algorithm import COUNT
from stratafl.core.form import Form
from stratafl.core.layout import Layout, Rows, row_dot
from stratafl.core.parcel import Field, Parcel
from stratafl.core.reduce import PIECE, pieces
from stratafl.core.reprs import short_repr
from stratafl.core.schema import extremes, misfit, out_of_bounds
from stratafl.core.state import State

STATE_NOT_FINITE = "its model is not finite"
FAR = 10.0  # times the median norm of the cohort's updates
FEW = 3  # updates below which a median says nothing


@dataclass(frozen=True)
class LeftOut:
    """A client whose upload was left out of a round, and why."""

    client: int
    reason: str


@dataclass(frozen=True)
class Outlier:
    """A client whose update is `ratio` times as long as the cohort's median; None if that overflows."""

    client: int
    ratio: float | None


@short_repr
@dataclass(frozen=True, eq=False)
class Inspection:
    """What was found in the uploads of a group: a reason to leave each client out ("": none), and update norms."""

    reasons: list[str]
    norms: list[float]

    @staticmethod
    def refused(reason: str, clients: int) -> "Inspection":
        return Inspection([reason] * clients, [0.0] * clients)

    @property
    def sound(self) -> Tensor:
        return torch.tensor([place for place, reason in enumerate(self.reasons) if not reason], dtype=torch.int64)


def inspect(
    up: Parcel, form: Form, state: State, received: Rows, row: str, samples: Tensor, layout: Layout
) -> Inspection:
    """Check uploads as they arrive, and the state that clients would keep.

    `received` is what training started from, `samples` `[C]` what clients hold. Clients that work together share
    tensors, so that another form is theirs together.
    """
    clients = len(samples)
    wrong = misfit(up, form, layout, clients)
    if wrong:
        return Inspection.refused(wrong, clients)
    device = next((x.device for x in received.values()), samples.device)
    held = samples.to(device, torch.float64)
    found = {name: extremes(field, form.fields[name].bound, clients, layout) for name, field in up.items()}
    sent = {name: each for name, each in found.items() if each is not None}
    kept = _finite([extremes(Field(value), "finite", clients, layout) for value in state.values()], held)
    squares = _squares(up, received, row, held, layout)
    rows = torch.stack([kept, _reported(up, held), squares])
    seen = torch.cat([*sent.values(), rows]).cpu().tolist()  # the one transfer: each waits
    *bounds, keeps, reported, moved = seen
    reasons = [
        _reason(form, dict(zip(sent, zip(each[::2], each[1::2], strict=True), strict=True)), *rest)
        for each, *rest in zip(_columns(bounds, clients), keeps, reported, samples.tolist(), strict=True)
    ]
    return Inspection(reasons, [square**0.5 for square in moved])


def _columns(rows: Sequence[Sequence[float]], count: int) -> list[list[float]]:
    return [[row[place] for row in rows] for place in range(count)]


def _finite(found: Sequence[Tensor | None], like: Tensor) -> Tensor:
    """`[C]`: 1 where all of these are finite."""
    there = [each for each in found if each is not None]
    return torch.cat(there).isfinite().all(0).double() if there else torch.ones_like(like)


def outliers(ids: Sequence[int], norms: Sequence[float]) -> tuple[Outlier, ...]:
    """The clients whose update is far from the cohort's median, in their order; updates of norm 0 do not count."""
    moved = [norm for norm in norms if norm > 0]
    middle = median(moved) if len(moved) >= FEW else 0.0
    if not 0 < middle < float("inf"):
        return ()
    ratios = [norm / middle for norm in norms]
    return tuple(Outlier(i, _rounded(r)) for i, r in zip(ids, ratios, strict=True) if r >= FAR)


def _rounded(ratio: float) -> float | None:
    return float(f"{ratio:.3g}") if isfinite(ratio) else None


def _reason(form: Form, sent: Mapping[str, tuple[float, float]], kept: float, reported: float, held: int) -> str:
    for name, (low, high) in sent.items():
        wrong = out_of_bounds(name, form.fields[name].bound, low, high)
        if wrong:
            return wrong
    if not kept:
        return STATE_NOT_FINITE
    if reported != held:
        return f"it claims {reported:.0f} training samples and holds {held}"
    return ""


def _reported(up: Parcel, held: Tensor) -> Tensor:
    """The number of samples that each client reports; what it holds, where it reports nothing."""
    value = up[COUNT].value if COUNT in up and not up[COUNT].common else None
    return value.double() if isinstance(value, Tensor) and value.shape == held.shape else held


def _squares(up: Parcel, received: Rows, row: str, like: Tensor, layout: Layout) -> Tensor:
    """The squared norm of each client's update, over the trainable columns that it sent: `[C]` in float64."""
    total = torch.zeros_like(like)
    if row not in up or up[row].common or isinstance(up[row].value, Tensor):
        return total
    field = up[row]
    sent = field.sent(layout)
    for name, block in field.rows.items():
        if not layout.specs[name].trainable or block.shape != received[name].shape:
            continue
        total += _square(block, received[name], None if sent is None else sent[name])
    return total


def _square(block: Tensor, before: Tensor, sent: Tensor | None) -> Tensor:
    """Some columns at a time: a copy in float64 of a whole cohort's embeddings would take longer than its sum."""
    clients = len(block)
    flat, start = (x.reshape(clients, -1) for x in (block, before))
    there = None if sent is None else sent.expand_as(block).reshape(clients, -1)
    total = torch.zeros(clients, dtype=torch.float64, device=block.device)
    size = max(1, PIECE // clients if block.device.type == "cpu" else flat.shape[1])
    for some in pieces(flat.shape[1], size):
        update = flat[:, some].to(torch.float64, copy=True).sub_(start[:, some])  # squares of float32 overflow at 1e19
        if there is not None:
            update.masked_fill_(~there[:, some], 0)
        total += row_dot(update, update)
    return total
