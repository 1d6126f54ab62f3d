"""Columns as a site introduces them, and what all sites' columns are taken for together.

A site that has one value in a column, or 0 and 1 where others have F and M, cannot know what the column is: the kinds
and sums of all sites decide. A text that few samples of a site have may be about one person: it stays at the site.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stratafl.core.reprs import short_repr
from stratafl.data.formats.cells import cell_text, number_in
from stratafl.data.tables.column_sums import MAX_BIN, ColumnSums, sums_of
from stratafl.data.tables.kinds import (
    BOOLEAN,
    CATEGORY,
    CODED,
    CONSTANT,
    DATE,
    KINDS,
    NUMBER,
    Codes,
    TableColumn,
    column_from,
    in_order,
)
from stratafl.data.tables.table_encoding import MIN_OF_VALUE
from stratafl.errors import DataError, shown

_MAX_COUNT = 2**53  # of samples: a larger one may not fit into a float
_FEW_VALUES = 20  # different numbers of a site, which may be codes of categories


@short_repr
@dataclass(frozen=True)
class IntroducedColumn:
    """A column of one site: its kind, and sums over the site's training samples (none if it is ignored)."""

    column: TableColumn
    sums: ColumnSums

    def to_table(self) -> dict[str, Any]:
        sums = vars(self.sums) | {"bins": sorted(self.sums.bins.items()), "values": sorted(self.sums.values.items())}
        return {"column": self.column.to_list(), "sums": sums}

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> "IntroducedColumn":
        """The opposite of `to_table`; a ValueError, TypeError or KeyError if it is none."""
        sums, column = dict(table["sums"]), column_from(table["column"])
        counts = [sums["count"], sums["missing"], *(n for pairs in (sums["bins"], sums["values"]) for _, n in pairs)]
        if column.kind not in KINDS or not all(type(count) is int and 0 <= count <= _MAX_COUNT for count in counts):
            raise ValueError("its columns have other kinds or counts than a table can have")
        if not np.isfinite([sums["total"], sums["squares"]]).all():
            raise ValueError("its columns have sums that are not finite")
        bins = {int(bin): count for bin, count in sums["bins"]}
        if any(abs(bin) > MAX_BIN for bin in bins):
            raise ValueError("its columns have bins outside the grid")
        values = {str(value): count for value, count in sums["values"]}
        return IntroducedColumn(column, ColumnSums(**{**sums, "bins": bins, "values": values}))


def introduced_columns(columns: Sequence[TableColumn], codes: Codes) -> list[IntroducedColumn]:
    """What a site says of its columns, from the codes of its training samples."""
    entries, places = list[IntroducedColumn](), iter(range(codes.shape[1]))
    for column in columns:
        if column.is_coded:
            entries.append(_introduced(column, codes[:, next(places)]))
            continue
        sums = ColumnSums(missing=len(codes)) if column.kind == CONSTANT else ColumnSums()
        if column.kind == CONSTANT and column.values:
            sums = ColumnSums(len(codes), values={column.values[0]: len(codes)})
        entries.append(IntroducedColumn(replace(column, values=(), why=""), sums))
    return entries


def _introduced(column: TableColumn, codes: Codes) -> IntroducedColumn:
    sums = sums_of(column, codes)
    if column.kind == NUMBER:
        numbers, counts = np.unique(codes[~np.isnan(codes)], return_counts=True)
        if len(numbers) <= _FEW_VALUES:
            texts = [str(cell_text(number)) for number in numbers.tolist()]
            sums = replace(sums, values=dict(zip(texts, counts.tolist(), strict=True)))
    frequent = {text: count for text, count in sums.values.items() if count >= MIN_OF_VALUE}
    order = column.values if column.kind == DATE else ()
    return IntroducedColumn(replace(column, values=order), replace(sums, values=frequent))


def common_columns(sites: Mapping[str, Sequence[IntroducedColumn]]) -> tuple[list[TableColumn], list[ColumnSums]]:
    """The columns that are used, and their sums over all sites; an error names sites that do not fit together."""
    by_site = {site: {entry.column.name: entry for entry in entries} for site, entries in sites.items()}
    (first, names), *rest = ((site, list(entries)) for site, entries in by_site.items())
    for site, others in rest:
        odd = sorted({*names} ^ {*others})
        if odd:
            raise DataError(f"'{first}' and '{site}' differ in the columns {', '.join(map(shown, odd[:5]))}: give both")
    columns, sums = list[TableColumn](), list[ColumnSums]()
    for name in names:
        entries = {site: of_site[name] for site, of_site in by_site.items()}
        kind = _common_kind(name, entries)
        if kind in CODED:
            parts = [_as_kind(entry, kind) for entry in entries.values()]
            total = sum(parts[1:], parts[0])
            texts = {text for entry in entries.values() for text in entry.column.values}
            values = total.values if kind in (CATEGORY, BOOLEAN) else texts
            columns.append(TableColumn(name, kind, tuple(in_order(values))))
            sums.append(total)
    if not columns:
        raise DataError("no column of the sites can be used: name kinds with data.columns in the federation's file")
    return columns, sums


def _common_kind(name: str, entries: Mapping[str, IntroducedColumn]) -> str:
    by_kind: dict[str, str] = {}
    for site, entry in entries.items():
        by_kind.setdefault(entry.column.kind, site)
    coded = [kind for kind in by_kind if kind in CODED]
    if len(coded) == 1:
        return coded[0]
    if not coded:  # constants may differ between sites
        values = {value for entry in entries.values() for value in entry.sums.values}
        return CONSTANT if len(values) < 2 or set(by_kind) != {CONSTANT} else _of_constants(values)
    few = all(entry.sums.values or not entry.sums.count for entry in entries.values())
    if DATE in coded or not few:
        kinds = " and ".join(f"{kind} at '{shown(by_kind[kind])}'" for kind in coded)
        raise DataError(f"column '{shown(name)}' is {kinds}: name its kind with data.columns, or prepare it alike")
    return CATEGORY


def _of_constants(values: set[str]) -> str:
    return NUMBER if all(number_in(value) is not None for value in values) else CATEGORY


def _as_kind(entry: IntroducedColumn, kind: str) -> ColumnSums:
    """The sums of a site, whose column was taken for something else, as sums of a column of this kind."""
    sums = entry.sums
    if entry.column.kind == kind:
        return replace(sums, values={}) if kind == NUMBER else sums
    if entry.column.kind not in (*CODED, CONSTANT):
        return ColumnSums()
    if kind in (CATEGORY, BOOLEAN):
        return ColumnSums(sums.count, sums.missing, values=sums.values)
    total = ColumnSums(missing=sums.missing)
    for text, count in sums.values.items():  # of a constant
        number = number_in(text)
        if number is not None and kind == NUMBER:
            total += sums_of(TableColumn(entry.column.name, NUMBER), np.full(count, number))
        else:
            total += ColumnSums(missing=count)
    return total
