"""Loggers: send the lines of rounds.jsonl to TensorBoard, MLflow or Weights & Biases as they are written.

Each is a file of this package with a function `opened(about, first)`, and is imported only if `log.to` names it.
"""

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

from stratafl.errors import RunError
from stratafl.evaluation.measure import Line

log = logging.getLogger("stratafl")
FOLDERS = ("tensorboard", "wandb")  # of a run directory, into which loggers write


@dataclass(frozen=True)
class About:
    """The run that is logged: its directory, its settings, and a unique key that a resumed run keeps."""

    folder: Path
    key: str
    settings: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.settings['algorithm.name']}, seed {self.settings['run.seed']}"


class Logger(Protocol):
    """Takes the numbers of each round, once."""

    def log(self, number: int, numbers: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def check(names: Sequence[str]) -> None:
    """Raise if the package of a logger is not installed."""
    for name in names:
        if not _installed(name):
            raise RunError(f"log.to names '{name}', which is not installed: pip install 'stratafl[{name}]'")


class Loggers:
    """All loggers of a run. They open with the first round; one that fails is left out, and the run goes on."""

    def __init__(self, names: Sequence[str], about: About) -> None:
        self._waiting, self._about = list(names), about
        self._open: dict[str, Logger] = {}

    def log(self, line: Line) -> None:
        number, numbers = int(line["round"]), _numbers(line)
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
        self._open[name] = import_module(f"{__name__}.{name}").opened(self._about, number)

    def _attempt(self, name: str, number: int | None, action: Any) -> None:
        try:
            action()
        except Exception as error:  # a service may fail in any way
            self._open.pop(name, None)
            since = "at the end" if number is None else f"from round {number} on"
            log.warning("%s is left out %s: %s", name, since, " ".join(str(error).split()) or type(error).__name__)


def _installed(name: str) -> bool:
    """Whether the package is installed; each logger has the name of its package."""
    try:
        return find_spec(name) is not None
    except ValueError:  # it is imported, but has no file
        return sys.modules.get(name) is not None


def _numbers(line: Line) -> dict[str, float]:
    """The finite numbers of a line."""
    return {k: float(v) for k, v in line.items() if k != "round" and isinstance(v, int | float) and isfinite(v)}
