"""What an npz file announces: names, shapes and types of its arrays, read without unpacking them."""

from io import BytesIO
from math import prod
from pathlib import Path
from typing import IO, Any, NamedTuple
from zipfile import ZipFile

import numpy as np

_MAGIC, _START = b"\x93NUMPY", 12  # what every array begins with; magic, version and the length of the header
_LONGEST = 10_000  # bytes of a header, as numpy has it


class Announced(NamedTuple):
    """An array as its header has it."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        """What it takes in memory, and what it takes again when it is converted for a model."""
        count = prod(self.shape)
        return count * (self.dtype.itemsize + _converted(self.dtype))


def npz_headers(path: Path) -> dict[str, Announced]:
    """The arrays of a file; a ValueError if something in it is none."""
    with ZipFile(path) as file:
        found = {}
        for info in file.infolist():
            with file.open(info) as member:
                found[info.filename.removesuffix(".npy")] = _announced(member, info.filename)
    return found


def _announced(member: IO[bytes], name: str) -> Announced:
    start = member.read(_START)
    if len(start) < _START or not start.startswith(_MAGIC):
        raise ValueError(f"'{name}' is not an array")
    wide = start[6] > 1  # the length of the header has four bytes instead of two
    length = int.from_bytes(start[8:12] if wide else start[8:10], "little")
    if length > _LONGEST:
        raise ValueError(f"'{name}' has a header of {length:,} bytes")
    whole = BytesIO(start + member.read(length))
    version = np.lib.format.read_magic(whole)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}.get(version)
    if read is None:
        raise ValueError(f"'{name}' is written in version {version[0]}.{version[1]} of the format")
    shape, _, dtype = read(whole)
    if any(axis < 0 for axis in shape):
        raise ValueError(f"'{name}' has the shape {shape}")
    return Announced(shape, dtype)


def _converted(dtype: np.dtype[Any]) -> int:
    """Bytes of a number after it was converted: floats to 32 bits, whole numbers but bytes to 64; 0 if it is not."""
    if dtype.kind == "f":
        return 0 if dtype == np.float32 else 4
    return 8 if dtype.kind in "iu" and dtype not in (np.uint8, np.int64) else 0
