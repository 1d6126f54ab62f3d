"""Saved states: a safetensors file with a record and a checksum of its content, written completely or not at all.

Any reader of safetensors opens it. The checksum is the first entry of its metadata, at a fixed place, and is that of
the file with zeros in its place.
"""

import errno
import json
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, deserialize
from torch import Tensor

from stratafl.core.form import DTYPES, NAMES
from stratafl.core.layout import Rows
from stratafl.core.wire import file_parts
from stratafl.errors import DamagedError, RunError, shown
from stratafl.files import explained, json_value, read_plain, write_atomically

FORMAT = 1  # of the files of an exchange
_START = b'{"__metadata__":{"checksum":"'
_SUM = slice(8 + len(_START), 8 + len(_START) + 64)
_UNKNOWN = b"0" * 64
_FULL = (errno.ENOSPC, errno.EDQUOT)


class DiskFullError(RunError):
    """A disk that is full, or a quota that is used up: nothing was changed."""


def write_state(path: Path, record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a state, so that it survives a power cut; if that fails, what was there before is still there."""
    for name, tensor in tensors.items():
        if tensor.dtype not in NAMES:
            raise RunError(f"the state cannot be saved: '{name}' is {tensor.dtype}; choose one of: {', '.join(DTYPES)}")
    metadata = {"checksum": _UNKNOWN.decode(), "record": json.dumps({"format": FORMAT, **record}, sort_keys=True)}
    header, *parts = file_parts(tensors, metadata)
    hashed = blake2b(header, digest_size=32)
    for part in parts:
        hashed.update(part)
    header = header[: _SUM.start] + hashed.hexdigest().encode() + header[_SUM.stop :]
    try:
        write_atomically(path, header, *parts)
    except RunError as error:
        raise explained_full(error) from error


def explained_full(error: RunError) -> RunError:
    """The error, which says what to do if the disk is full."""
    if isinstance(error.__cause__, OSError) and error.__cause__.errno in _FULL:
        return DiskFullError(f"{error}; nothing is lost: free some space and try again")
    return error


def read_state(path: Path, most: int) -> tuple[dict[str, Any], Rows]:
    """The record and the tensors of a file of at most `most` bytes; an error if the file was changed."""
    with explained("read", path):
        data = read_plain(path, min(most, path.stat().st_size))
    if data[8 : _SUM.start] != _START:
        raise DamagedError(f"'{path}' is damaged: it does not begin like a saved state")
    hashed = blake2b(data[: _SUM.start] + _UNKNOWN, digest_size=32)
    hashed.update(memoryview(data)[_SUM.stop :])
    if data[_SUM] != hashed.hexdigest().encode():
        raise DamagedError(f"'{path}' is damaged: its checksum is wrong")
    try:
        header = json_value(data[8 : 8 + int.from_bytes(data[:8], "little")])
        record = json_value(header["__metadata__"]["record"].encode())
        tensors = {name: _tensor(info) for name, info in deserialize(data)}
    except (SafetensorError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise DamagedError(f"'{path}' is damaged: {shown(error)}") from error
    _check_format(path, record)
    return record, tensors


def _check_format(path: Path, record: Any) -> None:
    number = record.get("format") if isinstance(record, dict) else None
    if type(number) is not int or number < 1:
        raise DamagedError(f"'{path}' is damaged: its format is {shown(number, 40)}, not a number from 1 to {FORMAT}")
    if number > FORMAT:
        formats = f"(format {shown(number, 40)}; this version reads up to {FORMAT})"
        raise RunError(f"'{path}' was written by a newer version of stratafl {formats}: update stratafl")


def _tensor(info: Mapping[str, Any]) -> Tensor:
    """In memory of its own, aligned as in a process that was never restarted."""
    dtype, data = DTYPES[info["dtype"]], info["data"]
    return (
        torch.frombuffer(data, dtype=dtype).reshape(info["shape"]).clone()
        if data
        else torch.empty(info["shape"], dtype=dtype)
    )
