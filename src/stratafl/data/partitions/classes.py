"""Partitions in which a client has only some of the classes, or mostly samples of a few classes."""

from math import ceil

import numpy as np
from numpy.typing import NDArray

from stratafl.core.records import record
from stratafl.data.partitions.base import Assignment, Counts, Indices, Partition, Pool, Share, Some, draw_counts
from stratafl.errors import PartitionError

HasClass = NDArray[np.bool_]  # whether each client (rows) has each class (columns)
_DRAWS = 100  # of PFedLADominant


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
            wrong = f"{clients} clients with {self.per_client} classes each cannot share {C} classes equally"
            raise PartitionError(f"{wrong}: choose clients · per_client as a multiple of {C}")
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
        smallest = pool.pfllib_minimum(clients) / len(classes)
        for label, members in enumerate(classes):
            chosen = np.flatnonzero(wanted > 0)[: ceil(clients * self.per_client / len(classes))]
            wanted[chosen] -= 1
            if len(chosen):  # else every client has its classes, and this one stays unused
                counts[label, chosen] = self._sizes(len(members), len(chosen), smallest, rng)
        without = np.flatnonzero(counts.sum(axis=0) == 0)
        if len(without):
            raise PartitionError(f"client {without[0]} gets no sample: too many clients for {len(classes)} classes")
        return draw_counts(classes, counts, rng)

    def _sizes(self, members: int, clients: int, smallest: float, rng: np.random.Generator) -> Counts:
        equal = members / clients
        if self.balanced or clients == 1:
            sizes = np.full(clients - 1, int(equal))
        else:
            lowest, above = ceil(max(equal / 10, smallest)), ceil(equal)
            if lowest >= above:
                raise PartitionError(f"{members} samples of a class are too few for {clients} clients of uneven sizes")
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
        _require_supply(pool, train, has * self.train_samples, "training samples")
        _require_supply(pool, test, has * self.test_samples, "test samples")
        trained = draw_counts(train, has * self.train_samples, rng)
        return Assignment(trained, draw_counts(test, has * self.test_samples, rng))


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
            raise PartitionError(f"samples={self.samples} must be a multiple of per_client={self.per_client}")

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
            raise PartitionError(f"samples={self.samples} is too few for samples of all {len(sizes)} classes")
        counts = np.where(has.T, often, seldom)
        for client in rng.permutation(len(has)):  # the odd samples are of the classes with most left
            left = sizes - counts.sum(axis=1)
            most_left = np.lexsort((rng.random(len(sizes)), -left))
            counts[most_left[~has[client, most_left]][:odd], client] += 1
        return counts


def _rotated_classes(clients: int, classes: int, per_client: int, _: np.random.Generator) -> HasClass:
    """Client j has the classes from j · C/N on, beginning again after the last."""
    if per_client > classes:
        raise PartitionError(f"per_client={per_client} was given, but the labels have only {classes} classes")
    first = np.arange(clients) * classes // clients
    has = np.zeros((clients, classes), dtype=np.bool_)
    has[np.arange(clients)[:, None], (first[:, None] + np.arange(per_client)) % classes] = True
    return has


def _draw_equally(pool: Pool, classes: list[Indices], has: HasClass, rng: np.random.Generator) -> list[Indices]:
    """Every class divided equally among the clients that have it; random ones of them get what does not divide."""
    counts = np.zeros(has.T.shape, dtype=np.int64)
    for label, members in enumerate(classes):
        clients = rng.permutation(np.flatnonzero(has[:, label]))
        if len(clients) > len(members):
            raise PartitionError(f"class {pool.names[label]} has {len(members)} samples for {len(clients)} clients")
        for rank, client in enumerate(clients):
            counts[label, client] = (len(members) + len(clients) - 1 - rank) // len(clients)
    return draw_counts(classes, counts, rng)


def _require_supply(pool: Pool, classes: list[Indices], counts: Counts, what: str = "samples") -> None:
    for name, members, row in zip(pool.names, classes, counts, strict=True):
        if row.sum() > len(members):
            asking = int((row > 0).sum())
            raise PartitionError(f"class {name} has {len(members)} {what}, but {asking} clients ask for {row.sum()}")


def balanced_classes(clients: int, classes: int, per_client: int, rng: np.random.Generator) -> HasClass:
    """Which classes each client has: client after client takes those that the fewest clients have."""
    if per_client > classes:
        raise PartitionError(f"per_client={per_client} was given, but the labels have only {classes} classes")
    has = np.zeros((clients, classes), dtype=np.bool_)
    for client in rng.permutation(clients):
        fewest_first = np.lexsort((rng.random(classes), has.sum(axis=0)))
        has[client, fewest_first[:per_client]] = True
    return has


def _assigned(pool: Pool, counts: Counts, share: float, rng: np.random.Generator) -> Assignment:
    classes = pool.classes()
    _require_supply(pool, classes, counts)
    test = np.rint(counts * share).astype(np.int64)
    if (test.sum(axis=0) == 0).any() or ((counts > 0) & (test == counts)).any():
        raise PartitionError(f"held_out={share} leaves some clients without a sample of a class to train or test on")
    drawn = draw_counts(classes, np.hstack([counts - test, test]), rng)
    return Assignment(drawn[: counts.shape[1]], drawn[counts.shape[1] :])
