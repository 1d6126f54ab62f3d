"""Trials as runs: which still have rounds to run, how far each came, how well it scored, and whether it failed.

Everything follows from journals, and only rounds that a checkpoint covers count. A resumed trial
repeats the rounds after its checkpoint, so no decision is ever reversed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path

from stratafl.config.experiment import Experiment
from stratafl.config.setting_tables import EvaluateTable
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.evaluation.divergence import divergence
from stratafl.evaluation.measure import Line, local_steps
from stratafl.files import is_plain
from stratafl.runs import checkpoint, is_run
from stratafl.runs.directory import CHECKPOINTS, ROUNDS, config_of
from stratafl.runs.json_files import read_lines
from stratafl.runs.prediction_file import PREDICTIONS
from stratafl.runs.summary import counting, evaluated, stop_reason, validation_score


@dataclass(frozen=True)
class PendingRun:
    """A run that is to be advanced to round `rounds`.

    A trial that fails writes why into the file `failure` and counts as the worst. A run on a fresh seed has no such
    file: its error ends the tuning.
    """

    method: str
    title: str
    experiment: Experiment
    folder: Path
    rounds: int
    trust: Trust = NO_TRUST
    failure: Path | None = None

    @property
    def is_trial(self) -> bool:
        return self.failure is not None


class TrialJournals:
    """The trials in a folder, each a run directory `000`, `001` and so on; `base` is what their settings share."""

    def __init__(self, folder: Path, base: Experiment) -> None:
        self.folder, self._base = folder, base
        self._lines_read: dict[int, tuple[int, list[Line]]] = {}  # by trial: bytes of its journal, and its lines
        self._evaluate: dict[int, EvaluateTable] = {}

    def place(self, number: int) -> Path:
        return self.folder / f"{number:03}"

    def failure(self, number: int) -> Path:
        """The file that says why a trial could not be run."""
        return self.folder / f"{number:03}.failed"

    def lines(self, number: int, rounds: float = inf) -> list[Line]:
        """The lines of a trial up to a round."""
        mark = checkpoint.committed(self.place(number) / CHECKPOINTS).get("rounds")
        size = 0 if mark is None else mark.size
        if self._lines_read.get(number, (-1, []))[0] != size:
            self._lines_read[number] = (size, committed_lines(self.place(number)))
        return [line for line in self._lines_read[number][1] if line["round"] <= rounds]

    def evaluate(self, number: int) -> EvaluateTable:
        """What a trial is judged by; its run has made definite what was left to the data."""
        if number not in self._evaluate and is_run(self.place(number)):
            self._evaluate[number] = config_of(self.place(number)).evaluate
        return self._evaluate.get(number, self._base.evaluate)

    def reached(self, number: int, rounds: int) -> bool:
        """Whether a trial has come to a round, has stopped by its own rule, or cannot be run."""
        lines = self.lines(number)
        if lines and lines[-1]["round"] >= rounds:
            return True
        if lines and stop_reason(lines, self._base.stop, self.evaluate(number)) is not None:
            return True
        return self.failure(number).exists()

    def failed(self, number: int, rounds: int) -> str | None:
        """Why a trial counts as the worst after a round, if it does."""
        if self.failure(number).exists():
            return self.failure(number).read_text(errors="replace").strip()
        lines = self.lines(number, rounds)
        return why_diverged(lines) if lines else None

    def score(self, number: int, rounds: int) -> float | None:
        """How good a trial is on validation data after a round: −∞ if it failed, None if no round was evaluated."""
        if self.failed(number, rounds) is not None:
            return -inf
        return validation_score(self.lines(number, rounds), self.evaluate(number))

    def steps(self, number: int, rounds: float = inf) -> int:
        """The local steps of all clients up to a round."""
        return sum(map(local_steps, self.lines(number, rounds)))


def is_open(work: PendingRun) -> bool:
    """Whether the run still has to be advanced; a run on a fresh seed also has to write its predictions."""
    if work.failure is not None and work.failure.exists():
        return False
    lines = committed_lines(work.folder)
    if not lines:
        return True
    begun = config_of(work.folder)
    if lines[-1]["round"] < work.rounds and stop_reason(lines, begun.stop, begun.evaluate) is None:
        return True
    return not work.is_trial and lacks_predictions(work.folder, lines, begun.evaluate)


def lacks_predictions(folder: Path, lines: Sequence[Line], evaluate: EvaluateTable) -> bool:
    """Whether a finished run was killed before it wrote its predictions; without the state for them it never will."""
    if evaluate.stage == "trained" or is_plain(folder / PREDICTIONS):
        return False
    return checkpoint.selected_round(folder / CHECKPOINTS) == int(counting(lines, evaluate)["round"])


def committed_lines(folder: Path) -> list[Line]:
    """The rounds of a run that a checkpoint covers; none if there is no run."""
    mark = checkpoint.committed(folder / CHECKPOINTS).get("rounds")
    return [] if mark is None else read_lines(folder / ROUNDS, until=mark)


def why_diverged(lines: Sequence[Line]) -> str | None:
    """That the uploads or models of clients, or the loss, became NaN or infinite in the last rounds, if they did."""
    ended = divergence(lines)
    if ended is not None:
        return str(ended)
    last, scored = lines[-1], evaluated(lines)
    # A journal stores NaN and infinity as null.
    losses = [last.get("train.loss", 0), *(v for k, v in (scored[-1] if scored else {}).items() if k.endswith(".loss"))]
    return "its loss is not finite; lower the learning rate" if None in losses else None
