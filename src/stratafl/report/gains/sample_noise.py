"""How uncertain the scores of a run's clients are, because other test samples would give other scores.

A score is its value plus the mean of what each sample adds to it. For accuracy and other means that is exact; for
AUROC, macro-F1 and others the jackknife gives it. Two runs on the same samples are compared sample by sample, so what
is hard for both models does not count as noise of their difference.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.predictions import Predictions
from stratafl.report.gains.gain_intervals import Noise, noise_of_means, pooled
from stratafl.report.jackknife import sample_values
from stratafl.report.outcome import Outcome, is_imported

Array = NDArray[np.float64]
MEANS = ("accuracy", "log_loss", "brier", "mse", "mae")  # over samples
BY_CLASS = ("balanced_accuracy", "macro_f1", "auroc", "auprc", "sensitivity")  # as certain as their rarest class
RANKED = ("auroc", "auprc", "sensitivity")  # of two classes there is one such score, not one for each class
SHARES = ("auroc", "auprc", "ece")  # from 0 to 1 like a metric in per cent
STUDY_SCORES = 40_000_000  # that jackknifes of a whole study compute, if every client has few samples: some seconds


def bound_of(metric: Metric) -> float | None:
    """How large a difference of two scores can be, if there is a limit."""
    return 1.0 if metric.percent or metric.name in SHARES else None


def _kind(metric: Metric) -> str:
    return metric.name.partition("@")[0]


class ClientScores:
    """The scores of a run, client by client, and what each test sample adds to them."""

    def __init__(self, predictions: Predictions, metric: Metric, max_scores: int = STUDY_SCORES) -> None:
        self.predictions, self.metric, self.max_scores = predictions, metric, max_scores
        self.ids, self.place = (x.numpy() for x in predictions.client.unique(return_inverse=True))
        self.samples = np.bincount(self.place, minlength=len(self.ids))

    def pairs_with(self, other: "ClientScores") -> bool:
        """Whether both have the same samples in the same order."""
        first, second = self.predictions, other.predictions
        return torch.equal(first.client, second.client) and torch.equal(first.y, second.y)

    @cached_property
    def values(self) -> Array:
        """The score of each client, NaN where it is undefined."""
        scores = self.predictions.by_client(self.metric)
        return np.array([scores.get(int(client), np.nan) for client in self.ids])

    @cached_property
    def of_samples(self) -> Array:
        """Values of the samples whose mean is the score of their client; NaN where that is undefined."""
        if self.metric.name not in MEANS:
            by_class = _kind(self.metric) in BY_CLASS
            values = sample_values(self.metric, self.predictions, self.max_scores, keep_classes=by_class)
            return np.asarray(values.numpy())
        y, scores = self.predictions.y[:, None], self.predictions.scores[:, None]
        return np.asarray(self.metric(y, scores, torch.ones(y.shape)).numpy())

    @cached_property
    def size(self) -> Array:
        """How many samples the score of each client rests on; with few positives, AUROC rests on these."""
        total = self.samples.astype(np.float64)
        if _kind(self.metric) not in BY_CLASS:
            return total
        classes = self.predictions.scores.shape[1]
        cell = self.place * classes + self.predictions.y.numpy()
        counts = np.bincount(cell, minlength=len(total) * classes).reshape(-1, classes)
        present = counts > 0
        inverse = np.where(present, 1 / np.maximum(counts, 1), 0).sum(axis=1)
        is_one_score = _kind(self.metric) in RANKED and classes == 2
        return np.asarray((1 if is_one_score else present.sum(axis=1) ** 2) / np.maximum(inverse, 1e-300))


def stored_scores(outcomes: Iterable[Outcome]) -> dict[Path, ClientScores]:
    """The scores of runs that have stored predictions, by folder; reports do not run a metric of your own."""
    measurable = (run for run in outcomes if not is_imported(run.metric))
    stored = [(run, predictions) for run in measurable if (predictions := run.predictions)]
    max_scores = STUDY_SCORES // max(1, sum(len(predictions.clients) for _, predictions in stored))
    return {run.folder: ClientScores(predictions, run.metric, max_scores) for run, predictions in stored}


Both = tuple[ClientScores, ClientScores]  # of a method and of training alone with the same seed


def paired_noise(pairs: Sequence[Both], ids: NDArray[np.int64]) -> Noise:
    """The noise of the differences of these clients over seeds, 0 where one has no samples.

    If every seed has the same test samples, what a sample adds to the difference with one seed it adds with all, and
    more seeds do not average it out.
    """
    first = pairs[0][0]
    if all(method.pairs_with(first) for method, _ in pairs):
        return _noise(pairs, ids)
    return pooled([_noise([pair], ids) for pair in pairs])


def _noise(pairs: Sequence[Both], ids: NDArray[np.int64]) -> Noise:
    first = pairs[0][0]
    # Clients without a score get no interval, so it does not matter what stands in for their samples.
    differences = np.nan_to_num(np.stack([method.of_samples - alone.of_samples for method, alone in pairs]))
    noise = noise_of_means(differences, first.place, len(first.ids))[1]._replace(size=first.size)
    whole = np.zeros((len(noise), len(ids)))
    whole[:, np.searchsorted(ids, first.ids)] = np.stack(noise)
    return Noise(*whole)
