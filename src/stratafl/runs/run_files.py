"""The files that a run writes round by round: journals, checkpoints, client states; and how to restore them."""

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from stratafl.errors import DamagedError
from stratafl.evaluation.trial import RoundLines
from stratafl.execute import ProcessGroup, Progress, Simulation
from stratafl.execute.disk import StateFile
from stratafl.execute.simulation import SavedForm
from stratafl.files import explained
from stratafl.runs import checkpoint
from stratafl.runs.checkpoint import Checkpoint, SavedState
from stratafl.runs.client_journal import journal_lines
from stratafl.runs.directory import CHECKPOINTS, CLIENT_STATES, JOURNALS, check_journal, check_saved
from stratafl.runs.distributed import collected
from stratafl.runs.json_files import Journal, JournalMark


class RunFiles:
    """The files of a run whose directory is locked; `handle` is that of the directory."""

    def __init__(self, folder: Path, handle: int, sim: Simulation, process_group: ProcessGroup) -> None:
        self._folder, self._handle, self._sim, self._process_group = folder, handle, sim, process_group
        self.notes: list[str] = []  # what the user should know
        self._form = SavedForm.of(sim)
        self._client_file = self._state_file()
        self._leases: list[object] = []  # on the records that kept checkpoints refer to, the oldest first
        self._journals = {name: Journal(folder / f"{name}.jsonl", handle) for name in JOURNALS}

    @property
    def marks(self) -> dict[str, JournalMark]:
        """Where the journals end."""
        return {name: journal.mark for name, journal in self._journals.items()}

    def append(self, entry: RoundLines) -> None:
        self._journals["rounds"].append([entry.round])
        self._journals["clients"].append(journal_lines(entry.round["round"], entry.tables))
        self._journals["layers"].append(entry.layers)

    def save(self, progress: Progress, selected: Progress | None, marks: Mapping[str, JournalMark]) -> None:
        """Write a checkpoint of the state after the rounds up to these marks; what was written since is cut off."""
        for name, journal in self._journals.items():
            journal.cut(marks[name].size)
        states = [progress] if selected is None or selected.t == progress.t else [progress, selected]
        saved = [self._saved(state) for state in states]
        new = Checkpoint(progress.t, saved[0].tensors, marks, None if selected is None else saved[-1])
        checkpoint.save(self._folder / CHECKPOINTS, new, self._handle)
        leases = [state.clients.lease() for state in states]
        self._leases = [*self._leases, leases][-checkpoint.GENERATIONS :]

    def _saved(self, progress: Progress) -> SavedState:
        whole = collected(self._process_group, self._sim, progress)
        whole.clients.settle()
        tensors = whole.tensors()
        self._form.check_before_saving(tensors)
        return SavedState(progress.t, tensors)

    def restored(self) -> tuple[Progress, Progress | None]:
        """The state to continue from, and that after the selected round, if it was kept."""
        folder = self._folder / CHECKPOINTS
        search = checkpoint.find(folder, lambda saved: check_saved(self._sim, self._form, saved, self._client_file))
        saved = search.checkpoint
        for name, journal in self._journals.items():  # before anything is moved or cut
            check_journal(journal.path, JournalMark(0) if saved is None else saved.journals[name])
        checkpoint.tidy(folder, search)
        self.notes += search.complaints
        if search.complaints:
            where = "the beginning" if saved is None else f"the previous checkpoint, after round {saved.round}"
            self.notes.append(f"continuing from {where}")
        elif saved is None and self._journals["rounds"].size:
            self.notes.append("there is no checkpoint: continuing from the beginning")
        if saved is None:
            self._put_aside(*([self._folder / CLIENT_STATES] if search.complaints else []))
        for name, journal in self._journals.items():
            journal.cut(0 if saved is None else saved.journals[name].size)
        os.fsync(self._handle)  # the names of the journals, too, survive a power cut
        if saved is None:
            return self._sim.start(self._client_file), None
        states = [self._sim.restored(state.tensors, self._client_file) for state in saved.states]
        if states[0].clients.lease() is not None:
            before = map(self._leases_of, checkpoint.older(folder, saved))
            self._leases = [*before, [state.clients.lease() for state in states]]
        return states[0], states[-1] if saved.selected is not None else None

    def _leases_of(self, saved: Checkpoint) -> list[object]:
        """Leases on the records that an older generation refers to; a damaged one refers to none."""
        leases: list[object] = []
        with suppress(DamagedError):
            for state in saved.states:
                self._form.check(state.round, state.tensors)
                leases.append(self._sim.restored_clients(state.tensors, self._client_file).lease())
        return leases

    def _put_aside(self, *more: Path) -> None:
        """Move the lines of rounds that no checkpoint covers, and `more`, into a folder of their own."""
        if any(journal.size for journal in self._journals.values()):
            aside = self._folder / f"aside-{uuid.uuid4().hex[:6]}"
            with explained("move the lines in", self._folder):
                aside.mkdir()
                for path in (*(journal.path for journal in self._journals.values()), *more):
                    if path.exists():
                        path.rename(aside / path.name)
                self._journals = {name: Journal(each.path, self._handle) for name, each in self._journals.items()}
                self._client_file = self._state_file()
            self.notes.append(f"the previous lines are kept in '{aside.name}'")

    def _state_file(self) -> StateFile:
        return StateFile(self._folder / CLIENT_STATES, self._sim.state_format.size, folder=self._handle)
