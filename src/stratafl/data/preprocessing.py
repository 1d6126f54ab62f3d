"""Preprocessing: how samples and targets were changed before training, so that you can give a model raw samples.

A federation has it, a run directory stores it (`preprocessing.json`), `Fitted.predict` and exported models apply it.
Numbers are exact: JSON holds the shortest text that reads back as the same float.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Annotated, Any, Self

import torch
from torch import Tensor

from stratafl.core.annotations import Range, checked
from stratafl.core.reprs import short_repr
from stratafl.data.tables.table_encoding import TableEncoding, encoding_from
from stratafl.data.texts import TextEncoding, text_encoding_from
from stratafl.errors import DataError, StrataError

FORMAT = 1
_KEYS = ("format", "dtype", "shape", "scaling", "columns", "targets", "classes")
_OPTIONAL_KEYS = ("clients", "inputs", "table", "text")
PIXELS = {torch.uint8: 255, torch.uint16: 65535}  # what can be scaled, and its largest value


def dtype_name(kind: torch.dtype | Tensor) -> str:
    return str(kind.dtype if isinstance(kind, Tensor) else kind).removeprefix("torch.")


@dataclass(frozen=True)
class Scaling:
    """(pixel / maximum − mean) / deviation, with one number for all channels or one for each.

    `maximum` is that of the pixels' type: 255, or 65535 for 16 bits. With `own`, mean and deviation are those of each
    image itself, over all its pixels and channels; an image of one value becomes 0.
    """

    mean: tuple[float, ...] = (0.0,)
    deviation: tuple[float, ...] = (1.0,)
    maximum: int = field(default=255, repr=False)  # follows from the samples' type; older checksums do not have it
    own: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.deviation) or not self.mean or min(self.deviation) <= 0:
            wrong = f"mean={self.mean} and deviation={self.deviation}"
            raise DataError(f"{wrong} do not fit: give as many positive deviations as means")
        if self.maximum not in PIXELS.values():
            raise DataError(f"maximum={self.maximum} was given: choose {' or '.join(map(str, PIXELS.values()))}")

    def check(self, x: Tensor) -> None:
        if PIXELS.get(x.dtype) != self.maximum:
            kind = "bytes" if self.maximum == 255 else "16-bit pixels"
            raise DataError(f"the samples are {dtype_name(x)}, but this scaling is for {kind}")
        if len(self.mean) > 1 and (x.ndim < 2 or x.shape[1] != len(self.mean)):
            shape = tuple(x.shape[1:])
            raise DataError(f"there are {len(self.mean)} means for samples of shape {shape}: give one per channel")

    def tensors(self, x: Tensor, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Factor and shift of a pixel, shaped for a batch of samples such as `x`; with `own`, a 1 of its axes."""
        if self.own:
            return (torch.ones((1,) * (x.ndim - 1), dtype=dtype, device=x.device),)
        wide = (-1, *(1,) * (x.ndim - 2)) if len(self.mean) > 1 else ()
        mean, deviation = (torch.tensor(v, dtype=torch.float64).reshape(wide) for v in (self.mean, self.deviation))
        pair = (1 / (self.maximum * deviation), -mean / deviation)
        return tuple(t.to(x.device, dtype) for t in pair)


def samples_at(x: Tensor, places: Tensor) -> Tensor:
    """The samples at these places; torch cannot index unsigned 16 bits on a GPU, so they are viewed as signed."""
    if x.dtype == torch.uint16:
        return x.view(torch.int16)[places].view(torch.uint16)
    return x[places]


def numbers(x: Tensor, dtype: torch.dtype, scale: tuple[Tensor, ...] = ()) -> Tensor:
    """Samples as a model takes them: floats and pixels as `dtype`, pixels scaled; tokens unchanged."""
    if not x.is_floating_point() and x.dtype not in PIXELS:
        return x
    if len(scale) == 1:
        return standardised_images(x, dtype, scale[0].ndim)
    x = x.to(dtype)
    return x * scale[0] + scale[1] if scale else x


def standardised_images(x: Tensor, dtype: torch.dtype, axes: int) -> Tensor:
    """Pixels with mean 0 and deviation 1 in each image, which has so many axes.

    Sums are whole numbers, so they are the same on every device and for every number of images.
    """
    pixels, over = x.long(), tuple(range(-axes, 0))
    count = pixels.shape[-axes:].numel()
    mean = pixels.sum(over, keepdim=True).double() / count
    variance = (pixels * pixels).sum(over, keepdim=True).double() / count - mean * mean
    factor = torch.where(variance > 0, 1 / variance.clamp(min=1e-12).sqrt(), 0.0)
    return ((pixels.double() - mean) * factor).to(dtype)


@short_repr
@dataclass(frozen=True)
class Standardisation:
    """(value − mean) / deviation, column by column; a column that is the same everywhere (deviation 0) becomes 0."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def __post_init__(self) -> None:
        fits = len(self.mean) == len(self.deviation) > 0 and all(map(isfinite, (*self.mean, *self.deviation)))
        if not fits or min(self.deviation) < 0:
            wrong = f"standardisation has {len(self.mean)} means and {len(self.deviation)} deviations"
            raise DataError(f"{wrong}: give the same number of both, all finite, no deviation below 0")

    @classmethod
    def of(cls, values: Tensor, rows: Tensor) -> Self:
        seen = values[rows].double()
        differs = seen.amax(0) > seen.amin(0)  # the deviation of equal numbers may be a rounding error instead of 0
        deviation = torch.where(differs, seen.std(0, correction=0), 0.0)
        return cls(*(tuple(each.reshape(-1).tolist()) for each in (seen.mean(0), deviation)))

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, deviation and factor (1 / deviation, or 0) of every column, in float64."""
        mean, deviation = (torch.tensor(each, dtype=torch.float64) for each in (self.mean, self.deviation))
        return mean, deviation, torch.where(deviation > 0, 1 / deviation, 0.0)

    def applied(self, values: Tensor, dtype: torch.dtype) -> Tensor:
        mean, _, factor = (each.to(values.device) for each in self.tensors())
        return ((values.double() - mean) * factor).to(dtype)


@short_repr
@dataclass(frozen=True)
class Preprocessing:
    """The type and shape of a raw sample, how it becomes a model's input, and what a model's output means."""

    dtype: str
    shape: tuple[int, ...]
    scaling: Scaling | None = None
    columns: Standardisation | None = None
    targets: Standardisation | None = None
    classes: tuple[str, ...] = ()
    clients: tuple[Standardisation, ...] = ()  # columns of each client, if each standardises by its own samples
    inputs: tuple[str, ...] = ()  # names of the inputs that a sample stacks, such as input_ids and attention_mask
    table: TableEncoding | None = None  # of raw samples that are rows of codes; columns are standardised after it
    text: TextEncoding | None = None  # how texts become tokens

    @property
    def standardises(self) -> bool:
        """Whether columns of raw samples are standardised, in one way for all or in one for each client."""
        return self.columns is not None or bool(self.clients)

    def of(self, client: int) -> "Preprocessing":
        """As this client's samples are preprocessed."""
        return dataclasses.replace(self, columns=self.clients[client], clients=()) if self.clients else self

    @property
    def kind(self) -> torch.dtype:
        torch_dtype: torch.dtype = getattr(torch, self.dtype)
        return torch_dtype

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a model's input."""
        return self.shape if self.table is None else (len(self.table.inputs),)

    def raw(self, x: Tensor) -> Tensor:
        """The samples in the type of the data; refused if shape or values are not those of raw samples."""
        if tuple(x.shape[1:]) != self.shape:
            raise DataError(f"x has shape {tuple(x.shape)}: give [n, {', '.join(map(str, self.shape))}] for n samples")
        finite = x.isfinite() if self.table is None else ~x.isinf()  # a code may be missing
        if x.is_floating_point() and not bool(finite.all()):
            wrong = int((~finite).flatten(1).any(1).nonzero()[0])
            raise DataError(f"sample {wrong} holds NaN or infinity: leave it out, or replace the value with a number")
        if self.kind.is_floating_point:
            if x.dtype in PIXELS and len(self.shape) > 1 and not self.inputs:  # the scaling of floats is unknown
                advice = f"give {self.dtype}, scaled as the clients' samples were"
                raise DataError(f"x is {dtype_name(x)}, but the clients' images are {self.dtype}: {advice}")
            return x.to(self.kind)
        if self.scaling is not None:
            self._check_bytes(x)
        elif x.is_floating_point() and (self.standardises or self.kind == torch.uint8):
            return x  # these become floats in any case
        elif x.is_floating_point() and (x % 1 != 0).any():
            raise DataError(f"x holds fractions ({dtype_name(x)}), but samples are whole numbers: give {self.dtype}")
        return x.to(self.kind)

    def _check_bytes(self, x: Tensor) -> None:
        most, kind = torch.iinfo(self.kind).max, dtype_name(x)
        if x.dtype in PIXELS and x.dtype != self.kind:  # 255 is white in the one and nearly black in the other
            raise DataError(f"x is {kind}, but the clients' samples are {self.dtype}: give pixels of that type")
        if x.is_floating_point():
            advice = f"give them unscaled (x.astype('{self.dtype}')), or call model(client), which takes scaled numbers"
            raise DataError(f"x is {kind}, but samples are whole numbers from 0 to {most}: {advice}")
        if x.numel() and (x.long().min() < 0 or x.long().max() > most):
            raise DataError(f"x has numbers from {int(x.min())} to {int(x.max())}, but samples are from 0 to {most}")

    def to_table(self) -> dict[str, Any]:
        plain = dataclasses.asdict(dataclasses.replace(self, table=None))
        table = {"format": FORMAT, **plain, "table": self.table and self.table.to_table()}
        return {key: value for key, value in table.items() if key not in _OPTIONAL_KEYS or value}


def preprocessing_from(table: Mapping[str, Any]) -> Preprocessing:
    """The opposite of `to_table`; a ValueError says what is wrong with the table."""
    if set(table) - {*_OPTIONAL_KEYS} != set(_KEYS) or table["format"] != FORMAT:
        raise ValueError(f"it needs the keys {', '.join(_KEYS)}, in format {FORMAT}")
    if not isinstance(getattr(torch, str(table["dtype"]), None), torch.dtype):
        raise ValueError("its dtype is not the name of a type of numbers")
    try:
        return Preprocessing(
            table["dtype"],
            checked("shape", tuple[Annotated[int, Range(least=1)], ...], table["shape"]),
            _part(Scaling, "scaling", table["scaling"]),
            _part(Standardisation, "columns", table["columns"]),
            _part(Standardisation, "targets", table["targets"]),
            checked("classes", tuple[str, ...], table["classes"]),
            tuple(_part(Standardisation, "clients", columns) for columns in table.get("clients", ())),
            checked("inputs", tuple[str, ...], table.get("inputs", ())),
            encoding_from(table["table"]) if table.get("table") else None,
            text_encoding_from(table["text"]) if table.get("text") else None,
        )
    except StrataError as error:
        raise ValueError(f"its {error}") from error


def _part(cls: Any, name: str, table: Any) -> Any:
    keys = {field.name for field in dataclasses.fields(cls)}
    if table is None:
        return None
    if not (isinstance(table, Mapping) and {"mean", "deviation"} <= set(table) <= keys):
        raise ValueError(f"its {name} needs the keys {', '.join(sorted(keys))}")
    hints = {"maximum": int, "own": bool}
    return cls(**{key: checked(f"{name}.{key}", hints.get(key, tuple[float, ...]), table[key]) for key in table})
