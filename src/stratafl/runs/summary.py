"""The summary of a run, from its lines: the selected, best and last round, convergence, targets, when to stop.

The selected round is the one that tables score and whose models are delivered. Everything goes by the run's metric.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from stratafl.config.metric_choice import AUTO, PLAIN, stored_metric
from stratafl.config.setting_tables import EvaluateTable, StopTable
from stratafl.core.reprs import holder
from stratafl.errors import counted
from stratafl.evaluation.measure import EVALUATED, NOT_FINITE, TOTAL, Line
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.execute import Progress
from stratafl.policies.accountant import over_budget

CONVERGED_WITHIN = 0.005  # "converged": within half a point of the best
DEFAULTS = EvaluateTable()  # deployed models, over all samples
BY_LOSS = EvaluateTable(metric="mse")  # whose key is that of every loss
VALIDATED = "validation.deployed"
BROKEN_BEFORE = ("balanced_accuracy", "macro_f1")  # metrics whose ties the loss broke in earlier versions, too


@dataclass(frozen=True)
class Cost:
    """What it took to get to a round."""

    round: int
    seconds: float
    bytes: int


def measured_at(line: Line, place: str, prefix: str, evaluate: EvaluateTable) -> tuple[Metric, float] | None:
    """The metric at `test.deployed` or another place of a line, and its value there."""
    for regression in (False, True) if evaluate.metric in (AUTO, PLAIN) else (False,):
        metric = stored_metric(evaluate, regression)
        value = line.get(f"{place}.{prefix}{metric.key}")
        if value is not None:
            return metric, float(value)
    return None


def quality(line: Line, place: str, prefix: str = "", evaluate: EvaluateTable = DEFAULTS) -> float:
    """How good `test.deployed` or another place is in a line (higher is better): the metric, or minus the metric.

    It is −∞ if most models there are not finite: their score is that of guessing, which some rounds are worse than,
    but a round with sound models is selected before one without.
    """
    measurement = measured_at(line, place, prefix, evaluate)
    models = line.get(EVALUATED) or line.get(TOTAL) or 0
    broken = 2 * (line.get(f"{place}.{NOT_FINITE}") or 0) > models
    return float("-inf") if measurement is None or broken else measurement[0].sign * measurement[1]


def evaluated(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if any(key.startswith(("test.", "validation.")) for key in line)]


def selected(lines: Sequence[Line], evaluate: EvaluateTable = DEFAULTS) -> Line:
    """The round whose deployed models are best on validation data, or without validation the last one."""
    places = [line for line in lines if f"{VALIDATED}.loss" in line]
    return _best_of(places, _validated(places, evaluate), VALIDATED, evaluate) if places else last(lines)


def _best_of(lines: Sequence[Line], good: Callable[[Line], float], place: str, evaluate: EvaluateTable) -> Line:
    """The best line; of equally good ones that with the lowest loss at this place, of these the last."""
    today = evaluate.ties == "loss"
    by_loss = today or (place == VALIDATED and evaluate.metric in BROKEN_BEFORE)

    def order(line: Line) -> tuple[float, float, int]:
        return good(line), quality(line, place, "", BY_LOSS) if by_loss else 0.0, line["round"] if today else 0

    return max(lines, key=order)


def validation_score(lines: Sequence[Line], evaluate: EvaluateTable) -> float | None:
    """How good the round that counts is on validation data, at the stage that counts; None if it was not evaluated.

    Higher is better. It is what a tuning chooses by.
    """
    place = f"validation.{evaluate.stage}"
    judged = [line for line in lines if f"{place}.loss" in line]
    return _validated(judged, evaluate, place)(counting(judged, evaluate)) if judged else None


def _validated(lines: Sequence[Line], evaluate: EvaluateTable, place: str = VALIDATED) -> Callable[[Line], float]:
    """How good a line is on validation data; by the loss if the metric is not defined there, such as for one class."""
    old = evaluate.metric in (AUTO, PLAIN)  # such runs were selected over all samples, whatever their average
    for prefix in dict.fromkeys(("" if old else prefix_of(evaluate), "")):
        if any(isfinite(quality(line, place, prefix, evaluate)) for line in lines):
            return lambda line, prefix=prefix: quality(line, place, prefix, evaluate)  # type: ignore[misc]
    return lambda line: quality(line, place, "", BY_LOSS)


def standing(line: Line, evaluate: EvaluateTable) -> float:
    """`quality` of a line on test samples, of the models and by the average that the settings choose."""
    return quality(line, f"test.{evaluate.stage}", prefix_of(evaluate), evaluate)


def best(lines: Sequence[Line], evaluate: EvaluateTable = DEFAULTS) -> Line:
    """The round that is best on test data: optimistic, but what many papers report."""
    return _best_of(evaluated(lines), lambda line: standing(line, evaluate), f"test.{evaluate.stage}", evaluate)


def counting(lines: Sequence[Line], evaluate: EvaluateTable) -> Line:
    """The round that the settings select."""
    if evaluate.select == "best":
        return best(lines, evaluate)
    return selected(lines, evaluate) if evaluate.select == "validation" else last(lines)


def selected_score(lines: Sequence[Line], evaluate: EvaluateTable) -> float | None:
    """The number that a run is ranked by: its metric on test data at the selected round."""
    return scored(counting(lines, evaluate), evaluate)


def scored(line: Line, evaluate: EvaluateTable) -> float | None:
    """The metric on test data in a line, of the models and by the average that the settings choose."""
    measurement = measured_at(line, f"test.{evaluate.stage}", prefix_of(evaluate), evaluate)
    return None if measurement is None else measurement[1]


def prefix_of(evaluate: EvaluateTable) -> str:
    """What a metric's name in lines begins with, by the average that the settings choose."""
    return "client_" if evaluate.average == "clients" else ""


def last(lines: Sequence[Line]) -> Line:
    return evaluated(lines)[-1]


def cost(lines: Sequence[Line], line: Line) -> Cost:
    """Rounds, seconds of training and server, and bytes both ways, up to and including a round."""
    before = [each for each in lines if each["round"] <= line["round"]]
    seconds = sum(each["seconds.train"] + each["seconds.server"] for each in before)
    return Cost(line["round"], seconds, sum(each["bytes.down"] + each["bytes.up"] for each in before))


def converged(lines: Sequence[Line], evaluate: EvaluateTable = DEFAULTS) -> Cost | None:
    """The cost of the first round within half a point (0.005) of the run's best on test data."""
    top = standing(best(lines, evaluate), evaluate)
    return reached(lines, top - CONVERGED_WITHIN, evaluate) if isfinite(top) else None


def reached(lines: Sequence[Line], target: float, evaluate: EvaluateTable = DEFAULTS) -> Cost | None:
    """The cost of the first round that is this good on test data: the target times the metric's sign."""
    reaching = (line for line in evaluated(lines) if standing(line, evaluate) >= target)
    first = next(reaching, None)
    return None if first is None else cost(lines, first)


def stop_reason(lines: Sequence[Line], stop: StopTable, evaluate: EvaluateTable = DEFAULTS) -> str | None:
    """Why the run ends here, if it does."""
    if lines and (reason := over_budget(lines[-1])):
        return reason
    if stop.target is None and stop.patience is None:
        return None
    judged = evaluated(lines)
    good = _validated(judged, evaluate)
    values = [good(line) for line in judged]
    if not values:
        return None
    if stop.target is not None and (reason := _at_target(judged[-1], stop.target, evaluate)):
        return reason
    patience = stop.patience
    if patience is not None and len(values) > patience:
        recent, before = max(values[-patience:]), max(values[:-patience])
        if recent <= before + stop.margin:
            return f"no gain above {stop.margin:.3f} in {counted(patience, 'evaluated round')}"
    return None


def _at_target(line: Line, target: float, evaluate: EvaluateTable) -> str | None:
    old = evaluate.metric in (AUTO, PLAIN)
    measurement = measured_at(line, VALIDATED, "" if old else prefix_of(evaluate), evaluate)
    if measurement is None:
        return None
    metric, value = measurement
    if (old and metric is METRICS["mse"]) or metric.better(target, value):
        return None
    written = "{:.1%}" if metric.percent else "{:.4g}"
    return f"validation {metric.title} {written.format(value)} reached the target {written.format(target)}"


@holder
class Selection:
    """The line of the selected round so far, and the state after it, which runs of early versions did not keep.

    While a run goes on, the state is a version that copies nothing; the next checkpoint writes it.
    """

    line: Line | None = None
    progress: Progress | None = None

    @staticmethod
    def of(history: Sequence[Line], evaluate: EvaluateTable, progress: Progress | None) -> "Selection":
        """The selection after these rounds; `progress` is the state that was kept, if any."""
        line = counting(history, evaluate) if evaluated(history) else None
        is_kept = line is not None and progress is not None and progress.t == line["round"]
        return Selection(line, replace(progress, trained={}) if progress is not None and is_kept else None)

    def after(self, line: Line, progress: Progress, evaluate: EvaluateTable = DEFAULTS) -> "Selection":
        if not evaluated([line]):
            return self
        better = self.line is None or counting([self.line, line], evaluate) is line
        # Only the run that goes on needs scores of earlier rounds.
        return Selection(line, replace(progress, trained={})) if better else self
