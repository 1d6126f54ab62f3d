"""Small federations on which many methods were measured, and which of them is most like one's own.

`measured.csv` is written by `examples/which_method.py`; docs/results/which-method.md shows it.
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from math import log2
from statistics import median

from stratafl.advice.look import Effect, Facts
from stratafl.report.jackknife import Difference

FARTHEST = 0.5  # of the range of skew, shift or log samples among the federations: beyond it none is alike
SURE = 4.3  # standard errors, with three seeds: Student's t at 95 %


@dataclass(frozen=True)
class MeasuredMethod:
    """Mean test accuracy of a method over seeds, and what it gains."""

    method: str
    accuracy: float
    over_local: Difference
    over_fedavg: Difference


@dataclass(frozen=True)
class MeasuredFederation:
    """How its clients differ, as `look` sees it, and its methods, the best on validation samples first."""

    kind: str
    samples: int  # for training, of each client
    skew: float  # beyond what accident gives
    shift: float
    methods: tuple[MeasuredMethod, ...]


def is_sure(gain: Difference) -> bool:
    return abs(gain.value) > SURE * gain.error


@cache
def measured_federations() -> tuple[MeasuredFederation, ...]:
    text = files("stratafl.advice").joinpath("measured.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    cells = groupby(rows, lambda row: (row["kind"], int(row["samples"]), row["label skew"], row["feature shift"]))
    return tuple(
        MeasuredFederation(kind, samples, float(skew), float(shift), tuple(map(_method, lines)))
        for (kind, samples, skew, shift), lines in cells
    )


def _method(row: dict[str, str]) -> MeasuredMethod:
    gains = (Difference(float(row[f"over {base}"]), float(row[f"error over {base}"])) for base in ("local", "fedavg"))
    return MeasuredMethod(row["method"], float(row["accuracy"]), *gains)


def most_similar(facts: Facts) -> MeasuredFederation | None:
    """The measured federation that is most like these clients; None if none is alike, or without classes."""
    if facts.classes is None or facts.skew is None:
        return None
    here = _place(beyond_accident(facts.skew), beyond_accident(facts.shift), median(facts.sizes))
    federations = measured_federations()
    places = [_place(each.skew, each.shift, each.samples) for each in federations]
    ranges = [max(axis) - min(axis) for axis in zip(*places, strict=True)]

    def apart(place: tuple[float, ...]) -> list[float]:
        return [abs(a - b) / span for a, b, span in zip(here, place, ranges, strict=True)]

    closest = min(range(len(federations)), key=lambda i: sum(part**2 for part in apart(places[i])))
    return federations[closest] if max(apart(places[closest])) <= FARTHEST else None


def beyond_accident(effect: Effect | None) -> float:
    return effect.value - effect.accident if effect is not None and effect.there else 0.0


def _place(skew: float, shift: float, samples: float) -> tuple[float, ...]:
    return skew, shift**0.5, log2(max(samples, 1.0))
