"""The wire: parcels as bytes (safetensors, no pickle), and bytes as parcels that have been checked.

A message is `MAGIC`, the digest of the parcel's form, a checksum of everything else, and a safetensors file with the
values and masks. The receiver knows the form (`form.py`), so it believes nothing that the message says of fields, types
or shapes, what it decodes is as large as the form, whatever the bytes say, and values are within the form's bounds. A
parcel has exactly one encoding, and no other bytes are accepted. The checksum notices damage; it is no signature:
anyone can compute it.
"""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, deserialize
from torch import Tensor

from stratafl.core.form import DTYPES, NAMES, Bound, FieldForm, Form, TensorForm, bitmap, form_of
from stratafl.core.layout import Layout, Rows
from stratafl.core.parcel import ColumnMask, Field, LayerMask, Parcel
from stratafl.core.schema import extremes, out_of_bounds
from stratafl.core.state import bytes_of
from stratafl.errors import WireError

MAGIC = b"parcel 1"  # with the version of the encoding
_FORM, _SUM = slice(8, 24), slice(24, 56)
PREFIX = 56
Entries = dict[str, dict[str, Any]]  # of a safetensors file, by path


def encode(parcel: Parcel, layout: Layout) -> bytes:
    """The parcel of one client as bytes: a header and, exactly, the values and masks that `count_bytes` counts."""
    head, body = MAGIC + form_of(parcel, layout).digest, _body(parcel, layout)
    return b"".join((head, _checksum(head, body), body))


def decode(data: bytes, layout: Layout, form: Form) -> Parcel:
    """The parcel of one client, which has this form; what was not sent is NaN. Anything else is a `WireError`."""
    body = _checked(data, layout, form)
    entries = _entries(body)
    if data[_FORM] != form.digest:
        same = "check that both sides run the same version, algorithm, model and round"
        how = _difference(entries, form, layout)
        raise WireError(f"this parcel has other fields, types or shapes than expected: {how}{same}")
    parcel = Parcel({name: _read(name, field, entries, layout) for name, field in form.fields.items()})
    for path in entries:
        raise WireError(f"these bytes are not a parcel: they hold {path[:80]!r}, which is not part of its form")
    if _body(parcel, layout) != body:
        raise WireError("these bytes are not a parcel: they hold a name twice, or undefined bits")
    for name, field in parcel.items():
        _check_values(name, field, form.fields[name].bound, layout)
    return parcel


def body_bytes(data: bytes) -> int:
    """The bytes of values and masks in an encoded parcel, without its header."""
    return sum(len(info["data"]) for _, info in deserialize(data[PREFIX:]))


def tensor_ends(data: bytes) -> list[int]:
    """Where the header of an encoded parcel ends, and each of its tensors, for senders that split it."""
    begin = PREFIX + 8 + int.from_bytes(data[PREFIX : PREFIX + 8], "little")
    header = json.loads(data[PREFIX + 8 : begin])
    return [begin, *(begin + entry["data_offsets"][1] for entry in header.values())]


def most_bytes(form: Form, layout: Layout) -> int:
    """What a message of this form takes at most: all columns sent, and names and numbers of its header."""
    entries = list(form.entries(layout))
    header = sum(6 * len(path.encode()) + 20 * len(entry.shape) + 120 for path, entry in entries)
    return PREFIX + 16 + header + sum(entry.bytes for _, entry in entries)


def _checked(data: bytes, layout: Layout, form: Form) -> bytes:
    """The body of a message that is whole, and no larger than its form allows."""
    most = most_bytes(form, layout)
    if len(data) > most:
        raise WireError(f"these {len(data):,} bytes are not the expected parcel, which takes at most {most:,}")
    if data[:8] != MAGIC:
        raise WireError(f"these bytes are not a parcel: they begin with {data[:8]!r}, not with {MAGIC!r}")
    body = data[PREFIX:]
    if data[_SUM] != _checksum(data[: _FORM.stop], body):
        raise WireError("these bytes are not a parcel: their checksum is wrong, so they are damaged; send them again")
    return body


def _entries(body: bytes) -> Entries:
    try:
        return dict(deserialize(body))
    except SafetensorError as error:
        raise WireError("these bytes are not a parcel: their content is not a safetensors file") from error


def _difference(entries: Entries, form: Form, layout: Layout) -> str:
    """The first difference that the entries of a message of another form show; some, such as a flag, show nowhere."""
    expected = dict(form.entries(layout))
    for path in entries:
        if path not in expected:
            return f"it holds {path[:80]!r}; "
    for path, entry in expected.items():
        mask = form.fields[path.split("/")[1]].mask
        if path not in entries and (mask != "layers" or path.startswith("mask/")):
            return f"it lacks '{path}'; "
        actual = entries.get(path, {"dtype": entry.dtype, "shape": entry.shape})
        if actual["dtype"] != entry.dtype or (mask != "columns" and tuple(actual["shape"]) != entry.shape):
            return f"it holds '{path}' as {actual['dtype']} {tuple(actual['shape'])}, not {entry.dtype} {entry.shape}; "
    return ""


def _check_values(name: str, field: Field, bound: Bound, layout: Layout) -> None:
    value_range = extremes(field, bound, 1, layout)
    if value_range is not None:
        low, high = value_range[:, 0].tolist()
        wrong = out_of_bounds(name, bound, low, high)
        if wrong:
            raise WireError(wrong)


def _checksum(head: bytes, body: bytes) -> bytes:
    hashed = blake2b(head, digest_size=32)
    hashed.update(body)
    return hashed.digest()


def _body(parcel: Parcel, layout: Layout) -> bytes:
    tensors: Rows = {}
    for name, field in parcel.pick(0).items():
        if isinstance(field.value, Tensor):
            tensors[f"value/{name}"] = field.value
            continue
        if isinstance(field.mask, LayerMask):
            tensors[f"mask/{name}"] = _pack(field.mask.sent)
        for key, block in field.value.items():
            if isinstance(field.mask, ColumnMask):
                sent = field.mask.sent[key]
                tensors[f"mask/{name}/{key}"] = _pack(sent)
                tensors[f"value/{name}/{key}"] = block[sent]
            elif field.mask is None or bool(field.mask.sent[layout.specs[key].layer]):
                tensors[f"value/{name}/{key}"] = block
    return b"".join(file_parts(tensors))


def _read(name: str, form: FieldForm, entries: Entries, layout: Layout) -> Field:
    def lift(tensor: Tensor) -> Tensor:
        return tensor if form.common else tensor.unsqueeze(0)

    if isinstance(form.value, TensorForm):
        return Field(lift(_take(f"value/{name}", form.value, entries)), form.common)
    blocks: Rows = {}
    columns: Rows = {}
    layers = _bits(f"mask/{name}", (len(layout.layers),), entries) if form.mask == "layers" else None
    for key, block in form.value.items():
        path = f"value/{name}/{key}"
        if form.mask == "columns":
            sent = _bits(f"mask/{name}/{key}", block.shape, entries)
            value = _take(path, TensorForm(block.dtype, (int(sent.sum()),)), entries)
            columns[key], blocks[key] = lift(sent), lift(_unsent(block).masked_scatter_(sent, value))
        elif layers is None or bool(layers[layout.specs[key].layer]):
            blocks[key] = lift(_take(path, block, entries))
        else:
            blocks[key] = lift(_unsent(block))
    if layers is not None:
        return Field(blocks, form.common, LayerMask(lift(layers)))
    return Field(blocks, form.common, ColumnMask(columns) if form.mask == "columns" else None)


def _unsent(block: TensorForm) -> Tensor:
    return torch.full(block.shape, torch.nan, dtype=DTYPES[block.dtype])


def _take(path: str, form: TensorForm, entries: Entries) -> Tensor:
    """The tensor at this path, exactly as its form says, out of what was found."""
    info = entries.pop(path, None)
    if info is None:
        raise WireError(f"these bytes are not a parcel: they lack '{path}'")
    if (info["dtype"], tuple(info["shape"])) != (form.dtype, form.shape):
        actual = f"{info['dtype']} {tuple(info['shape'])}"
        raise WireError(f"these bytes are not a parcel: '{path}' is {actual}, not {form.dtype} {form.shape}")
    data = info["data"]
    if form.dtype == "BOOL" and max(data, default=0) > 1:
        raise WireError(f"these bytes are not a parcel: '{path}' holds a boolean that is neither true nor false")
    dtype = DTYPES[form.dtype]
    return torch.frombuffer(data, dtype=dtype).reshape(form.shape) if data else torch.empty(form.shape, dtype=dtype)


def _bits(path: str, shape: tuple[int, ...], entries: Entries) -> Tensor:
    count = TensorForm("U8", shape).size
    flat = np.unpackbits(_take(path, bitmap(count), entries).numpy(), count=count)
    return torch.from_numpy(flat.astype(bool)).reshape(shape)


def _pack(sent: Tensor) -> Tensor:
    return torch.from_numpy(np.packbits(sent.cpu().numpy().reshape(-1)))


def file_parts(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> list[bytes]:
    """A safetensors file: its header with the metadata first, then the bytes of each tensor.

    Not by `safetensors.torch.save`, whose bytes may be others in another version of it.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    parts: list[bytes] = []
    end = 0
    for path, x in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):  # so all are aligned
        parts.append(bytes_of(x.cpu()).numpy().tobytes())
        begin, end = end, end + len(parts[-1])
        header[path] = {"dtype": NAMES[x.dtype], "shape": list(x.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little") + text, *parts]
