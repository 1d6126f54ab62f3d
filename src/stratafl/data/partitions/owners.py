"""The partition of data that says which person or site owns each sample."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from stratafl.core.annotations import Range
from stratafl.core.records import record
from stratafl.data.partitions.base import Indices, Partition, Pool, Some
from stratafl.errors import PartitionError


@record
class Owners(Partition):
    """FedPer's partition of FLICKR-AES: each client is one of the owners in the data, drawn at random.

    Owners with fewer than `minimum` or more than `maximum` samples, or fewer than `per_class` of any class, are left
    out.
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
                "the partition 'owners' needs data that says who owns each sample: name the column with data.client"
            )
        _, owner, sizes = np.unique(pool.owner, return_inverse=True, return_counts=True)
        fitting = np.flatnonzero((sizes >= self.minimum) & (sizes <= (self.maximum or sizes.max())))
        if self.per_class:
            fitting = fitting[_fewest_of_a_class(pool, owner, len(sizes))[fitting] >= self.per_class]
        if len(fitting) < clients:
            raise PartitionError(
                f"{clients} clients were asked for, but only {len(fitting)} of {len(sizes)} owners have the samples "
                "that the partition asks for: set data.clients lower"
            )
        chosen = np.sort(rng.choice(fitting, clients, replace=False))
        held = np.split(np.argsort(owner, kind="stable"), np.cumsum(sizes)[:-1])
        return [held[each] for each in chosen]


def _fewest_of_a_class(pool: Pool, owner: NDArray[np.intp], owners: int) -> NDArray[np.intp]:
    """The number of samples that each owner has of its rarest class."""
    counts = [np.bincount(owner[members], minlength=owners) for members in pool.classes()]
    fewest: NDArray[np.intp] = np.min(counts, axis=0)
    return fewest
