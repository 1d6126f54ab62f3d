"""Numbers over seeds: mean, standard deviation and 95 % interval, from Student's t distribution."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt
from statistics import fmean, stdev

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

LEVEL = 0.95


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of a sample; a single value has no deviation."""

    mean: float
    std: float | None

    @staticmethod
    def of(values: Sequence[float]) -> "Spread":
        return Spread(fmean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Interval:
    """A mean and the limits of its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    @property
    def beyond_noise(self) -> bool:
        """Whether the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def ends(self) -> list[float | None]:
        """Both limits; None for those that are unknown."""
        return [end if isfinite(end) else None for end in (self.low, self.high)]

    def turned(self) -> "Interval":
        """The same interval of the opposite difference."""
        return Interval(-self.mean, -self.high, -self.low)


def unbounded(mean: float) -> Interval:
    """A mean whose uncertainty is unknown."""
    return Interval(mean, -inf, inf)


def interval(values: Sequence[float]) -> Interval | None:
    """Student's t interval of the mean, mean ± t · s / √n; None for a single value."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    half = float(t_quantile(1 - LEVEL, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def t_tail(t: float, freedom: float) -> float:
    """The probability that Student's t is at least as far from 0 as `t`, on either side."""
    return 2 * float(stdtr(freedom, -abs(t)))


def t_quantile(probability: float, freedom: float | NDArray[np.float64]) -> NDArray[np.float64]:
    """The distance from 0 that Student's t exceeds, on either side, with this probability."""
    return np.asarray(-stdtrit(freedom, probability / 2))
