"""A grid: the values of each setting to try, within a maximum number of points that include the default."""

from collections.abc import Sequence
from itertools import product
from math import exp, isfinite, log, prod
from typing import Any

from stratafl.config.setting_tables import Settings
from stratafl.core.annotations import Tune
from stratafl.errors import RecordError
from stratafl.tuning.space import LR, Dimension

RATE_WEIGHT = 3  # the learning rate has about so many times the levels of another setting


def points(dimensions: Sequence[Dimension], trials: int) -> list[Settings]:
    """All combinations of the levels; the first is the default, or with a given grid the nearest to it."""
    levels = [levels_of(each, count) for each, count in zip(dimensions, counts(dimensions, trials), strict=True)]
    usual = tuple(_nearest(each, values) for each, values in zip(dimensions, levels, strict=True))
    combined = sorted(product(*levels), key=lambda point: point != usual)
    return [{each.path: value for each, value in zip(dimensions, point, strict=True)} for point in combined]


def counts(dimensions: Sequence[Dimension], trials: int) -> list[int]:
    """How many levels each setting gets; with 1 it stays at its default.

    Level by level: the next one goes to the setting that has fewest for its weight, as long as the product fits.
    """
    levels = [len(each.values) or 1 for each in dimensions]
    most = [len(each.values) or _most(each) for each in dimensions]
    if (size := prod(levels)) > trials:
        raise RecordError(f"the given grids have {size} points, more than --trials {trials}: raise it, or give fewer")
    weights = [RATE_WEIGHT if each.path == LR else 1 for each in dimensions]
    while True:
        whole = prod(levels)
        able = [i for i, n in enumerate(levels) if n < most[i] and whole // n * (n + 1) <= trials]
        if not able:
            return levels
        levels[min(able, key=lambda i: levels[i] / weights[i])] += 1


def levels_of(dimension: Dimension, count: int) -> list[Any]:
    """So many values, the default among them, in their order.

    Learning rates have one ratio, as large as the range allows with the default among them. Other numbers are in the
    middles of equal parts of their range, the nearest of them replaced by the default.
    """
    if dimension.values:
        return list(dimension.values)
    if count == 1:
        return [dimension.default]
    tune, default = dimension.tune, dimension.default
    assert tune is not None  # it has a range, or else its values are given
    if tune.choices:
        others = [value for value in tune.choices if value != default]
        return [default, *others][:count]
    outside = default is None or not tune.covers(default)
    if dimension.path == LR and not outside:
        return _anchored(tune, default, count)
    values = _spaced(tune, count - outside, ends=dimension.path == LR, whole=dimension.whole)
    if outside:
        return [None, *values] if default is None else sorted([default, *values])
    near = min(range(len(values)), key=lambda i: _distance(tune, values[i], default))
    return sorted({*values[:near], default, *values[near + 1 :]})


def _anchored(tune: Tune, default: float, count: int) -> list[float]:
    """So many values with one ratio, the default among them, as far apart as all of them fit into the range."""
    assert tune.low is not None
    assert tune.high is not None
    reach = log(default / tune.low), log(tune.high / default)
    steps = {below: _step(reach, below, count - 1 - below) for below in range(count)}
    below = max(steps, key=lambda each: steps[each])
    factors = [exp(steps[below] * (i - below)) for i in range(count)]
    return [default if i == below else _rounded(default * factor, False) for i, factor in enumerate(factors)]


def _step(reach: tuple[float, float], below: int, above: int) -> float:
    """The largest step of which so many fit below and above."""
    return min(length / number for length, number in zip(reach, (below, above), strict=True) if number)


def beyond(dimension: Dimension, levels: Sequence[float], value: float) -> float | None:
    """The next value on the other side of the lowest or highest level, one step further; None if it lies inside."""
    ordered = sorted(levels)
    if len(ordered) < 2 or value not in (ordered[0], ordered[-1]):
        return None
    inner = ordered[1] if value == ordered[0] else ordered[-2]
    ratio = dimension.tune is not None and dimension.tune.log and inner > 0 and value > 0
    further = _rounded(value * value / inner if ratio else 2 * value - inner, dimension.whole)
    if not isfinite(further) or further == value or not _allowed(dimension, further):
        return None
    return further


def _spaced(tune: Tune, count: int, *, ends: bool, whole: bool) -> list[float]:
    """Values at the ends of equal parts of the range, or in their middles; whole numbers are all different."""
    assert tune.low is not None
    assert tune.high is not None
    apart, first = (count - 1, 0.0) if ends and count > 1 else (count, 0.5)
    shares = [(i + first) / apart for i in range(count)]
    if whole:
        every = range(round(tune.low), round(tune.high) + 1)
        return [every[min(int(share * len(every)), len(every) - 1)] for share in shares]
    low, high = (log(tune.low), log(tune.high)) if tune.log else (tune.low, tune.high)
    places = [low + share * (high - low) for share in shares]
    return [_rounded(exp(place) if tune.log else place, whole) for place in places]


def _most(dimension: Dimension) -> int:
    """The most levels that it can have."""
    tune = dimension.tune
    if tune is None or tune.choices:
        return 1 if tune is None else len({*map(str, tune.choices), str(dimension.default)})
    if dimension.whole and tune.low is not None and tune.high is not None:
        return int(tune.high - tune.low) + 1
    return 10**6


def _nearest(dimension: Dimension, values: Sequence[Any]) -> Any:
    default = dimension.default
    if default in values or not dimension.numeric or default is None:
        return default if default in values else values[0]
    tune = dimension.tune or Tune(0.0, 1.0)
    return min(values, key=lambda value: _distance(tune, value, default))


def _distance(tune: Tune, a: float, b: float) -> float:
    return abs(log(a / b)) if tune.log and a > 0 and b > 0 else abs(a - b)


def _rounded(value: float, whole: bool) -> float:
    """Three digits, which a person can read and type."""
    return round(value) if whole else float(f"{value:.3g}")


def _allowed(dimension: Dimension, value: float) -> bool:
    try:
        if dimension.limits is not None:
            dimension.limits.check(dimension.path, value)
    except RecordError:
        return False
    return True
