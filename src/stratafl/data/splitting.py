"""Splitting: which of a client's samples are for training, which for validation, and which for testing.

`Splitter` splits the samples of every client, each with random numbers of its own. A stratified split takes the same
share of every class, by largest remainders, so that the parts have the sizes that were asked for; the targets of a
regression are split by quantiles. A class keeps at least one sample for training, unless there are too few others to
hold out. Samples of one group stay in one part (`_parts_of_groups`). An ordered split draws nothing: a client's last
samples are for testing, and those before them for validation.
"""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import holder
from stratafl.data.labels import distinct_labels
from stratafl.data.many_splits import split_many
from stratafl.data.partitions.base import Assignment, Indices, Pieces
from stratafl.errors import DataError, counted, unknown

SPLIT = ("stratified", "random", "ordered")
TEST, VALIDATION, TRAIN = 0, 1, 2  # the parts, as a sample's part is numbered
BINS = 10  # quantiles at most
MIN_CLIENTS_AT_ONCE = 256  # clients from which all are split at once
ORDERS = 10  # in which groups are tried; the best counts

Parts = NDArray[np.int64]


class Sizes(NamedTuple):
    """How many samples of a client are held out."""

    test: int
    validation: int

    @property
    def both(self) -> int:
        return self.test + self.validation


@dataclass(frozen=True)
class SplitPlan:
    """The shares of each client's samples that are held out, and how: by class, at random, or the last ones."""

    validation: float = 0.0
    test: float = 0.25
    minimum_test: int = 1
    seed: int = 0
    split: str = "stratified"

    def __post_init__(self) -> None:
        if self.split not in SPLIT:
            raise unknown("split", self.split, SPLIT)
        if not (self.validation >= 0 and self.test >= 0 and self.validation + self.test < 1):
            wrong = f"validation={self.validation} and test={self.test} leave no share for training"
            raise DataError(f"{wrong}: give shares of at least 0 that sum to less than 1")
        if self.minimum_test < 0 or self.seed < 0:
            values = f"minimum_test={self.minimum_test} and seed={self.seed}"
            raise DataError(f"{values} were given: both must be at least 0")


@holder
class Splitter:
    """Splits each client's samples into train, validation and test; error messages use `names` for clients.

    Samples with the same value in `group` stay in one part.
    """

    labels: NDArray[Any]
    plan: SplitPlan
    group: NDArray[Any] | None = None
    names: tuple[str, ...] = ()
    first: int = 0  # the number of the first client: each client's random numbers follow from its own

    def __post_init__(self) -> None:
        if self.group is not None and self.plan.split == "ordered":
            raise DataError("split = 'ordered' can tear a group of samples apart: leave out data.group or data.split")

    def split_assignment(self, assignment: Assignment) -> dict[str, Sequence[Indices]]:
        """The three splits of the samples that an assignment gives to the clients.

        If the assignment says who tests on what, only the validation part is split off from the training samples.
        """
        many = None if assignment.test else _checked_many(assignment.train, len(self.labels), assignment.overlap)
        if many is not None:
            return self.split_clients(many)
        for client, indices in enumerate(assignment.train):
            check_some_samples(np.size(indices), self._named(client))
        if assignment.test is None:
            return self.split_clients(_checked(assignment.train, len(self.labels), assignment.overlap))
        _check_both(assignment.train, assignment.test, len(self.labels), assignment.overlap)
        if self.group is not None:
            self._check_groups(assignment.train, assignment.test, self.group)
        held_out = [self._validation_of(indices, client) for client, indices in enumerate(assignment.train)]
        pairs = list(zip(assignment.train, held_out, strict=True))
        train, validation = [indices[~out] for indices, out in pairs], [indices[out] for indices, out in pairs]
        return {"train": train, "validation": validation, "test": assignment.test}

    def split_clients(self, clients: Sequence[Indices]) -> dict[str, Sequence[Indices]]:
        splits_of_many = self._split_many(clients) if len(clients) >= MIN_CLIENTS_AT_ONCE else None
        if splits_of_many is not None:
            return splits_of_many
        splits = [self._split_one(indices, client) for client, indices in enumerate(clients)]
        return {split: [each[split] for each in splits] for split in ("train", "validation", "test")}

    def _split_many(self, clients: Sequence[Indices]) -> dict[str, Sequence[Indices]] | None:
        """As below, all clients at once; None where that cannot be done, or would be refused."""
        labels = self.labels[:, 0] if self.labels.ndim == 2 and self.labels.shape[1] == 1 else self.labels
        stratified = self.plan.split == "stratified" and labels.ndim == 1
        if self.group is not None or (stratified and labels.dtype.kind == "f"):
            return None
        pieces = Pieces.of(clients)
        sizes, inverse = np.unique(pieces.sizes, return_inverse=True)
        parts_of = {size: self._sizes(size) for size in sizes.tolist()}
        if any(parts.both >= size for size, parts in parts_of.items()):
            return None
        held_out = np.array([(parts.test, parts.both) for parts in parts_of.values()])[inverse]
        if self.plan.split == "ordered":
            to_the_end = np.repeat(np.cumsum(pieces.sizes), pieces.sizes) - np.arange(len(pieces.flat))
            tests, both = np.repeat(held_out, pieces.sizes, axis=0).T
            mixed, parts = (
                pieces.flat,
                np.where(to_the_end <= tests, TEST, np.where(to_the_end <= both, VALIDATION, TRAIN)),
            )
        else:
            stratum = distinct_labels(labels)[1] if stratified else np.zeros(len(labels), np.int64)
            mixed, parts = split_many(pieces.flat, pieces.sizes, stratum, held_out, self.plan.seed, self.first)
        owners = pieces.owners()
        numbers = {"train": TRAIN, "validation": VALIDATION, "test": TEST}
        splits: dict[str, Sequence[Indices]] = {}
        for split, part in numbers.items():
            splits[split] = _where(mixed, owners, parts == part, len(pieces))
        largest = int(pieces.sizes.argmax())
        alone = self._split_one(pieces[largest], largest)
        if not all(np.array_equal(splits[split][largest], alone[split]) for split in splits):
            return None  # this numpy draws otherwise
        return splits

    def _sizes(self, count: int) -> Sizes:
        """How many of so many samples are held out."""
        tests = max(self.plan.minimum_test, _rounded_up(self.plan.test * count)) if self.plan.test > 0 else 0
        return Sizes(tests, _rounded_up(self.plan.validation * count))

    def _split_one(self, indices: Indices, client: int) -> dict[str, Indices]:
        sizes = self._sizes(len(indices))
        if sizes.both >= len(indices):
            raise DataError(
                f"{self._named(client)} has {counted(len(indices), 'sample')}, of which {sizes.test} would go to test "
                f"and {sizes.validation} to validation: none is left for training"
            )
        mixed, parts = self._parts(indices, client, sizes)
        return {"test": mixed[parts == TEST], "validation": mixed[parts == VALIDATION], "train": mixed[parts == TRAIN]}

    def _validation_of(self, indices: Indices, client: int) -> NDArray[np.bool_]:
        """Which of a client's training samples are for validation; copies of a sample stay together."""
        distinct = np.unique(indices)
        sizes = Sizes(0, _rounded_up(self.plan.validation * len(distinct)))
        if sizes.both == len(distinct):
            raise DataError(
                f"{self._named(client)} has {counted(len(distinct), 'training sample')}, of which {sizes.both} "
                "would go to validation: none is left for training"
            )
        mixed, parts = self._parts(distinct, client, sizes)
        return np.isin(indices, mixed[parts == VALIDATION])

    def _parts(self, indices: Indices, client: int, sizes: Sizes) -> tuple[Indices, Parts]:
        """A client's samples, in random order unless the split is ordered, and the part of each."""
        if self.plan.split == "ordered":  # indices are in the order of the data
            last = [sizes.validation, sizes.test]
            return indices, np.repeat([TRAIN, VALIDATION, TEST], [len(indices) - sizes.both, *last])
        # a stream of the client's own, so that its split does not change with the other clients
        rng = np.random.default_rng(np.random.SeedSequence(self.plan.seed, spawn_key=(self.first + client,)))
        mixed = rng.permutation(indices)
        stratum = _strata(self.labels[mixed], sizes, self.plan.split)
        if self.group is not None:
            return mixed, _parts_of_groups(self.group[mixed], stratum, sizes, rng)
        return mixed, parts_of_strata(stratum, sizes, rng)

    def _check_groups(self, train: Sequence[Indices], test: Sequence[Indices], group: NDArray[Any]) -> None:
        for client, (trained, tested) in enumerate(zip(train, test, strict=True)):
            both = np.intersect1d(group[trained], group[tested])
            if len(both):
                raise DataError(
                    f"group '{both[0]}' of {self._named(client)} is in both the training and the test part of the "
                    "data: move its samples to one of them, or leave out data.group"
                )

    def _named(self, client: int) -> str:
        return f"client '{self.names[client]}'" if self.names else f"client {client}"


def _strata(labels: NDArray[Any], sizes: Sizes, split: str) -> NDArray[np.int64]:
    """The stratum of each sample: its class, or the quantile of its number; 0 for all where there is neither.

    There are at most as many quantiles as the smallest held-out part has samples, so that every part has each of them.
    """
    count = len(labels)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if split == "random" or labels.ndim > 1:
        return np.zeros(count, np.int64)
    if labels.dtype.kind != "f":
        return labels.astype(np.int64)
    bins = min(BINS, *(size for size in (*sizes, count) if size))
    rank = np.empty(count, np.int64)
    rank[np.argsort(labels, kind="stable")] = np.arange(count)
    return rank * bins // count


def parts_of_strata(stratum: NDArray[np.int64], sizes: Sizes, rng: np.random.Generator) -> Parts:
    """The part of each sample, given in random order: the first samples of a stratum are for testing."""
    if (stratum == stratum[0]).all():  # the same as below, in a fifth of the time
        return np.repeat([TEST, VALIDATION, TRAIN], [*sizes, len(stratum) - sizes.both])
    _, ids, counts = np.unique(stratum, return_inverse=True, return_counts=True)
    order = rng.permutation(len(counts))  # decides between strata with equal remainders
    room = counts - 1  # of each stratum one sample stays, unless too few would be left to hold out
    short = max(0, sizes.both - int(room.sum()))
    room[order[np.argsort(counts[order], kind="stable")][:short]] += 1
    held_out = apportioned(sizes.both, counts, room, order)
    tests = apportioned(sizes.test, held_out, held_out, order)
    # The place of each sample within its stratum: samples come in random order, so the first ones are a random draw.
    rank = np.empty(len(ids), np.int64)
    rank[np.argsort(ids, kind="stable")] = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.where(rank < tests[ids], TEST, np.where(rank < held_out[ids], VALIDATION, TRAIN))


def apportioned(total: int, counts: Parts, room: Parts, order: Parts) -> Parts:
    """`total` samples over strata in proportion to their counts, by largest remainders, at most `room` of each."""
    whole = max(1, int(counts.sum()))
    taken = np.minimum(total * counts // whole, room)
    # A full stratum cannot take its remainder, so the rest is offered to the others again.
    while (left := total - int(taken.sum())) > 0:
        missing = total * counts - taken * whole
        able = order[taken[order] < room[order]]
        taken[able[np.argsort(-missing[able], kind="stable")][:left]] += 1
    return taken


def _parts_of_groups(group: NDArray[Any], stratum: NDArray[np.int64], sizes: Sizes, rng: np.random.Generator) -> Parts:
    """The part of each sample, where those of a group stay together.

    Groups come in a random order, and each goes to the part that lacks most of what it holds. Of several orders, the
    one whose parts are closest to the sizes asked for is kept. Training gets a group first, then testing, then
    validation: a client with a single group trains on it.
    """
    _, ids = np.unique(group, return_inverse=True)
    _, kinds = np.unique(stratum, return_inverse=True)
    counts = np.zeros((ids.max() + 1, kinds.max() + 1))
    np.add.at(counts, (ids, kinds), 1)
    shares = np.array([sizes.test, sizes.validation, len(ids) - sizes.both]) / len(ids)
    wanted = shares[:, None] * counts.sum(0)
    tries = [_fitted(counts, wanted, rng.permutation(len(counts))) for _ in range(ORDERS)]
    best, _ = min(tries, key=lambda each: each[1])
    return best[ids]


def _fitted(counts: NDArray[np.float64], wanted: NDArray[np.float64], order: Parts) -> tuple[Parts, float]:
    """The part of each group, and the squared distance of the parts from the sizes wanted."""
    lacking, parts = wanted.copy(), np.empty(len(counts), np.int64)
    asked_for = [part for part in (TRAIN, TEST, VALIDATION) if wanted[part].sum() > 0]
    empty = asked_for
    for left, group in zip(range(len(order), 0, -1), order, strict=True):
        # Once there are only as many groups as empty parts, each group must fill one of them.
        asking = empty[:left] if left <= len(empty) else asked_for
        part = max(asking, key=lambda part: counts[group] @ lacking[part])
        lacking[part] -= counts[group]
        parts[group] = part
        empty = [other for other in empty if other != part]
    return parts, float((lacking**2).sum())


def check_some_clients(clients: Sized) -> None:
    if len(clients) == 0:
        raise DataError("0 clients were given: a federation needs at least one")


def check_some_samples(count: int, who: str) -> None:
    if count == 0:
        raise DataError(f"{who} has no data to train on: every client needs at least one sample")


def _checked(clients: Sequence[Any], total: int, overlap: bool) -> list[Indices]:
    check_some_clients(clients)
    checked = [_checked_indices(np.asarray(indices), client, total) for client, indices in enumerate(clients)]
    if not overlap:
        _check_disjoint(checked, total)
    return checked


def _check_both(train: Sequence[Indices], test: Sequence[Indices], total: int, overlap: bool) -> None:
    if len(train) != len(test):
        wrong = f"there are {len(train)} arrays to train on, but {len(test)} to test on"
        raise DataError(f"{wrong}: give one of each per client")
    once = np.unique if overlap else np.asarray  # a sample may appear twice only if it was drawn twice
    both = [np.concatenate([once(trained), once(tested)]) for trained, tested in zip(train, test, strict=True)]
    _checked(both, total, overlap)


def _checked_many(clients: Sequence[Any], total: int, overlap: bool) -> Pieces | None:
    """The same for many clients at once; None if there are few, or if `_checked` would refuse them."""
    if len(clients) < MIN_CLIENTS_AT_ONCE or not (isinstance(clients, Pieces) or all(map(_are_indices, clients))):
        return None
    pieces = Pieces.of(clients)
    flat, owners = pieces.flat.astype(np.int64), pieces.owners()
    if not pieces.sizes.all() or flat.min() < 0 or flat.max() >= total:
        return None
    if not _rising(flat, owners, strictly=False):
        flat = flat[np.lexsort((flat, owners))]
    if not _rising(flat, owners, strictly=True) or (not overlap and np.bincount(flat).max() > 1):
        return None
    return Pieces(flat, pieces.sizes)


def _are_indices(indices: Any) -> bool:
    return isinstance(indices, np.ndarray) and indices.ndim == 1 and indices.dtype.kind in "iu"


def _rising(flat: Indices, owners: Indices, *, strictly: bool) -> bool:
    """Whether the indices of each client rise."""
    steps = np.diff(flat)
    return not bool(((steps <= 0 if strictly else steps < 0) & (np.diff(owners) == 0)).any())


def _where(flat: Indices, owners: Indices, chosen: NDArray[np.bool_], clients: int) -> Pieces:
    return Pieces(flat[chosen], np.bincount(owners[chosen], minlength=clients))


def _checked_indices(indices: NDArray[Any], client: int, total: int) -> Indices:
    if indices.ndim != 1 or indices.dtype.kind not in "iu":
        kind = f"a {indices.dtype} array of shape {indices.shape}"
        raise DataError(f"client {client} has {kind}: give one array of sample indices per client")
    ordered: Indices = np.sort(indices.astype(np.int64))
    if ordered[0] < 0 or ordered[-1] >= total:
        outside = ordered[0] if ordered[0] < 0 else ordered[-1]
        raise DataError(f"client {client} holds sample {outside}, but the samples are 0..{total - 1}")
    repeated = ordered[1:][np.diff(ordered) == 0]
    if len(repeated):  # it could land in both the training and the test part
        raise DataError(f"client {client} lists sample {repeated[0]} twice")
    return ordered


def _check_disjoint(assigned: Sequence[Indices], total: int) -> None:
    shared = np.flatnonzero(np.bincount(np.concatenate(assigned), minlength=total) > 1)
    if len(shared):
        first, second = [client for client, indices in enumerate(assigned) if shared[0] in indices][:2]
        both = f"clients {first} and {second} both hold sample {shared[0]} ({len(shared)} samples are shared)"
        raise DataError(f"{both}: pass overlap=True to allow it")


def _rounded_up(size: float) -> int:
    return ceil(round(size, 6))  # 0.14 × 50 is a little more than 7
