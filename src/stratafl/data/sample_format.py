"""The format of all clients' samples: agreed before any data is seen, and the same for every site.

A simulation takes it from its federation (`SampleFormat.of`). In a deployment it is part of what the sites agree on,
and `SampleFormat.client` makes of one site's raw samples the federation of one client that the site works with. Nothing
there depends on other sites' data. Means and deviations of columns are those of the format, or of the site's own
training samples (`own_columns`); those of targets and the numbers of classes are always those of the format, because
one model predicts for all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stratafl.core.reprs import short_repr
from stratafl.data.arrays import Array, Part, cells_of, in_columns, join_parts, plain_tensor, sample_count, stack_named
from stratafl.data.federation import SPLITS, Federation, Ragged
from stratafl.data.preprocessing import PIXELS, Preprocessing, Standardisation, dtype_name, preprocessing_from
from stratafl.errors import DataError, choices, shown, unknown

Splits = Mapping[str, tuple[Array, Array]]  # by split: samples and targets
_KEYS = ("classes", "target", "dtype", "own_columns", "columns", "preprocessing")


@short_repr
@dataclass(frozen=True)
class SampleFormat:
    """Type and shape of samples and targets, the number of classes, and how raw samples become a model's input."""

    preprocessing: Preprocessing  # of raw samples: their type and shape, scaling, standardisation, names of classes
    classes: int | None  # None: targets are numbers
    target: tuple[int, ...] = ()  # the shape of one target
    dtype: torch.dtype = torch.float32  # of floating-point samples and targets
    own_columns: bool = False  # whether each site standardises columns by its own training samples
    columns: tuple[str, ...] = ()  # names of the numbers of a sample, if it is a row of a table

    def __post_init__(self) -> None:
        named = self.preprocessing.classes
        if self.classes is not None and (self.classes < 1 or self.target):
            raise DataError(f"{self.classes} classes do not fit targets of shape {self.target}: give single labels")
        if named and len(named) != self.classes:
            raise DataError(f"there are {len(named)} names for {self.classes} classes: give one name each")
        if self.columns and self.preprocessing.shape != (len(self.columns),):
            raise DataError(f"there are {len(self.columns)} names of columns for samples of shape {self.shape}")
        if self.own_columns and self.preprocessing.columns is not None:
            raise DataError("columns are standardised by the agreed numbers or by each site's own samples: choose one")

    @staticmethod
    def of(federation: Federation) -> "SampleFormat":
        floats = [x.dtype for x in (federation.x, federation.y) if x.is_floating_point()]
        kind = floats[0] if floats else torch.get_default_dtype()
        common = replace(federation.preprocessing, clients=())
        facts = (common, federation.classes, tuple(federation.y.shape[1:]), kind, bool(federation.client_columns))
        table = federation.table
        return SampleFormat(*facts, columns=federation.column_names if table is None else table.names)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a model's input."""
        return self.preprocessing.input_shape

    @property
    def kept(self) -> torch.dtype:
        """The type in which samples are kept: pixels and tokens as they are, standardised ones as floats."""
        raw, standardised = self.preprocessing.kind, self.own_columns or self.preprocessing.columns is not None
        return self.dtype if raw.is_floating_point or standardised else raw

    @property
    def class_names(self) -> tuple[str, ...]:
        """The names of classes, or their numbers as text; () if targets are numbers."""
        return self.preprocessing.classes or tuple(map(str, range(self.classes or 0)))

    @property
    def are_numbers(self) -> bool:
        """Whether a model is given floating-point samples; tokens stay whole numbers."""
        return self.kept.is_floating_point or self.kept in PIXELS

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for a sample at least."""
        return prod(self.target) if self.classes is None else self.classes

    # One client

    def client(self, splits: Splits, name: str = "site") -> Federation:
        """The federation of one client from its raw samples, checked; a client that only predicts has none to train."""
        for split in splits:
            if split not in SPLITS:
                raise unknown("split", split, SPLITS)
        filled = {split: splits[split] for split in SPLITS if split in splits and sample_count(splits[split][0])}
        counts = [sample_count(filled[split][0]) if split in filled else 0 for split in SPLITS]
        ends = torch.tensor(counts).cumsum(0).tolist()
        ranges = [range(end - count, end) for end, count in zip(ends, counts, strict=True)]
        federation = Federation(
            *(self._joined(filled, name) if filled else self.zeros(0)),
            self.classes,
            {split: Ragged.from_lists([indices]) for split, indices in zip(SPLITS, ranges, strict=True)},
            name=name,
            scaling=self.preprocessing.scaling,
            client_names=(name,),
            class_names=self.preprocessing.classes,
            column_names=self.columns if self.preprocessing.table is None else self.preprocessing.table.inputs,
            input_names=self.preprocessing.inputs,
            text=self.preprocessing.text,
        )
        return self._standardised(federation, filled)

    def _standardised(self, federation: Federation, splits: Splits) -> Federation:
        agreed = self.preprocessing
        if agreed.table is not None:
            federation = replace(federation, table=agreed.table, raw=agreed.kind)
        if self.own_columns:
            if not len(federation.x):
                raise DataError(f"'{federation.name}' has no sample to standardise its columns by: give some")
            federation = self._by_own_samples(federation, splits)
        elif agreed.columns is not None:
            x = agreed.columns.applied(federation.x, self.dtype)
            federation = replace(federation, x=x, columns=agreed.columns, raw=agreed.kind)
        if agreed.targets is not None:
            federation = replace(federation, y=agreed.targets.applied(federation.y, self.dtype), targets=agreed.targets)
        return federation

    def _by_own_samples(self, federation: Federation, splits: Splits) -> Federation:
        table = self.preprocessing.table
        if table is None:
            return federation.standardised(("client",))
        seen = [x for split, (x, _) in splits.items() if split == "train"] or [x for x, _ in splits.values()]
        columns = Standardisation(*table.own_moments(np.concatenate(seen)))
        return replace(federation, client_columns=(columns,), x=columns.applied(federation.x, self.dtype))

    def without_samples(
        self, clients: int, preprocessing: Preprocessing, names: tuple[str, ...] = (), name: str = "saved"
    ) -> Federation:
        """A federation of clients whose samples are elsewhere, preprocessed so."""
        x, y = self.zeros(0)
        return Federation(
            *(x, y, self.classes, {split: Ragged.from_lists([[]] * clients) for split in SPLITS}, name),
            scaling=preprocessing.scaling,
            client_names=names,
            class_names=preprocessing.classes,
            column_names=self.columns if preprocessing.table is None else preprocessing.table.inputs,
            input_names=preprocessing.inputs,
            raw=preprocessing.kind,
            columns=preprocessing.columns,
            client_columns=preprocessing.clients,
            targets=preprocessing.targets,
            table=preprocessing.table,
            text=preprocessing.text,
        )

    def raw_samples(self, x: Any, what: str = "x") -> Tensor:
        """Samples as users have them, in the type of the data; a row of a table of more than numbers as its codes."""
        agreed = self.preprocessing
        if agreed.table is not None:
            return torch.from_numpy(agreed.table.coded(cells_of(x, agreed.table.names, what), what))
        if agreed.text is not None:
            x = agreed.text.coded(x)
        return agreed.raw(plain_tensor(stack_named(in_columns(x, self.columns, what), agreed.inputs, what), what))

    def zeros(self, count: int) -> tuple[Tensor, Tensor]:
        """`count` samples and targets of this format, all 0."""
        y = torch.zeros(count, *self.target, dtype=torch.int64 if self.classes is not None else self.dtype)
        return torch.zeros(count, *self.shape, dtype=self.kept), y

    def labels(self, y: Array, names: Sequence[str]) -> Tensor:
        """Labels that number these names, numbered as all sites number them; a name that is not agreed on is refused.

        A site numbers the names that it has in its own files, and may lack some that others have.
        """
        agreed = {name: number for number, name in enumerate(self.preprocessing.classes)}
        for name in names:
            if name not in agreed:
                raise DataError(f"class '{shown(name)}' is not one of this federation; {choices(agreed)}")
        return torch.tensor([agreed[name] for name in names])[plain_tensor(y, "y").long()]

    def _joined(self, splits: Splits, name: str) -> tuple[Tensor, Tensor]:
        parts = [Part(f" of '{name}' ({split})", self._raw(x), y) for split, (x, y) in splits.items()]
        pixels = self.preprocessing.scaling is not None
        x, y, _ = join_parts(parts, self.classes, self.dtype, pixels=pixels)
        if tuple(y.shape[1:]) != self.target:
            raise DataError(f"the targets of '{name}' have shape {tuple(y.shape[1:])}: give {self.target}")
        if self.classes is None and not y.is_floating_point():
            raise DataError(f"the targets of '{name}' are whole numbers: this federation predicts numbers, give floats")
        if not x.is_floating_point() and x.dtype != self.kept and not self.kept.is_floating_point:
            raise DataError(f"the samples of '{name}' are {dtype_name(x)}: give {dtype_name(self.kept)}")
        return x, y

    def _raw(self, x: Array) -> Tensor:
        if self.preprocessing.table is not None:
            return self.preprocessing.table.applied(self.preprocessing.raw(plain_tensor(x, "x")))
        return self.preprocessing.raw(plain_tensor(stack_named(x, self.preprocessing.inputs, "x"), "x"))

    # As a table

    def to_table(self) -> dict[str, Any]:
        """For JSON; exact."""
        table: dict[str, Any] = {"classes": self.classes, "target": list(self.target), "dtype": dtype_name(self.dtype)}
        table |= {"own_columns": self.own_columns, "columns": list(self.columns)}
        return {**table, "preprocessing": self.preprocessing.to_table()}

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> "SampleFormat":
        """The opposite of `to_table`; a ValueError says what is wrong with the table."""
        if set(table) != set(_KEYS):
            raise ValueError(f"it needs the keys {', '.join(_KEYS)}")
        classes, target, kind = table["classes"], table["target"], getattr(torch, str(table["dtype"]), None)
        whole = (*target, *(() if classes is None else (classes,)))
        if not (isinstance(kind, torch.dtype) and kind.is_floating_point):
            raise ValueError("its dtype is not the name of a floating-point type")
        if not all(type(x) is int and x >= 1 for x in whole):
            raise ValueError("its classes or targets are not whole numbers of at least 1")
        if type(table["own_columns"]) is not bool:
            raise ValueError("its own_columns is neither true nor false")
        if not all(isinstance(name, str) for name in table["columns"]):
            raise ValueError("its columns are not names")
        preprocessing = preprocessing_from(table["preprocessing"])
        return SampleFormat(preprocessing, classes, tuple(target), kind, table["own_columns"], tuple(table["columns"]))
