"""Robust merges: what a server can put in the place of a mean that one client may not decide.

`robust(algorithm, "median")` replaces every `Mean` of a method. Each merge sees all uploads of a round side by side and
goes column by column over the clients that sent it; what nobody sent is held. They bound what a few clients can do;
against many who agree nothing here helps, and a client whose data is merely unlike the others' is cut off as well. Of
a column that one client sent (FLAYER) the median is that client's: there only clipping helps.
"""

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Range
from stratafl.core.footprint import Footprint
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows
from stratafl.core.parcel import Field, Parcel
from stratafl.core.phased import Phased
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, Value
from stratafl.core.steps import MergeRows
from stratafl.errors import RecordError
from stratafl.policies.merge import Averaged, Mean, as_field, blocks, broadcast

log = logging.getLogger("stratafl")
How = Literal["median", "trimmed", "clipped"]
Share = Annotated[float, Range(least=0, below=0.5)]
Factor = Annotated[float, Range(above=0)]
PIECE = 2**16  # columns of all clients that are in float64 at a time
NUMBERS = 8  # float64 numbers beside each column while a piece is sorted and averaged: values, places, weights


@record
class RobustMerge(Averaged, MergeRows):
    """A field of the server from the same field of all uploads, piece by piece.

    Weights are those of `Mean`: n_k, equal, or a field with a number for each client, or for each entry of the leading
    axes of a tensor. What has weight 0 counts as not sent.
    """

    def footprint(self, setup: Setup) -> Footprint:
        """The uploads of one tensor and their weights, some columns in float64, and the server's new row."""
        largest = max(setup.start[name].numel() for name in setup.layout.specs)
        piece = NUMBERS * torch.float64.itemsize * min(largest, PIECE)
        return Footprint(
            absorbed=setup.block_bytes() + setup.block_bytes(torch.float64) + piece, merge=setup.row_bytes()
        )

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        field, held = up[self.field], server[self.field]
        uploads = _Uploads(field, held, self.weights_of(up, ids), rnd.layout)
        scales = self._scales(uploads, rnd.layout)
        new = {name: self._merged(uploads, name, scales[name]) for name in uploads.names}
        return {self.field: as_field({**blocks(held), **new}, held)}

    def _scales(self, uploads: "_Uploads", layout: Layout) -> Mapping[str, Tensor | None]:
        return dict.fromkeys(uploads.names)

    def _merged(self, uploads: "_Uploads", name: str, scale: Tensor | None) -> Tensor:
        held = uploads.held[name]
        new = torch.empty_like(held, memory_format=torch.contiguous_format)
        for some, x, weights, old in uploads.pieces(name):
            merged = self._columns(x if scale is None else old + scale[:, None] * (x - old), weights)
            new.view(-1)[some] = torch.where((weights > 0).any(0), merged, old).to(held.dtype)
        return new

    @abstractmethod
    def _columns(self, x: Tensor, weights: Tensor) -> Tensor:
        """What columns `[C, P]` in float64 come to, `[P]`; what has weight 0 was not sent, and may be NaN."""


@record
class Median(RobustMerge):
    """The median of each column over those who sent it, every client once; of an even number, the middle of two.

    Weights would let a client that claims many samples decide alone, so there are none.
    """

    weights: Literal["uniform"] = "uniform"

    def _columns(self, x: Tensor, weights: Tensor) -> Tensor:
        sent = weights > 0
        ordered = torch.where(sent, x, torch.inf).sort(0).values  # what was not sent comes last
        count = sent.sum(0, keepdim=True)
        low, high = (ordered.gather(0, place.clamp(min=0)) for place in ((count - 1) // 2, count // 2))
        return (low / 2 + high / 2)[0]


@record
class TrimmedMean(RobustMerge):
    """Σ w_k·θ_k / Σ w_k of each column without the ⌈share·n⌉ smallest and largest of its n values.

    At least one value is left. With a share of 0 it is `Mean`.
    """

    share: Share = 0.2

    def _columns(self, x: Tensor, weights: Tensor) -> Tensor:
        sent = weights > 0
        ordered, order = torch.where(sent, x, torch.inf).sort(0)
        count = sent.sum(0)
        cut = torch.minimum((self.share * count - 1e-9).ceil().long(), (count - 1) // 2).clamp(min=0)
        rank = torch.arange(len(x), device=x.device)[:, None]
        kept = torch.where((rank >= cut) & (rank < count - cut), weights.gather(0, order), 0)
        return (kept * torch.where(kept > 0, ordered, 0)).sum(0) / kept.sum(0).clamp(min=1e-300)


@record
class ClippedMean(RobustMerge):
    """θ + Σ w_k·min(1, factor·m/‖Δ_k‖)·Δ_k / Σ w_k, where Δ_k = θ_k − θ and m is the median of the cohort's ‖Δ_k‖.

    Norms are over the trainable columns that a client sent; statistics have norms and a median of their own. With a
    factor that reaches every norm it is `Mean`.
    """

    factor: Factor = 1.0

    def _scales(self, uploads: "_Uploads", layout: Layout) -> Mapping[str, Tensor | None]:
        kinds = {name: name not in layout.specs or layout.specs[name].trainable for name in uploads.names}
        scales: dict[bool, Tensor] = {}
        for kind in set(kinds.values()):
            squares = torch.stack([uploads.squares(name) for name in uploads.names if kinds[name] is kind])
            scales[kind] = self._scale(squares.sum(0).sqrt())
        return {name: scales[kind] for name, kind in kinds.items()}

    def _scale(self, norms: Tensor) -> Tensor:
        moved = norms[norms > 0]  # whoever took no step says nothing about how long steps are
        ordered, count = moved.sort().values, len(moved)
        middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2 if count else norms.new_zeros(())
        return (self.factor * middle / norms.clamp(min=1e-300)).clamp(max=1)

    def _columns(self, x: Tensor, weights: Tensor) -> Tensor:
        return (weights * torch.where(weights > 0, x, 0)).sum(0) / weights.sum(0).clamp(min=1e-300)


class _Uploads:
    """What all clients sent of the blocks that the server keeps, some columns at a time."""

    def __init__(self, field: Field, held: Value, weights: Tensor, layout: Layout) -> None:
        self._value, self.held = blocks(field.value), blocks(held)  # as they are: blocks may be joined when asked for
        self._sent: Rows | None = field.sent(layout)
        self.names = tuple(name for name in self._value if name in self.held)
        device = next((x.device for x in self.held.values()), weights.device)
        self._weights = weights.to(device, torch.float64)

    def pieces(self, name: str) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """Places, values and weights `[C, P]` in float64, 0 of what was not sent, and what the server holds `[P]`."""
        block, held, weights = self._value[name], self.held[name].reshape(-1), self._weights
        spread = broadcast(weights, block)
        masked = spread if self._sent is None else torch.where(self._sent[name], spread, 0)
        flat, each = (x.reshape(len(block), -1) for x in (block, masked))
        for some in (slice(at, at + PIECE) for at in range(0, flat.shape[1], PIECE)):
            yield some, flat[:, some].double(), each[:, some], held[some].double()

    def squares(self, name: str) -> Tensor:
        """`[C]`: the squared norm of what each client sent, from what the server holds."""
        none = torch.zeros(len(self._weights), dtype=torch.float64, device=self._weights.device)
        parts = (torch.where(w > 0, x - old, 0).square().sum(1) for _, x, w, old in self.pieces(name))
        return sum(parts, none)


# From a method to a robust one


def robust(algorithm: Algorithm, how: How, *, share: Share = 0.2, factor: Factor = 1.0) -> Algorithm:
    """The method with a robust merge wherever it averages uploads; `share` is what is trimmed, `factor` clips."""
    if isinstance(algorithm, Phased):
        records = [phase.algorithm for phase in algorithm.phases]
        records += [] if algorithm.finish is None else [algorithm.finish.algorithm]
        if not any(map(_averages, records)):
            raise RecordError(_refusal(how, records))
        _name_what_stays(how, records)
        phases = tuple(replace(p, algorithm=_replaced(p.algorithm, how, share, factor)) for p in algorithm.phases)
        finish = algorithm.finish
        if finish is not None:
            finish = replace(finish, algorithm=_replaced(finish.algorithm, how, share, factor))
        return replace(algorithm, phases=phases, finish=finish)
    if not isinstance(algorithm, Layerwise) or not _averages(algorithm):
        raise RecordError(_refusal(how, [algorithm]))
    _name_what_stays(how, [algorithm])
    return _replaced(algorithm, how, share, factor)


def _name_what_stays(how: How, records: list[Layerwise]) -> None:
    steps = [type(step).__name__ for record in records for step in record.merge if type(step) is not Mean]
    if steps:
        stay = ", ".join(dict.fromkeys(steps))
        log.warning("merge '%s' takes the place of plain means; these merges see every upload as it is: %s", how, stay)


def _averages(algorithm: Layerwise) -> bool:
    return any(type(step) is Mean for step in algorithm.merge)


def _refusal(how: How, algorithms: list[Layerwise] | list[Algorithm]) -> str:
    steps = [type(step).__name__ for each in algorithms if isinstance(each, Layerwise) for step in each.merge]
    by = f"merges by {', '.join(dict.fromkeys(steps))}" if steps else "merges nothing that is known"
    return f"merge '{how}' takes the place of a mean of uploads (Mean), and this method {by}: leave it out"


def _replaced(algorithm: Layerwise, how: How, share: float, factor: float) -> Layerwise:
    merge = (_robust_mean(step, how, share, factor) if type(step) is Mean else step for step in algorithm.merge)
    return replace(algorithm, merge=tuple(merge))


def _robust_mean(mean: Mean, how: How, share: float, factor: float) -> RobustMerge:
    if getattr(mean, "unsent", "held") != "held":
        raise RecordError(f"merge '{how}' holds what nobody sent: leave out unsent='{mean.unsent}'")
    if how == "median":
        return Median(mean.field)
    if how == "trimmed":
        return TrimmedMean(mean.field, _verified(mean.weights), share)
    return ClippedMean(mean.field, _verified(mean.weights), factor)


def _verified(weights: str) -> str:
    """The number of samples is known; by any other weight that it sends, one client could decide alone."""
    return weights if weights == "samples" else "uniform"
