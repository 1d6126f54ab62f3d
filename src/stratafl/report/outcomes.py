"""The outcome of one run, read from its directory."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from stratafl.config.experiment import EvaluateTable, from_tables, to_tables
from stratafl.core.reprs import short_repr
from stratafl.errors import DamagedError, RunError
from stratafl.evaluation.flagged import diverged, well_formed
from stratafl.evaluation.measure import Line
from stratafl.runs.directory import (
    CONFIG,
    ROUNDS,
    check_committed,
    check_config,
    check_history,
    config_of,
    environment_of,
    is_run,
)
from stratafl.runs.format import CHECKSUMS
from stratafl.runs.journal import read_lines
from stratafl.runs.summary import best, converged, cost, counting, last, score, scored, stop_reason

SCORED = ("test.", "validation.", "new.")
NEEDED = ("round", "bytes.down", "bytes.up", "seconds.train", "seconds.server")


@short_repr
@dataclass(frozen=True)
class Outcome:
    """A run's configuration and its lines."""

    folder: Path
    config: Mapping[str, Any]
    lines: list[Line]
    clients: int  # that took part
    leaks: str | None = None  # what its method is given that it should not be
    checked: bool = True  # whether its lines have checksums, which older runs do not

    @property
    def seed(self) -> int:
        """The seed it was run with."""
        return int(self.config["run"]["seed"])

    @property
    def regression(self) -> bool:
        """Whether it is measured by its loss, because there are no classes."""
        return "test.deployed.accuracy" not in last(self.lines)

    @property
    def stopped(self) -> bool:
        """Whether it ended early, as it was asked to."""
        return stop_reason(self.lines, from_tables({"stop": self.config["stop"]}).stop) is not None

    @property
    def diverged(self) -> bool:
        """Whether its loss became NaN or infinite, while training or on test samples, or every client's upload did."""
        line = last(self.lines)
        lost = any(key in line and line[key] is None for key in ("train.loss", "test.deployed.loss"))
        return lost or diverged(line)

    @property
    def rounds(self) -> int:
        """How many rounds it has behind it."""
        return int(self.lines[-1]["round"])

    @property
    def evaluate(self) -> EvaluateTable:
        """Which of its numbers count."""
        return from_tables({"evaluate": self.config["evaluate"]}).evaluate

    def numbers(self) -> dict[str, float]:
        """All that is reported of a run; shares from 0 to 1, bytes and seconds up to its last round.

        Best, last, convergence and what is said over clients are of the models that count.
        """
        return dict(self._numbers)

    @cached_property
    def _numbers(self) -> dict[str, float]:
        evaluate, place = self.evaluate, f"test.{self.evaluate.stage}"
        chosen, total = counting(self.lines, evaluate), cost(self.lines, self.lines[-1])
        there = converged(self.lines, evaluate)
        numbers = {
            "score": score(self.lines, evaluate),
            "received": _metric(chosen, "test.received"),
            "trained": _metric(chosen, "test.trained"),
            "deployed": _metric(chosen, "test.deployed"),
            "client_mean": _number(chosen, f"{place}.client_accuracy", f"{place}.client_loss"),
            "spread": _number(chosen, f"{place}.std"),
            "worst10": _number(chosen, f"{place}.worst10"),
            "new_received": _metric(chosen, "new.test.received"),
            "new_trained": _metric(chosen, "new.test.trained"),
            "new_deployed": _metric(chosen, "new.test.deployed"),
            "best": scored(best(self.lines, evaluate), evaluate),
            "last": scored(last(self.lines), evaluate),
            "selected_round": chosen["round"],
            "converged_round": there and there.round,
            "converged_seconds": there and there.seconds,
            "converged_bytes": there and there.bytes,
            "bytes": total.bytes,
            "seconds": total.seconds,
            "rounds": self.rounds,
        }
        return {name: float(value) for name, value in numbers.items() if value is not None}


def outcome(folder: Path) -> Outcome:
    """The outcome in a run directory."""
    then = environment_of(folder)
    config = to_tables(config_of(folder))
    check_config(folder / CONFIG, (then.get("identity") or {}).get("config") or config, config)
    path, checked = folder / ROUNDS, then["format"] >= CHECKSUMS
    check_committed(folder, "rounds")
    lines = read_lines(path, summed=checked)
    if not all(isinstance(line.get(key), int | float) for line in lines for key in NEEDED):
        raise DamagedError(f"'{path}' is damaged: a line lacks one of {', '.join(NEEDED)}")
    if not all(isinstance(v, int | float | None) for line in lines for k, v in line.items() if k.startswith(SCORED)):
        raise DamagedError(f"'{path}' is damaged: a score is not a number")
    if not all(map(well_formed, lines)):
        raise DamagedError(f"'{path}' is damaged: what it says of clients that were left out cannot be read")
    check_history(path, lines, len(lines))
    return Outcome(folder, config, lines, int(then.get("clients") or 0), then.get("leaks"), checked)


SQUARED = "mean squared error"  # what models of numbers are scored by, whatever they are trained by


def measure(regression: bool) -> str:
    """What runs are scored by, in words."""
    return f"loss ({SQUARED})" if regression else "accuracy"


_MODELS = {
    "received": "models as received",
    "trained": "models right after training",
    "deployed": "deployed models",
    "global": "the global model",
}


def what_counts(outcomes: Sequence[Outcome], one_by_one: bool = False) -> str:
    """Which models at which round the scores of these runs are of, or the scores of their clients one by one."""
    metric = "loss" if outcomes[0].regression else "accuracy"
    ways = {tuple(one.config["evaluate"][key] for key in ("select", "stage", "average")) for one in outcomes}
    if len(ways) > 1:
        return "of the models and at the round that each run's protocol asks for"
    ((select, stage, average),) = ways
    validated = all("validation.deployed.loss" in last(one.lines) for one in outcomes)
    where = f"at the round with the best validation {metric}" if validated else "at the last round"
    if select != "validation":
        where = "at the round where it is best itself" if select == "best" else "at the last round"
    mean = ", mean over clients," if average == "clients" and not one_by_one else ""
    return f"of {_MODELS[stage]}{mean} {where}"


def run_folders(places: Iterable[Path]) -> list[Path]:
    """All run directories at or below these places."""
    found: list[Path] = []
    for place in places:
        below = (path.parent for path in place.glob("**/config.toml") if not path.parent.name.startswith("."))
        here = [place] if is_run(place) else sorted(path for path in below if is_run(path))
        if not here:
            raise RunError(f"there is no run in '{place}'" if place.exists() else f"there is no folder '{place}'")
        found += [folder for folder in here if folder not in found]
    return found


def _metric(line: Line, place: str) -> float | None:
    return _number(line, f"{place}.accuracy", f"{place}.loss")


def _number(line: Line, *keys: str) -> float | None:
    return next((float(line[key]) for key in keys if line.get(key) is not None), None)
