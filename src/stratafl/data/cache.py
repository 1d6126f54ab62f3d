"""Decoded samples, kept in `$STRATAFL_CACHE` or `~/.cache/stratafl` and mapped into memory when they are read again."""

import hashlib
import json
import os
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.data.manifest import arrays, facts, samples_from
from stratafl.data.memory_limit import USUAL_LIMIT, MemoryLimit
from stratafl.data.samples import Samples
from stratafl.errors import DataError
from stratafl.files import atomically

_ENTRY = "entry.json"
_AT_ONCE = 1 << 24


def cache_folder() -> Path:
    """Where decoded samples are kept."""
    given = os.environ.get("STRATAFL_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "stratafl"


def fingerprint(place: Path) -> list[list[Any]]:
    """The files of a place by name, size and time: another list means that something may have changed."""
    files = sorted(file for file in _below(place) if file.is_file()) if place.is_dir() else [place]
    known = [(file, file.stat()) for file in files]
    return [[str(file.absolute()), stat.st_size, stat.st_mtime_ns] for file, stat in known]


def _below(place: Path) -> Iterator[Path]:
    """What is below a folder, also where a link leads to another; where links go in a circle, no further."""
    seen = set[str]()
    for folder, folders, files in os.walk(place, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            folders.clear()
        seen.add(real)
        yield from (Path(folder, file) for file in files)


def entry_of(name: str, key: Any) -> Path:
    """The folder of what was decoded under a name from all that the key tells."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    return cache_folder() / f"{name}-{digest[:16]}"


def kept(name: str, key: Any, build: Callable[[], Samples], limit: MemoryLimit = USUAL_LIMIT) -> Samples:
    """The samples that were kept, or else built and kept; without a place to keep them they are built each time."""
    entry = entry_of(name, key)
    found = read_entry(entry, limit)
    if found is not None:
        return found
    built = build()
    if built.elsewhere:
        return built
    try:
        shutil.rmtree(entry, ignore_errors=True)  # a damaged one
        _write(entry, built)
    except OSError:
        return built
    return read_entry(entry) or built  # pages of the file, which the system takes back when it needs them


def entries(name: str) -> list[Path]:
    """The complete entries of a name."""
    return sorted(file.parent for file in cache_folder().glob(f"{name}-{'?' * 16}/{_ENTRY}"))


def read_entry(entry: Path, limit: MemoryLimit | None = None) -> Samples | None:
    """What was kept, or None if it is not there or not what was written."""
    try:
        told = json.loads((entry / _ENTRY).read_text(encoding="utf-8"))
        # a private map: pages are shared with whoever reads the same file, and nobody writes to it
        held = {name: np.load(entry / f"{name}.npy", mmap_mode="c", allow_pickle=False) for name in told["checksums"]}
        if limit is not None:
            limit.check(sum(array.nbytes for array in held.values()), f"'{told['name']}' in '{entry}'")
        if any(_checksum(array) != told["checksums"][name] for name, array in held.items()):
            return None
        return samples_from(told, held)
    except (OSError, ValueError, LookupError, TypeError, EOFError, DataError):
        return None


def _write(entry: Path, samples: Samples) -> None:
    with atomically(entry) as partial:
        partial.mkdir(parents=True)
        held = arrays(samples)
        for name, array in held.items():
            np.save(partial / f"{name}.npy", array, allow_pickle=False)
        told = facts(samples) | {"checksums": {name: _checksum(array) for name, array in held.items()}}
        (partial / _ENTRY).write_text(json.dumps(told), encoding="utf-8")


def _checksum(array: NDArray[Any]) -> int:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    total = 0
    for start in range(0, len(flat), _AT_ONCE):
        total = zlib.crc32(flat[start : start + _AT_ONCE].data, total)
    return total
