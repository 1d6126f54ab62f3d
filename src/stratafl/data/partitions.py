"""Partitions: which client gets which sample, drawn from the labels, the number of clients and a seed.

Every partition is a record that is called as `partition(labels, clients, seed)` and returns one sorted array of sample
indices per client. The first random numbers decide how many samples of each class a client gets, and only the draw
that is kept is filled with samples, so that a thousand redraws cost little.
"""

from collections.abc import Callable
from math import isfinite
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from stratafl.errors import PartitionError
from stratafl.records import record

Indices = NDArray[np.int64]
Counts = NDArray[np.int64]
Shares = NDArray[np.float64]


class Partition(Protocol):
    """Anything that divides samples among clients."""

    def __call__(self, labels: NDArray[Any], clients: int, seed: int) -> list[Indices]:
        """One sorted array of sample indices per client."""
        ...


@record
class IID:
    """Every client gets the same number of samples, give or take one, whatever their labels."""

    def __call__(self, labels: NDArray[Any], clients: int, seed: int) -> list[Indices]:
        """One sorted array of sample indices per client."""
        rng = _generator(len(labels), clients, seed)
        return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


@record
class Dirichlet:
    """Each class is divided by shares from Dir(alpha · 1_N), all redrawn until every client has `minimum` samples."""

    alpha: float = 0.1
    minimum: int = 10
    draws: int = 1000

    def __post_init__(self) -> None:
        _check_settings(self.alpha, self.minimum, self.draws)

    def __call__(self, labels: NDArray[Any], clients: int, seed: int) -> list[Indices]:
        """One sorted array of sample indices per client."""
        rng = _generator(len(labels), clients, seed)
        classes = _by_class(labels)
        counts = _first_accepted(_counts, self, self.minimum, classes, clients, rng)
        return _filled(classes, counts, rng)


@record
class PFLlibDirichlet:
    """PFLlib's Dirichlet partition: a client that holds its even share already gets nothing of the next class.

    `minimum` is by default 40 or half the even share, whichever is less.
    """

    alpha: float = 0.1
    minimum: int | None = None
    draws: int = 10_000

    def __post_init__(self) -> None:
        _check_settings(self.alpha, self.minimum or 0, self.draws)

    def __call__(self, labels: NDArray[Any], clients: int, seed: int) -> list[Indices]:
        """One sorted array of sample indices per client."""
        rng = _generator(len(labels), clients, seed)
        classes = _by_class(labels)
        minimum = int(min(40, len(labels) / clients / 2)) if self.minimum is None else self.minimum
        counts = _first_accepted(_capped_counts, self, minimum, classes, clients, rng)
        return _filled(classes, counts, rng)


@record
class Classes:
    """Every client holds samples of exactly `per_client` classes, and every class has as many owners, give or take one.

    A class is divided equally among its owners; with fewer than one owner per class, some classes stay unused.
    """

    per_client: int = 2

    def __post_init__(self) -> None:
        if self.per_client < 1:
            raise PartitionError(f"per_client={self.per_client} was given: every client needs at least one class")

    def __call__(self, labels: NDArray[Any], clients: int, seed: int) -> list[Indices]:
        """One sorted array of sample indices per client."""
        rng = _generator(len(labels), clients, seed)
        classes = _by_class(labels)
        if self.per_client > len(classes):
            raise PartitionError(
                f"per_client={self.per_client} was given, but the labels hold only {len(classes)} classes"
            )
        owned = _balanced_ownership(clients, len(classes), self.per_client, rng)
        return _filled(classes, _equal_counts(owned, labels, classes, rng), rng)


PARTITIONS: dict[str, type[Any]] = {"iid": IID, "dirichlet": Dirichlet, "pfllib": PFLlibDirichlet, "classes": Classes}


def _check_settings(alpha: float, minimum: int, draws: int) -> None:
    if not (isfinite(alpha) and alpha > 0):
        raise PartitionError(f"alpha={alpha} was given: the concentration of a Dirichlet must be positive and finite")
    if minimum < 0:
        raise PartitionError(f"minimum={minimum} was given: a client cannot hold fewer than 0 samples")
    if draws < 1:
        raise PartitionError(f"draws={draws} was given: a partition needs at least one draw")


def _generator(samples: int, clients: int, seed: int) -> np.random.Generator:
    if clients < 1:
        raise PartitionError(f"clients={clients} was given: a partition needs at least one client")
    if clients > samples:
        raise PartitionError(f"{samples} samples cannot be divided among {clients} clients: some would have none")
    if seed < 0:
        raise PartitionError(f"seed={seed} was given: a seed may not be negative")
    return np.random.default_rng(np.random.SeedSequence(seed))


def _by_class(labels: NDArray[Any]) -> list[Indices]:
    labels = np.asarray(labels)
    if labels.ndim != 1 or labels.dtype.kind not in "biu":
        raise PartitionError(
            f"labels of dtype {labels.dtype} and shape {labels.shape} have no classes: "
            "only an IID partition can divide them"
        )
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


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
        raise PartitionError(f"{samples} samples cannot give each of {clients} clients at least {minimum}")
    best = 0
    for _ in range(draws):
        counts = divide(rng.dirichlet(np.full(clients, alpha), len(sizes)), sizes)
        smallest = int(counts.sum(axis=0).min())
        if smallest >= minimum:
            return counts
        best = max(best, smallest)
    raise PartitionError(
        f"0 of {draws} draws gave each of {clients} clients at least {minimum} samples (alpha {alpha}, {samples} "
        f"samples); the smallest client of the best draw had {best}; lower the minimum, raise alpha or allow more draws"
    )


def _filled(classes: list[Indices], counts: Counts, rng: np.random.Generator) -> list[Indices]:
    held: list[list[Indices]] = [[] for _ in range(counts.shape[1])]
    for members, row in zip(classes, counts, strict=True):
        # what is left after the last cut belongs to nobody: only a class without owners has any
        for mine, piece in zip(held, np.split(rng.permutation(members), np.cumsum(row)), strict=False):
            mine.append(piece)
    return [np.sort(np.concatenate(mine)) for mine in held]


def _balanced_ownership(clients: int, classes: int, per_client: int, rng: np.random.Generator) -> NDArray[np.bool_]:
    """Whether each client (rows) owns each class: client after client takes the classes with the fewest owners."""
    owned = np.zeros((clients, classes), dtype=np.bool_)
    for client in rng.permutation(clients):
        fewest_first = np.lexsort((rng.random(classes), owned.sum(axis=0)))
        owned[client, fewest_first[:per_client]] = True
    return owned


def _equal_counts(
    owned: NDArray[np.bool_], labels: NDArray[Any], classes: list[Indices], rng: np.random.Generator
) -> Counts:
    counts = np.zeros(owned.T.shape, dtype=np.int64)
    for each, members in enumerate(classes):
        owners = rng.permutation(np.flatnonzero(owned[:, each]))
        if len(owners) > len(members):
            label = np.asarray(labels)[members[0]]
            raise PartitionError(f"class {label} has {len(members)} samples for {len(owners)} owners")
        for rank, owner in enumerate(owners):  # the first few get what does not divide
            counts[each, owner] = (len(members) + len(owners) - 1 - rank) // len(owners)
    return counts
