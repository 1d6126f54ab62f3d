"""A run that cannot be lost: a directory, a lock, journals that only grow, and two generations of checkpoints.

    config.toml        the complete configuration
    environment.json   versions, device, commit, seed, checksums of data and model, and every resumption
    holdings.json      how many samples of each class each client has
    rounds.jsonl       one line per round
    clients.jsonl      one line per evaluated client and round
    layers.jsonl       one line per layer and round
    checkpoint/        the last two states
    memories.bin       the memories of clients, where they are kept on disk

A round is computed, then its lines are appended, then, now and then, a checkpoint records the state and how long the
journals were. Whoever resumes cuts the journals back to that and repeats the rounds that are missing, bit by bit.
"""

import fcntl
import hashlib
import logging
import os
import shlex
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import tomli_w

from stratafl.assemble import completed, simulation_of
from stratafl.data.loading import is_place
from stratafl.errors import BusyError, RunError
from stratafl.execute import SOLO, Progress, Simulation, Team
from stratafl.execute.clients import Clients
from stratafl.execute.records import RecordFile
from stratafl.experiment import Experiment, from_tables, load, to_tables
from stratafl.measure import Line
from stratafl.runs import checkpoint, environment, loggers
from stratafl.runs.checkpoint import Checkpoint
from stratafl.runs.files import (
    Journal,
    appearing,
    clear_remains,
    explained,
    read_json,
    read_lines,
    sync_folder,
    uninterrupted,
    write_json,
    write_whole,
)
from stratafl.runs.follower import Verdict, collected, hand_out, refuse_disk, trial_of
from stratafl.runs.holdings import write_holdings
from stratafl.summary import stop_reason

log = logging.getLogger("stratafl")
CONFIG, ENVIRONMENT, CHECKPOINTS, MEMORIES = "config.toml", "environment.json", "checkpoint", "memories.bin"
ROUNDS = "rounds.jsonl"
COMPARISON = "compare.toml"  # of the folder that holds a comparison's runs
JOURNALS = ("rounds", "clients", "layers")
SAVING = 0.05  # at most this share of the time goes into checkpoints, where their number is not fixed


class Run:
    """An experiment in its directory, from its beginning or from where it was left; use it as a context."""

    def __init__(self, folder: Path, experiment: Experiment, sim: Simulation, team: Team = SOLO) -> None:
        self.folder, self.experiment, self.sim, self.team = folder, experiment, sim, team
        self.trial = trial_of(experiment, sim, team)
        self.notes: list[str] = []  # what a person should know
        self._lock = _locked(folder)
        try:
            clear_remains(folder)
            self._memories = RecordFile(folder / MEMORIES, sim.format.size)
            self._leases: list[object] = []  # on what the checkpoints that are kept refer to, the oldest first
            self._journals = {name: Journal(folder / f"{name}.jsonl") for name in JOURNALS}
            self._done = (self._restored(), {name: journal.size for name, journal in self._journals.items()})
            self.history: list[Line] = read_lines(folder / ROUNDS)
            self._check_history()
            self._done = (hand_out(team, experiment, sim, self.progress, self.history), self._done[1])
        except BaseException:
            os.close(self._lock)
            raise
        self._loggers = loggers.Loggers(experiment.log.to, _about(folder, experiment))
        self._tuning = sim.workshop.tuning
        self._saved, self._saved_at, self._saving = self.progress.t, time.monotonic(), 0.0

    @classmethod
    def create(cls, experiment: Experiment, folder: Path, team: Team = SOLO) -> Self:
        """A new run; everything is checked before the directory is made, and nothing that exists is written over."""
        refuse_existing(folder)
        experiment = completed(anchored(experiment))
        loggers.check(experiment.log.to)
        sim = simulation_of(experiment)
        refuse_disk(team, sim)
        tables = to_tables(experiment)
        identity = {"config": tables, **environment.identity(sim)}
        about = {**environment.describe(sim), "code": environment.code(experiment)}
        with appearing(folder) as partial:
            write_whole(partial / CONFIG, tomli_w.dumps(tables).encode())
            write_json(partial / ENVIRONMENT, {**about, "resumed": [], "identity": identity})
            write_holdings(partial, sim.workshop.federation)
        return cls(folder, experiment, sim, team)

    @classmethod
    def open(cls, folder: Path, team: Team = SOLO) -> Self:
        """A run that exists; refused if its configuration, data or model are no longer what they were."""
        then, experiment = environment_of(folder), load(folder / CONFIG)
        loggers.check(experiment.log.to)
        run = cls(folder, experiment, _simulation(folder, then, experiment), team)
        try:
            if not run.finished:
                run._note_resumption(then)
        except BaseException:
            os.close(run._lock)
            raise
        return run

    @property
    def progress(self) -> Progress:
        """The state after the rounds that are done."""
        return self._done[0]

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
            for name, lines in (("rounds", [entry.round]), ("clients", entry.clients), ("layers", entry.layers)):
                self._journals[name].append(lines)
            # One assignment: from here on the round counts; interrupted before, its lines are cut off again.
            self._done = (progress, {name: journal.size for name, journal in self._journals.items()})
            self.history.append(entry.round)
            self._loggers.log(entry.round)
            self._note_tuning()
            if self.team.told(Verdict(entry.round, self._due())).saved:
                self.save()
            yield entry.round

    def save(self) -> None:
        """Write a checkpoint, unless the last one is of this round."""
        progress, sizes = self._done
        if self._saved == progress.t:
            return
        begin = time.monotonic()
        with uninterrupted():
            for name, journal in self._journals.items():
                journal.cut(sizes[name])
            whole = collected(self.team, self.sim, progress)
            whole.clients.settle()
            checkpoint.save(self.folder / CHECKPOINTS, Checkpoint(progress.t, whole.tensors(), sizes))
            self._leases = [*self._leases, progress.clients.lease()][-checkpoint.GENERATIONS :]
            self._saved, self._saved_at = progress.t, time.monotonic()
        self._saving = self._saved_at - begin

    def _due(self) -> bool:
        every = self.experiment.run.checkpoint
        if self.finished or (every and self.progress.t % every == 0):
            return True
        return not every and time.monotonic() - self._saved_at >= self._saving / SAVING

    def _restored(self) -> Progress:
        found = checkpoint.find(self.folder / CHECKPOINTS, lambda saved: self._clients(saved).check())
        checkpoint.tidy(self.folder / CHECKPOINTS, found)
        self.notes += found.complaints
        saved = found.checkpoint
        if found.complaints:
            where = "the beginning" if saved is None else f"the previous checkpoint, after round {saved.round}"
            self.notes.append(f"going on from {where}")
        elif saved is None and self._journals["rounds"].size:
            self.notes.append("there is no checkpoint: going on from the beginning")
        if saved is None:
            self._put_aside(*([self.folder / MEMORIES] if found.complaints else []))
        for name, journal in self._journals.items():
            journal.cut(0 if saved is None else saved.journals[name])
        sync_folder(self.folder)  # the names of the journals, too, survive a power cut
        if saved is None:
            return self.sim.start(self._memories)
        progress = self.sim.restored(saved.tensors, self._memories)
        if progress.clients.lease() is not None:
            before = checkpoint.older(self.folder / CHECKPOINTS, saved)
            self._leases = [*(self._clients(each).lease() for each in before), progress.clients.lease()]
        return progress

    def _clients(self, saved: Checkpoint) -> Clients:
        return self.sim.restored_clients(saved.tensors, self._memories)

    def _put_aside(self, *more: Path) -> None:
        """Keep the lines of rounds that no checkpoint covers any more, and what else belongs to them."""
        if any(journal.size for journal in self._journals.values()):
            aside = self.folder / f"aside-{uuid.uuid4().hex[:6]}"
            with explained("put aside the lines in", self.folder):
                aside.mkdir()
                for name, journal in self._journals.items():
                    if journal.path.exists():
                        journal.path.rename(aside / journal.path.name)
                    self._journals[name] = Journal(journal.path)
                for path in more:
                    if path.exists():
                        path.rename(aside / path.name)
                self._memories = RecordFile(self.folder / MEMORIES, self.sim.format.size)
            self.notes.append(f"the lines that were there are kept in '{aside.name}'")

    def _check_history(self) -> None:
        if [line.get("round") for line in self.history] != list(range(1, self.progress.t + 1)):
            where = self.folder / ROUNDS
            raise RunError(f"'{where}' was changed: it does not hold the {self.progress.t} rounds that were committed")

    def _note_resumption(self, then: dict[str, Any]) -> None:
        today = {**environment.describe(self.sim), "code": environment.code(self.experiment)}
        changed = environment.differences(then, today)
        if changed:
            self.notes.append(f"not bit-identical with a run that was never interrupted: {'; '.join(changed)}")
        entry = {"at": environment.now(), "round": self.progress.t, "changed": changed}
        write_json(self.folder / ENVIRONMENT, {**then, "resumed": [*(then.get("resumed") or []), entry]})

    def _note_tuning(self) -> None:
        """Write down what was decided about speed since, so that a resumed run computes the same bits."""
        tuning = self.sim.workshop.tuning
        if tuning != self._tuning:
            write_json(self.folder / ENVIRONMENT, {**read_json(self.folder / ENVIRONMENT), "tuning": tuning})
            self._tuning = tuning

    def close(self) -> None:
        """Save what is done, and let go of the directory."""
        try:
            self.save()
        finally:
            self.sim.workshop.close()
            self._loggers.close()
            os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failed = error is not None and self.team.world > 1  # the others have stopped: nobody to collect from
        if failed or isinstance(error, RunError):  # the disk refuses: trying again would hide why
            self.sim.workshop.close()
            os.close(self._lock)
        else:
            self.close()


def _about(folder: Path, experiment: Experiment) -> loggers.About:
    """What loggers are told of a run; its key comes from where and when it began, and stays when it is resumed."""
    then = environment_of(folder)
    told = f"{then.get('folder')} {then.get('started')} {folder.name} {(then.get('identity') or {})}"
    tables = to_tables(experiment)
    flat = {f"{name}.{key}": value for name, table in tables.items() for key, value in table.items()}
    return loggers.About(folder, hashlib.sha256(told.encode()).hexdigest()[:16], flat)


def stored(folder: Path) -> tuple[Simulation, Progress, list[Line]]:
    """What a run directory holds, without touching it: simulation, newest checkpoint, lines up to there."""
    then = environment_of(folder)
    sim = _simulation(folder, then, load(folder / CONFIG))
    file = RecordFile(folder / MEMORIES, sim.format.size, writable=False)
    found = checkpoint.find(folder / CHECKPOINTS, lambda saved: sim.restored_clients(saved.tensors, file).check())
    if found.checkpoint is None:
        raise RunError(f"'{folder}' has no checkpoint to read: {'; '.join(found.complaints) or 'none was saved yet'}")
    for complaint in found.complaints:
        log.warning("%s: an older checkpoint is read", complaint)
    progress = sim.restored(found.checkpoint.tensors, file)
    return sim, progress, [line for line in read_lines(folder / ROUNDS) if line["round"] <= progress.t]


def _simulation(folder: Path, then: dict[str, Any], experiment: Experiment) -> Simulation:
    """The simulation of a run that exists; refused if its configuration, data or model are not what they were."""
    if then.get("folder") not in (None, *sys.path):
        sys.path.append(then["folder"])  # where its own models and algorithms were found
    identity = then.get("identity") or {}
    check_config(folder / CONFIG, identity.get("config") or {}, to_tables(experiment))
    sim = simulation_of(experiment, then.get("tuning"))
    for what, today in environment.identity(sim).items():
        if identity.get(what) != today:
            raise RunError(f"the {what} of '{folder}' is not what the run began with: it cannot be continued")
    return sim


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
    return (folder / CONFIG).is_file() and (folder / ENVIRONMENT).is_file()


def environment_of(folder: Path) -> dict[str, Any]:
    """What a run directory says of itself, if this version can read it."""
    if not is_run(folder):
        raise RunError(f"'{folder}' is not a run directory: it has no {CONFIG} and {ENVIRONMENT}")
    then = read_json(folder / ENVIRONMENT)
    found = then.get("format")
    if not isinstance(found, int) or found > environment.FORMAT:
        raise RunError(
            f"'{folder}' was written by stratafl {then.get('stratafl')} in format {found!r}, "
            f"this one reads up to format {environment.FORMAT}: install a newer stratafl"
        )
    return then


def check_config(path: Path, then: dict[str, Any], today: dict[str, Any]) -> None:
    """Raise if a configuration is not what it was, naming the first key; keys that came later had their default."""
    then = to_tables(from_tables(then)) if then else today
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
