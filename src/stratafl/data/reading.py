"""Reading options: which columns, which image size, which owners, and which scaling."""

import logging
from collections.abc import Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from stratafl.core.annotations import Named
from stratafl.core.records import record
from stratafl.data.augmentation import FLIPS, Augmentation
from stratafl.data.formats.columns import Column, Columns, is_ignored, taken
from stratafl.data.images import Content
from stratafl.data.labels import TARGETS
from stratafl.data.memory_limit import USUAL_LIMIT, MemoryLimit
from stratafl.data.preprocessing import Scaling
from stratafl.data.samples import Samples, arrays
from stratafl.data.splitting import apportioned
from stratafl.data.tables.kinds import KINDS
from stratafl.data.texts import LENGTH, TOKENS, VOCABULARY, TextEncoding, cut_texts, text_bytes, text_in_cell, trimmed
from stratafl.errors import DataError, counted, shown, unknown

log = logging.getLogger("stratafl")
HALF = Scaling((0.5,), (0.5,))
_MAX_PIXEL = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}
CHOOSING = ("classes", "subset")  # settings that choose among samples of any kind, after these were read
_NOT_OPTIONS = ("seed", "limit", *CHOOSING)
MIN_CLIENT_SAMPLES = 8  # that a client keeps in a subset, so that it can be split
NORMALISED = ("auto", "half", "unit", "channel", "image", "columns", "pooled", "images", "former", "none")
_OF_OLDER_RUNS = ("images", "former")  # what `auto` was before formats 5 and 7 of runs
_TABLES = {"columns": "client", "pooled": "x"}  # how columns are standardised: see `Federation.standardised`
FLAT = 0.1  # deviation of pixels, of their range: photographs and digits have 0.2 to 0.3
_SUBSET = 0x5B5E7  # tells the draw of a subset from splits with the same seed
_CHUNK_IMAGES = 4096  # images; all of them as numbers would take eight times their bytes


@record
class Reading:
    """The settings of reading; None leaves a setting to the data set or the table.

    If samples have owners, `owners` of them are drawn by `seed` among those with `fewest` to `most` samples. Of all
    that is read, samples of `classes` are kept, and `subset` of them are drawn.
    """

    path: str | None = None
    normalise: Annotated[str, Named(NORMALISED)] = "auto"
    label: str | None = None
    client: str | None = None
    group: str | None = None
    columns: str | None = None
    ignore: str | None = None
    targets: Annotated[str, Named(TARGETS)] = "auto"
    size: int | None = None
    flip: Annotated[str, Named(FLIPS)] = "none"
    crop: int | None = None
    vocabulary: int | None = None
    tokens: Annotated[str, Named(("auto", *TOKENS))] = "auto"
    length: int | None = None
    owners: int | None = None
    fewest: int | None = None
    most: int | None = None
    classes: str | None = None
    subset: int | None = None
    seed: int = 0
    limit: MemoryLimit = USUAL_LIMIT

    def given(self) -> list[str]:
        """Options that are not at their default; words of older runs are none."""
        options = [f for f in fields(self) if f.name not in _NOT_OPTIONS]
        return [f.name for f in options if getattr(self, f.name) not in (f.default, *_OF_OLDER_RUNS)]

    @property
    def ignored(self) -> tuple[str, ...]:
        """Patterns of the columns that are ignored."""
        return tuple(pattern.strip() for pattern in (self.ignore or "").split(",") if pattern.strip())

    @cached_property
    def kinds(self) -> dict[str, str | None]:
        """The columns of `columns` by name, with their kind if it is given: `age,sex:category`."""
        entries = [entry.strip() for entry in (self.columns or "").split(",") if entry.strip()]
        pairs = [entry.rpartition(":") for entry in entries]
        return {name or entry: kind if name else None for entry, (name, _, kind) in zip(entries, pairs, strict=True)}

    def column_problems(self, columns: Columns, place: Path) -> list[str]:
        """What is wrong with `columns` and `ignore`, for a table with these columns."""
        problems, names = list[str](), ", ".join(columns)
        for name, kind in self.kinds.items():
            near = get_close_matches(name, columns, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            if name not in columns:
                problems.append(f"data.columns names '{name}', which '{place}' lacks; {hint}choose among: {names}")
            elif kind not in (None, *KINDS):
                problems.append(f"data.columns has '{name}:{kind}': choose a kind among {', '.join(KINDS)}")
        for pattern in self.ignored:
            if not any(is_ignored(name, [pattern]) for name in columns):
                problems.append(f"data.ignore = '{pattern}' fits no column of '{place}'; choose among: {names}")
        return problems

    def used_columns(self, columns: Columns) -> Columns:
        """The columns to use: those of `columns`, or all; without those of `ignore`."""
        wanted = {name: columns[name] for name in self.kinds if name in columns} if self.kinds else columns
        return {name: cells for name, cells in wanted.items() if not is_ignored(name, self.ignored)}

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
        return taken_samples(samples, self._rows(samples.owner, samples.name))

    def chosen(self, samples: Samples) -> Samples:
        """The samples of the classes that are wanted, and of these a subset."""
        if self.classes is not None:
            samples = of_classes(samples, self.classes)
        if self.subset is not None and self.subset < len(samples.x):
            samples = taken_samples(samples, subset_rows(samples, self.subset, self.seed))
        return samples

    def standardisation(self, x: Any, coded: bool = False) -> str | None:
        """How columns of these samples are standardised, in words of `Federation.standardised`; None: not.

        A `coded` table is encoded by sums over all clients in any case, so `auto` takes means from these sums, too.
        """
        usual = "pooled" if coded else "columns"
        return _TABLES.get(usual if self.normalise in ("auto", "former") and is_table(x) else self.normalise)

    def scaled(self, samples: Samples) -> Samples:
        """The samples with the scaling of `normalise`; images have that of `auto` already."""
        if self.targets == "scaled":
            samples = replace(samples, standardise=(*samples.standardise, "y"))
        if self.normalise in _TABLES and samples.x.ndim != 2:
            shape = "×".join(map(str, samples.x.shape[1:]))
            wrong = f"scales tables of numbers, but a sample of '{samples.name}' is {shape}"
            raise DataError(f"data.normalise = '{self.normalise}' {wrong}")
        way = self.standardisation(samples.x, bool(samples.codes))
        if way is not None or self.normalise == "none":
            others = tuple(what for what in samples.standardise if what not in _TABLES.values())
            samples = replace(samples, standardise=(*others, *([way] if way else [])))
        if self.flip != "none" or self.crop:
            samples = replace(samples, augmentation=self._augmentation(samples))
        if way is not None or self.normalise in ("auto", *_OF_OLDER_RUNS):
            if samples.x.dtype == np.uint16 and samples.scaling is not None and self.normalise == "auto":
                return replace(samples, scaling=_scaling("image", samples))
            _say_if_flat(samples)
            return samples
        if self.normalise != "none" and samples.x.dtype not in _MAX_PIXEL:
            or_columns = " or set it to 'columns'" if samples.x.ndim == 2 else ""
            kind = f"the samples of '{samples.name}' are {samples.x.dtype}"
            wrong = f"data.normalise = '{self.normalise}' scales pixels of 8 or 16 bits, but {kind}"
            raise DataError(f"{wrong}: leave it at 'auto'{or_columns}")
        return replace(samples, scaling=_scaling(self.normalise, samples))

    def _augmentation(self, samples: Samples) -> Augmentation:
        """What is done to training images; refused if samples are none, or too small."""
        option = "flip" if self.flip != "none" else "crop"
        if samples.x.ndim < 3:
            raise DataError(f"data.{option} is for images, but '{samples.name}' has none: leave it out")
        side = min(samples.x.shape[-2:])
        if (self.crop or 0) >= side:
            raise DataError(f"data.crop = {self.crop}, but images of '{samples.name}' have {side} pixels: set it lower")
        return Augmentation(self.flip, self.crop or 0)


def taken_samples(samples: Samples, rows: NDArray[np.int64]) -> Samples:
    chosen: dict[str, Any] = {name: array[rows] for name, array in arrays(samples).items()}
    return replace(samples, **chosen)


def of_classes(samples: Samples, wanted: str) -> Samples:
    """The samples of these classes, which are numbered from 0 again: `cat,dog`, `0..9`, `1,3,7..9`."""
    if samples.y.dtype.kind == "f" or samples.y.ndim > 1:
        raise DataError(
            f"data.classes = '{shown(wanted)}', but the targets of '{samples.name}' are numbers: leave it out"
        )
    names = samples.names or tuple(map(str, range(samples.classes or int(samples.y.max()) + 1)))
    numbers = sorted({number for part in wanted.split(",") for number in _classes(part.strip(), names)})
    rows = np.flatnonzero(np.isin(samples.y, numbers))
    if len(rows) == 0:
        raise DataError(f"data.classes = '{shown(wanted)}' leaves no sample of '{samples.name}': choose other classes")
    chosen = taken_samples(samples, rows)
    y = np.searchsorted(numbers, chosen.y).astype(samples.y.dtype)
    return replace(chosen, y=y, classes=len(numbers), names=tuple(names[number] for number in numbers))


def _classes(part: str, names: Sequence[str]) -> list[int]:
    """The numbers of the classes that a part of `data.classes` names."""
    if part in names:
        return [names.index(part)]
    first, dots, last = part.partition("..")
    if not (dots and first.isdecimal() and last.isdecimal()):
        raise unknown("data.classes", part, [*names, "0..9"])
    called = [int(name) if name.isdecimal() else None for name in names]
    places = list(range(len(names))) if None in called else called
    inside = [number for number, place in enumerate(places) if place is not None and int(first) <= place <= int(last)]
    if not inside:
        raise DataError(f"data.classes = '{part}' names no class: the classes are {names[0]} to {names[-1]}")
    return inside


def subset_rows(samples: Samples, count: int, seed: int) -> NDArray[np.int64]:
    """So many samples, of each client in proportion to its own, but a few at least; of its classes in proportion, too.

    Where samples have no owners yet, they are in proportion to classes alone.
    """
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_SUBSET,)))
    owner = np.zeros(len(samples.x), np.int64) if samples.owner is None else samples.owner
    _, client, counts = np.unique(owner, return_inverse=True, return_counts=True)
    sizes = client_sizes(counts, count)
    # Evenly spaced over samples in the order of test, class (or number) and chance, which keeps all proportions.
    target = samples.y if samples.y.ndim == 1 else samples.y[:, 0]
    tests = np.zeros(len(owner), np.bool_) if samples.tests is None else samples.tests
    order = np.lexsort((rng.permutation(len(owner)), target, tests, client))
    starts, shifts = np.cumsum(counts) - counts, rng.random(len(counts))
    places = [
        start + ((np.arange(size) + shift) * total / size).astype(np.int64)
        for start, total, size, shift in zip(starts, counts, sizes, shifts, strict=True)
    ]
    return np.sort(order[np.concatenate(places)])


def client_sizes(counts: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """How many samples each client keeps of `count`, by largest remainders; who would keep too few keeps the least."""
    least = np.minimum(counts, MIN_CLIENT_SAMPLES)
    if count < least.sum():
        raise DataError(
            f"data.subset = {count} is too few for {counted(len(counts), 'client')}, which keep {MIN_CLIENT_SAMPLES} "
            f"samples each: set it to {least.sum()} or more"
        )
    sizes, free = least.copy(), np.ones(len(counts), np.bool_)
    while free.any():
        shares = apportioned(count - int(sizes[~free].sum()), counts[free], counts[free], np.arange(free.sum()))
        low = shares < least[free]
        if not low.any():
            sizes[free] = shares
            break
        free[np.flatnonzero(free)[low]] = False
    return sizes


def text_content(cells: Column, column: str, reading: Reading, where: str) -> Content:
    """Texts as tokens, or as bytes if a tokenizer is trained once the training samples are known."""
    encoding = TextEncoding(reading.vocabulary or VOCABULARY, reading.length or LENGTH, column)
    texts = [text_in_cell(cell, row, f"the column '{column}' of '{where}'") for row, cell in enumerate(cells, start=1)]
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
    scaling = HALF if normalise == "half" else Scaling(own=normalise == "image")
    return replace(scaling, maximum=_MAX_PIXEL[samples.x.dtype])


def _say_if_flat(samples: Samples) -> None:
    """Log that pixels of 16 bits use so little of their range that training may not see them."""
    if samples.x.dtype != np.uint16 or samples.scaling is None:
        return
    images = samples.x[:: max(1, len(samples.x) // _CHUNK_IMAGES)][:_CHUNK_IMAGES]
    used = float(images.std()) / _MAX_PIXEL[samples.x.dtype]
    if used < FLAT:
        log.warning(
            "the pixels of '%s' vary by %.1f %% of the range of 16 bits, so training may learn next to nothing: set "
            "data.normalise=image",
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
