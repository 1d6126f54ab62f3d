"""Splitting: which of a client's samples are for testing, which for validation, and which for training.

Stratified: of each class, the share that a part has of all samples, by largest remainders, so that the parts have the
sizes that were asked for. The targets of a regression are split by quantiles. A class keeps at least one sample for
training; only where there are not enough others is the single sample of a class held out. Samples of one group stay
together: see `by_group`. `Cutter` (cutting.py) asks for it, client by client.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SPLIT = ("stratified", "random")
TEST, VALIDATION, TRAIN = 0, 1, 2  # the parts, as a sample's part is numbered
BINS = 10  # quantiles at most
ORDERS = 10  # in which groups are tried; the best counts

Parts = NDArray[np.int64]


class Sizes(NamedTuple):
    """How many samples of a client are held out."""

    test: int
    validation: int

    @property
    def both(self) -> int:
        """All that are held out."""
        return self.test + self.validation


def strata(labels: NDArray[Any], sizes: Sizes, split: str) -> NDArray[np.int64]:
    """The stratum of each sample: its class, or the quantile of its number; all have one where there is neither.

    There are at most as many quantiles as the smallest held-out part has samples, so that each of them is in every
    part.
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


def by_stratum(stratum: NDArray[np.int64], sizes: Sizes, rng: np.random.Generator) -> Parts:
    """The part of each sample, of samples in random order: the first of a stratum are for testing."""
    if (stratum == stratum[0]).all():  # the same as below, in a fifth of the time
        return np.repeat([TEST, VALIDATION, TRAIN], [*sizes, len(stratum) - sizes.both])
    _, ids, counts = np.unique(stratum, return_inverse=True, return_counts=True)
    order = rng.permutation(len(counts))  # decides between strata that could have one more by the same right
    held = _apportioned(sizes.both, counts, _room(sizes.both, counts, order), order)
    tests = _apportioned(sizes.test, held, held, order)
    rank = np.empty(len(ids), np.int64)
    rank[np.argsort(ids, kind="stable")] = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.where(rank < tests[ids], TEST, np.where(rank < held[ids], VALIDATION, TRAIN))


def _room(held: int, counts: Parts, order: Parts) -> Parts:
    """How many samples of each stratum may be held out: one stays, unless too few would be left to hold out."""
    room = counts - 1
    short = held - int(room.sum())
    if short > 0:
        smallest = order[np.argsort(counts[order], kind="stable")]
        room[smallest[:short]] += 1
    return room


def _apportioned(total: int, counts: Parts, room: Parts, order: Parts) -> Parts:
    """So many seats among strata in proportion to their counts, by largest remainders, nobody above their room."""
    whole = max(1, int(counts.sum()))
    given = np.minimum(total * counts // whole, room)
    while (left := total - int(given.sum())) > 0:
        missing = total * counts - given * whole
        able = order[given[order] < room[order]]
        given[able[np.argsort(-missing[able], kind="stable")][:left]] += 1
    return given


def by_group(group: NDArray[Any], stratum: NDArray[np.int64], sizes: Sizes, rng: np.random.Generator) -> Parts:
    """The part of each sample, where those of a group stay together.

    Groups come in a random order, and each goes to the part that lacks most of what it holds; of several orders, the
    one whose parts come nearest to what was asked for is kept. Training has a group first, then testing, then
    validation: a single group is trained on.
    """
    _, ids = np.unique(group, return_inverse=True)
    _, kinds = np.unique(stratum, return_inverse=True)
    counts = np.zeros((ids.max() + 1, kinds.max() + 1))
    np.add.at(counts, (ids, kinds), 1)
    shares = np.array([sizes.test, sizes.validation, len(ids) - sizes.both]) / len(ids)
    wanted = shares[:, None] * counts.sum(0)
    tries = [_dealt(counts, wanted, rng.permutation(len(counts))) for _ in range(ORDERS)]
    best, _ = min(tries, key=lambda each: each[1])
    return best[ids]


def _dealt(counts: NDArray[np.float64], wanted: NDArray[np.float64], order: Parts) -> tuple[Parts, float]:
    """The part of each group, and how far the parts are from what is wanted."""
    lacking, parts = wanted.copy(), np.empty(len(counts), np.int64)
    asked_for = [part for part in (TRAIN, TEST, VALIDATION) if wanted[part].sum() > 0]
    empty = asked_for
    for left, each in zip(range(len(order), 0, -1), order, strict=True):
        asking = empty[:left] if left <= len(empty) else asked_for
        part = max(asking, key=lambda part: counts[each] @ lacking[part])
        lacking[part] -= counts[each]
        parts[each] = part
        empty = [other for other in empty if other != part]
    return parts, float((lacking**2).sum())
