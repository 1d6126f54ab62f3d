"""Image files: class folders of images, sheets of images, and how one encoded image is decoded without loss.

Grey images of 8 and 16 bits stay as they are, 32 bits become floats, everything in colour is 8-bit RGB.
"""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratafl.data.formats.columns import Columns, Request, import_extra, is_split, split_of
from stratafl.data.memory_limit import MemoryLimit
from stratafl.errors import DataError

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
_GREY = ("1", "L", "LA", "La")
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
_EXACT = 2**24  # up to here a float of 32 bits holds every whole number
_ANNOTATIONS = "*_annotations.txt"  # Tiny-ImageNet lists the classes of its validation images in a file
_SHEET_SIDE, _SHEET_BYTES = 32, 12  # pixels of an image in a sheet; bytes for each pixel, in all copies of a sheet


class ImageHeader(NamedTuple):
    """The header of an image, read before it is decoded; `bits` is per channel."""

    mode: str
    bits: int
    grey: bool
    pixels: int


def read_class_folders(files: Sequence[Path], request: Request) -> Columns:
    listed: dict[str, str] = {}
    for lines in sorted({listing for file in files for listing in file.parent.parent.glob(_ANNOTATIONS)}):
        rows = [line.split("\t") for line in lines.read_text(encoding="utf-8").splitlines()]
        listed |= {row[0]: row[1] for row in rows if len(row) > 1}
    return {
        request.content: list(files),
        request.label: [listed.get(file.name) or _class_of(file, request.root) for file in files],
    }


def _class_of(file: Path, root: Path) -> str:
    folders = file.relative_to(root).parts[:-1]
    folders = folders[1:] if folders and is_split(folders[0]) else folders
    if not folders:
        raise DataError(f"'{file}' is not in a class folder: put it into CLASS/, or train/CLASS/ and test/CLASS/")
    return folders[0]


def read_sheets(files: Sequence[Path], request: Request) -> Columns:
    """PNG files with one image of 32 × 32 pixels per row, in the order of their names, and a JSON list of labels."""
    folder = files[0].parent
    split = split_of(files[0], folder)
    lists = [file for file in sorted(folder.glob("*l*s.json")) if split_of(file, folder) == split]
    if len(lists) != 1:
        raise DataError(f"'{folder}' has {len(lists)} JSON lists of labels for its {split} images: it needs one")
    images = np.concatenate([_rows(sheet, request.limit) for sheet in files])
    try:
        labels = np.array(json.loads(lists[0].read_text(encoding="utf-8")), dtype=np.int64)
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"'{lists[0]}' is not a JSON list of labels: {error}") from error
    return {request.content: images, request.label: labels}


def _rows(sheet: Path, limit: MemoryLimit) -> NDArray[np.uint8]:
    name = f"'{sheet}'"
    limit.check(header_of(sheet, name).pixels * _SHEET_BYTES, name)
    pixels, _ = pixels_of(sheet, 3, None, name)
    if pixels.shape[2] != _SHEET_SIDE**2:
        wide = f"'{sheet}' is {pixels.shape[2]} pixels wide"
        raise DataError(f"{wide}: give {_SHEET_SIDE**2}, one image of 32 × 32 in each row")
    return pixels.transpose(1, 2, 0).reshape(-1, _SHEET_SIDE, _SHEET_SIDE, 3)


def header_of(cell: Any, name: str) -> ImageHeader:
    """The header of an image; an image that cannot be read without loss is refused."""
    with _opened(cell, name) as opened:
        mode, bits = str(opened.mode), _bits(opened)
        frames = getattr(opened, "n_frames", 1)
        if frames > 1 and opened.format != "MPO":  # a photograph whose other frames are previews of it
            wrong = f"{name} has {frames} frames, but a sample is one image"
            raise DataError(f"{wrong}: save each frame as a separate file")
        if bits == 8 and _has_deep_channels(opened):
            advice = "save it as 16-bit grey or 8-bit colour, or give arrays (npz)"
            raise DataError(f"{name} has several channels of 16 bits, which cannot be read without loss: {advice}")
        if mode == "LAB" or (bits == 16 and "transparency" in opened.info):
            kind = "mode LAB" if mode == "LAB" else "16 bits and transparent pixels"
            raise DataError(f"{name} has {kind}, which cannot be read without loss: save it as RGB, or as plain grey")
        return ImageHeader(mode, bits, bits > 8 or mode in _GREY, opened.width * opened.height)


def pixels_of(cell: Any, channels: int, size: int | None, name: str) -> tuple[NDArray[Any], bool]:
    """An image as [channels, height, width], upright, and whether it had transparent pixels, which become white."""
    with _opened(cell, name) as opened:
        try:
            import_extra("PIL.ImageOps", "images").exif_transpose(opened, in_place=True)
            if _bits(opened) > 8:
                return np.repeat(_resized_plane(_deep(opened, name), size)[None], channels, 0), False
            image, transparent = _on_white(opened)
            image = image.convert("L" if channels == 1 else "RGB")
            pixels = np.asarray(image if size is None else _resized(image, size), dtype=np.uint8)
        except DataError:
            raise
        except Exception as error:  # every format raises its own errors for a damaged file
            raise DataError(f"{name} cannot be decoded ({error}): replace it or remove it") from error
    return (pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)), transparent


def resized_planes(array: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    image = import_extra("PIL.Image", "images")
    planes = [[_resized(image.fromarray(plane), size) for plane in sample] for sample in array]
    return np.array(planes, dtype=np.uint8)


@contextmanager
def _opened(cell: Any, name: str) -> Iterator[Any]:
    image = import_extra("PIL.Image", "images")
    with warnings.catch_warnings():
        warnings.simplefilter("error", image.DecompressionBombWarning)
        try:
            opened = image.open(cell if isinstance(cell, Path) else BytesIO(cell), formats=_FORMATS)
        except (image.DecompressionBombError, image.DecompressionBombWarning) as error:
            reason = str(error).partition(",")[0]
            raise DataError(f"{name} is too large to decode ({reason}): shrink it, or cut it into pieces") from error
        except Exception as error:  # the header of a damaged file may raise anything
            raise DataError(f"{name} is not a readable image: use one of {', '.join(_FORMATS)}") from error
        with opened:
            yield opened


def _bits(opened: Any) -> int:
    if opened.mode in _DEEP or (opened.mode == "I" and opened.format in ("PNG", "PPM")):
        return 16
    return 32 if opened.mode in ("I", "F") else 8


def _has_deep_channels(opened: Any) -> bool:
    """Whether the decoder of PNG, TIFF or PPM would drop the lower byte of every value."""
    for tile in opened.tile:
        options = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if isinstance(options[0], str) and ";16" in options[0]:
            return True
        if opened.format == "PPM" and len(options) > 1 and isinstance(options[1], int) and options[1] > 255:
            return True
    return False


def _deep(opened: Any, name: str) -> NDArray[Any]:
    """A grey image of 16 bits, or of 32 as floats."""
    plane = np.asarray(opened)
    if _bits(opened) == 16:
        return plane.astype(np.uint16)
    if plane.dtype.kind == "i" and max(-int(plane.min()), int(plane.max())) > _EXACT:
        numbers = f"{plane.min():,} to {plane.max():,}"
        raise DataError(f"{name} has numbers from {numbers}, too large for 32-bit floats: save it with 16 bits")
    return plane.astype(np.float32)


def _on_white(opened: Any) -> tuple[Any, bool]:
    if not opened.has_transparency_data:
        return opened, False
    image = import_extra("PIL.Image", "images")
    colours = opened.convert("RGBA")
    if colours.getextrema()[3][0] == 255:
        return colours, False
    return image.alpha_composite(image.new("RGBA", colours.size, "white"), colours), True


def _resized(image: Any, size: int) -> Any:
    bilinear = import_extra("PIL.Image", "images").Resampling.BILINEAR
    return image if image.size == (size, size) else image.resize((size, size), bilinear)


def _resized_plane(plane: NDArray[Any], size: int | None) -> NDArray[Any]:
    """As `_resized`, in floats, because not all versions of Pillow resize 16 bits."""
    if size is None or plane.shape == (size, size):
        return plane
    image = import_extra("PIL.Image", "images").fromarray(plane.astype(np.float32))
    resized = np.asarray(_resized(image, size))
    return np.rint(resized).clip(0, 65535).astype(np.uint16) if plane.dtype == np.uint16 else resized
