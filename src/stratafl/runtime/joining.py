"""Joined runs: several runs in one process, whose clients take their steps together.

A comparison is a matrix too. Each run is a thread, and only one thread works at a time: a run works until it asks for a
scan, then it waits. When all runs wait, scans that are alike are executed as one: clients of all runs take turns at the
slots of one captured step (`captured.py`). No algorithm knows, and what a run computes does not depend on the others.

No exception is ever raised in another thread. A run that has to stop finds a flag at its next stop point, which is a
scan that it asks for or a step that it takes alone. So it never stops while it writes a file.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass

import torch

from stratafl.core.lanes import use_threads
from stratafl.core.reprs import short_repr
from stratafl.core.state import State
from stratafl.runtime.captured import CapturedSteps
from stratafl.runtime.scan import Scan
from stratafl.runtime.speed import Precision, precision

Work = Callable[[], object]  # a run from beginning to end
POLL_SECONDS = 0.1  # the driver looks for Ctrl-C this often, because some systems do not interrupt a wait


@short_repr
@dataclass(eq=False)
class ScanRequest:
    """A scan that a run waits for. `steps` executes it, together with scans of other runs that are alike."""

    scan: Scan
    steps: CapturedSteps
    answer: State | None = None
    seconds: float = 0.0  # the run's share of the time that the joined scans took


class JoinedRun(threading.Thread):
    """A run that works until it asks for a scan, and goes on when it has been answered.

    Ctrl-C may come between any two operations of the driver. Turns are counted on both sides, so that none is lost and
    none is granted twice.
    """

    def __init__(self, work: Work, joining: "Joining") -> None:
        super().__init__(daemon=True)
        self._work, self.joining, self._context = work, joining, copy_context()
        self._threads = torch.get_num_threads()  # a new thread would have as many as a lane
        self._changed = threading.Condition()
        self._granted_turns = self._ended_turns = 0
        self._stopping = False
        self.request: ScanRequest | None = None
        self.asked: set[Hashable] = set()  # the likeness of its scans
        self.ended = False
        self.failure: BaseException | None = None
        self.others_seconds = 0.0  # time that it spent waiting for other runs
        self.start()

    # Called by the driver

    def advance(self) -> None:
        """Let it work until it asks for a scan or ends. Ctrl-C lets it stop, and is raised here after its turn."""
        turn = self._ended_turns + 1  # the turn already granted, if Ctrl-C came while it was granted
        interrupt: KeyboardInterrupt | None = None
        while not self.ended and self._ended_turns < turn:
            try:
                self._grant(turn)
            except KeyboardInterrupt as error:
                interrupt, self._stopping = error, True
        if interrupt is not None:
            raise interrupt

    def stop(self) -> None:
        """Let it end at its next stop point, and wait for it."""
        self._stopping = True
        while not self.ended:
            with suppress(KeyboardInterrupt):
                self.advance()

    def _grant(self, turn: int) -> None:
        with self._changed:
            self._granted_turns = turn
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._ended_turns == turn or self.ended, POLL_SECONDS)

    # Called by the run itself

    def run(self) -> None:
        try:
            self._await_turn()
            use_threads(self._threads)
            self._context.run(self._work)
        except BaseException as error:  # raised again where all runs are driven
            self.failure = error
        finally:
            del self._work, self._context  # and what they hold
            self.ended = True
            self._end_turn()

    def ask(self, request: ScanRequest) -> State | None:
        """The carry after the scan, or None if it cannot be joined; waits for it."""
        self.asked.add(request.scan.likeness)
        self.request = request
        try:
            self.pause()
        finally:
            self.request = None
        self.others_seconds -= request.seconds
        return request.answer

    def pause(self) -> None:
        """Let the others go on to their next scan."""
        begin = time.perf_counter()
        self._end_turn()
        self._await_turn()
        self.others_seconds += time.perf_counter() - begin

    def stop_point(self) -> None:
        """Raise KeyboardInterrupt here if it has to stop; also called by its lanes."""
        if self._stopping:
            raise KeyboardInterrupt

    def _await_turn(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._granted_turns > self._ended_turns)
        self.stop_point()

    def _end_turn(self) -> None:
        with self._changed:
            self._ended_turns = self._granted_turns
            self._changed.notify_all()


class Joining:
    """Drives runs that are under way together, as many as `max_runs` says; all have the same precision."""

    def __init__(self, max_runs: Callable[[], int], precision: Precision = "fp32") -> None:
        self._max_runs, self._precision = max_runs, precision
        self._steps: dict[Hashable, CapturedSteps] = {}
        self._under_way: list[JoinedRun] = []
        self._run_ended = False  # since steps were last freed

    def steps(self, key: Hashable, make: Callable[[], CapturedSteps]) -> CapturedSteps:
        """The captured steps of all runs with this key."""
        if key not in self._steps:
            self._steps[key] = make()
        return self._steps[key]

    def drive(self, works: Iterator[Work]) -> None:
        """Drive all of them to their end. If one fails, the others stop at their next scan and the error is raised."""
        try:
            with precision(self._precision):
                while self._admit(works) or self._under_way:
                    self._free_steps()
                    self._answer([run.request for run in self._under_way if run.request is not None])
                    for run in self._under_way:
                        self._advance(run)
        except BaseException:
            for run in self._under_way:
                run.stop()
            raise
        finally:
            for steps in self._steps.values():
                steps.close()
            self._steps.clear()

    def _admit(self, works: Iterator[Work]) -> bool:
        """Begin further runs while there is room, each up to its first scan. False if there are no more."""
        self._under_way = [run for run in self._under_way if not run.ended]
        while len(self._under_way) < max(1, self._max_runs()):
            work = next(works, None)
            if work is None:
                return False
            run = JoinedRun(work, self)
            self._under_way.append(run)
            self._advance(run)
            self._under_way = [run for run in self._under_way if not run.ended]
        return True

    def _free_steps(self) -> None:
        """Free the steps of runs that have ended. Runs that just began may use them, so this waits for their scans."""
        if not self._run_ended:
            return
        self._run_ended, used = False, frozenset[Hashable]().union(*(run.asked for run in self._under_way))
        for steps in self._steps.values():
            steps.free_unused(used)

    def _advance(self, run: JoinedRun) -> None:
        run.advance()
        self._run_ended |= run.ended
        if run.failure is not None:
            raise run.failure

    def _answer(self, requests: Sequence[ScanRequest]) -> None:
        """Execute the scans, those that are alike together."""
        groups: dict[Hashable, list[ScanRequest]] = {}
        for request in requests:
            groups.setdefault((id(request.steps), request.scan.likeness), []).append(request)
        for group in groups.values():
            begin = time.perf_counter()
            answers: Sequence[State | None] | None = group[0].steps.scan([request.scan for request in group])
            steps = [sum(request.scan.steps) for request in group]
            seconds_per_step = (time.perf_counter() - begin) / max(1, sum(steps))
            for request, answer, count in zip(group, answers or [None] * len(group), steps, strict=True):
                request.answer, request.seconds = answer, seconds_per_step * count


def this_run() -> JoinedRun | None:
    """The joined run whose thread this is, if it is one."""
    thread = threading.current_thread()
    return thread if isinstance(thread, JoinedRun) else None
