"""The predictions of a finished run: outputs of the models that count for every validation and test sample.

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

from stratafl.core.state import bytes_of
from stratafl.errors import DamagedError, DataError
from stratafl.evaluation.predictions import Predictions
from stratafl.files import explained, open_plain, read_plain, write_atomically
from stratafl.runs.class_counts import counts_array, stored_class_counts

PREDICTIONS = "predictions.safetensors"
MAX_FILE_BYTES, MAX_HEADER_BYTES = 16 << 30, 1 << 20  # bytes that are read
SUM_TOLERANCE = 0.01  # how far from 1 the sum of rounded probabilities may be
PARTS = ("client", "y", "scores")


def write_predictions(
    folder: Path, by_split: Mapping[str, Predictions], round: int, stage: str, handle: int | None = None
) -> None:
    """Write the predictions of each split; `handle` is that of the folder."""
    parts = [(split, part) for split in by_split for part in PARTS]
    tensors = {f"{split}.{part}": getattr(by_split[split], part).contiguous() for split, part in parts}
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
        client, y, scores = (tensors[f"{split}.{part}"] for part in PARTS)
        predictions = Predictions(client, y, scores)
        _check(predictions)
        _check_samples(predictions, split, stored_class_counts(folder))
    except KeyError as error:
        raise _damaged(path, f"{error} is missing") from error
    except (TypeError, ValueError, DataError) as error:  # a tensor without dimensions has no length
        raise _damaged(path, str(error)) from error
    return predictions


def _check(predictions: Predictions) -> None:
    """Raise ValueError unless types, shapes and values are those of predictions; a model that diverged gives NaN."""
    client, y, scores = predictions.client, predictions.y, predictions.scores
    if (client.dtype, client.ndim, y.ndim, scores.dtype) != (torch.int64, 1, 1, torch.float32):
        raise ValueError("clients are whole numbers [n], targets are [n], scores are float32 [n, K]")
    if y.dtype not in (torch.int64, torch.int32, torch.float32, torch.float64) or not scores.shape[1]:
        raise ValueError("targets are whole numbers or numbers, and there are scores")
    if not predictions.labelled and (scores.shape[1] != 1 or not bool(y.isfinite().all())):
        raise ValueError("if targets are numbers, they are finite and scores are [n, 1]")
    if predictions.labelled and bool(((y < 0) | (y >= scores.shape[1])).any()):
        raise ValueError(f"labels are from 0 to {scores.shape[1] - 1}")
    if predictions.labelled and bool(((scores < 0) | ((scores.sum(1, keepdim=True) - 1).abs() > SUM_TOLERANCE)).any()):
        raise ValueError("scores of classes are probabilities, which sum to 1")


def _check_samples(predictions: Predictions, split: str, counts: dict[str, Any] | None) -> None:
    """Raise ValueError unless each client that is there has as many samples as the run recorded."""
    if counts is None or split not in counts["counts"]:
        return
    expected = counts_array(counts["counts"][split]).sum(1)
    clients, samples = (each.numpy() for each in predictions.client.unique(return_counts=True))
    outside = clients[(clients < 0) | (clients >= len(expected))]
    if len(outside):
        raise ValueError(f"the run has no client {outside[0]}")
    for place in (expected[clients] != samples).nonzero()[0][:1]:
        client = clients[place]
        raise ValueError(f"client {client} has {expected[client]} {split} samples, not {samples[place]}")


def predicted_round(folder: Path) -> int | None:
    """The round whose predictions a run directory holds; None without any.

    Only the header is read, and whether the file is as long as that says: a run is opened often, and this can be large.
    """
    path = folder / PREDICTIONS
    if not os.path.lexists(path):
        return None
    with explained("read", path), os.fdopen(open_plain(path), "rb") as file:
        head = file.read(min(int.from_bytes(file.read(8), "little"), MAX_HEADER_BYTES))
        size = os.fstat(file.fileno()).st_size
    about, length = _header(path, head)
    if size != 8 + len(head) + length:
        raise _damaged(path)
    return about["round"]  # type: ignore[no-any-return]


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with explained("read", path):
        data = read_plain(path, MAX_FILE_BYTES)
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


def _damaged(path: Path, why: str = "") -> DamagedError:
    reason = f"{why}; " if why else ""
    return DamagedError(f"'{path}' is damaged: {reason}remove it, and write it again with 'strata resume'")


def _digest(tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {list(tensors[name].shape)} {tensors[name].dtype}".encode())
        digest.update(bytes_of(tensors[name]).numpy().tobytes())
    return digest.hexdigest()
