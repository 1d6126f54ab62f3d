"""pFedLA's two partitions: clients of one size that train and test on the same shares of classes."""

import numpy as np

from stratafl.core.records import record
from stratafl.data.partitions.base import (
    Assignment,
    Counts,
    HasClass,
    Indices,
    Partition,
    Pool,
    Share,
    Some,
    balanced_classes,
    draw_counts,
    require_supply,
)
from stratafl.errors import PartitionError

_DRAWS = 100


@record
class PFedLAClasses(Partition):
    """pFedLA's non-IID_1: `samples` samples for each client, as many of each of its `per_client` random classes.

    Every class has as many clients, give or take one. A client tests on the share `held_out` of each of its classes.
    """

    per_client: Some = 4
    samples: Some = 600
    held_out: Share = 0.3

    def __post_init__(self) -> None:
        if self.samples % self.per_client:
            raise PartitionError(
                f"samples={self.samples} was given: it must be a multiple of per_client={self.per_client}"
            )

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> Assignment:
        has = balanced_classes(clients, len(pool.names), self.per_client, rng)
        return _assigned(pool, has.T * (self.samples // self.per_client), self.held_out, rng)


@record
class PFedLADominant(Partition):
    """pFedLA's non-IID_2: all classes for each client, `dominant` random ones of them with a `share` together.

    The others divide the rest equally. A client tests on the share `held_out` of each class.
    """

    dominant: Some = 2
    share: Share = 0.5
    samples: Some = 600
    held_out: Share = 0.3

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> Assignment:
        classes = pool.classes()
        if self.dominant >= len(classes):
            raise PartitionError(f"dominant={self.dominant} was given, but the labels have only {len(classes)} classes")
        sizes = np.array([len(members) for members in classes])
        if clients * self.samples > sizes.sum():
            raise PartitionError(f"{sizes.sum()} samples cannot give each of {clients} clients {self.samples}")
        for _ in range(_DRAWS):  # where the classes are used up to the last sample, a draw may be one short
            counts = self._counts(balanced_classes(clients, len(classes), self.dominant, rng), sizes, rng)
            if (counts.sum(axis=1) <= sizes).all():
                break
        return _assigned(pool, counts, self.held_out, rng)

    def _counts(self, has: HasClass, sizes: Counts, rng: np.random.Generator) -> Counts:
        often = round(self.share * self.samples / self.dominant)
        seldom, odd = divmod(self.samples - self.dominant * often, len(sizes) - self.dominant)
        if seldom == 0:
            raise PartitionError(f"samples={self.samples} was given: too few for some of each of {len(sizes)} classes")
        counts = np.where(has.T, often, seldom)
        for client in rng.permutation(len(has)):  # the odd samples are of the classes with most left
            left = sizes - counts.sum(axis=1)
            most_left = np.lexsort((rng.random(len(sizes)), -left))
            counts[most_left[~has[client, most_left]][:odd], client] += 1
        return counts


def _assigned(pool: Pool, counts: Counts, share: float, rng: np.random.Generator) -> Assignment:
    classes: list[Indices] = pool.classes()
    require_supply(pool, classes, counts)
    test = np.rint(counts * share).astype(np.int64)
    if (test.sum(axis=0) == 0).any() or ((counts > 0) & (test == counts)).any():
        raise PartitionError(
            f"held_out={share} was given: some clients have too few samples of a class to train and to test on it"
        )
    held = draw_counts(classes, np.hstack([counts - test, test]), rng)
    return Assignment(held[: counts.shape[1]], held[counts.shape[1] :])
