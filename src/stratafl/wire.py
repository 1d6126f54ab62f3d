"""The wire: parcels as bytes (safetensors, no pickle), and bytes as parcels that have been checked."""

import json
from math import prod
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, deserialize
from safetensors.torch import save
from torch import Tensor

from stratafl.errors import WireError
from stratafl.layout import Layout, Rows
from stratafl.parcel import ColumnMask, Field, LayerMask, Mask, Parcel

_NONE, _LAYERS, _COLUMNS = "none", "layers", "columns"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_DTYPES |= {"I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool}
_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in _DTYPES.values()}


def encode(parcel: Parcel, layout: Layout) -> bytes:
    """The parcel of one client as bytes: a header and, exactly, the values and masks that `count_bytes` counts."""
    tensors: Rows = {}
    header: dict[str, Any] = {}
    for name, field in parcel.items():
        header[name] = {"common": field.common, "mask": _kind(field.mask), "shapes": {}}
        _write(name, field, layout, tensors, header[name])
    return save(tensors, {"parcel": json.dumps(header)})


def decode(data: bytes, layout: Layout) -> Parcel:
    """The parcel of one client, checked against the layout; what was not sent is NaN."""
    try:
        header = _header(data)
        arrays = {key: _tensor(info) for key, info in deserialize(data)}
        return Parcel({name: _read(name, info, arrays, layout) for name, info in header.items()})
    except (
        SafetensorError,
        KeyError,
        ValueError,
        TypeError,
        AttributeError,
        RuntimeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise WireError(f"these bytes are not a parcel: {type(error).__name__}: {error}") from error


def body_bytes(data: bytes) -> int:
    """The bytes of values and masks in an encoded parcel, without its header."""
    return sum(len(info["data"]) for _, info in deserialize(data))


def _kind(mask: Mask | None) -> str:
    return _NONE if mask is None else _LAYERS if isinstance(mask, LayerMask) else _COLUMNS


def _write(name: str, field: Field, layout: Layout, tensors: Rows, info: dict[str, Any]) -> None:
    field = field if field.common else _only_client(field)
    if isinstance(field.value, Tensor):
        tensors[f"value/{name}"] = field.value.contiguous().cpu()
        return
    info["shapes"] = {key: list(block.shape) for key, block in field.value.items()}
    info["dtypes"] = {key: str(block.dtype).removeprefix("torch.") for key, block in field.value.items()}
    if isinstance(field.mask, LayerMask):
        tensors[f"mask/{name}"] = _pack(field.mask.sent)
    for key, block in field.value.items():
        if isinstance(field.mask, ColumnMask):
            sent = field.mask.sent[key]
            tensors[f"mask/{name}/{key}"] = _pack(sent)
            tensors[f"value/{name}/{key}"] = block[sent].cpu()
        elif field.mask is None or bool(field.mask.sent[layout.specs[key].layer]):
            tensors[f"value/{name}/{key}"] = block.contiguous().cpu()


def _only_client(field: Field) -> Field:
    first = field.pick(0)
    batch = field.value if isinstance(field.value, Tensor) else next(iter(field.value.values()), None)
    if batch is not None and batch.shape[0] != 1:
        raise WireError(f"a message is for one client, this parcel is for {batch.shape[0]}")
    return first


def _read(name: str, info: dict[str, Any], arrays: Rows, layout: Layout) -> Field:
    common, kind = bool(info["common"]), info["mask"]
    if kind not in (_NONE, _LAYERS, _COLUMNS):
        raise WireError(f"field '{name}' announces a mask of an unknown kind: {kind!r}")

    def lift(tensor: Tensor) -> Tensor:
        return tensor if common else tensor.unsqueeze(0)

    if f"value/{name}" in arrays:
        return Field(lift(arrays[f"value/{name}"]), common)
    shapes = {key: tuple(shape) for key, shape in info["shapes"].items()}
    for key, shape in shapes.items():
        _check_shape(name, key, shape, kind == _NONE, layout)
    layers = _unpack(arrays[f"mask/{name}"], (len(layout.layers),)) if kind == _LAYERS else None
    columns = {k: _unpack(arrays[f"mask/{name}/{k}"], s) for k, s in shapes.items()} if kind == _COLUMNS else None
    blocks: Rows = {}
    for key, shape in shapes.items():
        sent = columns[key] if columns else None if layers is None else layers[layout.specs[key].layer].expand(shape)
        blocks[key] = lift(_block(name, key, shape, info["dtypes"][key], sent, kind == _COLUMNS, arrays))
    mask: Mask | None = None if layers is None else LayerMask(lift(layers))
    if columns is not None:
        mask = ColumnMask({key: lift(sent) for key, sent in columns.items()})
    return Field(blocks, common, mask)


def _check_shape(name: str, key: str, shape: tuple[int, ...], stackable: bool, layout: Layout) -> None:
    if key not in layout.specs:
        raise WireError(f"field '{name}' holds '{key}', which this model does not have")
    expected = layout.specs[key].shape
    # A field without a mask may stack the rows of other clients in front of the tensor's own shape.
    fits = shape == expected or (stackable and len(shape) == len(expected) + 1 and shape[1:] == expected)
    if not fits:
        raise WireError(f"field '{name}' holds '{key}' of shape {shape}, this model has {expected}")


def _block(
    name: str, key: str, shape: tuple[int, ...], dtype: str, sent: Tensor | None, packed: bool, arrays: Rows
) -> Tensor:
    """The block as it was sent, or NaN where it was not; anything that is not exactly what was announced is refused."""
    if dtype not in _NAMES:
        raise WireError(f"field '{name}' announces '{key}' of an unknown type '{dtype}'")
    path = f"value/{name}/{key}"
    whole = sent is None or (not packed and bool(sent.reshape(-1)[0]))
    if not whole and not packed:
        if path in arrays:
            raise WireError(f"field '{name}' holds '{key}', which its mask says was not sent")
        return torch.full(shape, torch.nan, dtype=_NAMES[dtype])
    if path not in arrays:
        raise WireError(f"field '{name}' lacks '{key}', which it says was sent")
    value = arrays[path]
    expected = shape if whole else (int(sent.sum()),) if sent is not None else shape
    if tuple(value.shape) != expected or str(value.dtype) != f"torch.{dtype}":
        raise WireError(f"field '{name}' announces '{key}' as {dtype} {expected}, it holds {value.dtype} {value.shape}")
    if whole:
        return value
    block = torch.full(shape, torch.nan, dtype=value.dtype)
    block[sent] = value
    return block


def _pack(sent: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits(sent.cpu().numpy().reshape(-1)))


def _unpack(bits: Tensor, shape: tuple[int, ...]) -> Tensor:
    count = prod(shape)
    if bits.dtype != torch.uint8 or bits.shape != ((count + 7) // 8,):
        raise WireError(f"a mask of {count} columns holds {bits.dtype} {tuple(bits.shape)}")
    flat = np.unpackbits(bits.numpy(), count=count)
    return torch.from_numpy(flat.astype(bool)).reshape(shape)


def _header(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["parcel"])
    return header


def _tensor(info: dict[str, Any]) -> Tensor:
    dtype = _DTYPES[info["dtype"]]
    if not info["data"]:
        return torch.empty(info["shape"], dtype=dtype)
    return torch.frombuffer(bytearray(info["data"]), dtype=dtype).reshape(info["shape"])
