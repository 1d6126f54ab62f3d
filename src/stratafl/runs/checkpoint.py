"""Checkpoints: two generations, each a folder that appears complete or not at all and proves that it is undamaged.

checkpoint/000012/state.safetensors    the server's state and every client's memory, or where in memories.bin it is
checkpoint/000012/manifest.json        its checksum, the round, how long the journals were, and its own checksum
"""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stratafl.errors import DamagedError, RunError
from stratafl.reprs import short_repr
from stratafl.runs.files import explained, sync_folder, write_json

GENERATIONS = 2
STATE, MANIFEST = "state.safetensors", "manifest.json"
_PARTIAL = ".partial-"
_DAMAGED = "damaged-"


@short_repr
@dataclass(frozen=True)
class Checkpoint:
    """A state, the round after which it was saved, and the committed length of each journal."""

    round: int
    tensors: Mapping[str, Tensor]
    journals: Mapping[str, int]


@short_repr
@dataclass(frozen=True)
class Found:
    """The newest checkpoint that is undamaged, if there is one, and what is wrong with those that are not."""

    checkpoint: Checkpoint | None
    complaints: list[str] = field(default_factory=list)


def save(folder: Path, checkpoint: Checkpoint) -> None:
    """Write a new generation beside the old one, then let go of the one before that."""
    target = folder / f"{checkpoint.round:06d}"
    partial = folder / f"{_PARTIAL}{uuid.uuid4().hex}"
    with explained("save the checkpoint", target):
        partial.mkdir(parents=True)
        try:
            save_file(_apart(checkpoint.tensors), partial / STATE)
            _sync_file(partial / STATE)
            body = {
                "round": checkpoint.round,
                "journals": dict(checkpoint.journals),
                "sha256": _file_digest(partial / STATE),
            }
            write_json(partial / MANIFEST, {**body, "manifest_sha256": _body_digest(body)})
            if target.exists():  # the same round saved again, after it was found damaged and repeated
                shutil.rmtree(target)
            partial.rename(target)
            sync_folder(folder)
            sync_folder(folder.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    for old in generations(folder)[GENERATIONS:]:
        shutil.rmtree(old, ignore_errors=True)


def find(folder: Path, check: Callable[[Checkpoint], None] = lambda _: None) -> Found:
    """The newest undamaged checkpoint, and what is wrong with newer ones; `check` raises if what it refers to is."""
    complaints: list[str] = []
    for generation in generations(folder):
        try:
            loaded = _load(generation)
            _checked(generation, loaded, check)
            return Found(loaded, complaints)
        except DamagedError as error:
            complaints.append(str(error))
    return Found(None, complaints)


def older(folder: Path, than: Checkpoint) -> Iterator[Checkpoint]:
    """The readable generations before a checkpoint, the oldest first."""
    for generation in reversed(generations(folder)):
        if int(generation.name) < than.round:
            with suppress(RunError):
                yield _load(generation)


def _checked(generation: Path, loaded: Checkpoint, check: Callable[[Checkpoint], None]) -> None:
    try:
        check(loaded)
    except DamagedError as error:
        raise DamagedError(f"the checkpoint '{generation}' cannot be used: {error}") from error


def tidy(folder: Path, found: Found) -> None:
    """Put damaged generations aside, where nothing looks for them, and remove remains of interrupted saves."""
    for partial in folder.glob(f"{_PARTIAL}*"):
        shutil.rmtree(partial, ignore_errors=True)
    for generation in generations(folder)[: len(found.complaints)]:
        with explained("put aside", generation):
            generation.rename(generation.with_name(f"{_DAMAGED}{generation.name}-{uuid.uuid4().hex[:6]}"))


def generations(folder: Path) -> list[Path]:
    """The saved generations, the newest first."""
    found = [path for path in folder.glob("[0-9]*") if path.is_dir() and path.name.isdigit()]
    return sorted(found, key=lambda path: int(path.name), reverse=True)


def _load(generation: Path) -> Checkpoint:
    state = generation / STATE
    for path in (generation / MANIFEST, state):
        if not path.exists():
            raise DamagedError(f"the checkpoint '{generation}' is damaged: {path.name} is missing")
    try:
        manifest = json.loads((generation / MANIFEST).read_bytes())
    except ValueError as error:
        raise DamagedError(f"the checkpoint '{generation}' is damaged: {MANIFEST}: {error}") from error
    except OSError as error:  # not damage: it may be readable again in a moment
        raise RunError(f"cannot read '{generation}': {error.strerror}") from error
    if not isinstance(manifest, dict):
        raise DamagedError(f"the checkpoint '{generation}' is damaged: {MANIFEST} is not an object")
    body = {key: value for key, value in manifest.items() if key != "manifest_sha256"}
    if manifest.get("manifest_sha256") != _body_digest(body):
        raise DamagedError(f"the checkpoint '{generation}' is damaged: its manifest was changed")
    try:
        if _file_digest(state) != manifest["sha256"]:
            raise DamagedError(f"the checkpoint '{generation}' is damaged: the checksum of {STATE} is wrong")
        return Checkpoint(int(manifest["round"]), load_file(state), dict(manifest["journals"]))
    except OSError as error:
        raise RunError(f"cannot read '{generation}': {error.strerror}") from error
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DamagedError(f"the checkpoint '{generation}' is damaged: {error}") from error


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, none sharing memory with another, which safetensors refuses."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        plain = plain.clone() if plain.untyped_storage().data_ptr() in seen else plain
        seen.add(plain.untyped_storage().data_ptr())
        apart[name] = plain
    return apart


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _body_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _sync_file(path: Path) -> None:
    with path.open("rb+") as file:
        os.fsync(file.fileno())
