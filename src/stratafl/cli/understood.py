"""What was understood of the data, a line each: what a sample is, what there is to predict, and what looks wrong."""

from typing import Any

import torch
from torch import Tensor

from stratafl.data import Federation
from stratafl.data.formats.columns import numbers_or_texts
from stratafl.data.outliers import outlier_warnings
from stratafl.errors import counted

_FEW, _MANY = 8, 20  # columns and classes that are named one by one
_KINDS = {torch.uint8: "byte", torch.uint16: "16-bit number"}
_APART = 100.0  # times, by which columns may differ in size before it is said


def understood(federation: Federation) -> list[str]:
    """The lines."""
    lines = [_sample(federation), *_units(federation), *_sizes(federation)]
    return [*lines, _predicted(federation), *_alone(federation), *_groups(federation)]


def _sample(federation: Federation) -> str:
    """The shape of a sample and its numbers; of a table, each column's."""
    x, names = federation.x, federation.column_names
    kind = _KINDS.get(x.dtype) or ("number" if x.is_floating_point() else "whole number")
    if x.ndim != 2:
        mode = f" (images of mode {federation.mode})" if federation.mode else ""
        return f"a sample is {'×'.join(map(str, x.shape[1:])) or 'one'}, {kind}s from {_range(x)}{mode}"
    width = counted(x.shape[1], kind)
    if not names:
        return f"a sample is {width} from {_range(x)}"
    each = [f"{name} {_range(x[:, at])}" for at, name in enumerate(names[:_FEW])]
    return f"a sample is {width}: {', '.join(each)}{', …' if len(names) > _FEW else ''}"


def _range(values: Tensor) -> str:
    array = values.cpu().numpy()  # torch has no smallest of 16-bit numbers
    return f"{_short(array.min())} to {_short(array.max())}"


def _short(value: Any) -> str:
    number = float(value)
    return f"{number:,.0f}" if abs(number) >= 1000 or number.is_integer() else f"{number:.3g}"


def _units(federation: Federation) -> list[str]:
    """Which clients are far from the others, and that one mean for all would not help."""
    lines = outlier_warnings(federation)
    advice = (
        "correct the units of the clients above first: data.normalise = 'columns' takes one mean and one deviation "
        "over all clients, and does not repair them"
    )
    return [*lines, *([advice] if lines else [])]


def _sizes(federation: Federation) -> list[str]:
    """That numbers are too large, or too different, for a model that takes them as they are."""
    x, y, lines = federation.x, federation.y, []
    if x.ndim == 2 and x.is_floating_point() and not outlier_warnings(federation):
        sizes = x.abs().amax(0)
        sizes = sizes[sizes > 0]
        if len(sizes) and sizes.max() > _APART * min(1.0, float(sizes.min())):
            lines.append("its columns differ much in size, and training may fail: see data.normalise = 'columns'")
    if federation.classes is None and y.abs().max() > _APART:
        lines.append("its labels are large numbers, and training may fail: see data.targets = 'scaled'")
    return lines


def _predicted(federation: Federation) -> str:
    """What there is to predict, and how to have it otherwise."""
    if federation.classes is None:
        found = f"a regression: the labels are numbers from {_range(federation.y)}"
        return f"{found} (data.targets = 'classes' makes classes of them)"
    names = federation.class_names
    listed = f": {', '.join(names[:_MANY])}{', …' if len(names) > _MANY else ''}" if names else ""
    numbers = names and not isinstance(numbers_or_texts(names), list)
    hint = " (data.targets = 'numbers' makes it a regression)" if numbers else ""
    return f"{counted(federation.classes, 'class', 'classes')}{listed}{hint}"


def _alone(federation: Federation) -> list[str]:
    return ["all labels are the same, so that every answer is right"] if federation.classes == 1 else []


def _groups(federation: Federation) -> list[str]:
    if federation.group is None:
        return []
    groups = counted(federation.groups, "group")
    return [f"{groups} by the column '{federation.group}': samples of a group are on one side of the split"]
