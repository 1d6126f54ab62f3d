"""What a run came to, from its lines: the selected, best and last round, convergence, targets, when to stop.

The selected round is the one that tables score and whose models are delivered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from stratafl.config.tables import EvaluateTable, StopTable
from stratafl.core.reprs import short_repr
from stratafl.errors import counted
from stratafl.evaluation.measure import Line
from stratafl.execute import Progress

CLOSE = 0.005  # "converged": within half a point of the best
USUAL = EvaluateTable()  # deployed models, over all samples


@dataclass(frozen=True)
class Cost:
    """What it took to get to a round."""

    round: int
    seconds: float
    bytes: int


def quality(line: Line, place: str, prefix: str = "") -> float:
    """How good `test.deployed` or another place is in a line (higher is better): accuracy, or minus the loss."""
    accuracy = line.get(f"{place}.{prefix}accuracy")
    if accuracy is not None:
        return float(accuracy)
    loss = line.get(f"{place}.{prefix}loss")
    return -float(loss) if loss is not None else float("-inf")


def evaluated(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if any(key.startswith(("test.", "validation.")) for key in line)]


def selected(lines: Sequence[Line]) -> Line:
    """The round with the best validation accuracy of deployed models, or without validation the last one."""
    places = [line for line in lines if "validation.deployed.loss" in line]
    return max(places, key=lambda line: quality(line, "validation.deployed")) if places else last(lines)


def standing(line: Line, evaluate: EvaluateTable) -> float:
    """`quality` of a line on test samples, of the models and by the average that the settings choose."""
    return quality(line, f"test.{evaluate.stage}", _prefix(evaluate))


def best(lines: Sequence[Line], evaluate: EvaluateTable = USUAL) -> Line:
    """The round with the best test accuracy: optimistic, but what many papers report."""
    return max(evaluated(lines), key=lambda line: standing(line, evaluate))


def counting(lines: Sequence[Line], evaluate: EvaluateTable) -> Line:
    """The round that the settings select."""
    if evaluate.select == "best":
        return best(lines, evaluate)
    return selected(lines) if evaluate.select == "validation" else last(lines)


def score(lines: Sequence[Line], evaluate: EvaluateTable) -> float | None:
    """The number that a run is ranked by: test accuracy (or loss) at the selected round."""
    return scored(counting(lines, evaluate), evaluate)


def scored(line: Line, evaluate: EvaluateTable) -> float | None:
    """The test accuracy (or loss) in a line, of the models and by the average that the settings choose."""
    found = (line.get(f"test.{evaluate.stage}.{_prefix(evaluate)}{name}") for name in ("accuracy", "loss"))
    return next((float(value) for value in found if value is not None), None)


def _prefix(evaluate: EvaluateTable) -> str:
    return "client_" if evaluate.average == "clients" else ""


def last(lines: Sequence[Line]) -> Line:
    return evaluated(lines)[-1]


def cost(lines: Sequence[Line], line: Line) -> Cost:
    """Rounds, seconds of training and server, and bytes both ways, up to and including a round."""
    before = [each for each in lines if each["round"] <= line["round"]]
    seconds = sum(each["seconds.train"] + each["seconds.server"] for each in before)
    return Cost(line["round"], seconds, sum(each["bytes.down"] + each["bytes.up"] for each in before))


def converged(lines: Sequence[Line], evaluate: EvaluateTable = USUAL) -> Cost | None:
    """The cost of the first round within half a point of the run's best test accuracy."""
    top = standing(best(lines, evaluate), evaluate)
    return reached(lines, top - CLOSE, evaluate) if isfinite(top) else None


def reached(lines: Sequence[Line], target: float, evaluate: EvaluateTable = USUAL) -> Cost | None:
    """The cost of the first round that reaches the target test accuracy."""
    there = (line for line in evaluated(lines) if standing(line, evaluate) >= target)
    first = next(there, None)
    return None if first is None else cost(lines, first)


def stop_reason(lines: Sequence[Line], stop: StopTable) -> str | None:
    """Why the run ends here, if it does."""
    if stop.target is None and stop.patience is None:
        return None
    values = [quality(line, "validation.deployed") for line in evaluated(lines)]
    if not values:
        return None
    if stop.target is not None and values[-1] >= stop.target:
        return f"validation accuracy {values[-1]:.1%} reached the target {stop.target:.1%}"
    patience = stop.patience
    if patience is not None and len(values) > patience:
        recent, before = max(values[-patience:]), max(values[:-patience])
        if recent <= before + stop.margin:
            return f"no gain above {stop.margin:.3f} in {counted(patience, 'evaluated round')}"
    return None


@short_repr
@dataclass(frozen=True, eq=False)
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
        kept = line is not None and progress is not None and progress.t == line["round"]
        return Selection(line, progress if kept else None)

    def after(self, line: Line, progress: Progress, evaluate: EvaluateTable = USUAL) -> "Selection":
        if not evaluated([line]):
            return self
        better = self.line is None or counting([self.line, line], evaluate) is line
        return Selection(line, progress) if better else self
