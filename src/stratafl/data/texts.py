"""Texts: words become tokens, whole numbers that a model looks up, in sequences of one length.

A `TextEncoding` is kept with a run and applied to new texts. By default it hashes words: no vocabulary is needed, so
none leaves a site, and words that were never seen have tokens too. A trained encoding holds a tokenizer of the package
`tokenizers`, made from training texts; whoever has it can read parts of their words.
"""

import importlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.errors import DataError, first_line, shown

SPECIALS = ("<pad>", "<cls>", "<unk>", "<eos>")
PAD, CLS, UNKNOWN = 0, 1, 2
VOCABULARY, LENGTH = 8192, 128  # tokens of an encoding, and of a text, unless data.vocabulary and data.length are set
MAX_VOCABULARY, MAX_LENGTH = 2**24, 2**16
TOKENS = ("hashed", "trained")
_MAX_WORDS = 2**16  # hashes that are remembered
_NO_TOKENS = (str, bytes, int, float, type(None))  # cells that are no sequence of tokens
_BYTES_OF_TOKEN = 32  # of a text, for each of its tokens, are enough to train on
_APART = {sign: f" {sign} " for sign in "'.,()!?"}
_SIGNS = str.maketrans(_APART | {'"': "", ";": " ", ":": " "})


def tokens(text: str) -> list[str]:
    """The words and signs of a text, split as by torchtext's `basic_english`."""
    return text.lower().replace("<br />", " ").translate(_SIGNS).split()


@short_repr
@dataclass(frozen=True)
class TextEncoding:
    """How texts become tokens: by hashing, or by a trained `tokenizer` (its JSON); `column` is where a table has them.

    Tokens are below `vocabulary`: 0 pads a text to `length`, 1 begins it, and 2 is a word that a tokenizer lacks.
    """

    vocabulary: int = VOCABULARY
    length: int = LENGTH
    column: str = ""
    tokenizer: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("vocabulary", self.vocabulary, len(SPECIALS) + 1, MAX_VOCABULARY),
            ("length", self.length, 2, MAX_LENGTH),
        ):
            if type(value) is not int or not least <= value <= most:
                raise DataError(f"the {name} of texts is {value!r}: choose a whole number from {least} to {most:,}")

    def applied(self, texts: Sequence[str], where: str = "the texts") -> NDArray[np.int64]:
        """The tokens of texts, `[n, length]`: cut, or padded with 0. A missing text has none."""
        plain = [text_in_cell(cell, row, where) for row, cell in enumerate(texts, start=1)]
        if self.tokenizer:
            return sequences(plain, self.length, self._trained_tokens)
        number = lru_cache(_MAX_WORDS)(self.number)
        return sequences(plain, self.length, lambda text: map(number, tokens(text)))

    def coded(self, values: Any) -> Any:
        """Texts as tokens: a list, an array, or the column of a table; numbers stay as they are."""
        if values is None or isinstance(values, str | bytes):
            raise DataError(f"x is {'None' if values is None else 'a single text'}: give a list of texts")
        kind = type(values)
        names = list(values.column_names if hasattr(kind, "column_names") else getattr(values, "columns", ()))
        if names and self.column not in names:
            raise DataError(f"x has no column '{self.column}', only: {', '.join(map(shown, names))}")
        cells = values[self.column] if names else values
        scalars = isinstance(cells, list | tuple) and all(isinstance(cell, _NO_TOKENS) for cell in cells)
        return self.applied(list(cells), "x") if scalars or holds_texts(cells) else values

    def number(self, word: str) -> int:
        """The token of a word by hashing; the same on every machine."""
        digest = blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
        return len(SPECIALS) + int.from_bytes(digest, "big") % (self.vocabulary - len(SPECIALS))

    def _trained_tokens(self, text: str) -> Iterable[int]:
        ids: list[int] = self._loaded.encode(text).ids
        return ids

    @cached_property
    def _loaded(self) -> Any:
        try:
            return _tokenizers().Tokenizer.from_str(self.tokenizer)
        except DataError:
            raise
        except Exception as error:  # the package raises plain exceptions
            raise DataError(f"the tokenizer of these texts cannot be read: {first_line(error)}") from error

    def trained(self, texts: Iterable[str]) -> "TextEncoding":
        """With a tokenizer of byte pairs that is made from these texts."""
        package = _tokenizers()
        tokenizer = package.Tokenizer(package.models.BPE(unk_token=SPECIALS[UNKNOWN]))
        tokenizer.normalizer = package.normalizers.Sequence(
            [package.normalizers.NFKC(), package.normalizers.Lowercase()]
        )
        tokenizer.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()
        trainer = package.trainers.BpeTrainer(
            vocab_size=self.vocabulary, special_tokens=list(SPECIALS), show_progress=False
        )
        tokenizer.train_from_iterator(texts, trainer)
        return replace(self, tokenizer=_canonical(tokenizer.to_str()))

    def note(self) -> str:
        """What a sample is, and what the encoding gives away of texts."""
        sample = f"a sample is the text in '{self.column}', as at most {self.length} of {self.vocabulary:,} tokens"
        if not self.tokenizer:
            return f"{sample}: a hash of each word, so no vocabulary leaves a site"
        return f"{sample}, by a tokenizer: anyone who has it can read parts of words of the training texts"

    def to_table(self) -> dict[str, Any]:
        return asdict(self)


def text_encoding_from(table: Mapping[str, Any]) -> TextEncoding:
    """The opposite of `to_table`; a ValueError says what is wrong with the table."""
    kinds = {"vocabulary": int, "length": int, "column": str, "tokenizer": str}
    if not isinstance(table, Mapping) or set(table) != set(kinds):
        raise ValueError(f"its text needs the keys {', '.join(kinds)}")
    for key, kind in kinds.items():
        if type(table[key]) is not kind:
            raise ValueError(f"its text.{key} is {shown(table[key], 40)}, not {kind.__name__}")
    return TextEncoding(**table)


def text_in_cell(cell: Any, row: int, where: str) -> str:
    """A cell as text; a missing one is empty, and anything else than text is refused."""
    if cell is None or (isinstance(cell, float) and cell != cell):
        return ""
    if not isinstance(cell, str):
        raise DataError(f"row {row} of {where} is {shown(cell, 40)} ({type(cell).__name__}): give texts")
    return cell


def holds_texts(values: Any) -> bool:
    """Whether values are texts, and not numbers: a list, an array or a column of a table."""
    first = next((cell for cell in values if cell is not None), None) if isinstance(values, list | tuple) else None
    return isinstance(first, str) or getattr(getattr(values, "dtype", None), "kind", "") in ("O", "U", "T")


def are_texts(values: Any) -> bool:
    """Whether samples are a list or an array of texts."""
    kind = getattr(getattr(values, "dtype", None), "kind", "")
    first = next((cell for cell in values if cell is not None), None) if isinstance(values, list | tuple) else None
    return isinstance(first, str) or (kind in ("O", "U", "T") and len(values) > 0 and isinstance(values[0], str))


def trimmed(coded: NDArray[np.int64], encoding: TextEncoding) -> tuple[NDArray[np.int64], TextEncoding]:
    """Without columns of pads alone: the length is the power of two that holds the longest text, or the whole."""
    longest = int(np.flatnonzero((coded != PAD).any(0)).max(initial=0)) + 1
    length = min(encoding.length, 1 << max(1, (longest - 1).bit_length()))
    return np.ascontiguousarray(coded[:, :length]), replace(encoding, length=length)


def cut_texts(coded: NDArray[np.int64]) -> int:
    """How many texts fill their sequence, so that their end may be missing."""
    return int((coded[:, -1] != PAD).sum())


def sequences(texts: Sequence[str], length: int, numbers: Callable[[str], Iterable[int]]) -> NDArray[np.int64]:
    """Each text as <cls> and the tokens of its words, cut or padded to one length."""
    rows = np.full((len(texts), length), PAD, np.int64)
    for row, text in zip(rows, texts, strict=True):
        sequence = [CLS, *numbers(text)][:length]
        row[: len(sequence)] = sequence
    return rows


# Texts before a tokenizer is trained, which has to wait until training samples are known


def text_bytes(texts: Sequence[str], length: int) -> NDArray[np.uint8]:
    """Texts as rows of UTF-8, padded with 0, cut where no token of theirs is used."""
    encoded = [text.replace("\0", " ").encode("utf-8", "replace")[: length * _BYTES_OF_TOKEN] for text in texts]
    rows = np.zeros((len(encoded), max(1, *map(len, encoded))), np.uint8)
    for row, data in zip(rows, encoded, strict=True):
        row[: len(data)] = np.frombuffer(data, np.uint8)
    return rows


def decoded_texts(rows: NDArray[np.uint8]) -> list[str]:
    """The texts of rows that `text_bytes` made."""
    return [row.tobytes().rstrip(b"\0").decode("utf-8", "ignore") for row in rows]


def _canonical(tokenizer: str) -> str:
    return json.dumps(json.loads(tokenizer), ensure_ascii=False, separators=(",", ":"))


def _tokenizers() -> Any:
    try:
        return importlib.import_module("tokenizers")
    except ImportError as error:
        raise DataError(
            "data.tokens = 'trained' needs the package 'tokenizers': run pip install 'stratafl[text]', or set it to "
            "'hashed'"
        ) from error
