"""What every partition is: a record that draws who holds which sample."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.data.cutting import Division, Indices
from stratafl.errors import PartitionError


@short_repr
@dataclass(frozen=True, eq=False)
class Pool:
    """What a partition may look at: labels, and perhaps which samples the publishers test on and whose each one is."""

    labels: NDArray[Any]
    tests: NDArray[np.bool_] | None = None
    owner: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        for what in ("tests", "owner"):
            given = getattr(self, what)
            if given is not None and len(given) != len(self.labels):
                raise PartitionError(f"there are {len(self.labels)} labels, but '{what}' tells of {len(given)} samples")

    @cached_property
    def names(self) -> NDArray[Any]:
        """The labels that there are, in order."""
        if self.labels.ndim != 1 or self.labels.dtype.kind not in "biu":
            raise PartitionError(
                f"labels of dtype {self.labels.dtype} and shape {self.labels.shape} have no classes: "
                "only an IID partition can divide them (data.partition = 'iid')"
            )
        return np.unique(self.labels)

    def classes(self, among: NDArray[np.bool_] | None = None) -> list[Indices]:
        """The samples of each class, all or only those among some."""
        kept = np.ones(len(self.labels), dtype=np.bool_) if among is None else among
        return [np.flatnonzero(kept & (self.labels == name)) for name in self.names]

    def published(self, partition: str) -> tuple[list[Indices], list[Indices]]:
        """The samples of each class in the publishers' training set and in their test set."""
        if self.tests is None:
            raise PartitionError(
                f"the partition '{partition}' divides the publishers' training and test sets one by one, "
                "and this data does not say which samples are for testing"
            )
        return self.classes(~self.tests), self.classes(self.tests)


class Partition(ABC):
    """A record that says who holds what, called as `partition(labels, clients, seed)`.

    Some also look at which samples are the publishers' `tests`, or at their `owner`.
    """

    def __call__(
        self,
        labels: NDArray[Any],
        clients: int,
        seed: int,
        *,
        tests: NDArray[np.bool_] | None = None,
        owner: NDArray[Any] | None = None,
    ) -> list[Indices] | Division:
        """One sorted array of sample indices per client, or a division into training and test parts."""
        pool = Pool(np.asarray(labels), tests, owner)
        return self.draw(pool, clients, generator(len(pool.labels), clients, seed))

    @abstractmethod
    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices] | Division:
        """The division, drawn with these random numbers."""


def generator(samples: int, clients: int, seed: int) -> np.random.Generator:
    """The random numbers of a seed, if so many samples can be divided among so many clients at all."""
    if clients < 1:
        raise PartitionError(f"clients={clients} was given: a partition needs at least one client")
    if clients > samples:
        raise PartitionError(f"{samples} samples cannot be divided among {clients} clients: some would have none")
    if seed < 0:
        raise PartitionError(f"seed={seed} was given: a seed may not be negative")
    return np.random.default_rng(np.random.SeedSequence(seed))


def require_at_least(least: int, **settings: int) -> None:
    """Refuse settings that are too small to mean anything."""
    for name, value in settings.items():
        if value < least:
            raise PartitionError(f"{name}={value} was given: it must be at least {least}")


def require_share(**settings: float) -> None:
    """Refuse settings that are not a share between 0 and 1."""
    for name, value in settings.items():
        if not 0 < value < 1:
            raise PartitionError(f"{name}={value} was given: it is a share, above 0 and below 1")
