"""The base of all partitions: their input, their result and their class counts; the partitions `IID` and `Owners`.

`IID` is the simplest partition: copy it to write your own.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, overload

import numpy as np
from numpy.typing import NDArray

from stratafl.core.annotations import Range
from stratafl.core.records import record
from stratafl.core.reprs import holder
from stratafl.errors import PartitionError

Indices = NDArray[np.int64]
Counts = NDArray[np.int64]  # samples of each class (rows) for each client (columns)
Some = Annotated[int, Range(least=1)]
Share = Annotated[float, Range(above=0, below=1)]


class Pieces(Sequence[Indices]):
    """The indices of each client as one array with all of them: a million short arrays take seconds and memory."""

    def __init__(self, flat: Indices, sizes: NDArray[np.int64]) -> None:
        self.flat, self.sizes = flat, sizes
        self._ends = np.cumsum(sizes)

    @classmethod
    def of(cls, arrays: Sequence[Indices]) -> "Pieces":
        if isinstance(arrays, Pieces):
            return arrays
        return cls(np.concatenate([np.empty(0, np.int64), *arrays]), np.array([*map(len, arrays)], np.int64))

    def owners(self) -> NDArray[np.int64]:
        """The client of each index."""
        return np.repeat(np.arange(len(self)), self.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, place: int) -> Indices: ...
    @overload
    def __getitem__(self, place: slice) -> list[Indices]: ...
    def __getitem__(self, place: int | slice) -> Indices | list[Indices]:
        if isinstance(place, slice):
            return [self[client] for client in range(*place.indices(len(self)))]
        end = int(self._ends[place])
        return self.flat[end - int(self.sizes[place]) : end]


@holder
class Assignment:
    """One array of sample indices per client to train on and, if the partition decides that too, to test on.

    Without `test`, a share of what each client holds is split off. With `overlap`, a sample may belong to several
    clients, or several times to one of them; no client tests on a sample that it trains on.
    """

    train: Sequence[Indices]
    test: Sequence[Indices] | None = None
    overlap: bool = False


@holder
class Pool:
    """What a partition may look at: labels and, if known, the publishers' test samples and the owner of each sample."""

    labels: NDArray[Any]
    tests: NDArray[np.bool_] | None = None
    owner: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        for what in ("tests", "owner"):
            values = getattr(self, what)
            if values is not None and len(values) != len(self.labels):
                raise PartitionError(f"there are {len(self.labels)} labels, but '{what}' has {len(values)} values")

    @cached_property
    def names(self) -> NDArray[Any]:
        """The different labels, in order."""
        if self.labels.ndim != 1 or self.labels.dtype.kind not in "biu":
            kind = f"dtype {self.labels.dtype} and shape {self.labels.shape}"
            raise PartitionError(f"labels of {kind} have no classes: set data.partition to 'iid'")
        return np.unique(self.labels)

    def classes(self, among: NDArray[np.bool_] | None = None) -> list[Indices]:
        """The samples of each class; only those where `among` is true."""
        chosen = np.ones(len(self.labels), dtype=np.bool_) if among is None else among
        return [np.flatnonzero(chosen & (self.labels == name)) for name in self.names]

    def published(self, partition: str) -> tuple[list[Indices], list[Indices]]:
        if self.tests is None:
            needs = f"the partition '{partition}' needs published training and test sets"
            raise PartitionError(f"{needs}, which this data does not have: choose another partition")
        return self.classes(~self.tests), self.classes(self.tests)

    def pfllib_minimum(self, clients: int) -> int:
        """What PFLlib asks for each client: four batches of 10, or half the even share, whichever is less."""
        return int(min(40, len(self.labels) / clients / 2))


class Partition(ABC):
    """A record that draws which client gets which sample, called as `partition(labels, clients, seed)`.

    Some also look at which samples are the publishers' `tests`, or at the `owner` of each sample.
    """

    def __call__(
        self,
        labels: NDArray[Any],
        clients: int,
        seed: int,
        *,
        tests: NDArray[np.bool_] | None = None,
        owner: NDArray[Any] | None = None,
    ) -> Sequence[Indices] | Assignment:
        pool = Pool(np.asarray(labels), tests, owner)
        samples = len(pool.labels)
        if clients < 1:
            raise PartitionError(f"clients={clients} was given: a partition needs at least one client")
        if clients > samples:
            raise PartitionError(f"{samples} samples cannot be divided among {clients} clients: choose fewer clients")
        if seed < 0:
            raise PartitionError(f"seed={seed} was given: a seed must be at least 0")
        return self.draw(pool, clients, np.random.default_rng(np.random.SeedSequence(seed)))

    @abstractmethod
    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> Sequence[Indices] | Assignment:
        """One sorted array of sample indices per client; or an `Assignment`, to say who tests on what."""


def draw_counts(classes: list[Indices], counts: Counts, rng: np.random.Generator) -> list[Indices]:
    """For each client its number of samples of each class, drawn so that no two clients share a sample."""
    drawn: list[list[Indices]] = [[] for _ in range(counts.shape[1])]
    for members, row in zip(classes, counts, strict=True):
        # the rest after the last piece goes to no client
        for pieces, piece in zip(drawn, np.split(rng.permutation(members), np.cumsum(row)), strict=False):
            pieces.append(piece)
    return [np.sort(np.concatenate(pieces)) for pieces in drawn]


@record
class IID(Partition):
    """Every client gets the same number of samples, give or take one, whatever their labels."""

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> Pieces:
        size, longer = divmod(len(pool.labels), clients)
        parts = np.split(rng.permutation(len(pool.labels)), [longer * (size + 1)])
        flat = [np.sort(part.reshape(-1, width)).ravel() for part, width in zip(parts, (size + 1, size), strict=True)]
        return Pieces(np.concatenate(flat), np.repeat([size + 1, size], [longer, clients - longer]))


@record
class Owners(Partition):
    """FedPer's partition of FLICKR-AES: each client is one of the owners in the data, drawn at random.

    Owners with fewer than `minimum` or more than `maximum` samples, or fewer than `per_class` of any class, cannot be.
    """

    minimum: Some = 1
    maximum: int | None = None
    per_class: Annotated[int, Range(least=0)] = 0

    def __post_init__(self) -> None:
        if self.maximum is not None and self.maximum < self.minimum:
            raise PartitionError(f"maximum={self.maximum} was given: it must be at least minimum={self.minimum}")

    def draw(self, pool: Pool, clients: int, rng: np.random.Generator) -> list[Indices]:
        if pool.owner is None:
            raise PartitionError(
                "the partition 'owners' needs the owner of each sample: name its column with data.client"
            )
        _, owner, sizes = np.unique(pool.owner, return_inverse=True, return_counts=True)
        fitting = np.flatnonzero((sizes >= self.minimum) & (sizes <= (self.maximum or sizes.max())))
        if self.per_class:
            rarest = np.min([np.bincount(owner[members], minlength=len(sizes)) for members in pool.classes()], axis=0)
            fitting = fitting[rarest[fitting] >= self.per_class]
        if len(fitting) < clients:
            few = f"only {len(fitting)} of {len(sizes)} owners have the samples that the partition needs"
            raise PartitionError(f"data.clients = {clients}, but {few}: set data.clients lower")
        chosen = np.sort(rng.choice(fitting, clients, replace=False))
        samples_by_owner = by_owner(pool.owner)
        return [samples_by_owner[each] for each in chosen]


def by_owner(owner: NDArray[Any]) -> Pieces:
    """The samples of each owner, in the order of the owners' names."""
    _, inverse, counts = np.unique(owner, return_inverse=True, return_counts=True)
    return Pieces(np.argsort(inverse, kind="stable"), counts)
