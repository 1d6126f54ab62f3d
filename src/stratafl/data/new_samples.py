"""Samples to predict: files as a site trains on them, with or without labels, read as was agreed on."""

from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.data import formats
from stratafl.data.formats.columns import IMAGES, Columns, Request, joined_splits
from stratafl.data.formats.npz_files import npz_arrays
from stratafl.data.images import stack_images
from stratafl.data.reading import Reading
from stratafl.data.sample_format import SampleFormat
from stratafl.data.user_files import LABELS, features
from stratafl.errors import DataError, shown

IMAGE_AXES = 3  # of a sample: channels, height, width


@short_repr
class NewSamples(NamedTuple):
    """Raw samples, and what each is called: a row from 1 on, or the file of an image."""

    x: NDArray[Any]
    names: tuple[str, ...]


def new_samples(place: Path, reading: Reading, agreed: SampleFormat) -> NewSamples:
    """The samples of a table, an npz file, an image or a folder of images; labels and clients are not looked at."""
    if not place.exists():
        raise DataError(f"there is no data file or folder '{place}'")
    if place.suffix == ".npz":
        arrays = npz_arrays(place, reading.limit)
        if "x" not in arrays:
            raise DataError(f"'{place}' has no array 'x', only: {', '.join(arrays) or 'none'}")
        return _numbered(arrays["x"])
    images = _images(place)
    if images and len(agreed.shape) == IMAGE_AXES:
        root = place if place.is_dir() else place.parent
        channels = agreed.shape[0]
        content = stack_images(images, channels=channels, size=reading.size, where=str(place), limit=reading.limit)
        return NewSamples(content.x, tuple(file.relative_to(root).as_posix() for file in images))
    columns, _ = joined_splits(
        formats.read(place, Request(label=reading.label or LABELS[0], limit=reading.limit)), place
    )
    return _numbered(features(_chosen(columns, reading, agreed, place), reading, place, owned=True).x)


def _numbered(x: NDArray[Any]) -> NewSamples:
    if x.ndim == 0:
        raise DataError("x is a single number: its first axis must count the samples")
    return NewSamples(x, tuple(map(str, range(1, len(x) + 1))))


def _images(place: Path) -> list[Any]:
    """Image files, if there is nothing else to read."""
    files = sorted(file for file in place.rglob("*") if file.is_file()) if place.is_dir() else [place]
    tables = [file for file in files if file.suffix.lower() in formats.SUFFIXES]
    return [] if tables else [file for file in files if file.suffix.lower() in IMAGES and file.name[0] != "."]


def _chosen(columns: Columns, reading: Reading, agreed: SampleFormat, place: Path) -> Columns:
    """The columns that a model is given, in the order that was agreed on."""
    if agreed.columns:
        for name in agreed.columns:
            if name not in columns:
                raise DataError(f"'{place}' lacks the column '{shown(name)}', only: {', '.join(map(shown, columns))}")
        return {name: columns[name] for name in agreed.columns}
    labels = (reading.label,) if reading.label else LABELS
    others = (*labels, reading.client or formats.CLIENT, reading.group)
    return {name: cells for name, cells in columns.items() if name not in others}
