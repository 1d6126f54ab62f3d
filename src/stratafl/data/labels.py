"""Labels: the names or numbers in a table become classes from 0, or numbers to predict."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from stratafl.data.arrays import Part
from stratafl.data.formats.columns import Column
from stratafl.errors import DataError

TARGETS = ("auto", "classes", "numbers", "scaled")
_NUMBERS = ("numbers", "scaled")  # a regression, whatever the labels look like
# More different whole numbers than this, with fewer samples of each, may be classes or a regression: the user decides.
MAX_GUESSED_CLASSES, MIN_SAMPLES_OF_EACH = 100, 10
Targets = tuple[NDArray[Any], tuple[str, ...] | None]  # classes and their names in order; or numbers and no names


def targets(cells: Column, wanted: str, where: str) -> Targets:
    """Names and whole numbers (2 or 2.0) become classes, fractions stay numbers, unless `wanted` says otherwise."""
    if not len(cells):
        raise DataError(f"'{where}' has no rows: give at least one sample")
    if not _are_numbers(cells):
        if wanted in _NUMBERS:
            names = f"the labels of '{where}' are names such as '{cells[0]}'"
            raise DataError(f"data.targets = '{wanted}', but {names}: set it to 'classes'")
        return _named(cells, where)
    array = np.asarray(cells)
    if array.dtype.kind != "f" and array.shape[1:] == (1,):  # a column
        array = array[:, 0]
    if wanted in _NUMBERS:
        return array.astype(np.float64), None
    if array.ndim > 1 or not np.isfinite(array).all():
        if wanted == "classes":
            wrong = f"arrays of shape {list(array.shape[1:])}: use 'numbers'"
            if array.ndim == 1:
                wrong = f"not all finite: {array[~np.isfinite(array)][0]}"
            raise DataError(f"data.targets = 'classes', but the labels of '{where}' are {wrong}")
        return array, None
    if wanted == "auto" and array.dtype.kind == "f" and (array % 1 != 0).any():
        return array, None
    values, y = distinct_labels(array)
    if wanted == "auto":
        _check_classes(values, len(array), where)
    return y, tuple(map(name_of, values.tolist()))


def distinct_labels(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The labels that occur, in order, and the number of each sample's: as `np.unique`, but sorted only if need be."""
    low, high = (int(labels.min()), int(labels.max())) if len(labels) and labels.dtype.kind in "iu" else (0, 2**63)
    if high - low > len(labels) or high >= 2**63:
        values, numbers = np.unique(labels, return_inverse=True)
        return values, numbers.astype(np.int64)
    places = labels.astype(np.int64) - low
    occurs = np.bincount(places) > 0
    return (np.flatnonzero(occurs) + low).astype(labels.dtype), (np.cumsum(occurs) - 1)[places]


def without_names(parts: Sequence[Part], where: str) -> tuple[list[Part], tuple[str, ...]]:
    """The parts with a number for each label, if labels are names, and these names in the order of the numbers."""
    labels = [part.y if isinstance(part.y, Tensor) else np.asarray(part.y) for part in parts]
    if not any(isinstance(y, np.ndarray) and y.dtype.kind in "OUS" for y in labels):
        return list(parts), ()
    cells = [name_of(cell) if isinstance(cell, bytes) else cell for y in labels for cell in y.tolist()]
    numbers, names = _named(cells, where)
    ends = np.cumsum([len(y) for y in labels])[:-1]
    return [part._replace(y=y) for part, y in zip(parts, np.split(numbers, ends), strict=True)], names or ()


def numbered(cells: Column, where: str) -> NDArray[Any]:
    """Numbers unchanged, names numbered in order."""
    if not _are_numbers(cells):
        return _named(cells, where)[0]
    array = np.asarray(cells)
    return array if array.dtype.kind == "f" else array.astype(np.int64)


def name_of(value: object) -> str:
    """The name of a class or a client; 2.0 is called 2."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return repr(value).removesuffix(".0") if isinstance(value, float) else str(value)


def within(labels: NDArray[Any], classes: int, where: str) -> NDArray[np.int64]:
    """The labels, refused if one is not in 0 … classes − 1."""
    if labels.ndim != 1 or labels.dtype.kind not in "biu":
        raise DataError(f"the labels of '{where}' are {labels.dtype} {list(labels.shape)}, not whole numbers [samples]")
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        raise DataError(f"'{where}' has the label {labels[outside][0]}, but its classes are 0..{classes - 1}")
    return labels.astype(np.int64)


def _are_numbers(cells: Column) -> bool:
    return isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf"


def _named(cells: Column, where: str) -> Targets:
    if isinstance(cells, np.ndarray) and cells.ndim == 1 and cells.dtype.kind in "bSU":
        cells = list(map(name_of, cells.tolist()))
    for row, cell in enumerate(cells, start=1):
        if not isinstance(cell, str):
            raise DataError(f"the labels of '{where}' are neither numbers nor names: {cell!r:.40} in row {row}")
    names = sorted(set(cells), key=_order)
    ids = {name: at for at, name in enumerate(names)}
    return np.array([ids[name] for name in cells], np.int64), tuple(names)


def _order(name: str) -> tuple[bool, int, str]:
    try:
        return False, int(name), name  # 10 comes after 9
    except ValueError:
        return True, 0, name


def _check_classes(values: NDArray[Any], samples: int, where: str) -> None:
    counted = values[0] == 0 and values[-1] == len(values) - 1
    if len(values) > MAX_GUESSED_CLASSES and samples < MIN_SAMPLES_OF_EACH * len(values) and not counted:
        numbers = f"{len(values):,} different whole numbers from {values[0]:g} to {values[-1]:g}"
        wrong = f"the labels of '{where}' are {numbers} in {samples:,} samples"
        raise DataError(f"{wrong}: set data.targets to 'numbers' (a regression) or to 'classes'")
