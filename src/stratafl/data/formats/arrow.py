"""Tables of Arrow: parquet files as the hub has them, and folders that `datasets` wrote with `save_to_disk`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stratafl.data.formats.columns import Asked, Column, Columns, joined, picked, with_images
from stratafl.data.formats.packages import needed
from stratafl.errors import DataError


def read_parquet(files: Sequence[Path], asked: Asked) -> Columns:
    """The columns of parquet files, one after the other."""
    parquet = needed("pyarrow.parquet", "parquet files")
    return joined([_read(file, lambda f: parquet.ParquetFile(f).read(), asked) for file in files], files[0].parent)


def read_saved(files: Sequence[Path], asked: Asked) -> Columns:
    """The columns of folders with a `state.json` that `save_to_disk` wrote."""
    datasets = needed("datasets", "a folder of Arrow files")
    folders = [file.parent for file in files]
    whole = slice(None)
    tables = [_read(f, lambda f: datasets.load_from_disk(str(f)).with_format("arrow")[whole], asked) for f in folders]
    return joined(tables, folders[0])


def _read(place: Path, load: Any, asked: Asked) -> Columns:
    try:
        table = load(place)
    except Exception as error:  # every package has its own errors for a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"'{place}' cannot be read: {reason}") from error
    names = [name for name in table.column_names if not asked.only or name in asked.names()]
    return picked(with_images({name: _column(table.column(name)) for name in names}, place.parent), asked, place)


def _column(chunked: Any) -> Column:
    types = needed("pyarrow.types", "Arrow tables")
    kind = chunked.type
    if types.is_struct(kind):  # an image of `datasets`: its encoded bytes, or where it is
        return [cell["bytes"] if cell["bytes"] is not None else cell["path"] for cell in chunked.to_pylist()]
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.asarray(chunked.to_numpy())
    cells = chunked.to_pylist()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _stacked(cells)
    return list(cells)


def _stacked(cells: list[Any]) -> Column:
    try:
        return np.array(cells)
    except ValueError:  # lists of different lengths
        return cells
