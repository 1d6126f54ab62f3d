"""Robust merges: alternatives to the mean, whose result no single client can dictate.

`robust(algorithm, "median")` replaces every `Mean` of a method. Each merge sees all uploads of a round side by side and
goes column by column over the clients that sent it; columns that no client sent keep their values. Clipping to a fixed
norm needs no other client's upload, so it is an option of `Mean`, which still adds up one upload after the other.

Robust merges bound the influence of a few clients. They do not help against many that collude, and they also cut off a
client whose data merely differs from the others'. The median of a column that one client sent (FLAYER) is that client's
value: there only clipping helps.
"""

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Range
from stratafl.core.fields import holds_model
from stratafl.core.footprint import Footprint
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout
from stratafl.core.parcel import Parcel
from stratafl.core.phased import records_of, with_records
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State
from stratafl.core.steps import MergeRows, MergeSums
from stratafl.errors import RecordError
from stratafl.policies.clip import scale, scaled, trainable
from stratafl.policies.krum import Keep, Krum, Wrong
from stratafl.policies.merge import Mean, Positive, as_field, blocks
from stratafl.policies.robust_merge import RobustMerge, Uploads

log = logging.getLogger("stratafl")
How = Literal["median", "trimmed", "clipped", "krum"]
Share = Annotated[float, Range(least=0, below=0.5)]
Factor = Annotated[float, Range(above=0)]


@record
class ColumnMerge(RobustMerge):
    """A merge that goes column by column."""

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        server_value = server[self.field]
        uploads = Uploads(up[self.field], server_value, self.weights_of(up, ids), rnd.layout)
        new = {name: self._merged(uploads, name) for name in uploads.names}
        return {self.field: as_field({**blocks(server_value), **new}, server_value)}

    def _merged(self, uploads: Uploads, name: str) -> Tensor:
        server_block = uploads.held[name]
        new = torch.empty_like(server_block, memory_format=torch.contiguous_format)
        for some, x, weights, old in uploads.pieces(name):
            merged = self._columns(x, weights)
            new.view(-1)[some] = torch.where((weights > 0).any(0), merged, old).to(server_block.dtype)
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
        uploads = Uploads(up[self.field], server[self.field], self.weights_of(up, ids), rnd.layout)
        return self._mean(rnd, server, up, ids, uploads.rows)

    def _columns(self, x: Tensor, weights: Tensor) -> Tensor:
        sent = weights > 0
        ordered, order = torch.where(sent, x, torch.inf).sort(dim=0, stable=True)  # of equals the earlier client
        count = sent.sum(0)
        cut = torch.minimum((self.share * count - 1e-9).ceil().long(), (count - 1) // 2).clamp(min=0)
        rank = torch.arange(len(x), device=x.device)[:, None]
        left_weights = torch.where((rank >= cut) & (rank < count - cut), weights.gather(0, order), 0)
        return (left_weights * torch.where(left_weights > 0, ordered, 0)).sum(0) / left_weights.sum(0).clamp(min=1e-300)


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
        uploads = Uploads(up[self.field], server[self.field], self.weights_of(up, ids), rnd.layout)
        rows = scaled(uploads.rows, uploads.held, self._scales(uploads, rnd.layout))
        return self._mean(rnd, server, up, ids, rows)

    def _scales(self, uploads: Uploads, layout: Layout) -> Mapping[str, Tensor]:
        kinds, scales = trainable(uploads.rows, layout), dict[bool, Tensor]()
        for kind in set(kinds.values()):
            squares = torch.stack([uploads.squares(name) for name in uploads.names if kinds[name] is kind])
            norms = squares.sum(0).sqrt()
            scales[kind] = scale(norms, self.factor * _middle(norms))
        return {name: scales[kind] for name, kind in kinds.items()}


def _middle(norms: Tensor) -> Tensor:
    """The median over the clients that moved: a client without a step says nothing about the length of steps."""
    ordered = norms[norms > 0].sort().values
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2 if count else norms.new_zeros(())


# From a method to a robust one


def robust(
    algorithm: Algorithm,
    how: How,
    *,
    share: Share = 0.2,
    factor: Factor = 1.0,
    norm: Positive | None = None,
    f: Wrong = 1,
    keep: Keep = 1,
) -> Algorithm:
    """The method with a robust merge wherever it averages uploads.

    `share` is trimmed at each end. Updates are clipped to `factor` times the cohort's median norm, or to a `norm`.
    That also works where a server continues from the mean of a model, such as a server optimiser. Krum takes `keep`
    uploads and withstands `f` wrong ones.
    """
    builders: dict[How, Callable[[str, str], RobustMerge]] = {  # from the field and the weights of a mean
        "median": lambda field, weights: Median(field),
        "trimmed": lambda field, weights: TrimmedMean(field, weights, share),
        "clipped": lambda field, weights: ClippedMean(field, weights, factor),
        "krum": lambda field, weights: Krum(field, weights, f, keep),
    }

    def exchange(record: Layerwise) -> Layerwise:
        steps = (
            _with_norm(step, record, norm)
            if how == "clipped" and norm is not None
            else _robust_mean(step, how, builders[how])
            for step in record.merge
        )
        return replace(record, merge=tuple(steps))

    changed = with_records(algorithm, exchange)
    if changed == algorithm:
        raise RecordError(_refusal(how, records_of(algorithm)))
    _check_all_phases(how, records_of(algorithm), records_of(changed))
    _name_what_stays(how, records_of(algorithm), records_of(changed))
    return changed


def _with_norm(step: MergeSums | MergeRows, record: Layerwise, norm: float) -> MergeSums | MergeRows:
    """A mean of a model, or what starts from one, with clipped updates; other merges stay."""
    if isinstance(step, Mean) and holds_model(record.server_fields[step.field]):
        return replace(step, weights=_verified(step.weights), clip=norm)
    return step


def _check_all_phases(how: How, before: Sequence[Layerwise], after: Sequence[Layerwise]) -> None:
    """Refuse a method with a phase in which other merges write the model: one client would move it there."""
    phases = tuple(zip(before, after, strict=True))
    models = {step.field for was, now in phases for step in was.merge if step not in now.merge and type(step) is Mean}
    bare = [step for was, now in phases if was.merge == now.merge for step in was.merge if models & {*step.writes}]
    if bare:
        steps = ", ".join(dict.fromkeys(type(step).__name__ for step in bare))
        raise RecordError(
            f"merge '{how}' replaces a mean of uploads (Mean), but in some rounds of this method the model is merged "
            f"by {steps}, where one client could still move it anywhere: leave it out"
        )


def _name_what_stays(how: How, before: Sequence[Layerwise], after: Sequence[Layerwise]) -> None:
    steps = [
        type(step).__name__
        for was, now in zip(before, after, strict=True)
        for step, new in zip(was.merge, now.merge, strict=True)
        if step == new
    ]
    if steps:
        stay = ", ".join(dict.fromkeys(steps))
        log.warning("merge '%s' replaces plain means; these merges still see every upload unchanged: %s", how, stay)


def _refusal(how: How, records: Sequence[Layerwise]) -> str:
    steps = [type(step).__name__ for record in records for step in record.merge]
    by = f"merges by {', '.join(dict.fromkeys(steps))}" if steps else "has no merge"
    return f"merge '{how}' replaces a mean of uploads (Mean), but this method {by}: leave it out"


def _robust_mean(
    step: MergeSums | MergeRows, how: How, build: Callable[[str, str], RobustMerge]
) -> MergeSums | MergeRows:
    """A robust merge in the place of a plain mean; other merges stay."""
    if type(step) is not Mean:
        return step
    if step.unsent != "held":
        raise RecordError(f"merge '{how}' keeps columns that no client sent: leave out unsent='{step.unsent}'")
    if step.clip is not None:
        raise RecordError(f"merge '{how}' replaces a mean whose updates are already clipped: leave one of the two out")
    return build(step.field, _verified(step.weights))


def _verified(weights: str) -> str:
    """The number of samples is known; by any other weight that it sends, one client could decide alone."""
    return weights if weights == "samples" else "uniform"
