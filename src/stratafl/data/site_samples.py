"""A site's own samples as a federation of one client, numbered, ordered and split as agreed.

What would depend on other sites' samples is taken from the format that all agree on: which class has which number, in
which order the columns come, how numbers are scaled. A split depends on the seed, the client's number and its own
samples, so that it is the split of a simulation that reads all sites' files together. `new_samples` reads samples to
predict, with or without labels.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.data import formats
from stratafl.data.federation import Federation
from stratafl.data.formats.columns import IMAGES, Columns
from stratafl.data.formats.npz_files import npz_arrays
from stratafl.data.images import stack_images
from stratafl.data.partitions import Assignment
from stratafl.data.reading import Reading
from stratafl.data.sample_format import SampleFormat
from stratafl.data.samples import Samples
from stratafl.data.splitting import SplitPlan, Splitter
from stratafl.data.tables.introduced_columns import IntroducedColumn, introduced_columns
from stratafl.data.tables.kinds import NUMBER
from stratafl.data.tables.table_encoding import TableEncoding
from stratafl.data.texts import TextEncoding, cut_texts
from stratafl.data.user_files import LABELS, features, read_columns
from stratafl.errors import DataError, shown

log = logging.getLogger("stratafl")
IMAGE_AXES = 3  # of a sample: channels, height, width


def site_federation(
    samples: Samples, agreed: SampleFormat, plan: SplitPlan, *, client: int, trains: bool = True
) -> Federation:
    """The federation of one client; a site that does not train tests on all of its samples."""
    samples = _numbered(_lengthened(_ordered(samples, agreed), agreed), agreed)
    if samples.owner is not None and len(np.unique(samples.owner)) > 1:
        named = ", ".join(f"'{shown(each)}'" for each in np.unique(samples.owner)[:3])
        raise DataError(f"'{samples.name}' has samples of several clients ({named} …): give the samples of this site")
    if not trains:
        return agreed.client({"test": (samples.x, samples.y)}, samples.name)
    parts = _parts(samples, plan, client)
    federation = agreed.client(
        {name: (samples.x[indices], samples.y[indices]) for name, (indices,) in parts.items()}, samples.name
    )
    return replace(federation, augmentation=samples.augmentation)


def _parts(samples: Samples, plan: SplitPlan, client: int) -> dict[str, Sequence[Any]]:
    splitter, tests = Splitter(samples.y, plan, samples.group, (samples.name,), first=client), samples.tests
    everything = np.arange(len(samples.x))
    assignment = Assignment([everything])
    if tests is not None:
        assignment = Assignment([everything[~tests]], [everything[tests]])
    return splitter.split_assignment(assignment)


def site_columns(samples: Samples, plan: SplitPlan, client: int) -> list[IntroducedColumn]:
    """What a site says of the columns of its table: kinds, and sums over its training samples."""
    (train,) = _parts(samples, plan, client)["train"]
    return introduced_columns(samples.codes, samples.x[train])


def with_agreed_codes(samples: Samples, table: TableEncoding, place: Path, reading: Reading) -> Samples:
    """The samples of a site with codes as all sites agree on, from the cells of its file."""
    columns, _ = read_columns(place, reading)
    own_texts = {column.name: column.values for column in samples.codes if column.kind == NUMBER}
    codes = table.reading_as_missing(own_texts).coded(columns, f"'{place}'")
    if len(codes) != len(samples.x):
        raise DataError(f"a part of '{place}' cannot be encoded: leave out data.subset, data.classes and data.owners")
    return replace(samples, x=codes, columns=table.names)


def _ordered(samples: Samples, agreed: SampleFormat) -> Samples:
    """The samples of a table with their columns in the order that all agree on."""
    if not agreed.columns or samples.columns == agreed.columns or agreed.preprocessing.table is not None:
        return samples
    for these, others, wrong in (
        (agreed.columns, samples.columns, "lacks the column"),
        (samples.columns, agreed.columns, "has a column that the federation has not agreed on,"),
    ):
        odd = [name for name in these if name not in others]
        if odd:
            raise DataError(f"'{samples.name}' {wrong} '{shown(odd[0])}': give {', '.join(map(shown, agreed.columns))}")
    places = [samples.columns.index(name) for name in agreed.columns]
    return replace(samples, x=samples.x[:, places], columns=agreed.columns)


def _lengthened(samples: Samples, agreed: SampleFormat) -> Samples:
    """Texts padded to the length of the longest one that any site has."""
    text = agreed.preprocessing.text
    if text is None or samples.text is None or samples.x.shape[1] >= text.length:
        return samples
    pads = np.zeros((len(samples.x), text.length - samples.x.shape[1]), samples.x.dtype)
    return replace(samples, x=np.concatenate([samples.x, pads], axis=1), text=text)


def _numbered(samples: Samples, agreed: SampleFormat) -> Samples:
    """The samples with the numbers of classes, or the numbers to predict, that all agree on.

    A reader numbers the labels of one site, and takes whole numbers for classes.
    """
    y: NDArray[Any] = np.asarray(samples.y)
    if agreed.classes is None:
        return replace(samples, y=y.astype(np.float64) if samples.names is None else _values(samples)[y])
    if y.dtype.kind == "f":
        raise DataError(f"'{samples.name}' has fractions as labels, but the federation has {agreed.classes} classes")
    if samples.names is not None:
        named = bool(agreed.preprocessing.classes)
        y = agreed.labels(y, samples.names).numpy() if named else _values(samples).astype(np.int64)[y]
    return replace(samples, y=y, classes=agreed.classes, names=agreed.preprocessing.classes or None)


def _values(samples: Samples) -> NDArray[np.float64]:
    """The numbers that the names of a site's classes are."""
    try:
        return np.array([float(name) for name in samples.names or ()])
    except ValueError:
        named = ", ".join(f"'{shown(each)}'" for each in (samples.names or ())[:3])
        raise DataError(f"the labels of '{samples.name}' are names ({named} …): give numbers, as agreed") from None


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
        text = agreed.preprocessing.text
        return _named_by_row(arrays["x"] if text is None else np.asarray(text.coded(arrays["x"])))
    images = _images(place)
    if images and len(agreed.shape) == IMAGE_AXES:
        root = place if place.is_dir() else place.parent
        channels = agreed.shape[0]
        content = stack_images(images, channels=channels, size=reading.size, where=str(place), limit=reading.limit)
        return NewSamples(content.x, tuple(file.relative_to(root).as_posix() for file in images))
    columns, _ = read_columns(place, reading)
    table = agreed.preprocessing.table
    if table is not None:
        return _named_by_row(table.coded(columns, f"'{place}'"))
    if agreed.preprocessing.text is not None:
        return _named_by_row(_tokens(columns, agreed.preprocessing.text, place))
    return _named_by_row(features(_chosen(columns, reading, agreed, place), reading, place, owner=None).x)


def _tokens(columns: Columns, text: TextEncoding, place: Path) -> NDArray[np.int64]:
    if text.column not in columns:
        listed = ", ".join(map(shown, columns))
        raise DataError(f"'{place}' lacks the column '{shown(text.column)}' with the texts, only: {listed}")
    coded = text.applied(list(columns[text.column]), f"the column '{shown(text.column)}' of '{place}'")
    if cut := cut_texts(coded):
        log.warning("%s of %s have %d tokens or more: the model reads no more", cut, len(coded), text.length)
    return coded


def _named_by_row(x: NDArray[Any]) -> NewSamples:
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
