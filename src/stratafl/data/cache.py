"""Caches in `$STRATAFL_CACHE` or `~/.cache/stratafl`: decoded samples, mapped into memory, and slow draws.

Both are keyed by everything they depend on.
"""

import hashlib
import json
import os
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from stratafl.core.records import to_table
from stratafl.data.memory_limit import USUAL_LIMIT, MemoryLimit
from stratafl.data.partitions.base import Assignment, Partition, Pieces
from stratafl.data.samples import Samples, arrays, facts, samples_from
from stratafl.errors import DataError, RecordError
from stratafl.files import atomically, cache_folder

_ENTRY = "entry.json"
DRAW_VERSION = 1  # raised when a partition draws something else from the same random numbers
WORTH_KEEPING = 0.5  # seconds


def fingerprint(place: Path) -> list[list[Any]]:
    """Name, size and time of every file of a place: a different list means that a file may have changed."""
    files = sorted(file for file in _below(place) if file.is_file()) if place.is_dir() else [place]
    stats = [(file, file.stat()) for file in files]
    return [[str(file.absolute()), stat.st_size, stat.st_mtime_ns] for file, stat in stats]


def _below(place: Path) -> Iterator[Path]:
    """All files below a folder, following links, but each folder once."""
    seen = set[str]()
    for folder, folders, files in os.walk(place, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
        seen.add(real)
        yield from (Path(folder, file) for file in files)


def entry_of(name: str, key: Any) -> Path:
    """The folder of the samples with this name, keyed by everything they depend on."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_folder() / f"{name}-{digest[:16]}"


def cached(name: str, key: Any, build: Callable[[], Samples], limit: MemoryLimit = USUAL_LIMIT) -> Samples:
    """The samples in the cache, or else built and cached; built each time if the cache cannot be written."""
    entry = entry_of(name, key)
    samples = read_entry(entry, limit)
    if samples is not None:
        return samples
    built = build()
    if built.elsewhere:
        return built
    try:
        shutil.rmtree(entry, ignore_errors=True)  # a damaged one
        _write(entry, built)
    except OSError:
        return built
    return read_entry(entry) or built  # pages of a file, which the system can drop when it needs memory


def entries(name: str) -> list[Path]:
    return sorted(file.parent for file in cache_folder().glob(f"{name}-{'?' * 16}/{_ENTRY}"))


def read_entry(entry: Path, limit: MemoryLimit | None = None) -> Samples | None:
    """The samples of an entry; None if there is no entry or it is damaged."""
    try:
        manifest = json.loads((entry / _ENTRY).read_text(encoding="utf-8"))
        # a private map: processes that read the same file share its pages, and writing does not change the file
        stored = {
            name: np.load(entry / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in manifest["checksums"]
        }
        if limit is not None:
            limit.check(sum(array.nbytes for array in stored.values()), f"'{manifest['name']}' in '{entry}'")
        if any(_checksum(array) != manifest["checksums"][name] for name, array in stored.items()):
            return None
        return samples_from(manifest, stored)
    except (OSError, ValueError, LookupError, TypeError, EOFError, DataError):
        return None


def _write(entry: Path, samples: Samples) -> None:
    with atomically(entry) as partial:
        partial.mkdir(parents=True)
        stored = arrays(samples)
        for name, array in stored.items():
            np.save(partial / f"{name}.npy", array, allow_pickle=False)
        manifest = facts(samples) | {"checksums": {name: _checksum(array) for name, array in stored.items()}}
        (partial / _ENTRY).write_text(json.dumps(manifest), encoding="utf-8")


def _checksum(array: NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


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
    entry = _draw_file(partition, [labels, tests, owner], clients, seed)
    stored = None if entry is None else _read_draw(entry)
    if stored is not None:
        return stored
    started = time.perf_counter()
    drawn = partition(labels, clients, seed, tests=tests, owner=owner)
    assignment = drawn if isinstance(drawn, Assignment) else Assignment(drawn)
    if entry is not None and time.perf_counter() - started > WORTH_KEEPING:
        _write_draw(entry, assignment)
    return assignment


def _draw_file(partition: Partition, inputs: list[NDArray[Any] | None], clients: int, seed: int) -> Path | None:
    """The file of a draw; None for a partition that is not a record, whose settings are unknown."""
    try:
        record = to_table(partition)
    except RecordError:
        return None
    key = {"version": DRAW_VERSION, "numpy": np.__version__, "record": record, "clients": clients, "seed": seed}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode())
    for array in inputs:
        plain = np.ascontiguousarray([] if array is None else array)
        plain = plain.astype(np.str_) if plain.dtype == object else plain
        digest.update(f"{array is None} {plain.dtype} {plain.shape}".encode())
        digest.update(plain.tobytes())
    return cache_folder() / "partitions" / f"{digest.hexdigest()}.npz"


def _read_draw(entry: Path) -> Assignment | None:
    """The stored draw, or None if there is no file or it is damaged (a zip archive has checksums)."""
    try:
        with entry.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            columns = {name: stored[name] for name in stored.files}
        train = _pieces(columns["train"], columns["train_cuts"])
        test = _pieces(columns["test"], columns["test_cuts"]) if "test" in columns else None
        return Assignment(train, test, bool(columns.get("overlap")))  # early versions wrote it for few partitions
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error):
        return None


def _pieces(flat: NDArray[Any], cuts: NDArray[Any]) -> Pieces:
    sizes = np.diff(np.concatenate([[0], cuts, [len(flat)]]))
    if (sizes < 0).any():
        raise ValueError("the cuts are not in order")
    return Pieces(flat, sizes)


def _write_draw(entry: Path, assignment: Assignment) -> None:
    columns: dict[str, NDArray[Any]] = {"overlap": np.array(assignment.overlap)}
    for name, indices in (("train", assignment.train), ("test", assignment.test)):
        if indices is not None:
            pieces = Pieces.of(indices)
            columns |= {name: pieces.flat, f"{name}_cuts": np.cumsum(pieces.sizes)[:-1]}
    with suppress(OSError):  # if it cannot be written, it is drawn again next time
        entry.parent.mkdir(parents=True, exist_ok=True)
        with atomically(entry) as partial, partial.open("wb") as file:
            np.savez_compressed(file, **columns)  # type: ignore[arg-type]
