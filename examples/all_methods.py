"""Every method of the catalogue on one federation, with the same local steps: the table docs/results/methods.md.

    python examples/all_methods.py run --data digits --to results.jsonl
    python examples/all_methods.py run --data mnist.npz --model cnn --device cuda --part 0/8 --to results-0.jsonl
    python examples/all_methods.py table results*.jsonl

24 clients, of which 4 never take part. Nothing is tuned, so that a method's place says as much about its defaults as
about the method. A run that is in the file already is not repeated.
"""

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from stratafl.algorithms import ALGORITHMS
from stratafl.core.task import Scores
from stratafl.data import Dirichlet, Federation, Scaling, digits_arrays, federate
from stratafl.evaluation.evaluate import score_new_clients, score_stages
from stratafl.execute import Matrix, Simulation, simulation
from stratafl.methods import LocalTraining
from stratafl.models import build

CLIENTS, NEW = 20, 4
ALPHAS, SEEDS = (0.1, 0.5), (0, 1, 2)
# Warm-ups that leave time to act in 30 rounds.
SHORT: dict[str, dict[str, Any]] = {"fedlag": {"warmup": 10}, "fedalp": {"warmup": 10, "groups": 4}}
SHORT |= {"fedavg30local": {"warmup": 10}}


def federation(data: str, alpha: float, seed: int) -> Federation:
    x, y = _arrays(data)
    owners = Dirichlet(alpha)(y, CLIENTS + NEW, seed)
    scaling = Scaling((0.5,), (0.5,)) if x.dtype == np.uint8 else None
    return federate(x, y, owners, classes=10, validation=0.1, seed=seed, name=Path(data).stem, scaling=scaling)


def _arrays(data: str) -> tuple[NDArray[Any], NDArray[Any]]:
    if data == "digits":
        return digits_arrays()
    with np.load(data) as file:
        return file["x"], file["y"]


def made(method: str, given: argparse.Namespace, alpha: float, seed: int, epochs: int) -> Simulation:
    held = federation(given.data, alpha, seed)
    shape = tuple(held.x.shape[1:])
    return simulation(
        ALGORITHMS[method](train=LocalTraining(lr=given.lr, epochs=epochs), **SHORT.get(method, {})),
        held,
        lambda: build(given.model, shape=shape, classes=10),
        rounds=given.rounds,
        seed=seed,
        device=given.device,
        new_clients=NEW,
    )


def result(method: str, given: argparse.Namespace, alpha: float, seed: int) -> dict[str, Any]:
    """Two epochs a round; one, where a method descends twice in a round."""
    sim = made(method, given, alpha, seed, epochs=2)
    first = sim.start()
    after, report = sim.round(first, Matrix())
    steps, usual = _steps(report.notes), _steps_of_fedavg(given, alpha, seed)
    if steps > 1.5 * usual:
        sim = made(method, given, alpha, seed, epochs=1)
        after, report = sim.round(sim.start(), Matrix())
        steps = _steps(report.notes)
    begin = time.perf_counter()
    while after.t < sim.rounds:
        after, report = sim.round(after, Matrix())
    seconds = (time.perf_counter() - begin) / max(1, sim.rounds - 1)
    scores = score_stages(sim, after, torch.arange(CLIENTS), ("test",))
    new = score_new_clients(sim, after, ("test",))
    return {
        **{"method": method, "alpha": alpha, "seed": seed, "data": given.data, "model": given.model, "lr": given.lr},
        **{"rounds": given.rounds, "steps": steps / usual, "seconds": seconds},
        **{f"{stage}": _pooled(scores[f"test.{stage}"]) for stage in ("received", "deployed")},
        "worst": _worst(scores["test.deployed"]),
        **{f"new.{stage}": _pooled(new[f"test.{stage}"]) for stage in ("received", "trained", "deployed")},
        **{"up": report.up.total / CLIENTS, "down": report.down.total / CLIENTS, "device": given.device},
    }


def _steps(notes: Any) -> float:
    return float(sum(value.double().mean() for name, value in notes.items() if name.endswith("/steps")))


_FEDAVG: dict[tuple[float, int], float] = {}


def _steps_of_fedavg(given: argparse.Namespace, alpha: float, seed: int) -> float:
    if (alpha, seed) not in _FEDAVG:
        sim = made("fedavg", given, alpha, seed, epochs=2)
        _FEDAVG[alpha, seed] = _steps(sim.round(sim.start(), Matrix())[1].notes)
    return _FEDAVG[alpha, seed]


def _pooled(scores: Scores) -> float:
    return float(scores.hits.sum() / scores.count.sum())


def _worst(scores: Scores) -> float:
    """The mean accuracy of the tenth of clients that fare worst."""
    accuracy = scores.accuracy.sort().values
    return float(accuracy[: max(1, len(accuracy) // 10)].mean())


def run(given: argparse.Namespace) -> None:
    part, parts = map(int, given.part.split("/"))
    path = Path(given.to)
    done = {(r["method"], r["alpha"], r["seed"]) for r in _lines([path])} if path.exists() else set()
    todo = [(m, a, s) for s in SEEDS for a in ALPHAS for m in given.only.split(",") if m]
    for method, alpha, seed in todo[part::parts]:
        if (method, alpha, seed) in done:
            continue
        try:
            found = result(method, given, alpha, seed)
        except Exception as error:  # the others go on; what failed is in the file
            found = {"method": method, "alpha": alpha, "seed": seed, "error": f"{type(error).__name__}: {error}"}
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")
        print(method, alpha, seed, {k: round(v, 3) for k, v in found.items() if isinstance(v, float)}, flush=True)


def _lines(paths: list[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        yield from (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def table(given: argparse.Namespace) -> None:
    """Means over seeds, best deployed accuracy first."""
    found = [each for each in _lines([Path(path) for path in given.files]) if "error" not in each]
    for alpha in ALPHAS:
        print(f"\n### Dirichlet({alpha})\n")
        print("| method | received | deployed | worst 10 % | new, received | new, deployed | MB up | MB down | steps |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
        by = {m: [r for r in found if r["method"] == m and r["alpha"] == alpha] for m in {r["method"] for r in found}}
        for method, runs in sorted(by.items(), key=lambda each: -_mean(each[1], "deployed")):
            shown = [_percent(runs, "received"), _percent(runs, "deployed", spread=True), _percent(runs, "worst")]
            shown += [_percent(runs, "new.received"), _percent(runs, "new.deployed")]
            shown += [f"{_mean(runs, side) / 1e6:.2f}" for side in ("up", "down")] + [f"{_mean(runs, 'steps'):.1f}"]
            print(f"| {method} | " + " | ".join(shown) + " |")


def _mean(runs: list[dict[str, Any]], key: str) -> float:
    return float(np.mean([each[key] for each in runs])) if runs else float("nan")


def _percent(runs: list[dict[str, Any]], key: str, spread: bool = False) -> str:
    text = f"{100 * _mean(runs, key):.1f}"
    return text + (f" ± {100 * np.std([each[key] for each in runs], ddof=1):.1f}" if spread and len(runs) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    running = commands.add_parser("run")
    running.set_defaults(call=run)
    for name, default in (("data", "digits"), ("model", "mlp"), ("device", "cpu"), ("part", "0/1")):
        running.add_argument(f"--{name}", default=default)
    running.add_argument("--to", required=True)
    running.add_argument("--only", default=",".join(sorted(ALGORITHMS)))
    running.add_argument("--lr", type=float, default=0.05)
    running.add_argument("--rounds", type=int, default=30)
    shown = commands.add_parser("table")
    shown.set_defaults(call=table)
    shown.add_argument("files", nargs="+")
    given = parser.parse_args()
    given.call(given)


if __name__ == "__main__":
    main()
