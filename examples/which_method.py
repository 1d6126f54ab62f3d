"""Which method when: eleven methods over kinds and strengths of difference between clients, and samples per client.

    python examples/which_method.py run --data mnist --to docs/results/which-method/runs.csv
    python examples/which_method.py facts --data mnist --to docs/results/which-method/facts.csv
    python examples/which_method.py summary --to docs/results/which-method

Ten clients hold a part of MNIST, and `--data` names the folder with its files. `run` trains every method for 20 rounds,
with seed 0 at every learning rate and with further seeds at the rate that was best on validation samples of seed 0;
every fifth round is scored. A file that is there is continued. `facts` writes what `strata advise` sees of each
federation, so that it can name those nearest to yours. `summary` writes the two tables from which it does: those facts,
and means over seeds at the chosen rate and at the round that validation samples of each seed chose, with the
differences from training alone and from FedAvg and their standard errors.
"""

import argparse
import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch

from stratafl.advice.look import look
from stratafl.advice.measured import beyond_accident
from stratafl.config.assemble import algorithm_of, federation_to_run, model_of, simulation_with
from stratafl.config.experiment import Experiment, from_tables, with_values
from stratafl.data import Federation
from stratafl.evaluation.evaluate import score_stages
from stratafl.execute import Matrix, Simulation
from stratafl.methods import fedavg

IID = {"partition": "iid"}
KINDS: dict[str, dict[str, Any]] = {
    "alike": IID,
    "label skew, α = 0.5": {"partition": "dirichlet", "alpha": 0.5},
    "label skew, α = 0.1": {"partition": "dirichlet", "alpha": 0.1},
    "rotation by up to 45°": {**IID, "shift": "rotation", "strength": 0.25},
    "rotation by up to 90°": {**IID, "shift": "rotation", "strength": 0.5},
    "domains": {**IID, "shift": "domains", "strength": 1.0},
    "half of the labels permuted": {**IID, "shift": "labels", "strength": 0.5},
}
CLIENTS, HELD_OUT = 10, {"validation": 0.25, "test": 0.5}
SAMPLES = (20, 80, 320)  # for training, a client; four times as many in all
DEPLOYED = ("local", "fedper", "lgfedavg", "fedprior", "fedstrata", "flayer", "fedala", "ifca", "ditto")
STAGES = {  # of each training, the methods that it serves and the stage at which their models are scored
    "fedavgft": {"fedavg": "received", "fedavgft": "deployed"},
    **{name: {name: "deployed"} for name in DEPLOYED},
}
RATES = (0.2, 0.05, 0.025, 0.0125)  # tried from the highest on, until the best is another than the last
LOOK_RATE = 0.2  # of the round of FedAvg after which `facts` looks
LEAST_BATCH, MOST_STEPS = 10, 8  # of an epoch: clients with many samples take larger batches
ROUNDS, EVERY = 20, 5
FIRST_SEED = 0
KEY = ("kind", "samples", "seed", "method", "rate")
Key = tuple[str, int, int, str, float]
SPLITS = ("validation", "test")
SUMMARY, FACTS = (
    Path(__file__).parents[1] / f"src/stratafl/advice/{name}.csv" for name in ("measured", "measured_facts")
)


@cache
def experiment(kind: str, samples: int, seed: int, data: Path) -> Experiment:
    """A federation with its model; the method and its learning rate are set for each run."""
    source = {"name": "mnist", "path": str(data), "subset": 4 * CLIENTS * samples, "clients": CLIENTS}
    run = {"rounds": ROUNDS, "seed": seed, "device": "cpu"}
    model = {"name": "mlp", "hidden": [64]}
    train = {"batch": max(LEAST_BATCH, samples // MOST_STEPS)}
    return from_tables({"data": {**source, **HELD_OUT, **KINDS[kind]}, "run": run, "model": model, "train": train})


@cache
def federation(kind: str, samples: int, seed: int, data: Path) -> Federation:
    return federation_to_run(experiment(kind, samples, seed, data))


def simulation(key: Key, data: Path) -> Simulation:
    kind, samples, seed, method, rate = key
    settings = with_values(experiment(kind, samples, seed, data), {"algorithm.name": method, "train.lr": rate})
    clients = federation(kind, samples, seed, data)
    model = model_of(settings.model, tuple(clients.x.shape[1:]), clients.classes)
    return simulation_with(settings, algorithm_of(settings), clients, model)


def trial(key: Key, data: Path) -> list[dict[str, Any]]:
    """Accuracy over all samples and validation loss, a line for each method of the training and each scored round."""
    *cell, training, rate = key
    sim, lines = simulation(key, data), list[dict[str, Any]]()
    progress = sim.start()
    while progress.t < sim.rounds:
        progress, _ = sim.round(progress, Matrix())
        if progress.t % EVERY == 0:
            stages = STAGES[training]
            scored = score_stages(sim, progress, torch.arange(CLIENTS), SPLITS, tuple(stages.values()))
            for method, stage in stages.items():
                validation, test = (scored[f"{split}.{stage}"] for split in SPLITS)
                shares = [float(each.hits.sum() / each.count.sum()) for each in (validation, test)]
                loss = float(validation.loss.sum() / validation.count.sum())
                numbers = [f"{number:.4f}" for number in (*shares, loss)]
                values = (*cell, method, rate, progress.t, *numbers)
                lines.append(dict(zip((*KEY, "round", *SPLITS, "loss"), values, strict=True)))
    return lines


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def append(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    lines = list(lines)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(lines)


def cells(seeds: Iterable[int]) -> Iterator[tuple[str, int, int]]:
    """Seed by seed, so that a file that is not complete has all kinds."""
    yield from ((kind, samples, seed) for seed in seeds for samples in SAMPLES for kind in KINDS)


def run(options: argparse.Namespace) -> None:
    """All runs of a federation, then the next federation."""
    for cell in cells(options.seeds):
        for training in STAGES:
            while (rate := next_rate(read(options.to), cell, training)) is not None:
                append(options.to, trial((*cell, training, rate), options.data))
        federation.cache_clear()
        print(*cell, flush=True)


def next_rate(lines: list[dict[str, str]], cell: tuple[str, int, int], training: str) -> float | None:
    """The learning rate to run next, if any.

    With the first seed the next lower one, if the lowest so far is the best for a method; then those that its
    validation samples chose for the methods.
    """
    kind, samples, seed = cell
    here = {"kind": kind, "samples": str(samples), "seed": str(seed), "method": next(iter(STAGES[training]))}
    tried = {float(line["rate"]) for line in lines if here.items() <= line.items()}
    if seed == FIRST_SEED and not tried:
        return RATES[0]
    chosen = chosen_rates(lines)
    best = {float(chosen[kind, str(samples), method]) for method in STAGES[training]}
    if seed != FIRST_SEED:
        return next(iter(best - tried), None)
    lower = [rate for rate in RATES if rate not in tried]
    return lower[0] if lower and min(tried) in best else None


def chosen_rates(lines: Iterable[dict[str, str]]) -> dict[tuple[str, str, str], str]:
    """Of each kind, number of samples and method, the learning rate of the first seed's best round."""
    best: dict[tuple[str, str, str], dict[str, str]] = {}
    for line in lines:
        if line["seed"] == str(FIRST_SEED):
            cell = line["kind"], line["samples"], line["method"]
            best[cell] = max(best.get(cell, line), line, key=order)
    return {cell: line["rate"] for cell, line in best.items()}


def order(line: dict[str, str]) -> tuple[float, float]:
    """By which rounds and learning rates are chosen: the accuracy on validation samples, then the loss."""
    return float(line["validation"]), -float(line["loss"])


def facts(options: argparse.Namespace) -> None:
    """Label skew and feature shift as `strata advise` measures them, beyond what accident would give."""
    present = {tuple(line[name] for name in KEY[:3]) for line in read(options.to)}
    for kind, samples, seed in cells(options.seeds):
        if (kind, str(samples), str(seed)) in present:
            continue
        settings = with_values(experiment(kind, samples, seed, options.data), {"train.lr": LOOK_RATE})
        clients = federation(kind, samples, seed, options.data)
        model = model_of(settings.model, tuple(clients.x.shape[1:]), clients.classes)
        sim = simulation_with(settings, fedavg(train=settings.train), clients, model)
        seen, *_ = look(clients, sim, sim.start())
        effects = {"label skew": seen.skew, "feature shift": seen.shift}
        numbers = {name: f"{beyond_accident(effect):.4f}" for name, effect in effects.items()}
        append(options.to, [{"kind": kind, "samples": samples, "seed": seed, **numbers}])


def summary(options: argparse.Namespace) -> None:
    seen = sorted(read(options.to / "facts.csv"), key=lambda row: (int(row["samples"]), [*KINDS].index(row["kind"])))
    for path, lines in ((SUMMARY, summarised(read(options.to / "runs.csv"))), (FACTS, seen)):
        path.unlink(missing_ok=True)
        append(path, lines)


def summarised(lines: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """A line for each federation and method, in the order of their validation accuracy.

    All seeds have the learning rate that the first seed chose, whatever other rates they were run with.
    """
    rate_of = chosen_rates(lines)
    chosen: dict[tuple[str, str], dict[str, dict[str, dict[str, str]]]] = defaultdict(lambda: defaultdict(dict))
    for line in lines:
        kind, samples, method = (line[name] for name in ("kind", "samples", "method"))
        if line["rate"] == rate_of[kind, samples, method]:
            of_seeds = chosen[kind, samples][method]
            of_seeds[line["seed"]] = max(of_seeds.get(line["seed"], line), line, key=order)
    table = []
    for (kind, samples), methods in chosen.items():
        scores = {split: {name: _scores(methods[name], split) for name in methods} for split in SPLITS}
        for name in sorted(methods, key=lambda name: -fmean(scores["validation"][name])):
            tests = scores["test"]
            line = {"kind": kind, "samples": samples, "method": name, "rate": rate_of[kind, samples, name]}
            line["accuracy"] = f"{fmean(tests[name]):.4f}"
            for base in ("local", "fedavg"):
                gains = [mine - its for mine, its in zip(tests[name], tests[base], strict=True)]
                error = stdev(gains) / len(gains) ** 0.5
                line |= {f"over {base}": f"{fmean(gains):.4f}", f"error over {base}": f"{error:.4f}"}
            table.append(line)
    return table


def _scores(of_seeds: dict[str, dict[str, str]], split: str) -> list[float]:
    return [float(of_seeds[seed][split]) for seed in sorted(of_seeds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "facts", "summary"))
    parser.add_argument("--data", type=Path, help="the folder with MNIST")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.what != "summary" and options.data is None:
        parser.error("--data is missing: name the folder with MNIST")
    {"run": run, "facts": facts, "summary": summary}[options.what](options)


if __name__ == "__main__":
    main()
