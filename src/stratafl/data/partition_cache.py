"""A cache of slow draws, in `$STRATAFL_CACHE` or `~/.cache/stratafl`, keyed by everything they depend on."""

import hashlib
import json
import time
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from stratafl.core.records import to_table
from stratafl.data.cache import cache_folder
from stratafl.data.partitions.base import Assignment, Partition
from stratafl.errors import RecordError
from stratafl.files import atomically

VERSION = 1  # raised when a partition draws something else from the same random numbers
WORTH_KEEPING = 0.5  # seconds


def draw_partition(
    partition: Partition,
    labels: NDArray[Any],
    clients: int,
    seed: int,
    *,
    tests: NDArray[np.bool_] | None = None,
    owner: NDArray[Any] | None = None,
) -> Assignment:
    """What the partition draws, from the cache if it has been drawn before."""
    entry = _entry(partition, [labels, tests, owner], clients, seed)
    cached = None if entry is None else _read(entry)
    if cached is not None:
        return cached
    started = time.perf_counter()
    drawn = partition(labels, clients, seed, tests=tests, owner=owner)
    assignment = drawn if isinstance(drawn, Assignment) else Assignment(drawn)
    if entry is not None and time.perf_counter() - started > WORTH_KEEPING:
        _write(entry, assignment)
    return assignment


def _entry(partition: Partition, arrays: list[NDArray[Any] | None], clients: int, seed: int) -> Path | None:
    """The file of a draw; None for a partition that is not a record, whose settings are unknown."""
    try:
        record = to_table(partition)
    except RecordError:
        return None
    dependencies = {"version": VERSION, "numpy": np.__version__, "record": record, "clients": clients, "seed": seed}
    total = hashlib.sha256(json.dumps(dependencies, sort_keys=True).encode())
    for array in arrays:
        plain = np.ascontiguousarray([] if array is None else array)
        plain = plain.astype(np.str_) if plain.dtype == object else plain
        total.update(f"{array is None} {plain.dtype} {plain.shape}".encode())
        total.update(plain.tobytes())
    return cache_folder() / "partitions" / f"{total.hexdigest()}.npz"


def _read(entry: Path) -> Assignment | None:
    """The stored draw, or None if there is no file or its checksums do not match."""
    try:
        with entry.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
        train = np.split(arrays["train"], arrays["train_cuts"])
        test = np.split(arrays["test"], arrays["test_cuts"]) if "test" in arrays else None
        return Assignment(train, test, bool(arrays.get("overlap")))  # early versions did not write it for most
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error):
        return None


def _write(entry: Path, assignment: Assignment) -> None:
    arrays: dict[str, NDArray[Any]] = {"overlap": np.array(assignment.overlap)}
    for name, indices in (("train", assignment.train), ("test", assignment.test)):
        if indices is not None:
            arrays |= {name: np.concatenate(indices), f"{name}_cuts": np.cumsum([*map(len, indices)])[:-1]}
    with suppress(OSError):  # if it cannot be written, it is drawn again next time
        entry.parent.mkdir(parents=True, exist_ok=True)
        with atomically(entry) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
