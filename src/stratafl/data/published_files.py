"""Samples of a catalogue data set, read from its published files; texts become tokens.

Texts are lower case, with punctuation split off, a vocabulary from the training texts and sequences of one length.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from stratafl.data import formats
from stratafl.data.catalogue import Dataset
from stratafl.data.formats.columns import Column, Request, joined_splits, numbers_or_texts
from stratafl.data.images import Content, are_elsewhere, stack_images
from stratafl.data.labels import numbered, within
from stratafl.data.reading import Reading, half
from stratafl.data.samples import Samples
from stratafl.errors import DataError

SPECIALS = ("<pad>", "<cls>", "<unk>", "<eos>")
PAD, CLS, UNKNOWN = 0, 1, 2
LENGTH = 200
_APART = {sign: f" {sign} " for sign in "'.,()!?"}
_SIGNS = str.maketrans(_APART | {'"': "", ";": " ", ":": " "})


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
    )


def _decoded(cells: Column, tests: NDArray[np.bool_], dataset: Dataset, reading: Reading, where: str) -> Content:
    if not dataset.text:
        size = reading.size or dataset.size
        return stack_images(cells, channels=dataset.shape[0], size=size, where=where, limit=reading.limit)
    if not all(isinstance(cell, str) for cell in cells):
        raise DataError(f"'{where}' has values that are not text in the column '{dataset.content}'")
    training = (text for text, test in zip(cells, tests, strict=True) if not test)
    reading.limit.check(len(cells) * LENGTH * 8, f"the {len(cells):,} texts of '{where}'")
    return Content(encode_texts(list(cells), vocabulary(training, reading.vocabulary)))


def tokens(text: str) -> list[str]:
    """The words and signs of a text, split as by torchtext's `basic_english`."""
    return text.lower().replace("<br />", " ").translate(_SIGNS).split()


def vocabulary(texts: Iterable[str], most: int | None = None) -> dict[str, int]:
    """Ids of the special tokens, then of all others by falling frequency and alphabet; `most` in all."""
    counts = Counter(token for text in texts for token in tokens(text))
    for special in SPECIALS:
        counts.pop(special, None)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    return {token: at for at, token in enumerate([*SPECIALS, *ranked][:most])}


def encode_texts(texts: Sequence[str], ids: dict[str, int], length: int = LENGTH) -> NDArray[np.int64]:
    """Each text as <cls> and its tokens, cut or padded to one length."""
    rows = np.full((len(texts), length), PAD, np.int64)
    for row, text in zip(rows, texts, strict=True):
        sequence = [CLS, *(ids.get(token, UNKNOWN) for token in tokens(text))][:length]
        row[: len(sequence)] = sequence
    return rows
