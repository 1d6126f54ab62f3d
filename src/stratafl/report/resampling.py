"""The scores of a run's clients on their own test samples, and on resamples of these samples.

A score that is a mean over samples needs no resamples: the variance of its bootstrap is known from its samples. Others,
such as AUROC, are computed anew on every resample. Resamples depend on how many samples each client has and on nothing
else, so two runs on the same samples are resampled alike, which makes their difference a paired one.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.evaluation.predictions import Predictions
from stratafl.report.gain_intervals import Noise, noise_of_means, noise_of_replicates, pooled

Array = NDArray[np.float64]
MEANS = ("accuracy", "log_loss", "brier", "mse", "mae")  # over samples
BY_CLASS = ("balanced_accuracy", "macro_f1", "auroc", "auprc", "sensitivity")  # as certain as their rarest class
RANKED = ("auroc", "auprc", "sensitivity")  # of two classes there is one such score, not one for each class
SHARES = ("auroc", "auprc", "ece")  # from 0 to 1 like a metric in per cent
REPLICATES, FEWEST = 200, 25  # resamples, and how few are still an interval
CELLS = 400_000_000  # scores that are resampled for all runs of a study at most: about half a minute
CALLS = 20_000  # of somebody's own function
AT_ONCE = 4_000_000  # scores that are resampled at once


def replicates_for(metric: Metric, runs: Sequence[Predictions]) -> int:
    """How many resamples of all these runs can be afforded; 0 if too few, or if none are needed."""
    if metric.name in MEANS or not runs:
        return 0
    work = sum(each.scores.numel() if _kind(metric) in RANKED else len(each) * 4 for each in runs)
    calls = 0 if _built_in(metric) else sum(len(each.clients) for each in runs)
    most = min(REPLICATES, CELLS // max(work, 1), CALLS // calls if calls else REPLICATES)
    return most if most >= FEWEST else 0


def bound_of(metric: Metric) -> float | None:
    """How large a difference of two scores can be, if there is a limit."""
    return 1.0 if metric.percent or metric.name in SHARES else None


def _kind(metric: Metric) -> str:
    return metric.name.partition("@")[0]


def _built_in(metric: Metric) -> bool:
    return _kind(metric) in METRICS


class ClientScores:
    """The scores of a run, client by client, for any number of resamples."""

    def __init__(self, predictions: Predictions, metric: Metric, replicates: int) -> None:
        self.predictions, self.metric, self._count = predictions, metric, replicates
        self.ids, self.place = (x.numpy() for x in predictions.client.unique(return_inverse=True))
        self.samples = np.bincount(self.place, minlength=len(self.ids))

    def pairs_with(self, other: "ClientScores") -> bool:
        """Whether both have the same samples in the same order."""
        mine, theirs = self.predictions, other.predictions
        return torch.equal(mine.client, theirs.client) and torch.equal(mine.y, theirs.y)

    @cached_property
    def values(self) -> Array:
        """The score of each client, NaN where it is undefined."""
        found = self.predictions.by_client(self.metric)
        return np.array([found.get(int(client), np.nan) for client in self.ids])

    @cached_property
    def of_samples(self) -> Array | None:
        """The score of each sample alone, if the score of a client is their mean."""
        if self.metric.name not in MEANS:
            return None
        y, scores = self.predictions.y[:, None], self.predictions.scores[:, None]
        return np.asarray(self.metric(y, scores, torch.ones(y.shape)).numpy())

    @cached_property
    def resampled(self) -> Array:
        """The score of each client in each resample `[B, K]`, NaN where it is undefined."""
        found, generator = np.full((self._count, len(self.ids)), np.nan), torch.Generator().manual_seed(0)
        for clients, at, count in _by_size(self.place, self.samples):
            step = max(1, AT_ONCE // (at.numel() * self.predictions.scores.shape[1]))
            for start in range(0, self._count, step):
                several = min(step, self._count - start)
                drawn = torch.rand((several, *at.shape), generator=generator, dtype=torch.float64)
                index = at.expand(several, -1, -1).gather(2, (drawn * count).long()).flatten(0, 1)
                shown = (torch.arange(at.shape[1]) < count).repeat(several, 1)
                values = self.metric(self.predictions.y[index], self.predictions.scores[index], shown)
                found[start : start + several, clients] = values.view(several, -1).numpy()
        return found

    @cached_property
    def size(self) -> Array:
        """How many samples the score of each client rests on; with few positives, AUROC rests on these."""
        total = self.samples.astype(np.float64)
        if _kind(self.metric) not in BY_CLASS:
            return total
        classes = self.predictions.scores.shape[1]
        cell = self.place * classes + self.predictions.y.numpy()
        counts = np.bincount(cell, minlength=len(total) * classes).reshape(-1, classes)
        there = counts > 0
        inverse = np.where(there, 1 / np.maximum(counts, 1), 0).sum(axis=1)
        one_score = _kind(self.metric) in RANKED and classes == 2
        return np.asarray((1 if one_score else there.sum(axis=1) ** 2) / np.maximum(inverse, 1e-300))


def _by_size(
    place: NDArray[np.int64], samples: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.int64], Tensor, Tensor]]:
    """Clients of similar size at a time: which ones, their samples side by side `[C, n]`, and how many each has."""
    order, first = np.argsort(place, kind="stable"), np.cumsum(samples) - samples
    left = np.argsort(-samples, kind="stable")
    while len(left):
        longest = int(samples[left[0]])
        near = np.flatnonzero(samples[left] * 2 >= longest)[: max(1, AT_ONCE // longest)]
        some, left = left[near], left[len(near) :]
        at = order[np.minimum(first[some, None] + np.arange(longest), len(order) - 1)]
        yield some, torch.from_numpy(at), torch.from_numpy(samples[some])[:, None]


def paired_noise(method: Sequence[ClientScores], alone: Sequence[ClientScores], shared: bool) -> Noise | None:
    """The noise of the differences of clients over seeds; None without resamples.

    The runs are paired seed by seed. `shared`: every seed has the same test samples, so what a sample adds to the
    difference with one seed it adds with all, and more seeds do not average it out.
    """
    if shared or len(method) == 1:
        return _noise(method, alone)
    each = [_noise([a], [b]) for a, b in zip(method, alone, strict=True)]
    known = [one for one in each if one is not None]
    return pooled(known) if len(known) == len(each) else None


def _noise(method: Sequence[ClientScores], alone: Sequence[ClientScores]) -> Noise | None:
    pairs, first = list(zip(method, alone, strict=True)), method[0]
    means = [(a.of_samples, b.of_samples) for a, b in pairs]
    differences = [a - b for a, b in means if a is not None and b is not None]
    if differences:
        return noise_of_means(np.stack(differences), first.place, len(first.ids))[1]
    resampled = np.stack([a.resampled - b.resampled for a, b in pairs], axis=1)
    return noise_of_replicates(resampled, first.size) if len(resampled) else None
