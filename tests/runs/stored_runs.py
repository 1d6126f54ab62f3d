"""Runs that tests share: each kind is made once in a process, and a test that writes gets a copy of its own."""

import os
import shutil
from collections.abc import Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stratafl.config.experiment import Experiment, with_settings
from stratafl.report.outcome import read_outcome
from stratafl.runs import Run
from stratafl.tuning import Tuning, TuningPlan, advance
from stratafl.tuning.tuning_result import write_results

# One step a round: what is tested is the directory.
TINY = ("run.rounds=4", "data.clients=4", "data.partition=iid", "model.hidden=[8]", "train.batch=400", "train.lr=0.05")
_PLACE = TemporaryDirectory(prefix="stored-runs-")


def experiment(*settings: str) -> Experiment:
    return with_settings(Experiment(), [*TINY, "run.checkpoint=1", *settings])


def finish(run: Run) -> Run:
    """To its end, with a guard if it has one."""
    with run:
        list(run.rounds())
        list(run.guarding())
    return run


def whole(folder: Path, *settings: str) -> Run:
    return finish(Run.create(experiment(*settings), folder, trust=True))


def left(folder: Path, rounds: int, *settings: str) -> Path:
    """A run that was interrupted and closed."""
    return shutil.copytree(_left(rounds, *settings), folder)


def abandoned(folder: Path, rounds: int, *settings: str) -> Path:
    """A run whose process ended without a word."""
    return shutil.copytree(_abandoned(rounds, *settings), folder)


@cache
def finished(*settings: str) -> Path:
    """A run that is only read; copy it to change it."""
    return whole(_new_place(), *settings).folder


@cache
def _left(rounds: int, *settings: str) -> Path:
    with Run.create(experiment(*settings), _new_place(), trust=True) as run:
        list(islice(run.rounds(), rounds))
    return run.folder


@cache
def _abandoned(rounds: int, *settings: str) -> Path:
    run = Run.create(experiment(*settings), _new_place(), trust=True)
    list(islice(run.rounds(), rounds))
    os.close(run._lock)
    return run.folder


def _new_place() -> Path:
    return Path(_PLACE.name) / str(len(os.listdir(_PLACE.name)))


# A rate at which nothing is learned for good, so that the best round may be any.
UNSTEADY = ("data.clients=3", "model.hidden=[4]", "train.batch=200", "train.lr=2.5")


@cache
def selected_early() -> tuple[str, ...]:
    """Settings with which a round in the middle is selected that is not as good as the last, whatever the machine."""
    seeds = ((*UNSTEADY, f"run.seed={seed}") for seed in range(20))
    return next(settings for settings in seeds if _is_selected_early(read_outcome(finished(*settings)).numbers()))


def _is_selected_early(numbers: dict[str, float]) -> bool:
    return 1 < numbers["selected_round"] < 4 and numbers["deployed"] != numbers["last"]


TUNED = ("fedavg", "fedprox")
RATES = {"train.lr": [0.01, 0.3, 3.0]}
TUNING = {"model.hidden": [8], "data.clients": 4, "data.partition": "iid", "data.validation": 0.2}
TUNING |= {"train.batch": 400, "run.rounds": 2, "run.checkpoint": 1}


def created(folder: Path, methods: Sequence[str] = TUNED, plan: TuningPlan | None = None, **more: Any) -> Tuning:
    return Tuning.create(
        folder, Experiment(), methods, {**TUNING, **more}, plan or TuningPlan(3, grids=RATES, only=("train.lr",)), 1
    )


@cache
def finished_tuning() -> Path:
    """A tuning that is only read."""
    tuning = created(_new_place())
    assert advance(tuning)
    write_results(tuning)
    return tuning.folder
