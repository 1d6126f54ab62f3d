"""Numbers as a person reads them."""

from math import isfinite

from stratafl.report.intervals import Interval
from stratafl.report.ranking import Spread

NOTHING = "–"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def minus(text: str) -> str:
    """A number with the sign for minus instead of a hyphen."""
    return text.replace("-", "−")


def score(value: float | None, regression: bool = False) -> str:
    """An accuracy in per cent with one decimal, or a loss."""
    if value is None or not isfinite(value):
        return NOTHING
    return minus(f"{value:.4g}") if regression else f"{100 * value:.1f} %"


def spread(given: Spread | None, regression: bool = False) -> str:
    """Mean ± standard deviation; the mean alone of one seed."""
    if given is None:
        return NOTHING
    mean = score(given.mean, regression)
    if given.std is None:
        return mean
    return f"{mean} ± {minus(f'{given.std:.2g}')}" if regression else f"{mean} ± {100 * given.std:.1f}"


def limits(given: Interval | None, regression: bool = False) -> str:
    """The limits of an interval; those of an accuracy end at 0 and 100 %, those of a loss at 0."""
    if given is None:
        return NOTHING
    low = max(given.low, 0)
    if regression:
        return minus(f"{low:.4g} to {given.high:.4g}")
    return f"{100 * low:.1f} to {100 * min(given.high, 1):.1f} %"


def difference(given: Interval | None, regression: bool = False) -> str:
    """A difference with its limits, in points where it is one of accuracies."""
    if given is None:
        return NOTHING
    if regression:
        return minus(f"{given.mean:+.3g} ({given.low:+.3g} to {given.high:+.3g})")
    low, high = max(given.low, -1), min(given.high, 1)
    return minus(f"{100 * given.mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")


def size(count: float | None) -> str:
    """Bytes with an SI unit."""
    if count is None:
        return NOTHING
    power = 0
    while abs(count) >= 999.5 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.0f} {_UNITS[power]}" if power == 0 or count >= 99.95 else f"{count:.1f} {_UNITS[power]}"


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours."""
    if seconds is None:
        return NOTHING
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def listed(words: list[str], most: int = 12) -> str:
    """Words by comma, the last ones counted where there are too many."""
    return ", ".join(words) if len(words) <= most else f"{', '.join(words[:most])} and {len(words) - most} more"
