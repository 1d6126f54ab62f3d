"""Samples, and which client holds which of them for training, validation and testing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from stratafl.core.reprs import short_repr
from stratafl.data.arrays import Array, Part, join
from stratafl.data.cutting import Cutter, Division, Indices, Known, check_some_clients, check_some_samples
from stratafl.data.preprocessing import Preprocessing, Standardisation
from stratafl.data.scaling import Scaling, numbers
from stratafl.errors import DataError, unknown

SPLITS = ("train", "validation", "test")
ARRAYS = "arrays"  # the name of what has none


@short_repr
@dataclass(frozen=True, eq=False)
class Ragged:
    """Which samples each client holds: client `i` holds `indices[offsets[i]:offsets[i + 1]]`."""

    indices: Tensor
    offsets: Tensor

    def __post_init__(self) -> None:
        steps = self.offsets.diff()
        if len(self.offsets) == 0 or self.offsets[0] != 0 or (steps < 0).any():
            raise DataError(f"the offsets of a Ragged rise from 0, but these are {self.offsets.tolist()[:8]}")
        if int(self.offsets[-1]) != len(self.indices):
            raise DataError(f"the offsets end at {int(self.offsets[-1])}, but there are {len(self.indices)} indices")

    @classmethod
    def from_lists(cls, lists: Sequence[Any]) -> Self:
        """One array of sample indices per client, laid end to end."""
        arrays = [np.asarray(each, dtype=np.int64) for each in lists]
        offsets = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        flat = np.concatenate([np.empty(0, np.int64), *arrays])
        return cls(torch.from_numpy(flat), torch.from_numpy(offsets))

    @cached_property
    def counts(self) -> Tensor:
        """How many samples each client holds, [N]."""
        return self.offsets.diff()

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, client: int) -> Tensor:
        """The indices of the samples that one client holds."""
        if not 0 <= client < len(self):
            raise DataError(f"there is no client {client}: the clients are 0..{len(self) - 1}")
        return self.indices[int(self.offsets[client]) : int(self.offsets[client + 1])]

    def owners(self) -> Tensor:
        """The client that holds each entry of `indices`."""
        return torch.repeat_interleave(torch.arange(len(self)), self.counts)


@short_repr
@dataclass(frozen=True, eq=False)
class Federation:
    """Samples and who holds them; `classes` is `None` for regression, `scaling` says what pixels are as numbers.

    Clients, classes and the columns of a table are counted from 0 everywhere; where the data has names for them, they
    are here as well.
    """

    x: Tensor
    y: Tensor
    classes: int | None
    splits: dict[str, Ragged]
    name: str = ARRAYS
    scaling: Scaling | None = None
    client_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    column_names: tuple[str, ...] = ()
    mode: str = ""  # of the images that the samples were read from
    far: tuple[Any, ...] | None = None  # clients far from the others, if found out before samples were standardised
    raw: torch.dtype | None = None  # of `x` before it was standardised
    columns: Standardisation | None = None  # how the columns of `x`, and `y`, were standardised
    targets: Standardisation | None = None
    group: str | None = None  # the column whose groups of samples were kept together, and how many groups there are
    groups: int = 0

    def __post_init__(self) -> None:
        if set(self.splits) != set(SPLITS):
            raise DataError(f"a federation has the splits {', '.join(SPLITS)}, but was given {', '.join(self.splits)}")
        if len(self.x) != len(self.y):
            raise DataError(f"x holds {len(self.x)} samples, but y holds {len(self.y)} targets")
        for name, split in self.splits.items():
            self._check_split(name, split)
        if self.scaling is not None:
            self.scaling.check(self.x)
        for what, names, count in (
            ("clients", self.client_names, self.clients),
            ("classes", self.class_names, self.classes),
            ("columns", self.column_names, self.x.shape[-1]),
        ):
            if names and len(names) != count:
                raise DataError(f"there are {len(names)} names of {what}, but {count} {what}")

    def _about(self) -> str:
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        parts = ", ".join(f"{len(self.splits[split].indices)} {split}" for split in SPLITS)
        sample = f"{str(self.x.dtype).removeprefix('torch.')}{list(self.x.shape[1:])}"
        return f"'{self.name}', {self.clients} clients, {len(self.x)} samples of {sample}, {kind}, {parts}"

    def _check_split(self, name: str, split: Ragged) -> None:
        if len(split) != self.clients:
            raise DataError(f"the split '{name}' has {len(split)} clients, but 'train' has {self.clients}")
        outside = split.indices[(split.indices < 0) | (split.indices >= len(self.x))]
        if len(outside):
            raise DataError(f"the split '{name}' holds sample {int(outside[0])}, but there are {len(self.x)} samples")

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.splits["train"])

    def client_name(self, client: int) -> str:
        """What the data calls a client, or its number."""
        return self.client_names[client] if self.client_names else str(client)

    def class_name(self, label: int) -> str:
        """What the data calls a class, or its number."""
        return self.class_names[label] if self.class_names else str(label)

    def split(self, name: str) -> Ragged:
        """Who holds which sample in the split called `name`."""
        if name not in self.splits:
            raise unknown("split", name, SPLITS)
        return self.splits[name]

    def counts(self, split: str) -> Tensor:
        """How many samples each client holds in a split, [N]."""
        return self.split(split).counts

    def class_counts(self, split: str) -> Tensor:
        """How many samples of each class each client holds in a split, [N, classes]."""
        if self.classes is None:
            raise DataError(f"the federation '{self.name}' has float targets, so it has no classes to count")
        if split not in self._class_counts:
            held = self.split(split)
            cells = held.owners() * self.classes + self.y.cpu()[held.indices]
            counts = torch.bincount(cells, minlength=self.clients * self.classes)
            self._class_counts[split] = counts.view(self.clients, self.classes)
        return self._class_counts[split]

    @cached_property
    def _class_counts(self) -> dict[str, Tensor]:
        return {}  # by split: every task asks for some clients' counts, and nothing of it changes

    def scale(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """What `numbers` scales samples with; nothing where they are not scaled."""
        return () if self.scaling is None else self.scaling.tensors(self.x, dtype)

    @property
    def preprocessing(self) -> Preprocessing:
        """What was done to the samples and targets, so that a model can be given raw ones."""
        kind = str(self.raw or self.x.dtype).removeprefix("torch.")
        shape = tuple(self.x.shape[1:])
        return Preprocessing(kind, shape, self.scaling, self.columns, self.targets, self.class_names)

    def inputs(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Samples of this kind as a model takes them."""
        return numbers(x, dtype, self.scale(dtype))

    def to(self, device: torch.device | str) -> Self:
        """The same federation with `x` and `y` on a device; the splits stay on the CPU."""
        return replace(self, x=self.x.to(device), y=self.y.to(device))


def federate(
    x: Array,
    y: Array,
    owners: Sequence[Any] | Division,
    *,
    classes: int | None = None,
    validation: float = 0.0,
    test: float = 0.25,
    minimum_test: int = 1,
    seed: int = 0,
    name: str = ARRAYS,
    client_names: tuple[str, ...] = (),
    overlap: bool = False,
    dtype: torch.dtype = torch.float32,
    scaling: Scaling | None = None,
    split: str = "stratified",
    group: Any = None,
) -> Federation:
    """A federation from arrays and, for each client, the indices of its samples.

    Each client's samples are shuffled and cut into test, validation and train, whatever the others hold; both
    held-out parts are rounded up. They are split by class (`split="random"`: by chance alone), and samples that have
    the same value in `group` stay in one part. With `overlap=True` one client may train on a sample that another one
    tests on. Of a division that says who tests on what, only the validation part is cut, from what a client trains on.
    """
    cutter = Cutter(validation, test, minimum_test, seed, client_names, split)
    where = "" if name == ARRAYS else f" of '{name}'"
    x, y, classes = join([Part(where, x, y)], classes, dtype, pixels=scaling is not None)
    division = owners if isinstance(owners, Division) else Division(list(owners), overlap=overlap)
    known = _known(y, group)
    return Federation(x, y, classes, _ragged(cutter.divide(division, known)), name, scaling, client_names)


def from_clients(
    clients: Sequence[tuple[Array, Array]],
    *,
    classes: int | None = None,
    validation: float = 0.0,
    test: float = 0.25,
    minimum_test: int = 1,
    seed: int = 0,
    name: str = ARRAYS,
    dtype: torch.dtype = torch.float32,
    split: str = "stratified",
) -> Federation:
    """A federation from one `(x, y)` per client, each cut into test, validation and train as by `federate`."""
    cutter = Cutter(validation, test, minimum_test, seed, split=split)
    check_some_clients(clients)
    for client, pair in enumerate(clients):
        _check_pair(pair, f"client {client}")
        check_some_samples(len(pair[0]), f"client {client}")
    parts = [Part(f" of client {client}", x, y) for client, (x, y) in enumerate(clients)]
    x, y, classes = join(parts, classes, dtype)
    held = _consecutive([len(part.x) for part in parts])
    return Federation(x, y, classes, _ragged(cutter.cut(held, _known(y))), name)


def from_splits(
    clients: Sequence[Mapping[str, tuple[Array, Array]]],
    *,
    classes: int | None = None,
    name: str = ARRAYS,
    dtype: torch.dtype = torch.float32,
) -> Federation:
    """A federation from clients already split: for each a `train`, and if it has them a `test` and a `validation`."""
    check_some_clients(clients)
    for client, given in enumerate(clients):
        _check_splits_given(client, given)
    sizes = {split: [len(given[split][0]) if split in given else 0 for given in clients] for split in SPLITS}
    # an empty array has a shape and a dtype of its own, so it takes no part
    present = [(split, i) for split in SPLITS for i, size in enumerate(sizes[split]) if size]
    parts = [Part(f" of client {i} ({split})", *clients[i][split]) for split, i in present]
    x, y, classes = join(parts, classes, dtype)
    held = _consecutive([size for split in SPLITS for size in sizes[split]])
    N = len(clients)
    splits = {split: Ragged.from_lists(held[i * N : (i + 1) * N]) for i, split in enumerate(SPLITS)}
    return Federation(x, y, classes, splits, name)


def _known(y: Tensor, group: Any = None) -> Known:
    given = None if group is None else np.asarray(group)
    if given is not None and given.shape != (len(y),):
        raise DataError(f"group has shape {given.shape}, but there are {len(y)} samples: give one value per sample")
    return Known((y.double() if y.is_floating_point() else y).numpy(), given)


def _ragged(splits: Mapping[str, Sequence[Indices]]) -> dict[str, Ragged]:
    return {split: Ragged.from_lists(splits[split]) for split in SPLITS}


def _check_pair(given: Any, what: str) -> None:
    if not (isinstance(given, tuple | list) and len(given) == 2):
        raise DataError(f"{what} is a {type(given).__name__}, not a pair (x, y)")


def _check_splits_given(client: int, given: Mapping[str, tuple[Array, Array]]) -> None:
    for split in given:
        if split not in SPLITS:
            raise unknown(f"split of client {client}", split, SPLITS)
        _check_pair(given[split], f"split '{split}' of client {client}")
    if "train" not in given or len(given["train"][0]) == 0:
        raise DataError(f"client {client} has no training sample: its splits are {', '.join(given) or 'none'}")
    for split, (x, y) in given.items():
        if len(x) != len(y):
            raise DataError(f"client {client} holds {len(x)} samples, but {len(y)} targets in its split '{split}'")


def _consecutive(sizes: Sequence[int]) -> list[Indices]:
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) for end, size in zip(ends, sizes, strict=True)]
