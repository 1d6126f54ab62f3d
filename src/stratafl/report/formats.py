"""Numbers, machines and times as people read them."""

from collections.abc import Mapping, Sequence
from math import floor, isfinite, log10
from typing import Any

from stratafl.errors import counted
from stratafl.evaluation.metrics import Metric
from stratafl.report.intervals import Interval, Spread

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


Kind = Metric | bool  # a metric, or whether values are plain numbers and not shares in per cent


def plain_numbers(kind: Kind) -> bool:
    """Whether values are written as numbers, not in per cent."""
    return not kind.percent if isinstance(kind, Metric) else kind


def score_text(value: float | None, kind: Kind = False) -> str:
    if value is None or not isfinite(value):
        return NO_VALUE
    return minus(_digits(value, kind)) if plain_numbers(kind) else f"{100 * value:.1f} %"


def _digits(value: float, kind: Kind) -> str:
    """Three decimals of an area, which is at most 1; else four digits."""
    return f"{value:.3f}" if isinstance(kind, Metric) and kind.name in AREAS else f"{value:.4g}"


def spread(over_seeds: Spread | None, kind: Kind = False) -> str:
    if over_seeds is None:
        return NO_VALUE
    mean = score_text(over_seeds.mean, kind)
    if over_seeds.std is None:
        return mean
    if not plain_numbers(kind):
        return f"{mean} ± {100 * over_seeds.std:.1f}"
    if isinstance(kind, Metric) and kind.name in AREAS:
        return f"{mean} ± {over_seeds.std:.3f}"
    if not 1e-4 <= abs(over_seeds.mean) < 1e4:
        return f"{mean} ± {minus(f'{over_seeds.std:.2g}')}"
    # Both with the same decimals: four digits of the mean, and a digit of the deviation.
    decimals = max(0, 3 - _power(over_seeds.mean), min(6, -_power(over_seeds.std)))
    return minus(f"{over_seeds.mean:.{decimals}f} ± {over_seeds.std:.{decimals}f}")


def _power(value: float) -> int:
    """Of ten, in the first digit of the value."""
    return floor(log10(abs(value))) if value else 0


def limits(ends: Interval | None, kind: Kind = False) -> str:
    """The limits of an interval, cut off where the metric ends: at 0 and, for a share, at 100 %."""
    if ends is None:
        return NO_VALUE
    bounded = not isinstance(kind, Metric) or (kind.classes is not None and kind.name != "r2")
    low = max(ends.low, 0) if bounded else ends.low
    if plain_numbers(kind):
        high = min(ends.high, 1) if isinstance(kind, Metric) and kind.name in AREAS else ends.high
        return minus(f"{_digits(low, kind)} to {_digits(high, kind)}")
    return f"{100 * low:.1f} to {100 * min(ends.high, 1):.1f} %"


def apart_by(value: float, metric: Metric, sign: str = "") -> str:
    """A difference of two scores: in points with one digit after the point, or two if it is small."""
    if metric.name in AREAS:
        return minus(_without_zero(f"{value:{sign}.3f}"))
    if not metric.percent:
        return minus(f"{value:{sign}.3g}")
    points = 100 * value
    return minus(_without_zero(f"{points:{sign}.2f}" if 0.005 <= abs(points) < 0.095 else f"{points:{sign}.1f}"))


def _without_zero(text: str) -> str:
    """Nothing is below nothing: 0.0 for −0.0 and +0.0."""
    return text if float(text) else text.lstrip("+-")


def difference_text(paired: Interval | None, kind: Kind = False) -> str:
    """A paired difference with its limits; in percentage points for shares."""
    if paired is None:
        return NO_VALUE
    if isinstance(kind, Metric) and kind.name in AREAS:
        return minus(f"{paired.mean:+.3f} ({paired.low:+.3f} to {paired.high:+.3f})")
    if plain_numbers(kind):
        return minus(f"{paired.mean:+.3g} ({paired.low:+.3g} to {paired.high:+.3g})")
    low, high = max(paired.low, -1), min(paired.high, 1)
    return minus(f"{100 * paired.mean:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})")


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
