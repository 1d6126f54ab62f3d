"""The selected round: the one that tables score, and whose models are delivered.

It is held as a version while a run goes on, which copies nothing, and is written with the next checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from stratafl.config.tables import EvaluateTable
from stratafl.core.reprs import short_repr
from stratafl.evaluation.measure import Line
from stratafl.execute import Progress
from stratafl.runs.summary import USUAL, counting, evaluated


@short_repr
@dataclass(frozen=True, eq=False)
class Selection:
    """The line of the selected round so far, and the state after it; runs of older versions did not keep that."""

    line: Line | None = None
    progress: Progress | None = None

    @staticmethod
    def of(history: Sequence[Line], evaluate: EvaluateTable, progress: Progress | None) -> "Selection":
        """The selection after these rounds; `progress` is a state that was kept, if there is one."""
        line = counting(history, evaluate) if evaluated(history) else None
        kept = line is not None and progress is not None and progress.t == line["round"]
        return Selection(line, progress if kept else None)

    def after(self, line: Line, progress: Progress, evaluate: EvaluateTable = USUAL) -> "Selection":
        """The selection after one more round."""
        if not evaluated([line]):
            return self
        better = self.line is None or counting([self.line, line], evaluate) is line
        return Selection(line, progress) if better else self
