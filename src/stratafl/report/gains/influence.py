"""How much each test sample moves a client's score: from that the variance of a bootstrap follows without resamples.

A score is its value plus the mean of its samples' influences, up to a rest that vanishes faster. For means that is
exact; for AUROC it is the variance of DeLong, DeLong and Clarke-Pearson (1988). `values` of a sample are the client's
score plus its influence, so that their mean is the score and their variance over n is that of the bootstrap.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.predictions import Predictions

Array = NDArray[np.float64]
MEANS = ("accuracy", "log_loss", "brier", "mse", "mae")  # over samples
LINEAR = (*MEANS, "balanced_accuracy", "auroc")


def sample_values(metric: Metric, found: Predictions) -> Array:
    """For each sample its client's score plus its influence on it; NaN where the score is undefined."""
    if metric.name in MEANS:
        y, scores = found.y[:, None], found.scores[:, None]
        return np.asarray(metric(y, scores, torch.ones(y.shape)).numpy())
    influence = _recall if metric.name == "balanced_accuracy" else _placements
    values = torch.full((len(found),), float("nan"), dtype=torch.float64)
    for _, at, count in found.side_by_side():
        real = torch.arange(at.shape[1]) < count
        y, scores = found.y[at], found.scores[at].double()
        parts = influence(y, scores, real) * count + metric(y, scores, real)[:, None]
        values[at[real]] = parts[real]
    return values.numpy()


def _recall(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    """Of the mean over classes of the share that is recognised."""
    hits, total = (scores.argmax(-1) == y).double(), torch.zeros_like(real, dtype=torch.float64)
    classes = torch.zeros(len(y), 1)
    for label in range(scores.shape[-1]):
        own = real & (y == label)
        count = own.sum(1, keepdim=True)
        recall = (hits * own).sum(1, keepdim=True) / count.clamp(min=1)
        total += torch.where(own, (hits - recall) / count.clamp(min=1), 0.0)
        classes += count > 0
    return total / classes


def _placements(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    """Of the share of pairs that are in order; with more than two classes of its mean over classes."""
    total, classes = torch.zeros_like(real, dtype=torch.float64), torch.zeros(len(y), 1)
    for label in range(scores.shape[-1]) if scores.shape[-1] > 2 else (1,):
        positive, negative, score = real & (y == label), real & (y != label), scores[..., label].contiguous()
        above, below = _share_below(negative, score), 1 - _share_below(positive, score)
        placed = torch.where(positive, above, torch.where(negative, below, 0.0))
        counts = positive.sum(1, keepdim=True), negative.sum(1, keepdim=True)
        area = torch.where(positive, above, 0.0).sum(1, keepdim=True) / counts[0].clamp(min=1)
        each = torch.where(positive, 1 / counts[0].clamp(min=1), 1 / counts[1].clamp(min=1))
        there = (counts[0] > 0) & (counts[1] > 0)
        total += torch.where(real & there, (placed - area) * each, 0.0)
        classes += there
    return total / classes.clamp(min=1)


def _share_below(which: Tensor, score: Tensor) -> Tensor:
    """For each sample, the share of these samples with a smaller score; one with the same counts half."""
    rivals = score.masked_fill(~which, torch.inf).sort(1).values
    found = torch.searchsorted(rivals, score) + torch.searchsorted(rivals, score, right=True)
    return found / (2 * which.sum(1, keepdim=True).clamp(min=1)).double()
