"""Tables in memory, with columns of labels and clients: DataFrames, Arrow tables and Hugging Face datasets.

They are read as a csv or parquet file of the same columns is, so they may hold categories, dates and missing values.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from stratafl.data.arrays import column_names
from stratafl.data.formats.columns import Column, Columns, joined
from stratafl.data.reading import Reading
from stratafl.data.samples import Samples
from stratafl.data.user_files import column_samples
from stratafl.errors import DataError, shown

PLACE = Path("table")  # what messages call it
OWNER = "client"  # the column of clients' names, if there is a table for each


def is_frame(values: Any) -> bool:
    """Whether this is a table with names of columns."""
    return not isinstance(values, Mapping) and bool(column_names(values))


def frame_samples(table: Any, label: str | None, client: str | None, normalise: str) -> Samples:
    """The samples of a table, or of a table for each client by its name."""
    if isinstance(table, Mapping):
        for name, frame in table.items():
            if not is_frame(frame):
                raise DataError(f"client '{shown(name)}' is a {type(frame).__name__}: label= is for tables, give one")
        columns, client = _of_clients(table, client), OWNER
    elif is_frame(table):
        columns = _columns(table)
    else:
        raise DataError(f"label= and client= are for tables, such as a DataFrame, not for a {type(table).__name__}")
    if label is None or client is None:
        missing = "label, the column to predict" if label is None else "client, the column that names the clients"
        raise DataError(f"a table needs {missing}; choose one of: {', '.join(map(shown, columns))}")
    reading = Reading(label=label, client=client, normalise=normalise)
    rows = len(next(iter(columns.values())))
    return reading.scaled(column_samples(columns, np.zeros(rows, bool), reading, PLACE))


def _of_clients(tables: Mapping[Any, Any], client: str | None) -> Columns:
    if client is not None:
        raise DataError("the clients have names already: leave out client=, or give one table with that column")
    parts = [_columns(table) for table in tables.values()]
    for name, part in zip(tables, parts, strict=True):
        if set(part) != set(parts[0]):
            odd = next(iter(set(part) ^ set(parts[0])))
            raise DataError(f"column '{shown(odd)}' is not in the tables of all clients: look at '{shown(name)}'")
    counts = [len(next(iter(part.values()))) for part in parts]
    names = np.repeat(np.array([str(name) for name in tables]), counts).tolist()
    return {**joined(parts, PLACE), OWNER: names}


def _columns(table: Any) -> Columns:
    nameless = [label for label in getattr(table, "columns", ()) if isinstance(label, int | float | tuple)]
    if nameless:
        raise DataError(f"a column is called {nameless[0]!r}, not a text: table.columns = table.columns.map(str)")
    return {name: _cells(table, name) for name in column_names(table)}


def _cells(table: Any, name: str) -> Column:
    """The cells of a column: an array of numbers or days, or a list with None for what is missing."""
    cells = table[name]
    features = getattr(table, "features", None)  # of Hugging Face, where a class has a number and a name
    if isinstance(features, Mapping) and hasattr(features.get(name), "int2str"):
        return [None if cell is None else str(features[name].int2str(cell)) for cell in cells]
    if hasattr(cells, "isna"):  # pandas, whose missing values are of several kinds
        missing, values = np.asarray(cells.isna()), np.asarray(cells)
        if values.dtype.kind in "biufM":
            return values
        return [None if gone else cell for cell, gone in zip(values.tolist(), missing.tolist(), strict=True)]
    array = np.asarray(cells.to_pylist() if hasattr(cells, "to_pylist") else cells)
    return array if array.dtype.kind in "biufM" else array.tolist()
