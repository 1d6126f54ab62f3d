"""The partition of data that says which person or site owns each sample."""

from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from stratafl.core.annotations import Range
from stratafl.core.records import record
from stratafl.data.partitions.base import Indices, Partition, Pool, Some
from stratafl.errors import PartitionError


@record
class Owners(Partition):
    """FedPer's partition of FLICKR-AES: each client is one of the owners in the data, drawn at random.

    Owners with fewer than `minimum` or more than `maximum` samples, or fewer than `per_class` of any class, cannot be.
    """

    minimum: Some = 1
    maximum: int | None = None
    per_class: Annotated[int, Range(least=0)] = 0

    def __post_init__(self) -> None:
        if self.maximum is not None and self.maximum < self.minimum:
            raise PartitionError(f"maximum={self.maximum} was given: it must be at least minimum={self.minimum}")

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices]:
        if pool.owner is None:
            raise PartitionError(
                "the partition 'owners' needs the owner of each sample: name its column with data.client"
            )
        _, owner, sizes = np.unique(pool.owner, return_inverse=True, return_counts=True)
        fitting = np.flatnonzero((sizes >= self.minimum) & (sizes <= (self.maximum or sizes.max())))
        if self.per_class:
            rarest = np.min([np.bincount(owner[members], minlength=len(sizes)) for members in pool.classes()], axis=0)
            fitting = fitting[rarest[fitting] >= self.per_class]
        if len(fitting) < clients:
            few = f"only {len(fitting)} of {len(sizes)} owners have the samples that the partition needs"
            raise PartitionError(f"data.clients = {clients}, but {few}: set data.clients lower")
        chosen = np.sort(rng.choice(fitting, clients, replace=False))
        samples_by_owner = by_owner(pool.owner)
        return [samples_by_owner[each] for each in chosen]


def by_owner(owner: NDArray[Any]) -> list[Indices]:
    """The samples of each owner, in the order of the owners' names."""
    _, inverse, counts = np.unique(owner, return_inverse=True, return_counts=True)
    return np.split(np.argsort(inverse, kind="stable"), np.cumsum(counts)[:-1])
