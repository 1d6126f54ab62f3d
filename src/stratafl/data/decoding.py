"""From the files of a data set of the catalogue to its samples."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratafl.data import formats
from stratafl.data.formats.columns import Column, in_a_row, numbers_or_texts
from stratafl.data.images import Content, are_elsewhere, stacked
from stratafl.data.labels import numbered, within
from stratafl.data.published import Published
from stratafl.data.reading import Reading, half
from stratafl.data.samples import Samples
from stratafl.data.text import LENGTH, encoded, vocabulary
from stratafl.errors import DataError


def decoded(name: str, record: Published, place: Path, reading: Reading) -> Samples:
    """The publishers' training samples first, then their tests."""
    splits = formats.read(place, record.asked()._replace(limit=reading.limit), record.files)
    if "train" not in splits:
        raise DataError(f"'{place}' has no training samples of {name}, only: {', '.join(splits)}")
    wanted = {split: splits[split] for split in ("train", record.tests) if split in splits}
    columns, tests = in_a_row(wanted, place)
    if record.owner is not None:
        columns, tests = reading.rows_of_owners(columns, tests, record.owner, place)
    content = _content(columns[record.content], tests, record, reading, str(place))
    return Samples(
        x=content.x,
        y=_labels(columns[record.label], record, str(place)),
        classes=record.classes,
        tests=tests if tests.any() else None,
        owner=None if record.owner is None else np.asarray(columns[record.owner]),
        scaling=None if record.text else half(content.x.dtype),
        name=name,
        mode=content.mode,
        remark=content.remark,
        elsewhere=are_elsewhere(columns[record.content], place),
    )


def _labels(cells: Column, record: Published, where: str) -> NDArray[np.int64]:
    labels = numbered(numbers_or_texts(cells) if isinstance(cells, list) else cells, where)
    return within(labels - record.first, record.classes, where)


def _content(cells: Column, tests: NDArray[np.bool_], record: Published, reading: Reading, where: str) -> Content:
    if not record.text:
        size = reading.size or record.size
        return stacked(cells, channels=record.shape[0], size=size, where=where, limit=reading.limit)
    if not all(isinstance(cell, str) for cell in cells):
        raise DataError(f"'{where}' has something else than texts in its column '{record.content}'")
    training = (text for text, test in zip(cells, tests, strict=True) if not test)
    reading.limit.check(len(cells) * LENGTH * 8, f"the {len(cells):,} texts of '{where}'")
    return Content(encoded(list(cells), vocabulary(training, reading.vocabulary)))
