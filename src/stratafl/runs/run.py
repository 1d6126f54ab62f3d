"""A run that cannot be lost: a locked directory, journals that only grow, and two generations of checkpoints.

A round is computed, then its lines are appended, then, now and then, a checkpoint records the state and how long the
journals were. A resumed run cuts the journals back to that and repeats the missing rounds, bit for bit.
`directory.py` lists the files and reads a run without writing, `run_files.py` writes and restores them.
"""

import hashlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import tomli_w

from stratafl.config.assemble import completed, simulation_of
from stratafl.config.experiment import Experiment, to_tables
from stratafl.config.metric_choice import metric_for, with_metric
from stratafl.config.migrations import with_format
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.reprs import short_repr
from stratafl.data.loading import is_place
from stratafl.errors import DamagedError, RunError
from stratafl.evaluation.cross_site import MAX_CLIENTS, cross_site
from stratafl.evaluation.measure import Line
from stratafl.execute import SINGLE_PROCESS, ProcessGroup, Progress, Simulation
from stratafl.files import check_lockable, clear_partial, lock, write_atomically
from stratafl.policies import LocalTraining
from stratafl.runs import directory, environment, loggers
from stratafl.runs.class_counts import write_class_counts
from stratafl.runs.directory import simulation_of_run
from stratafl.runs.distributed import RoundMessage, check_stage, final_predictions, hand_out, refuse_disk, trial_of
from stratafl.runs.guard_files import guarded_round, guarding, guards, local_beside, write_guard
from stratafl.runs.json_files import JournalMark, read_json, read_lines, write_json
from stratafl.runs.prediction_file import PREDICTIONS, predicted_round, write_predictions
from stratafl.runs.run_files import RunFiles
from stratafl.runs.summary import Selection, stop_reason

CROSS_SITE = directory.CROSS_SITE
SAVING = 0.05  # at most this share of the time goes into checkpoints, if their number is not fixed


@short_repr
@dataclass(frozen=True)
class _Done:
    """The committed rounds: the state after them, where the journals end, and which of them is selected."""

    progress: Progress
    marks: Mapping[str, JournalMark]
    selection: Selection


class Run:
    """An experiment in its directory, new or resumed; use it in a `with` block."""

    def __init__(
        self,
        folder: Path,
        experiment: Experiment,
        sim: Simulation,
        process_group: ProcessGroup = SINGLE_PROCESS,
        trust: Trust | bool = NO_TRUST,
    ) -> None:
        self.folder, self.experiment, self.sim, self.process_group = folder, experiment, sim, process_group
        self._place, self._trust = folder.absolute(), trust
        self.alone: LocalTraining | None = (
            None  # how the guard trains alone; None: as a `local` beside it was, or as this run
        )
        if guards(experiment) and process_group.world_size > 1:
            raise RunError("the guard works in one process: leave out evaluate.guard, or do not use torchrun")
        if experiment.evaluate.cross_site:
            _check_cross_site(sim, process_group)
        self.trial = trial_of(experiment, sim, process_group, trust)
        self._lock = lock(folder)
        try:
            clear_partial(folder)
            loggers.refuse_linked(folder)
            self._files = RunFiles(folder, self._lock, sim, process_group)
            progress, selected = self._files.restored()
            self.history: list[Line] = read_lines(folder / directory.ROUNDS)
            directory.check_history(folder / directory.ROUNDS, self.history, progress.t)
            progress, selected = hand_out(process_group, experiment, sim, progress, self.history, selected)
            selection = Selection.of(self.history, experiment.evaluate, selected)
            self._done = _Done(progress, self._files.marks, selection)
            self.notes = self._files.notes  # what the user should know
            if not self.finished:  # of rounds that are repeated
                for name in (PREDICTIONS, CROSS_SITE):
                    (folder / name).unlink(missing_ok=True)
                shutil.rmtree(folder / directory.GUARD, ignore_errors=True)
            if selection.line is not None and selection.progress is None:
                self.notes.append(f"the state after the selected round {selection.line['round']} was not kept")
        except BaseException:
            os.close(self._lock)
            raise
        self._loggers = loggers.Loggers(experiment.log.to, _about(folder, experiment))
        self._tuning = sim.runtime.tuning
        self._saved, self._saved_at, self._saving = self.progress.t, sim.runtime.now(), 0.0

    @classmethod
    def create(
        cls,
        experiment: Experiment,
        folder: Path,
        process_group: ProcessGroup = SINGLE_PROCESS,
        trust: Trust | bool = NO_TRUST,
    ) -> Self:
        """A new run; everything is checked before the directory is made, and nothing is overwritten."""
        directory.refuse_existing(folder)
        check_lockable()
        experiment = completed(with_absolute_paths(experiment), trust)
        loggers.check_loggers(experiment.log.to)
        sim = simulation_of(experiment, trust=trust)
        experiment = with_metric(experiment, sim.runtime.federation, trust)
        check_stage(experiment.evaluate.stage, sim)
        refuse_disk(process_group, sim)
        tables = to_tables(experiment)
        identity = {"config": tables, **environment.identity(sim)}
        about = {**environment.describe_environment(sim), "code": environment.code(experiment)}
        with directory.new_folder(folder) as partial:
            write_atomically(partial / directory.CONFIG, tomli_w.dumps(with_format(tables)).encode())
            write_json(partial / directory.ENVIRONMENT, {**about, "resumed": [], "identity": identity})
            write_class_counts(partial, sim.runtime.federation)
            write_json(partial / directory.PREPROCESSING, sim.runtime.federation.preprocessing.to_table())
        return cls(folder, experiment, sim, process_group, trust)

    @classmethod
    def open(cls, folder: Path, process_group: ProcessGroup = SINGLE_PROCESS, trust: Trust | bool = NO_TRUST) -> Self:
        """A stored run; refused if its configuration, data or model are no longer what they were."""
        then, experiment = directory.environment_of(folder), directory.config_of(folder)
        directory.refuse_guard(folder)
        loggers.check_loggers(experiment.log.to)
        trust = Trust.of(trust).asked_by(folder / directory.CONFIG, then.get("folder"))
        run = cls(folder, experiment, simulation_of_run(folder, then, experiment, trust), process_group, trust)
        try:
            if not run.finished:
                run._note_resumption(then)
        except BaseException:
            os.close(run._lock)
            raise
        return run

    def __repr__(self) -> str:
        return f"Run('{self.folder}', after round {self.progress.t} of {self.trial.rounds})"

    @property
    def progress(self) -> Progress:
        """The state after the committed rounds."""
        return self._done.progress

    @property
    def finished(self) -> bool:
        return self.progress.t >= self.trial.rounds or self.stopped is not None

    @property
    def stopped(self) -> str | None:
        """Why the run ended early, if it did."""
        return stop_reason(self.history, self.experiment.stop, self.experiment.evaluate)

    def rounds(self) -> Iterator[Line]:
        """Go on to the end, and yield the line of each round. You may stop after any of them."""
        while not self.finished:
            progress, entry = self.trial.round(self.progress)
            selection = self._done.selection.after(entry.round, progress, self.experiment.evaluate)
            self._check_place()
            self._files.append(entry)
            # One assignment: from here on the round counts; interrupted before, its lines are cut off again.
            self._done = _Done(progress, self._files.marks, selection)
            self.history.append(entry.round)
            self._loggers.log(entry.round)
            self._note_tuning()
            if self.process_group.told(RoundMessage(entry.round, self._due())).saved:
                self.save()
            yield entry.round

    @property
    def unguarded(self) -> bool:
        """Whether the rounds are done, and the choice of each client that the run ends with is not."""
        selection = self._done.selection
        if not guards(self.experiment) or not self.finished or selection.progress is None:
            return False
        return guarded_round(self.folder) != selection.progress.t

    def guarding(self) -> Iterator[int]:
        """Let each client choose its model, if the run ends so. Yields after each round of local training.

        You may stop after any of them; a resumed run begins its guard again.
        """
        selected = self._done.selection.progress
        if not self.unguarded or selected is None:
            return
        self.save()
        begin = time.monotonic()
        local = local_beside(self.folder)
        models = yield from guarding(self.experiment, self.trial, selected, local, self.alone)
        self._check_place()
        with uninterrupted():
            write_guard(self.folder, models, self.trial, self.history, time.monotonic() - begin)

    def save(self) -> None:
        """Write a checkpoint, unless the last one is of this round."""
        progress = self.progress
        if self._saved == progress.t:
            return
        now = self.sim.runtime.now
        begin = now()
        self._check_place()
        with uninterrupted():
            self._files.save(progress, self._done.selection.progress, self._done.marks)
            self._saved, self._saved_at = progress.t, now()
        self._saving = self._saved_at - begin

    def write_predictions(self) -> None:
        """Write what the models that count give for every sample, if the run is finished and it is not there yet."""
        selection, stage = self._done.selection, self.experiment.evaluate.stage
        number = None if selection.line is None else int(selection.line["round"])
        missing = self.finished and number is not None and _predicted(self.folder) != number
        if self.process_group.told(missing):
            predictions = final_predictions(self.trial, selection, stage)
            if predictions and number is not None:
                self._check_place()
                write_predictions(self.folder, predictions, number, stage, self._lock)

    def write_cross_site(self) -> None:
        """Write every client's model on every client's test samples, if the run is to have that and is finished."""
        selection, evaluate = self._done.selection, self.experiment.evaluate
        path, is_asked = self.folder / CROSS_SITE, evaluate.cross_site and evaluate.test and evaluate.stage != "trained"
        if not is_asked or not self.finished or selection.progress is None or path.exists():
            return
        metric = metric_for(evaluate, self.sim.runtime.federation, self._trust)
        table = cross_site(self.sim, selection.progress, metric, self.trial.ids.tolist(), "test", evaluate.stage)
        self._check_place()
        write_json(path, table.to_table(), folder=self._lock)

    def _check_place(self) -> None:
        """Raise if the directory is no longer at its path: another run may be there now."""
        opened = os.fstat(self._lock)
        try:
            current = os.stat(self._place)
        except OSError:
            current = None
        if current is None or (current.st_dev, current.st_ino) != (opened.st_dev, opened.st_ino):
            raise RunError(f"'{self.folder}' was moved or replaced during the run: resume it where it is now")

    def _due(self) -> bool:
        every = self.experiment.run.checkpoint
        if self.finished or (every and self.progress.t % every == 0):
            return True
        return not every and self.sim.runtime.now() - self._saved_at >= self._saving / SAVING

    def _note_resumption(self, then: dict[str, Any]) -> None:
        today = {**environment.describe_environment(self.sim), "code": environment.code(self.experiment)}
        changed = environment.differences(then, today)
        if changed:
            self.notes.append(f"not bit-identical to an uninterrupted run: {'; '.join(changed)}")
        entry = {"at": environment.utc_now(), "round": self.progress.t, "changed": changed}
        resumed = [*(then.get("resumed") or []), entry]
        write_json(self.folder / directory.ENVIRONMENT, {**then, "resumed": resumed}, folder=self._lock)

    def _note_tuning(self) -> None:
        """Record what was decided about speed since, so that a resumed run computes the same bits."""
        tuning = self.sim.runtime.tuning
        if tuning != self._tuning:
            then = read_json(self.folder / directory.ENVIRONMENT)
            write_json(self.folder / directory.ENVIRONMENT, {**then, "tuning": tuning}, folder=self._lock)
            self._tuning = tuning

    def close(self) -> None:
        """Save, and unlock the directory."""
        try:
            self.save()
        finally:
            self.sim.runtime.close()
            self._loggers.close()
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        alone = error is not None and self.process_group.world_size > 1  # the other processes have stopped
        if alone or isinstance(error, RunError):  # saving again would fail too, and hide why
            self.sim.runtime.close()
            os.close(self._lock)
            return
        try:
            self.save()
            if error is None:
                self.write_predictions()
                self.write_cross_site()
        finally:
            self.close()


def _check_cross_site(sim: Simulation, process_group: ProcessGroup) -> None:
    if process_group.world_size > 1:
        raise RunError("evaluate.cross_site works in one process: leave it out, or do not use torchrun")
    if sim.setup.clients > MAX_CLIENTS:
        most = f"evaluate.cross_site is for at most {MAX_CLIENTS} clients, not {sim.setup.clients:,}"
        raise RunError(f"{most}: leave it out")


def _predicted(folder: Path) -> int | None:
    """The round whose predictions are there and undamaged."""
    with suppress(DamagedError):
        return predicted_round(folder)
    return None


def _about(folder: Path, experiment: Experiment) -> loggers.About:
    """The run as loggers see it; its key comes from where and when it began, so a resumed run keeps it."""
    then = directory.environment_of(folder)
    origin = f"{then.get('folder')} {then.get('started')} {folder.name} {(then.get('identity') or {})}"
    return loggers.About(folder, hashlib.sha256(origin.encode()).hexdigest()[:16], to_tables(experiment))


def with_absolute_paths(experiment: Experiment) -> Experiment:
    """The experiment with absolute paths, so that it can be resumed from another folder."""
    data, model = experiment.data, experiment.model
    if is_place(data.name):
        data = replace(data, name=str(Path(data.name).absolute()))
    if data.path is not None:
        data = replace(data, path=str(Path(data.path).absolute()))
    if model.weights is not None:
        model = replace(model, weights=str(Path(model.weights).absolute()))
    return replace(experiment, data=data, model=model)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C and SIGTERM until the block is done."""
    if threading.current_thread() is not threading.main_thread():  # a joined run only stops between two steps
        yield
        return
    waiting: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, lambda number, _: waiting.append(number)) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        for number in waiting:
            os.kill(os.getpid(), number)
