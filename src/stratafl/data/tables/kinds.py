"""Kinds of columns: what each column of a table is taken for, decided from its cells, and the codes of its cells.

A coded table is one float64 matrix: numbers as they are, dates as days since 1970, booleans and categories as places in
the column's `values`, NaN where a cell is missing. Identifiers, constants and texts are ignored and have no codes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.data.formats.cells import EPOCH, THOUSANDS, cell_text, day_in, number_in, parts_of_day, yes_or_no
from stratafl.data.formats.columns import Column
from stratafl.errors import DataError, counted, shown

NUMBER, BOOLEAN, CATEGORY, DATE = "number", "boolean", "category", "date"
IDENTIFIER, CONSTANT, TEXT = "identifier", "constant", "text"
CODED = (NUMBER, BOOLEAN, CATEGORY, DATE)
KINDS = (*CODED, IDENTIFIER, CONSTANT, TEXT)
UNSEEN = -1.0  # the code of a text that is not among the values
MONTH_FIRST = "month first"  # the value of a column of dates such as 1/31/2024
_MOSTLY, _MAX_ODD_TEXTS = 0.9, 3  # a column of numbers with a few texts, which are missing values
_MIN_ROWS, _MIN_DIFFERENT = 20, 10  # rows and different texts from which a column may be an identifier
_NEARLY_UNIQUE = 0.5  # different texts, as a share of the rows
_WORDS, _MANY_WORDS = 4, 8  # of a text, on average
_NUMBERING = 2  # numbers that identify rows spread over at most this many times the rows
_MAX_NAMED = 3  # cells that a message names
_MAX_NUMBER = float(np.finfo(np.float32).max)

Codes = NDArray[np.float64]
Texts = list[str | None]


@short_repr
@dataclass(frozen=True)
class TableColumn:
    """A column of a table: its kind, and the texts that its codes stand for.

    `values`: of categories and booleans the texts in the order of their codes; of numbers, texts that are read as
    missing; of dates `MONTH_FIRST`. `why` says why a column is ignored.
    """

    name: str
    kind: str
    values: tuple[str, ...] = ()
    why: str = ""

    @property
    def is_coded(self) -> bool:
        return self.kind in CODED

    def to_list(self) -> list[Any]:
        return [self.name, self.kind, list(self.values), self.why]


def column_from(entry: Sequence[Any]) -> TableColumn:
    """The opposite of `to_list`."""
    name, kind, values, why = entry
    return TableColumn(str(name), str(kind), tuple(map(str, values)), str(why))


def plain_cells(cells: Column) -> Codes | Texts:
    """Numbers as float64, or texts with None for what is missing."""
    if isinstance(cells, np.ndarray) and cells.dtype.kind in "iuf":
        return cells.astype(np.float64)
    values = cells.tolist() if isinstance(cells, np.ndarray) and cells.dtype.kind != "M" else list(cells)
    if isinstance(cells, np.ndarray) and cells.dtype.kind == "M":
        values = cells.astype("datetime64[us]").tolist()
    if all(cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool)) for cell in values):
        return np.array([np.nan if cell is None else cell for cell in values], np.float64)
    return [cell_text(cell) for cell in values]


def joined_cells(parts: Sequence[Codes | Texts]) -> Codes | Texts:
    """The cells of several tables: numbers if all are, or else texts."""
    arrays = [part for part in parts if isinstance(part, np.ndarray)]
    if len(arrays) == len(parts):
        return np.concatenate(arrays)
    return [text for part in parts for text in texts_of(part)]


def texts_of(cells: Codes | Texts) -> Texts:
    return [cell_text(cell) for cell in cells.tolist()] if isinstance(cells, np.ndarray) else cells


def decided(name: str, cells: Codes | Texts, owner: Column | None = None, kind: str | None = None) -> TableColumn:
    """What a column is taken for, or as what `kind` asks for; `owner` are the clients of the rows."""
    if kind is not None:
        return _as_wanted(name, cells, kind)
    if isinstance(cells, np.ndarray):
        return _of_numbers(name, cells, owner)
    counts = Counter(cell for cell in cells if cell is not None)
    if len(counts) <= 1 and sum(counts.values()) in (0, len(cells)):
        return _constant(name, next(iter(counts), None))
    if column := _numbers_in_texts(name, counts):
        return column
    if all(day_in(text) is not None or parts_of_day(text) for text in counts) and (dates := _dates(name, counts)):
        return dates
    codes = {yes_or_no(text) for text in counts}
    if codes == {0.0, 1.0}:
        return TableColumn(name, BOOLEAN, tuple(sorted(counts)))
    return _of_texts(name, counts)


def _as_wanted(name: str, cells: Codes | Texts, kind: str) -> TableColumn:
    if kind in (CATEGORY, BOOLEAN):
        values = in_order({text for text in texts_of(cells) if text is not None})
        odd = [text for text in values if yes_or_no(text) is None]
        if kind == BOOLEAN and odd:
            wrong = f"column '{shown(name)}' has '{shown(odd[0])}', which is neither yes nor no"
            raise DataError(f"{wrong}: take it for a category, data.columns = '{shown(name)}:category'")
        return TableColumn(name, kind, tuple(values))
    if kind == DATE and not isinstance(cells, np.ndarray):
        return _dates(name, [text for text in cells if text is not None]) or TableColumn(name, kind)
    return TableColumn(name, kind, why="" if kind in CODED else "as data.columns says")


def _of_numbers(name: str, values: Codes, owner: Column | None) -> TableColumn:
    present = values[~np.isnan(values)]
    distinct = np.unique(present)
    if len(distinct) <= 1 and len(present) in (0, len(values)):
        return _constant(name, f"{distinct[0]:g}" if len(distinct) else None)
    whole = len(present) == len(values) >= _MIN_ROWS and not (values % 1).any()
    if whole and np.ptp(values) < _NUMBERING * len(values):
        groups = np.zeros(len(values)) if owner is None else np.unique(np.asarray(owner), return_inverse=True)[1]
        pairs = np.unique(np.stack([groups, values]), axis=1).shape[1]
        if len(distinct) == len(values):
            return TableColumn(name, IDENTIFIER, why="another whole number in every row")
        if pairs == len(values) and len(values) >= _MIN_ROWS * len(np.unique(groups)):
            return TableColumn(name, IDENTIFIER, why="another whole number in every row of a client")
    return TableColumn(name, NUMBER)


def _constant(name: str, value: str | None) -> TableColumn:
    if value is None:
        return TableColumn(name, CONSTANT, why="no cell has a value")
    return TableColumn(name, CONSTANT, (value,), f"'{shown(value)}' in every row")


def _numbers_in_texts(name: str, counts: Mapping[str, int]) -> TableColumn | None:
    """A column of numbers, of which a few texts may say that they are missing."""
    odd = [text for text in counts if number_in(text) is None]
    numbers = sum(count for text, count in counts.items() if text not in odd)
    if numbers < _MOSTLY * sum(counts.values()) or len(odd) > _MAX_ODD_TEXTS:
        return None
    commas = [text for text in counts if "," in text]
    if commas and all(THOUSANDS.fullmatch(text) for text in commas):
        wrong = f"column '{shown(name)}' has numbers such as '{commas[0]}', which may be {commas[0].replace(',', '')}"
        raise DataError(f"{wrong} or {commas[0].replace(',', '.')}: write them without the comma, or with a point")
    return TableColumn(name, NUMBER, tuple(odd))


def _dates(name: str, texts: Iterable[str]) -> TableColumn | None:
    """A column of dates, with the month first if only that is possible."""
    texts = list(texts)
    for order in ((), (MONTH_FIRST,)):
        if all(day_in(text, bool(order)) is not None for text in texts):
            return TableColumn(name, DATE, order)
    return None


def doubt_about_dates(column: TableColumn, cells: Codes | Texts) -> str:
    """A line about a column of texts that would be one of dates but for a few."""
    if column.kind not in (CATEGORY, IDENTIFIER) or isinstance(cells, np.ndarray):
        return ""
    counts = Counter(cell for cell in cells if cell is not None)
    odd = min(([text for text in counts if day_in(text, order) is None] for order in (False, True)), key=len)
    dates = sum(count for text, count in counts.items() if text not in odd)
    if len(odd) > _MAX_ODD_TEXTS or dates < _MOSTLY * sum(counts.values()):
        return ""
    few = ", ".join(f"'{shown(text)}'" for text in sorted(odd))
    taken_for = "a category" if column.kind == CATEGORY else "an identifier and ignored"
    no_date = f"{few} {'is not a date' if len(odd) == 1 else 'are not dates'}"
    return f"column '{shown(column.name)}' is {taken_for}, because {no_date}: correct or empty these cells"


def _of_texts(name: str, counts: Mapping[str, int]) -> TableColumn:
    rows, different = sum(counts.values()), len(counts)
    words = sum(len(text.split()) * count for text, count in counts.items()) / rows
    unique = different > max(_NEARLY_UNIQUE * rows, _MIN_DIFFERENT) or 2 < different == rows
    if (unique and words >= _WORDS) or (words >= _MANY_WORDS and different > _MIN_DIFFERENT):
        return TableColumn(name, TEXT, why="a text")
    if unique:
        return TableColumn(name, IDENTIFIER, why=f"{different:,} different texts in {rows:,} rows")
    return TableColumn(name, CATEGORY, tuple(in_order(counts)))


def in_order(texts: Iterable[str]) -> list[str]:
    """Numbers in their order, then texts."""
    return sorted(texts, key=lambda text: (number_in(text) is None, number_in(text) or 0.0, text))


# Codes


def coded_columns(
    cells: Mapping[str, Codes | Texts], owner: Column | None, kinds: Mapping[str, str | None]
) -> tuple[list[TableColumn], list[Codes], list[str]]:
    """What columns are taken for, the codes of those that are not ignored, and what is wrong with others."""
    columns, codes, problems = list[TableColumn](), list[Codes](), list[str]()
    for name, of_column in cells.items():
        try:
            column = decided(name, of_column, owner, kinds.get(name))
            codes += [codes_of(column, of_column)] if column.is_coded else []
            columns.append(column)
        except DataError as error:
            problems.append(str(error))
    return columns, codes, problems


def codes_of(column: TableColumn, cells: Codes | Texts) -> Codes:
    """The codes of cells, NaN where they are missing; a text that is no number or date is refused."""
    if column.kind in (NUMBER, DATE) and isinstance(cells, np.ndarray):
        return _checked(column, cells)
    texts = texts_of(cells)
    if column.kind in (NUMBER, DATE):
        return _checked(column, _read(column, texts))
    places = {value: float(place) for place, value in enumerate(column.values)}
    return np.array([np.nan if text is None else places.get(text, UNSEEN) for text in texts])


def cells_from(column: TableColumn, codes: Codes) -> list[str]:
    """The texts of codes, which `codes_of` gives the same codes; '' where a cell is missing."""
    if column.kind in (CATEGORY, BOOLEAN):
        return ["" if np.isnan(code) else column.values[int(code)] for code in codes.tolist()]
    if column.kind == NUMBER:
        return ["" if np.isnan(code) else repr(code).removesuffix(".0") for code in codes.tolist()]
    moments = [None if np.isnan(code) else EPOCH + timedelta(days=code) for code in codes.tolist()]
    return ["" if moment is None else moment.isoformat(" ").removesuffix(" 00:00:00") for moment in moments]


def _checked(column: TableColumn, numbers: Codes) -> Codes:
    """The numbers; refused if one is too large for the inputs of a model, which are float32."""
    large = np.abs(numbers) > _MAX_NUMBER
    if large.any():
        row = int(large.argmax())
        number = "infinity" if np.isinf(numbers[row]) else f"{numbers[row]:g}, a number too large to use,"
        raise DataError(f"column '{shown(column.name)}' has {number} in row {row + 1}")
    return numbers


def _read(column: TableColumn, texts: Texts) -> Codes:
    month_first = MONTH_FIRST in column.values
    read: Callable[[str], float | None] = number_in if column.kind == NUMBER else lambda text: day_in(text, month_first)
    values = {text: read(text) for text in {*texts} if text is not None and text not in column.values}
    odd = [text for text, value in values.items() if value is None]
    if odd:
        few = ", ".join(f"'{shown(text)}' in row {texts.index(text) + 1}" for text in sorted(odd)[:_MAX_NAMED])
        rest = f" and {counted(len(odd) - _MAX_NAMED, 'more text')}" if len(odd) > _MAX_NAMED else ""
        what = "numbers" if column.kind == NUMBER else "dates, such as 2024-01-31"
        raise DataError(f"column '{shown(column.name)}' takes {what}, but has {few}{rest}")
    numbers = [np.nan if text is None or text in column.values else values[text] for text in texts]
    return np.array(numbers, np.float64)
