"""Loggers: send the lines of rounds.jsonl to TensorBoard, MLflow or Weights & Biases as they are written.

Their packages are imported only if `log.to` names them.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from stratafl.errors import DamagedError, RunError
from stratafl.evaluation.measure import Line

log = logging.getLogger("stratafl")
PLACED = re.compile(r"((?:new\.)?(?:test|validation)\.\w+)\.(.+)")  # split, stage, and what is measured
FOLDERS = ("tensorboard", "wandb")  # of a run directory, into which loggers write


@dataclass(frozen=True)
class About:
    """The run that is logged: its directory, a unique key that a resumed run keeps, and its tables of settings."""

    folder: Path
    key: str
    tables: Mapping[str, Mapping[str, Any]]

    @property
    def settings(self) -> dict[str, Any]:
        return {f"{name}.{key}": value for name, table in self.tables.items() for key, value in table.items()}

    @property
    def name(self) -> str:
        return f"{self.settings['algorithm.name']}, seed {self.settings['run.seed']}"


class Logger(Protocol):
    """Takes the numbers of each round, once."""

    def log(self, number: int, numbers: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def check_loggers(names: Sequence[str]) -> None:
    """Raise if the package of a logger is not installed."""
    for name in names:
        if not _installed(name):
            raise RunError(f"log.to names '{name}', which is not installed: pip install 'stratafl[{name}]'")


def _installed(name: str) -> bool:
    """Whether the package is installed; each logger has the name of its package."""
    try:
        return find_spec(name) is not None
    except ValueError:  # it is imported, but has no file
        return sys.modules.get(name) is not None


def refuse_linked(folder: Path) -> None:
    """Raise if a logger would write outside of the run directory."""
    for name in FOLDERS:
        if (folder / name).is_symlink():
            raise DamagedError(f"'{folder / name}' is a link, and a run only writes into its own directory: remove it")


class Loggers:
    """All loggers of a run. They open with the first round; one that fails is left out, and the run goes on."""

    def __init__(self, names: Sequence[str], about: About) -> None:
        self._waiting, self._about = list(names), about
        self._open: dict[str, Logger] = {}

    def log(self, line: Line) -> None:
        number = int(line["round"])
        numbers = {k: float(v) for k, v in line.items() if k != "round" and isinstance(v, int | float) and isfinite(v)}
        for name in self._waiting:
            self._attempt(name, number, lambda name=name: self._begin(name, number))
        self._waiting.clear()
        for name, logger in list(self._open.items()):
            self._attempt(name, number, lambda logger=logger: logger.log(number, numbers))

    def close(self) -> None:
        for name, logger in list(self._open.items()):
            self._attempt(name, None, logger.close)
        self._open.clear()

    def _begin(self, name: str, number: int) -> None:
        self._open[name] = _LOGGERS[name](self._about, number)

    def _attempt(self, name: str, number: int | None, action: Any) -> None:
        try:
            action()
        except Exception as error:  # a service may fail in any way
            self._open.pop(name, None)
            since = "at the end" if number is None else f"from round {number} on"
            log.warning("%s is skipped %s: %s", name, since, " ".join(str(error).split()) or type(error).__name__)


def grouped(name: str) -> tuple[str, str]:
    """`test.deployed.accuracy` as its place and what is measured there, which may have dots: `sensitivity@0.95`."""
    match = PLACED.fullmatch(name)
    group, _, last = name.rpartition(".")
    return (match[1], match[2]) if match else (group, last)


class TensorBoard:
    """Event files in the run directory; steps that an interrupted run wrote after its last checkpoint are purged."""

    def __init__(self, about: About, first: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(about.folder / "tensorboard"), purge_step=first if first > 1 else None)

    def log(self, number: int, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a round; `test.deployed.accuracy` stands under `test.deployed`."""
        for name, value in numbers.items():
            group, last = grouped(name)
            self._writer.add_scalar(f"{group}/{last}" if group else last, value, number)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class MLflow:
    """A run in the experiment `stratafl`, wherever MLFLOW_TRACKING_URI says; no round is sent twice."""

    def __init__(self, about: About, first: int) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._metric, self._client = Metric, MlflowClient()
        stored = self._client.get_experiment_by_name("stratafl")
        experiment = str(stored.experiment_id if stored else self._client.create_experiment("stratafl"))
        runs = self._client.search_runs([experiment], filter_string=f"tags.`stratafl.key` = '{about.key}'")
        self._run = str(runs[0].info.run_id) if runs else self._created(experiment, about)
        history = self._client.get_metric_history(self._run, "round")
        self._last = max((entry.step for entry in history), default=0)

    def _created(self, experiment: str, about: About) -> str:
        tags = {"stratafl.key": about.key, "stratafl.folder": str(about.folder)}
        run = str(self._client.create_run(experiment, tags=tags, run_name=about.name).info.run_id)
        for name, value in about.settings.items():
            self._client.log_param(run, name, str(value)[:500])  # MLflow refuses longer ones
        return run

    def log(self, number: int, numbers: Mapping[str, float]) -> None:
        if number > self._last:
            now = int(1000 * time.time())
            metrics: list[Any] = [
                self._metric(k.replace("@", "_at_"), v, now, number)  # MLflow allows no @
                for k, v in {**numbers, "round": number}.items()
            ]
            self._client.log_batch(self._run, metrics=metrics)
            self._last = number

    def close(self) -> None:
        self._client.set_terminated(self._run)


class WeightsAndBiases:
    """A run in the project `stratafl`, unless WANDB_PROJECT or WANDB_MODE say otherwise; no round is sent twice."""

    def __init__(self, about: About, first: int) -> None:
        import wandb

        named = {"project": os.environ.get("WANDB_PROJECT", "stratafl"), "id": about.key, "name": about.name}
        options = {"dir": str(about.folder), "resume": "allow", "reinit": "create_new"}  # beside those of joined runs
        self._run: Any = wandb.init(**named, config=dict(about.settings), **options)
        self._next = int(self._run.step)  # 0, or of a resumed run one more than was sent

    def log(self, number: int, numbers: Mapping[str, float]) -> None:
        if number >= self._next:
            self._run.log(dict(numbers), step=number)
            self._next = number + 1

    def close(self) -> None:
        self._run.finish()


_LOGGERS: dict[str, Callable[[About, int], Logger]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}
