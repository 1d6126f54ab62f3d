"""Columns: what every format is read into, split by split, before images, texts and labels are decoded."""

import importlib
import os
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratafl.data.memory_limit import USUAL_LIMIT, MemoryLimit
from stratafl.errors import DataError

Column = NDArray[Any] | list[Any]  # numbers or pixels; texts, encoded images, or paths of images
Columns = dict[str, Column]
Splits = dict[str, Columns]  # "train", and "test" and "valid" where they exist

ORDER = ("train", "valid", "test")
IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff")
_SPLITS = {"train": "train", "test": "test", "t10k": "test", "valid": "valid", "validation": "valid", "val": "valid"}
_WORD = re.compile(rf"(?:^|[-_.])({'|'.join(_SPLITS)})(?=[-_.]|$)")
_INDEX = re.compile(r"|Unnamed: \d+|__index_level_\d+__")  # pandas' names for a column of row numbers


class Request(NamedTuple):
    """Which columns to read, under which names; `only` these, or all that a table has; and how much memory to use."""

    content: str = "image"
    label: str = "label"
    owner: str | None = None
    only: bool = False
    ignore: tuple[str, ...] = ()  # patterns of names
    limit: MemoryLimit = USUAL_LIMIT
    root: Path = Path()  # the folder that is read, set by `formats.read`

    def names(self) -> list[str]:
        return [name for name in (self.content, self.label, self.owner) if name is not None]


def import_extra(module: str, reads: str) -> Any:
    """A module of the extra `data`, imported when it is needed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise DataError(f"reading {reads} needs the package '{package}': run pip install 'stratafl[data]'") from error


def split_of(file: Path, root: Path) -> str:
    """The split that a word in the name of a file, or of a folder above it, stands for."""
    parts = file.relative_to(root).parts if file != root else (file.name,)
    for part in parts:
        if match := _WORD.search(part.lower()):
            return _SPLITS[match[1]]
    return "train"


def top_split(file: Path, root: Path) -> str:
    """The split that the topmost folder of a file is named after."""
    return _SPLITS.get(file.relative_to(root).parts[0].lower(), "train")


def is_split(name: str) -> bool:
    return name.lower() in _SPLITS


def joined(parts: Sequence[Columns], where: Path) -> Columns:
    first = parts[0]
    for part in parts[1:]:
        if set(part) != set(first):
            columns = "; ".join(", ".join(sorted(names)) for names in (first, part))
            raise DataError(f"the tables of '{where}' have different columns ({columns}): give all the same columns")
    return {name: _joined([part[name] for part in parts], name, where) for name in first}


def _joined(parts: Sequence[Column], name: str, where: Path) -> Column:
    if len(parts) == 1:
        return parts[0]
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) < len(parts) and all(array.ndim == 1 for array in arrays):  # one table may have 0 for another's 'no'
        return [cell for part in parts for cell in _cells(part)]
    if len(arrays) < len(parts) or len({array.shape[1:] for array in arrays}) > 1:
        raise DataError(f"the column '{name}' has different kinds of values in the tables of '{where}': give one kind")
    return np.concatenate(arrays)


def _cells(column: Column) -> list[Any]:
    """Cells as texts, if they are numbers; None for NaN."""
    if not isinstance(column, np.ndarray):
        return column
    return [None if cell != cell else repr(cell).removesuffix(".0") for cell in column.tolist()]


def joined_splits(splits: Splits, where: Path) -> tuple[Columns, NDArray[np.bool_]]:
    """All splits concatenated, and which rows are not for training."""
    for columns in splits.values():
        counts = {name: len(cells) for name, cells in columns.items()}
        if len(set(counts.values())) != 1 or 0 in counts.values():
            listed = ", ".join(f"{count} values of '{name}'" for name, count in counts.items())
            raise DataError(f"'{where}' has {listed or 'no columns'}: give every column the same number of values")
    sizes = [len(next(iter(columns.values()))) for columns in splits.values()]
    return joined(list(splits.values()), where), np.repeat([split != "train" for split in splits], sizes)


def taken(cells: Column, rows: NDArray[np.int64]) -> Column:
    return cells[rows] if isinstance(cells, np.ndarray) else [cells[row] for row in rows]


def numbers_or_texts(cells: Sequence[str]) -> Column:
    """Texts as whole numbers if all of them are, or else as floats if all are, or else unchanged."""
    for kind in (np.int64, np.float64):
        try:
            return np.array(cells, dtype=kind) if len(cells) else np.empty(0, kind)
        except (ValueError, OverflowError):
            continue
    return list(cells)


def located(names: Sequence[str], root: Path) -> list[Path]:
    """Image files that a table names, in its folder or below; anything elsewhere is refused.

    A table may come from a stranger, so it must not choose which files are read on this machine.
    """
    below: dict[str, list[Path]] = {}
    places, inside = [], os.path.join(os.path.abspath(root), "")
    for name in names:
        place = root / name
        if not os.path.abspath(place).startswith(inside):
            raise DataError(f"a table in '{root}' names the image '{name}', which is not in that folder: copy it there")
        if not place.is_file():
            below = below or _images_by_name(root)
            candidates = below.get(place.name, [])
            if len(candidates) != 1:
                problem = f"that folder has {f'{len(candidates)} images' if candidates else 'no image'} of this name"
                raise DataError(f"a table in '{root}' names the image '{name}', but {problem}")
            place = candidates[0]
        places.append(place)
    return places


def _images_by_name(root: Path) -> dict[str, list[Path]]:
    images: dict[str, list[Path]] = {}
    for file in sorted(root.rglob("*")):
        if file.suffix.lower() in IMAGES:
            images.setdefault(file.name, []).append(file)
    return images


def with_images(columns: Columns, root: Path) -> Columns:
    """The columns, with names of image files replaced by their paths."""
    return {name: located(cells, root) if _names_images(cells) else cells for name, cells in columns.items()}  # type: ignore[arg-type]


def _names_images(cells: Column) -> bool:
    texts = isinstance(cells, list) and bool(cells) and all(isinstance(cell, str) for cell in cells)
    return texts and all(cell.lower().endswith(IMAGES) for cell in cells)


def is_ignored(name: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern such as `*_id` fits the name of a column."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def picked(columns: Columns, request: Request, where: Path) -> Columns:
    """The columns that are requested; a column of row numbers, which pandas writes by default, is refused."""
    wanted = request.names() if request.only else list(columns)
    for name in wanted:
        if name not in columns:
            raise DataError(f"'{where}' has no column '{name}', only: {', '.join(columns) or 'none'}")
        if not request.only and _INDEX.fullmatch(name) and not is_ignored(name, request.ignore):
            wrong = f"column {list(columns).index(name) + 1} of '{where}' has no name ('{name}')"
            raise DataError(f"{wrong}: name it, leave it out (pandas: index=False), or add it to data.ignore")
    return {name: columns[name] for name in wanted}
