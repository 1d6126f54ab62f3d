"""How good the gains are that `advise` forecasts: against the truth on test samples, over five seeds.

`PYTHONPATH=src:tests python tests/advice_calibration.py --data FOLDER --store DIR` prints the table of guide/advise.md.
FOLDER has folders `mnist`, `ag_news` and `tiny-imagenet` with files as the hub has them. What is in DIR is not computed
again. `--fit` prints the three constants of `advice/forecast.py` from the federations in `FITTED`, `--table` the table
of those in `SHOWN`, which had no part in that.

A forecast is the expected gain of the method that is best by one seed. The truth is that method's mean test score minus
that of training alone, both at the rounds that validation samples select, over all five seeds.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from federations import FEDERATIONS
from hospitals import patients
from stratafl.advice import advice_on
from stratafl.advice.candidate_methods import Candidate
from stratafl.advice.forecast import INTERVAL_ERRORS, best_value, crossed_gain
from stratafl.advice.problem import configured
from stratafl.config.assemble import algorithm_of, simulation_with
from stratafl.config.experiment import Experiment, with_values
from stratafl.config.metric_choice import metric_for, with_metric
from stratafl.data import Federation, Reading, federate, load_samples
from stratafl.data.partitions import Dirichlet
from stratafl.evaluation.predictions import stage_predictions
from stratafl.execute import Matrix
from stratafl.models import MLP, EmbeddingClassifier

SEEDS = range(5)
SMALL_MLP = partial(MLP, hidden=(48,))
LONG_STEPS = {"train.lr": 0.4, "train.epochs": 5, "train.batch": 100}


class CalibrationCase(NamedTuple):
    """A federation with the settings and the model of its training."""

    experiment: Experiment
    federation: Federation
    model: Callable[[], nn.Module]


Make = Callable[[int, Path], CalibrationCase]


def of_digits(name: str, settings: dict[str, Any]) -> Make:
    def make(seed: int, folder: Path) -> CalibrationCase:
        case = FEDERATIONS[name](seed)
        return CalibrationCase(with_values(Experiment(), {**settings, "run.seed": seed}), *case)

    return make


def of_hospitals(settings: dict[str, Any], **options: Any) -> Make:
    def make(seed: int, folder: Path) -> CalibrationCase:
        table = patients(**options)
        x = np.stack(
            [values.astype(np.float32) for name, values in table.items() if name not in ("hospital", "died")], 1
        )
        held = [np.flatnonzero(table["hospital"] == name) for name in np.unique(table["hospital"])]
        whole = federate(x, table["died"].astype(int), held, classes=2, validation=0.1, seed=seed, name="hospitals")
        experiment = with_values(Experiment(), {**settings, "run.seed": seed})
        return CalibrationCase(experiment, whole.standardised("x"), partial(MLP, shape=(x.shape[1],), classes=2))

    return make


def of_published(
    name: str,
    place: str,
    count: int,
    alpha: float,
    clients: int,
    model: Any,
    lr: float,
    *,
    classes: int = 10,
    turned: bool = False,
    **reading: Any,
) -> Make:
    """`count` samples of the first `classes` classes; if `turned`, a third each upright, by 90° and by 180°."""

    def make(seed: int, folder: Path) -> CalibrationCase:
        samples = load_samples(name, Reading(path=str(folder / place), **reading))
        rows = np.random.default_rng(7).permutation(np.flatnonzero(samples.y < classes))[:count]
        x, y = samples.x[np.sort(rows)].copy(), samples.y[np.sort(rows)]
        held = Dirichlet(alpha=alpha, minimum=10, draws=100_000)(y, clients, seed)
        for client, places in enumerate(held if turned else ()):
            x[places] = np.rot90(x[places], client % 3, axes=(-2, -1))
        shares: dict[str, Any] = {"validation": 0.1, "minimum_test": 2, "seed": seed, "name": name}
        whole = federate(x, y, held, classes=int(y.max()) + 1, scaling=samples.scaling, **shares)
        experiment = with_values(Experiment(), {"train.lr": lr, "run.seed": seed})
        return CalibrationCase(experiment, whole, partial(model, shape=tuple(x.shape[1:]), classes=int(y.max()) + 1))

    return make


def of_numbers(seed: int, folder: Path) -> CalibrationCase:
    """A regression of eight sites whose slopes differ."""
    rng, parts = np.random.default_rng(5), list[tuple[Any, Any]]()
    weight = rng.normal(0, 1, 8)
    for _ in range(8):
        count = int(rng.integers(40, 200))
        x = rng.normal(0, 1, (count, 8)) + rng.normal(0, 0.5, 8)
        parts.append((x, x @ (weight + rng.normal(0, 0.5, 8)) + np.sin(2 * x[:, 0]) + rng.normal(0, 1, count)))
    x, y = (np.concatenate(values).astype(np.float32) for values in zip(*parts, strict=True))
    ends = np.cumsum([len(part) for part, _ in parts])
    held = [np.arange(end - len(part), end) for end, (part, _) in zip(ends, parts, strict=True)]
    whole = federate(x, (y - y.mean()) / y.std(), held, validation=0.1, seed=seed, name="numbers")
    experiment = with_values(Experiment(), {"train.lr": 0.02, "run.seed": seed})
    return CalibrationCase(experiment, whole, partial(MLP, shape=(8,), classes=1, hidden=(32,)))


def of_notes(seed: int, folder: Path) -> CalibrationCase:
    """Short texts of ten clinics, of which each uses other words for the two classes."""
    rng, x, y, held = np.random.default_rng(3), list[Any](), list[int](), list[Any]()
    ill, well, other = np.arange(4, 24), np.arange(24, 44), np.arange(44, 120)
    for clinic in range(10):
        count = int(rng.integers(60, 160))
        for _ in range(count):
            y.append(int(rng.random() < 0.35))
            both = rng.choice(other, 12), rng.choice(np.concatenate([ill, well]), 2)
            x.append(np.concatenate([*both, rng.choice((ill if y[-1] else well)[clinic:], 2)]))
        held.append(np.arange(len(y) - count, len(y)))
    whole = federate(np.array(x), np.array(y), held, classes=2, validation=0.1, seed=seed, name="notes")
    experiment = with_values(Experiment(), {"train.lr": 0.5, "run.seed": seed})
    return CalibrationCase(experiment, whole, partial(EmbeddingClassifier, shape=(16,), classes=2, vocabulary=120))


AUROC = {"evaluate.metric": "auroc"}
FITTED: dict[str, Make] = {
    "digits_05": of_digits("skew_05", LONG_STEPS),
    "digits_tiny": of_digits("tiny", {"train.lr": 0.1}),
    "digits_shifted": of_digits("shifted", {"train.lr": 0.1}),
    "six_hospitals": of_hospitals(AUROC, seed=11, hospitals=6, smallest=100, largest=300, differ=0.8),
    "wards": of_hospitals({}, seed=12, hospitals=9, smallest=40, largest=120, differ=0.1),
    "mnist_01": of_published("mnist", "mnist", 1500, 0.1, 15, SMALL_MLP, 0.05),
    "mnist_turned": of_published("mnist", "mnist", 1500, 10, 9, SMALL_MLP, 0.05, turned=True),
    "regression": of_numbers,
    "notes": of_notes,
}
SHOWN: dict[str, Make] = {
    "made_hospitals": of_hospitals(AUROC),
    "digits_01": of_digits("skew_01", {"train.lr": 0.1}),
    "digits_mixture": of_digits("mixture", LONG_STEPS),
    "agnews": of_published(
        "ag-news", "ag_news", 1600, 0.3, 16, partial(EmbeddingClassifier, vocabulary=4000), 1.0, vocabulary=4000
    ),
    "tinyimages": of_published(
        "tiny-imagenet", "tiny-imagenet", 1200, 1.0, 8, partial(MLP, hidden=(64,)), 0.02, size=16
    ),
    "mnist_10": of_published("mnist", "mnist", 800, 1.0, 10, partial(MLP, hidden=(32,)), 0.05),
}


class CalibrationStore:
    """Forecasts and test scores of each federation and seed, in a folder."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data = folder, data
        folder.mkdir(parents=True, exist_ok=True)

    def forecast(self, name: str, seed: int) -> dict[str, Any]:
        file = self.folder / f"{name}-{seed}-forecast.json"
        if not file.exists():
            experiment, federation, model = {**FITTED, **SHOWN}[name](seed, self.data)
            advice = advice_on(experiment, federation=federation, model=model)
            problem, best, alone = advice.tryout.problem, advice.best_federated, advice.tryout.of("local")
            raw = crossed_gain(problem, advice.tryout.finalists, alone)
            lacks = (best_value(problem) or 0.0) - alone.score
            numbers = {"gain": advice.expected.value, "error": advice.expected.error, "lacks": lacks}
            numbers |= {"crossed": raw.value, "crossed_error": raw.error}
            file.write_text(json.dumps({"method": best.method, "options": dict(best.options), **numbers}))
        return dict(json.loads(file.read_text()))

    def scores(self, name: str, seed: int, wanted: Sequence[Candidate]) -> dict[str, float]:
        """Test scores at the selected rounds, larger is better."""
        file = self.folder / f"{name}-{seed}-truth.json"
        stored: dict[str, float] = json.loads(file.read_text()) if file.exists() else {}
        for candidate in wanted:
            if candidate.name not in stored:
                case = {**FITTED, **SHOWN}[name](seed, self.data)
                file.write_text(json.dumps(stored := {**stored, candidate.name: tested_score(case, candidate)}))
        return stored

    def rows(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Of each federation and seed the forecast, with the truth about its method."""
        rows = []
        for name in names:
            forecasts = [self.forecast(name, seed) for seed in SEEDS]
            methods = [Candidate(each["method"], each["options"]) for each in forecasts]
            scores = [self.scores(name, seed, [Candidate("local"), *methods]) for seed in SEEDS]
            for seed, forecast, method in zip(SEEDS, forecasts, methods, strict=True):
                gains = [each[method.name] - each["local"] for each in scores]
                rows.append(
                    {"name": name, "seed": seed, "best": method.name, "truth": float(np.mean(gains)), **forecast}
                )
        return rows


def tested_score(case: CalibrationCase, candidate: Candidate) -> float:
    experiment, federation, model = case
    experiment = with_metric(experiment, federation)
    metric, over = metric_for(experiment.evaluate, federation), experiment.evaluate.average
    sim = simulation_with(experiment, algorithm_of(configured(experiment, candidate)), federation, model)
    progress, best, score = sim.start(), (-float("inf"), 0.0), float("nan")
    while progress.t < sim.rounds:
        progress, _ = sim.round(progress, Matrix())
        splits = stage_predictions(
            sim, progress, torch.arange(sim.setup.clients), ("validation", "test"), ("deployed",)
        )
        validated, tested = splits["validation.deployed"], splits["test.deployed"]
        by = metric.sign * validated.average(metric, over), -float(validated.losses().mean())  # ties: the lower loss
        if by >= best:
            best, score = by, metric.sign * tested.average(metric, over)
    sim.runtime.close()
    return score


def constants(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean and deviation of federations' true gains, and what forecasts miss besides noise, as shares of the error."""
    lacks, crossed, error, truth = (
        np.array([row[key] for row in rows]) for key in ("lacks", "crossed", "crossed_error", "truth")
    )
    names = np.array([row["name"] for row in rows])
    of_federations = np.array([(truth / lacks)[names == name].mean() for name in np.unique(names)])
    usable = np.isfinite(crossed) & np.isfinite(error)
    missed = (((crossed - truth) / lacks) ** 2 - (error / lacks) ** 2)[usable].mean()
    typical, varies = of_federations.mean(), of_federations.std(ddof=1)
    return {"TYPICAL": float(typical), "VARIES": float(varies), "MISSED": float(np.sqrt(max(0.0, missed)))}


def table(rows: Sequence[dict[str, Any]]) -> str:
    lines = ["| federation | best by seeds 0 to 4 | forecast | 90 % interval | truth | covered |", "|---" * 6 + "|"]
    covered = 0
    for name in dict.fromkeys(row["name"] for row in rows):
        of_name = [row for row in rows if row["name"] == name]
        inside = [abs(row["gain"] - row["truth"]) <= INTERVAL_ERRORS * row["error"] for row in of_name]
        covered += sum(inside)
        gain, error, truth = (float(np.mean([row[key] for row in of_name])) for key in ("gain", "error", "truth"))
        each = ", ".join(f"{row['gain']:+.3f}" for row in of_name)
        ends = f"{gain - INTERVAL_ERRORS * error:+.3f} to {gain + INTERVAL_ERRORS * error:+.3f}"
        best = ", ".join(row["best"] for row in of_name)
        lines.append(
            f"| {name} | {best} | {gain:+.3f} ({each}) | {ends} | {truth:+.3f} | {sum(inside)} of {len(inside)} |"
        )
    means = [float(np.mean([row[key] for row in rows])) for key in ("gain", "truth")]
    lines.append(f"| all | | {means[0]:+.3f} | | {means[1]:+.3f} | {covered} of {len(rows)} |")
    return "\n".join(lines).replace("-0", "−0")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--table", action="store_true")
    asked = parser.parse_args()
    store = CalibrationStore(asked.store, asked.data)
    if asked.fit or not asked.table:
        print(constants(store.rows(list(FITTED))))
    if asked.table or not asked.fit:
        print(table(store.rows(list(SHOWN))))


if __name__ == "__main__":
    main()
