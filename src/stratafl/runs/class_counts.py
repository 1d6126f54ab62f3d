"""Class counts: how many samples of each class each client has, stored with the run."""

import json
import os
import zlib
from pathlib import Path
from typing import Any

from stratafl.config.assemble import federation_of
from stratafl.config.experiment import Experiment
from stratafl.data import Federation
from stratafl.data.federation import SPLITS
from stratafl.errors import DamagedError, StrataError
from stratafl.files import write_atomically
from stratafl.runs.json_files import is_count, is_list_of, read_json

CLASS_COUNTS, OLD_NAME = "class_counts.json", "holdings.json"  # the old name until format 2
MAX_CELLS = 1_000_000  # clients × classes up to which single classes are written
MAX_REBUILT_BYTES = 64 << 20  # bytes of a data file that is read again for its class counts


def class_counts(federation: Federation) -> dict[str, Any]:
    """Counts per split, client and class, and the names of clients and classes.

    There is one column of totals if there are no classes, or too many cells.
    """
    by_class = federation.classes is not None and federation.clients * federation.classes <= MAX_CELLS
    counts = {  # one row per client, one column per class
        split: federation.class_counts(split).tolist() if by_class else federation.counts(split)[:, None].tolist()
        for split in SPLITS
    }
    names = {"client_names": federation.client_names, "class_names": federation.class_names if by_class else ()}
    named = {key: list(listed) for key, listed in names.items() if listed}
    classes = federation.classes if by_class else None
    return {"classes": classes, "clients": federation.clients, "counts": counts, **named}


def write_class_counts(folder: Path, federation: Federation) -> None:
    counts = class_counts(federation)
    write_atomically(folder / CLASS_COUNTS, _encoded({**counts, "checksum": _checksum(counts)}) + b"\n")


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
    return stored if _sound(stored) else None


def _sound(stored: dict[str, Any]) -> bool:
    counts = stored.get("counts")
    if not (isinstance(counts, dict) and {"train", "test"} <= set(counts) and is_list_of(list, [*counts.values()])):
        return False
    rows = [row for split in counts.values() for row in split]
    classes, clients = stored.get("classes"), len(counts["train"])
    if not (classes is None or is_count(classes)) or not all(len(split) == clients for split in counts.values()):
        return False
    classes = classes or 1
    fitting = all(isinstance(row, list) and len(row) == classes and all(map(is_count, row)) for row in rows)
    return bool(rows) and fitting and _names(stored, "client_names", clients) and _names(stored, "class_names", classes)


def _names(stored: dict[str, Any], key: str, count: int) -> bool:
    names = stored.get(key, [""] * count)
    return is_list_of(str, names) and len(names) == count
