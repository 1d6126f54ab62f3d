"""Training round by round: when it ends, which callbacks see each round, and how a trained federation goes on."""

import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import field, replace
from pathlib import Path

from stratafl.config.setting_tables import EvaluateTable, StopTable
from stratafl.config.trust import Trust
from stratafl.core.pace import check_goes_on
from stratafl.core.reprs import holder
from stratafl.errors import CallbackError, DataError, RecordError, RunError, counted, first_line, shown
from stratafl.evaluation.flags import Notices
from stratafl.evaluation.measure import Line
from stratafl.evaluation.trial import Trial
from stratafl.execute import SINGLE_PROCESS, Progress, Simulation
from stratafl.runs.directory import config_of, stored_progress
from stratafl.runs.distributed import trial_of
from stratafl.runs.summary import VALIDATED, Selection, measured_at, prefix_of, stop_reason

Callback = Callable[[Line], object]
MAX_ROUNDS = 10**9
log = logging.getLogger("stratafl")


@holder
class TrainingRun:
    """A federation in training: the state after the newest round, all lines, and which round is selected."""

    trial: Trial
    evaluate: EvaluateTable  # what rounds are selected by
    progress: Progress
    stop: StopTable = StopTable()
    history: list[Line] = field(default_factory=list)
    selection: Selection = Selection()

    @property
    def delivered(self) -> Progress:
        """The state after the selected round, or after the newest one if none is."""
        return self.selection.progress or self.progress

    @property
    def stopped(self) -> str | None:
        """Why training has ended early, if it has."""
        return stop_reason(self.history, self.stop, self.evaluate)

    def for_more(self, rounds: int, patience: int | None) -> "TrainingRun":
        """The same training with further rounds to do; refused unless it is as if they had been asked for at once."""
        check_rounds("rounds", rounds)
        sim, stop = self.trial.sim, replace(self.stop, patience=patience)
        done, asked = self.progress.t, sim.setup.rounds
        check_goes_on(sim.algorithm, done, asked, done + rounds, bool(len(sim.new_clients)))
        sim = replace(sim, setup=replace(sim.setup, rounds=done + rounds))
        further = replace(self, trial=replace(self.trial, sim=sim), stop=stop, history=[*self.history])
        if further.stopped:
            raise RunError(
                f"training stopped after {counted(done, 'round')} ({further.stopped}), so it would stop again at once: "
                "give a larger patience, or patience=None"
            )
        return further

    def to_end(self, callbacks: Iterable[Callback]) -> "TrainingRun":
        """Run all rounds that are left, unless it stops early or a callback returns True."""
        training, notices, callbacks = self, Notices(len(self.history)), tuple(callbacks)
        while training.progress.t < training.trial.rounds and not training.stopped:
            progress, entry = training.trial.round(training.progress)
            selection = training.selection.after(entry.round, progress, training.evaluate)
            history = [*training.history, entry.round]
            training = replace(training, progress=progress, history=history, selection=selection)
            for notice in notices.of(history):
                log.warning("%s", notice)
            if training._ends(callbacks):
                break
        if training.stopped:
            log.warning("stopped after round %d: %s", training.progress.t, training.stopped)
        return training

    def _ends(self, callbacks: Iterable[Callback]) -> bool:
        """Show the newest line to all callbacks; whether one of them ends the training."""
        answers = []
        for callback in callbacks:
            try:
                answers.append(callback(dict(self.history[-1])))
            except Exception as error:  # a person's function may fail in any way
                name = getattr(callback, "__name__", type(callback).__name__)
                reason = first_line(error, typed=True)
                failed = CallbackError(
                    f"the callback '{shown(name)}' raised {reason} after round {self.progress.t}; the federation as it "
                    "was trained until then is the error's `fitted`"
                )
                failed.fitted = self
                raise failed from error
        return any(answer is True for answer in answers)


def stored_training(folder: Path, sim: Simulation, trust: Trust | bool) -> TrainingRun:
    """The training of a run directory whose simulation this is, after its newest checkpoint."""
    experiment = config_of(folder)
    newest, lines = stored_progress(folder, sim, "newest")
    best, _ = stored_progress(folder, sim, "selected")
    trial = trial_of(experiment, sim, SINGLE_PROCESS, trust)
    selection = Selection.of(lines, experiment.evaluate, best)
    return TrainingRun(trial, experiment.evaluate, newest, experiment.stop, lines, selection)


class RoundPrinter:
    """Prints each round to stderr: in a terminal on one line, else one after the other."""

    def __init__(self, training: TrainingRun) -> None:
        self._rounds, self._evaluate = training.trial.rounds, training.evaluate

    def __call__(self, line: Line) -> None:
        measured = measured_at(line, VALIDATED, prefix_of(self._evaluate), self._evaluate)
        score = ""
        if measured is not None:
            metric, value = measured
            score = f", validation {metric.title} " + (f"{value:.1%}" if metric.percent else f"{value:.4g}")
        rewrites = sys.stderr.isatty()
        last = line["round"] == self._rounds
        ends = "\n" if last or not rewrites else ""
        print(f"{chr(13) if rewrites else ''}round {line['round']} of {self._rounds}{score}", end=ends, file=sys.stderr)
        sys.stderr.flush()


def check_rounds(what: str, value: object) -> None:
    """Refuse all but a whole number of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_ROUNDS:
        raise RecordError(f"{what} must be a whole number of at least 1, not {shown(value)}")


def stop_after(patience: int | None, trial: Trial) -> StopTable:
    """When to stop without a gain; refused without validation samples."""
    if patience is None:
        return StopTable()
    check_rounds("patience", patience)
    if "validation" not in trial.splits:
        raise DataError("patience needs validation samples, but there are none: give validation=0.1, or leave it out")
    return StopTable(patience=patience)


def watchers(callbacks: Iterable[Callback], progress: bool, training: TrainingRun) -> list[Callback]:
    """The callbacks, checked, and a line of progress if it is wanted."""
    if callable(callbacks) or not isinstance(callbacks, Iterable):
        raise RecordError("callbacks must be a list of functions that take the line of a round: callbacks=[…]")
    listed = list(callbacks)
    for callback in listed:
        if not callable(callback):
            raise RecordError(f"callbacks must be functions that take the line of a round, not {shown(callback)}")
    return [RoundPrinter(training), *listed] if progress else listed
