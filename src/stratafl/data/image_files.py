"""One encoded image: what its header says, and its pixels without loss, or a sentence about why it is refused.

Grey images of 8 and 16 bits stay what they are, 32 bits become floats, everything in colour is 8-bit RGB.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratafl.data.formats.packages import needed
from stratafl.errors import DataError

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
_GREY = ("1", "L", "LA", "La")
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N")
_EXACT = 2**24  # up to here a float of 32 bits holds every whole number


class Header(NamedTuple):
    """What is known of an image before it is decoded; `bits` are those of a channel."""

    mode: str
    bits: int
    grey: bool
    pixels: int


def header_of(cell: Any, name: str) -> Header:
    """The header of an image, if the image can be read without loss."""
    with _opened(cell, name) as opened:
        mode, bits = str(opened.mode), _bits(opened)
        _check_kind(opened, mode, bits, name)
        return Header(mode, bits, bits > 8 or mode in _GREY, opened.width * opened.height)


def pixels_of(cell: Any, channels: int, size: int | None, name: str) -> tuple[NDArray[Any], bool]:
    """An image as [channels, height, width], upright, and whether it had transparent pixels, which became white."""
    with _opened(cell, name) as opened:
        try:
            needed("PIL.ImageOps", "images").exif_transpose(opened, in_place=True)
            if _bits(opened) > 8:
                return np.repeat(_resized_plane(_deep(opened, name), size)[None], channels, 0), False
            image, transparent = _on_white(opened)
            image = image.convert("L" if channels == 1 else "RGB")
            pixels = np.asarray(image if size is None else _resized(image, size), dtype=np.uint8)
        except DataError:
            raise
        except Exception as error:  # every format has its own errors for a damaged file
            raise DataError(f"{name} cannot be decoded ({error}): replace it or remove it") from error
    return (pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)), transparent


def resized_planes(array: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Pixels [samples, channels, height, width] resized to a square."""
    image = needed("PIL.Image", "images")
    planes = [[_resized(image.fromarray(plane), size) for plane in sample] for sample in array]
    return np.array(planes, dtype=np.uint8)


@contextmanager
def _opened(cell: Any, name: str) -> Iterator[Any]:
    image = needed("PIL.Image", "images")
    with warnings.catch_warnings():
        warnings.simplefilter("error", image.DecompressionBombWarning)
        try:
            opened = image.open(cell if isinstance(cell, Path) else BytesIO(cell), formats=_FORMATS)
        except (image.DecompressionBombError, image.DecompressionBombWarning) as error:
            reason = str(error).partition(",")[0]
            raise DataError(f"{name} is too large to be decoded ({reason}): shrink it, or cut it up") from error
        except Exception as error:  # whatever the header of a damaged file leads to
            raise DataError(f"{name} is not an image that can be read ({', '.join(_FORMATS)})") from error
        with opened:
            yield opened


def _bits(opened: Any) -> int:
    if opened.mode in _DEEP or (opened.mode == "I" and opened.format in ("PNG", "PPM")):
        return 16
    return 32 if opened.mode in ("I", "F") else 8


def _check_kind(opened: Any, mode: str, bits: int, name: str) -> None:
    frames = getattr(opened, "n_frames", 1)
    if frames > 1 and opened.format != "MPO":  # a photograph whose other frames are previews of it
        raise DataError(f"{name} has {frames} frames, and a sample is one image: save every frame as a file of its own")
    if bits == 8 and _has_deep_channels(opened):
        raise DataError(
            f"{name} has 16 bits in each of several channels, and only 8 of them can be read: save it as grey with "
            "16 bits or as colours with 8, or give the samples as arrays (npz)"
        )
    if mode == "LAB" or (bits == 16 and "transparency" in opened.info):
        kind = "mode LAB" if mode == "LAB" else "16 bits and transparent pixels"
        raise DataError(f"{name} has {kind}, which cannot be read without loss: save it as RGB, or as plain grey")


def _has_deep_channels(opened: Any) -> bool:
    """Whether the decoder would drop the lower byte of every value: of PNG and TIFF, and of PPM."""
    for tile in opened.tile:
        told = tile[3] if isinstance(tile[3], tuple) else (tile[3],)
        if isinstance(told[0], str) and ";16" in told[0]:
            return True
        if opened.format == "PPM" and len(told) > 1 and isinstance(told[1], int) and told[1] > 255:
            return True
    return False


def _deep(opened: Any, name: str) -> NDArray[Any]:
    """A grey image of 16 bits, or of 32 as floats."""
    plane = np.asarray(opened)
    if _bits(opened) == 16:
        return plane.astype(np.uint16)
    if plane.dtype.kind == "i" and max(-int(plane.min()), int(plane.max())) > _EXACT:
        raise DataError(
            f"{name} has whole numbers from {plane.min():,} to {plane.max():,}, more than a float of 32 bits can hold: "
            "save it with 16 bits"
        )
    return plane.astype(np.float32)


def _on_white(opened: Any) -> tuple[Any, bool]:
    if not opened.has_transparency_data:
        return opened, False
    image = needed("PIL.Image", "images")
    colours = opened.convert("RGBA")
    if colours.getextrema()[3][0] == 255:
        return colours, False
    return image.alpha_composite(image.new("RGBA", colours.size, "white"), colours), True


def _resized(image: Any, size: int) -> Any:
    bilinear = needed("PIL.Image", "images").Resampling.BILINEAR
    return image if image.size == (size, size) else image.resize((size, size), bilinear)


def _resized_plane(plane: NDArray[Any], size: int | None) -> NDArray[Any]:
    """As `_resized`, in floats, because not all versions resize 16 bits."""
    if size is None or plane.shape == (size, size):
        return plane
    image = needed("PIL.Image", "images").fromarray(plane.astype(np.float32))
    resized = np.asarray(_resized(image, size))
    return np.rint(resized).clip(0, 65535).astype(np.uint16) if plane.dtype == np.uint16 else resized
