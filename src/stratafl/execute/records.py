"""Client memories on disk: records of one size in one file, never written over while anybody refers to them.

A client's next version goes into a slot that is free, and an index says which slot is whose. Versions are told apart by
their index alone, so a checkpoint is an index, and the one that a killed process left is as true as it was. A slot is
free when no index that is alive refers to it: whoever keeps a checkpoint holds its index (`lease`).

The file is read and written by position, not through a map: a memory is copied out whole anyway, and a map would answer
a full disk or a cut file by killing the process, where a call says what is wrong.
"""

import os
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.reprs import short_repr
from stratafl.core.state import State, flatten, moved, pick, unflatten
from stratafl.errors import DamagedError, RunError
from stratafl.execute.clients import Clients
from stratafl.files import open_plain

NOBODY = -1  # the slot of a client that has no memory yet
SLOTS, SUMS = "memories/slots", "memories/sums"
_VERSIONS = 16  # of every client's record: more than are ever kept
Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """One tensor of a record."""

    path: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    bytes: int


class Format:
    """How a memory is laid out as bytes: its tensors end to end."""

    def __init__(self, memory: State) -> None:
        self.parts = tuple(
            Part(path, x.dtype, tuple(x.shape), x.numel() * x.element_size()) for path, x in flatten(memory).items()
        )
        self.size = sum(part.bytes for part in self.parts)
        self._sum = zlib.crc32(repr(self.parts).encode())

    def sum(self, data: bytes) -> int:
        """A checksum, another one where tensors are laid out in another way."""
        return zlib.crc32(data, self._sum)

    def encode(self, memory: State) -> bytes:
        """A memory as bytes."""
        flat = flatten(memory)
        found = tuple((path, x.dtype, tuple(x.shape)) for path, x in flat.items())
        if found != tuple((part.path, part.dtype, part.shape) for part in self.parts):
            raise RunError("a client's memory has not the shape it enrolled with, which records on disk need: use RAM")
        return b"".join(x.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for x in flat.values())

    def decode(self, data: bytes) -> State:
        """The memory, each tensor in memory of its own."""
        flat: Rows = {}
        start = 0
        for part in self.parts:
            whole = torch.empty(part.bytes, dtype=torch.uint8)
            whole.numpy()[:] = np.frombuffer(data, np.uint8, part.bytes, start)
            flat[part.path] = whole.view(part.dtype).reshape(part.shape)
            start += part.bytes
        return unflatten(flat)


@short_repr
@dataclass(frozen=True, eq=False)
class Index:
    """The slot and the checksum of each client's record; 16 bytes per client is what a version costs."""

    slots: Numbers
    sums: Numbers

    @staticmethod
    def empty(clients: int) -> "Index":
        """Nobody has a memory."""
        return Index(np.full(clients, NOBODY, dtype=np.int64), np.zeros(clients, dtype=np.int64))

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> "Index | None":
        """The index in a checkpoint, if there is one."""
        if SLOTS not in tensors:
            return None
        return Index(*(tensors[name].cpu().numpy().copy() for name in (SLOTS, SUMS)))

    def tensors(self) -> Rows:
        """For a checkpoint."""
        return {SLOTS: torch.from_numpy(self.slots), SUMS: torch.from_numpy(self.sums)}

    def changed(self, ids: Sequence[int], slots: Sequence[int], sums: Sequence[int]) -> "Index":
        """With other records of these clients."""
        after = Index(self.slots.copy(), self.sums.copy())
        after.slots[list(ids)], after.sums[list(ids)] = slots, sums
        return after

    @property
    def end(self) -> int:
        """The first slot after all that it refers to."""
        return int(self.slots.max(initial=NOBODY)) + 1


class RecordFile:
    """A file of records, opened when it is first needed, and which of its slots are free.

    Without a path it is a file without a name, which goes with the process.
    """

    def __init__(self, path: Path | None, size: int, *, writable: bool = True, folder: int | None = None) -> None:
        self.path, self.size, self._named, self._writable = path or Path("memories"), size, path is not None, writable
        self._folder = folder  # the handle of the directory that the file is in, wherever that is now
        self._indices: weakref.WeakSet[Index] = weakref.WeakSet()
        self._free: list[int] = []
        self._end = 0

    @cached_property
    def _handle(self) -> int:
        with _explained("open", self.path):
            handle = _opened(self.path, self._writable, self._folder) if self._named else _nameless()
        weakref.finalize(self, os.close, handle)
        return handle

    def check(self, index: Index) -> None:
        """Raise unless the index gives everybody a slot of their own that is in the file."""
        slots = index.slots[index.slots != NOBODY]
        there = _VERSIONS * (len(index.slots) + 1)
        if self.size and len(slots):
            with _explained("read", self.path):
                there = os.fstat(self._handle).st_size // self.size
        for client in np.flatnonzero(index.slots >= there)[:1].tolist():
            raise DamagedError(f"'{self.path}' was cut: the memory of client {client} is not in it any more")
        if (slots < 0).any() or len(np.unique(slots)) < len(slots):
            raise DamagedError(f"two clients have the same slot in '{self.path}', or one that is not there")

    def register(self, index: Index) -> None:
        """Keep the records that an index refers to, for as long as somebody has it."""
        self._indices.add(index)
        self._end = max(self._end, index.end)

    def write(self, records: Sequence[bytes]) -> list[int]:
        """Put records into free slots, which are theirs once an index that refers to them is registered."""
        slots = self._taken(len(records))
        with _explained("write", self.path):
            for slot, data in zip(slots, records, strict=True):
                _write_all(self._handle, data, slot * self.size)
        return slots

    def read(self, slot: int) -> bytes:
        """The bytes in a slot; fewer where the file was cut."""
        with _explained("read", self.path):
            return os.pread(self._handle, self.size, slot * self.size)

    def sync(self) -> None:
        """Make sure that all of it is on the disk."""
        with _explained("write", self.path):
            os.fsync(self._handle)

    def _taken(self, count: int) -> list[int]:
        # What was free stays free until it is taken: only when nothing is left is it worth looking again.
        if len(self._free) < count:
            self._free = self._unreferred()
        fresh = max(count - len(self._free), 0)
        slots = [*self._free[: count - fresh], *range(self._end, self._end + fresh)]
        self._free, self._end = self._free[count - fresh :], self._end + fresh
        return slots

    def _unreferred(self) -> list[int]:
        free = np.ones(self._end + 1, dtype=bool)
        free[self._end] = False  # where NOBODY points to
        for index in self._indices:
            free[index.slots] = False
        found: list[int] = np.flatnonzero(free[:-1]).tolist()
        return found


class OnDisk(Clients):
    """Kept in a file of records; reading a memory copies it out."""

    def __init__(self, file: RecordFile, layout: Format, index: Index) -> None:
        self._file, self._format, self._index = file, layout, index
        file.register(index)

    def updated(self, ids: Sequence[int], memory: State) -> "OnDisk":
        """The next version, in slots that nobody refers to."""
        memory = moved(memory, torch.device("cpu"))
        records = [self._format.encode(pick(memory, c)) for c in range(len(ids))]
        sums = [self._format.sum(data) for data in records]
        return OnDisk(self._file, self._format, self._index.changed(ids, self._file.write(records), sums))

    def tensors(self) -> Rows:
        """The index: the records stay where they are."""
        return self._index.tensors()

    def settle(self) -> None:
        """Records reach the disk before the checkpoint that refers to them."""
        self._file.sync()

    def lease(self) -> Index:
        """The index, which keeps its records from being written over."""
        return self._index

    def __getitem__(self, client: int) -> State:
        return self._format.decode(self._read(client))

    def __contains__(self, client: object) -> bool:
        return isinstance(client, int) and 0 <= client < len(self._index.slots) and self._index.slots[client] != NOBODY

    def __iter__(self) -> Iterator[int]:
        yield from np.flatnonzero(self._index.slots != NOBODY).tolist()

    def __len__(self) -> int:
        return int((self._index.slots != NOBODY).sum())

    def check(self) -> None:
        """Read every record once."""
        for client in self:
            self._read(client)

    def _read(self, client: int) -> bytes:
        if client not in self:
            raise KeyError(client)
        data = self._file.read(int(self._index.slots[client]))
        if len(data) < self._format.size:
            raise DamagedError(f"'{self._file.path}' was cut: the memory of client {client} is not in it any more")
        if self._format.sum(data) != self._index.sums[client]:
            raise DamagedError(
                f"the memory of client {client} in '{self._file.path}' is damaged or written over: wrong checksum"
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


def _nameless() -> int:
    handle, name = tempfile.mkstemp(prefix="memories-")
    os.unlink(name)
    return handle


def _write_all(handle: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        done = os.pwrite(handle, view, position)
        view, position = view[done:], position + done


@contextmanager
def _explained(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot {action} '{path}': {error.strerror or error}") from error
    except DamagedError as error:  # a link: no reason to begin anew, which damage would be
        raise RunError(str(error)) from error
