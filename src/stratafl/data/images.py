"""Images: columns of encoded images become one array [samples, channels, height, width] of one type."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.data.formats.columns import Column
from stratafl.data.formats.image_files import ImageHeader, header_of, pixels_of, resized_planes
from stratafl.data.memory_limit import MemoryLimit
from stratafl.data.tables.kinds import TableColumn
from stratafl.data.texts import TextEncoding
from stratafl.errors import DataError, counted

_TYPES = {8: np.uint8, 16: np.uint16, 32: np.float32}
_WIDER = 257  # times a byte gives the same share of 16 bits: 255 becomes 65535
_COPIES = 8  # bytes for each pixel of one image while it is decoded, in all its copies


@short_repr
class Content(NamedTuple):
    """The samples, the modes of their images, a warning about how they were read; of a table columns, or texts."""

    x: NDArray[Any]
    mode: str = ""
    remark: str = ""
    codes: tuple[TableColumn, ...] = ()
    text: TextEncoding | None = None


def stack_images(cells: Column, *, channels: int | None, size: int | None, where: str, limit: MemoryLimit) -> Content:
    """All images in one array, resized to a square of `size`; without `channels`, one channel if all are grey."""
    if isinstance(cells, np.ndarray):
        return Content(_arranged(cells, size, where))
    rows = [f"the image in row {at} of '{where}'" for at in range(1, len(cells) + 1)]
    names = [f"'{cell}'" if isinstance(cell, Path) else row for cell, row in zip(cells, rows, strict=True)]
    headers = [header_of(cell, name) for cell, name in zip(cells, names, strict=True)]
    modes, bits = " and ".join(sorted({header.mode for header in headers})), {header.bits for header in headers}
    if 32 in bits and len(bits) > 1:
        raise DataError(f"'{where}' mixes images of modes {modes}: save all with 8 or 16 bits, or all with 32")
    dtype = np.dtype(_TYPES[max(bits)])
    if channels is None:
        channels = 1 if all(header.grey for header in headers) else 3
    count = len(headers) * (headers[0].pixels if size is None else size * size) * channels
    decoding = max(header.pixels for header in headers) * _COPIES
    limit.check(count * dtype.itemsize + decoding, f"the {len(headers):,} images of '{where}'")
    pixels, transparent = _decoded(cells, names, channels, size, where, dtype)
    return Content(pixels, modes, _remark(headers, transparent))


def _decoded(
    cells: list[Any], names: Sequence[str], channels: int, size: int | None, where: str, dtype: Any
) -> tuple[NDArray[Any], int]:
    """The pixels of all images in one type, and how many images had transparent pixels."""
    pixels, transparent = np.empty(0, dtype), 0
    for at, (cell, name) in enumerate(zip(cells, names, strict=True)):
        image, seen_through = pixels_of(cell, channels, size, name)
        if at == 0:
            pixels = np.empty((len(cells), *image.shape), dtype)
        if image.shape != pixels.shape[1:]:
            sizes = " and ".join(f"{height} × {width}" for height, width in (pixels.shape[2:], image.shape[1:]))
            raise DataError(f"the images of '{where}' differ in size ({sizes}): set data.size to resize them")
        transparent += seen_through
        pixels[at] = image
        if dtype == np.uint16 and image.dtype == np.uint8:
            pixels[at] *= _WIDER
    return pixels, transparent


def _remark(headers: Sequence[ImageHeader], transparent: int) -> str:
    counts, remarks = Counter(header.bits for header in headers), []
    if len(counts) > 1:
        remarks.append(
            f"it mixes images of 8 and 16 bits ({counts[8]:,} and {counts[16]:,}): all are read as 16 bits, with bytes "
            f"times {_WIDER}, so that white stays white"
        )
    if transparent:
        remarks.append(f"{counted(transparent, 'image')} had transparent pixels, which are read as white")
    return "; ".join(remarks)


def _arranged(array: NDArray[Any], size: int | None, where: str) -> NDArray[np.uint8]:
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        raise DataError(f"the images of '{where}' are {array.dtype} {list(array.shape)}: give uint8 [n, height, width]")
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if size is not None and array.shape[2:] != (size, size):
        return resized_planes(array, size)
    return np.ascontiguousarray(array)


def are_images(cells: Column) -> bool:
    return isinstance(cells, list) and bool(cells) and isinstance(cells[0], bytes | Path)


def are_elsewhere(cells: Column, place: Path) -> bool:
    """Whether one of these image files is outside of the folder that is read."""
    folder = os.path.join(os.path.abspath(place), "")
    files = [cell for cell in cells if isinstance(cell, Path)] if isinstance(cells, list) else []
    return any(not os.path.abspath(file).startswith(folder) for file in files)
