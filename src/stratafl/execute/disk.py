"""Client states on disk: entries of one size in one file, never overwritten while an index refers to them.

A client's next state goes into a free slot, and an index says which slot holds whose state. Versions differ in their
index alone, so a checkpoint is an index, and the one that a killed process left is still valid. A slot is free when no
living index refers to it: hold the index (`lease`) for as long as a checkpoint is kept.

The file is read and written by position, not memory-mapped: a state is copied out whole anyway, and with a map a full
disk or a truncated file would kill the process instead of raising an error.
"""

import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.reprs import holder
from stratafl.core.state import State, moved, pick
from stratafl.errors import DamagedError, RunError
from stratafl.execute.client_states import ClientStates
from stratafl.execute.state_format import StateFormat
from stratafl.files import open_plain, write_all

NO_SLOT = -1  # of a client that has no state yet
SLOTS, SUMS = "memories/slots", "memories/sums"
_VERSIONS = 16  # of every client's state: more than are ever kept
Numbers = NDArray[np.int64]


@holder
class Index:
    """The slot and the checksum of each client's state: 16 bytes per client and version."""

    slots: Numbers
    sums: Numbers

    @staticmethod
    def empty(clients: int) -> "Index":
        return Index(np.full(clients, NO_SLOT, dtype=np.int64), np.zeros(clients, dtype=np.int64))

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> "Index | None":
        """The index in a checkpoint, if there is one."""
        if SLOTS not in tensors:
            return None
        return Index(*(tensors[name].cpu().numpy().copy() for name in (SLOTS, SUMS)))

    def tensors(self) -> Rows:
        return {SLOTS: torch.from_numpy(self.slots), SUMS: torch.from_numpy(self.sums)}

    def changed(self, ids: Sequence[int], slots: Sequence[int], sums: Sequence[int]) -> "Index":
        after = Index(self.slots.copy(), self.sums.copy())
        after.slots[list(ids)], after.sums[list(ids)] = slots, sums
        return after

    @property
    def end(self) -> int:
        """The first slot after all that are used."""
        return int(self.slots.max(initial=NO_SLOT)) + 1


class StateFile:
    """The file, opened when it is first needed, and which of its slots are free.

    Without a path it is a temporary file, which ends with the process.
    """

    def __init__(self, path: Path | None, size: int, *, writable: bool = True, folder: int | None = None) -> None:
        self.path, self.size, self._named, self._writable = path or Path("memories"), size, path is not None, writable
        self._folder = folder  # the handle of the file's directory, which may have moved
        self._indices: weakref.WeakSet[Index] = weakref.WeakSet()
        self._free: list[int] = []
        self._end = 0

    @cached_property
    def _handle(self) -> int:
        with _explained("open", self.path):
            handle = _opened(self.path, self._writable, self._folder) if self._named else _temporary()
        weakref.finalize(self, os.close, handle)
        return handle

    def check(self, index: Index) -> None:
        """Raise unless the index gives each client a slot of its own inside the file."""
        slots = index.slots[index.slots != NO_SLOT]
        slots_in_file = _VERSIONS * (len(index.slots) + 1)
        if self.size and len(slots):
            with _explained("read", self.path):
                slots_in_file = os.fstat(self._handle).st_size // self.size
        for client in np.flatnonzero(index.slots >= slots_in_file)[:1].tolist():
            raise DamagedError(f"'{self.path}' was truncated: the state of client {client} is missing")
        if (slots < 0).any() or len(np.unique(slots)) < len(slots):
            raise DamagedError(f"the index of '{self.path}' is damaged: two clients share a slot, or one is negative")

    def register(self, index: Index) -> None:
        """Keep the slots of an index from being reused, for as long as the index lives."""
        self._indices.add(index)
        self._end = max(self._end, index.end)

    def write(self, states: Sequence[bytes]) -> list[int]:
        """Write states into free slots, which stay theirs once an index that refers to them is registered."""
        slots = self._take(len(states))
        with _explained("write", self.path):
            for slot, data in zip(slots, states, strict=True):
                write_all(self._handle, data, slot * self.size)
        return slots

    def read(self, slot: int) -> bytes:
        """The bytes in a slot; fewer where the file was truncated."""
        with _explained("read", self.path):
            return os.pread(self._handle, self.size, slot * self.size)

    def sync(self) -> None:
        with _explained("write", self.path):
            os.fsync(self._handle)

    def _take(self, count: int) -> list[int]:
        # A free slot stays free until it is used, so look for more only when none are left.
        if len(self._free) < count:
            self._free = self._unused()
        fresh = max(count - len(self._free), 0)
        slots = [*self._free[: count - fresh], *range(self._end, self._end + fresh)]
        self._free, self._end = self._free[count - fresh :], self._end + fresh
        return slots

    def _unused(self) -> list[int]:
        free = np.ones(self._end + 1, dtype=bool)
        free[self._end] = False  # what NO_SLOT refers to
        for index in self._indices:
            free[index.slots] = False
        unused: list[int] = np.flatnonzero(free[:-1]).tolist()
        return unused


class OnDisk(ClientStates):
    """Kept in a file; reading a state copies it out."""

    def __init__(self, file: StateFile, layout: StateFormat, index: Index) -> None:
        self._file, self._format, self._index = file, layout, index
        file.register(index)

    def updated(self, ids: Sequence[int], state: State) -> "OnDisk":
        state = moved(state, torch.device("cpu"))
        states = [self._format.encode(pick(state, c)) for c in range(len(ids))]
        sums = [self._format.sum(data) for data in states]
        return OnDisk(self._file, self._format, self._index.changed(ids, self._file.write(states), sums))

    def tensors(self) -> Rows:
        return self._index.tensors()

    def settle(self) -> None:
        self._file.sync()

    def lease(self) -> Index:
        return self._index

    def __getitem__(self, client: int) -> State:
        return self._format.decode(self._read(client))

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int) and 0 <= client < len(self._index.slots) and self._index.slots[client] != NO_SLOT

    def has(self, ids: Tensor) -> Tensor:
        return torch.isin(ids, torch.from_numpy(np.flatnonzero(self._index.slots != NO_SLOT)))

    def __iter__(self) -> Iterator[int]:
        yield from np.flatnonzero(self._index.slots != NO_SLOT).tolist()

    def __len__(self) -> int:
        return int((self._index.slots != NO_SLOT).sum())

    def check(self) -> None:
        for client in self:
            self._read(client)

    def _read(self, client: int) -> bytes:
        if client not in self:
            raise KeyError(client)
        data = self._file.read(int(self._index.slots[client]))
        if len(data) < self._format.size:
            raise DamagedError(f"'{self._file.path}' was truncated: the state of client {client} is missing")
        if self._format.sum(data) != self._index.sums[client]:
            raise DamagedError(
                f"the state of client {client} in '{self._file.path}' is damaged or overwritten: wrong checksum"
            )
        return data


def _opened(path: Path, writable: bool, folder: int | None) -> int:
    if not writable:
        return open_plain(path, folder=folder)
    handle = open_plain(path, os.O_RDWR | os.O_CREAT, folder=folder)
    parent = os.open(path.parent, os.O_RDONLY) if folder is None else folder
    try:
        os.fsync(parent)  # a checkpoint must not survive a power cut that the file's name does not
    finally:
        if parent != folder:
            os.close(parent)
    return handle


def _temporary() -> int:
    handle, name = tempfile.mkstemp(prefix="memories-")
    os.unlink(name)
    return handle


@contextmanager
def _explained(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot {action} '{path}': {error.strerror or error}") from error
    except DamagedError as error:  # a link: no reason to fall back on an older checkpoint, which damage would be
        raise RunError(str(error)) from error
