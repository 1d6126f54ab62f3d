"""MNIST's own format: a file of images and a file of labels, plain or gzipped."""

import gzip
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratafl.data.formats.columns import Asked, Columns
from stratafl.errors import DataError

_UNSIGNED_BYTE = 8


def read_idx(files: Sequence[Path], asked: Asked) -> Columns:
    """Images and labels of one pair of files."""
    found = {axes: [file for file in files if f"idx{axes}" in file.name] for axes in (1, 3)}
    if any(len(each) != 1 for each in found.values()):
        names = ", ".join(file.name for file in files)
        raise DataError(f"'{files[0].parent}' needs one idx3 file of images and one idx1 file of labels, not {names}")
    images, labels = (read_array(found[axes][0]) for axes in (3, 1))
    return {asked.content: images, asked.label: labels.astype(np.int64)}


def read_array(file: Path) -> NDArray[np.uint8]:
    """The array in one file: two zeros, its type, how many axes, their lengths, and then its values."""
    try:
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{file}' cannot be read: {error}") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != _UNSIGNED_BYTE:
        raise DataError(f"'{file}' is not an idx file of bytes")
    start = 4 + 4 * data[3]
    shape = np.frombuffer(data[4:start], dtype=">u4").astype(np.int64)
    if len(shape) != data[3] or len(data) - start != shape.prod():
        raise DataError(f"'{file}' ends before its last value, or after it")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)
