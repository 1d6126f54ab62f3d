"""The matrix executor: as many clients at once as memory allows, without encoding parcels."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

from torch import Tensor

from stratafl.core.layout import Layout
from stratafl.core.machine import in_units
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.errors import MemoryLimitError, RecordError
from stratafl.execute.context import SimulationContext
from stratafl.execute.memory import Needs, device_memory
from stratafl.execute.process_group import InOneProcess
from stratafl.execute.round import Watch, unwatched


@record
class Matrix(InOneProcess):
    """Groups of `chunk` clients; without it, as many as the simulation's memory limit allows."""

    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise RecordError(f"chunk is {self.chunk}: choose at least 1 client")

    def groups(self, sim: SimulationContext, ids: Tensor) -> Iterator[Tensor]:
        yield from ids.split(self.chunk or chunk_size(sim, len(ids)))

    def carry(self, parcel: Parcel, layout: Layout) -> Parcel:
        return parcel

    def stage(self, name: str, ids: Tensor, layout: Layout) -> AbstractContextManager[Watch]:
        return nullcontext(unwatched)


def chunk_size(sim: SimulationContext, cohort: int) -> int:
    """How many clients may work at once under the memory limit; without one, in half of the device's memory."""
    needs, limit = sim.needs(cohort), _allowed(sim)
    if needs.least > limit:
        raise MemoryLimitError(_too_large(sim, needs, limit))
    one = max(1, needs.working(2) - needs.working(1))  # each further client
    return max(1, min(cohort, 1 + (limit - needs.working(1)) // one))


def evaluation_size(sim: SimulationContext, clients: int) -> int:
    """How many clients are evaluated at once, at least one."""
    needs = sim.needs(min(clients, sim.largest_cohort))
    return max(1, min(clients, (_allowed(sim) - needs.evaluating(0)) // needs.evaluated))


def _allowed(sim: SimulationContext) -> int:
    return device_memory(sim.runtime.device) // 2 if sim.round_limit is None else sim.round_limit


def _too_large(sim: SimulationContext, needs: Needs, limit: int) -> str:
    least = in_units(needs.least)
    needed = f"a round needs about {least} ({needs.parts()})"
    smaller = "let fewer clients take part or use a smaller model"
    if sim.round_limit is None:
        there = in_units(device_memory(sim.runtime.device))
        return f"{needed}, more than half of the {there} here: {smaller}, or set a memory limit well above {least}"
    taken = 0 if sim.memory_limit is None else sim.memory_limit - limit
    enough = in_units(needs.least + taken)
    return f"{needed}, and the memory limit leaves {in_units(limit)}: raise it to {enough}, {smaller}"
