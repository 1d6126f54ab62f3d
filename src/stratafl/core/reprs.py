"""Short reprs: one line that says what an object is and how much it holds, and never shows a value of the data.

A notebook prints whatever a cell ends with, and a log whatever an error was about; neither may hold samples, labels or
names of clients. Records (`stratafl.core.records`) keep the repr of a dataclass: they are settings.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar, dataclass_transform

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")
_MAX_TEXT_LETTERS = 60  # of a text


def short_repr(cls: type[T]) -> type[T]:
    """Give a dataclass or a named tuple a repr of its fields by kind and size, without those that hold nothing.

    A method `_about` says it in words.
    """
    cls.__repr__ = _short  # type: ignore[method-assign]
    return cls


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
def holder(cls: type[T]) -> type[T]:
    """Make a class a frozen dataclass that holds values, such as tensors: equal to itself alone, with a short repr."""
    return short_repr(dataclasses.dataclass(frozen=True, eq=False)(cls))


def _short(self: Any) -> str:
    if hasattr(self, "_about"):
        return f"{type(self).__name__}({self._about()})"
    names = getattr(self, "_fields", None) or [each.name for each in dataclasses.fields(self)]
    values = {name: value for name in names if not _is_nothing(value := getattr(self, name))}
    return f"{type(self).__name__}({', '.join(f'{name}={_shown(value)}' for name, value in values.items())})"


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, str | tuple | list | Mapping) and not len(value))


def _shown(value: Any) -> str:
    if isinstance(value, Tensor | np.ndarray):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if value is None or isinstance(value, bool | int | float | torch.dtype | torch.device):
        return str(value).removeprefix("torch.")
    if isinstance(value, str):
        return repr(value if len(value) <= _MAX_TEXT_LETTERS else f"{value[:_MAX_TEXT_LETTERS]}…")
    if isinstance(value, Mapping | list | tuple | set | frozenset) and not hasattr(value, "_fields"):
        return f"{type(value).__name__} of {len(value)}"
    return type(value).__name__


def short_number(value: float) -> str:
    """A number for people: 12,345 or 0.123, and 1.23e+12 instead of many digits."""
    if abs(value) >= 1e9:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:.3g}"
