"""Student's t distribution with any number of degrees of freedom, also fractions of one."""

from collections.abc import Callable
from functools import lru_cache
from math import exp, inf, lgamma, log, log1p

import numpy as np
from numpy.typing import NDArray

_TINY = 1e-300
_STEPS = 500  # of the continued fraction; it takes about the root of the degrees of freedom


def two_sided(t: float, freedom: float) -> float:
    """The probability of a value that is at least as far from 0 as `t`."""
    return 0.0 if abs(t) == inf else _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)


def quantile(probability: float, freedom: float) -> float:
    """The distance from 0 that is exceeded, on either side, with this probability."""
    return exceeded(probability, lambda t: two_sided(t, freedom))


def quantiles(probability: float, freedom: NDArray[np.float64]) -> NDArray[np.float64]:
    """`quantile` for many numbers of degrees of freedom from 1 on, to four digits: between places of a grid."""
    places, logs = _grid(probability)
    return np.exp(np.interp(1 / np.maximum(freedom, 1), places, logs))


@lru_cache(maxsize=4)
def _grid(probability: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Places in 1 / freedom, and log t there, which is nearly linear."""
    places = np.linspace(0.01, 1, 64) ** 2
    return places, np.log([quantile(probability, 1 / place) for place in places])


def exceeded(probability: float, tail: Callable[[float], float]) -> float:
    """The distance from 0 beyond which a tail has this probability."""
    low, high = 0.0, 1.0
    while tail(high) > probability:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > probability else (low, middle)
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), by the continued fraction on the side where it converges fast."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(x, a, b) / a
    return 1 - front * _fraction(1 - x, b, a) / b


def _fraction(x: float, a: float, b: float) -> float:
    """Lentz' method."""
    c, d = 1.0, 1 / _apart(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _STEPS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            c, d = 1 + term / c, 1 + term * d
            c, d = c if abs(c) > _TINY else _TINY, 1 / (d if abs(d) > _TINY else _TINY)  # `_apart`, which is slow here
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return value


def _apart(value: float) -> float:
    """The value, or something small in place of 0."""
    return value if abs(value) > _TINY else _TINY
