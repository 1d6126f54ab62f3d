"""The predictions of a finished run: what its models that count give for every validation and test sample.

`predictions.safetensors` holds `test.client`, `test.y` and `test.scores`, and the same for validation; its metadata say
of which round and stage they are, with a checksum against damage and careless editing.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from stratafl.errors import DamagedError, DataError
from stratafl.evaluation.predictions import Predictions
from stratafl.files import explained, open_plain, read_plain, write_atomically

PREDICTIONS = "predictions.safetensors"
LARGEST, LARGEST_HEAD = 16 << 30, 1 << 20  # bytes that are read
PARTS = ("client", "y", "scores")


def write_predictions(
    folder: Path, found: Mapping[str, Predictions], round: int, stage: str, handle: int | None = None
) -> None:
    """Write the predictions of each split; `handle` is that of the folder."""
    tensors = {f"{split}.{part}": getattr(each, part).contiguous() for split, each in found.items() for part in PARTS}
    about = {"round": round, "stage": stage, "sha256": _digest(tensors)}
    # One entry, because safetensors writes several in any order, and equal runs have equal files.
    write_atomically(folder / PREDICTIONS, save(tensors, {"stratafl": json.dumps(about)}), folder=handle)


def read_predictions(folder: Path, split: str = "test") -> Predictions | None:
    """The predictions of a run on a split; None if it is unfinished, of an older version, or without that split."""
    path = folder / PREDICTIONS
    if not os.path.lexists(path):
        return None
    tensors, _ = _read(path)
    if f"{split}.client" not in tensors:
        return None
    try:
        return Predictions(*(tensors[f"{split}.{part}"] for part in PARTS))
    except (KeyError, DataError) as error:
        raise DamagedError(f"'{path}' is damaged: {error}") from error


def predicted_round(folder: Path) -> int | None:
    """The round whose predictions a run directory holds; None without any.

    Only the header is read, and whether the file is as long as that says: a run is opened often, and this can be large.
    """
    path = folder / PREDICTIONS
    if not os.path.lexists(path):
        return None
    with explained("read", path), os.fdopen(open_plain(path), "rb") as file:
        head = file.read(min(int.from_bytes(file.read(8), "little"), LARGEST_HEAD))
        size = os.fstat(file.fileno()).st_size
    about, length = _header(path, head)
    if size != 8 + len(head) + length:
        raise _damaged(path)
    return about["round"]  # type: ignore[no-any-return]


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with explained("read", path):
        data = read_plain(path, LARGEST)
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise _damaged(path) from error
    about, _ = _header(path, data[8 : 8 + int.from_bytes(data[:8], "little")])
    if about["sha256"] != _digest(tensors):
        raise DamagedError(f"'{path}' was changed: remove it, and write it again with 'strata resume'")
    return tensors, about


def _header(path: Path, head: bytes) -> tuple[dict[str, Any], int]:
    """What a file says of itself, and how many bytes of tensors follow."""
    try:
        table = json.loads(head)
        about = json.loads(table.pop("__metadata__")["stratafl"])
        length = max((int(each["data_offsets"][1]) for each in table.values()), default=0)
        if type(about["round"]) is int and isinstance(about["sha256"], str):
            return about, length
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise _damaged(path) from error
    raise _damaged(path)


def _damaged(path: Path) -> DamagedError:
    return DamagedError(f"'{path}' is damaged: remove it, and write it again with 'strata resume'")


def _digest(tensors: Mapping[str, Tensor]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        plain = tensors[name].contiguous()
        found.update(f"{name} {list(plain.shape)} {plain.dtype}".encode())
        found.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
