"""Checks of uploads: which are left out of a round, and whose update is far from the others'.

An upload is left out if a value that was sent, or that the client would keep, is not finite, or if its `samples` are
not the client's number of training samples: it would spoil the next model of all clients, or its own for good. An
update whose norm is at least ten times the cohort's median is reported and takes part, because a client may well have
more to learn than the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median

import torch
from torch import Tensor

from stratafl.core.layout import Layout, Rows, row_dot
from stratafl.core.parcel import Field, Parcel
from stratafl.core.reprs import short_repr
from stratafl.core.state import State

NOT_FINITE = "its upload is not finite"
STATE_NOT_FINITE = "its model is not finite"
FAR = 10.0  # times the median norm of the cohort's updates
FEW = 3  # updates below which a median says nothing
COUNT = "samples"  # the field of an upload that holds n_k


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

    @property
    def sound(self) -> Tensor:
        return torch.tensor([place for place, reason in enumerate(self.reasons) if not reason], dtype=torch.int64)


def inspect(up: Parcel, state: State, received: Rows, row: str, samples: Tensor, layout: Layout) -> Inspection:
    """Check uploads as they arrive, and the state that clients would keep.

    `received` is what training started from, `samples` `[C]` what clients hold.
    """
    clients = len(samples)
    device = next((x.device for x in received.values()), samples.device)
    held = samples.to(device, torch.float64)
    sent = _finite([bound for field in up.values() for bound in _extremes(field, clients, layout)], held)
    kept = _finite([bound for value in state.values() for bound in _extremes(Field(value), clients, layout)], held)
    squares = _squares(up, received, row, held, layout)
    seen = torch.stack([sent, kept, _reported(up, held), squares]).cpu().tolist()  # the one transfer: each waits
    reasons = [_reason(*each) for each in zip(*seen[:3], samples.tolist(), strict=True)]
    return Inspection(reasons, [square**0.5 for square in seen[3]])


def _finite(extremes: Sequence[Tensor], like: Tensor) -> Tensor:
    """`[C]`: 1 where all of these are finite."""
    return torch.stack(list(extremes)).isfinite().all(0).double() if extremes else torch.ones_like(like)


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


def _reason(sent: float, kept: float, reported: float, held: int) -> str:
    if not sent:
        return NOT_FINITE
    if not kept:
        return STATE_NOT_FINITE
    if reported != held:
        return f"it claims {reported:.0f} training samples and holds {held}"
    return ""


def _extremes(field: Field, clients: int, layout: Layout) -> list[Tensor]:
    """The smallest and the largest value of each client in each block, `[C]` in float64; NaN if any value is."""
    sent = field.sent(layout)
    named = {"": field.value} if isinstance(field.value, Tensor) else field.value
    found: list[Tensor] = []
    for name, block in named.items():
        if not block.is_floating_point() or block.numel() == 0:
            continue
        there = block if sent is None else torch.where(sent[name], block, 0)  # what was not sent is NaN here
        rows = there.reshape(1, -1).expand(clients, -1) if field.common else there.reshape(clients, -1)
        found += [bound.double() for bound in torch.aminmax(rows, dim=1)]
    return found


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
        update = block.to(torch.float64, copy=True).sub_(received[name])  # squares of float32 overflow at 1e19
        if sent is not None:
            update.masked_fill_(~sent[name], 0)
        total += row_dot(update, update)
    return total
