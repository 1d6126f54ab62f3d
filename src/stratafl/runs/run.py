"""A run that cannot be lost: a locked directory, journals that only grow, and two generations of checkpoints.

A round is computed, then its lines are appended, then, now and then, a checkpoint records the state and how long the
journals were. A resumed run cuts the journals back to that and repeats the missing rounds, bit for bit.
`directory.py` lists the files, `stored.py` reads a run without writing to it.
"""

import hashlib
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w

from stratafl.config.assemble import completed, simulation_of
from stratafl.config.experiment import Experiment, to_tables
from stratafl.config.migrations import numbered
from stratafl.config.trust import NOTHING, Trust
from stratafl.core.reprs import short_repr
from stratafl.data.loading import is_place
from stratafl.errors import DamagedError, RunError
from stratafl.evaluation.measure import Line
from stratafl.execute import SINGLE_PROCESS, ProcessGroup, Progress, Simulation
from stratafl.execute.disk import StateFile
from stratafl.execute.simulation import SavedForm
from stratafl.files import explained, write_atomically
from stratafl.runs import checkpoint, environment, loggers
from stratafl.runs.checkpoint import Checkpoint, Saved
from stratafl.runs.class_counts import write_class_counts
from stratafl.runs.directory import (
    CHECKPOINTS,
    CLIENT_STATES,
    CONFIG,
    ENVIRONMENT,
    JOURNALS,
    PREPROCESSING,
    ROUNDS,
    check_history,
    check_journal,
    check_lockable,
    clear_partial,
    config_of,
    environment_of,
    lock,
    new_folder,
    refuse_existing,
)
from stratafl.runs.distributed import RoundMessage, collected, hand_out, refuse_disk, trial_of
from stratafl.runs.journal import Journal, Mark, read_lines
from stratafl.runs.json_files import read_json, write_json
from stratafl.runs.stored import check_saved, simulation_of_run
from stratafl.runs.summary import Selection, stop_reason

SAVING = 0.05  # at most this share of the time goes into checkpoints, if their number is not fixed


@short_repr
@dataclass(frozen=True)
class _Done:
    """The committed rounds: the state after them, where the journals end, and which of them is selected."""

    progress: Progress
    marks: Mapping[str, Mark]
    selection: Selection


class Run:
    """An experiment in its directory, new or resumed; use it in a `with` block."""

    def __init__(
        self, folder: Path, experiment: Experiment, sim: Simulation, process_group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        self.folder, self.experiment, self.sim, self.process_group = folder, experiment, sim, process_group
        self._place = folder.absolute()
        self.trial = trial_of(experiment, sim, process_group)
        self.notes: list[str] = []  # what the user should know
        self._lock = lock(folder)
        try:
            clear_partial(folder)
            _refuse_linked(folder)
            self._form = SavedForm.of(sim)
            self._client_file = self._record_file()
            self._leases: list[object] = []  # on the records that kept checkpoints refer to, the oldest first
            self._journals = {name: Journal(folder / f"{name}.jsonl", self._lock) for name in JOURNALS}
            progress, selected = self._restored()
            self.history: list[Line] = read_lines(folder / ROUNDS)
            check_history(folder / ROUNDS, self.history, progress.t)
            progress, selected = hand_out(process_group, experiment, sim, progress, self.history, selected)
            selection = Selection.of(self.history, experiment.evaluate, selected)
            self._done = _Done(progress, self._marks(), selection)
            if selection.line is not None and selection.progress is None:
                self.notes.append(f"the state after the selected round {selection.line['round']} was not kept")
        except BaseException:
            os.close(self._lock)
            raise
        self._loggers = loggers.Loggers(experiment.log.to, _about(folder, experiment))
        self._tuning = sim.runtime.tuning
        self._saved, self._saved_at, self._saving = self.progress.t, time.monotonic(), 0.0

    @classmethod
    def create(
        cls,
        experiment: Experiment,
        folder: Path,
        process_group: ProcessGroup = SINGLE_PROCESS,
        trust: Trust | bool = NOTHING,
    ) -> Self:
        """A new run; everything is checked before the directory is made, and nothing is overwritten."""
        refuse_existing(folder)
        check_lockable()
        experiment = completed(with_absolute_paths(experiment), trust)
        loggers.check(experiment.log.to)
        sim = simulation_of(experiment, trust=trust)
        refuse_disk(process_group, sim)
        tables = to_tables(experiment)
        identity = {"config": tables, **environment.identity(sim)}
        about = {**environment.describe(sim), "code": environment.code(experiment)}
        with new_folder(folder) as partial:
            write_atomically(partial / CONFIG, tomli_w.dumps(numbered(tables)).encode())
            write_json(partial / ENVIRONMENT, {**about, "resumed": [], "identity": identity})
            write_class_counts(partial, sim.runtime.federation)
            write_json(partial / PREPROCESSING, sim.runtime.federation.preprocessing.to_table())
        return cls(folder, experiment, sim, process_group)

    @classmethod
    def open(cls, folder: Path, process_group: ProcessGroup = SINGLE_PROCESS, trust: Trust | bool = NOTHING) -> Self:
        """A stored run; refused if its configuration, data or model are no longer what they were."""
        then, experiment = environment_of(folder), config_of(folder)
        loggers.check(experiment.log.to)
        run = cls(folder, experiment, simulation_of_run(folder, then, experiment, trust), process_group)
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
    def selection(self) -> Selection:
        return self._done.selection

    @property
    def finished(self) -> bool:
        return self.progress.t >= self.trial.rounds or self.stopped is not None

    @property
    def stopped(self) -> str | None:
        """Why the run ended early, if it did."""
        return stop_reason(self.history, self.experiment.stop)

    def rounds(self) -> Iterator[Line]:
        """Go on to the end, and yield the line of each round. You may stop after any of them."""
        while not self.finished:
            progress, entry = self.trial.round(self.progress)
            selection = self.selection.after(entry.round, progress, self.experiment.evaluate)
            self._check_place()
            for name, lines in (("rounds", [entry.round]), ("clients", entry.clients), ("layers", entry.layers)):
                self._journals[name].append(lines)
            # One assignment: from here on the round counts; interrupted before, its lines are cut off again.
            self._done = _Done(progress, self._marks(), selection)
            self.history.append(entry.round)
            self._loggers.log(entry.round)
            self._note_tuning()
            if self.process_group.told(RoundMessage(entry.round, self._due())).saved:
                self.save()
            yield entry.round

    def save(self) -> None:
        """Write a checkpoint, unless the last one is of this round."""
        progress, selected = self.progress, self.selection.progress
        if self._saved == progress.t:
            return
        begin = time.monotonic()
        self._check_place()
        with uninterrupted():
            for name, journal in self._journals.items():
                journal.cut(self._done.marks[name].size)
            states = [progress] if selected is None or selected.t == progress.t else [progress, selected]
            saved = [self._saved_state(state) for state in states]
            kept = None if selected is None else saved[-1]
            made = Checkpoint(progress.t, saved[0].tensors, self._done.marks, kept)
            checkpoint.save(self.folder / CHECKPOINTS, made, self._lock)
            leases = [state.clients.lease() for state in states]
            self._leases = [*self._leases, leases][-checkpoint.GENERATIONS :]
            self._saved, self._saved_at = progress.t, time.monotonic()
        self._saving = self._saved_at - begin

    def _saved_state(self, progress: Progress) -> Saved:
        whole = collected(self.process_group, self.sim, progress)
        whole.clients.settle()
        tensors = whole.tensors()
        self._form.check_before_saving(tensors)
        return Saved(progress.t, tensors)

    def _marks(self) -> dict[str, Mark]:
        return {name: journal.mark for name, journal in self._journals.items()}

    def _record_file(self) -> StateFile:
        return StateFile(self.folder / CLIENT_STATES, self.sim.state_format.size, folder=self._lock)

    def _check_place(self) -> None:
        """Raise if the directory is no longer at its path: another run may be there now."""
        mine = os.fstat(self._lock)
        try:
            there = os.stat(self._place)
        except OSError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise RunError(f"'{self.folder}' was moved or replaced during the run: resume it where it is now")

    def _due(self) -> bool:
        every = self.experiment.run.checkpoint
        if self.finished or (every and self.progress.t % every == 0):
            return True
        return not every and time.monotonic() - self._saved_at >= self._saving / SAVING

    def _restored(self) -> tuple[Progress, Progress | None]:
        """The state to continue from, and that after the selected round, if it was kept."""
        found = checkpoint.find(self.folder / CHECKPOINTS, self._check)
        saved = found.checkpoint
        for name, journal in self._journals.items():  # before anything is moved or cut
            check_journal(journal.path, Mark(0) if saved is None else saved.journals[name])
        checkpoint.tidy(self.folder / CHECKPOINTS, found)
        self.notes += found.complaints
        if found.complaints:
            where = "the beginning" if saved is None else f"the previous checkpoint, after round {saved.round}"
            self.notes.append(f"continuing from {where}")
        elif saved is None and self._journals["rounds"].size:
            self.notes.append("there is no checkpoint: continuing from the beginning")
        if saved is None:
            self._put_aside(*([self.folder / CLIENT_STATES] if found.complaints else []))
        for name, journal in self._journals.items():
            journal.cut(0 if saved is None else saved.journals[name].size)
        os.fsync(self._lock)  # the names of the journals, too, survive a power cut
        if saved is None:
            return self.sim.start(self._client_file), None
        states = [self.sim.restored(state.tensors, self._client_file) for state in saved.states]
        if states[0].clients.lease() is not None:
            before = checkpoint.older(self.folder / CHECKPOINTS, saved)
            self._leases = [*map(self._leases_of, before), [state.clients.lease() for state in states]]
        return states[0], states[-1] if saved.selected is not None else None

    def _check(self, saved: Checkpoint) -> None:
        check_saved(self.sim, self._form, saved, self._client_file)

    def _leases_of(self, saved: Checkpoint) -> list[object]:
        """Leases on the records that an older generation refers to; a damaged one refers to none."""
        leases: list[object] = []
        with suppress(DamagedError):
            for state in saved.states:
                self._form.check(state.round, state.tensors)
                leases.append(self.sim.restored_clients(state.tensors, self._client_file).lease())
        return leases

    def _put_aside(self, *more: Path) -> None:
        """Move the lines of rounds that no checkpoint covers, and `more`, into a folder of their own."""
        if any(journal.size for journal in self._journals.values()):
            aside = self.folder / f"aside-{uuid.uuid4().hex[:6]}"
            with explained("move the lines in", self.folder):
                aside.mkdir()
                for name, journal in self._journals.items():
                    if journal.path.exists():
                        journal.path.rename(aside / journal.path.name)
                    self._journals[name] = Journal(journal.path, self._lock)
                for path in more:
                    if path.exists():
                        path.rename(aside / path.name)
                self._client_file = self._record_file()
            self.notes.append(f"the previous lines are kept in '{aside.name}'")

    def _note_resumption(self, then: dict[str, Any]) -> None:
        today = {**environment.describe(self.sim), "code": environment.code(self.experiment)}
        changed = environment.differences(then, today)
        if changed:
            self.notes.append(f"not bit-identical with a run that was never interrupted: {'; '.join(changed)}")
        entry = {"at": environment.now(), "round": self.progress.t, "changed": changed}
        resumed = [*(then.get("resumed") or []), entry]
        write_json(self.folder / ENVIRONMENT, {**then, "resumed": resumed}, folder=self._lock)

    def _note_tuning(self) -> None:
        """Record what was decided about speed since, so that a resumed run computes the same bits."""
        tuning = self.sim.runtime.tuning
        if tuning != self._tuning:
            then = read_json(self.folder / ENVIRONMENT)
            write_json(self.folder / ENVIRONMENT, {**then, "tuning": tuning}, folder=self._lock)
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        alone = error is not None and self.process_group.world_size > 1  # the other processes have stopped
        if alone or isinstance(error, RunError):  # saving again would fail too, and hide why
            self.sim.runtime.close()
            os.close(self._lock)
        else:
            self.close()


def _refuse_linked(folder: Path) -> None:
    """Raise if a logger would write outside of the run directory."""
    for name in loggers.FOLDERS:
        if (folder / name).is_symlink():
            raise DamagedError(f"'{folder / name}' is a link, and a run only writes into its own directory: remove it")


def _about(folder: Path, experiment: Experiment) -> loggers.About:
    """The run as loggers see it; its key comes from where and when it began, so a resumed run keeps it."""
    then = environment_of(folder)
    told = f"{then.get('folder')} {then.get('started')} {folder.name} {(then.get('identity') or {})}"
    tables = to_tables(experiment)
    flat = {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}
    return loggers.About(folder, hashlib.sha256(told.encode()).hexdigest()[:16], flat)


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
    if threading.current_thread() is not threading.main_thread():
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
