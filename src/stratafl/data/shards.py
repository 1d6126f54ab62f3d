"""Samples in npz files of limited size with a JSON manifest, for a machine that has numpy and no network."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from stratafl.data.formats.tables import headers_of, npz_arrays
from stratafl.data.manifest import FORMAT, arrays, facts, samples_from
from stratafl.data.memory_limit import USUAL_LIMIT, MemoryLimit
from stratafl.data.samples import Samples
from stratafl.errors import DataError
from stratafl.files import atomically

MANIFEST = "stratafl-data.json"
LARGEST = 30_000_000
_HEADERS, _SPARE = 2048, 0.99  # bytes of names and shapes; what cannot be compressed grows a little


def is_sharded(place: Path) -> bool:
    """Whether a folder holds shards and their manifest."""
    return (place / MANIFEST).is_file()


def write_shards(samples: Samples, folder: Path, largest: int = LARGEST) -> list[Path]:
    """Write the samples into a new folder, in files of at most `largest` bytes; the files."""
    place = folder.absolute()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise DataError(f"'{folder}' exists and is not empty: choose another folder")
    try:
        with atomically(place) as partial:
            partial.mkdir(parents=True)
            shards = _write_all(samples, partial, largest)
            told = facts(samples) | {"shards": shards}
            (partial / MANIFEST).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write '{folder}': {error.strerror}") from error
    return [folder / shard["file"] for shard in shards]


def _write_all(samples: Samples, folder: Path, largest: int) -> list[dict[str, Any]]:
    held = arrays(samples)
    each = sum(array.nbytes for array in held.values()) / max(1, len(samples.x))
    rows = int((largest - _HEADERS) * _SPARE / each)
    if rows < 1:
        raise DataError(f"one sample of '{samples.name}' takes {each:,.0f} bytes, more than a shard of {largest:,}")
    starts = range(0, len(samples.x), rows)
    shards = []
    for number, start in enumerate(starts):
        file = f"samples-{number:05d}-of-{len(starts):05d}.npz"
        packed = BytesIO()
        np.savez_compressed(packed, **{name: array[start : start + rows] for name, array in held.items()})  # type: ignore[arg-type]
        data = packed.getvalue()
        (folder / file).write_bytes(data)
        shards.append({"file": file, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return shards


def read_shards(folder: Path, limit: MemoryLimit = USUAL_LIMIT) -> Samples:
    """The samples of all shards, if every one is there and what was written."""
    try:
        told = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if told["format"] != FORMAT:
            raise DataError(f"'{folder}' is written in format {told['format']}, this one reads format {FORMAT}")
        return samples_from(told, _joined(folder, told["shards"], limit))
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"'{folder / MANIFEST}' is damaged: export the data again") from error


def _joined(folder: Path, shards: Sequence[Mapping[str, Any]], limit: MemoryLimit) -> dict[str, Any]:
    for shard in shards:
        if shard["file"] == ".." or Path(shard["file"]).name != shard["file"]:
            raise DataError(f"'{folder / MANIFEST}' names the shard '{shard['file']}', which is not in its folder")
        file = folder / shard["file"]
        if not file.is_file():
            raise DataError(f"'{folder}' lacks the shard '{file.name}', one of {len(shards)}: copy it there as well")
        if hashlib.sha256(file.read_bytes()).hexdigest() != shard["sha256"]:
            raise DataError(f"'{file}' is damaged: copy it again")
    announced = [headers_of(folder / shard["file"]) for shard in shards]
    sizes = [sum(each.bytes for each in arrays.values()) for arrays in announced]
    limit.check(sum(sizes) + max(sizes), f"'{folder}'")
    whole = {
        name: np.empty((sum(each[name].shape[0] for each in announced), *first.shape[1:]), first.dtype)
        for name, first in announced[0].items()
    }
    start = 0
    for shard in shards:  # one after the other into the whole, which is never there twice
        part = npz_arrays(folder / shard["file"])
        rows = slice(start, start + len(part["x"]))
        for name, array in part.items():
            if array.dtype != whole[name].dtype or len(array) != len(part["x"]):
                raise ValueError(f"'{name}' is not what was written")
            whole[name][rows] = array
        start = rows.stop
    return whole
