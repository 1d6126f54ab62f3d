"""Runs that are under way together in one process, as many as memory allows; `stratafl.runtime.joining` drives them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import ceil
from pathlib import Path

from stratafl.core.state import stored_bytes
from stratafl.execute import Simulation
from stratafl.execute.memory import device_memory, memory_taken
from stratafl.runtime.joining import Joining, this_run
from stratafl.runtime.speed import Precision

MOST = 32  # runs at a time: more do not make steps faster


class JoinedRuns:
    """Drives works, each of which opens a run, declares it and advances it to its end.

    There are `works` in all, and each of `jobs` processes takes its part of them at a time.
    """

    def __init__(self, works: int, jobs: int = 1, precision: Precision = "fp32") -> None:
        self._part, self._precision = ceil(works / max(1, jobs)), precision
        self._under_way: dict[Path, Simulation] = {}
        self._room: dict[int | None, int] = {}  # by memory limit

    def drive(self, works: Iterable[Callable[[], object]]) -> None:
        Joining(self._most, self._precision).drive(iter(works))

    @contextmanager
    def declared(self, folder: Path, sim: Simulation) -> Iterator[None]:
        """While a run is under way; further ones begin if they fit beside it."""
        self._room.setdefault(sim.memory_limit, room(sim))
        self._under_way[folder] = sim
        try:
            yield
        finally:
            del self._under_way[folder]

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
        return max(1, min(MOST, self._part, least // max(needed(sim) for sim in sims)))


def needed(sim: Simulation) -> int:
    """Bytes that a run takes when its whole cohort works at once, with its data and client states."""
    federation, cohort = sim.runtime.federation, sim.largest_cohort
    kept = 0 if sim.store == "disk" else sim.state_format.size * sim.setup.clients
    return sim.needs(cohort).working(cohort) + kept + stored_bytes({"x": federation.x, "y": federation.y})


def room(sim: Simulation) -> int:
    """Bytes that all runs may take together, where this is the only one so far and its data is in memory."""
    if sim.memory_limit is None:
        return device_memory(sim.runtime.device) // 2
    federation = sim.runtime.federation
    taken = memory_taken(sim.runtime.device) - stored_bytes({"x": federation.x, "y": federation.y})
    return max(0, sim.memory_limit - taken)
