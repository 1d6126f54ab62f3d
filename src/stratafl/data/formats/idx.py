"""idx, MNIST's format: a file of images and a file of labels, plain or gzipped."""

import gzip
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratafl.data.formats.columns import Columns, Request
from stratafl.data.memory_limit import MemoryLimit
from stratafl.errors import DataError

_UNSIGNED_BYTE = 8


def read_idx(files: Sequence[Path], request: Request) -> Columns:
    by_axes = {axes: [file for file in files if f"idx{axes}" in file.name] for axes in (1, 3)}
    if any(len(each) != 1 for each in by_axes.values()):
        names = ", ".join(file.name for file in files)
        raise DataError(f"'{files[0].parent}' has {names}: give one idx3 file (images) and one idx1 file (labels)")
    images, labels = (_array(by_axes[axes][0], request.limit) for axes in (3, 1))
    return {request.content: images, request.label: labels.astype(np.int64)}


def _array(file: Path, limit: MemoryLimit) -> NDArray[np.uint8]:
    """The array in one file: two zeros, its type, the number of axes, their lengths, and then its values."""
    try:
        with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as opened:
            start = opened.read(4)
            if len(start) < 4 or start[:2] != b"\0\0" or start[2] != _UNSIGNED_BYTE:
                raise DataError(f"'{file}' is not an idx file of unsigned bytes")
            axes = opened.read(4 * start[3])
            if len(axes) != 4 * start[3]:
                raise DataError(f"'{file}' is damaged: its length does not fit its header")
            shape = np.frombuffer(axes, ">u4").tolist()
            count = prod(shape)
            limit.check(count, f"'{file}'")
            data = opened.read(count + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"'{file}' cannot be read: {error}") from error
    if len(data) != count:
        raise DataError(f"'{file}' is damaged: its length does not fit its header")
    return np.frombuffer(data, np.uint8).reshape(shape)
