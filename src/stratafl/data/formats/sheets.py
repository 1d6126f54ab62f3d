"""Sheets of images: PNG files with one image of 32 × 32 pixels per row, and JSON files with the labels."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratafl.data.formats.columns import Asked, Columns, split_of
from stratafl.data.formats.packages import needed
from stratafl.errors import DataError

_SIDE = 32


def read_sheets(files: Sequence[Path], asked: Asked) -> Columns:
    """The rows of all sheets of a split in the order of their names, with the labels of its one list."""
    folder = files[0].parent
    split = split_of(files[0], folder)
    lists = [file for file in sorted(folder.glob("*l*s.json")) if split_of(file, folder) == split]
    if len(lists) != 1:
        raise DataError(f"'{folder}' needs one JSON list with the labels of its {split} images, not {len(lists)}")
    images = np.concatenate([_rows(sheet) for sheet in files])
    try:
        labels = np.array(json.loads(lists[0].read_text(encoding="utf-8")), dtype=np.int64)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"'{lists[0]}' is not a JSON list of labels: {error}") from error
    return {asked.content: images, asked.label: labels}


def _rows(sheet: Path) -> NDArray[np.uint8]:
    image = needed("PIL.Image", "images")
    try:
        with image.open(sheet) as opened:
            pixels = np.asarray(opened.convert("RGB"))
    except (OSError, image.DecompressionBombError) as error:
        raise DataError(f"'{sheet}' is not an image: {error}") from error
    if pixels.shape[1] != _SIDE * _SIDE:
        raise DataError(f"'{sheet}' is {pixels.shape[1]} pixels wide, not {_SIDE * _SIDE}: one image per row")
    return pixels.reshape(-1, _SIDE, _SIDE, 3)
