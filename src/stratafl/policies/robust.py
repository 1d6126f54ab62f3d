"""Robust merges: what a server can put in the place of a mean that one client may not decide.

`robust(algorithm, "median")` replaces every `Mean` of a method. Each merge sees all uploads of a round side by side and
goes column by column over the clients that sent it; what nobody sent is held. Clipping to a given norm needs no other
client's upload, so that is an option of `Mean` and its kin, which goes on adding up one upload after the other.

They bound what a few clients can do; against many who agree nothing here helps, and a client whose data is merely
unlike the others' is cut off as well. Of a column that one client sent (FLAYER) the median is that client's: there only
clipping helps.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Range
from stratafl.core.fields import Filled, Start, Together
from stratafl.core.footprint import Footprint
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows
from stratafl.core.parcel import Field, Parcel
from stratafl.core.phased import Phased
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import Computed, State, Value
from stratafl.core.steps import MergeRows
from stratafl.errors import RecordError
from stratafl.policies.clip import scale, scaled, trainable
from stratafl.policies.merge import Averaged, Mean, Positive, as_field, blocks, broadcast

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

    def _mean(self, rnd: Round, server: State, up: Parcel, ids: Tensor, rows: Mapping[str, Tensor]) -> State:
        """The mean of these blocks, which are computed one at a time, to the bit as `Mean` has it."""
        mean, held = Mean(self.field, self.weights), server[self.field]
        new: Rows = {}
        for name in rows:
            one = replace(up[self.field], value=as_field({name: rows[name]}, held))
            sums = mean.fold(rnd, server, {}, Parcel({**up, self.field: one}), ids)
            new[name] = mean.mean(server, sums)[name]
        return {self.field: as_field({**blocks(held), **new}, held)}


@record
class ColumnMerge(RobustMerge):
    """A merge that goes column by column."""

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        held = server[self.field]
        uploads = _Uploads(up[self.field], held, self.weights_of(up, ids), rnd.layout)
        new = {name: self._merged(uploads, name) for name in uploads.names}
        return {self.field: as_field({**blocks(held), **new}, held)}

    def _merged(self, uploads: "_Uploads", name: str) -> Tensor:
        held = uploads.held[name]
        new = torch.empty_like(held, memory_format=torch.contiguous_format)
        for some, x, weights, old in uploads.pieces(name):
            merged = self._columns(x, weights)
            new.view(-1)[some] = torch.where((weights > 0).any(0), merged, old).to(held.dtype)
        return new

    @abstractmethod
    def _columns(self, x: Tensor, weights: Tensor) -> Tensor:
        """What columns `[C, P]` in float64 come to, `[P]`; what has weight 0 was not sent, and may be NaN."""


@record
class Median(ColumnMerge):
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
class TrimmedMean(ColumnMerge):
    """Σ w_k·θ_k / Σ w_k of each column without the ⌈share·n⌉ smallest and largest of its n values.

    At least one value is left. With a share of 0 it is `Mean`, to the bit.
    """

    share: Share = 0.2

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        if self.share > 0:
            return super().absorb(rnd, server, up, ids)
        uploads = _Uploads(up[self.field], server[self.field], self.weights_of(up, ids), rnd.layout)
        return self._mean(rnd, server, up, ids, uploads.rows)

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
    factor that reaches every norm it is `Mean`, to the bit.
    """

    factor: Factor = 1.0

    def footprint(self, setup: Setup) -> Footprint:
        """The uploads of one tensor, three times that in float64, and the server's new row."""
        absorbed = setup.block_bytes() + 3 * setup.block_bytes(torch.float64)
        return Footprint(absorbed=absorbed, merge=setup.row_bytes())

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        uploads = _Uploads(up[self.field], server[self.field], self.weights_of(up, ids), rnd.layout)
        rows = scaled(uploads.rows, uploads.held, self._scales(uploads, rnd.layout))
        return self._mean(rnd, server, up, ids, rows)

    def _scales(self, uploads: "_Uploads", layout: Layout) -> Mapping[str, Tensor]:
        kinds, scales = trainable(uploads.rows, layout), dict[bool, Tensor]()
        for kind in set(kinds.values()):
            squares = torch.stack([uploads.squares(name) for name in uploads.names if kinds[name] is kind])
            norms = squares.sum(0).sqrt()
            scales[kind] = scale(norms, self.factor * _middle(norms))
        return {name: scales[kind] for name, kind in kinds.items()}


def _middle(norms: Tensor) -> Tensor:
    """The median of those who moved: whoever took no step says nothing about how long steps are."""
    ordered = norms[norms > 0].sort().values
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2 if count else norms.new_zeros(())


class _Uploads:
    """What all clients sent of the blocks that the server keeps, some columns at a time."""

    def __init__(self, field: Field, held: Value, weights: Tensor, layout: Layout) -> None:
        self._value, self.held = blocks(field.value), blocks(held)  # as they are: blocks may be joined when asked for
        self._sent: Rows | None = field.sent(layout)
        self.names = tuple(name for name in self._value if name in self.held)
        self.rows = Computed(self.names, self._value.__getitem__)
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


def robust(
    algorithm: Algorithm, how: How, *, share: Share = 0.2, factor: Factor = 1.0, norm: Positive | None = None
) -> Algorithm:
    """The method with a robust merge wherever it averages uploads.

    `share` is what is trimmed; updates are clipped to `factor` times the cohort's median, or to a `norm`. The latter
    also acts where a server goes on from the mean of a model, such as a server optimiser.
    """
    exchange = _clipping(norm) if how == "clipped" and norm is not None else _replacing(how, share, factor)
    known = _records(algorithm)
    changed = [exchange(each) for each in known]
    if changed == known:
        raise RecordError(_refusal(how, known))
    _name_what_stays(how, known, changed)
    if isinstance(algorithm, Phased):
        return _phased(algorithm, changed)
    return changed[0]


Exchange = Callable[[Layerwise], Layerwise]


def _records(algorithm: Algorithm) -> list[Layerwise]:
    if not isinstance(algorithm, Phased):
        return [algorithm] if isinstance(algorithm, Layerwise) else []
    return [phase.algorithm for phase in (*algorithm.phases, algorithm.finish) if phase is not None]


def _replacing(how: How, share: float, factor: float) -> Exchange:
    """Another merge in the place of every plain mean."""

    def exchange(algorithm: Layerwise) -> Layerwise:
        steps = (_robust_mean(step, how, share, factor) if type(step) is Mean else step for step in algorithm.merge)
        return replace(algorithm, merge=tuple(steps))

    return exchange


def _clipping(norm: float) -> Exchange:
    """Every mean of a model, and what starts from one, with clipped updates."""

    def exchange(algorithm: Layerwise) -> Layerwise:
        kept = algorithm.server_fields
        steps = (
            replace(step, weights=_verified(step.weights), clip=norm)
            if isinstance(step, Mean) and isinstance(kept[step.field], Start | Filled | Together)
            else step
            for step in algorithm.merge
        )
        return replace(algorithm, merge=tuple(steps))

    return exchange


def _phased(algorithm: Phased, changed: list[Layerwise]) -> Phased:
    count = len(algorithm.phases)
    phases = tuple(replace(p, algorithm=new) for p, new in zip(algorithm.phases, changed[:count], strict=True))
    finish = algorithm.finish and replace(algorithm.finish, algorithm=changed[-1])
    return replace(algorithm, phases=phases, finish=finish)


def _name_what_stays(how: How, before: list[Layerwise], after: list[Layerwise]) -> None:
    steps = [
        type(step).__name__
        for was, now in zip(before, after, strict=True)
        for step, new in zip(was.merge, now.merge, strict=True)
        if step == new
    ]
    if steps:
        stay = ", ".join(dict.fromkeys(steps))
        log.warning("merge '%s' takes the place of plain means; these merges see every upload as it is: %s", how, stay)


def _refusal(how: How, algorithms: list[Layerwise]) -> str:
    steps = [type(step).__name__ for each in algorithms for step in each.merge]
    by = f"merges by {', '.join(dict.fromkeys(steps))}" if steps else "merges nothing that is known"
    return f"merge '{how}' takes the place of a mean of uploads (Mean), and this method {by}: leave it out"


def _robust_mean(mean: Mean, how: How, share: float, factor: float) -> RobustMerge:
    if mean.unsent != "held":
        raise RecordError(f"merge '{how}' holds what nobody sent: leave out unsent='{mean.unsent}'")
    if mean.clip is not None:
        raise RecordError(f"merge '{how}' takes the place of a mean whose updates are clipped: leave one of them out")
    if how == "median":
        return Median(mean.field)
    if how == "trimmed":
        return TrimmedMean(mean.field, _verified(mean.weights), share)
    return ClippedMean(mean.field, _verified(mean.weights), factor)


def _verified(weights: str) -> str:
    """The number of samples is known; by any other weight that it sends, one client could decide alone."""
    return weights if weights == "samples" else "uniform"
