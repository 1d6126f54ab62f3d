"""What papers leave open: half, default and double of each such option, on validation samples.

    python examples/open_options.py run --only pfedla,fedlag --on digits,table --to results.jsonl
    python examples/open_options.py rates --only pfedla,local --on digits,table --to results.jsonl
    python examples/open_options.py table results.jsonl

`run` varies the options of a method one at a time, `rates` the local learning rate. Scores are the accuracy of models
as received, after the last round, on a third of each client's samples that nothing is trained on; the test samples are
never looked at. `--mnist`, `--news` and `--cifar100` name npz files of images and of tokens, for the federations of
these names and those of CIFAR-100. A score that is in the file already is not repeated. On a GPU, `--joined 20` trains
20 runs at a time. The tables in docs/results/defaults.md and on the methods' pages are made with it.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stratafl.algorithms import ALGORITHMS
from stratafl.algorithms.flayer import LayerRate
from stratafl.data import Dirichlet, Federation, Scaling, digits_arrays, federate
from stratafl.data.partitions import Partition, PFedLAClasses, PFedLADominant
from stratafl.errors import RecordError
from stratafl.evaluation.evaluate import score_stages
from stratafl.execute import Matrix, simulation
from stratafl.execute.memory import device_of
from stratafl.methods import Algorithm, LocalTraining
from stratafl.models import build
from stratafl.runtime.joining import Joining
from stratafl.runtime.speed import Speed

# Half, default and double of a number; shares stay below 1, and half of one layer is none. Of a text the default first.
OPEN: dict[str, dict[str, tuple[Any, ...]]] = {
    "flayer": {
        "floor": (0.5e-8, 1e-8, 2e-8),
        "s": (1, 2),
        "accuracy": ("train", "validation"),
        "accuracy_of": ("trained", "initialised"),
    },
    "fedper": {"personal": ("none", "head", "last:2"), "initial": ("common", "own")},
    "pfedla": {
        "hyper_step": (0.025, 0.05, 0.1, 0.2, 0.4),
        "embedding": (50, 100, 200),
        "width": (50, 100, 200),
        "depth": (2, 3, 6),
        "initial": ("uniform", "drawn"),
    },
    "heurpfedla": {"hyper_step": (0.025, 0.05, 0.1, 0.2, 0.4), "initial": ("uniform", "drawn")},
    "fedalp": {"groups": (4, 6, 9, None), "warmup_share": (0.25, 0.5, 0.75)},
    "fedlag": {"warmup_share": (0.125, 0.25, 0.5), "k": (0, 1, 2)},
    "confree": {"radius": (0.0, 0.1, 0.25, 0.5)},
    "pfedfda": {"ridge": (0.01, 0.1, 1.0), "epsilon": (1e-4, 1e-2)},
    "fedlc": {"tau": (0.0, 0.25, 0.5, 1.0, 2.0)},
}


@dataclass(frozen=True)
class Setting:
    """A federation of which the clients hold a share of the classes, and how it is trained."""

    clients: Callable[[argparse.Namespace, int], Federation]
    model: str
    options: dict[str, Any]
    train: LocalTraining
    rounds: int


def _federated(x: NDArray[Any], y: NDArray[Any], owners: Any, seed: int, scaling: Scaling | None = None) -> Federation:
    classes = int(y.max()) + 1
    return federate(x, y, owners, classes=classes, validation=0.33, test=0.05, seed=seed, scaling=scaling)


def _digits(given: argparse.Namespace, seed: int, alpha: float = 0.1) -> Federation:
    x, y = digits_arrays()
    return _federated(x, y, Dirichlet(alpha)(y, 20, seed), seed)


def _table(given: argparse.Namespace, seed: int) -> Federation:
    """Twelve sites of 120 rows: each draws its three classes from a linear rule that is partly its own."""
    rng, sites, rows, columns = np.random.default_rng(seed), 12, 120, 12
    shared = rng.normal(size=(columns, 3))
    x = rng.normal(size=(sites, rows, columns)) + rng.normal(size=(sites, 1, columns)) / 2
    rules = shared + 0.8 * rng.normal(size=(sites, columns, 3))
    y = (x @ rules + rng.gumbel(size=(sites, rows, 3))).argmax(-1)
    owners = np.arange(sites * rows).reshape(sites, rows)
    return _federated(x.reshape(-1, columns).astype(np.float32), y.flatten(), list(owners), seed)


def _drawn(given: argparse.Namespace, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Images and texts from a file, `--samples` of them."""
    path = getattr(given, name)
    if path is None:
        raise SystemExit(f"this federation needs its samples: give --{name} FILE.npz with arrays x and y")
    with np.load(path) as file:
        chosen = np.random.default_rng(0).permutation(len(file["y"]))[: given.samples]
        return file["x"][chosen], file["y"][chosen]


def _images(name: str, partition: Partition, clients: int) -> Callable[[argparse.Namespace, int], Federation]:
    def federation(given: argparse.Namespace, seed: int) -> Federation:
        x, y = _drawn(given, name)
        middle = (0.5,) * x.shape[1]
        return _federated(x, y, partition(y, clients, seed), seed, Scaling(middle, middle))

    return federation


def _news(given: argparse.Namespace, seed: int) -> Federation:
    x, y = _drawn(given, "news")
    return _federated(x, y, Dirichlet(0.3)(y, 10, seed), seed)


_LENET, _AS_PFEDLA = {"norm": True}, LocalTraining(lr=0.01, epochs=10, batch=32)
SETTINGS = {
    "digits": Setting(_digits, "mlp", {}, LocalTraining(lr=0.1), 40),
    "digits-05": Setting(partial(_digits, alpha=0.5), "mlp", {}, LocalTraining(lr=0.1), 40),
    "digits-1": Setting(partial(_digits, alpha=1.0), "mlp", {}, LocalTraining(lr=0.1), 40),
    "table": Setting(_table, "mlp", {"hidden": (32, 16)}, LocalTraining(lr=0.1), 40),
    "mnist": Setting(_images("mnist", Dirichlet(0.1), 20), "lenet", {}, LocalTraining(lr=0.05), 20),
    "news": Setting(_news, "fasttext", {}, LocalTraining(lr=1.0), 20),
    "cifar100-1": Setting(_images("cifar100", PFedLAClasses(12), 10), "lenet", _LENET, _AS_PFEDLA, 50),
    "cifar100-2": Setting(_images("cifar100", PFedLADominant(6), 10), "lenet", _LENET, _AS_PFEDLA, 50),
    "cifar100-cnn": Setting(_images("cifar100", Dirichlet(0.1), 20), "cnn", {}, LocalTraining(lr=0.005), 60),
}


def _built(method: str, options: dict[str, Any], train: LocalTraining) -> Algorithm:
    if "floor" in options:  # under the norms in FLAYER's Eq. 4; not an option of the command
        return ALGORITHMS[method](rates=False, train=replace(train, rates=LayerRate(floor=options["floor"])))
    return ALGORITHMS[method](train=train, **options)


def accuracy(name: str, method: str, options: dict[str, Any], lr_factor: float, seed: int, given: Any) -> float:
    """Of the clients' validation samples, by the models that they would start the next round from."""
    setting = SETTINGS[name]
    federation = _shared(name, seed, given)
    shape, classes = tuple(federation.x.shape[1:]), federation.classes
    sim = simulation(
        _built(method, options, replace(setting.train, lr=lr_factor * setting.train.lr)),
        federation,
        lambda: build(setting.model, shape=shape, classes=classes, **setting.options),
        rounds=setting.rounds,
        seed=seed,
        buffers="local" if "norm" in setting.options else "follow",
        device=given.device,
        speed=Speed(given.precision),
    )
    progress = sim.run(Matrix())
    scores = score_stages(sim, progress, torch.arange(sim.setup.clients), ("validation",))["validation.received"]
    return float(scores.hits.sum() / scores.count.sum())


def _shared(name: str, seed: int, given: argparse.Namespace) -> Federation:
    """The federation on its device, which all runs on it use."""
    if (name, seed) not in given.federations:
        given.federations[name, seed] = SETTINGS[name].clients(given, seed).to(device_of(given.device))
    federation: Federation = given.federations[name, seed]
    return federation


def _varied(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for method in given.only.split(","):
        for option in given.options.split(",") if given.options else OPEN[method]:
            values = OPEN[method][option]
            yield from ({"method": method, "option": option, "value": value, "lr": 1.0} for value in values)


def _rated(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for method in given.only.split(","):
        yield from ({"method": method, "option": None, "value": None, "lr": factor} for factor in (0.5, 1.0, 2.0))


def run(given: argparse.Namespace) -> None:
    path = Path(given.to)
    scores = {_key(line) for line in _lines([path])} if path.exists() else set()
    cells, seeds = list(given.cells(given)), map(int, given.seeds.split(","))
    lines = [{"on": name, **cell, "seed": seed} for seed in seeds for name in given.on.split(",") for cell in cells]
    missing = [line for line in lines if _key(line) not in scores]
    Joining(lambda: given.joined, given.precision).drive(partial(_score, line, path, given) for line in missing)


def _score(line: dict[str, Any], path: Path, given: argparse.Namespace) -> None:
    """Run what the line says, and write it with its score; an option that does not fit the model is left out."""
    options = {} if line["option"] is None else {line["option"]: line["value"]}
    try:
        line["accuracy"] = accuracy(line["on"], line["method"], options, line["lr"], line["seed"], given)
    except RecordError as error:  # two personal layers need a model with three
        print(line, error, flush=True)
        return
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(line, flush=True)


def _key(line: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(line[name] for name in ("on", "method", "option", "value", "lr", "seed"))


def _lines(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        yield from map(json.loads, path.read_text(encoding="utf-8").splitlines())


def table(given: argparse.Namespace) -> None:
    """Means over seeds in %, a line for each option and federation."""
    means: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for line in _lines([Path(path) for path in given.files]):
        option, value = (line["option"], line["value"]) if line["option"] else ("train.lr", f"× {line['lr']:g}")
        row = means.setdefault((line["method"], option, line["on"]), {})
        row.setdefault(str(value), []).append(100 * line["accuracy"])
    print("| method | option | on | validation accuracy |\n|---|---|---|---|")
    for (method, option, name), row in sorted(means.items()):
        shown = " · ".join(f"{value}: {np.mean(scores):.1f}" for value, scores in row.items())
        print(f"| {method} | `{option}` | {name} | {shown} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for command, cells in (("run", _varied), ("rates", _rated)):
        running = commands.add_parser(command)
        running.set_defaults(call=run, cells=cells)
        running.add_argument("--only", default=",".join(OPEN))
        running.add_argument("--on", default="digits,table")
        running.add_argument("--options", default="", help="of `run`: these alone")
        running.add_argument("--to", required=True)
        for name in ("mnist", "news", "cifar100"):
            running.add_argument(f"--{name}")
        running.add_argument("--samples", type=int, default=2000, help="of those in a file")
        running.add_argument("--seeds", default="0,1,2")
        running.add_argument("--joined", type=int, default=1, help="runs at a time")
        running.add_argument("--device", default="auto")
        running.add_argument("--precision", default="fp32")
        running.set_defaults(federations={})
    shown = commands.add_parser("table")
    shown.set_defaults(call=table)
    shown.add_argument("files", nargs="+")
    given = parser.parse_args()
    given.call(given)


if __name__ == "__main__":
    main()
