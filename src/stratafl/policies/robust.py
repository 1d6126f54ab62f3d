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
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Range
from stratafl.core.fields import Filled, Start, Together
from stratafl.core.footprint import Footprint
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout
from stratafl.core.parcel import Parcel
from stratafl.core.phased import Phased
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State
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
    build = _made(how, share, factor, f, keep)
    exchange = _clipping(norm) if how == "clipped" and norm is not None else _replacing(how, build)
    records = _records(algorithm)
    changed = [exchange(each) for each in records]
    if changed == records:
        raise RecordError(_refusal(how, records))
    _name_what_stays(how, records, changed)
    if isinstance(algorithm, Phased):
        return _phased(algorithm, changed)
    return changed[0]


Exchange = Callable[[Layerwise], Layerwise]
Made = Callable[[str, str], RobustMerge]  # from the field and the weights of a mean


def _records(algorithm: Algorithm) -> list[Layerwise]:
    if not isinstance(algorithm, Phased):
        return [algorithm] if isinstance(algorithm, Layerwise) else []
    return [phase.algorithm for phase in (*algorithm.phases, algorithm.finish) if phase is not None]


def _replacing(how: How, build: Made) -> Exchange:
    """Replace every plain mean."""

    def exchange(algorithm: Layerwise) -> Layerwise:
        steps = (_robust_mean(step, how, build) if type(step) is Mean else step for step in algorithm.merge)
        return replace(algorithm, merge=tuple(steps))

    return exchange


def _clipping(norm: float) -> Exchange:
    """Every mean of a model, and what starts from one, with clipped updates."""

    def exchange(algorithm: Layerwise) -> Layerwise:
        server_fields = algorithm.server_fields
        steps = (
            replace(step, weights=_verified(step.weights), clip=norm)
            if isinstance(step, Mean) and isinstance(server_fields[step.field], Start | Filled | Together)
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
        log.warning("merge '%s' replaces plain means; these merges still see every upload unchanged: %s", how, stay)


def _refusal(how: How, algorithms: list[Layerwise]) -> str:
    steps = [type(step).__name__ for each in algorithms for step in each.merge]
    by = f"merges by {', '.join(dict.fromkeys(steps))}" if steps else "has no merge"
    return f"merge '{how}' replaces a mean of uploads (Mean), but this method {by}: leave it out"


def _robust_mean(mean: Mean, how: How, build: Made) -> RobustMerge:
    if mean.unsent != "held":
        raise RecordError(f"merge '{how}' keeps columns that no client sent: leave out unsent='{mean.unsent}'")
    if mean.clip is not None:
        raise RecordError(f"merge '{how}' replaces a mean whose updates are already clipped: leave one of the two out")
    return build(mean.field, _verified(mean.weights))


def _made(how: How, share: float, factor: float, f: int, keep: int) -> Made:
    builders: dict[str, Made] = {
        "median": lambda field, weights: Median(field),
        "trimmed": lambda field, weights: TrimmedMean(field, weights, share),
        "clipped": lambda field, weights: ClippedMean(field, weights, factor),
        "krum": lambda field, weights: Krum(field, weights, f, keep),
    }
    return builders[how]


def _verified(weights: str) -> str:
    """The number of samples is known; by any other weight that it sends, one client could decide alone."""
    return weights if weights == "samples" else "uniform"
