"""The form of a parcel: everything about it except its values and which columns a mask selects.

Algorithm, model and round fix the fields of a parcel, which of them are common, what kind of mask each has, and the
type and shape of every tensor. So both sides know the form before anything is sent. It does not travel (only its digest
does, to notice two sides that disagree), so it cannot be forged: an attacker who changes a message can change numbers,
or select other columns where the sender is free to choose them, and nothing else. The form of an upload also says
which numbers are possible at all (`Bound`); `schema.py` checks a parcel against its form.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import blake2b
from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor

from stratafl.core.layout import Layout
from stratafl.core.parcel import ColumnMask, Field, LayerMask, Parcel
from stratafl.core.reprs import short_repr
from stratafl.errors import WireError

MaskKind = Literal["none", "layers", "columns"]
Bound = Literal["any", "finite", "nonnegative", "positive"]  # each is stricter than the one before
BOUNDS: tuple[Bound, ...] = get_args(Bound)
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
DTYPES |= {"I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorForm:
    """Type (as safetensors names it) and shape of a tensor of one client."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.size * DTYPES[self.dtype].itemsize


@short_repr
@dataclass(frozen=True)
class FieldForm:
    """A field without its values: a tensor, or blocks of the matrix by name."""

    common: bool
    mask: MaskKind
    value: TensorForm | Mapping[str, TensorForm]
    bound: Bound = "any"  # what the receiver demands of every value that was sent


@short_repr
@dataclass(frozen=True)
class Form:
    """The fields of a parcel, by name."""

    fields: Mapping[str, FieldForm]

    @cached_property
    def digest(self) -> bytes:
        """16 bytes that differ for different forms; the order of names and bounds do not matter."""
        fields = {name: {k: v for k, v in asdict(f).items() if k != "bound"} for name, f in self.fields.items()}
        return blake2b(json.dumps({"fields": fields}, sort_keys=True).encode(), digest_size=16).digest()

    def bounded(self, bounds: Mapping[str, Bound]) -> "Form":
        """The form with bounds on these fields; every other field is finite."""
        return Form({name: replace(f, bound=bounds.get(name, "finite")) for name, f in self.fields.items()})

    def entries(self, layout: Layout) -> Iterator[tuple[str, TensorForm]]:
        """Every tensor that a message of this form can hold, with everything sent: values, then masks, by path."""
        for name, field in self.fields.items():
            if isinstance(field.value, TensorForm):
                yield f"value/{name}", field.value
                continue
            for key, block in field.value.items():
                yield f"value/{name}/{key}", block
                if field.mask == "columns":
                    yield f"mask/{name}/{key}", bitmap(block.size)
            if field.mask == "layers":
                yield f"mask/{name}", bitmap(len(layout.layers))


def bitmap(bits: int) -> TensorForm:
    """The bytes that hold this number of bits."""
    return TensorForm("U8", ((bits + 7) // 8,))


def form_of(parcel: Parcel, layout: Layout) -> Form:
    """The form of the parcel of one client; a parcel that does not fit the model is refused.

    Of a download the simulator, which stands on both sides, takes the form from the parcel that it sends. The form of
    uploads is `Algorithm.upload_form`, the same for every client (a law of the contract).
    """
    return Form({name: _field_form(name, field, layout) for name, field in parcel.items()})


def mask_kind(field: Field) -> MaskKind:
    return "none" if field.mask is None else "layers" if isinstance(field.mask, LayerMask) else "columns"


def _field_form(name: str, field: Field, layout: Layout) -> FieldForm:
    if "/" in name:
        raise WireError(f"field '{name}' has a '/' in its name: rename it")
    kind = mask_kind(field)
    if isinstance(field.value, Tensor):
        if kind != "none":
            raise WireError(f"field '{name}' is a tensor with a mask of {kind}: only blocks of the matrix have masks")
        return FieldForm(field.common, kind, _tensor_form(name, field.value, field.common))
    blocks = {key: _tensor_form(name, block, field.common) for key, block in field.value.items()}
    for key, block in blocks.items():
        if key not in layout.specs:
            raise WireError(f"field '{name}' holds '{key}', which this model does not have")
        expected = layout.specs[key].shape
        # A field without a mask may stack the rows of other clients in front of the tensor's own shape; a packed one
        # has a shape of its own.
        if block.shape != expected and not (kind == "none" and (block.shape[1:] == expected or field.packed)):
            raise WireError(f"field '{name}' holds '{key}' of shape {block.shape}, but this model has {expected}")
        if kind != "none" and not DTYPES[block.dtype].is_floating_point:
            why = "which has no NaN for values that are not sent"
            raise WireError(f"field '{name}' has a mask, but '{key}' is {block.dtype}, {why}")
    if isinstance(field.mask, LayerMask):
        _check_bits(name, field.mask.sent, (len(layout.layers),), field.common)
    elif isinstance(field.mask, ColumnMask):
        if set(field.mask.sent) != set(blocks):
            odd = sorted(set(field.mask.sent) ^ set(blocks))[0]
            raise WireError(f"field '{name}' has '{odd}' either in its blocks or in its mask: it must be in both")
        for key, sent in field.mask.sent.items():
            _check_bits(name, sent, blocks[key].shape, field.common)
    return FieldForm(field.common, kind, blocks)


def _tensor_form(name: str, x: Tensor, common: bool) -> TensorForm:
    if x.dtype not in NAMES:
        supported = ", ".join(str(dtype).removeprefix("torch.") for dtype in NAMES)
        raise WireError(f"field '{name}' holds {x.dtype}, which a message cannot carry; choose one of: {supported}")
    if not common and x.shape[:1] != (1,):
        clients = f"but this parcel is for {x.shape[0]}" if x.shape else "but this value has no client axis"
        raise WireError(f"field '{name}': a message is for one client, {clients}")
    return TensorForm(NAMES[x.dtype], tuple(x.shape) if common else tuple(x.shape[1:]))


def _check_bits(name: str, sent: Tensor, shape: tuple[int, ...], common: bool) -> None:
    wrong = bits_misfit(sent, shape if common else (1, *shape))
    if wrong:
        raise WireError(f"field '{name}' {wrong}")


def bits_misfit(sent: Tensor, shape: tuple[int, ...]) -> str:
    """How the bits of a mask differ from booleans of this shape, "" if they do not."""
    if sent.dtype != torch.bool or tuple(sent.shape) != shape:
        return f"has a mask of {sent.dtype} {tuple(sent.shape)}, not {torch.bool} {shape}"
    return ""
