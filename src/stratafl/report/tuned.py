"""The result of a tuning: `tuning.json`, which `strata tune` writes, as tables and a chart of the learning rate."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stratafl.errors import DamagedError, shown
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.report import charts
from stratafl.report.charts import Chart, plain_text, rounded, scatter, value_axis
from stratafl.report.formats import NO_VALUE, score_text, spread
from stratafl.report.intervals import Spread
from stratafl.report.report_tables import Cell, ReportTable, text
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
    def like(self) -> Metric:
        """A metric whose values are written like its scores."""
        return METRICS["accuracy" if self.percent else "mse"]

    @property
    def sign(self) -> int:
        """1 or −1: times this, larger values of the metric are better."""
        return 1 if self.larger else -1

    @property
    def is_default(self) -> bool:
        return self.settings == self.default

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
        return self.sign * float(trial.score or 0.0)

    def remark(self) -> str:
        """What a reader should know of the choice: values at the end of what was tried, and trials that failed."""
        remarks = []
        for path, side in self.sides.items():
            again = ", after widening once" if path == LR and self.widened else ""
            if side != "inside":
                remarks.append(f"{path.removeprefix('algorithm.')} is the {side} tried{again}")
        if self.widened and self.sides.get(LR) == "inside":
            beyond = self.trials[-1].settings[LR]
            remarks.append(f"the best rate was at the edge, so one more trial went beyond, to {beyond:g}")
        count = len(self.failed)
        remarks += [f"{count} of {len(self.trials)} trials failed or diverged"] if count else []
        left = ", ".join(path.removeprefix("algorithm.") for path in self.left)
        return "; ".join([*remarks, *([f"left at its default: {left}"] if left else [])])


def to_tuning_table(methods: Sequence[TunedMethod], about: Mapping[str, Any]) -> dict[str, Any]:
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
NEEDED_KEYS = ("method", "settings", "default", "validation", "trials")
TRIAL: dict[str, Any] = {"number": int, "settings": dict, "rounds": int, "steps": int}
TRIAL |= {"first": float | None, "score": float | None, "failed": str | None}


def _method(entry: Any) -> TunedMethod:
    """What `to_table` wrote; ValueError says what is wrong with it."""
    usual = {key: value for key, value in asdict(TunedMethod("", {}, {}, None)).items() if key not in NEEDED_KEYS}
    entry = usual | check_table(entry, METHOD, optional=usual)
    trial_tables = [check_table(trial, TRIAL, optional=("first", "score", "failed")) for trial in entry["trials"]]
    trials = [TunedTrial(**{key: trial[key] for key in TRIAL if key in trial}) for trial in trial_tables]
    for settings in (entry["settings"] or {}, entry["default"], *(trial.settings for trial in trials)):
        for path, value in settings.items():
            check_value(path, value, float | None if path == LR else float | str | bool | list | None)
    for path, side in entry["sides"].items():
        if side not in SIDES:
            raise ValueError(f"{shown(path)} is {shown(side)}, not one of {', '.join(SIDES)}")
    for path in entry["left"]:
        check_value("a setting in left", path, str)
    for seed, value in (*entry["tuned"].items(), *entry["untuned"].items()):
        check_value(f"the score of seed {seed}", value, float)
    if entry["widened"] and not (trials and trials[-1].settings.get(LR) is not None):
        raise ValueError(f"the trial beyond the edge has no {LR}")
    return TunedMethod(**{**{key: entry[key] for key in METHOD}, "trials": trials})


# In a report


def tuning_table(tuned: Sequence[TunedMethod]) -> ReportTable | None:
    """One row per method that was tuned."""
    if not tuned:
        return None
    head = ("method", "chosen", "validation", "test, tuned", "test, untuned", "trials", "notes")
    rows = tuple(_row(method) for method in tuned)
    caption = (
        "Every method was tuned with the same budget on validation data alone; test data was scored afterwards, on "
        "fresh seeds. Untuned: the same seeds with the default settings."
    )
    return ReportTable("tuned", caption, head, rows, left=2, stacked=True)


def _row(method: TunedMethod) -> tuple[Cell, ...]:
    metric, (tuned, untuned) = method.like, (method.spread("tuned"), method.spread("untuned"))
    chosen = ", ".join(f"{_short(key)} = {_value(value)}" for key, value in (method.settings or {}).items())
    cells = [text(method.method), Cell(chosen or NO_VALUE, chosen)]
    cells += [Cell(score_text(method.validation, metric), method.validation)]
    cells += [Cell(spread(tuned, metric), tuned.mean if tuned else None, "strong")]
    cells += [Cell(spread(untuned, metric), untuned.mean if untuned else None)]
    return (*cells, text(len(method.trials)), text(method.remark() or NO_VALUE))


def _short(key: str) -> str:
    return "learning rate" if key == LR else key.removeprefix("algorithm.")


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def rates_chart(tuned: Sequence[TunedMethod]) -> Chart | None:
    """The validation score of each method over the learning rates that were tried; the chosen one is larger."""
    curves = [(method, method.curve()) for method in tuned]
    shown = [(each, points) for each, points in curves if len(points) > 1]
    if not shown:
        return None
    labels = charts.short_labels([each.method for each, _ in shown])
    traces = [_curve(place, *each) for place, each in enumerate(zip(labels, *zip(*shown, strict=True), strict=True))]
    values = [value for _, points in shown for _, value, _ in points]
    layout = {
        "xaxis": {"title": {"text": "learning rate"}, "type": "log"},
        "yaxis": value_axis("validation score", values, share=shown[0][0].percent),
    }
    caption = (
        "The best validation score at each learning rate; the large marker is the rate that was chosen. A method whose "
        "best rate is the lowest or highest tried may be better beyond it. Trials that stopped early had fewer rounds."
    )
    return Chart("rates", "Validation over the learning rate", caption, {"data": traces, "layout": layout})


def _curve(
    place: int, label: str, method: TunedMethod, points: Sequence[tuple[float, float, int]]
) -> dict[str, object]:
    style = charts.line_style(place)
    chosen = (method.settings or {}).get(LR)
    sizes = [13 if rate == chosen else 7 for rate, _, _ in points]
    x, y = [rate for rate, _, _ in points], [rounded(value) for _, value, _ in points]
    form = ".1%" if method.percent else ".4g"
    hover = f"%{{x:g}}: %{{y:{form}}}, %{{customdata}} rounds<extra>%{{fullData.name}}</extra>"
    more = {"line": style["line"], "marker": {**style["marker"], "size": sizes}, "hovertemplate": hover}
    return scatter("lines+markers", x, y, name=plain_text(label), customdata=[r for *_, r in points], **more)
