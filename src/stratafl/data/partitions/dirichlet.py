"""Partitions with shares from a Dirichlet distribution: of clients in a class, or of classes in a client.

The first random numbers decide how many samples of each class a client gets. Samples are drawn only for the counts that
are kept, so a thousand redraws cost little.
"""

from collections.abc import Callable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray

from stratafl.core.annotations import Range
from stratafl.core.records import record
from stratafl.data.partitions.base import Assignment, Counts, Indices, Partition, Pool, Share, Some, draw_counts
from stratafl.errors import PartitionError

Shares = NDArray[np.float64]
Alpha = Annotated[float, Range(above=0)]  # the concentration
_SIZES = (0.1, 0.25, 0.5, 0.75, 1.0)  # of ClientDirichlet's largest client, for groups of clients one after the other
_GROUPS = (0.1, 0.3, 0.3, 0.2, 0.1)  # and the share of the clients in each group


@record
class Dirichlet(Partition):
    """Each class is divided by shares from Dir(alpha · 1_N), all redrawn until every client has `minimum` samples."""

    alpha: Alpha = 0.1
    minimum: Annotated[int, Range(least=0)] = 10
    draws: Some = 1000

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices]:
        classes = pool.classes()
        counts = _first_accepted(_counts, self, self.minimum, classes, clients, rng)
        return draw_counts(classes, counts, rng)


@record
class PFLlibDirichlet(Partition):
    """PFLlib's Dirichlet partition: a client that already has its even share gets nothing of the next class.

    `minimum` is by default 40 or half the even share, whichever is less. With `replacement`, a client's samples of a
    class are drawn from the whole class, whatever other clients have of it.
    """

    alpha: Alpha = 0.1
    minimum: Annotated[int | None, Range(least=0)] = None
    draws: Some = 100_000
    replacement: bool = False

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices] | Assignment:
        classes = pool.classes()
        minimum = pool.pfllib_minimum(clients) if self.minimum is None else self.minimum
        counts = _first_accepted(_capped_counts, self, minimum, classes, clients, rng)
        if self.replacement:
            return Assignment(_draw_overlapping(classes, counts, rng), overlap=True)
        return draw_counts(classes, counts, rng)


@record
class ClientDirichlet(Partition):
    """FedALP's partition of CIFAR-10: each client draws class shares from Dir(alpha · 1_C), then samples by them.

    A client has from 100 to `largest` = 1000 training samples from the publishers' training set, and `test_ratio` times
    as many from their test set, by the same shares; what rounding leaves is of the last class. Samples are drawn with
    replacement, so clients share them.
    """

    alpha: Alpha = 0.1
    largest: Annotated[int, Range(least=10)] = 1000
    test_ratio: Share = 0.2

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> Assignment:
        shares = rng.dirichlet(np.full(len(pool.names), self.alpha), clients)
        train, test = (
            [_draw_repeated(pool, classes, _rounded_counts(q, n), rng) for q, n in zip(shares, sizes, strict=True)]
            for classes, sizes in zip(pool.published("perclient"), self._sizes(clients), strict=True)
        )
        return Assignment(train, test, overlap=True)

    def _sizes(self, clients: int) -> tuple[list[int], list[int]]:
        ends = np.rint(np.cumsum(_GROUPS) * clients).astype(np.int64)
        shares = np.repeat(_SIZES, np.diff(ends, prepend=0))
        train = [round(share * self.largest) for share in shares]
        return train, [max(1, round(size * self.test_ratio)) for size in train]


def _counts(shares: Shares, sizes: Counts) -> Counts:
    """Each class is cut at floor(cumsum · size), and the last client gets the rest."""
    cuts = np.minimum(np.floor(np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64), sizes[:, None])
    cuts[:, -1] = sizes
    return np.diff(cuts, axis=1, prepend=0)


def _capped_counts(shares: Shares, sizes: Counts) -> Counts:
    counts = np.zeros(shares.shape, dtype=np.int64)
    # Class after class, because who is still below the even share depends on the classes before.
    for label in range(len(sizes)):
        below = counts.sum(axis=0) < sizes.sum() / shares.shape[1]
        counts[label] = _counts(_shares_among(below, shares[label])[None], sizes[label : label + 1])
    return counts


def _shares_among(below: NDArray[np.bool_], shares: Shares) -> Shares:
    remaining = shares * below
    if remaining.sum() == 0:  # with a tiny alpha the whole class may have gone to a client at its cap
        remaining = below.astype(np.float64)
    renormalised: Shares = remaining / remaining.sum()
    return renormalised


def _first_accepted(
    divide: Callable[[Shares, Counts], Counts],
    settings: Dirichlet | PFLlibDirichlet,
    minimum: int,
    classes: list[Indices],
    clients: int,
    rng: np.random.Generator,
) -> Counts:
    alpha, draws = settings.alpha, settings.draws
    sizes = np.array([len(members) for members in classes])
    samples = int(sizes.sum())
    if clients * minimum > samples:
        wrong = f"{samples} samples cannot give each of {clients} clients at least {minimum}"
        raise PartitionError(f"{wrong}: set data.clients or data.minimum lower")
    best = 0  # samples of the smallest client, in the draw that came closest
    for _ in range(draws):
        counts = divide(rng.dirichlet(np.full(clients, alpha), len(sizes)), sizes)
        smallest = int(counts.sum(axis=0).min())
        if smallest >= minimum:
            return counts
        best = max(best, smallest)
    failed = f"0 of {draws} draws gave each of {clients} clients {minimum} of {samples} samples (alpha {alpha})"
    advice = "set data.clients or data.minimum lower, or data.alpha or data.draws higher"
    raise PartitionError(f"{failed}; the smallest client of the best draw had {best}: {advice}")


def _draw_overlapping(classes: list[Indices], counts: Counts, rng: np.random.Generator) -> list[Indices]:
    """For each client its number of samples of each class, drawn from all of them; none twice for one client."""
    drawn = (
        [rng.choice(each, n, replace=False) for each, n in zip(classes, per_class, strict=True)]
        for per_class in counts.T
    )
    return [np.sort(np.concatenate(per_class)) for per_class in drawn]


def _rounded_counts(shares: Shares, size: int) -> list[int]:
    counts = [int(share * size) for share in shares]
    counts[-1] += size - sum(counts)
    return counts


def _draw_repeated(pool: Pool, classes: list[Indices], counts: list[int], rng: np.random.Generator) -> Indices:
    for name, members, n in zip(pool.names, classes, counts, strict=True):
        if n and not len(members):
            raise PartitionError(
                f"class {name} is not in both of the published sets: no client can train and test on it"
            )
    drawn = [rng.choice(members, n) for members, n in zip(classes, counts, strict=True) if n]
    return np.sort(np.concatenate(drawn))
