"""Reading options: which columns, which image size, which owners, and which scaling."""

import logging
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from stratafl.core.annotations import Named
from stratafl.core.records import record
from stratafl.data.formats.columns import Column, Columns, taken
from stratafl.data.images import Content
from stratafl.data.labels import TARGETS
from stratafl.data.memory_limit import USUAL_LIMIT, MemoryLimit
from stratafl.data.preprocessing import Scaling
from stratafl.data.samples import Samples, arrays
from stratafl.data.texts import LENGTH, TOKENS, VOCABULARY, TextEncoding, cell_text, cut_texts, text_bytes, trimmed
from stratafl.errors import DataError, counted

log = logging.getLogger("stratafl")
HALF = Scaling((0.5,), (0.5,))
_MAX_PIXEL = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}
_NOT_OPTIONS = ("seed", "limit")
NORMALISED = ("auto", "half", "unit", "channel", "columns", "pooled", "images", "none")
_TABLES = {"columns": "client", "pooled": "x"}  # how columns are standardised: see `Federation.standardised`
FLAT = 0.1  # deviation of pixels, of their range: photographs and digits have 0.2 to 0.3
_CHUNK_IMAGES = 4096  # images; all of them as numbers would take eight times their bytes


@record
class Reading:
    """The settings of reading; None leaves a setting to the data set or the table.

    If samples have owners, `owners` of them are drawn by `seed` among those with `fewest` to `most` samples.
    """

    path: str | None = None
    normalise: Annotated[str, Named(NORMALISED)] = "auto"
    label: str | None = None
    client: str | None = None
    group: str | None = None
    targets: Annotated[str, Named(TARGETS)] = "auto"
    size: int | None = None
    vocabulary: int | None = None
    tokens: Annotated[str, Named(("auto", *TOKENS))] = "auto"
    length: int | None = None
    owners: int | None = None
    fewest: int | None = None
    most: int | None = None
    seed: int = 0
    limit: MemoryLimit = USUAL_LIMIT

    def given(self) -> list[str]:
        """Options that are not at their default; `images`, which older runs have, is one only for a table."""
        options = [f for f in fields(self) if f.name not in _NOT_OPTIONS]
        return [f.name for f in options if getattr(self, f.name) not in (f.default, "images")]

    def _chooses_owners(self) -> bool:
        return any(limit is not None for limit in (self.owners, self.fewest, self.most))

    def _rows(self, owner: Column | None, where: str) -> NDArray[np.int64]:
        if owner is None:
            wrong = f"'{where}' has no column with the owners of its samples"
            raise DataError(f"{wrong}: leave out data.owners, data.fewest and data.most")
        names, ids, counts = np.unique(np.asarray(owner), return_inverse=True, return_counts=True)
        least, most = self.fewest or 0, self.most or len(ids)
        fitting = np.flatnonzero((counts >= least) & (counts <= most))
        if len(fitting) < (self.owners or 1):
            few = f"'{where}' has {len(fitting)} owners (of {len(names)}) with {least} to {most} samples"
            raise DataError(f"{few}, fewer than {self.owners or 1}: change data.owners, data.fewest or data.most")
        if self.owners is not None:
            fitting = np.random.default_rng(self.seed).permutation(fitting)[: self.owners]
        return np.flatnonzero(np.isin(ids, fitting))

    def rows_of_owners(
        self, columns: Columns, tests: NDArray[np.bool_], owner: str | None, where: Path
    ) -> tuple[Columns, NDArray[np.bool_]]:
        """Only the rows of the owners that are wanted, before anything is decoded."""
        if not self._chooses_owners():
            return columns, tests
        rows = self._rows(None if owner is None else columns[owner], str(where))
        return {name: taken(cells, rows) for name, cells in columns.items()}, tests[rows]

    def of_owners(self, samples: Samples) -> Samples:
        if not self._chooses_owners():
            return samples
        rows = self._rows(samples.owner, samples.name)
        selected: dict[str, Any] = {name: array[rows] for name, array in arrays(samples).items()}
        return replace(samples, **selected)

    def standardisation(self, x: Any) -> str | None:
        """How columns of these samples are standardised, in words of `Federation.standardised`; None: not."""
        return _TABLES.get("columns" if self.normalise == "auto" and is_table(x) else self.normalise)

    def scaled(self, samples: Samples) -> Samples:
        """The samples with the scaling of `normalise`; images have that of `auto` already."""
        if self.targets == "scaled":
            samples = replace(samples, standardise=(*samples.standardise, "y"))
        if self.normalise in _TABLES and samples.x.ndim != 2:
            shape = "×".join(map(str, samples.x.shape[1:]))
            wrong = f"scales tables of numbers, but a sample of '{samples.name}' is {shape}"
            raise DataError(f"data.normalise = '{self.normalise}' {wrong}")
        way = self.standardisation(samples.x)
        if way is not None or self.normalise == "none":
            others = tuple(what for what in samples.standardise if what not in _TABLES.values())
            samples = replace(samples, standardise=(*others, *([way] if way else [])))
        if way is not None or self.normalise in ("auto", "images"):
            _say_if_flat(samples)
            return samples
        if self.normalise != "none" and samples.x.dtype not in _MAX_PIXEL:
            or_columns = " or set it to 'columns'" if samples.x.ndim == 2 else ""
            kind = f"the samples of '{samples.name}' are {samples.x.dtype}"
            wrong = f"data.normalise = '{self.normalise}' scales pixels of 8 or 16 bits, but {kind}"
            raise DataError(f"{wrong}: leave it at 'auto'{or_columns}")
        return replace(samples, scaling=_scaling(self.normalise, samples))


def text_content(cells: Column, column: str, reading: Reading, where: str) -> Content:
    """Texts as tokens, or as bytes if a tokenizer is trained once the training samples are known."""
    encoding = TextEncoding(reading.vocabulary or VOCABULARY, reading.length or LENGTH, column)
    texts = [cell_text(cell, row, f"the column '{column}' of '{where}'") for row, cell in enumerate(cells, start=1)]
    blank = sum(not text.strip() for text in texts)
    if blank == len(texts):
        raise DataError(f"'{where}' has no text in the column '{column}': all {len(texts):,} cells are empty")
    remarks = [f"{counted(blank, 'text')} of {len(texts):,} in '{column}' are empty"] if blank else []
    reading.limit.check(len(texts) * encoding.length * 8, f"the {len(texts):,} texts of '{where}'")
    if reading.tokens == "trained":
        return Content(text_bytes(texts, encoding.length), remark="; ".join(remarks), text=encoding)
    coded = encoding.applied(texts)
    if cut := cut_texts(coded):
        share = f"{counted(cut, 'text')} of {len(texts):,} have {encoding.length} tokens or more"
        remarks.append(f"{share}, and what follows is cut off: set data.length to use more")
    coded, encoding = trimmed(coded, encoding)
    return Content(coded, remark="; ".join(remarks), text=encoding)


def is_table(x: Any) -> bool:
    """Whether samples are rows of numbers with fractions, and neither images nor tokens."""
    return x.ndim == 2 and str(x.dtype).removeprefix("torch.").startswith(("float", "bfloat"))


def check_group(group: str | None, label: str, client: str | None) -> None:
    """Refuse a column of groups that has another role already."""
    for what, taken_by in (("label", label), ("client", client)):
        if group is not None and group == taken_by:
            advice = "name a column whose samples belong together, such as patient_id, or leave it out"
            raise DataError(f"data.group = '{group}' is the column of the {what}s: {advice}")


def half(dtype: np.dtype[Any]) -> Scaling | None:
    """The scaling of pixels of this type to −1 … 1; None for floats, whose range is unknown."""
    return replace(HALF, maximum=_MAX_PIXEL[dtype]) if dtype in _MAX_PIXEL else None


def _scaling(normalise: str, samples: Samples) -> Scaling | None:
    if normalise == "channel":
        return channel_scaling(samples)
    if normalise == "none":  # pixels of 16 bits need a scaling, because whole numbers without one are tokens
        deep = samples.x.dtype == np.uint16 and samples.x.ndim > 2
        return Scaling((0.0,), (1 / 65535,), 65535) if deep else None
    return replace(HALF if normalise == "half" else Scaling(), maximum=_MAX_PIXEL[samples.x.dtype])


def _say_if_flat(samples: Samples) -> None:
    """Log that pixels of 16 bits use so little of their range that training may not see them."""
    if samples.x.dtype != np.uint16 or samples.scaling is None:
        return
    images = samples.x[:: max(1, len(samples.x) // _CHUNK_IMAGES)][:_CHUNK_IMAGES]
    used = float(images.std()) / _MAX_PIXEL[samples.x.dtype]
    if used < FLAT:
        log.warning(
            "the pixels of '%s' vary by %.1f %% of the range of 16 bits, so training may learn next to nothing: set "
            "data.normalise=channel, or store them with the contrast of 8 bits",
            samples.name,
            100 * used,
        )


def channel_scaling(samples: Samples) -> Scaling:
    """Mean and deviation of each channel over the samples that are not in the publishers' test set."""
    rows = np.arange(len(samples.x)) if samples.tests is None else np.flatnonzero(~samples.tests)
    largest = _MAX_PIXEL[samples.x.dtype]
    counts = np.zeros((samples.x.shape[1], largest + 1))
    for start in range(0, len(rows), _CHUNK_IMAGES):
        batch = samples.x[rows[start : start + _CHUNK_IMAGES]]
        for channel, total in enumerate(counts):
            total += np.bincount(batch[:, channel].reshape(-1), minlength=largest + 1)
    values = np.arange(largest + 1) / largest
    shares = counts / counts.sum(axis=1, keepdims=True)
    mean = shares @ values
    deviation = np.sqrt(np.maximum(shares @ values**2 - mean**2, 1e-12))  # a channel of one value stays finite
    return Scaling(tuple(mean.tolist()), tuple(deviation.tolist()), largest)
