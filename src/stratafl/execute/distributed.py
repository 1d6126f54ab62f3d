"""The distributed executor: every process works with its own share of the cohort, the way another executor does it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from torch import Tensor

from stratafl.core.layout import Layout
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.execute.matrix import Matrix
from stratafl.execute.process_group import ProcessGroup
from stratafl.execute.round import Executor, Watch

if TYPE_CHECKING:
    from stratafl.execute.simulation import Simulation


@record
class Distributed:
    """Clients over the processes of a process group; in each of them `inner` executes."""

    process_group: ProcessGroup
    inner: Executor = Matrix()

    def groups(self, sim: "Simulation", ids: Tensor) -> Iterator[Tensor]:
        """This process's share, in the groups of the inner executor."""
        mine = self.process_group.share(sim, ids)
        if len(mine):
            yield from self.inner.groups(sim, mine)

    def carry(self, parcel: Parcel, layout: Layout) -> Parcel:
        """As the inner executor does."""
        return self.inner.carry(parcel, layout)

    def stage(self, name: str, ids: Tensor, layout: Layout) -> AbstractContextManager[Watch]:
        """As the inner executor does."""
        return self.inner.stage(name, ids, layout)
