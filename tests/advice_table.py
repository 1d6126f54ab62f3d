"""The advised method against every comparable one in full: accuracy on test samples at the selected round.

`PYTHONPATH=src:tests python tests/advice_table.py --seeds 3,4,5 --caution 1` prints the table of docs/results.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from federations import FEDERATIONS, Case
from stratafl.advice import advise
from stratafl.advice.advice import CAUTION
from stratafl.advice.candidates import Candidate
from stratafl.advice.trial import configured
from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.evaluation.predictions import Predictions, stage_predictions
from stratafl.execute import Matrix, simulation

POINT = 0.01
SETTINGS = {"train.lr": 0.4, "train.epochs": 5, "train.batch": 100, "run.rounds": 20}


@dataclass(frozen=True)
class Row:
    """Of one federation: what was advised for each seed, and how far from the best method."""

    federation: str
    advised: list[str]
    score: float
    best: str
    best_score: float
    error: float  # standard error of the difference, over clients and seeds
    share: float  # of the client-steps of running all, the largest

    @property
    def close(self) -> bool:
        return self.best_score - self.score <= max(POINT, self.error)


def judged(
    name: str, make: Callable[[int], Case], settings: Mapping[str, Any], seeds: Sequence[int], caution: float = CAUTION
) -> Row:
    scores: dict[str, list[Predictions]] = {}
    by_seed: list[dict[str, Predictions]] = []
    advised, shares = [], []
    for seed in seeds:
        case, experiment = make(seed), with_values(Experiment(), {**settings, "run.seed": seed})
        found = advise(experiment, federation=case.federation, model=case.model, caution=caution)
        advised.append(found.candidate.name)
        shares.append(found.outcome.steps / found.outcome.full)
        by_seed.append({})
        for each in {each.name: each for each in (*found.comparable, found.candidate)}.values():
            made = in_full(case, experiment, each)
            by_seed[-1][each.name] = made
            scores.setdefault(each.name, []).append(made)
    means = {
        each: np.mean([accuracy(one) for one in found]) for each, found in scores.items() if len(found) == len(seeds)
    }
    best = max(means, key=lambda each: means[each])
    chosen = [by_seed[at][each] for at, each in enumerate(advised)]
    error = standard_error(chosen, scores[best])
    mean = float(np.mean([accuracy(each) for each in chosen]))
    return Row(name, advised, mean, best, float(means[best]), error, max(shares))


def in_full(case: Case, experiment: Experiment, candidate: Candidate) -> Predictions:
    """Predictions for test samples after the round with the best accuracy on validation samples."""
    algorithm, run = algorithm_of(configured(experiment, candidate)), experiment.run
    sim = simulation(algorithm, case.federation, case.model, rounds=run.rounds, seed=run.seed)
    progress, best, kept = sim.start(), -1.0, None
    while progress.t < sim.rounds:
        progress, _ = sim.round(progress, Matrix())
        everybody = torch.arange(sim.setup.clients)
        found = stage_predictions(sim, progress, everybody, ("validation", "test"), ("deployed",))
        if accuracy(found["validation.deployed"]) > best:
            best, kept = accuracy(found["validation.deployed"]), found["test.deployed"]
    sim.runtime.close()
    assert kept is not None
    return kept


def accuracy(predictions: Predictions) -> float:
    return float(predictions.hits().double().mean())


def standard_error(one: Sequence[Predictions], other: Sequence[Predictions]) -> float:
    """Of the mean paired difference: clients of all seeds are drawn anew, 500 times."""
    sums, counts = [], []
    for a, b in zip(one, other, strict=True):
        clients = int(a.client.max()) + 1
        difference = a.hits().double() - b.hits().double()
        sums.append(torch.zeros(clients, dtype=torch.float64).index_add(0, a.client, difference).numpy())
        counts.append(torch.bincount(a.client, minlength=clients).double().numpy())
    total, count, rng = np.concatenate(sums), np.concatenate(counts), np.random.default_rng(0)
    draws = rng.integers(0, len(total), (500, len(total)))
    return float((total[draws].sum(1) / count[draws].sum(1)).std())


def printed(rows: Sequence[Row]) -> str:
    titles = ("federation", "advised", "accuracy", "best in full", "accuracy", "difference", "share of steps", "close")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        gap = f"{100 * (row.score - row.best_score):+.1f} ± {100 * row.error:.1f}"
        cells = [row.federation, ", ".join(row.advised), f"{row.score:.1%}", row.best, f"{row.best_score:.1%}", gap]
        lines.append(f"| {' | '.join([*cells, f'{row.share:.1%}', 'yes' if row.close else 'no'])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--caution", type=float, default=CAUTION)
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    print(printed([judged(name, make, SETTINGS, seeds, given.caution) for name, make in FEDERATIONS.items()]))


if __name__ == "__main__":
    main()
