"""Every class divided among the clients by shares from a Dirichlet distribution.

The first random numbers decide how many samples of each class a client gets, and only the draw that is kept is filled
with samples, so that a thousand redraws cost little.
"""

from collections.abc import Callable
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from stratafl.core.records import record
from stratafl.data.cutting import Division, Indices
from stratafl.data.partitions.base import Partition, Pool
from stratafl.data.partitions.counts import Counts, filled
from stratafl.errors import PartitionError

Shares = NDArray[np.float64]


@record
class Dirichlet(Partition):
    """Each class is divided by shares from Dir(alpha · 1_N), all redrawn until every client has `minimum` samples."""

    alpha: float = 0.1
    minimum: int = 10
    draws: int = 1000

    def __post_init__(self) -> None:
        require_alpha(self.alpha)
        _require_draws(self.minimum, self.draws)

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices]:
        """One sorted array of sample indices per client."""
        classes = pool.classes()
        counts = _first_accepted(_counts, self, self.minimum, classes, clients, rng)
        return filled(classes, counts, rng)


@record
class PFLlibDirichlet(Partition):
    """PFLlib's Dirichlet partition: a client that holds its even share already gets nothing of the next class.

    `minimum` is by default 40 or half the even share, whichever is less. With `replacement`, a client's samples of a
    class are drawn from the whole class, whatever other clients hold of it.
    """

    alpha: float = 0.1
    minimum: int | None = None
    draws: int = 100_000
    replacement: bool = False

    def __post_init__(self) -> None:
        require_alpha(self.alpha)
        _require_draws(self.minimum or 0, self.draws)

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices] | Division:
        """One sorted array of sample indices per client."""
        classes = pool.classes()
        minimum = least(len(pool.labels), clients) if self.minimum is None else self.minimum
        counts = _first_accepted(_capped_counts, self, minimum, classes, clients, rng)
        if self.replacement:
            return Division(_filled_anew(classes, counts, rng), overlap=True)
        return filled(classes, counts, rng)


def least(samples: int, clients: int) -> int:
    """What PFLlib asks for each client: four batches of 10, or half the even share, whichever is less."""
    return int(min(40, samples / clients / 2))


def require_alpha(alpha: float) -> None:
    """Refuse what is no concentration of a Dirichlet distribution."""
    if not (isfinite(alpha) and alpha > 0):
        raise PartitionError(f"alpha={alpha} was given: the concentration of a Dirichlet must be positive and finite")


def _require_draws(minimum: int, draws: int) -> None:
    if minimum < 0:
        raise PartitionError(f"minimum={minimum} was given: a client cannot hold fewer than 0 samples")
    if draws < 1:
        raise PartitionError(f"draws={draws} was given: a partition needs at least one draw")


def _counts(shares: Shares, sizes: Counts) -> Counts:
    """Samples of each class (rows) for each client: cut at floor(cumsum · size), and the last client takes the rest."""
    cuts = np.floor(np.cumsum(shares, axis=1) * sizes[:, None]).astype(np.int64)
    cuts = np.minimum(cuts, sizes[:, None])
    cuts[:, -1] = sizes
    return np.diff(cuts, axis=1, prepend=0)


def _capped_counts(shares: Shares, sizes: Counts) -> Counts:
    held = np.zeros(shares.shape[1], dtype=np.int64)
    counts = np.zeros(shares.shape, dtype=np.int64)
    even_share = sizes.sum() / len(held)
    for each in range(len(sizes)):
        below = held < even_share
        counts[each] = _counts(_shares_among(below, shares[each])[None], sizes[each : each + 1])
        held += counts[each]
    return counts


def _shares_among(below: NDArray[np.bool_], shares: Shares) -> Shares:
    kept = shares * below
    if kept.sum() == 0:  # with a tiny alpha the whole class may have gone to a client at its cap
        kept = below.astype(np.float64)
    renormalised: Shares = kept / kept.sum()
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
        raise PartitionError(
            f"{samples} samples cannot give each of {clients} clients at least {minimum}: "
            "set data.clients or data.minimum lower"
        )
    best = 0
    for _ in range(draws):
        counts = divide(rng.dirichlet(np.full(clients, alpha), len(sizes)), sizes)
        smallest = int(counts.sum(axis=0).min())
        if smallest >= minimum:
            return counts
        best = max(best, smallest)
    raise PartitionError(
        f"0 of {draws} draws gave each of {clients} clients at least {minimum} samples (alpha {alpha}, {samples} "
        f"samples); the smallest client of the best draw had {best}: set data.clients or data.minimum lower, or "
        "data.alpha or data.draws higher"
    )


def _filled_anew(classes: list[Indices], counts: Counts, rng: np.random.Generator) -> list[Indices]:
    """For each client so many samples of each class, each client's from all there are; none twice for one client."""
    return [
        np.sort(
            np.concatenate([rng.choice(members, n, replace=False) for members, n in zip(classes, mine, strict=True)])
        )
        for mine in counts.T
    ]
