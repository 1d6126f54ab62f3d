"""Federation: samples, and which client holds which of them for training, validation and testing.

`builders` makes federations from arrays, from clients or from `Samples`.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from stratafl.core.reprs import holder
from stratafl.data.augmentation import Augmentation
from stratafl.data.partitions.base import Pieces
from stratafl.data.preprocessing import Preprocessing, Scaling, Standardisation, dtype_name, numbers
from stratafl.data.tables.kinds import CATEGORY, TableColumn
from stratafl.data.tables.table_encoding import TableEncoding
from stratafl.data.texts import TextEncoding, decoded_texts, trimmed
from stratafl.errors import DataError, shown, unknown

SPLITS = ("train", "validation", "test")
T = TypeVar("T")


@holder
class Ragged:
    """Which samples each client holds: client `i` holds `indices[offsets[i]:offsets[i + 1]]`."""

    indices: Tensor
    offsets: Tensor

    def __post_init__(self) -> None:
        steps = self.offsets.diff()
        if len(self.offsets) == 0 or self.offsets[0] != 0 or (steps < 0).any():
            raise DataError(f"the offsets are {self.offsets.tolist()[:8]}, but they must start at 0 and never decrease")
        if int(self.offsets[-1]) != len(self.indices):
            raise DataError(f"the offsets end at {int(self.offsets[-1])}, but there are {len(self.indices)} indices")

    @classmethod
    def from_lists(cls, lists: Sequence[Any]) -> Self:
        if isinstance(lists, Pieces):
            starts = np.cumsum(np.append(0, lists.sizes), dtype=np.int64)
            return cls(torch.from_numpy(lists.flat), torch.from_numpy(starts))
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
        if not 0 <= client < len(self):
            raise DataError(f"there is no client {client}: choose one from 0 to {len(self) - 1}")
        return self.indices[int(self.offsets[client]) : int(self.offsets[client + 1])]

    def clients(self) -> Tensor:
        """The client that holds each entry of `indices`."""
        return torch.repeat_interleave(torch.arange(len(self)), self.counts)


@holder
class Federation:
    """Samples and the clients that hold them; `classes` is `None` for regression, `scaling` makes numbers of pixels.

    Clients, classes and columns are numbered from 0 everywhere; if the data has names for them, they are here as well.
    """

    x: Tensor
    y: Tensor
    classes: int | None
    splits: dict[str, Ragged]
    name: str = "arrays"
    scaling: Scaling | None = None
    client_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    column_names: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ()  # of the inputs that a sample stacks, `[k, …]`, for a model that names them
    mode: str = ""  # of the image files that the samples were read from
    outliers: tuple[Any, ...] | None = None  # found before samples were standardised, see outliers.py
    suspects: tuple[Any, ...] | None = None  # … and suspicious columns, see suspects.py
    raw: torch.dtype | None = None  # dtype of `x` before it was standardised
    columns: Standardisation | None = None  # how the columns of `x` were standardised
    client_columns: tuple[Standardisation, ...] = ()  # how each client standardised the columns of its own samples
    targets: Standardisation | None = None  # how `y` was standardised
    codes: tuple[TableColumn, ...] = ()  # of a table that is not encoded yet: `x` holds their codes, [n, K] in float64
    table: TableEncoding | None = None  # how such a table was encoded
    group: str | None = None  # the column whose groups of samples stay in one part of a split
    groups: int = 0
    text: TextEncoding | None = None  # how texts became the tokens in `x`
    augmentation: Augmentation | None = None  # of images, when they are trained on
    shifts: tuple[str, ...] = ()  # how each client's samples were shifted, in words

    def __post_init__(self) -> None:
        if set(self.splits) != set(SPLITS):
            raise DataError(f"the splits {', '.join(self.splits)} were given: give {', '.join(SPLITS)}")
        if len(self.x) != len(self.y):
            raise DataError(f"x holds {len(self.x)} samples, but y holds {len(self.y)} targets")
        for name, split in self.splits.items():
            if len(split) != self.clients:
                raise DataError(f"the split '{name}' has {len(split)} clients, but 'train' has {self.clients}")
            outside = split.indices[(split.indices < 0) | (split.indices >= len(self.x))]
            if len(outside):
                first = int(outside[0])
                raise DataError(f"the split '{name}' holds sample {first}, but there are {len(self.x)} samples")
        if self.scaling is not None:
            self.scaling.check(self.x)
        for what, names, count in (
            ("clients", self.client_names, self.clients),
            ("classes", self.class_names, self.classes),
            ("columns", self.column_names, self.x.shape[-1]),
        ):
            if names and len(names) != count:
                raise DataError(f"there are {len(names)} names for {count} {what}: give one name each")

    def _about(self) -> str:
        kind = "regression" if self.classes is None else f"{self.classes} classes"
        parts = ", ".join(f"{len(self.splits[split].indices)} {split}" for split in SPLITS)
        sample = f"{dtype_name(self.x)}{list(self.x.shape[1:])}"
        return f"'{self.name}', {self.clients} clients, {len(self.x)} samples of {sample}, {kind}, {parts}"

    @property
    def clients(self) -> int:
        return len(self.splits["train"])

    def client_name(self, client: int) -> str:
        return self.client_names[client] if self.client_names else str(client)

    def class_name(self, label: int) -> str:
        return self.class_names[label] if self.class_names else str(label)

    def split(self, name: str) -> Ragged:
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
            ragged = self.split(split)
            cells = ragged.clients() * self.classes + self.y.cpu()[ragged.indices]
            counts = torch.bincount(cells, minlength=self.clients * self.classes)
            self._class_counts[split] = counts.view(self.clients, self.classes)
        return self._class_counts[split]

    def once(self, key: Hashable, find: Callable[[], T]) -> T:
        """What `find` gives, found once for all runs that share this federation."""
        if key not in self._found:
            self._found[key] = find()
        value: T = self._found[key]
        return value

    @cached_property
    def _found(self) -> dict[Hashable, Any]:
        return {}

    @cached_property
    def _class_counts(self) -> dict[str, Tensor]:
        return {}  # by split, because every task asks for some clients' counts

    def scale(self, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Factor and shift for `numbers`; empty if samples are not scaled."""
        return () if self.scaling is None else self.scaling.tensors(self.x, dtype)

    @property
    def preprocessing(self) -> Preprocessing:
        kind, shape = dtype_name(self.raw or self.x.dtype), tuple(self.x.shape[1:])
        columns = (self.columns, self.targets)
        if self.table is not None:
            kind, shape = dtype_name(torch.float64), (len(self.table.columns),)
        names, inputs = self.class_names, self.input_names
        more: dict[str, Any] = {"inputs": inputs, "table": self.table, "text": self.text}
        return Preprocessing(kind, shape, self.scaling, *columns, names, self.client_columns, **more)

    def inputs(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return numbers(x, dtype, self.scale(dtype))

    def to(self, device: torch.device | str) -> Self:
        """The same federation with `x` and `y` on a device; the splits stay on the CPU."""
        x, y = self.x.to(device), self.y.to(device)
        return self if x is self.x and y is self.y else replace(self, x=x, y=y)

    def standardised(self, what: Sequence[str], new_clients: int = 0) -> Self:
        """`x`, `y` or both standardised, column by column, by mean and deviation of training samples.

        `client`: each client by its own; `x`, `y`: by those of all clients together, but for the last `new_clients`,
        which never train.
        """
        trained = int(self.splits["train"].offsets[self.clients - new_clients])
        training, federation = self.splits["train"].indices[:trained], self
        if "client" in what:
            federation = self._by_client()
            training = federation.splits["train"].indices[:trained]
        elif "x" in what:
            columns = Standardisation.of(self.x, training)
            federation = replace(
                federation, columns=columns, x=columns.applied(self.x, _floating(self.x)), raw=self.x.dtype
            )
        if "y" in what:
            y = federation.y
            targets = Standardisation.of(y, training)
            federation = replace(federation, targets=targets, y=targets.applied(y, _floating(y)))
        return federation

    def tokenized(self, encoding: TextEncoding, new_clients: int = 0) -> Self:
        """Texts as tokens; if `x` holds their bytes, by a tokenizer of the training texts of clients that train."""
        if self.x.dtype != torch.uint8:
            return replace(self, text=encoding)
        texts = decoded_texts(self.x.numpy())
        trained = int(self.splits["train"].offsets[self.clients - new_clients])
        rows = sorted({*self.splits["train"].indices[:trained].tolist()})
        encoding = encoding.trained(texts[row] for row in rows)
        coded, encoding = trimmed(encoding.applied(texts), encoding)
        return replace(self, x=torch.from_numpy(coded), text=encoding)

    def standardisation_note(self, change: str = "data.normalise = 'none'") -> str:
        """What was done to columns, and how to `change` that; "" if nothing was done."""
        columns = () if self.table is None else self.table.columns
        rare = ", ".join(
            f"'{shown(column.name)}'" for column in columns if column.kind == CATEGORY and not column.values
        )
        lost = f"all texts in {rare} are rare, so no input tells them apart: use fewer categories, or ignore it"
        if not self.preprocessing.standardises:
            return lost if rare else ""
        whose = "each client by its own training samples" if self.client_columns else "all clients' training samples"
        done = f"columns are standardised to mean 0 and deviation 1 ({whose}); {change} leaves them as they are"
        return f"{done}; {lost}" if rare else done

    def _by_client(self) -> Self:
        """Every client's columns standardised by its own training samples, or by all its samples if it has none."""
        apart = self.apart()
        x, columns = apart.x.to(_floating(apart.x), copy=True), list[Standardisation]()
        for client in range(self.clients):
            rows = {split: ragged.of(client) for split, ragged in apart.splits.items()}
            every = torch.cat(list(rows.values()))
            columns.append(Standardisation.of(apart.x, rows["train"] if len(rows["train"]) else every))
            x[every] = columns[-1].applied(apart.x[every], x.dtype)
        return replace(apart, x=x, client_columns=tuple(columns), raw=self.x.dtype)

    def apart(self) -> Self:
        """The federation itself, or if clients share samples one in which each client has copies of its own."""
        owner = torch.cat([ragged.clients() for ragged in self.splits.values()])
        sample = torch.cat([ragged.indices for ragged in self.splits.values()])
        pairs, place = torch.stack([owner, sample]).unique(dim=1, return_inverse=True)
        if len(pairs[1]) == len(sample.unique()):
            return self
        parts = place.split([len(ragged.indices) for ragged in self.splits.values()])
        splits = {
            name: Ragged(part, ragged.offsets) for (name, ragged), part in zip(self.splits.items(), parts, strict=True)
        }
        return replace(self, x=self.x[pairs[1]], y=self.y[pairs[1]], splits=splits)


def _floating(values: Tensor) -> torch.dtype:
    return values.dtype if values.is_floating_point() else torch.get_default_dtype()
