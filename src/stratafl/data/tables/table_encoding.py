"""The encoding of a table: how cells become the inputs of a model, fitted on sums over training samples.

Numbers and dates: a missing one is the median. Booleans: 0 or 1, a missing one is the more frequent. Categories: one
place for each text, and one for texts that are rare or unseen; a missing one has no place. A column that lacks values
in training samples has one more input, 1 where it is missing. Standardising comes after that (`preprocessing.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratafl.core.reprs import short_repr
from stratafl.data.formats.cells import yes_or_no
from stratafl.data.formats.columns import Column
from stratafl.data.tables.column_sums import ColumnSums, table_sums
from stratafl.data.tables.kinds import (
    BOOLEAN,
    CATEGORY,
    CODED,
    NUMBER,
    UNSEEN,
    Codes,
    TableColumn,
    codes_of,
    in_order,
    plain_cells,
    texts_of,
)
from stratafl.errors import DataError, shown

MIN_OF_VALUE, MAX_VALUES = 3, 64  # training samples of a text with a place of its own, and how many texts have one
_NO, _YES = 0.0, 1.0


@short_repr
@dataclass(frozen=True)
class EncodedColumn:
    """A column as a model takes it.

    `values` are the texts of a category with a place each; of numbers, texts that are read as missing. `fill` stands
    for a missing number. `flag`: training samples lack it. `rest`: some of them have another text than `values`; if
    not, the place for other texts stays 0, because nothing was learned about it.
    """

    name: str
    kind: str
    values: tuple[str, ...] = ()
    fill: float = 0.0
    flag: bool = False
    rest: bool = False

    @staticmethod
    def fitted(column: TableColumn, sums: ColumnSums) -> "EncodedColumn":
        flag = sums.missing > 0
        if column.kind == CATEGORY:
            frequent = sorted(sums.values, key=lambda text: (-sums.values[text], text))
            values = in_order([text for text in frequent if sums.values[text] >= MIN_OF_VALUE][:MAX_VALUES])
            rest = sum(sums.values[text] for text in values) < sums.count
            return EncodedColumn(column.name, CATEGORY, tuple(values), flag=flag, rest=rest)
        if column.kind == BOOLEAN:
            yes = sum(count for text, count in sums.values.items() if yes_or_no(text) == _YES)
            return EncodedColumn(column.name, BOOLEAN, fill=float(2 * yes > sums.count), flag=flag)
        return EncodedColumn(column.name, column.kind, column.values, sums.median, flag)

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that the column becomes."""
        names = [self.name]
        if self.kind == CATEGORY:
            names = [*(f"{self.name}={value}" for value in self.values), f"{self.name}=other"]
        return [*names, f"{self.name} missing"] if self.flag else names

    @property
    def is_measured(self) -> bool:
        """Whether the first input is a number to standardise."""
        return self.kind not in (CATEGORY, BOOLEAN)

    def codes(self, cells: Column) -> Codes:
        """The codes of raw cells: places of categories among `values`, −1 for others; booleans 0 and 1."""
        plain = plain_cells(cells)
        if self.kind != BOOLEAN:
            return codes_of(TableColumn(self.name, self.kind, self.values), plain)
        words = [None if text is None else yes_or_no(text) for text in texts_of(plain)]
        return np.array([np.nan if word is None else word for word in words])

    def recoded(self, column: TableColumn, codes: Codes) -> Codes:
        """Codes that number the values of a column as it was read, as this encoding numbers them."""
        if self.is_measured:
            return codes
        places = {value: float(place) for place, value in enumerate(self.values)}
        if self.kind == CATEGORY:
            table = [places.get(value, UNSEEN) for value in column.values]
        else:
            table = [np.nan if (word := yes_or_no(value)) is None else word for value in column.values]
        lookup = np.array([*table, UNSEEN if self.kind == CATEGORY else np.nan, np.nan])  # −1 and NaN come last
        return lookup[
            np.where(np.isnan(codes), len(table) + 1, np.where(codes < 0, len(table), codes)).astype(np.int64)
        ]

    def applied(self, codes: Tensor) -> list[Tensor]:
        """The inputs, [n, ·] each; plain arithmetic, so that it can be exported."""
        missing = codes.isnan()
        if self.kind == CATEGORY:
            places = torch.arange(len(self.values), dtype=codes.dtype, device=codes.device)
            other = (codes < 0) if self.rest else torch.zeros_like(missing)
            parts = [(codes[:, None] == places).to(codes.dtype), other.to(codes.dtype)[:, None]]
        else:
            parts = [torch.where(missing, torch.full_like(codes, self.fill), codes)[:, None]]
        return [*parts, missing.to(codes.dtype)[:, None]] if self.flag else parts


@short_repr
@dataclass(frozen=True)
class TableEncoding:
    """The encoding of all columns of a table that are not ignored, in their order."""

    columns: tuple[EncodedColumn, ...]

    @staticmethod
    def fitted(columns: Sequence[TableColumn], sums: Sequence[ColumnSums]) -> "TableEncoding":
        return TableEncoding(tuple(EncodedColumn.fitted(*pair) for pair in zip(columns, sums, strict=True)))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        return tuple(name for column in self.columns for name in column.inputs)

    def coded(self, cells: Mapping[str, Column], where: str) -> Codes:
        """The codes of raw cells by column; other columns are not looked at. All that is wrong is said at once."""
        single = [name for name in self.names if np.ndim(cells.get(name, ())) == 0]
        if single:
            raise DataError(f"{where}: {_quoted(single)} is a single value: give a list for each column")
        problems = []
        lacking = [name for name in self.names if name not in cells]
        if lacking:
            problems.append(f"it lacks {_quoted(lacking)}: give the columns {_quoted(self.names)}")
        codes = []
        for column in self.columns:
            if column.name in cells:
                try:
                    codes.append(column.codes(cells[column.name]))
                except DataError as error:
                    problems.append(str(error))
        counts = {column.name: len(cells[column.name]) for column in self.columns if column.name in cells}
        if len({*counts.values()}) > 1:
            problems.append(f"its columns differ in length ({', '.join(f'{n}: {c}' for n, c in counts.items())})")
        elif 0 in counts.values():
            problems.append("it has no rows")
        if problems:
            raise DataError(f"{where}: {'; '.join(problems)}")
        return np.stack(codes, axis=1)

    def reading_as_missing(self, texts: Mapping[str, tuple[str, ...]]) -> "TableEncoding":
        """The same encoding, for cells in which these texts, by column, stand for missing numbers."""
        columns = [
            replace(column, values=texts.get(column.name, column.values)) if column.kind == NUMBER else column
            for column in self.columns
        ]
        return TableEncoding(tuple(columns))

    def recoded(self, columns: Sequence[TableColumn], codes: Codes) -> Codes:
        pairs = zip(self.columns, columns, strict=True)
        return np.stack([encoded.recoded(read, codes[:, at]) for at, (encoded, read) in enumerate(pairs)], axis=1)

    def applied(self, codes: Tensor) -> Tensor:
        """The inputs of coded samples, [n, F] in float32; numbers are not standardised yet."""
        parts = [part for at, column in enumerate(self.columns) for part in column.applied(codes[:, at].double())]
        return torch.cat(parts, 1).float()

    def moments(self, sums: Sequence[ColumnSums]) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation of every input by these sums: numbers have theirs, all others 0 and 1."""
        mean, deviation = list[float](), list[float]()
        for column, of_column in zip(self.columns, sums, strict=True):
            places = len(column.inputs) - column.is_measured
            mean += [of_column.mean] * column.is_measured + [0.0] * places
            deviation += [of_column.deviation] * column.is_measured + [1.0] * places
        return tuple(mean), tuple(deviation)

    def own_moments(self, codes: Codes) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and deviation of every input by the sums over these samples."""
        columns = [TableColumn(column.name, NUMBER) for column in self.columns]
        return self.moments(table_sums(columns, codes))

    def to_table(self) -> dict[str, Any]:
        return {"columns": [vars(column) | {"values": list(column.values)} for column in self.columns]}


def encoding_from(table: Any) -> TableEncoding:
    """The opposite of `TableEncoding.to_table`; a ValueError says what is wrong."""
    try:
        columns = [EncodedColumn(**{**entry, "values": tuple(entry["values"])}) for entry in table["columns"]]
        fits = all(
            isinstance(c.name, str)
            and c.kind in CODED
            and all(isinstance(value, str) for value in c.values)
            and isinstance(c.fill, float | int)
            and np.isfinite(c.fill)
            and type(c.flag) is type(c.rest) is bool
            for c in columns
        )
    except (KeyError, TypeError) as error:
        raise ValueError("its table is not an encoding of columns") from error
    if not fits or not columns or len({column.name for column in columns}) < len(columns):
        raise ValueError("its table is not an encoding of columns")
    return TableEncoding(tuple(columns))


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(f"'{shown(name)}'" for name in names[:8]) + (", …" if len(names) > 8 else "")
