"""npz files with one array per column, whose size is checked before anything is unpacked."""

import zlib
from collections.abc import Sequence
from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from stratafl.data.formats.columns import Columns, Request, joined, picked
from stratafl.data.memory_limit import USUAL_LIMIT, MemoryLimit
from stratafl.errors import DataError, first_line

_BROKEN = (OSError, ValueError, TypeError, EOFError, BadZipFile, AttributeError, RuntimeError, zlib.error)
_MAGIC, _START = b"\x93NUMPY", 12  # the start of every array; bytes of magic, version and length of the header
_MAX_HEADER_BYTES = 10_000  # bytes of a header, as in numpy


class ArrayHeader(NamedTuple):
    """Shape and type of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """What the array takes in memory, and again when floats become 32 bits, and whole numbers but bytes 64."""
        converted = 8 if self.dtype.kind in "iu" and self.dtype not in (np.uint8, np.int64) else 0
        if self.dtype.kind == "f" and self.dtype != np.float32:
            converted = 4
        return prod(self.shape) * (self.dtype.itemsize + converted)


def read_npz(files: Sequence[Path], request: Request) -> Columns:
    if len(files) > 1:  # parts and whole are in memory at the same time
        needed = sum(each.bytes for file in files for each in npz_headers(file).values())
        request.limit.check(2 * needed, f"'{files[0].parent}'")
    tables = [picked(dict(npz_arrays(file, request.limit)), request, file) for file in files]
    for file, table in zip(files, tables, strict=True):
        if any(array.ndim == 0 for array in table.values()):  # type: ignore[union-attr]
            raise DataError(f"'{file}' holds a single number: every array needs a first axis that counts the samples")
    return joined(tables, files[0].parent)


def npz_headers(path: Path) -> dict[str, ArrayHeader]:
    """Names, shapes and types of the arrays of an npz file, read without unpacking them."""
    try:
        with ZipFile(path) as file:
            headers = {}
            for info in file.infolist():
                with file.open(info) as member:
                    headers[info.filename.removesuffix(".npy")] = _header(member, info.filename)
            return headers
    except FileNotFoundError as error:
        raise DataError(f"there is no data file '{path}'") from error
    except _BROKEN as error:
        raise _not_npz(path, error) from error


def has_numbers(path: Path) -> bool:
    """Whether the samples `x` of an npz file are numbers, from its headers alone."""
    header = npz_headers(path).get("x")
    return header is not None and header.dtype.kind in "biufc"


def npz_arrays(path: Path, limit: MemoryLimit = USUAL_LIMIT) -> dict[str, NDArray[np.generic]]:
    limit.check(sum(each.bytes for each in npz_headers(path).values()), f"'{path}'")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    except _BROKEN as error:
        raise _not_npz(path, error) from error


def _not_npz(path: Path, error: Exception) -> DataError:
    return DataError(f"'{path}' is not an npz file of plain arrays: {first_line(error)}")


def _header(member: IO[bytes], name: str) -> ArrayHeader:
    start = member.read(_START)
    if len(start) < _START or not start.startswith(_MAGIC):
        raise ValueError(f"'{name}' is not an array")
    wide = start[6] > 1  # the length of the header has four bytes instead of two
    length = int.from_bytes(start[8:12] if wide else start[8:10], "little")
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f"'{name}' has a header of {length:,} bytes")
    whole = BytesIO(start + member.read(length))
    version = np.lib.format.read_magic(whole)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"'{name}' has version {version[0]}.{version[1]} of the format, which is not supported")
    shape, _, dtype = read(whole)
    if any(axis < 0 for axis in shape):
        raise ValueError(f"'{name}' has the shape {shape}")
    return ArrayHeader(shape, dtype)
