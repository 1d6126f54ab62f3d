"""Runs that advance together in one process, as many as memory allows; `stratafl.runtime.joining` drives them."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path
from typing import TypeVar

from stratafl.core.state import stored_bytes
from stratafl.errors import MemoryLimitError
from stratafl.execute import Simulation
from stratafl.execute.memory import device_memory, device_of, memory_taken
from stratafl.runtime.inputs import window_bytes
from stratafl.runtime.joining import Joining, this_run
from stratafl.runtime.speed import Precision

T = TypeVar("T")
MAX_RUNS = 32  # runs at a time: more do not make steps faster
MAX_GPU_PROCESSES = 3  # processes: while one draws batches and writes files, the others compute
MIN_RUNS_PER_PROCESS = 3  # that a process has at least
STEPS = 2  # joined ones whose batches are held at a time: training and scoring


def usual_jobs(works: int, device: str) -> int:
    """How many processes share so many runs, unless somebody says."""
    if not device_of(device).startswith("cuda"):
        return 1
    return max(1, min(MAX_GPU_PROCESSES, (os.cpu_count() or 1) // 2, works // MIN_RUNS_PER_PROCESS))


class JoinedRuns:
    """Drives works, each of which opens a run, declares it and advances it to its end.

    There are `works` in all, and each of `jobs` processes takes its part of them at a time.
    """

    def __init__(self, works: int, jobs: int = 1, precision: Precision = "fp32") -> None:
        self._jobs, self._precision = max(1, jobs), precision
        self._part = ceil(works / self._jobs)
        self._under_way: dict[Path, Simulation] = {}
        self._room: dict[int | None, int] = {}  # by memory limit

    def drive(self, works: Iterable[Callable[[], object]]) -> None:
        Joining(self._most, self._precision).drive(iter(works))

    @contextmanager
    def declared(self, folder: Path, sim: Simulation) -> Iterator[None]:
        """While a run is under way; further ones begin if they fit beside it."""
        self._room.setdefault(sim.memory_limit, room(sim, self._jobs))
        self._under_way[folder] = sim
        try:
            yield
        finally:
            del self._under_way[folder]

    def opened(self, make: Callable[[], T]) -> T:
        """What opens a run; if memory is short, when the runs that are under way have ended and given theirs back."""
        while True:
            try:
                return make()
            except MemoryLimitError:
                others = list(self._under_way)
                if not others or this_run() is None:
                    raise
            for folder in others:
                self.wait_for(folder)

    def wait_for(self, folder: Path) -> None:
        """Let the other runs go on until this one of them has ended."""
        run = this_run()
        while run is not None and folder in self._under_way:
            run.pause()

    def _most(self) -> int:
        """How many runs may be under way; one, until it is known what it needs."""
        sims = self._under_way.values()
        if not sims or not all(sim.runtime.joins for sim in sims):
            return 1
        least = min(self._room[sim.memory_limit] for sim in sims)
        return max(1, min(MAX_RUNS, self._part, len(sims) + further(sims, least)))


def further(sims: Collection[Simulation], room: int) -> int:
    """How many more runs fit beside these, each of which may bring data of its own; shared data counts once."""
    data = {id(sim.runtime.federation): data_bytes(sim) for sim in sims}
    bytes_each = max(run_bytes(sim) for sim in sims)
    return max(0, room - sum(data.values()) - len(sims) * bytes_each) // (bytes_each + max(data.values()))


def run_bytes(sim: Simulation) -> int:
    """Bytes that a run takes when its whole cohort works at once, with its client states, beside its data."""
    cohort = sim.largest_cohort
    states = 0 if sim.store == "disk" else sim.state_format.size * sim.setup.clients
    return sim.needs(cohort).working(cohort) + states


def data_bytes(sim: Simulation) -> int:
    federation = sim.runtime.federation
    return stored_bytes({"x": federation.x, "y": federation.y})


def room(sim: Simulation, jobs: int = 1) -> int:
    """Bytes that the runs of one of so many processes may take, if this is its only one so far and its data is there.

    A memory limit is that of a process; without one, processes share half of the device's memory. The batches of joined
    steps, which no run has alone, are taken off.
    """
    device = sim.runtime.device
    batches = STEPS * window_bytes(device)
    if sim.memory_limit is None:
        return max(0, device_memory(device) // 2 // jobs - batches)
    return max(0, sim.memory_limit - memory_taken(device) + data_bytes(sim) - batches)
