"""pFedLA's two partitions: clients of one size, who test on as many of each class as they train on, in proportion."""

import numpy as np

from stratafl.core.records import record
from stratafl.data.cutting import Division, Indices
from stratafl.data.partitions.base import Partition, Pool, require_at_least, require_share
from stratafl.data.partitions.counts import Counts, Ownership, balanced_ownership, require_supply, trained_and_tested
from stratafl.errors import PartitionError

_DRAWS = 100


@record
class PFedLAClasses(Partition):
    """pFedLA's non-IID_1: `samples` samples for each client, as many of each of its `per_client` random classes.

    Classes have as many owners, give or take one. `held_out` is the share of each class that a client tests on.
    """

    per_client: int = 4
    samples: int = 600
    held_out: float = 0.3

    def __post_init__(self) -> None:
        require_at_least(1, per_client=self.per_client, samples=self.samples)
        require_share(held_out=self.held_out)
        if self.samples % self.per_client:
            raise PartitionError(
                f"samples={self.samples} was given: it must be a multiple of per_client={self.per_client}"
            )

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> Division:
        """A division of all samples, whichever set they were published in."""
        owned = balanced_ownership(clients, len(pool.names), self.per_client, rng)
        return _held_out(pool, owned.T * (self.samples // self.per_client), self.held_out, rng)


@record
class PFedLADominant(Partition):
    """pFedLA's non-IID_2: all classes for each client, `dominant` random ones of them with a `share` together.

    The others divide the rest equally. `held_out` is the share of each class that a client tests on.
    """

    dominant: int = 2
    share: float = 0.5
    samples: int = 600
    held_out: float = 0.3

    def __post_init__(self) -> None:
        require_at_least(1, dominant=self.dominant, samples=self.samples)
        require_share(share=self.share, held_out=self.held_out)

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> Division:
        """A division of all samples, whichever set they were published in."""
        classes = pool.classes()
        if self.dominant >= len(classes):
            raise PartitionError(f"dominant={self.dominant} was given, but the labels hold only {len(classes)} classes")
        sizes = np.array([len(members) for members in classes])
        if clients * self.samples > sizes.sum():
            raise PartitionError(f"{sizes.sum()} samples cannot give each of {clients} clients {self.samples}")
        for _ in range(_DRAWS):  # where the classes are used up to the last sample, a draw may be one short
            counts = self._counts(balanced_ownership(clients, len(classes), self.dominant, rng), sizes, rng)
            if (counts.sum(axis=1) <= sizes).all():
                break
        return _held_out(pool, counts, self.held_out, rng)

    def _counts(self, owned: Ownership, sizes: Counts, rng: np.random.Generator) -> Counts:
        often = round(self.share * self.samples / self.dominant)
        seldom, odd = divmod(self.samples - self.dominant * often, len(sizes) - self.dominant)
        if seldom == 0:
            raise PartitionError(f"samples={self.samples} was given: too few for some of each of {len(sizes)} classes")
        counts = np.where(owned.T, often, seldom)
        for client in rng.permutation(len(owned)):  # the odd samples are of the classes with most left
            left = sizes - counts.sum(axis=1)
            most_left = np.lexsort((rng.random(len(sizes)), -left))
            counts[most_left[~owned[client, most_left]][:odd], client] += 1
        return counts


def _held_out(pool: Pool, counts: Counts, share: float, rng: np.random.Generator) -> Division:
    classes: list[Indices] = pool.classes()
    require_supply(pool, classes, counts)
    test = np.rint(counts * share).astype(np.int64)
    if (test.sum(axis=0) == 0).any() or ((counts > 0) & (test == counts)).any():
        raise PartitionError(
            f"held_out={share} was given: clients have too few samples of a class to test on some of it"
        )
    return trained_and_tested(classes, counts - test, test, rng)
