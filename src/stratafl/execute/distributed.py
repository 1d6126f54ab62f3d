"""The distributed executor: every process runs its share of the cohort with another executor."""

from collections.abc import Iterator
from contextlib import AbstractContextManager

from torch import Tensor

from stratafl.core.layout import Layout
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.execute.context import SimulationContext
from stratafl.execute.matrix import Matrix
from stratafl.execute.process_group import ProcessGroup
from stratafl.execute.round import Executor, Watch


@record
class Distributed:
    """The cohort over the processes of a group; `inner` executes each share."""

    process_group: ProcessGroup
    inner: Executor = Matrix()

    def groups(self, sim: SimulationContext, ids: Tensor) -> Iterator[Tensor]:
        """This process's share, in the groups of the inner executor."""
        mine = self.process_group.share(sim, ids)
        if len(mine):
            yield from self.inner.groups(sim, mine)

    def carry(self, parcel: Parcel, layout: Layout) -> Parcel:
        return self.inner.carry(parcel, layout)

    def stage(self, name: str, ids: Tensor, layout: Layout) -> AbstractContextManager[Watch]:
        return self.inner.stage(name, ids, layout)
