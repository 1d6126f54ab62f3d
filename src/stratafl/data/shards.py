"""Shards: samples in npz files of limited size with a JSON manifest, for a machine without network access."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from stratafl.data.formats.npz_files import npz_arrays, npz_headers
from stratafl.data.memory_limit import USUAL_LIMIT, MemoryLimit
from stratafl.data.samples import FORMAT, Samples, arrays, facts, samples_from
from stratafl.errors import DataError
from stratafl.files import atomically

MANIFEST = "stratafl-data.json"
MAX_SHARD_BYTES = 30_000_000
_HEADERS, _SPARE = 2048, 0.99  # bytes of names and shapes; data that cannot be compressed grows a little


def is_sharded(place: Path) -> bool:
    return (place / MANIFEST).is_file()


def write_shards(samples: Samples, folder: Path, largest: int = MAX_SHARD_BYTES) -> list[Path]:
    """Write the samples into a new folder, in files of at most `largest` bytes, and return the files."""
    place = folder.absolute()
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise DataError(f"'{folder}' exists and is not empty: choose another folder")
    try:
        with atomically(place) as partial:
            partial.mkdir(parents=True)
            shards = _write_all(samples, partial, largest)
            manifest = facts(samples) | {"shards": shards}
            (partial / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write '{folder}': {error.strerror}") from error
    return [folder / shard["file"] for shard in shards]


def digest_name(samples: Samples) -> str:
    """A name for a folder of these samples that other samples do not have."""
    digest = hashlib.sha256(json.dumps(facts(samples), sort_keys=True).encode())
    for name, array in arrays(samples).items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return f"{samples.name}-{digest.hexdigest()[:12]}"


def store_samples(samples: Samples, folder: Path) -> None:
    """Write the samples into a folder of their name, unless they are there."""
    if not is_sharded(folder):
        write_shards(samples, folder)


def _write_all(samples: Samples, folder: Path, largest: int) -> list[dict[str, Any]]:
    stored = arrays(samples)
    sample_bytes = sum(array.nbytes for array in stored.values()) / max(1, len(samples.x))
    rows = int((largest - _HEADERS) * _SPARE / sample_bytes)
    if rows < 1:
        wrong = f"a sample of '{samples.name}' takes {sample_bytes:,.0f} bytes"
        raise DataError(f"{wrong}: choose larger shards than {largest:,} bytes")
    starts = range(0, len(samples.x), rows)
    shards = []
    for number, start in enumerate(starts):
        file = f"samples-{number:05d}-of-{len(starts):05d}.npz"
        packed = BytesIO()
        np.savez_compressed(packed, **{name: array[start : start + rows] for name, array in stored.items()})  # type: ignore[arg-type]
        data = packed.getvalue()
        (folder / file).write_bytes(data)
        shards.append({"file": file, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    return shards


def read_shards(folder: Path, limit: MemoryLimit = USUAL_LIMIT) -> Samples:
    """The samples of all shards; refused if one is missing or damaged."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise DataError(f"'{folder}' has format {manifest['format']}, but only format {FORMAT} can be read")
        return samples_from(manifest, _joined(folder, manifest["shards"], limit))
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise DataError(f"'{folder / MANIFEST}' is damaged: export the data again") from error


def _joined(folder: Path, shards: Sequence[Mapping[str, Any]], limit: MemoryLimit) -> dict[str, Any]:
    for shard in shards:
        if shard["file"] == ".." or Path(shard["file"]).name != shard["file"]:
            raise DataError(f"'{folder / MANIFEST}' names the shard '{shard['file']}', which is outside its folder")
        file = folder / shard["file"]
        if not file.is_file():
            raise DataError(f"'{folder}' lacks the shard '{file.name}', one of {len(shards)}: copy it there as well")
        if hashlib.sha256(file.read_bytes()).hexdigest() != shard["sha256"]:
            raise DataError(f"'{file}' is damaged: copy it again")
    headers = [npz_headers(folder / shard["file"]) for shard in shards]
    sizes = [sum(each.bytes for each in arrays.values()) for arrays in headers]
    limit.check(sum(sizes) + max(sizes), f"'{folder}'")
    whole = {
        name: np.empty((sum(each[name].shape[0] for each in headers), *first.shape[1:]), first.dtype)
        for name, first in headers[0].items()
    }
    start = 0
    for shard in shards:  # copied one by one, so that the whole is never in memory twice
        part = npz_arrays(folder / shard["file"])
        rows = slice(start, start + len(part["x"]))
        for name, array in part.items():
            if array.dtype != whole[name].dtype or len(array) != len(part["x"]):
                raise ValueError(f"'{name}' does not fit the first shard")
            whole[name][rows] = array
        start = rows.stop
    return whole
