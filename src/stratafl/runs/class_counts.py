"""Class counts: how many samples of each class each client has, stored with the run.

Of many clients, the file has the counts of a split as a text: 32-bit numbers in base64, client by client.
"""

import json
import os
import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from stratafl.config.assemble import federation_of
from stratafl.config.experiment import Experiment
from stratafl.data import Federation
from stratafl.data.federation import SPLITS
from stratafl.errors import DamagedError, StrataError
from stratafl.files import write_atomically
from stratafl.runs.json_files import is_count, is_list_of, read_json

CLASS_COUNTS, OLD_NAME = "class_counts.json", "holdings.json"  # the old name until format 2
MIN_PACKED_CLIENTS = 10_000  # clients from which counts are packed
MAX_CELLS = 1_000_000  # clients × classes up to which single classes are written
MAX_REBUILT_BYTES = 64 << 20  # bytes of a data file that is read again for its class counts


class CountRows(Sequence[Sequence[int]]):
    """The counts of many clients: rows like lists, kept as one array `[N, classes]`."""

    def __init__(self, array: NDArray[np.int64]) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, place: int) -> list[int]: ...
    @overload
    def __getitem__(self, place: slice) -> "CountRows": ...
    def __getitem__(self, place: int | slice) -> "list[int] | CountRows":
        if isinstance(place, slice):
            return CountRows(self.array[place])
        row: list[int] = self.array[place].tolist()
        return row

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CountRows) and np.array_equal(self.array, other.array)

    __hash__ = None  # type: ignore[assignment]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.array.astype(dtype or self.array.dtype)


def counts_array(rows: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """The rows of clients as an array `[N, classes]`."""
    if isinstance(rows, CountRows):
        return rows.array
    return np.array([*rows], np.int64).reshape(len(rows), -1 if len(rows) else 1)


def class_counts(federation: Federation) -> dict[str, Any]:
    """Counts per split, client and class, and the names of clients and classes.

    There is one column of totals if there are no classes, or too many cells.
    """
    by_class = federation.classes is not None and federation.clients * federation.classes <= MAX_CELLS
    tensors = [federation.class_counts(split) if by_class else federation.counts(split)[:, None] for split in SPLITS]
    many = federation.clients >= MIN_PACKED_CLIENTS
    counts = {  # one row per client, one column per class
        split: CountRows(x.numpy()) if many else x.tolist() for split, x in zip(SPLITS, tensors, strict=True)
    }
    names = {"client_names": federation.client_names, "class_names": federation.class_names if by_class else ()}
    named = {key: list(listed) for key, listed in names.items() if listed}
    classes = federation.classes if by_class else None
    return {"classes": classes, "clients": federation.clients, "counts": counts, **named}


def write_class_counts(folder: Path, federation: Federation) -> None:
    counts = class_counts(federation)
    counts["counts"] = {split: _packed(rows) for split, rows in counts["counts"].items()}
    write_atomically(folder / CLASS_COUNTS, _encoded({**counts, "checksum": _checksum(counts)}) + b"\n")


def _packed(rows: Any) -> Any:
    return b64encode(rows.array.astype("<i4").tobytes()).decode() if isinstance(rows, CountRows) else rows


def _unpacked(stored: dict[str, Any]) -> dict[str, Any]:
    """With the rows of texts; ValueError if they do not have a row for each client."""
    counts, clients, classes = (stored.get(key) for key in ("counts", "clients", "classes"))
    if not isinstance(counts, dict) or not any(isinstance(rows, str) for rows in counts.values()):
        return stored
    if not (is_count(clients) and (classes is None or is_count(classes))):
        raise ValueError("clients and classes are not numbers")
    shape = int(clients or 0), int(classes or 1)
    arrays = {split: np.frombuffer(b64decode(rows, validate=True), "<i4") for split, rows in counts.items()}
    return {**stored, "counts": {k: CountRows(x.reshape(shape).astype(np.int64)) for k, x in arrays.items()}}


def _encoded(counts: dict[str, Any]) -> bytes:
    return json.dumps(counts, separators=(",", ":")).encode()


def _checksum(counts: dict[str, Any]) -> str:
    """Of everything else in the file, against damage and careless editing."""
    return f"{zlib.crc32(_encoded(counts)):08x}"


def read_class_counts(folder: Path, experiment: Experiment) -> dict[str, Any] | None:
    """The class counts of a run: as written, or from its data if that is quick, or else nothing."""
    if any(os.path.lexists(folder / name) for name in (CLASS_COUNTS, OLD_NAME)):
        return stored_class_counts(folder)
    path = Path(experiment.data.name)
    small = path.suffix == ".npz" and path.is_file() and path.stat().st_size <= MAX_REBUILT_BYTES
    if experiment.data.name != "digits" and not small:
        return None
    try:
        return class_counts(federation_of(experiment))
    except StrataError:  # the file is not what it was
        return None


def stored_class_counts(folder: Path) -> dict[str, Any] | None:
    """The class counts as written, if they are."""
    return next((_read(folder / name) for name in (CLASS_COUNTS, OLD_NAME) if os.path.lexists(folder / name)), None)


def _read(path: Path) -> dict[str, Any] | None:
    stored = read_json(path)
    checksum = stored.pop("checksum", None)  # runs of early versions have none
    if checksum is not None and checksum != _checksum(stored):
        raise DamagedError(f"'{path}' was changed: put it back, or remove it")
    try:
        unpacked = _unpacked(stored)
    except (ValueError, TypeError):
        return None
    return unpacked if _sound(unpacked) else None


def _sound(stored: dict[str, Any]) -> bool:
    counts = stored.get("counts")
    if not (isinstance(counts, dict) and {"train", "test"} <= set(counts)):
        return False
    packed = all(isinstance(rows, CountRows) and len(rows) and rows.array.min() >= 0 for rows in counts.values())
    if not packed and not is_list_of(list, [*counts.values()]):
        return False
    rows = [] if packed else [row for split in counts.values() for row in split]
    classes, clients = stored.get("classes"), len(counts["train"])
    if not (classes is None or is_count(classes)) or not all(len(split) == clients for split in counts.values()):
        return False
    classes = classes or 1
    fitting = all(isinstance(row, list) and len(row) == classes and all(map(is_count, row)) for row in rows)
    return (
        (packed or bool(rows))
        and fitting
        and _names(stored, "client_names", clients)
        and _names(stored, "class_names", classes)
    )


def _names(stored: dict[str, Any], key: str, count: int) -> bool:
    return key not in stored or (is_list_of(str, stored[key]) and len(stored[key]) == count)
