"""Clients that hold only some of the classes."""

from math import ceil

import numpy as np

from stratafl.core.records import record
from stratafl.data.cutting import Division, Indices
from stratafl.data.partitions.base import Partition, Pool, require_at_least
from stratafl.data.partitions.counts import (
    Counts,
    Ownership,
    balanced_ownership,
    equal_counts,
    filled,
    require_supply,
)
from stratafl.data.partitions.dirichlet import least
from stratafl.errors import PartitionError


@record
class Classes(Partition):
    """Every client holds samples of exactly `per_client` classes, and every class has as many owners, give or take one.

    A class is divided equally among its owners; with fewer than one owner per class, some classes stay unused.
    """

    per_client: int = 2

    def __post_init__(self) -> None:
        _require_some_classes(self.per_client)

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices]:
        """One sorted array of sample indices per client."""
        classes = pool.classes()
        owned = balanced_ownership(clients, len(classes), self.per_client, rng)
        return _divided(pool, classes, owned, rng)


@record
class KClasses(Partition):
    """FedPer's partition: `per_client` classes for each client, and exactly as many owners for each class.

    Client j has the classes from j · C/N on, or with `shuffled` any. The publishers' training and test sets are divided
    the same way; data that does not know them is divided as a whole.
    """

    per_client: int = 4
    shuffled: bool = False

    def __post_init__(self) -> None:
        _require_some_classes(self.per_client)

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices] | Division:
        """A division of both sets, or one sorted array of sample indices per client."""
        assign = balanced_ownership if self.shuffled else _rotated_ownership
        owned = assign(clients, len(pool.names), self.per_client, rng)
        if np.ptp(owned.sum(axis=0)):
            C = len(pool.names)
            raise PartitionError(
                f"{clients} clients with {self.per_client} classes each cannot share {C} classes equally: "
                f"clients · per_client must be a multiple of {C}"
            )
        if pool.tests is None:
            return _divided(pool, pool.classes(), owned, rng)
        train, test = (_divided(pool, classes, owned, rng) for classes in pool.published("kclasses"))
        return Division(train, test)


@record
class Pathological(Partition):
    """PFLlib's pathological partition: class after class goes to the first clients that still need one.

    So many of them that each could have `per_client` classes. They get equal parts with `balanced`, and else parts of
    random size, of at least a tenth of an equal one; in both cases the last one takes the rest.
    """

    per_client: int = 2
    balanced: bool = False

    def __post_init__(self) -> None:
        _require_some_classes(self.per_client)

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices]:
        """One sorted array of sample indices per client."""
        classes = pool.classes()
        counts = np.zeros((len(classes), clients), dtype=np.int64)
        wanted = np.full(clients, self.per_client)
        smallest = least(len(pool.labels), clients) / len(classes)
        for each, members in enumerate(classes):
            chosen = np.flatnonzero(wanted > 0)[: ceil(clients * self.per_client / len(classes))]
            wanted[chosen] -= 1
            if len(chosen):  # else everybody has their classes, and this one stays unused
                counts[each, chosen] = self._sizes(len(members), len(chosen), smallest, rng)
        without = np.flatnonzero(counts.sum(axis=0) == 0)
        if len(without):
            raise PartitionError(
                f"client {without[0]} would get no sample: there are too many clients for these classes"
            )
        return filled(classes, counts, rng)

    def _sizes(self, members: int, owners: int, smallest: float, rng: np.random.Generator) -> Counts:
        equal = members / owners
        if self.balanced or owners == 1:
            sizes = np.full(owners - 1, int(equal))
        else:
            lowest, above = ceil(max(equal / 10, smallest)), ceil(equal)
            if lowest >= above:
                raise PartitionError(f"{members} samples of a class cannot be divided unevenly among {owners} clients")
            sizes = rng.integers(lowest, above, owners - 1)
        return np.append(sizes, members - sizes.sum())


@record
class OneClass(Partition):
    """FedALP's one class per client: so many training and test samples of it, from the publishers' two sets.

    Client j has class j mod C, so that every class has as many owners, give or take one.
    """

    train_samples: int = 500
    test_samples: int = 80

    def __post_init__(self) -> None:
        require_at_least(1, train_samples=self.train_samples, test_samples=self.test_samples)

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> Division:
        """A division of both sets."""
        train, test = pool.published("oneclass")
        owned = np.zeros((len(pool.names), clients), dtype=np.int64)
        owned[np.arange(clients) % len(pool.names), np.arange(clients)] = 1
        require_supply(pool, train, owned * self.train_samples, "training samples")
        require_supply(pool, test, owned * self.test_samples, "test samples")
        trained = filled(train, owned * self.train_samples, rng)
        return Division(trained, filled(test, owned * self.test_samples, rng))


def _require_some_classes(per_client: int) -> None:
    if per_client < 1:
        raise PartitionError(f"per_client={per_client} was given: every client needs at least one class")


def _rotated_ownership(clients: int, classes: int, per_client: int, _: np.random.Generator) -> Ownership:
    """Client j owns the classes from j · C/N on, beginning again after the last."""
    if per_client > classes:
        raise PartitionError(f"per_client={per_client} was given, but the labels hold only {classes} classes")
    first = np.arange(clients) * classes // clients
    owned = np.zeros((clients, classes), dtype=np.bool_)
    owned[np.arange(clients)[:, None], (first[:, None] + np.arange(per_client)) % classes] = True
    return owned


def _divided(pool: Pool, classes: list[Indices], owned: Ownership, rng: np.random.Generator) -> list[Indices]:
    return filled(classes, equal_counts(owned, pool.names, classes, rng), rng)
