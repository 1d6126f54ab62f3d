"""Why a class prior, layer-wise rates and sparse uploads help each other: FedStrata's parts and controls of its upload.

    python examples/sending_less.py run --on digits-0.1,digits-0.5 --variants prior,rates,most,both --to trials.csv
    python examples/sending_less.py move --on digits-0.5 --to movement.csv
    python examples/sending_less.py table trials.csv

Only validation samples are scored. A trial that is in the file already is not repeated.
"""

import argparse
import csv
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

import torch

from stratafl.algorithms import algorithm
from stratafl.algorithms.fedprior import with_prior
from stratafl.algorithms.flayer import LayerRate, top
from stratafl.config.assemble import federation_to_run, model_of, simulation_with
from stratafl.config.experiment import Experiment, with_values
from stratafl.core.layerwise import Layerwise
from stratafl.data import Federation
from stratafl.evaluation.evaluate import score_stages
from stratafl.execute import Matrix, Simulation
from stratafl.methods import (
    ColumnMask,
    Field,
    LocalTraining,
    Remember,
    Round,
    Send,
    ServerOptimizer,
    State,
    Take,
    Task,
    fedavg,
    field_names,
    record,
    rows_of,
)
from stratafl.runtime.joining import Joining
from stratafl.runtime.speed import Speed

LAYERS = {"model.name": "mlp", "model.hidden": [100, 50]}  # L = 3
FEW = {"data.clients": 20, "data.partition": "dirichlet"}
FEDERATIONS: dict[str, dict[str, Any]] = {
    f"digits-{alpha}": {
        **{"data.name": "digits", "data.alpha": alpha, "data.validation": 0.35, "data.test": 0.05, "run.rounds": 40},
        **FEW,
        **LAYERS,
    }
    for alpha in (0.1, 0.5, 1.0)
}
FEDERATIONS |= {
    f"mnist-{alpha}": {
        **{"data.name": "mnist", "data.subset": 4000, "data.alpha": alpha, "data.validation": 0.5, "data.test": 0.02},
        **{"run.rounds": 25, **LAYERS},
        **FEW,
    }
    for alpha in (0.1, 0.5)
}
FEDERATIONS |= {
    f"{name}-cnn": {**FEDERATIONS[name], "model.name": "lenet", "model.hidden": None}
    for name in ("digits-0.5", "mnist-0.5")
}
FEDERATIONS["notes"] = {
    **{"data.name": "ag-news", "data.subset": 4000, "data.alpha": 0.5, "data.validation": 0.5, "data.test": 0.02},
    **{"data.tokens": "hashed", "data.vocabulary": 2048, "data.length": 64, "run.rounds": 15},
    **{"model.name": "embedding", "model.vocabulary": 2048, **FEW, "train.optimizer": "adam"},
}
FEDERATIONS["hospitals"] = {
    **{"data.name": "hospitals.csv", "data.label": "died_30d", "data.client": "hospital", "data.validation": 0.4},
    **{"data.test": 0.05, "run.rounds": 30, **LAYERS, "model.hidden": [32, 32]},
}
FOLDERS = {"mnist": "mnist", "ag-news": "ag_news"}
RATES: dict[str, tuple[float, ...]] = {
    "mnist-0.1": (0.03, 0.1),
    "mnist-0.5": (0.03, 0.1),
    "notes": (0.003, 0.01, 0.03),
    "hospitals": (0.03, 0.1, 0.3),
}
USUAL_RATES = (0.15, 0.3, 0.6)

# The upload and its controls

Order = Literal["largest", "random", "smallest"]
Shares = Literal["deeper", "equal", "shallower", "first", "last", "all"]
Unsent = Literal["absent", "unchanged"]


@record
class SentPart(Send):
    """A share of each layer's entries, in an order; what is not sent is absent, or counts as unchanged.

    With `damped` every entry is sent, and its change is multiplied by the share of its layer; with `scale` by a number.
    """

    order: Order = "largest"
    shares: Shares = "deeper"
    unsent: Unsent = "absent"
    damped: bool = False
    scale: float = 1.0
    least: float = 0.1
    masked = True
    reads = field_names("theta", "anchor")
    writes = field_names("up.theta", "up.samples")

    def share(self, i: int, L: int) -> float:
        deeper = min(max(i / L, self.least), 1.0)
        return {
            **{"deeper": deeper, "shallower": min(max((L + 1 - i) / L, self.least), 1.0), "all": 1.0},
            "equal": sum(max(j / L, self.least) for j in range(1, L + 1)) / L,
            "first": deeper if i <= L / 2 else 1.0,  # only the first half of the layers is sent in part
            "last": deeper if i > L / 2 else 1.0,
        }[self.shares]

    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        layout, theta, start = rnd.layout, rows_of(client, "theta"), rows_of(client, "anchor")
        rows = {name: theta[name] for name in layout.travelling("all")}
        sent = {name: torch.ones_like(x, dtype=torch.bool) for name, x in rows.items()}
        L = max(layout.units) + 1
        for i in range(1, L + 1):
            names = [name for name in layout.trainable("all") if layout.units[layout.specs[name].layer] == i - 1]
            share = self.share(i, L)
            if self.damped or self.scale != 1:
                factor = share if self.damped else self.scale
                rows |= {n: start[n] + factor * (theta[n] - start[n]) for n in names}
            else:
                sent |= top({n: self.worth(rnd, theta[n] - start[n], i + j) for j, n in enumerate(names)}, share)
        if self.unsent == "unchanged":
            rows, sent = {n: torch.where(sent[n], x, start[n]) for n, x in rows.items()}, {}
        mask = ColumnMask(sent) if sent else None
        return {"theta": Field(rows, mask=mask), "samples": Field(task.sizes("train"))}

    def worth(self, rnd: Round, change: torch.Tensor, place: int) -> torch.Tensor:
        """Entries with the largest values are sent."""
        if self.order == "random":
            draws = torch.Generator().manual_seed(1_000_003 * rnd.t + 101 * place + rnd.setup.seeds.batches)
            return torch.rand(change.shape, generator=draws)
        return change.abs() if self.order == "largest" else -change.abs()


def strata(
    train: LocalTraining, part: SentPart | None = None, rates: bool = False, smoothing: float | None = 1.0, **merge: Any
) -> Layerwise:
    """FedAvg with priors, and as is said with layer-wise rates, a part of the upload, and a server optimiser."""
    descent = replace(train, rates=(LayerRate(),)) if rates else train
    sent = {} if part is None else {"mix": (Take(), Remember()), "send": (part,)}
    merged = {"merge": (ServerOptimizer(**merge),)} if merge else {}
    method = replace(fedavg(train=descent), **sent, **merged)
    return method if smoothing is None else with_prior(method, smoothing=smoothing)


Variant = Callable[[LocalTraining], Any]


def _variant(**options: Any) -> Variant:
    return lambda train: strata(train, **options)


def _composed(name: str, **options: Any) -> Variant:
    return lambda train: algorithm(name, train=train, **options)


MOST = SentPart()
DESIGN: dict[str, Variant] = {
    "prior": _variant(),
    "rates": _variant(rates=True),
    "most": _variant(part=MOST),
    "both": _variant(part=MOST, rates=True),
    "guided": _composed("fedprior+flayer"),
    "guide": _composed("fedprior+flayer", rates=False, mask=False),
    "fedala-prior": _composed("fedala+prior"),
    "fedala-both": _composed("fedala+prior+flayer"),
    "no-prior": _variant(part=MOST, rates=True, smoothing=None),
}
OTHERS = {name: _composed(name) for name in ("fedavg", "flayer", "fedala", "local")}
FINE: dict[str, Variant] = {f"s-{s}": _variant(part=MOST, rates=True, smoothing=s) for s in (0.1, 0.3, 3.0, 10.0)}
FINE |= {f"least-{q}": _variant(part=SentPart(least=q), rates=True) for q in (0.05, 0.3, 0.5)}
CONTROLS: dict[str, Variant] = {
    "random": _variant(part=SentPart("random")),
    "smallest": _variant(part=SentPart("smallest")),
    "unchanged": _variant(part=SentPart(unsent="unchanged")),
    "damped": _variant(part=SentPart(damped=True)),
    "half": _variant(part=SentPart(scale=0.5)),
    "double": _variant(part=SentPart(scale=2.0)),
    "momentum": _variant(optimizer="momentum", beta1=0.5, lr=1.0),
    "equal": _variant(part=SentPart(shares="equal")),
    "shallower": _variant(part=SentPart(shares="shallower")),
    "first": _variant(part=SentPart(shares="first")),
    "last": _variant(part=SentPart(shares="last")),
}
VARIANTS = {**DESIGN, **OTHERS, **FINE, **CONTROLS}
TRIAL = ("federation", "variant", "rate", "seed")


def experiment_of(name: str, seed: int, rate: float, data: Path | None) -> Experiment:
    settings = {"run.device": "cpu", "run.seed": seed, "train.lr": rate, **FEDERATIONS[name]}
    if data is not None and settings["data.name"] in FOLDERS:
        settings["data.path"] = str(data / FOLDERS[settings["data.name"]])
    if data is not None and name == "hospitals":
        settings["data.name"] = str(data / settings["data.name"])
    return with_values(Experiment(), {key: value for key, value in settings.items() if value is not None})


@cache
def _federation(name: str, seed: int, data: Path | None) -> Federation:
    return federation_to_run(experiment_of(name, seed, 0.1, data))


def simulation_of(name: str, variant: str, rate: float, seed: int, data: Path | None) -> Simulation:
    experiment, federation = experiment_of(name, seed, rate, data), _federation(name, seed, data)
    model = model_of(experiment.model, tuple(federation.x.shape[1:]), federation.classes)
    method = VARIANTS[variant](experiment.train)
    return simulation_with(experiment, method, federation, model, speed=Speed(graphs="on"))


def trial(name: str, variant: str, rate: float, seed: int, data: Path | None) -> list[dict[str, Any]]:
    sim = simulation_of(name, variant, rate, seed, data)
    progress, lines = sim.start(), []
    while progress.t < sim.rounds:
        progress, _ = sim.round(progress, Matrix())
        if progress.t in (sim.rounds // 3, 2 * sim.rounds // 3, sim.rounds):
            ids = torch.arange(sim.setup.clients)
            scores = score_stages(sim, progress, ids, ("validation",), ("deployed",))["validation.deployed"]
            hits, loss = float(scores.hits.sum() / scores.count.sum()), float(scores.loss.sum() / scores.count.sum())
            key = dict(zip(TRIAL, (name, variant, rate, seed), strict=True))
            lines.append({**key, "round": progress.t, "accuracy": round(hits, 5), "loss": round(loss, 5)})
    return lines


def run(given: argparse.Namespace) -> None:
    path = Path(given.to)
    known = {tuple(line[c] for c in TRIAL) for line in read([path])} if path.exists() else set()
    rates = [float(rate) for rate in given.rates.split(",") if rate]
    keys = [
        (name, variant, rate, seed)
        for seed in map(int, given.seeds.split(","))
        for name in given.on.split(",")
        for rate in rates or RATES.get(name, USUAL_RATES)
        for variant in given.variants.split(",")
    ]
    works = [partial(_work, path, key, given.data) for key in keys if tuple(map(str, key)) not in known]
    Joining(lambda: given.joined).drive(iter(works))  # their clients take their steps together


def _work(path: Path, key: tuple[str, str, float, int], data: Path | None) -> None:
    write(path, trial(*key, data))


def read(paths: list[Path]) -> list[dict[str, str]]:
    lines = []
    for path in paths:
        with path.open(encoding="utf-8", newline="") as file:
            lines += list(csv.DictReader(file))
    return lines


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]))
        if new:
            writer.writeheader()
        writer.writerows(lines)


# How far the server moves


def move(given: argparse.Namespace) -> None:
    """From the same states of a run of `prior`, one round with plain and one with other uploads: steps by layer."""
    for name in given.on.split(","):
        for seed in map(int, given.seeds.split(",")):
            _move(name, seed, given)


def _move(name: str, seed: int, given: argparse.Namespace) -> None:
    plain = simulation_of(name, "prior", given.rate, seed, given.data)
    others = {v: simulation_of(name, v, given.rate, seed, given.data) for v in ("most", "random", "unchanged", "rates")}
    progress = plain.start()
    for t in range(plain.rounds):
        after, _ = plain.round(progress, Matrix())
        if t + 1 in (1, 5, 10, 20, plain.rounds):
            start, usual = (rows_of(p.server, "theta") for p in (progress, after))
            for variant, sim in others.items():
                moved = rows_of(sim.round(replace(progress, clients=sim.start().clients), Matrix())[0].server, "theta")
                write(Path(given.to), _steps(plain, start, usual, moved, (name, variant, given.rate, seed, t + 1)))
        progress = after


def _steps(sim: Simulation, start: Any, usual: Any, moved: Any, key: tuple[Any, ...]) -> list[dict[str, Any]]:
    layout, lines = sim.setup.layout, []
    for unit in range(max(layout.units) + 1):
        names = [n for n in layout.trainable("all") if layout.units[layout.specs[n].layer] == unit]
        a, b = (torch.cat([(x[n] - start[n]).double().flatten() for n in names]) for x in (usual, moved))
        lines.append(
            {
                **dict(zip((*TRIAL, "round"), key, strict=True)),
                "layer": unit + 1,
                "length": round(float(b.norm() / a.norm()), 4),
                "cosine": round(float(a @ b / (a.norm() * b.norm()).clamp(min=1e-30)), 4),
                "moved": round(float((b != 0).double().mean()), 4),
            }
        )
    return lines


# Tables


def best(lines: list[dict[str, str]], metric: str = "accuracy") -> dict[tuple[str, str], tuple[str, dict[str, float]]]:
    """By federation and variant: the rate with the best mean over seeds after the last round, and the score of each."""
    ends = {x["federation"]: 0 for x in lines}
    ends = {name: max(int(x["round"]) for x in lines if x["federation"] == name) for name in ends}
    scores: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for x in lines:
        if int(x["round"]) == ends[x["federation"]]:
            by_rate = scores.setdefault((x["federation"], x["variant"]), {})
            by_rate.setdefault(x["rate"], {})[x["seed"]] = float(x[metric])
    return {key: _best_rate(by_rate, -1 if metric == "loss" else 1) for key, by_rate in scores.items()}


def _best_rate(by_rate: Mapping[str, dict[str, float]], sign: int) -> tuple[str, dict[str, float]]:
    """Among the rates that were run with the most seeds."""
    most = max(map(len, by_rate.values()))
    complete = {rate: scores for rate, scores in by_rate.items() if len(scores) == most}
    rate = max(complete, key=lambda r: sign * mean(complete[r].values()))
    return rate, complete[rate]


def table(given: argparse.Namespace) -> None:
    """What docs/results/fedstrata/summary.csv holds: scores in % and differences from `prior` of the same seeds."""
    lines, seeds = read([Path(file) for file in given.files]), given.seeds.split(",")
    chosen = best([line for line in lines if line["seed"] in seeds], given.metric)
    factor = 1 if given.metric == "loss" else 100
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("federation", "variant", "rate", "seeds", given.metric, "difference", "deviation"))
    for (name, variant), (rate, scores) in chosen.items():
        plain = chosen[name, "prior"][1]
        gains = [factor * (scores[seed] - plain[seed]) for seed in scores if seed in plain]
        deviation = f"{stdev(gains):.2f}" if len(gains) > 1 else ""
        score = factor * mean(scores.values())
        writer.writerow((name, variant, rate, len(scores), f"{score:.2f}", f"{mean(gains):.2f}", deviation))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, call in (("run", run), ("move", move)):
        each = commands.add_parser(name)
        each.set_defaults(call=call)
        each.add_argument("--on", required=True, help=", ".join(FEDERATIONS))
        each.add_argument("--to", required=True)
        each.add_argument("--seeds", default="0,1,2")
        each.add_argument("--data", type=Path)
        each.add_argument(
            "--rates", default="", help="learning rates, separated by commas; else those of the federation"
        )
        each.add_argument("--joined", type=int, default=12, help="how many trials run together")
        each.add_argument("--rate", type=float, default=0.1)
        each.add_argument("--variants", default=",".join(DESIGN), help=", ".join(VARIANTS))
    shown = commands.add_parser("table")
    shown.set_defaults(call=table)
    shown.add_argument("--metric", default="accuracy")
    shown.add_argument("--seeds", default="0,1,2")
    shown.add_argument("files", nargs="+")
    given = parser.parse_args()
    torch.set_num_threads(1)
    given.call(given)


if __name__ == "__main__":
    main()
