"""Joined runs: several runs in one process, whose clients take their steps together.

A comparison is a matrix too. Each run is a thread of its own, but only one of them works at a time: it goes on until it
asks for a scan, and waits. When all wait, scans that are alike are executed as one: clients of all runs take turns at
the slots of one captured step. No algorithm knows, and what a run computes does not depend on the others.
"""

import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from stratafl.core.reprs import short_repr
from stratafl.core.state import State
from stratafl.runtime.captured import CapturedSteps
from stratafl.runtime.scan import Scan
from stratafl.runtime.speed import Precision, precision

Work = Callable[[], object]  # a run from beginning to end


@short_repr
@dataclass(eq=False)
class Request:
    """A scan that a run waits for, which `steps` executes with others that are alike; without one, a pause."""

    scan: Scan | None = None
    steps: CapturedSteps | None = None
    answer: State | None = None
    error: BaseException | None = None
    seconds: float = 0.0  # of the time that the scans took together, its share


class JoinedRun(threading.Thread):
    """A run that works until it asks for a scan, and goes on when it has been answered."""

    def __init__(self, work: Work, joining: "Joining") -> None:
        super().__init__(daemon=True)
        self._work, self.joining = work, joining
        self._go, self._paused = threading.Semaphore(0), threading.Semaphore(0)
        self.request: Request | None = None
        self.ended = False
        self.failure: BaseException | None = None
        self.others_seconds = 0.0  # in which it waited for other runs
        self.start()

    def run(self) -> None:
        self._go.acquire()
        try:
            self._work()
        except BaseException as error:  # raised again where all runs are driven
            self.failure = error
        finally:
            del self._work  # and what it holds
            self.ended = True
            self._paused.release()

    def advance(self) -> None:
        """Let it work until it asks for a scan or ends; Ctrl-C is raised only then."""
        self._go.release()
        interrupted = None
        while True:
            try:
                self._paused.acquire()
                break
            except KeyboardInterrupt as error:
                interrupted = error
        if interrupted is not None:
            raise interrupted

    def ask(self, request: Request) -> State | None:
        """What the scan gives; called by the run itself, which waits."""
        begin, self.request = time.perf_counter(), request
        self._paused.release()
        self._go.acquire()
        self.request = None
        self.others_seconds += time.perf_counter() - begin - request.seconds
        if request.error is not None:
            raise request.error
        return request.answer

    def pause(self) -> None:
        """Let the others go on to their next scan; called by the run itself."""
        self.ask(Request())


class Joining:
    """Drives runs that are under way together, at most `most` at a time; all have the same precision."""

    def __init__(self, most: Callable[[], int], precision: Precision = "fp32") -> None:
        self._most, self._precision = most, precision
        self._steps: dict[Hashable, CapturedSteps] = {}
        self._under_way: list[JoinedRun] = []

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

    def _advance(self, run: JoinedRun) -> None:
        run.advance()
        if run.failure is not None:
            raise run.failure

    def _answer(self, requests: Sequence[Request]) -> None:
        """Execute the scans, those that are alike together."""
        groups: dict[Hashable, tuple[CapturedSteps, list[tuple[Request, Scan]]]] = {}
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
        """Let runs that wait end as if they had been interrupted, and wait for them."""
        for run in self._under_way:
            while not run.ended:
                if run.request is not None:
                    run.request.error = KeyboardInterrupt()
                run.advance()


def this_run() -> JoinedRun | None:
    """The joined run that is being worked on, in its thread."""
    thread = threading.current_thread()
    return thread if isinstance(thread, JoinedRun) else None
