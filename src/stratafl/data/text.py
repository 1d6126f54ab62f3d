"""Texts as tokens: lower case, punctuation split off, a vocabulary from the training texts, sequences of one length."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

SPECIALS = ("<pad>", "<cls>", "<unk>", "<eos>")
PAD, CLS, UNKNOWN = 0, 1, 2
LENGTH = 200
_APART = {sign: f" {sign} " for sign in "'.,()!?"}
_SIGNS = str.maketrans(_APART | {'"': "", ";": " ", ":": " "})


def tokens(text: str) -> list[str]:
    """The words and signs of a text, as torchtext's `basic_english` splits it."""
    return text.lower().replace("<br />", " ").translate(_SIGNS).split()


def vocabulary(texts: Iterable[str], most: int | None = None) -> dict[str, int]:
    """Ids of the special tokens, then of all others by falling frequency and then by alphabet; `most` in all."""
    counts = Counter(token for text in texts for token in tokens(text))
    for special in SPECIALS:
        counts.pop(special, None)
    ranked = sorted(counts, key=lambda token: (-counts[token], token))
    return {token: at for at, token in enumerate([*SPECIALS, *ranked][:most])}


def encoded(texts: Sequence[str], ids: dict[str, int], length: int = LENGTH) -> NDArray[np.int64]:
    """Each text as <cls> and its tokens, cut or padded to one length."""
    rows = np.full((len(texts), length), PAD, np.int64)
    for row, text in zip(rows, texts, strict=True):
        sequence = [CLS, *(ids.get(token, UNKNOWN) for token in tokens(text))][:length]
        row[: len(sequence)] = sequence
    return rows
