"""csv files whose first line holds the column names, separated by commas, semicolons, tabs or bars.

Files are UTF-8, or else Windows-1252, which Excel writes. An empty cell, or one such as NA, is missing.
"""

import csv
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from stratafl.core.reprs import short_repr
from stratafl.data.formats.cells import text_column
from stratafl.data.formats.columns import Columns, Request, joined, numbers_or_texts, picked, with_images
from stratafl.data.memory_limit import USUAL_LIMIT, MemoryLimit
from stratafl.errors import DataError

_SEPARATORS = (",", ";", "\t", "|")
_ENCODINGS = ("utf-8-sig", "cp1252", "latin-1")  # the first one that fits; every byte is a letter of the last
_NAMED_SEPARATOR = re.compile(r"sep=(.)\s*")  # a first line for Excel
_UTF16 = (b"\xff\xfe", b"\xfe\xff")  # how such files begin
_LOOKED = 10_000  # lines between two looks at the memory


@short_repr
class _Line(NamedTuple):
    number: int  # of its last line, as an editor counts them
    cells: list[str]


def read_csv(files: Sequence[Path], request: Request) -> Columns:
    return joined([_csv(file, request) for file in files], files[0].parent)


def _csv(file: Path, request: Request) -> Columns:
    separator, lines = _lines(file, request.limit)
    _check_names(lines, file)
    header, rows = lines[0].cells, lines[1:]
    uneven = [line for line in rows if len(line.cells) != len(header)]
    if uneven:
        more = f" (and {len(uneven) - 1} more lines)" if len(uneven) > 1 else ""
        wrong = f"line {uneven[0].number} of '{file}' has {len(uneven[0].cells)} values"
        raise DataError(
            f"{wrong} for {len(header)} columns{more}: correct it, and put quotes around texts with a comma"
        )
    cells = {name: [line.cells[at] for line in rows] for at, name in enumerate(header)}
    columns = {name: text_column(texts, commas=separator != ",") for name, texts in cells.items()}
    return with_images(picked(columns, request, file), file.parent)


def _lines(file: Path, limit: MemoryLimit = USUAL_LIMIT) -> tuple[str, list[_Line]]:
    """The separator of a csv file and its lines that are not empty; refused if they exceed the memory limit."""
    try:
        with file.open("rb") as opened:
            encodings = ("utf-16",) if opened.read(2) in _UTF16 else _ENCODINGS
        for encoding in encodings:
            with suppress(UnicodeDecodeError):
                return _decoded_lines(file, encoding, limit)
    except (OSError, csv.Error) as error:
        raise DataError(f"'{file}' is not a csv file: {error}") from error
    raise DataError(f"'{file}' is not a csv file: it is not a text")


def _decoded_lines(file: Path, encoding: str, limit: MemoryLimit) -> tuple[str, list[_Line]]:
    lines = list[_Line]()
    with file.open(newline="", encoding=encoding) as opened:
        first = next((line for line in opened if line.strip()), "")
        if not first.strip().replace("\t", "").isprintable():
            raise csv.Error("it is not a text")
        named = _NAMED_SEPARATOR.fullmatch(first)
        separator = named[1] if named else max(_SEPARATORS, key=lambda sign: _width(first, sign))
        opened.seek(0)
        reader = csv.reader(opened, delimiter=separator)
        for row in reader:
            if row:
                lines.append(_Line(reader.line_num, [cell.strip() for cell in row]))
            if len(lines) % _LOOKED == 0:
                limit.check_grown(f"'{file}'")
    return separator, lines[1:] if named else lines


def _width(line: str, separator: str) -> int:
    return len(next(csv.reader([line], delimiter=separator)))


def line_of(file: Path, row: int) -> int:
    """The line of a row, as an editor counts them; rows are counted from 1."""
    return _lines(file)[1][row].number


def _check_names(lines: Sequence[_Line], file: Path) -> None:
    header = lines[0].cells if lines else []
    if len(lines) < 2:
        raise DataError(f"'{file}' has no values: give a line of column names and at least one line below it")
    if not isinstance(numbers_or_texts(header), list):
        raise DataError(f"line {lines[0].number} of '{file}' has numbers: add a line with column names above it")
    if len(set(header)) < len(header):
        raise DataError(f"'{file}' has two columns of the same name ({', '.join(header)}): rename one")
