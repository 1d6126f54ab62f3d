"""Samples of a catalogue data set, read from its published files.

Texts become tokens by a vocabulary of the training texts, as in publications, unless `data.tokens` says otherwise.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratafl.data import formats
from stratafl.data.catalogue import Dataset
from stratafl.data.formats.columns import Column, Request, joined_splits, numbers_or_texts
from stratafl.data.images import Content, are_elsewhere, stack_images
from stratafl.data.labels import numbered, within
from stratafl.data.reading import Reading, half, text_content
from stratafl.data.samples import Samples
from stratafl.data.texts import SPECIALS, UNKNOWN, sequences, tokens
from stratafl.errors import DataError

LENGTH = 200  # tokens of a published text, unless data.length is set


def published_samples(name: str, dataset: Dataset, place: Path, reading: Reading) -> Samples:
    """The publishers' training samples first, then their test samples."""
    request = Request(dataset.content, dataset.label, dataset.owner, only=True, limit=reading.limit)
    splits = formats.read(place, request, dataset.files)
    if "train" not in splits:
        raise DataError(f"'{place}' has no training samples of {name}, only: {', '.join(splits)}")
    wanted = {split: splits[split] for split in ("train", dataset.tests) if split in splits}
    columns, tests = joined_splits(wanted, place)
    if dataset.owner is not None:
        columns, tests = reading.rows_of_owners(columns, tests, dataset.owner, place)
    cells, where = columns[dataset.label], str(place)
    content = _decoded(columns[dataset.content], tests, dataset, reading, where)
    labels = numbered(numbers_or_texts(cells) if isinstance(cells, list) else cells, where) - dataset.first
    return Samples(
        x=content.x,
        y=within(labels, dataset.classes, where),
        classes=dataset.classes,
        tests=tests if tests.any() else None,
        owner=None if dataset.owner is None else np.asarray(columns[dataset.owner]),
        scaling=None if dataset.text else half(content.x.dtype),
        name=name,
        mode=content.mode,
        remark=content.remark,
        elsewhere=are_elsewhere(columns[dataset.content], place),
        text=content.text,
    )


def _decoded(cells: Column, tests: NDArray[np.bool_], dataset: Dataset, reading: Reading, where: str) -> Content:
    if not dataset.text:
        size = reading.size or dataset.size
        return stack_images(cells, channels=dataset.shape[0], size=size, where=where, limit=reading.limit)
    if not all(isinstance(cell, str) for cell in cells):
        raise DataError(f"'{where}' has values that are not text in the column '{dataset.content}'")
    if reading.tokens != "auto":
        return text_content(list(cells), dataset.content, reading, where)
    length = reading.length or LENGTH
    reading.limit.check(len(cells) * length * 8, f"the {len(cells):,} texts of '{where}'")
    training = (text for text, test in zip(cells, tests, strict=True) if not test)
    return Content(encode_texts(list(cells), vocabulary(training, reading.vocabulary), length))


def vocabulary(texts: Iterable[str], most: int | None = None) -> dict[str, int]:
    """Ids of the special tokens, then of all others by falling frequency and alphabet; `most` in all."""
    counts = Counter(token for text in texts for token in tokens(text))
    for special in SPECIALS:
        counts.pop(special, None)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    return {token: at for at, token in enumerate([*SPECIALS, *ranked][:most])}


def encode_texts(texts: Sequence[str], ids: Mapping[str, int], length: int) -> NDArray[np.int64]:
    """Each text as <cls> and its tokens by a vocabulary, cut or padded to one length."""
    return sequences(texts, length, lambda text: (ids.get(token, UNKNOWN) for token in tokens(text)))
