"""Joined runs: several runs in one process, whose clients take their steps together.

A comparison is a matrix too. Each run is a thread of its own, but only one of them works at a time: it goes on until it
asks for a scan, and waits. When all wait, scans that are alike are executed as one: clients of all runs take turns at
the slots of one captured step. No algorithm knows, and what a run computes does not depend on the others.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass

import torch

from stratafl.core.reprs import short_repr
from stratafl.core.state import State
from stratafl.runtime.captured import CapturedSteps
from stratafl.runtime.scan import Scan
from stratafl.runtime.speed import Precision, precision

Work = Callable[[], object]  # a run from beginning to end
SOON = 0.1  # seconds


@short_repr
@dataclass(eq=False)
class ScanRequest:
    """A scan that a run waits for, which `steps` executes with others that are alike; without one, a pause."""

    scan: Scan | None = None
    steps: CapturedSteps | None = None
    answer: State | None = None
    seconds: float = 0.0  # of the time that the scans took together, its share


class JoinedRun(threading.Thread):
    """A run that works until it asks for a scan, and goes on when it has been answered.

    Turns are counted on both sides, so that Ctrl-C, which may come between any two operations of whoever drives it,
    neither loses a turn nor gives one twice.
    """

    def __init__(self, work: Work, joining: "Joining") -> None:
        super().__init__(daemon=True)
        self._work, self.joining, self._context = work, joining, copy_context()
        self._threads = torch.get_num_threads()  # a new thread would have as many as a lane
        self._changed = threading.Condition()
        self._given = self._taken = 0  # turns
        self.request: ScanRequest | None = None
        self.asked: set[Hashable] = set()  # the likeness of its scans
        self.ended = self._shielded = self._stopping = False
        self.failure: BaseException | None = None
        self.others_seconds = 0.0  # in which it waited for other runs
        self.start()

    def run(self) -> None:
        try:
            self._await_turn()
            torch.set_num_threads(self._threads)
            self._context.run(self._work)
        except BaseException as error:  # raised again where all runs are driven
            self.failure = error
        finally:
            del self._work, self._context  # and what they hold
            self.ended = True
            self._end_turn()

    def advance(self) -> None:
        """Let it work until it asks for a scan or ends; Ctrl-C is raised where it works, and then here."""
        interrupted, told = KeyboardInterrupt() if self._stopping and self._working else None, False
        turn = self._taken + 1  # the one that it has, if whoever gave it was interrupted
        while True:
            try:
                told = told or (interrupted is not None and self._interrupt())
                if self._give(turn) or not self.is_alive():
                    break
            except KeyboardInterrupt as error:
                interrupted, told = error, False
        if interrupted is not None:
            self.ended |= not self.is_alive()  # it may have been interrupted while it ended
            raise interrupted

    def stop(self) -> None:
        """Let it end as if it had been interrupted, and wait for it."""
        self._stopping = True
        while not self.ended:
            with suppress(KeyboardInterrupt):
                self.advance()

    @property
    def _working(self) -> bool:
        return self._given > self._taken

    def _give(self, turn: int) -> bool:
        """Whether it ends this turn soon, which it is given if it has not got it yet."""
        with self._changed:
            self._given = turn
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._taken == turn or self.ended, SOON)

    def _await_turn(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._working)
        if self._stopping:
            raise KeyboardInterrupt

    def _end_turn(self) -> None:
        with self._changed:
            self._taken = self._given
            self._changed.notify_all()

    def _interrupt(self) -> bool:
        """Raise KeyboardInterrupt in its thread, at the next operation of Python; False if it must not be now."""
        if self._shielded:
            return False
        thread = ctypes.c_ulong(self.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(KeyboardInterrupt))
        return True

    @contextmanager
    def shielded(self) -> Iterator[None]:
        """While it must not be interrupted; called by the run itself."""
        self._shielded = True
        try:
            yield
        finally:
            self._shielded = False

    def ask(self, request: ScanRequest) -> State | None:
        """What the scan gives; called by the run itself, which waits."""
        begin, self.request = time.perf_counter(), request
        if request.scan is not None:
            self.asked.add(request.scan.likeness)
        try:
            self._end_turn()
            self._await_turn()
        finally:
            self.request = None
        self.others_seconds += time.perf_counter() - begin - request.seconds
        return request.answer

    def pause(self) -> None:
        """Let the others go on to their next scan; called by the run itself."""
        self.ask(ScanRequest())


class Joining:
    """Drives runs that are under way together, at most `most` at a time; all have the same precision."""

    def __init__(self, most: Callable[[], int], precision: Precision = "fp32") -> None:
        self._most, self._precision = most, precision
        self._steps: dict[Hashable, CapturedSteps] = {}
        self._under_way: list[JoinedRun] = []
        self._fewer = False  # whether a run has ended since steps were given back

    def steps(self, key: Hashable, make: Callable[[], CapturedSteps]) -> CapturedSteps:
        """The captured steps of all runs with this key."""
        if key not in self._steps:
            self._steps[key] = make()
        return self._steps[key]

    def drive(self, works: Iterator[Work]) -> None:
        """All of them to their end; if one fails, the others stop at their next scan and the error is raised."""
        try:
            with precision(self._precision):
                while self._admit(works) or self._under_way:
                    self._free_steps()
                    self._answer([run.request for run in self._under_way if run.request is not None])
                    for run in self._under_way:
                        self._advance(run)
        except BaseException:
            self._stop()
            raise
        finally:
            for steps in self._steps.values():
                steps.close()
            self._steps.clear()

    def _admit(self, works: Iterator[Work]) -> bool:
        """Begin further runs while there is room, each up to its first scan."""
        self._under_way = [run for run in self._under_way if not run.ended]
        while len(self._under_way) < max(1, self._most()):
            work = next(works, None)
            if work is None:
                return False
            run = JoinedRun(work, self)
            self._under_way.append(run)
            self._advance(run)
            self._under_way = [run for run in self._under_way if not run.ended]
        return True

    def _free_steps(self) -> None:
        """Give back the steps of runs that have ended, as soon as others have begun that may use them."""
        if not self._fewer:
            return
        self._fewer, used = False, frozenset[Hashable]().union(*(run.asked for run in self._under_way))
        for steps in self._steps.values():
            steps.free_unused(used)

    def _advance(self, run: JoinedRun) -> None:
        run.advance()
        self._fewer |= run.ended
        if run.failure is not None:
            raise run.failure

    def _answer(self, requests: Sequence[ScanRequest]) -> None:
        """Execute the scans, those that are alike together."""
        groups: dict[Hashable, tuple[CapturedSteps, list[tuple[ScanRequest, Scan]]]] = {}
        for request in requests:
            if request.scan is not None and request.steps is not None:
                key = (id(request.steps), request.scan.likeness)
                groups.setdefault(key, (request.steps, []))[1].append((request, request.scan))
        for steps, group in groups.values():
            begin = time.perf_counter()
            answers: Sequence[State | None] | None = steps.scan([scan for _, scan in group])
            each = (time.perf_counter() - begin) / max(1, sum(sum(scan.steps) for _, scan in group))
            for (request, scan), answer in zip(group, answers or [None] * len(group), strict=True):
                request.answer, request.seconds = answer, each * sum(scan.steps)

    def _stop(self) -> None:
        for run in self._under_way:
            run.stop()


def this_run() -> JoinedRun | None:
    """The joined run that is being worked on, in its thread."""
    thread = threading.current_thread()
    return thread if isinstance(thread, JoinedRun) else None
