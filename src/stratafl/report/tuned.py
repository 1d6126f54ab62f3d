"""What a tuning came to: `tuning.json`, which `strata tune` writes, as tables and a chart of the learning rate."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stratafl.errors import DamagedError, shown
from stratafl.report.intervals import Spread
from stratafl.runs.json_files import check_table, check_value, read_json

TUNING_RESULT = "tuning.json"
LR = "train.lr"
SIDES = ("inside", "lowest", "highest")


@dataclass(frozen=True)
class TunedTrial:
    """A trial: its settings, how far it ran, and its validation score at the first rung and at its end."""

    number: int
    settings: Mapping[str, Any]
    rounds: int
    steps: int
    first: float | None = None
    score: float | None = None
    failed: str | None = None


@dataclass(frozen=True)
class TunedMethod:
    """A method: its chosen and default settings, its trials, and its test scores by seed with either of them."""

    method: str
    settings: Mapping[str, Any] | None  # None: every trial failed
    default: Mapping[str, Any]
    validation: float | None
    sides: Mapping[str, str] = field(default_factory=dict)  # of each number: inside, lowest or highest of those tried
    widened: bool = False
    left: Sequence[str] = ()  # settings that have a range and were left at their defaults
    trials: Sequence[TunedTrial] = ()
    tuned: Mapping[str, float] = field(default_factory=dict)
    untuned: Mapping[str, float] = field(default_factory=dict)
    metric: str = "accuracy"
    larger: bool = True  # whether a larger value of the metric is better
    percent: bool = True

    @property
    def regression(self) -> bool:
        """Whether its scores are numbers and not shares."""
        return not self.percent

    @property
    def steps(self) -> int:
        return sum(trial.steps for trial in self.trials)

    @property
    def rounds(self) -> int:
        return sum(trial.rounds for trial in self.trials)

    @property
    def failed(self) -> list[TunedTrial]:
        return [trial for trial in self.trials if trial.failed]

    def spread(self, which: str) -> Spread | None:
        """The test score over seeds, `tuned` or `untuned`."""
        values = list(getattr(self, which).values())
        return Spread.of(values) if values else None

    def curve(self) -> list[tuple[float, float, int]]:
        """For each learning rate the best validation score of its trials, and after how many rounds that was.

        Of trials that ran for different numbers of rounds, the one that ran longest counts.
        """
        best: dict[float, TunedTrial] = {}
        for trial in self.trials:
            rate = trial.settings.get(LR)
            if rate is None or trial.score is None or trial.failed:
                continue
            rival = best.get(rate)
            if rival is None or (trial.rounds, self._good(trial)) > (rival.rounds, self._good(rival)):
                best[rate] = trial
        return [(rate, float(best[rate].score or 0.0), best[rate].rounds) for rate in sorted(best)]

    def _good(self, trial: TunedTrial) -> float:
        return (1 if self.larger else -1) * float(trial.score or 0.0)

    def remark(self) -> str:
        """What a reader should know of the choice: values at the end of what was tried, and trials that failed."""
        said = []
        for path, side in self.sides.items():
            again = ", after widening once" if path == LR and self.widened else ""
            if side != "inside":
                said.append(f"{path.removeprefix('algorithm.')} is the {side} tried{again}")
        if self.widened and self.sides.get(LR) == "inside":
            beyond = self.trials[-1].settings[LR]
            said.append(f"the best rate was at the edge, so one more trial went beyond, to {beyond:g}")
        count = len(self.failed)
        said += [f"{count} of {len(self.trials)} trials failed or diverged"] if count else []
        left = ", ".join(path.removeprefix("algorithm.") for path in self.left)
        return "; ".join([*said, *([f"left at its default: {left}"] if left else [])])


def to_table(methods: Sequence[TunedMethod], about: Mapping[str, Any]) -> dict[str, Any]:
    return {**about, "methods": [asdict(each) for each in methods]}


def read_tuning(folder: Path) -> list[TunedMethod]:
    """The result of the tuning in a folder; nothing if there is none."""
    path = folder / TUNING_RESULT
    if not path.is_file():
        return []
    try:
        return [_method(entry) for entry in check_table(read_json(path), {"methods": list})["methods"]]
    except ValueError as error:
        raise DamagedError(f"'{path}' is damaged: {error}; write it again with 'strata resume {folder}'") from error


METHOD: dict[str, Any] = {"method": str, "settings": dict | None, "default": dict, "validation": float | None}
METHOD |= {"sides": dict, "widened": bool, "left": list, "trials": list, "tuned": dict, "untuned": dict}
METHOD |= {"metric": str, "larger": bool, "percent": bool}
NEEDED = ("method", "settings", "default", "validation", "trials")
TRIAL: dict[str, Any] = {"number": int, "settings": dict, "rounds": int, "steps": int}
TRIAL |= {"first": float | None, "score": float | None, "failed": str | None}


def _method(entry: Any) -> TunedMethod:
    """What `to_table` wrote; ValueError says what is wrong with it."""
    usual = {key: value for key, value in asdict(TunedMethod("", {}, {}, None)).items() if key not in NEEDED}
    entry = usual | check_table(entry, METHOD, optional=usual)
    known = [check_table(trial, TRIAL, optional=("first", "score", "failed")) for trial in entry["trials"]]
    trials = [TunedTrial(**{key: trial[key] for key in TRIAL if key in trial}) for trial in known]
    for settings in (entry["settings"] or {}, entry["default"], *(trial.settings for trial in trials)):
        for path, value in settings.items():
            check_value(path, value, float | None if path == LR else float | str | bool | list | None)
    for path, side in entry["sides"].items():
        if side not in SIDES:
            raise ValueError(f"{shown(path)} is {shown(side)}, not one of {', '.join(SIDES)}")
    for path in entry["left"]:
        check_value("a setting in left", path, str)
    for seed, score in (*entry["tuned"].items(), *entry["untuned"].items()):
        check_value(f"the score of seed {seed}", score, float)
    if entry["widened"] and not (trials and trials[-1].settings.get(LR) is not None):
        raise ValueError(f"the trial beyond the edge has no {LR}")
    return TunedMethod(**{**{key: entry[key] for key in METHOD}, "trials": trials})
