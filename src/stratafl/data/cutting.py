"""Who holds which sample, as a partition says it, checked and cut into test, validation and train."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.data.splitting import SPLIT, TEST, TRAIN, VALIDATION, Parts, Sizes, by_group, by_stratum, strata
from stratafl.errors import DataError, counted, unknown

Indices = NDArray[np.int64]


@short_repr
@dataclass(frozen=True, eq=False)
class Division:
    """One array of sample indices per client to train on and, where the partition decides that too, to test on.

    Without `test`, the usual share of what a client holds is cut off. Only with `overlap` may a sample belong to
    several clients, or to one of them several times; but nobody tests on what they train on themselves.
    """

    train: list[Indices]
    test: list[Indices] | None = None
    overlap: bool = False


@short_repr
@dataclass(frozen=True, eq=False)
class Known:
    """What is known of the samples that are split: their targets, and perhaps which group each belongs to."""

    labels: NDArray[Any]
    group: NDArray[Any] | None = None


@dataclass(frozen=True)
class Cutter:
    """How each client's samples are cut into test, validation and train; names tell clients apart in an error.

    `split` says whether by class (`stratified`) or `random`, see `splitting`.
    """

    validation: float
    test: float
    minimum_test: int
    seed: int
    names: tuple[str, ...] = ()
    split: str = "stratified"

    def __post_init__(self) -> None:
        if self.split not in SPLIT:
            raise unknown("split", self.split, SPLIT)
        if not (self.validation >= 0 and self.test >= 0 and self.validation + self.test < 1):
            raise DataError(
                f"validation={self.validation} and test={self.test} were given: "
                "they are fractions from 0 that must leave something for training"
            )
        if self.minimum_test < 0 or self.seed < 0:
            raise DataError(
                f"minimum_test={self.minimum_test} and seed={self.seed} were given: neither may be negative"
            )

    def divide(self, division: Division, known: Known) -> dict[str, list[Indices]]:
        """The three splits of a division of these samples."""
        total = len(known.labels)
        for client, mine in enumerate(division.train):
            check_some_samples(np.size(mine), self._named(client))
        if division.test is None:
            return self.cut(_checked_owners(division.train, total, division.overlap), known)
        _check_division(division.train, division.test, total, division.overlap)
        if known.group is not None:
            self._check_sides(division.train, division.test, known.group)
        held = [self._validating(mine, client, known) for client, mine in enumerate(division.train)]
        train = [mine[~out] for mine, out in zip(division.train, held, strict=True)]
        validation = [mine[out] for mine, out in zip(division.train, held, strict=True)]
        return {"train": train, "validation": validation, "test": division.test}

    def cut(self, held: Sequence[Indices], known: Known) -> dict[str, list[Indices]]:
        """The three splits of clients who hold these samples."""
        cuts = [self._cut_one(mine, client, known) for client, mine in enumerate(held)]
        return {split: [cut[split] for cut in cuts] for split in ("train", "validation", "test")}

    def _cut_one(self, mine: Indices, client: int, known: Known) -> dict[str, Indices]:
        tests = max(self.minimum_test, _rounded_up(self.test * len(mine))) if self.test > 0 else 0
        sizes = Sizes(tests, _rounded_up(self.validation * len(mine)))
        if sizes.both >= len(mine):
            raise DataError(
                f"{self._named(client)} has {counted(len(mine), 'sample')}, of which {tests} would go to test and "
                f"{sizes.validation} to validation: none is left for training"
            )
        mixed, parts = self._split(mine, client, sizes, known)
        return {"test": mixed[parts == TEST], "validation": mixed[parts == VALIDATION], "train": mixed[parts == TRAIN]}

    def _validating(self, mine: Indices, client: int, known: Known) -> NDArray[np.bool_]:
        """Which of a client's training samples are for validation; copies of a sample stay together."""
        distinct = np.unique(mine)
        sizes = Sizes(0, _rounded_up(self.validation * len(distinct)))
        if sizes.both == len(distinct):
            raise DataError(
                f"{self._named(client)} has {counted(len(distinct), 'training sample')}, of which {sizes.both} "
                "would go to validation: none is left for training"
            )
        mixed, parts = self._split(distinct, client, sizes, known)
        return np.isin(mine, mixed[parts == VALIDATION])

    def _split(self, mine: Indices, client: int, sizes: Sizes, known: Known) -> tuple[Indices, Parts]:
        """A client's samples in random order, and the part of each."""
        rng = self._stream(client)
        mixed = rng.permutation(mine)
        stratum = strata(known.labels[mixed], sizes, self.split)
        if known.group is not None:
            return mixed, by_group(known.group[mixed], stratum, sizes, rng)
        return mixed, by_stratum(stratum, sizes, rng)

    def _check_sides(self, train: Sequence[Indices], test: Sequence[Indices], group: NDArray[Any]) -> None:
        """Refuse data that says itself what is for testing, and has a group on both sides."""
        for client, (mine, other) in enumerate(zip(train, test, strict=True)):
            both = np.intersect1d(group[mine], group[other])
            if len(both):
                raise DataError(
                    f"group '{both[0]}' of {self._named(client)} is in both the training and the test part of the "
                    "data: move its samples to one of them, or leave out data.group"
                )

    def _named(self, client: int) -> str:
        return f"client '{self.names[client]}'" if self.names else f"client {client}"

    def _stream(self, client: int) -> np.random.Generator:
        # of the client's own, so that its split does not change with the other clients
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(client,)))


def check_some_clients(clients: Sequence[Any]) -> None:
    """Refuse a federation of nobody."""
    if len(clients) == 0:
        raise DataError("0 clients were given: a federation needs at least one")


def check_some_samples(count: int, who: str) -> None:
    """Refuse a client of nothing."""
    if count == 0:
        raise DataError(f"{who} has no data to train on: every client needs at least one sample")


def _checked_owners(owners: Sequence[Any], total: int, overlap: bool) -> list[Indices]:
    check_some_clients(owners)
    held = [_checked_indices(np.asarray(given), client, total) for client, given in enumerate(owners)]
    if not overlap:
        _check_disjoint(held, total)
    return held


def _check_division(train: Sequence[Indices], test: Sequence[Indices], total: int, overlap: bool) -> None:
    if len(train) != len(test):
        raise DataError(f"{len(train)} clients train, but {len(test)} test: a division has as many of both")
    once = np.unique if overlap else np.asarray  # nobody may list a sample twice, unless it was drawn twice
    both = [np.concatenate([once(mine), once(other)]) for mine, other in zip(train, test, strict=True)]
    _checked_owners(both, total, overlap)


def _checked_indices(given: NDArray[Any], client: int, total: int) -> Indices:
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise DataError(
            f"client {client} was given a {given.dtype} array of shape {given.shape}: "
            "owners holds one array of sample indices per client"
        )
    held: Indices = np.sort(given.astype(np.int64))
    if held[0] < 0 or held[-1] >= total:
        outside = held[0] if held[0] < 0 else held[-1]
        raise DataError(f"client {client} owns sample {outside}, but the samples are 0..{total - 1}")
    repeated = held[1:][np.diff(held) == 0]
    if len(repeated):  # it could land in both the training and the test part
        raise DataError(f"client {client} lists sample {repeated[0]} twice")
    return held


def _check_disjoint(held: Sequence[Indices], total: int) -> None:
    shared = np.flatnonzero(np.bincount(np.concatenate(held), minlength=total) > 1)
    if len(shared):
        first, second = [client for client, mine in enumerate(held) if shared[0] in mine][:2]
        raise DataError(
            f"sample {shared[0]} is owned by client {first} and client {second} ({len(shared)} samples are shared): "
            "pass overlap=True to allow it"
        )


def _rounded_up(size: float) -> int:
    return ceil(round(size, 6))  # 0.14 × 50 is a little more than 7
