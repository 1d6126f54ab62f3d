"""Numbers, machines and times as people read them."""

from collections.abc import Iterable, Mapping, Sequence
from math import floor, isfinite, log10
from typing import Any

from stratafl.errors import counted
from stratafl.evaluation.metrics import Metric
from stratafl.report.intervals import Interval, Spread, interval

NO_VALUE = "–"
MARK = "†"  # follows the name of a method that leaks
Environment = Mapping[str, Any]  # what a run's environment.json says
AREAS = ("auroc", "auprc")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all of these."""
    keys = dict.fromkeys(key for values in settings for key in values)
    return [key for key in keys if len({repr(values.get(key)) for values in settings}) > 1]


def minus(text: str) -> str:
    return text.replace("-", "−")


def score_text(value: float | None, metric: Metric) -> str:
    if value is None or not isfinite(value):
        return NO_VALUE
    return minus(_number(value, metric)) + _unit(metric)


def _number(value: float, metric: Metric, sign: str = "", digits: int = 4) -> str:
    """Per cent with one decimal, an area, which is at most 1, with three; anything else with so many digits."""
    if metric.percent:
        return f"{100 * value:{sign}.1f}"
    return f"{value:{sign}.3f}" if metric.name in AREAS else f"{value:{sign}.{digits}g}"


def _unit(metric: Metric) -> str:
    return " %" if metric.percent else ""


def spread(numbers: Spread | None, metric: Metric) -> str:
    if numbers is None or numbers.std is None:
        return score_text(numbers.mean if numbers else None, metric)
    mean, std = numbers.mean, numbers.std
    if metric.percent or metric.name in AREAS or not 1e-4 <= abs(mean) < 1e4:
        return f"{score_text(mean, metric)} ± {minus(_number(std, metric, digits=2))}"
    # Both with the same decimals: four digits of the mean, and a digit of the deviation.
    decimals = max(0, 3 - _power(mean), min(6, -_power(std)))
    return minus(f"{mean:.{decimals}f} ± {std:.{decimals}f}")


def _power(value: float) -> int:
    """Of ten, in the first digit of the value."""
    return floor(log10(abs(value))) if value else 0


def over_seeds(values: Sequence[float], metric: Metric) -> str:
    """The t interval over seeds, or two values themselves, of which it would say nothing; empty for one."""
    if len(values) == 2:
        return " and ".join(score_text(value, metric) for value in values)
    return f"95 % interval {limits(interval(values), metric)}" if len(values) > 2 else ""


def limits(ends: Interval | None, metric: Metric) -> str:
    """The limits of an interval, cut off where the metric ends: at 0 and, for a share, at 100 %."""
    if ends is None:
        return NO_VALUE
    low = max(ends.low, 0) if metric.classes is not None and metric.name != "r2" else ends.low
    high = min(ends.high, 1) if metric.percent or metric.name in AREAS else ends.high
    return minus(f"{_number(low, metric)} to {_number(high, metric)}") + _unit(metric)


def apart_by(value: float, metric: Metric, sign: str = "") -> str:
    """A difference of two scores: in points with one digit after the point, or two if it is small."""
    if metric.percent and 0.005 <= abs(100 * value) < 0.095:
        return minus(f"{100 * value:{sign}.2f}")
    number = _number(value, metric, sign, digits=3)
    without_sign = not float(number) and (metric.percent or metric.name in AREAS)  # 0.0 for −0.0 and +0.0
    return minus(number.lstrip("+-") if without_sign else number)


def difference_text(paired: Interval | None, metric: Metric) -> str:
    """A paired difference with its limits; in percentage points for shares."""
    if paired is None:
        return NO_VALUE
    if None in paired.ends:
        return minus(_number(paired.mean, metric, "+", digits=3))
    low, high = (max(paired.low, -1), min(paired.high, 1)) if metric.percent else (paired.low, paired.high)
    mean, *ends = (minus(_number(value, metric, "+", digits=3)) for value in (paired.mean, low, high))
    return f"{mean} ({' to '.join(ends)})"


def size_text(count: float | None) -> str:
    if count is None:
        return NO_VALUE
    power = 0
    while abs(count) >= 999.5 and power < len(_UNITS) - 1:
        count, power = count / 1000, power + 1
    return f"{count:.0f} {_UNITS[power]}" if power == 0 or count >= 99.95 else f"{count:.1f} {_UNITS[power]}"


def duration_text(seconds: float | None) -> str:
    if seconds is None:
        return NO_VALUE
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.1f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def listed(words: list[str], most: int = 12) -> str:
    return ", ".join(words) if len(words) <= most else f"{', '.join(words[:most])} and {len(words) - most} more"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def machine(env: Environment) -> str:
    parts = [env.get("machine"), counted(env["cores"], "core") if env.get("cores") else None]
    device, name = env.get("device"), env.get("device_name")
    return ", ".join(str(part) for part in (*parts, device, name if name != device else None) if part)


def versions(env: Environment) -> str:
    names = [("stratafl", "stratafl"), ("python", "Python"), ("torch", "torch"), ("numpy", "numpy")]
    words = [f"{title} {env[key]}" for key, title in names if env.get(key)]
    return ", ".join([*words, *([f"commit {env['commit'][:10]}"] if env.get("commit") else [])])


def minute(time: Any) -> str:
    return str(time)[:16].replace("T", " ") if time else NO_VALUE


def span(times: Sequence[str]) -> str:
    shown = [minute(time) for time in (min(times), max(times))] if times else []
    return f"{' to '.join(dict.fromkeys(shown))} UTC" if shown else ""
