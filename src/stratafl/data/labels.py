"""Labels as whole numbers from 0, whatever a table calls them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.data.formats.columns import Column
from stratafl.errors import DataError


def numbered(cells: Column, where: str) -> tuple[NDArray[Any], int | None]:
    """Targets, and how many classes there are where they have names: names are numbered in their order."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "biuf":
        return cells if cells.dtype.kind == "f" else cells.astype(np.int64), None
    if not all(isinstance(cell, str) for cell in cells):
        raise DataError(f"the labels of '{where}' are neither numbers nor names")
    names = sorted(set(cells), key=_order)
    ids = {name: at for at, name in enumerate(names)}
    return np.array([ids[name] for name in cells], np.int64), len(names)


def within(labels: NDArray[Any], classes: int, where: str) -> NDArray[np.int64]:
    """The labels of a data set with so many classes, or a sentence about the first that is not one."""
    if labels.ndim != 1 or labels.dtype.kind not in "biu":
        raise DataError(f"the labels of '{where}' are {labels.dtype} {list(labels.shape)}, not whole numbers [samples]")
    outside = (labels < 0) | (labels >= classes)
    if outside.any():
        raise DataError(f"'{where}' has the label {labels[outside][0]}, but its classes are 0..{classes - 1}")
    return labels.astype(np.int64)


def _order(name: str) -> tuple[bool, int, str]:
    return (False, int(name), name) if name.isdecimal() else (True, 0, name)  # 10 comes after 9
