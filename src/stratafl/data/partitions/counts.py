"""How many samples of each class (rows) each client (columns) gets, and which ones."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.data.cutting import Division, Indices
from stratafl.data.partitions.base import Pool
from stratafl.errors import PartitionError

Counts = NDArray[np.int64]
Ownership = NDArray[np.bool_]


def filled(classes: list[Indices], counts: Counts, rng: np.random.Generator) -> list[Indices]:
    """For each client so many samples of each class, drawn so that nobody gets the same."""
    held: list[list[Indices]] = [[] for _ in range(counts.shape[1])]
    for members, row in zip(classes, counts, strict=True):
        # what is left after the last cut belongs to nobody
        for mine, piece in zip(held, np.split(rng.permutation(members), np.cumsum(row)), strict=False):
            mine.append(piece)
    return [np.sort(np.concatenate(mine)) for mine in held]


def trained_and_tested(classes: list[Indices], train: Counts, test: Counts, rng: np.random.Generator) -> Division:
    """So many samples of each class to train on and so many others to test on, all of one pool."""
    held = filled(classes, np.hstack([train, test]), rng)
    return Division(held[: train.shape[1]], held[train.shape[1] :])


def require_supply(pool: Pool, classes: list[Indices], counts: Counts, what: str = "samples") -> None:
    """Refuse counts that ask for more of a class than there is."""
    for name, members, row in zip(pool.names, classes, counts, strict=True):
        if row.sum() > len(members):
            owners = int((row > 0).sum())
            raise PartitionError(f"class {name} has {len(members)} {what}, but {owners} clients ask for {row.sum()}")


def balanced_ownership(clients: int, classes: int, per_client: int, rng: np.random.Generator) -> Ownership:
    """Whether each client (rows) owns each class: client after client takes the classes with the fewest owners."""
    if per_client > classes:
        raise PartitionError(f"per_client={per_client} was given, but the labels hold only {classes} classes")
    owned = np.zeros((clients, classes), dtype=np.bool_)
    for client in rng.permutation(clients):
        fewest_first = np.lexsort((rng.random(classes), owned.sum(axis=0)))
        owned[client, fewest_first[:per_client]] = True
    return owned


def equal_counts(owned: Ownership, names: NDArray[Any], classes: list[Indices], rng: np.random.Generator) -> Counts:
    """Every class divided equally among its owners; some of them, drawn at random, get what does not divide."""
    counts = np.zeros(owned.T.shape, dtype=np.int64)
    for each, members in enumerate(classes):
        owners = rng.permutation(np.flatnonzero(owned[:, each]))
        if len(owners) > len(members):
            raise PartitionError(f"class {names[each]} has {len(members)} samples for {len(owners)} owners")
        for rank, owner in enumerate(owners):
            counts[each, owner] = (len(members) + len(owners) - 1 - rank) // len(owners)
    return counts
