"""From runs to paired differences and how uncertain their mean is.

Two methods are compared client by client in runs with the same seeds, where both start from the same data, weights and
batches. Whom the difference is about depends on the data. Simulated clients stand for others like them, so other
clients are part of the noise. Clients that the data names, such as hospitals, ask about themselves: then it is other
seeds, and other test samples of these clients. `bootstrap` has the statistics.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from stratafl.report.bootstrap import Array, Uncertainty, of_these, uncertainty
from stratafl.report.gains.sample_noise import ClientScores, paired_noise, stored_scores
from stratafl.report.outcome import Outcome
from stratafl.report.ranking import Rank


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


def scored_runs(ranks: Iterable[Rank]) -> dict[Path, ScoredRun]:
    """The runs that have a score, by folder; with their test samples if the data names their clients."""
    runs = [run for rank in ranks for run in rank.members]
    tested = stored_scores(run for run in runs if named_clients(run))
    return {
        run.folder: ScoredRun(run, run.numbers()["score"], run.by_client(), tested.get(run.folder))
        for run in runs
        if "score" in run.numbers()
    }


def pair_uncertainty(couples: Sequence[Couple]) -> Uncertainty | None:
    """Of the differences of two configurations with common seeds; None without a common seed."""
    if not couples:
        return None
    by_seed = [client_differences(*couple) for couple in couples]
    column = {client: at for at, client in enumerate(sorted({client for seed in by_seed for client in seed}))}
    values, weights = np.zeros((2, len(by_seed), len(column)))
    for row, seed in enumerate(by_seed):
        for client, (difference, weight) in seed.items():
            values[row, column[client]], weights[row, column[client]] = difference, weight
    populations = [run.outcome.population for run, _ in couples]
    sampled = None
    if named_clients(couples[0][0].outcome):
        sampled = _sample_variance(couples, dict(zip(column, weights.mean(0), strict=True)))
    crossed = len(set(populations)) == 1
    if not crossed:
        values, weights = _by_partition(populations, values, weights)
    about_others = uncertainty(values, weights, crossed)
    return about_others if sampled is None else of_these(about_others, *sampled)


def client_differences(first: ScoredRun, second: ScoredRun) -> dict[int, tuple[float, float]]:
    """Difference and weight by client, such that the weighted mean is the difference of the two scores.

    A mean over clients or samples is that anyway. A metric of all samples together differs from the mean of clients by
    a constant, which is added.
    """
    score = first.score - second.score
    both = [client for client in first.clients if client in second.clients]
    if not both:  # as if the run were a single client
        return {0: (score, 1.0)}
    equal = first.outcome.evaluate.average == "clients"
    weights = {client: 1.0 if equal else float(first.samples[client] or 1) for client in both}
    total, apart = sum(weights.values()), {client: first.clients[client] - second.clients[client] for client in both}
    shift = score - sum(weights[client] * apart[client] for client in both) / total
    return {client: (apart[client] + shift, weights[client] / total) for client in both}


def _by_partition(populations: Sequence[Hashable], values: Array, weights: Array) -> tuple[Array, Array]:
    """Runs with the same clients count as one, with their mean."""
    different = dict.fromkeys(populations)
    groups = [[row for row, each in enumerate(populations) if each == population] for population in different]
    weighted = weights * values
    sums = [(weighted[rows].sum(0), weights[rows].sum(0)) for rows in groups]
    means = np.array([np.divide(top, below, out=np.zeros_like(top), where=below > 0) for top, below in sums])
    return means, np.array([below for _, below in sums])


def _sample_variance(couples: Sequence[Couple], weights: Mapping[int, float]) -> tuple[float, float] | None:
    """The variance of the mean that comes from test samples and that no seed removes, and of how many samples.

    If all seeds have the same test samples, that is all of it. If each seed draws the share f of a client's samples for
    testing, two seeds have the share f of them in common: (1 − f) of the variance is in that between seeds, f is not.
    """
    tested = [(first.tested, second.tested) for first, second in couples]
    stored = [(method, other) for method, other in tested if method is not None and other is not None]
    pairs = [(method, other) for method, other in stored if method.pairs_with(other)]
    if len(pairs) < len(couples):
        return None
    first = pairs[0][0]
    if any(not np.array_equal(method.ids, first.ids) for method, _ in pairs):
        return None
    shared = all(method.pairs_with(first) for method, _ in pairs)
    noise = paired_noise(pairs, first.ids)
    lasting = noise.variance if shared else _tested_share(couples[0][0].outcome) * noise.explained
    few = first.size / np.maximum(first.size - 1, 0.5)  # a bootstrap of n samples has too small a variance
    weight = np.array([weights.get(int(client), 0.0) for client in first.ids])
    return float((weight**2 * few * np.where(weight > 0, lasting, 0.0)).sum()), float(first.samples.sum())


def _tested_share(outcome: Outcome) -> float:
    counts = {split: sum(map(sum, rows)) for split, rows in (outcome.class_counts or {"counts": {}})["counts"].items()}
    return counts.get("test", 0) / sum(counts.values()) if counts else 1.0


def named_clients(outcome: Outcome) -> bool:
    """Whether clients come with the data and none of them was drawn."""
    return outcome.config["data"]["partition"] == "auto" and bool(outcome.client_names)
