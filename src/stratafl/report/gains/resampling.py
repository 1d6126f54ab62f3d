"""The scores of a run's clients on their own test samples, and on resamples of these samples.

Accuracy, AUROC and others need no resamples: the variance of their bootstrap follows from the influence of each sample
(`influence`). Others, such as macro-F1, are computed anew on every resample. Resamples depend on how many samples each
client has and on nothing else, so two runs on the same samples are resampled alike: their difference is a paired one.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.predictions import CHUNK_SCORES, Predictions
from stratafl.report.gains.influence import LINEAR, sample_values
from stratafl.report.gains.intervals import Noise, noise_of_means, noise_of_replicates, pooled

Array = NDArray[np.float64]
BY_CLASS = ("balanced_accuracy", "macro_f1", "auroc", "auprc", "sensitivity")  # as certain as their rarest class
RANKED = ("auroc", "auprc", "sensitivity")  # of two classes there is one such score, not one for each class
SHARES = ("auroc", "auprc", "ece")  # from 0 to 1 like a metric in per cent
REPLICATES, FEWEST = 200, 25  # resamples, and how few are still an interval
CELLS = 40_000_000  # scores that are resampled for all runs of a study at most: ten seconds or so


def replicates_for(metric: Metric, runs: Sequence[Predictions]) -> int:
    """How many resamples of all these runs can be afforded; 0 if too few, or if none are needed."""
    if metric.name in LINEAR or not runs:
        return 0
    most = min(REPLICATES, CELLS // sum(each.scores.numel() for each in runs))
    return most if most >= FEWEST else 0


def bound_of(metric: Metric) -> float | None:
    """How large a difference of two scores can be, if there is a limit."""
    return 1.0 if metric.percent or metric.name in SHARES else None


def _kind(metric: Metric) -> str:
    return metric.name.partition("@")[0]


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
        """Values of the samples whose mean is the score of their client, if there are such values."""
        return sample_values(self.metric, self.predictions) if self.metric.name in LINEAR else None

    @cached_property
    def resampled(self) -> Array:
        """The score of each client in each resample `[B, K]`, NaN where it is undefined."""
        found, generator = np.full((self._count, len(self.ids)), np.nan), torch.Generator().manual_seed(0)
        classes = self.predictions.scores.shape[1]
        for clients, at, count in self.predictions.side_by_side():
            step = max(1, CHUNK_SCORES // (at.numel() * classes))
            for start in range(0, self._count, step):
                several = min(step, self._count - start)
                drawn = torch.rand((several, *at.shape), generator=generator, dtype=torch.float64)
                index = at.expand(several, -1, -1).gather(2, (drawn * count).long()).flatten(0, 1)
                shown = (torch.arange(at.shape[1]) < count).repeat(several, 1)
                values = self.metric(self.predictions.y[index], self.predictions.scores[index], shown)
                found[start : start + several, clients.numpy()] = values.view(several, -1).numpy()
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


Both = tuple[ClientScores, ClientScores]  # of a method and of training alone with the same seed


def paired_noise(pairs: Sequence[Both], ids: NDArray[np.int64]) -> Noise | None:
    """The noise of the differences of these clients over seeds, 0 where one has no samples; None without resamples.

    If every seed has the same test samples, what a sample adds to the difference with one seed it adds with all, and
    more seeds do not average it out.
    """
    first = pairs[0][0]
    shared = all(method.pairs_with(first) for method, _ in pairs)
    each = [_noise(some, ids) for some in ([pairs] if shared else [[pair] for pair in pairs])]
    known = [one for one in each if one is not None]
    if len(known) < len(each):
        return None
    return known[0] if shared else pooled(known)


def _noise(pairs: Sequence[Both], ids: NDArray[np.int64]) -> Noise | None:
    first = pairs[0][0]
    means = [(a.of_samples, b.of_samples) for a, b in pairs]
    differences = [a - b for a, b in means if a is not None and b is not None]
    if differences:
        stacked = np.nan_to_num(np.stack(differences))  # of clients without a score, who get no interval either
        found = noise_of_means(stacked, first.place, len(first.ids))[1]._replace(size=first.size)
    else:
        resampled = np.stack([a.resampled - b.resampled for a, b in pairs], axis=1)
        if not len(resampled):
            return None
        found = noise_of_replicates(resampled, first.size)
    whole = np.zeros((len(found), len(ids)))
    whole[:, np.searchsorted(ids, first.ids)] = np.stack(found)
    return Noise(*whole)
