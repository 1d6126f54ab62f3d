"""Clients that differ in several ways, on the digits: where to cut a model, and which method is best.

    python examples/differences.py cuts --out docs/results/cuts/cuts.csv
    python examples/differences.py race --out docs/results/kinds/race.csv

`cuts` runs every cut of an MLP of four layers for 30 rounds, beside the cuts that two rules choose after one epoch. A
cut of c shares the first c layers: 0 is training alone, 4 is FedAvg. Its score is the validation accuracy of deployed
models, the best of every fifth round. `race` runs ten methods at their defaults for 20 rounds; the round is chosen on
validation samples, and the score is its test accuracy. Runs that the file has are not repeated. A federation and seed
take about a CPU minute.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stratafl.advice.cuts import cut_layers
from stratafl.advice.look import look
from stratafl.config.assemble import algorithm_of, federation_of, model_of, simulation_with
from stratafl.config.experiment import Experiment, from_tables
from stratafl.core.algorithm import Algorithm
from stratafl.evaluation.measure import Line
from stratafl.evaluation.trial import Trial
from stratafl.methods import LocalTraining, fedavg, fedper, local

IID, SKEWED = {"partition": "iid"}, {"partition": "dirichlet", "alpha": 0.1}
KINDS: dict[str, dict[str, Any]] = {
    "alike": IID,
    "label skew": SKEWED,
    "rotation": {**IID, "shift": "rotation", "strength": 0.5},
    "domains": {**IID, "shift": "domains", "strength": 0.5},
    "concept shift": {**IID, "shift": "labels", "strength": 0.5},
}
UNEVEN: dict[str, dict[str, Any]] = {"uneven sizes": {"partition": "quantity", "spread": 1.5}}
DROPPING = {"label skew, half drop out": SKEWED}
METHODS = ["local", "fedavg", "fedavgft", "fedper", "fedrep", "lgfedavg", "fedprior", "flayer", "ifca", "ditto"]
CUT_COLUMNS = ("federation", "seed", "cut", "accuracy", "PLayer-FL", "conflicts")
RACE_COLUMNS = ("federation", "seed", "method", "round", "accuracy", "worst10")
Rows = list[dict[str, Any]]


def experiment(federation: str, seed: int, rounds: int, method: str = "fedavg", **model: Any) -> Experiment:
    """Ten clients, with a quarter of the samples for validation."""
    held_out = {"clients": 10, "validation": 0.25, "test": 0.25}
    run = {"rounds": rounds, "seed": seed, "drop": 0.5 if federation in DROPPING else 0.0}
    data = {**held_out, **{**KINDS, **UNEVEN, **DROPPING}[federation]}
    return from_tables({"algorithm": {"name": method}, "data": data, "run": run, "model": {"name": "mlp", **model}})


def lines(settings: Experiment, method: Algorithm, **options: Any) -> Iterator[Line]:
    """The line of every round."""
    samples = federation_of(settings)
    model = model_of(settings.model, tuple(samples.x.shape[1:]), samples.classes)
    trial = Trial(simulation_with(settings, method, samples, model), **options)
    progress = trial.sim.start()
    while progress.t < trial.rounds:
        progress, entry = trial.round(progress)
        yield entry.round


def every_cut(federation: str, seed: int) -> Rows:
    """A row for each cut, with the cuts that the rules choose."""
    settings, train = experiment(federation, seed, 30, hidden=[64, 64, 64]), LocalTraining(lr=0.1)
    samples = federation_of(settings)
    model = model_of(settings.model, tuple(samples.x.shape[1:]), samples.classes)
    first = simulation_with(settings, fedavg(train=train), samples, model)
    cuts = {cut.rule: cut.shared for cut in look(samples, first, first.start())[0].cuts}
    layers = len(cut_layers(first.setup.layout))
    methods = [fedper(personal=f"last:{layers - cut}", train=train) for cut in range(1, layers)]
    methods = [local(train=train), *methods, fedavg(train=train)]
    key = "validation.deployed.accuracy"
    best = [max(line.get(key, 0.0) for line in lines(settings, each, every=5, test=False)) for each in methods]
    common = {"federation": federation, "seed": seed, **cuts}
    return [{**common, "cut": cut, "accuracy": f"{accuracy:.4f}"} for cut, accuracy in enumerate(best)]


def every_method(federation: str, seed: int) -> Rows:
    """A row for each method, with the round that has the best validation accuracy, or of equal ones the best loss."""
    rows: Rows = []
    for method in METHODS:
        settings = experiment(federation, seed, 20, method)
        place = "validation.deployed"
        best = max(
            lines(settings, algorithm_of(settings)),
            key=lambda line: (line[f"{place}.accuracy"], -line[f"{place}.loss"]),
        )
        scores = {
            "accuracy": f"{best['test.deployed.accuracy']:.4f}",
            "worst10": f"{best['test.deployed.worst10']:.4f}",
        }
        rows.append({"federation": federation, "seed": seed, "method": method, "round": best["round"], **scores})
    return rows


def main() -> None:
    """Add the runs that are missing to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cuts", "race"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    is_race = options.what == "race"
    columns, run = (RACE_COLUMNS, every_method) if is_race else (CUT_COLUMNS, every_cut)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: Rows = list(csv.DictReader(options.out.open())) if options.out.exists() else []
    present = {(row["federation"], int(row["seed"])) for row in rows}
    federations = [*KINDS, *UNEVEN, *DROPPING] if is_race else [*KINDS]
    for federation, seed in ((federation, seed) for seed in options.seeds for federation in federations):
        if (federation, seed) in present:
            continue
        rows += run(federation, seed)
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(rows)
        print(*rows[-1].values(), flush=True)


if __name__ == "__main__":
    main()
