"""From runs to paired differences and how uncertain their mean is.

Two methods are compared client by client in runs with the same seeds, where both start from the same data, weights and
batches. Whom the difference is about depends on the data. Simulated clients stand for others like them, so other
clients are part of the noise. Clients that the data names, such as hospitals, ask about themselves: then it is other
seeds, and other test samples of these clients. `bootstrap` has the statistics.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from stratafl.evaluation.predictions import Predictions
from stratafl.report.bootstrap import Array, Uncertainty, of_these, uncertainty
from stratafl.report.gains.resampling import ClientScores, paired_noise, replicates_for
from stratafl.report.outcome import Outcome


@dataclass(frozen=True, eq=False)
class ScoredRun:
    """A run, or what another model gives for its test samples: the score and those of its clients."""

    outcome: Outcome
    score: float
    clients: Mapping[int, float]
    tested: ClientScores | None = None  # its test samples, if the data names its clients

    @cached_property
    def samples(self) -> dict[int, int]:
        return self.outcome.test_samples()


Couple = tuple[ScoredRun, ScoredRun]  # of two methods with the same seeds


class StoredScores:
    """The predictions of runs whose data names its clients, read once; nothing for other runs."""

    def __init__(self, outcomes: Sequence[Outcome]) -> None:
        known = [one for one in outcomes if ":" not in one.metric.name and named_clients(one)]  # not your own metric
        found = {one.folder: one.predictions for one in known}
        self.predictions = {folder: each for folder, each in found.items() if each is not None and len(each)}
        self._replicates = replicates_for(known[0].metric, list(self.predictions.values())) if known else 0
        self._scores = {
            one.folder: self.scores(one, self.predictions[one.folder])
            for one in known
            if one.folder in self.predictions
        }

    def scores(self, one: Outcome, given: Predictions) -> ClientScores:
        return ClientScores(given, one.metric, self._replicates)

    def run(self, one: Outcome) -> ScoredRun:
        return ScoredRun(one, one.numbers()["score"], one.by_client(), self._scores.get(one.folder))


def pair_uncertainty(common: Sequence[Couple]) -> Uncertainty | None:
    """Of the differences of two configurations; None without a common seed."""
    if not common:
        return None
    each = [differences(*couple) for couple in common]
    place = {client: at for at, client in enumerate(sorted({client for found in each for client in found}))}
    values, weights = np.zeros((2, len(each), len(place)))
    for row, found in enumerate(each):
        for client, (difference, weight) in found.items():
            values[row, place[client]], weights[row, place[client]] = difference, weight
    populations, named = [run.outcome.population for run, _ in common], named_clients(common[0][0].outcome)
    crossed = len(set(populations)) == 1
    sampled = _sample_variance(common, dict(zip(place, weights.mean(0), strict=True))) if named else None
    if not crossed:
        values, weights = _by_partition(populations, values, weights)
    made = uncertainty(values, weights, crossed)
    return made if sampled is None else of_these(made, *sampled)


def differences(one: ScoredRun, other: ScoredRun) -> dict[int, tuple[float, float]]:
    """Difference and weight by client, such that the weighted mean is the difference of the two scores.

    A mean over clients or samples is that anyway. A metric of all samples together differs from the mean of clients by
    a constant, which is added.
    """
    score = one.score - other.score
    both = [client for client in one.clients if client in other.clients]
    if not both:  # as if the run were a single client
        return {0: (score, 1.0)}
    equal = one.outcome.evaluate.average == "clients"
    weights = {client: 1.0 if equal else float(one.samples[client] or 1) for client in both}
    whole, each = sum(weights.values()), {client: one.clients[client] - other.clients[client] for client in both}
    shift = score - sum(weights[client] * each[client] for client in both) / whole
    return {client: (each[client] + shift, weights[client] / whole) for client in both}


def _by_partition(populations: Sequence[Hashable], values: Array, weights: Array) -> tuple[Array, Array]:
    """Runs with the same clients count as one, with their mean."""
    rows = [[i for i, each in enumerate(populations) if each == one] for one in dict.fromkeys(populations)]
    weighted = weights * values
    sums = [(weighted[some].sum(0), weights[some].sum(0)) for some in rows]
    means = np.array([np.divide(top, below, out=np.zeros_like(top), where=below > 0) for top, below in sums])
    return means, np.array([below for _, below in sums])


def _sample_variance(common: Sequence[Couple], weights: Mapping[int, float]) -> tuple[float, float] | None:
    """The variance of the mean that comes from test samples and that no seed removes, and of how many samples.

    If all seeds have the same test samples, that is all of it. If each seed draws the share f of a client's samples for
    testing, two seeds have the share f of them in common: (1 − f) of the variance is in that between seeds, f is not.
    """
    mine, theirs = ([run.tested for run in side] for side in zip(*common, strict=True))
    known = [(one, other) for one, other in zip(mine, theirs, strict=True) if one is not None and other is not None]
    if len(known) < len(common) or not all(one.pairs_with(other) for one, other in known):
        return None
    first = known[0][0]
    if any(not np.array_equal(one.ids, first.ids) for one, _ in known):
        return None
    shared = all(one.pairs_with(first) for one, _ in known)
    noise = paired_noise(known, first.ids)
    if noise is None:
        return None
    each = noise.variance if shared else _tested_share(common[0][0].outcome) * noise.explained
    few = first.size / np.maximum(first.size - 1, 0.5)  # a bootstrap of n samples has too small a variance
    weight = np.array([weights.get(int(client), 0.0) for client in first.ids])
    return float((weight**2 * few * np.where(weight > 0, each, 0.0)).sum()), float(first.samples.sum())


def _tested_share(one: Outcome) -> float:
    counts = {split: sum(map(sum, rows)) for split, rows in (one.class_counts or {"counts": {}})["counts"].items()}
    return counts.get("test", 0) / sum(counts.values()) if counts else 1.0


def named_clients(one: Outcome) -> bool:
    """Whether clients come with the data and none of them was drawn."""
    return one.config["data"]["partition"] == "auto" and bool(one.client_names)
