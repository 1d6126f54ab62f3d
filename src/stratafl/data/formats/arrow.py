"""Arrow tables: parquet files, and folders that `datasets` wrote with `save_to_disk`."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from stratafl.data.formats.columns import Column, Columns, Request, import_extra, joined, picked, with_images
from stratafl.errors import DataError, StrataError, first_line

_ROWS, _FEW_ROWS = 16_384, 64  # of a batch of numbers, and of a batch with texts or images, which may be large
_COPIES = 2  # of numbers, as a table and as an array
_OF_LISTS, _OBJECT = 8, 64  # factor by which lists of numbers grow as Python objects; bytes of one object


def read_parquet(files: Sequence[Path], request: Request) -> Columns:
    return joined([_read(file, lambda f: _parquet(f, request), request) for file in files], files[0].parent)


def _parquet(file: Path, request: Request) -> Any:
    """The table of a file, read in small batches, because a few bytes may stand for any number of values."""
    opened = import_extra("pyarrow.parquet", "parquet files").ParquetFile(file)
    types = import_extra("pyarrow.types", "Arrow tables")
    names = [name for name in opened.schema_arrow.names if not request.only or name in request.names()]
    kinds = [opened.schema_arrow.field(name).type for name in names]
    fixed = [kind.bit_width / 8 for kind in kinds if types.is_primitive(kind)]
    request.limit.check(int(opened.metadata.num_rows * sum(fixed) * _COPIES), f"'{file}'")
    batches = []
    rows = _ROWS if len(fixed) == len(kinds) else _FEW_ROWS
    for batch in opened.iter_batches(rows, columns=names):
        batches.append(batch)
        request.limit.check_grown(f"'{file}'")
    table = import_extra("pyarrow", "parquet files").Table
    return table.from_batches(batches, opened.schema_arrow) if batches else opened.read()


def read_saved(files: Sequence[Path], request: Request) -> Columns:
    datasets = import_extra("datasets", "a folder of Arrow files")
    folders = [file.parent for file in files]
    whole = slice(None)
    tables = [_read(f, lambda f: datasets.load_from_disk(str(f)).with_format("arrow")[whole], request) for f in folders]
    return joined(tables, folders[0])


def _read(place: Path, load: Any, request: Request) -> Columns:
    try:
        table = load(place)
    except StrataError:
        raise
    except Exception as error:  # every package raises its own errors for a damaged file
        raise DataError(f"'{place}' cannot be read: {first_line(error)}") from error
    names = [name for name in table.column_names if not request.only or name in request.names()]
    request.limit.check(sum(_bytes(table.column(name)) for name in names), f"'{place}'")
    return picked(with_images({name: _column(table.column(name)) for name in names}, place.parent), request, place)


def _bytes(chunked: Any) -> int:
    """The memory of a column as an array, or as a list of Python objects."""
    types = import_extra("pyarrow.types", "Arrow tables")
    if types.is_primitive(chunked.type):
        return int(chunked.nbytes)
    if types.is_dictionary(chunked.type):  # stored once, and then repeated for every row
        return sum(len(chunk) * (_OBJECT + _longest(chunk.dictionary)) for chunk in chunked.chunks)
    nested = types.is_list(chunked.type) or types.is_large_list(chunked.type) or types.is_fixed_size_list(chunked.type)
    return int(chunked.nbytes) * (_OF_LISTS if nested else 1) + len(chunked) * _OBJECT


def _longest(values: Any) -> int:
    """Bytes of the longest text among these, or of any other value."""
    types, compute = import_extra("pyarrow.types", "Arrow tables"), import_extra("pyarrow.compute", "Arrow tables")
    return 8 if types.is_primitive(values.type) else compute.max(compute.binary_length(values)).as_py() or 0


def _column(chunked: Any) -> Column:
    types = import_extra("pyarrow.types", "Arrow tables")
    kind = chunked.type
    if types.is_struct(kind):  # an image of `datasets`: its encoded bytes, or its path
        return [cell["bytes"] if cell["bytes"] is not None else cell["path"] for cell in chunked.to_pylist()]
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return np.asarray(chunked.to_numpy())
    cells = chunked.to_pylist()
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        with suppress(ValueError):  # lists of different lengths stay lists
            return np.array(cells)
    return list(cells)
