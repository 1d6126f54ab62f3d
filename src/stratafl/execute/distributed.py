"""The distributed executor: every process works with its own share of the cohort, the way another executor does it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from torch import Tensor

from stratafl.core.layout import Layout
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.execute.matrix import Matrix
from stratafl.execute.round import Executor, Watch
from stratafl.execute.team import Team

if TYPE_CHECKING:
    from stratafl.execute.simulation import Simulation


@record
class Distributed:
    """Clients over the processes of a team; in each of them `inner` executes."""

    team: Team
    inner: Executor = Matrix()

    def groups(self, sim: "Simulation", ids: Tensor) -> Iterator[Tensor]:
        """This process's share, in the groups of the inner executor."""
        mine = self.team.share(sim, ids)
        if len(mine):
            yield from self.inner.groups(sim, mine)

    def carry(self, parcel: Parcel, layout: Layout) -> Parcel:
        """As the inner executor does."""
        return self.inner.carry(parcel, layout)

    def stage(self, name: str, ids: Tensor, layout: Layout) -> AbstractContextManager[Watch]:
        """As the inner executor does."""
        return self.inner.stage(name, ids, layout)
