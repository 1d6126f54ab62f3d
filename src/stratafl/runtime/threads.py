"""How a CPU's cores are used: clients with long steps take lanes (`core/lanes.py`), a few at a time.

A row's bits do not depend on the other rows of its piece, so lanes change nothing but time. `Pace` is for steps that
are too short for lanes: it tries how many threads pay.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median

import torch

from stratafl.core.lanes import in_a_lane

WORTHWHILE = 2**23  # numbers in the rows of a cohort whose steps are long, where none was timed
LONG_SECONDS = 0.002  # seconds of one client's step from which lanes pay, in one thread
PIECE = 4  # clients; on ARM a client takes 236, 202, 173, 166 ms among 1, 2, 4, 8 (ResNet-18), 36, 34, 30, 33 (CNN)


def is_long(elements: int, seconds: float | None = None) -> bool:
    """Whether a step is long enough for lanes: as timed, else by the numbers in its rows.

    Where operations are short, lanes wait for Python: a small MLP takes 0.18 ms per client-step with one lane and 0.29
    with two (2 ARM cores), 0.08 and 0.12 (8 Xeon cores).
    """
    return elements >= WORTHWHILE if seconds is None else seconds >= LONG_SECONDS


def cut(clients: int, most: int = PIECE) -> list[slice]:
    """Pieces of at most `most` clients, as even as possible, and enough of them to keep all lanes busy to the end."""
    lanes = min(clients, torch.get_num_threads())
    needed = -(-clients // most)
    count = min(clients, -(-needed // lanes) * lanes)
    return [slice(begin, end) for begin, end in pairwise(clients * i // count for i in range(count + 1))]


class Pace:
    """One thread or all of them for short operations, whichever took less time of late.

    With all threads each operation waits for the slowest, which another program may hold up: on 2 ARM cores beside
    other work a step of a small MLP takes 0.21 ms per client with one thread and 0.61 with two; on an idle Xeon one
    takes 1.3 times as long as two. So the other number is tried now and then, unless it always takes one thread.
    """

    RECENT = 8  # steps whose median is the time of a step
    TRIAL = 4  # steps with the other number of threads, the first of which does not count
    SOME, SELDOM = 64, 4096  # steps until the next trial: doubled while it is lost
    CLEARLY = 0.9
    WORSE = 2.0  # times as long as it was: another trial at once; or as the usual: a trial is over

    def __init__(self, clock: Callable[[], float] = time.perf_counter, *, tries: bool = True) -> None:
        self._clock, self._tries = clock, tries
        self.alone = True
        self._recent: deque[float] = deque(maxlen=self.RECENT)
        self._usual: float | None = None  # of the number of threads in use, at the last trial
        self._trial: list[float] | None = None
        self._left = self._wait = self.SOME

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around one step, which this times."""
        threads = torch.get_num_threads()
        if threads == 1:
            yield
            return
        alone = self.alone != (self._trial is not None)
        torch.set_num_threads(1 if alone else threads)
        begin = self._clock()
        try:
            yield
        finally:
            torch.set_num_threads(threads)
        if self._tries:
            self._note(self._clock() - begin)

    def _note(self, seconds: float) -> None:
        if self._trial is not None:
            self._trial.append(seconds)
            if len(self._trial) == self.TRIAL or seconds > self.WORSE * median(self._recent):
                self._decide(self._trial)
            return
        self._recent.append(seconds)
        self._left -= 1
        if len(self._recent) == self.RECENT:
            slower = self._usual is not None and median(self._recent) > self.WORSE * self._usual
            if self._usual is None or slower or self._left <= 0:
                self._trial = []

    def _decide(self, trial: list[float]) -> None:
        usual, other = median(self._recent), median(trial[1:] or trial)
        if len(trial) == self.TRIAL and other < self.CLEARLY * usual:
            self.alone, self._wait, self._usual = not self.alone, self.SOME, other
            self._recent.clear()
        else:
            self._wait, self._usual = min(2 * self._wait, self.SELDOM), usual
        self._trial, self._left = None, self._wait


_ONE_THREAD = Pace(tries=False)
_paces: dict[tuple[int, int], Pace] = {}


def pace(elements: int, device: torch.device, clients: int) -> Pace | None:
    """The pace of steps of clients with about `elements` numbers in all; None where threads must not be changed.

    Threads share the clients among them. Where there are more threads than clients, MKL also divides the sums within a
    client's product, and its bits would depend on the number of threads.
    """
    if device.type != "cpu" or in_a_lane():
        return None
    if clients < torch.get_num_threads():
        return _ONE_THREAD
    return _paces.setdefault((torch.get_num_threads(), elements.bit_length()), Pace())
