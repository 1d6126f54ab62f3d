"""Crashes at file operations, as a disk sees them: the process is gone, nothing is tidied up, unsynced data are lost.

Every call of an operation that a crash could separate from the next is counted. A plan says at which of them to crash,
and how:

    before    the operation never happened
    after     it happened, and nothing after it
    torn      a write, or a file that was renamed without fsync, is cut in half
    power     there is a power cut: renames are lost that no fsync of their folder confirmed, and half of each file
              that was renamed without fsync
"""

import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OPERATIONS = ("open", "mkdir", "chmod", "fsync", "replace", "unlink", "pwrite", "ftruncate", "utime")
HOW: Mapping[str, tuple[str, ...]] = {
    "arrow": ("before", "power"),
    "open": ("before",),
    "fsync": ("before", "torn", "power"),
    "replace": ("before", "after", "torn"),
    "pwrite": ("before", "torn", "after"),
}
BOTH = ("before", "after")


class Crash(BaseException):  # so that nothing on the way handles it
    """The process is gone."""


@dataclass
class Disk:
    """Counts operations and crashes at those of the plan: number of the operation, from 0, and how."""

    plan: dict[int, str] = field(default_factory=dict)
    full: int | None = None  # from this operation on, the disk is full
    seen: list[str] = field(default_factory=list)
    dead: bool = False
    _synced: dict[int, int] = field(default_factory=dict)  # bytes of each file that are on the disk
    _renamed: list[tuple[Any, Any, bytes | None]] = field(default_factory=list)
    _unsynced: set[Any] = field(default_factory=set)  # what was renamed without fsync
    _real: dict[str, Callable[..., Any]] = field(default_factory=dict)

    @contextmanager
    def __call__(self) -> Iterator["Disk"]:
        self._real = {name: getattr(os, name) for name in OPERATIONS}
        for name in OPERATIONS:
            setattr(os, name, self._counted(name))
        try:
            yield self
        finally:
            for name, function in self._real.items():
                setattr(os, name, function)

    def arrow(self, name: str) -> None:
        self._step("arrow")

    def restarted(self) -> None:
        self.dead = False
        self._renamed.clear()
        self._unsynced.clear()

    def _counted(self, name: str) -> Callable[..., Any]:
        def operation(*given: Any, **named: Any) -> Any:
            how = self._step(name)
            if self._is_full(name, *given):
                raise OSError(28, "No space left on device")
            if how is None:
                return self._done(name, *given, **named)
            if how == "after":
                self._done(name, *given, **named)
            elif how == "torn":
                self._tear(name, *given, **named)
            elif how == "power":
                self.cut_power()
            self.dead = True
            raise Crash

        return operation

    def _step(self, name: str) -> str | None:
        """How to crash at this operation; None: not at all."""
        if self.dead:
            raise Crash
        how = self.plan.get(len(self.seen))
        self.seen.append(name)
        if how is not None and name == "arrow":
            if how == "power":
                self.cut_power()
            self.dead = True
            raise Crash
        return how if how is None or how in ways(name) else "before"  # after a crash other operations have the number

    def _is_full(self, name: str, *given: Any) -> bool:
        if self.full is None or len(self.seen) <= self.full:
            return False
        return name in ("mkdir", "replace", "pwrite") or (name == "fsync" and stat.S_ISREG(os.fstat(given[0]).st_mode))

    def _done(self, name: str, *given: Any, **named: Any) -> Any:
        if name == "fsync":  # for real it takes time and shows nothing
            self._sync(os.fstat(given[0]))
            return None
        if name == "replace":
            before = Path(given[1]).read_bytes() if Path(given[1]).is_file() else None
            self._unsynced.discard(given[1])
            if os.stat(given[0]).st_ino not in self._synced:
                self._unsynced.add(given[1])
            done = self._real[name](*given, **named)
            self._renamed.append((*given[:2], before))
            return done
        done = self._real[name](*given, **named)
        if name == "open" and given[1] & os.O_EXCL:  # a new file may have the number of one that is gone
            self._synced.pop(os.fstat(done).st_ino, None)
        return done

    def _sync(self, told: os.stat_result) -> None:
        if stat.S_ISDIR(told.st_mode):
            self._renamed.clear()
        else:
            self._synced[told.st_ino] = told.st_size

    def _tear(self, name: str, *given: Any, **named: Any) -> None:
        if name == "pwrite":
            handle, data, place = given
            self._real[name](handle, bytes(data)[: len(data) // 2], place)
        elif name == "fsync" and stat.S_ISREG(os.fstat(given[0]).st_mode):
            told = os.fstat(given[0])
            self._real["ftruncate"](given[0], (self._synced.get(told.st_ino, 0) + told.st_size) // 2)
        elif name == "replace":
            self._done(name, *given, **named)
            path = Path(given[1])
            if path.is_file() and path.stat().st_ino not in self._synced:
                os.truncate(path, path.stat().st_size // 2)

    def cut_power(self) -> None:
        for source, target, before in reversed(self._renamed):
            with suppress(OSError):  # a block that is gone by now
                self._real["replace"](target, source)
            if before is not None:
                Path(target).write_bytes(before)
        for target in self._unsynced:
            with suppress(OSError):
                os.truncate(target, os.path.getsize(target) // 2)


def ways(operation: str) -> tuple[str, ...]:
    return HOW.get(operation, BOTH)


PATIENCE = 60  # restarts of a server until a federation that makes no progress is given up


def run_with_crashes(federation: Any, disk: Disk, *, again: bool) -> None:
    """Run a federation whose processes crash as planned and are started again.

    A site that crashed is asked again in the same round, or left alone until the next.
    """

    def answer(site: str, data: bytes) -> bytes | None:
        try:
            return federation.answer(site, data)
        except Crash:
            disk.restarted()
            return None

    def session(server: Any) -> None:
        def asking(site: str, data: bytes) -> bytes | None:
            reply = answer(site, data)
            while reply is None and again:
                reply = answer(site, server.commit(site) if server.round >= federation.rounds else server.ask(site))
            return reply

        federation.all_rounds(server, asking)

    with disk():
        for _ in range(PATIENCE):
            try:
                with federation.server() as server:
                    return session(server)
            except Crash:
                disk.restarted()
    raise AssertionError("this federation makes no progress")
