"""Intervals over seeds: of a mean, and of the difference of two methods that ran with the same seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean and the limits between which it lies with a confidence of 95 %."""

    mean: float
    low: float
    high: float

    @property
    def beyond_noise(self) -> bool:
        """Whether 0 is outside."""
        return self.low > 0 or self.high < 0


def interval(values: Sequence[float]) -> Interval | None:
    """Student's t interval of the mean: mean ± t · s / √n; one value has none."""
    if len(values) < 2:
        return None
    mean = fmean(values)
    half = _quantile(len(values) - 1) * stdev(values) / sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def paired(first: Mapping[int, float], second: Mapping[int, float]) -> Interval | None:
    """The t interval of first − second over the seeds that both have: the same division and the same start."""
    return interval([first[seed] - second[seed] for seed in first if seed in second])


def _quantile(freedom: int) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + LEVEL) / 2))
