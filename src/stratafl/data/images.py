"""Images as bytes: encoded, in files or in arrays, they become one array uint8 [samples, channels, height, width]."""

import os
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.data.formats.columns import Column
from stratafl.data.formats.packages import needed
from stratafl.errors import DataError

Pixels = NDArray[np.uint8]
_GREY = ("1", "L", "LA", "I", "I;16", "F")


def stacked(cells: Column, *, channels: int | None, size: int | None, where: str) -> Pixels:
    """All images in an array, with so many channels (None: 1 if all are grey) and resized to a square of `size`."""
    if isinstance(cells, np.ndarray):
        return _arranged(cells, size, where)
    if channels is None:
        channels = 1 if all(_mode(cell, _named(cell, at, where)) in _GREY for at, cell in enumerate(cells)) else 3
    first = _decoded(cells[0], channels, size, _named(cells[0], 0, where))
    pixels = np.empty((len(cells), *first.shape), np.uint8)
    for at, cell in enumerate(cells):
        image = first if at == 0 else _decoded(cell, channels, size, _named(cell, at, where))
        if image.shape != first.shape:
            sizes = f"{first.shape[1]} × {first.shape[2]} and {image.shape[1]} × {image.shape[2]}"
            raise DataError(f"the images of '{where}' differ in size ({sizes}): set data.size to resize them")
        pixels[at] = image
    return pixels


def _arranged(array: NDArray[Any], size: int | None, where: str) -> Pixels:
    """An array of images with its channels in front of height and width."""
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        raise DataError(f"the images of '{where}' are {array.dtype} {list(array.shape)}, not uint8 [n, height, width]")
    if array.ndim == 3:
        array = array[:, None]
    elif array.shape[3] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if size is not None and array.shape[2:] != (size, size):
        image = needed("PIL.Image", "images")
        planes = [[_resized(image.fromarray(plane), size) for plane in sample] for sample in array]
        return np.array(planes, dtype=np.uint8)
    return np.ascontiguousarray(array)


def _named(cell: Any, at: int, where: str) -> str:
    return f"'{cell}'" if isinstance(cell, Path) else f"the image in row {at + 1} of '{where}'"


def _decoded(cell: Any, channels: int, size: int | None, name: str) -> Pixels:
    with _opened(cell, name) as opened:
        try:
            image = opened.convert("L" if channels == 1 else "RGB")
        except Exception as error:  # every format has its own errors for a damaged file
            raise DataError(f"{name} cannot be decoded ({error}): replace it or remove it") from error
        pixels = np.asarray(image if size is None else _resized(image, size), dtype=np.uint8)
    return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _resized(image: Any, size: int) -> Any:
    bilinear = needed("PIL.Image", "images").Resampling.BILINEAR
    return image if image.size == (size, size) else image.resize((size, size), bilinear)


def _mode(cell: Any, name: str) -> str:
    with _opened(cell, name) as opened:
        return str(opened.mode)


def _opened(cell: Any, name: str) -> Any:
    image = needed("PIL.Image", "images")
    try:
        return image.open(cell if isinstance(cell, Path) else BytesIO(cell))
    except (OSError, TypeError, image.DecompressionBombError) as error:
        raise DataError(f"{name} is not an image that can be read") from error


def are_images(cells: Column) -> bool:
    """Whether these are encoded images or files of images."""
    return isinstance(cells, list) and bool(cells) and isinstance(cells[0], bytes | Path)


def are_elsewhere(cells: Column, place: Path) -> bool:
    """Whether these are files of images, and one of them is not in the folder that is read."""
    folder = os.path.join(os.path.abspath(place), "")
    files = [cell for cell in cells if isinstance(cell, Path)] if isinstance(cells, list) else []
    return any(not os.path.abspath(file).startswith(folder) for file in files)
