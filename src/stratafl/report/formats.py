"""Numbers, machines and times as people read them."""

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from stratafl.errors import counted
from stratafl.report.intervals import Interval, Spread

NOTHING = "–"
MARK = "†"  # follows the name of a method that leaks
Environment = Mapping[str, Any]  # what a run's environment.json says
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all of these."""
    keys = dict.fromkeys(key for given in settings for key in given)
    return [key for key in keys if len({repr(given.get(key)) for given in settings}) > 1]


def minus(text: str) -> str:
    return text.replace("-", "−")


def score(value: float | None, regression: bool = False) -> str:
    if value is None or not isfinite(value):
        return NOTHING
    return minus(f"{value:.4g}") if regression else f"{100 * value:.1f} %"


def spread(given: Spread | None, regression: bool = False) -> str:
    if given is None:
        return NOTHING
    mean = score(given.mean, regression)
    if given.std is None:
        return mean
    return f"{mean} ± {minus(f'{given.std:.2g}')}" if regression else f"{mean} ± {100 * given.std:.1f}"


def limits(given: Interval | None, regression: bool = False) -> str:
    """The limits of an interval, cut off at 0 and, for an accuracy, at 100 %."""
    if given is None:
        return NOTHING
    low = max(given.low, 0)
    if regression:
        return minus(f"{low:.4g} to {given.high:.4g}")
    return f"{100 * low:.1f} to {100 * min(given.high, 1):.1f} %"


def difference(given: Interval | None, regression: bool = False) -> str:
    """A paired difference with its limits; in percentage points for accuracies."""
    if given is None:
        return NOTHING
    if regression:
        return minus(f"{given.mean:+.3g} ({given.low:+.3g} to {given.high:+.3g})")
    low, high = max(given.low, -1), min(given.high, 1)
    return minus(f"{100 * given.mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")


def size(count: float | None) -> str:
    if count is None:
        return NOTHING
    power = 0
    while abs(count) >= 999.5 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.0f} {_UNITS[power]}" if power == 0 or count >= 99.95 else f"{count:.1f} {_UNITS[power]}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NOTHING
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def listed(words: list[str], most: int = 12) -> str:
    return ", ".join(words) if len(words) <= most else f"{', '.join(words[:most])} and {len(words) - most} more"


def machine(env: Environment) -> str:
    parts = [env.get("machine"), counted(env["cores"], "core") if env.get("cores") else None]
    device, name = env.get("device"), env.get("device_name")
    return ", ".join(str(part) for part in (*parts, device, name if name != device else None) if part)


def versions(env: Environment) -> str:
    names = [("stratafl", "stratafl"), ("python", "Python"), ("torch", "torch"), ("numpy", "numpy")]
    words = [f"{title} {env[key]}" for key, title in names if env.get(key)]
    return ", ".join([*words, *([f"commit {env['commit'][:10]}"] if env.get("commit") else [])])


def minute(time: Any) -> str:
    return str(time)[:16].replace("T", " ") if time else NOTHING


def span(times: Sequence[str]) -> str:
    shown = [minute(time) for time in (min(times), max(times))] if times else []
    return f"{' to '.join(dict.fromkeys(shown))} UTC" if shown else ""
