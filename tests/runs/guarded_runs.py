"""Runs that end with a choice per client."""

from pathlib import Path

from stratafl.config.experiment import Experiment
from stratafl.runs import Run


def finish(run: Run) -> None:
    """Its rounds, then the guard."""
    with run:
        list(run.rounds())
        list(run.guarding())


def finished(experiment: Experiment, folder: Path) -> Path:
    """The folder of a new run that is at its end."""
    finish(Run.create(experiment, folder))
    return folder
