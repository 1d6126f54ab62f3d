"""A run that cannot be lost: a directory, a lock, journals that only grow, and two generations of checkpoints.

    config.toml        the complete configuration
    environment.json   versions, device, commit, seed, checksums of data and model, and every resumption
    holdings.json      how many samples of each class each client has
    preprocessing.json what was done to samples and targets
    rounds.jsonl       one line per round
    clients.jsonl      one line per evaluated client and round
    layers.jsonl       one line per layer and round
    checkpoint/        the last two states, each with that of the selected round
    memories.bin       the memories of clients, where they are kept on disk

A round is computed, then its lines are appended, then, now and then, a checkpoint records the state and how long the
journals were. Whoever resumes cuts the journals back to that and repeats the rounds that are missing, bit by bit.
"""

import fcntl
import hashlib
import logging
import os
import shlex
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w

from stratafl.config.assemble import completed, simulation_of
from stratafl.config.experiment import Experiment, from_stored, load_stored, to_tables
from stratafl.config.trust import NOTHING, Trust
from stratafl.core.reprs import short_repr
from stratafl.data.loading import is_place
from stratafl.errors import BusyError, DamagedError, RunError, unknown
from stratafl.evaluation.measure import Line
from stratafl.execute import SINGLE_PROCESS, ProcessGroup, Progress, Simulation
from stratafl.execute.devices import device_or_cpu
from stratafl.execute.disk import StateFile
from stratafl.execute.saved_form import SavedForm
from stratafl.files import is_plain
from stratafl.runs import checkpoint, environment, loggers
from stratafl.runs.checkpoint import Checkpoint, Saved
from stratafl.runs.files import (
    Journal,
    Mark,
    appearing,
    clear_remains,
    explained,
    line_bodies,
    read_json,
    read_lines,
    uninterrupted,
    write_json,
    write_whole,
)
from stratafl.runs.follower import Verdict, collected, hand_out, refuse_disk, trial_of
from stratafl.runs.holdings import write_holdings
from stratafl.runs.preprocessing import check_preprocessing, write_preprocessing
from stratafl.runs.selection import Selection
from stratafl.runs.summary import stop_reason

log = logging.getLogger("stratafl")
CONFIG, ENVIRONMENT, CHECKPOINTS, MEMORIES = "config.toml", "environment.json", "checkpoint", "memories.bin"
ROUNDS = "rounds.jsonl"
ROUNDS_KEPT = ("selected", "newest")  # whose states can be asked for
COMPARISON = "compare.toml"  # of the folder that holds a comparison's runs
JOURNALS = ("rounds", "clients", "layers")
CHECKED_FORMAT = 2  # of runs all of whose lines have checksums
SAVING = 0.05  # at most this share of the time goes into checkpoints, where their number is not fixed


@short_repr
@dataclass(frozen=True)
class _Done:
    """The rounds that count: the state after them, where the journals end, and which of them is selected."""

    progress: Progress
    marks: Mapping[str, Mark]
    selection: Selection


class Run:
    """An experiment in its directory, from its beginning or from where it was left; use it as a context."""

    def __init__(
        self, folder: Path, experiment: Experiment, sim: Simulation, process_group: ProcessGroup = SINGLE_PROCESS
    ) -> None:
        self.folder, self.experiment, self.sim, self.process_group = folder, experiment, sim, process_group
        self._place = folder.absolute()
        self.trial = trial_of(experiment, sim, process_group)
        self.notes: list[str] = []  # what a person should know
        self._lock = _locked(folder)
        try:
            clear_remains(folder)
            _refuse_linked(folder)
            self._form = SavedForm.of(sim)
            self._memories = self._record_file()
            self._leases: list[object] = []  # on what the checkpoints that are kept refer to, the oldest first
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
        """A new run; everything is checked before the directory is made, and nothing that exists is written over."""
        refuse_existing(folder)
        experiment = completed(anchored(experiment), trust)
        loggers.check(experiment.log.to)
        sim = simulation_of(experiment, trust=trust)
        refuse_disk(process_group, sim)
        tables = to_tables(experiment)
        identity = {"config": tables, **environment.identity(sim)}
        about = {**environment.describe(sim), "code": environment.code(experiment)}
        with appearing(folder) as partial:
            write_whole(partial / CONFIG, tomli_w.dumps(tables).encode())
            write_json(partial / ENVIRONMENT, {**about, "resumed": [], "identity": identity})
            write_holdings(partial, sim.runtime.federation)
            write_preprocessing(partial, sim.runtime.federation)
        return cls(folder, experiment, sim, process_group)

    @classmethod
    def open(cls, folder: Path, process_group: ProcessGroup = SINGLE_PROCESS, trust: Trust | bool = NOTHING) -> Self:
        """A run that exists; refused if its configuration, data or model are no longer what they were."""
        then, experiment = environment_of(folder), config_of(folder)
        loggers.check(experiment.log.to)
        run = cls(folder, experiment, _simulation(folder, then, experiment, trust), process_group)
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
        """The state after the rounds that are done."""
        return self._done.progress

    @property
    def selection(self) -> Selection:
        """Which of the rounds that are done is selected, and the state after it."""
        return self._done.selection

    @property
    def finished(self) -> bool:
        """Whether nothing is left to do."""
        return self.progress.t >= self.trial.rounds or self.stopped is not None

    @property
    def stopped(self) -> str | None:
        """Why it ended early, if it did."""
        return stop_reason(self.history, self.experiment.stop)

    def rounds(self) -> Iterator[Line]:
        """Go on to the end; after each round its line. Whoever stops asking loses nothing."""
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
            if self.process_group.told(Verdict(entry.round, self._due())).saved:
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
        return StateFile(self.folder / MEMORIES, self.sim.state_format.size, folder=self._lock)

    def _check_place(self) -> None:
        """Raise if the directory is not at its path any more: whatever is there now is somebody else's."""
        mine = os.fstat(self._lock)
        try:
            there = os.stat(self._place)
        except OSError:
            there = None
        if there is None or (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise RunError(f"'{self.folder}' was moved or replaced while the run was at work: resume it where it is")

    def _due(self) -> bool:
        every = self.experiment.run.checkpoint
        if self.finished or (every and self.progress.t % every == 0):
            return True
        return not every and time.monotonic() - self._saved_at >= self._saving / SAVING

    def _restored(self) -> tuple[Progress, Progress | None]:
        """The state to go on from, and that after the selected round, if it was kept."""
        found = checkpoint.find(self.folder / CHECKPOINTS, self._check)
        saved = found.checkpoint
        for name, journal in self._journals.items():  # before anything is put aside or cut
            check_journal(journal.path, Mark(0) if saved is None else saved.journals[name])
        checkpoint.tidy(self.folder / CHECKPOINTS, found)
        self.notes += found.complaints
        if found.complaints:
            where = "the beginning" if saved is None else f"the previous checkpoint, after round {saved.round}"
            self.notes.append(f"going on from {where}")
        elif saved is None and self._journals["rounds"].size:
            self.notes.append("there is no checkpoint: going on from the beginning")
        if saved is None:
            self._put_aside(*([self.folder / MEMORIES] if found.complaints else []))
        for name, journal in self._journals.items():
            journal.cut(0 if saved is None else saved.journals[name].size)
        os.fsync(self._lock)  # the names of the journals, too, survive a power cut
        if saved is None:
            return self.sim.start(self._memories), None
        states = [self.sim.restored(state.tensors, self._memories) for state in saved.states]
        if states[0].clients.lease() is not None:
            before = checkpoint.older(self.folder / CHECKPOINTS, saved)
            self._leases = [*map(self._leases_of, before), [state.clients.lease() for state in states]]
        return states[0], states[-1] if saved.selected is not None else None

    def _check(self, saved: Checkpoint) -> None:
        check_saved(self.sim, self._form, saved, self._memories)

    def _leases_of(self, saved: Checkpoint) -> list[object]:
        """On what an older generation refers to; one that is damaged refers to nothing."""
        leases: list[object] = []
        with suppress(DamagedError):
            for state in saved.states:
                self._form.check(state.round, state.tensors)
                leases.append(self.sim.restored_clients(state.tensors, self._memories).lease())
        return leases

    def _put_aside(self, *more: Path) -> None:
        """Keep the lines of rounds that no checkpoint covers any more, and what else belongs to them."""
        if any(journal.size for journal in self._journals.values()):
            aside = self.folder / f"aside-{uuid.uuid4().hex[:6]}"
            with explained("put aside the lines in", self.folder):
                aside.mkdir()
                for name, journal in self._journals.items():
                    if journal.path.exists():
                        journal.path.rename(aside / journal.path.name)
                    self._journals[name] = Journal(journal.path, self._lock)
                for path in more:
                    if path.exists():
                        path.rename(aside / path.name)
                self._memories = self._record_file()
            self.notes.append(f"the lines that were there are kept in '{aside.name}'")

    def _note_resumption(self, then: dict[str, Any]) -> None:
        today = {**environment.describe(self.sim), "code": environment.code(self.experiment)}
        changed = environment.differences(then, today)
        if changed:
            self.notes.append(f"not bit-identical with a run that was never interrupted: {'; '.join(changed)}")
        entry = {"at": environment.now(), "round": self.progress.t, "changed": changed}
        resumed = [*(then.get("resumed") or []), entry]
        write_json(self.folder / ENVIRONMENT, {**then, "resumed": resumed}, self._lock)

    def _note_tuning(self) -> None:
        """Write down what was decided about speed since, so that a resumed run computes the same bits."""
        tuning = self.sim.runtime.tuning
        if tuning != self._tuning:
            then = read_json(self.folder / ENVIRONMENT)
            write_json(self.folder / ENVIRONMENT, {**then, "tuning": tuning}, self._lock)
            self._tuning = tuning

    def close(self) -> None:
        """Save what is done, and let go of the directory."""
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
        failed = (
            error is not None and self.process_group.world_size > 1
        )  # the others have stopped: nobody to collect from
        if failed or isinstance(error, RunError):  # the disk refuses: trying again would hide why
            self.sim.runtime.close()
            os.close(self._lock)
        else:
            self.close()


def _refuse_linked(folder: Path) -> None:
    """Raise if what a logger writes would go elsewhere."""
    for name in loggers.FOLDERS:
        if (folder / name).is_symlink():
            raise DamagedError(f"'{folder / name}' is a link, and a run writes into its own directory: remove it")


def _about(folder: Path, experiment: Experiment) -> loggers.About:
    """What loggers are told of a run; its key comes from where and when it began, and stays when it is resumed."""
    then = environment_of(folder)
    told = f"{then.get('folder')} {then.get('started')} {folder.name} {(then.get('identity') or {})}"
    tables = to_tables(experiment)
    flat = {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}
    return loggers.About(folder, hashlib.sha256(told.encode()).hexdigest()[:16], flat)


def stored(
    folder: Path, round: str = "newest", device: str | None = None, trust: Trust | bool = NOTHING
) -> tuple[Simulation, Progress, list[Line]]:
    """What a run directory holds, without touching it: simulation, state, and lines up to the newest checkpoint.

    The state is that of the newest checkpoint, or the one after the selected round. `device` is where to compute
    instead of where the run did; `auto` is there, if this machine has it.
    """
    if round not in ROUNDS_KEPT:
        raise unknown("round", round, ROUNDS_KEPT)
    then = environment_of(folder)
    sim = _simulation(folder, then, config_of(folder), trust, device)
    form, file = SavedForm.of(sim), StateFile(folder / MEMORIES, sim.state_format.size, writable=False)
    found = checkpoint.find(folder / CHECKPOINTS, lambda saved: check_saved(sim, form, saved, file))
    saved = found.checkpoint
    if saved is None:
        raise RunError(f"'{folder}' has no checkpoint to read: {'; '.join(found.complaints) or 'none was saved yet'}")
    for complaint in found.complaints:
        log.warning("%s: an older checkpoint is read", complaint)
    lines = read_lines(folder / ROUNDS, until=saved.journals["rounds"])
    check_history(folder / ROUNDS, lines, saved.round)
    state = _asked_for(folder, saved, lines, round)
    return sim, sim.restored(state.tensors, file), lines


def counting_line(folder: Path, lines: list[Line]) -> Line | None:
    """The line of the round that a run's tables score."""
    return Selection.of(lines, config_of(folder).evaluate, None).line


def _asked_for(folder: Path, saved: Checkpoint, lines: list[Line], round: str) -> Saved:
    newest = Saved(saved.round, saved.tensors)
    if round == "newest":
        return newest
    chosen = counting_line(folder, lines)
    if saved.selected is None or chosen is None:
        if chosen is not None and chosen["round"] != saved.round:
            log.warning(
                "'%s' has not kept the state of its selected round %s: you get round %s, its newest checkpoint",
                *(folder, chosen["round"], saved.round),
            )
        return newest
    if saved.selected.round != chosen["round"]:
        raise DamagedError(
            f"the checkpoint of '{folder}' holds round {saved.selected.round} as the selected one, and by its lines "
            f"that is round {chosen['round']}: load the newest one with round='newest'"
        )
    return saved.selected


def check_saved(sim: Simulation, form: SavedForm, saved: Checkpoint, file: StateFile) -> None:
    """Raise unless a checkpoint can be one of this simulation."""
    rounds = sim.algorithm.rounds(sim.setup.rounds)
    if not 1 <= saved.round <= rounds:
        raise DamagedError(f"it is of round {saved.round}, and the run has {rounds}")
    for name in JOURNALS:
        if name not in saved.journals:
            raise DamagedError(f"it does not say how long {name}.jsonl was")
    for state in saved.states:
        form.check(state.round, state.tensors)
        sim.restored_clients(state.tensors, file).check()


def check_journal(path: Path, mark: Mark) -> None:
    """Raise unless a journal up to here is what was committed."""
    for _ in line_bodies(path, until=mark):
        pass


def check_committed(folder: Path, *names: str) -> None:
    """Raise unless journals are what they were when the newest checkpoint was saved; they may have grown since."""
    marks = checkpoint.committed(folder / CHECKPOINTS)
    for name in names:
        if name in marks:
            check_journal(folder / f"{name}.jsonl", marks[name])


def check_history(path: Path, lines: list[Line], rounds: int) -> None:
    """Raise unless there is one line for each of so many rounds."""
    if [line.get("round") for line in lines] != list(range(1, rounds + 1)):
        raise DamagedError(f"'{path}' was changed: it does not hold the {rounds} rounds that were committed")


def config_of(folder: Path) -> Experiment:
    """The configuration in a run directory."""
    return load_stored(folder / CONFIG)


def _simulation(
    folder: Path, then: dict[str, Any], experiment: Experiment, trust: Trust | bool, device: str | None = None
) -> Simulation:
    """The simulation of a run that exists; refused if its configuration, data or model are not what they were."""
    trust = Trust.of(trust).asked_by(folder / CONFIG, then.get("folder"))
    identity = then.get("identity") or {}
    check_config(folder / CONFIG, identity.get("config") or {}, to_tables(experiment))
    asked, tuning = (experiment, then.get("tuning")) if device is None else _elsewhere(experiment, then, device)
    sim = simulation_of(asked, tuning, trust, begun=True)
    for what, today in environment.identity(sim).items():
        if identity.get(what) != today:
            raise RunError(f"the {what} of '{folder}' is not what the run began with: it cannot be continued")
    check_preprocessing(folder, sim.runtime.federation)
    return sim


def _elsewhere(experiment: Experiment, then: dict[str, Any], device: str) -> tuple[Experiment, dict[str, Any] | None]:
    """The experiment on a device of this machine; what was decided for another kind of device is left to it."""
    there = device_or_cpu(str(then.get("device") or experiment.run.device)) if device == "auto" else device
    run = replace(
        experiment.run, device=there, memory_limit=None
    )  # a limit of rounds, perhaps of another device's memory
    if there.partition(":")[0] == str(then.get("device")).partition(":")[0]:
        return replace(experiment, run=run), then.get("tuning")
    usual = type(run)()
    run = replace(run, precision=usual.precision, compile=usual.compile, graphs=usual.graphs)
    return replace(experiment, run=replace(run, convolutions=usual.convolutions)), None


def refuse_existing(folder: Path) -> None:
    """Raise if something is there already."""
    try:
        taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise RunError(f"cannot look into '{folder}': {error.strerror}") from error
    if not taken:
        return
    if not folder.is_dir():
        raise RunError(f"'{folder}' exists and is not a folder: choose another --out")
    for file, kind in ((ENVIRONMENT, "run"), (COMPARISON, "comparison")):
        if (folder / file).exists():
            again = f"strata resume {shlex.quote(str(folder))}"
            raise RunError(f"'{folder}' holds a {kind} already: continue it with '{again}', or choose another --out")
    raise RunError(f"'{folder}' exists and is not empty: choose another --out")


def anchored(experiment: Experiment) -> Experiment:
    """The experiment with its files named in full, so that it can be resumed from another folder."""
    data, model = experiment.data, experiment.model
    if is_place(data.name):
        data = replace(data, name=str(Path(data.name).absolute()))
    if data.path is not None:
        data = replace(data, path=str(Path(data.path).absolute()))
    if model.weights is not None:
        model = replace(model, weights=str(Path(model.weights).absolute()))
    return replace(experiment, data=data, model=model)


def is_run(folder: Path) -> bool:
    """Whether a folder is a run directory."""
    return is_plain(folder / CONFIG) and is_plain(folder / ENVIRONMENT)


def environment_of(folder: Path) -> dict[str, Any]:
    """What a run directory says of itself, if this version can read it."""
    if not is_run(folder):
        raise RunError(f"'{folder}' is not a run directory: it has no {CONFIG} and {ENVIRONMENT} of its own")
    then = read_json(folder / ENVIRONMENT)
    found = then.get("format")
    if type(found) is not int or not 1 <= found <= environment.FORMAT:
        raise RunError(
            f"'{folder}' was written by stratafl {str(then.get('stratafl'))[:40]} in format {str(found)[:40]}, "
            f"this one reads up to format {environment.FORMAT}: install a newer stratafl"
        )
    wrong = environment.misstated(then)
    if wrong is not None:
        raise DamagedError(f"'{folder / ENVIRONMENT}' is damaged: {wrong}")
    return then


def check_config(path: Path, then: dict[str, Any], today: dict[str, Any]) -> None:
    """Raise if a configuration is not what it was, naming the first key; keys that came later had their default."""
    then = to_tables(from_stored(then)) if then else today
    for table in sorted({*then, *today}):
        before, after = then.get(table, {}), today.get(table, {})
        for key in sorted({*before, *after}):
            was, now = before.get(key), after.get(key)
            if was != now:
                raise RunError(
                    f"'{path}' was changed: {table}.{key} was {was!r} and is {now!r}; "
                    "put it back, or start a new run with --config"
                )


def _locked(folder: Path) -> int:
    """A lock on the directory that ends with the process, however it ends."""
    with explained("open", folder):
        handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise BusyError(f"another process is at work in '{folder}'") from error
    except OSError as error:
        os.close(handle)
        raise RunError(f"cannot lock '{folder}': {error.strerror}") from error
    return handle
