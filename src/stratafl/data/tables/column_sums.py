"""Sums over the samples of a client, column by column, from which a table's encoding is fitted.

They are all that leaves a client for it: counts, sums, a histogram on a grid that is fixed beforehand, and how often
each category occurs. Sums of clients add up to the sums over all their samples.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stratafl.core.reprs import short_repr
from stratafl.data.tables.kinds import BOOLEAN, CATEGORY, Codes, TableColumn

PER_OCTAVE = 256  # bins between a number and its double: each is 0.3 % wide
_MAX_OCTAVE = 64  # numbers are between 2 ** −64 and 2 ** 64; smaller ones are 0
_ROUNDING = 1e-14  # of a variance, as a share of the squared mean
_ZERO = _MAX_OCTAVE * PER_OCTAVE  # the distance of the bins of ±1 from the bin of 0
MAX_BIN = 2 * _ZERO


@short_repr
@dataclass(frozen=True)
class ColumnSums:
    """Of one column: numbers that add up over clients. `bins` and `values` count samples by bin and by text."""

    count: int = 0
    missing: int = 0
    total: float = 0.0
    squares: float = 0.0
    bins: Mapping[int, int] = field(default_factory=dict)
    values: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: "ColumnSums") -> "ColumnSums":
        return ColumnSums(
            self.count + other.count,
            self.missing + other.missing,
            self.total + other.total,
            self.squares + other.squares,
            Counter(self.bins) + Counter(other.bins),
            Counter(self.values) + Counter(other.values),
        )

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    @property
    def deviation(self) -> float:
        """0 if all numbers are the same up to rounding, or if there are none."""
        square = self.mean * self.mean
        variance = self.squares / self.count - square if self.count else 0.0
        return variance**0.5 if variance > _ROUNDING * square else 0.0

    @property
    def median(self) -> float:
        """Read off the histogram: within its bin, numbers are taken as evenly spread."""
        before = 0.0
        for bin in sorted(self.bins):
            if before + self.bins[bin] >= self.count / 2:
                low, high = _edges(bin)
                return low + (high - low) * (self.count / 2 - before) / self.bins[bin]
            before += self.bins[bin]
        return 0.0


def sums_of(column: TableColumn, codes: Codes) -> ColumnSums:
    present = codes[~np.isnan(codes)]
    missing = len(codes) - len(present)
    if column.kind in (CATEGORY, BOOLEAN):
        places, counts = np.unique(present.astype(np.int64), return_counts=True)
        values = {column.values[place]: count for place, count in zip(places.tolist(), counts.tolist(), strict=True)}
        return ColumnSums(len(present), missing, values=values)
    bins, counts = np.unique(_bins(present), return_counts=True)
    histogram = dict(zip(bins.tolist(), counts.tolist(), strict=True))
    return ColumnSums(len(present), missing, float(present.sum()), float((present**2).sum()), histogram)


def table_sums(columns: Sequence[TableColumn], codes: Codes) -> list[ColumnSums]:
    return [sums_of(column, codes[:, at]) for at, column in enumerate(columns)]


def added(sums: Sequence[Sequence[ColumnSums]]) -> list[ColumnSums]:
    """The sums over all clients, column by column."""
    first, *rest = sums
    total = list(first)
    for client in rest:
        total = [a + b for a, b in zip(total, client, strict=True)]
    return total


def _bins(values: Codes) -> Any:
    """The bin of each number: 0 for 0, ±1 … on a logarithmic grid."""
    with np.errstate(divide="ignore"):
        place = np.floor(np.log2(np.abs(values)) * PER_OCTAVE) + _ZERO + 1
    return (np.sign(values) * np.clip(place, 0, MAX_BIN)).astype(np.int64)


def _edges(bin: int) -> tuple[float, float]:
    if bin == 0:
        return 0.0, 0.0
    low, high = (2.0 ** ((abs(bin) - _ZERO - 1 + step) / PER_OCTAVE) for step in (0, 1))
    return (low, high) if bin > 0 else (-high, -low)
