"""The matrix executor: as many clients at once as memory allows; parcels stay in memory."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from torch import Tensor

from stratafl.errors import MemoryLimitError, RecordError
from stratafl.execute.memory import device_memory
from stratafl.execute.round import Watch, unwatched
from stratafl.execute.team import Alone
from stratafl.layout import Layout
from stratafl.parcel import Parcel
from stratafl.records import record

if TYPE_CHECKING:
    from stratafl.execute.simulation import Simulation


@record
class Matrix(Alone):
    """Groups of `chunk` clients; without it, as many as the simulation's memory limit allows."""

    chunk: int | None = None

    def __post_init__(self) -> None:
        if self.chunk is not None and self.chunk < 1:
            raise RecordError(f"a chunk holds at least one client, not {self.chunk}")

    def groups(self, sim: "Simulation", ids: Tensor) -> Iterator[Tensor]:
        """The cohort in chunks."""
        yield from ids.split(self.chunk or chunk_size(sim, len(ids)))

    def carry(self, parcel: Parcel, layout: Layout) -> Parcel:
        """As it is."""
        return parcel

    def stage(self, name: str, ids: Tensor, layout: Layout) -> AbstractContextManager[Watch]:
        """Unwatched."""
        return nullcontext(unwatched)


def chunk_size(sim: "Simulation", cohort: int) -> int:
    """How many clients at work fit under the memory limit, or without one into half of what there is."""
    one, limit = sim.client_bytes, sim.memory
    if limit is not None and one > limit:
        raise MemoryLimitError(f"one client at work takes about {one:,} bytes, the limit leaves {limit:,}: raise it")
    return min(cohort, _fitting(sim, one))


def visit_size(sim: "Simulation", clients: int) -> int:
    """How many clients are evaluated at once; one always is."""
    return max(1, min(clients, _fitting(sim, sim.visitor_bytes)))


def _fitting(sim: "Simulation", one: int) -> int:
    limit = device_memory(sim.workshop.device) // 2 if sim.memory is None else sim.memory
    return max(1, limit // one)
