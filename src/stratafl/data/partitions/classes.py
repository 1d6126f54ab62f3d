"""Partitions in which a client has only some of the classes."""

from math import ceil

import numpy as np

from stratafl.core.records import record
from stratafl.data.partitions.base import (
    Assignment,
    Counts,
    HasClass,
    Indices,
    Partition,
    Pool,
    Some,
    balanced_classes,
    draw_counts,
    equal_counts,
    pfllib_minimum,
    require_supply,
)
from stratafl.errors import PartitionError


@record
class Classes(Partition):
    """Every client has exactly `per_client` classes, and every class as many clients, give or take one.

    A class is divided equally among its clients; with fewer than one client per class, some classes stay unused.
    """

    per_client: Some = 2

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices]:
        classes = pool.classes()
        has = balanced_classes(clients, len(classes), self.per_client, rng)
        return _draw_equally(pool, classes, has, rng)


@record
class KClasses(Partition):
    """FedPer's partition: `per_client` classes for each client, and exactly as many clients for each class.

    Client j has the classes from j · C/N on, or with `shuffled` random ones. The publishers' training and test sets are
    divided the same way; data without these two sets is divided as a whole.
    """

    per_client: Some = 4
    shuffled: bool = False

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices] | Assignment:
        assign = balanced_classes if self.shuffled else _rotated_classes
        has = assign(clients, len(pool.names), self.per_client, rng)
        if np.ptp(has.sum(axis=0)):
            C = len(pool.names)
            raise PartitionError(
                f"{clients} clients with {self.per_client} classes each cannot share {C} classes equally: "
                f"clients · per_client must be a multiple of {C}"
            )
        if pool.tests is None:
            return _draw_equally(pool, pool.classes(), has, rng)
        train, test = (_draw_equally(pool, classes, has, rng) for classes in pool.published("kclasses"))
        return Assignment(train, test)


@record
class Pathological(Partition):
    """PFLlib's pathological partition: each class goes to the first clients that still need one.

    It goes to ceil(clients · `per_client` / classes) of them. With `balanced` they get equal parts; otherwise parts of
    random size, at least a tenth of an equal one. In both cases the last client gets the rest.
    """

    per_client: Some = 2
    balanced: bool = False

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices]:
        classes = pool.classes()
        counts = np.zeros((len(classes), clients), dtype=np.int64)
        wanted = np.full(clients, self.per_client)
        smallest = pfllib_minimum(len(pool.labels), clients) / len(classes)
        for each, members in enumerate(classes):
            chosen = np.flatnonzero(wanted > 0)[: ceil(clients * self.per_client / len(classes))]
            wanted[chosen] -= 1
            if len(chosen):  # else every client has its classes, and this one stays unused
                counts[each, chosen] = self._sizes(len(members), len(chosen), smallest, rng)
        without = np.flatnonzero(counts.sum(axis=0) == 0)
        if len(without):
            raise PartitionError(
                f"client {without[0]} would get no sample: there are too many clients for {len(classes)} classes"
            )
        return draw_counts(classes, counts, rng)

    def _sizes(self, members: int, clients: int, smallest: float, rng: np.random.Generator) -> Counts:
        equal = members / clients
        if self.balanced or clients == 1:
            sizes = np.full(clients - 1, int(equal))
        else:
            lowest, above = ceil(max(equal / 10, smallest)), ceil(equal)
            if lowest >= above:
                raise PartitionError(f"{members} samples of a class cannot be divided unevenly among {clients} clients")
            sizes = rng.integers(lowest, above, clients - 1)
        return np.append(sizes, members - sizes.sum())


@record
class OneClass(Partition):
    """FedALP's one class per client: samples of it from the publishers' training set and test set.

    Client j has class j mod C, so that every class has as many clients, give or take one.
    """

    train_samples: Some = 500
    test_samples: Some = 80

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> Assignment:
        train, test = pool.published("oneclass")
        has = np.zeros((len(pool.names), clients), dtype=np.int64)
        has[np.arange(clients) % len(pool.names), np.arange(clients)] = 1
        require_supply(pool, train, has * self.train_samples, "training samples")
        require_supply(pool, test, has * self.test_samples, "test samples")
        trained = draw_counts(train, has * self.train_samples, rng)
        return Assignment(trained, draw_counts(test, has * self.test_samples, rng))


def _rotated_classes(clients: int, classes: int, per_client: int, _: np.random.Generator) -> HasClass:
    """Client j has the classes from j · C/N on, beginning again after the last."""
    if per_client > classes:
        raise PartitionError(f"per_client={per_client} was given, but the labels have only {classes} classes")
    first = np.arange(clients) * classes // clients
    has = np.zeros((clients, classes), dtype=np.bool_)
    has[np.arange(clients)[:, None], (first[:, None] + np.arange(per_client)) % classes] = True
    return has


def _draw_equally(pool: Pool, classes: list[Indices], has: HasClass, rng: np.random.Generator) -> list[Indices]:
    return draw_counts(classes, equal_counts(has, pool.names, classes, rng), rng)
