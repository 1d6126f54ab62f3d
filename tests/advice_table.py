"""The advised method against every comparable one in full: accuracy on test samples at the selected round.

`PYTHONPATH=src:tests python tests/advice_table.py --seeds 3,4,5 --caution 0,1 --store DIR` prints the tables of
docs/results. What is in DIR is not computed again, so it can be stopped; `--full` makes only the full runs. With
`--without METHOD`, that method is no candidate; `--rate` is the learning rate of all.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from federations import FEDERATIONS, Case
from stratafl.advice import Advice, advice, advice_on
from stratafl.advice.candidate_methods import Candidate, comparable
from stratafl.advice.problem import configured
from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.evaluation.predictions import Predictions, stage_predictions
from stratafl.execute import Matrix, simulation

POINT = 0.01
SETTINGS = {"train.lr": 0.4, "train.epochs": 5, "train.batch": 100, "run.rounds": 20}
Scores = dict[str, Any]  # of a method: right answers and test samples of each client


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


class Store:
    """Full runs and advice of each federation and seed, in a folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder, self.settings = folder, dict(settings)
        folder.mkdir(parents=True, exist_ok=True)

    def case(self, name: str, seed: int) -> tuple[Case, Experiment]:
        return FEDERATIONS[name](seed), with_values(Experiment(), {**self.settings, "run.seed": seed})

    def full(self, name: str, seed: int, also: Sequence[Candidate] = ()) -> dict[str, Scores]:
        """The scores of every comparable method, and of others that were advised."""
        file = self.folder / f"{name}-{seed}-full.json"
        found: dict[str, Scores] = json.loads(file.read_text()) if file.exists() else {}
        case, experiment = self.case(name, seed)
        trunks: dict[str, list[Candidate]] = {}
        for each in (*everything(case, experiment), *also):
            if each.name not in found:
                trunks.setdefault(each.trunk, []).append(each)
        for shared in trunks.values():
            found.update(in_full(case, experiment, shared))
            file.write_text(json.dumps(found))
        return found

    def advised(self, name: str, seed: int) -> tuple[dict[str, Any], list[Candidate]]:
        """The best federated method with its expected gain, and the share of client-steps it took."""
        file = self.folder / f"{name}-{seed}-advice.json"
        if not file.exists():
            case, experiment = self.case(name, seed)
            file.write_text(json.dumps(noted(advice_on(experiment, federation=case.federation, model=case.model))))
        found = json.loads(file.read_text())
        return found, [Candidate(found["method"], found["options"])]

    def row(self, name: str, seeds: Sequence[int], caution: float) -> Row:
        by_seed, advised, shares = [], [], []
        for seed in seeds:
            advice, candidates = self.advised(name, seed)
            by_seed.append(self.full(name, seed, candidates))
            advised.append(advice["best"] if advice["gain"] > caution * advice["error"] else "local")
            shares.append(advice["share"])
        everywhere = set.intersection(*map(set, by_seed))
        means = {each: float(np.mean([accuracy(found[each]) for found in by_seed])) for each in everywhere}
        best = max(sorted(means), key=lambda each: means[each])
        chosen = [found[each] for found, each in zip(by_seed, advised, strict=True)]
        error = standard_error(chosen, [found[best] for found in by_seed])
        mean = float(np.mean([accuracy(each) for each in chosen]))
        return Row(name, advised, mean, best, means[best], error, max(shares))


def noted(advice: Advice) -> dict[str, Any]:
    best, tryout = advice.best_federated, advice.tryout
    tried = {each.candidate.name: [each.rounds, each.score, each.expected] for each in tryout.results}
    return {
        "best": best.name,
        "method": best.method,
        "options": dict(best.options),
        "gain": advice.expected.value,
        "error": advice.expected.error,
        "share": tryout.steps / tryout.full,
        "tried": tried,
    }


def everything(case: Case, experiment: Experiment) -> list[Candidate]:
    made = simulation(algorithm_of(experiment), case.federation, case.model, rounds=1)
    layout, clients = made.setup.layout, made.setup.clients
    made.runtime.close()
    return comparable(layout, case.federation.classes, clients, experiment.train.epochs)


def in_full(case: Case, experiment: Experiment, candidates: Sequence[Candidate]) -> dict[str, Scores]:
    """Of candidates that share a training: test scores after the round with the best accuracy on validation samples."""
    run, algorithms = experiment.run, [algorithm_of(configured(experiment, each)) for each in candidates]
    sim = simulation(algorithms[0], case.federation, case.model, rounds=run.rounds, seed=run.seed)
    progress, kept = sim.start(), dict[str, tuple[float, Scores]]()
    everybody = torch.arange(sim.setup.clients)
    while progress.t < sim.rounds:
        progress, _ = sim.round(progress, Matrix())
        for each, algorithm in zip(candidates, algorithms, strict=True):
            deployed = replace(sim, algorithm=algorithm)
            found = stage_predictions(deployed, progress, everybody, ("validation", "test"), ("deployed",))
            validated = accuracy(scored(found["validation.deployed"]))
            if validated > kept.get(each.name, (-1.0,))[0]:
                kept[each.name] = validated, scored(found["test.deployed"])
    sim.runtime.close()
    return {name: scores for name, (_, scores) in kept.items()}


def scored(predictions: Predictions) -> Scores:
    clients = int(predictions.client.max()) + 1
    hits = torch.bincount(predictions.client, predictions.hits().double(), minlength=clients)
    return {"hits": hits.tolist(), "samples": torch.bincount(predictions.client, minlength=clients).tolist()}


def accuracy(scores: Scores) -> float:
    return float(sum(scores["hits"]) / sum(scores["samples"]))


def standard_error(one: Sequence[Scores], other: Sequence[Scores]) -> float:
    """Of the mean paired difference: clients of all seeds are drawn anew, 500 times."""
    total = np.concatenate([np.subtract(a["hits"], b["hits"]) for a, b in zip(one, other, strict=True)])
    count = np.concatenate([a["samples"] for a in one])
    draws = np.random.default_rng(0).integers(0, len(total), (500, len(total)))
    return float((total[draws].sum(1) / count[draws].sum(1)).std())


def printed(rows: Sequence[Row]) -> str:
    titles = ("federation", "advised", "accuracy", "best in full", "accuracy", "difference", "share of steps", "close")
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]
    for row in rows:
        gap = f"{100 * (row.score - row.best_score):+.1f} ± {100 * row.error:.1f}"
        cells = [row.federation, ", ".join(row.advised), f"{row.score:.1%}", row.best, f"{row.best_score:.1%}", gap]
        lines.append(f"| {' | '.join([*cells, f'{row.share:.1%}', 'yes' if row.close else 'no'])} |")
    return "\n".join(lines)


def all_in_full(store: Store, seeds: Sequence[int]) -> str:
    """The mean accuracy of every comparable method, over seeds."""
    found = {name: [store.full(name, seed) for seed in seeds] for name in FEDERATIONS}
    lines = [f"| method | {' | '.join(found)} |", "|---" * (1 + len(found)) + "|"]
    for method in dict.fromkeys(each for scores in found.values() for each in scores[0]):
        runs = [[accuracy(each[method]) for each in scores if method in each] for scores in found.values()]
        cells = [f"{100 * float(np.mean(each)):.1f}" if len(each) == len(seeds) else "" for each in runs]
        lines += [f"| {method} | {' | '.join(cells)} |"] if all(cells) else []
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--caution", default="0,1")
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--without", metavar="METHOD")
    parser.add_argument("--rate", type=float, default=SETTINGS["train.lr"])
    given = parser.parse_args()
    seeds = [int(seed) for seed in given.seeds.split(",")]
    store = Store(given.store, {**SETTINGS, "train.lr": given.rate})
    advice.comparable = lambda *model, **options: [  # type: ignore[assignment]
        each for each in comparable(*model, **options) if each.method != given.without
    ]
    if given.full:
        for seed in seeds:
            for name in FEDERATIONS:
                store.full(name, seed)
        return
    for caution in given.caution.split(","):
        print(f"caution {caution}\n\n{printed([store.row(name, seeds, float(caution)) for name in FEDERATIONS])}\n")
    print(all_in_full(store, seeds))


if __name__ == "__main__":
    main()
