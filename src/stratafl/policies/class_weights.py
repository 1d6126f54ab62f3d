"""Weights of classes that need the data to become numbers: by the classes' names, or `pooled` over all clients."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from stratafl.errors import DataError, RecordError, check_known, choices, shown

POOLED, PLAIN = "pooled", ("none", "balanced")  # words for class_weight; the plain ones need nothing but a client
LEAST_WEIGHT = 1e-12  # of a class without training samples, which never counts
MAX_WEIGHT = 1e6
_ENTRY = re.compile(r"\s*([^\s].*?)\s*:\s*([-+.\deE]+|nan|inf)\s*(?:,|$)")


def weights_by_name(text: str) -> dict[str, float]:
    """The weights in a text such as `ill:3,well:1`; any other text is refused, unless it is a word."""
    weights, end = dict[str, float](), 0
    for entry in _ENTRY.finditer(text):
        name, number = entry.groups()
        if entry.start() != end or name in weights:
            break
        try:
            weights[name], end = float(number), entry.end()
        except ValueError:
            break
    if end < len(text) or not weights:
        hint = f"{choices((*PLAIN, POOLED))}, or a weight for each class, such as 'ill:3,well:1'"
        raise RecordError(f"class_weight is '{shown(text)}': {hint}")
    wrong = next((name for name, weight in weights.items() if not 0 < weight <= MAX_WEIGHT), None)
    if wrong is not None:
        raise RecordError(
            f"class_weight.{shown(wrong)} must be above 0, at most {MAX_WEIGHT:,.0f}, not {weights[wrong]}"
        )
    return weights


def text_of_weights(weights: Mapping[Any, float]) -> str:
    return ",".join(f"{name}:{weight!r}" for name, weight in weights.items())


def in_order_of_classes(weights: Mapping[str, float], classes: Sequence[str]) -> tuple[float, ...]:
    """The weights in the order of the classes, each of which must have one."""
    check_known("class in class_weight", weights, classes)
    missing = [name for name in classes if name not in weights]
    if missing:
        raise DataError(f"class_weight has no weight for the class '{shown(missing[0])}': give one for each class")
    return tuple(weights[name] for name in classes)
