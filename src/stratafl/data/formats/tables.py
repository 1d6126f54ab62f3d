"""Tables in plain files: csv with a line of names, and npz with an array per column."""

import csv
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.data.formats.columns import Asked, Column, Columns, joined, numbers_or_texts, picked, with_images
from stratafl.data.formats.npz_headers import Announced, npz_headers
from stratafl.data.memory_limit import USUAL_LIMIT, MemoryLimit
from stratafl.errors import DataError, first_line

_OTHER_SEPARATORS = (";", "\t", "|")
_LOOKED = 10_000  # lines after which memory is looked at
_BROKEN = (OSError, ValueError, TypeError, EOFError, BadZipFile, AttributeError, RuntimeError, zlib.error)


@short_repr
class _Line(NamedTuple):
    number: int  # of its last line, as an editor counts them
    cells: list[str]


def read_csv(files: Sequence[Path], asked: Asked) -> Columns:
    """The columns of csv files, one after the other."""
    return joined([_csv(file, asked) for file in files], files[0].parent)


def _csv(file: Path, asked: Asked) -> Columns:
    lines = _lines(file, asked.limit)
    _check_names(lines, file)
    header, rows = lines[0].cells, lines[1:]
    for line in rows:
        if len(line.cells) != len(header):
            raise DataError(f"'{file}' has {len(header)} names, but {len(line.cells)} values in line {line.number}")
    columns = {name: numbers_or_texts([line.cells[at] for line in rows]) for at, name in enumerate(header)}
    columns = picked(columns, asked, file)
    for name, cells in columns.items():
        for at in _missing(cells)[:1]:
            found = f"'{cells[at]}'" if isinstance(cells, np.ndarray) else "an empty cell"
            raise DataError(
                f"line {rows[at].number} of '{file}' has {found} in the column '{name}': fill it in, or leave out the "
                "line or the column"
            )
    return with_images(columns, file.parent)


def _lines(file: Path, limit: MemoryLimit = USUAL_LIMIT) -> list[_Line]:
    """The lines of a csv file that are not empty, as long as they fit under the memory limit."""
    lines = []
    try:
        with file.open(newline="", encoding="utf-8-sig") as opened:
            reader = csv.reader(opened)
            for row in reader:
                if row:
                    lines.append(_Line(reader.line_num, [cell.strip() for cell in row]))
                if len(lines) % _LOOKED == 0:
                    limit.check_grown(f"'{file}'")
            return lines
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"'{file}' is not a csv file: {error}") from error


def line_of(file: Path, name: str, cell: str) -> int:
    """The first line with this cell in a column, as an editor counts them."""
    header, *rows = _lines(file)
    at = header.cells.index(name)
    return next(line.number for line in rows if line.cells[at] == cell)


def _check_names(lines: Sequence[_Line], file: Path) -> None:
    header = lines[0].cells if lines else []
    for sign in _OTHER_SEPARATORS if len(header) == 1 else ():
        if sign in header[0]:
            raise DataError(
                f"line {lines[0].number} of '{file}' has no comma, but {sign!r}: save it with commas between columns "
                "and points in numbers"
            )
    if len(lines) < 2:
        raise DataError(f"'{file}' has no line of values below its line of names")
    if not isinstance(numbers_or_texts(header), list):
        raise DataError(f"line {lines[0].number} of '{file}' holds numbers: put the columns' names in a line above it")
    if len(set(header)) < len(header):
        raise DataError(f"'{file}' has two columns of the same name: {', '.join(header)}")


def _missing(cells: Column) -> list[int]:
    """Where there is nothing, or no finite number among numbers."""
    if isinstance(cells, np.ndarray):
        return np.flatnonzero(~np.isfinite(cells)).tolist()
    return [at for at, cell in enumerate(cells) if not cell]


def read_npz(files: Sequence[Path], asked: Asked) -> Columns:
    """The arrays of npz files, one after the other."""
    _check_together(files, asked.limit)
    tables = [picked(dict(npz_arrays(file, asked.limit)), asked, file) for file in files]
    for file, table in zip(files, tables, strict=True):
        if any(array.ndim == 0 for array in table.values()):  # type: ignore[union-attr]
            raise DataError(f"'{file}' holds a single number, not an array whose first axis counts samples")
    return joined(tables, files[0].parent)


def _check_together(files: Sequence[Path], limit: MemoryLimit) -> None:
    """Several files are there as parts and as a whole for a moment."""
    if len(files) > 1:
        needed = sum(each.bytes for file in files for each in headers_of(file).values())
        limit.check(2 * needed, f"'{files[0].parent}'")


def headers_of(path: Path) -> dict[str, Announced]:
    """What an npz file announces, if it holds plain arrays."""
    try:
        return npz_headers(path)
    except FileNotFoundError as error:
        raise DataError(f"there is no data file '{path}'") from error
    except _BROKEN as error:
        raise _not_npz(path, error) from error


def npz_arrays(path: Path, limit: MemoryLimit = USUAL_LIMIT) -> dict[str, NDArray[np.generic]]:
    """All arrays of an npz file, if they are plain ones and fit under the memory limit."""
    limit.check(sum(each.bytes for each in headers_of(path).values()), f"'{path}'")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except _BROKEN as error:
        raise _not_npz(path, error) from error


def _not_npz(path: Path, error: Exception) -> DataError:
    reason = first_line(error)
    return DataError(f"'{path}' is not an npz file of plain arrays: {reason}")
