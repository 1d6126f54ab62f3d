"""Tables in plain files: csv with a line of names, and npz with an array per column."""

import csv
import zlib
from collections.abc import Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from stratafl.data.formats.columns import Asked, Columns, joined, numbers_or_texts, picked, with_images
from stratafl.errors import DataError


def read_csv(files: Sequence[Path], asked: Asked) -> Columns:
    """The columns of csv files, one after the other."""
    return joined([_csv(file, asked) for file in files], files[0].parent)


def _csv(file: Path, asked: Asked) -> Columns:
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            rows = [[cell.strip() for cell in row] for row in csv.reader(opened) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"'{file}' is not a csv file: {error}") from error
    if len(rows) < 2:
        raise DataError(f"'{file}' has no line of values below its line of names")
    header, values = rows[0], rows[1:]
    if len(set(header)) < len(header):
        raise DataError(f"'{file}' has two columns of the same name: {', '.join(header)}")
    for number, row in enumerate(values, start=2):
        if len(row) != len(header):
            raise DataError(f"'{file}' has {len(header)} names, but {len(row)} values in row {number}")
    columns = {name: numbers_or_texts([row[at] for row in values]) for at, name in enumerate(header)}
    return with_images(picked(columns, asked, file), file.parent)


def read_npz(files: Sequence[Path], asked: Asked) -> Columns:
    """The arrays of npz files, one after the other."""
    tables = [picked(dict(npz_arrays(file)), asked, file) for file in files]
    for file, table in zip(files, tables, strict=True):
        if any(array.ndim == 0 for array in table.values()):  # type: ignore[union-attr]
            raise DataError(f"'{file}' holds a single number, not an array whose first axis counts samples")
    return joined(tables, files[0].parent)


def npz_arrays(path: Path) -> dict[str, NDArray[np.generic]]:
    """All arrays of an npz file, if they are plain ones."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except FileNotFoundError as error:
        raise DataError(f"there is no data file '{path}'") from error
    except (OSError, ValueError, TypeError, EOFError, BadZipFile, AttributeError, zlib.error) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"'{path}' is not an npz file of plain arrays: {reason}") from error
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise DataError(f"'{path}' is not an npz file of plain arrays: '{name}' is {type(array).__name__}")
    return arrays
