"""Standard errors by the jackknife: how much a score changes if some of the samples are left out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np
import torch
from torch import Tensor

from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.predictions import Predictions

MIN_PARTS = 20  # of the samples, unless there are fewer samples
MAX_SCORES = 1 << 22  # that a client's jackknife computes; with more samples, parts are larger


@dataclass(frozen=True)
class Difference:
    """Of two scores on the same validation samples, with its standard error."""

    value: float
    error: float


def with_error(of: Callable[[Tensor | None], float], client: Tensor) -> Difference:
    """The number that `of` gives for all samples (None), with its standard error.

    √((G − 1)/G · Σ_g (d₋g − mean)²) over G parts of the samples, each with its share of every client's.
    """
    part = jackknife_parts(client, min(MIN_PARTS, len(client)))
    without = [of((part != g).nonzero()[:, 0]) for g in range(int(part.max()) + 1)]
    return Difference(of(None), jackknife_error(without))


def jackknife_error(without: Sequence[float]) -> float:
    """The standard error of a number from its values without each part; infinite if fewer than two are finite."""
    finite = np.array([value for value in without if isfinite(value)])
    if len(finite) < 2:
        return float("inf")
    return sqrt((len(finite) - 1) / len(finite) * float(((finite - finite.mean()) ** 2).sum()))


def jackknife_parts(client: Tensor, count: int) -> Tensor:
    """The part of each sample: each client's samples in turn, on from where the client before ended."""
    order = torch.argsort(client, stable=True)
    part = torch.empty(len(client), dtype=torch.int64)
    part[order] = torch.arange(len(client)) % count
    return part


def sample_values(
    metric: Metric, predictions: Predictions, max_scores: int = MAX_SCORES, *, keep_classes: bool = False
) -> Tensor:
    """For each sample its client's score plus what the sample adds to it, `[n]` in float64; NaN where it is undefined.

    Their mean over a client is its score, and their variance over n is the jackknife's: with g the part of sample j,
    v_j = θ + √(n/G)·(G − 1)·(θ̄ − θ₋g). With a part for each sample and a metric that is a mean, it is the sample's own.
    Without all samples of a class, a mean over classes is a mean over others: with `keep_classes` such parts are as if
    the score were undefined without them, and AUROC has about the variance of DeLong.
    """
    values = torch.full((len(predictions),), torch.nan, dtype=torch.float64)
    for places in _places_by_client(predictions.client):
        samples, n = predictions.at(places), len(places)
        count = min(n, max(MIN_PARTS, max_scores // (n * samples.scores.shape[1])))
        part = torch.arange(n) % count
        included = (part != torch.arange(count)[:, None]).double()
        without = metric(samples.y.expand(count, -1), samples.scores.expand(count, -1, -1), included)
        if keep_classes:
            without[_holds_a_class(part, samples.y)] = torch.nan
        moved = (without.nanmean() - without).nan_to_num(0.0)  # without a part that holds all of a class it is unknown
        values[places] = samples.value(metric) + sqrt(n / count) * (count - 1) * moved[part]
    return values


def _places_by_client(client: Tensor) -> tuple[Tensor, ...]:
    """The places of each client's samples, in their order."""
    order = torch.argsort(client, stable=True)
    places: tuple[Tensor, ...] = order.split(client.unique(return_counts=True)[1].tolist())
    return places


def _holds_a_class(part: Tensor, y: Tensor) -> Tensor:
    """Which parts have all samples of some class."""
    counts = torch.zeros(int(part.max()) + 1, int(y.max()) + 1)
    counts.index_put_((part, y), torch.ones(len(y)), accumulate=True)
    total = counts.sum(0)
    return ((counts == total) & (total > 0)).any(1)
