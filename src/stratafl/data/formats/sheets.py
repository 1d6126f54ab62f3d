"""Sheets of images: PNG files with one image of 32 × 32 pixels per row, and JSON files with the labels."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratafl.data.formats.columns import Asked, Columns, split_of
from stratafl.data.image_files import header_of, pixels_of
from stratafl.data.memory_limit import MemoryLimit
from stratafl.errors import DataError

_SIDE = 32
_BYTES = 12  # for each pixel, in all copies of a sheet


def read_sheets(files: Sequence[Path], asked: Asked) -> Columns:
    """The rows of all sheets of a split in the order of their names, with the labels of its one list."""
    folder = files[0].parent
    split = split_of(files[0], folder)
    lists = [file for file in sorted(folder.glob("*l*s.json")) if split_of(file, folder) == split]
    if len(lists) != 1:
        raise DataError(f"'{folder}' needs one JSON list with the labels of its {split} images, not {len(lists)}")
    images = np.concatenate([_rows(sheet, asked.limit) for sheet in files])
    try:
        labels = np.array(json.loads(lists[0].read_text(encoding="utf-8")), dtype=np.int64)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"'{lists[0]}' is not a JSON list of labels: {error}") from error
    return {asked.content: images, asked.label: labels}


def _rows(sheet: Path, limit: MemoryLimit) -> NDArray[np.uint8]:
    name = f"'{sheet}'"
    limit.check(header_of(sheet, name).pixels * _BYTES, name)
    pixels, _ = pixels_of(sheet, 3, None, name)
    if pixels.shape[2] != _SIDE * _SIDE:
        raise DataError(f"'{sheet}' is {pixels.shape[2]} pixels wide, not {_SIDE * _SIDE}: one image per row")
    return pixels.transpose(1, 2, 0).reshape(-1, _SIDE, _SIDE, 3)
