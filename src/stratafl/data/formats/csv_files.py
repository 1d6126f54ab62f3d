"""csv files whose first line holds the column names."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stratafl.core.reprs import short_repr
from stratafl.data.formats.columns import Column, Columns, Request, joined, numbers_or_texts, picked, with_images
from stratafl.data.memory_limit import USUAL_LIMIT, MemoryLimit
from stratafl.errors import DataError

_OTHER_SEPARATORS = (";", "\t", "|")
_LOOKED = 10_000  # lines between two looks at the memory


@short_repr
class _Line(NamedTuple):
    number: int  # of its last line, as an editor counts them
    cells: list[str]


def read_csv(files: Sequence[Path], request: Request) -> Columns:
    return joined([_csv(file, request) for file in files], files[0].parent)


def _csv(file: Path, request: Request) -> Columns:
    lines = _lines(file, request.limit)
    _check_names(lines, file)
    header, rows = lines[0].cells, lines[1:]
    for line in rows:
        if len(line.cells) != len(header):
            raise DataError(f"line {line.number} of '{file}' has {len(line.cells)} values for {len(header)} columns")
    columns = {name: numbers_or_texts([line.cells[at] for line in rows]) for at, name in enumerate(header)}
    columns = picked(columns, request, file)
    for name, cells in columns.items():
        for at in _missing(cells)[:1]:
            content = f"'{cells[at]}'" if isinstance(cells, np.ndarray) else "an empty cell"
            where = f"line {rows[at].number} of '{file}' has {content} in the column '{name}'"
            raise DataError(f"{where}: fill it in, or delete the line or the column")
    return with_images(columns, file.parent)


def _lines(file: Path, limit: MemoryLimit = USUAL_LIMIT) -> list[_Line]:
    """The lines of a csv file that are not empty; refused if they exceed the memory limit."""
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
    header, *rows = _lines(file)
    at = header.cells.index(name)
    return next(line.number for line in rows if line.cells[at] == cell)


def _check_names(lines: Sequence[_Line], file: Path) -> None:
    header = lines[0].cells if lines else []
    for sign in _OTHER_SEPARATORS if len(header) == 1 else ():
        if sign in header[0]:
            where = f"line {lines[0].number} of '{file}' has {sign!r} between columns"
            raise DataError(f"{where}: save the file with commas, and points in numbers")
    if len(lines) < 2:
        raise DataError(f"'{file}' has no values: give a line of column names and at least one line below it")
    if not isinstance(numbers_or_texts(header), list):
        raise DataError(f"line {lines[0].number} of '{file}' has numbers: add a line with column names above it")
    if len(set(header)) < len(header):
        raise DataError(f"'{file}' has two columns of the same name ({', '.join(header)}): rename one")


def _missing(cells: Column) -> list[int]:
    """The rows of empty cells, or of NaN and infinity among numbers."""
    if isinstance(cells, np.ndarray):
        return np.flatnonzero(~np.isfinite(cells)).tolist()
    return [at for at, cell in enumerate(cells) if not cell]
