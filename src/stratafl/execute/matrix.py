"""The matrix executor: as many clients at once as memory allows; parcels stay in memory."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from torch import Tensor

from stratafl.errors import MemoryLimitError, RecordError
from stratafl.execute.memory import device_memory
from stratafl.execute.round import Watch, unwatched
from stratafl.layout import Layout
from stratafl.parcel import Parcel
from stratafl.records import record

if TYPE_CHECKING:
    from stratafl.execute.simulation import Simulation


@record
class Matrix:
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
    """How many clients fit under the memory limit, or without one into half of what there is."""
    one, limit = sim.client_bytes, sim.memory
    if limit is None:
        return min(cohort, max(1, device_memory(sim.workshop.device) // 2 // one))
    if one > limit:
        raise MemoryLimitError(f"one client at work takes about {one:,} bytes, the limit leaves {limit:,}: raise it")
    return min(cohort, limit // one)
