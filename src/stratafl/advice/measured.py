"""Small federations on which many methods were measured, and which of them are most like one's own.

`measured.csv` and `measured_facts.csv` are written by `examples/which_method.py`; docs/results/which-method.md shows
them.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import chain, groupby
from math import hypot, log2
from statistics import median

from stratafl.advice.look import Effect, Facts
from stratafl.report.jackknife import Difference

FARTHEST = 0.5  # of the range of skew, shift or log samples among the federations: beyond it none is alike
INDISTINCT = 0.1  # farther than the nearest by this much of the ranges: two seeds of one federation differ by as much
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
    facts: tuple[tuple[float, float], ...]  # of each seed: label skew and feature shift, beyond what accident gives
    methods: tuple[MeasuredMethod, ...]


def is_sure(gain: Difference) -> bool:
    return abs(gain.value) > SURE * gain.error


@cache
def measured_federations() -> tuple[MeasuredFederation, ...]:
    facts = {cell: tuple(map(_facts, rows)) for cell, rows in _cells("measured_facts.csv")}
    return tuple(
        MeasuredFederation(*cell, facts[cell], tuple(map(_method, rows))) for cell, rows in _cells("measured.csv")
    )


def _cells(name: str) -> Iterator[tuple[tuple[str, int], Iterator[dict[str, str]]]]:
    """The rows of each kind and number of samples."""
    text = files("stratafl.advice").joinpath(name).read_text(encoding="utf-8")
    return groupby(csv.DictReader(text.splitlines()), lambda row: (row["kind"], int(row["samples"])))


def _facts(row: dict[str, str]) -> tuple[float, float]:
    return float(row["label skew"]), float(row["feature shift"])


def _method(row: dict[str, str]) -> MeasuredMethod:
    gains = (Difference(float(row[f"over {base}"]), float(row[f"error over {base}"])) for base in ("local", "fedavg"))
    return MeasuredMethod(row["method"], float(row["accuracy"]), *gains)


def most_similar(facts: Facts) -> list[MeasuredFederation]:
    """The measured federations that are most like these clients, the nearest first; none if none is near, or without
    classes.

    There are several where facts cannot tell them apart: permuted labels and moderate rotations often look like
    clients that are alike, and there the best methods differ.
    """
    if facts.classes is None or facts.skew is None:
        return []
    here = _place(beyond_accident(facts.skew), beyond_accident(facts.shift), median(facts.sizes))
    federations = measured_federations()
    places = [[_place(*seen, each.samples) for seen in each.facts] for each in federations]
    ranges = [max(axis) - min(axis) for axis in zip(*chain(*places), strict=True)]

    def apart(place: tuple[float, ...]) -> list[float]:
        return [abs(a - b) / span for a, b, span in zip(here, place, ranges, strict=True)]

    nearest = [min((apart(place) for place in of_seeds), key=_length) for of_seeds in places]
    least = min(map(_length, nearest))
    near = [i for i, parts in enumerate(nearest) if _length(parts) <= least + INDISTINCT and max(parts) <= FARTHEST]
    return [federations[i] for i in sorted(near, key=lambda i: _length(nearest[i]))]


def _length(parts: list[float]) -> float:
    return hypot(*parts)


def beyond_accident(effect: Effect | None) -> float:
    return effect.value - effect.accident if effect is not None and effect.there else 0.0


def _place(skew: float, shift: float, samples: float) -> tuple[float, ...]:
    return skew, shift**0.5, log2(max(samples, 1.0))
