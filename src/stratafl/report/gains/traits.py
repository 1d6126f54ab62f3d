"""What may explain a client's gain: its size, the skew of its classes, and how far its classes are from the others'.

All three come from the class counts of the training split. Distances between features are not stored with a run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.report.charts import thinned
from stratafl.report.intervals import Interval
from stratafl.runs.class_counts import counts_array

Array = NDArray[np.float64]
NEAREST = 3  # clients from which the distance is measured
FEWEST = 8  # clients below which there is no correlation
THIRDS = 6  # clients below which there are no thirds
RESAMPLES, DRAWS = 1000, 2_000_000  # of clients, and how many draws these are at most
OTHERS = 2000  # clients, evenly spaced, among which the nearest are looked for
CHUNK = 32  # clients whose distances to all others are computed at once: few enough for a processor's cache
TRAITS = {
    "training samples": ("smallest", "middle", "largest"),
    "class skew": ("most like the federation", "middle", "least like the federation"),
    "distance from the others": ("nearest", "middle", "farthest"),
}


@short_repr
class Traits(NamedTuple):
    """Of each client; without classes there is neither skew nor distance."""

    samples: Array
    skew: Array | None = None
    distance: Array | None = None


class Third(NamedTuple):
    """The clients with the smallest, middle or largest values of a trait, and their mean gain."""

    name: str
    least: float
    most: float
    clients: int
    gain: float


class ClientFacts:
    """The names, sizes and traits of a run's clients, by their number; None where the run does not record them."""

    def __init__(self, class_counts: Mapping[str, Any] | None) -> None:
        recorded = class_counts or {}
        counts = recorded.get("counts", {})
        self.names: list[str] = list(recorded.get("client_names", ()))
        self._test: list[int] = counts_array(counts["test"]).sum(1).tolist() if counts.get("test") else []
        self._train = counts.get("train", ())

    @cached_property
    def _traits(self) -> Traits | None:
        return traits_of(self._train) if self._train else None

    def name(self, client: int) -> str:
        return self.names[client] if client < len(self.names) else ""

    def test_samples(self, client: int) -> int:
        return self._test[client] if client < len(self._test) else 0

    def traits(self, client: int) -> list[float | None]:
        """Training samples, class skew, and distance from the others."""
        if self._traits is None:
            return [None] * len(Traits._fields)
        columns = [each if each is not None and client < len(each) else None for each in self._traits]
        values = [None if column is None else float(column[client]) for column in columns]
        return [value if value is not None and isfinite(value) else None for value in values]


@dataclass(frozen=True)
class Dependence:
    """How gains depend on a trait: Spearman's correlation over clients with its interval, and mean gains in thirds."""

    trait: str
    correlation: Interval | None
    thirds: tuple[Third, ...]


def traits_of(counts: Sequence[Sequence[int]]) -> Traits:
    """From the training samples of each client by class.

    The distance from the others is the total variation distance, as a mean over the three nearest clients.
    """
    class_counts = np.asarray(counts, dtype=np.float64)
    return _traits_of(class_counts.tobytes(), class_counts.shape[1])


@lru_cache(maxsize=32)  # all methods of a comparison have the same clients, seed by seed
def _traits_of(counts: bytes, classes: int) -> Traits:
    class_counts = np.frombuffer(counts).reshape(-1, classes)
    samples = class_counts.sum(axis=1)
    return (
        Traits(samples) if classes < 2 else Traits(samples, class_skew(class_counts), _nearest(_shares(class_counts)))
    )


def class_skew(counts: Array) -> Array:
    """Of each client, the total variation distance from the classes of all clients together: ½·Σ_c |π_k(c) − π(c)|.

    It is the share of the client's samples that would need another class; NaN without samples.
    """
    return np.asarray(np.abs(_shares(counts) - counts.sum(axis=0) / counts.sum()).sum(axis=1) / 2)


def _shares(counts: Array) -> Array:
    with np.errstate(invalid="ignore"):  # a client without samples
        return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def _nearest(shares: Array) -> Array:
    with_samples = np.flatnonzero(np.isfinite(shares[:, 0]))  # clients with training samples
    others = with_samples[thinned(len(with_samples), OTHERS)]
    columns = np.ascontiguousarray(shares[others].T)
    distances, most = np.full(len(shares), np.nan), min(NEAREST, len(with_samples) - 1)
    for start in range(0, len(with_samples) if most > 0 else 0, CHUNK):
        some = with_samples[start : start + CHUNK]
        apart, of_class = np.zeros((2, len(some), len(others)))
        for label in range(shares.shape[1]):  # class by class: all at once would need clients² × classes numbers
            np.subtract(shares[some, label][:, None], columns[label], out=of_class)
            apart += np.abs(of_class, out=of_class)
        apart /= 2
        apart[some[:, None] == others] = np.inf  # not from itself
        distances[some] = np.partition(apart, most - 1, axis=1)[:, :most].mean(axis=1)
    return distances


def dependences(gains: Sequence[float], traits: Mapping[str, Sequence[float | None]]) -> list[Dependence]:
    """How these gains depend on each trait that differs between clients."""
    by_trait = []
    for name, values in traits.items():
        numbers = np.array(values, dtype=np.float64)  # None becomes NaN
        present, their_gains = (each[np.isfinite(numbers)] for each in (numbers, np.asarray(gains, dtype=np.float64)))
        if len(np.unique(present)) > 1:
            by_trait.append(Dependence(name, spearman(present, their_gains), thirds(name, present, their_gains)))
    return by_trait


def thirds(name: str, values: Array, gains: Array) -> tuple[Third, ...]:
    if len(values) < THIRDS:
        return ()
    parts = np.array_split(np.argsort(values, kind="stable"), 3)
    return tuple(
        Third(title, float(values[part].min()), float(values[part].max()), len(part), float(gains[part].mean()))
        for title, part in zip(TRAITS[name], parts, strict=True)
    )


def spearman(first: Array, second: Array) -> Interval | None:
    """Spearman's correlation with its 95 % bootstrap interval over clients; None for few clients or equal values."""
    if len(first) < FEWEST or len(np.unique(first)) < 2 or len(np.unique(second)) < 2:
        return None
    x, y = average_ranks(first), average_ranks(second)
    resamples = max(200, min(RESAMPLES, DRAWS // len(x)))
    draws = np.random.default_rng(0).integers(0, len(x), (resamples, len(x)))
    resampled = _correlations(x[draws], y[draws])
    low, high = np.nanpercentile(resampled, [2.5, 97.5])
    return Interval(float(_correlations(x[None], y[None])[0]), float(low), float(high))


def average_ranks(values: Array) -> Array:
    """Ranks from 1 on; equal values share the mean of theirs."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def _correlations(x: Array, y: Array) -> Array:
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):  # a resample of one client has no correlation
        return np.asarray((x * y).sum(axis=1) / np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1)))
