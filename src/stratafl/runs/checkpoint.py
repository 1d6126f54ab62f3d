"""Checkpoints: two generations, each a folder that is written atomically and protected by checksums.

checkpoint/000012/state.safetensors      the server's state and every client's, or where in memories.bin that is
checkpoint/000012/selected.safetensors   the same after the round that the tables score, unless that is round 12
checkpoint/000012/manifest.json          format, both rounds and checksums, where the journals ended, its own checksum

Every generation holds the selected state, though it rarely changes, so that damage to one does not cost the other.
"""

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from stratafl.config.migrations import FORMAT, check_format
from stratafl.core.reprs import short_repr
from stratafl.errors import DamagedError, RunError
from stratafl.files import PARTIAL, atomically, explained, is_plain_folder, open_plain, read_plain, sync_folder
from stratafl.runs.json_files import MAX_JSON_BYTES, JournalMark, is_count, parse_json, write_json

GENERATIONS = 2
STATE, SELECTED, MANIFEST = "state.safetensors", "selected.safetensors", "manifest.json"
_NAME = re.compile(r"[0-9]{6,18}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_CRC32 = re.compile(r"[0-9a-f]{8}", re.ASCII)
_DAMAGED = "damaged-"


@short_repr
@dataclass(frozen=True)
class SavedState:
    """The state after a round."""

    round: int
    tensors: Mapping[str, Tensor]


@short_repr
@dataclass(frozen=True)
class Checkpoint:
    """A state, the round after which it was saved, and where each journal ended.

    `selected` is the state after the round that the tables score, which may be this one; early versions kept none.
    """

    round: int
    tensors: Mapping[str, Tensor]
    journals: Mapping[str, JournalMark]
    selected: SavedState | None = None

    @property
    def states(self) -> tuple[SavedState, ...]:
        """The states that it holds, each once, the newest first."""
        newest = SavedState(self.round, self.tensors)
        return (newest,) if self.selected is None or self.selected.round == self.round else (newest, self.selected)


@short_repr
@dataclass(frozen=True)
class Found:
    """The newest undamaged checkpoint, if there is one, and what is wrong with newer ones."""

    checkpoint: Checkpoint | None
    complaints: list[str] = field(default_factory=list)


def save(folder: Path, checkpoint: Checkpoint, within: int | None = None) -> None:
    """Write a new generation beside the old one, then remove the one before that.

    With `within`, the folder is in the directory of this handle. Files are written by path only inside a folder with a
    random name, so another run that has taken the path in the meantime is not written to.
    """
    target = f"{checkpoint.round:06d}"
    with explained("save the checkpoint", folder / target), _opened(folder, within) as handle:
        with atomically(folder / target, folder=handle) as partial:
            os.mkdir(partial, dir_fd=handle)
            body: dict[str, Any] = {"format": FORMAT, "round": checkpoint.round}
            body["journals"] = {name: mark.size for name, mark in checkpoint.journals.items()}
            body["checksums"] = {name: mark.checksum for name, mark in checkpoint.journals.items() if mark.checksum}
            body |= _written(folder / partial / STATE, checkpoint.tensors)
            if checkpoint.selected is not None:
                body["selected"] = {"round": checkpoint.selected.round}
            for selected in checkpoint.states[1:]:
                body["selected"] |= _written(folder / partial / SELECTED, selected.tensors)
            write_json(folder / partial / MANIFEST, {**body, "manifest_sha256": _body_digest(body)})
            if (folder / target).exists():  # this round was found damaged and repeated
                shutil.rmtree(target, dir_fd=handle)
        sync_folder(folder, handle)
        sync_folder(folder.parent, within)
        for old in generations(folder)[GENERATIONS:]:
            shutil.rmtree(old.name, ignore_errors=True, dir_fd=handle)


@contextmanager
def _opened(folder: Path, within: int | None) -> Iterator[int]:
    """A handle of the folder of checkpoints, which is made if it is missing; a link is refused."""
    place = folder if within is None else Path(folder.name)
    with suppress(FileExistsError):
        os.mkdir(place, dir_fd=within)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # not on Windows, where nothing is locked
    handle = os.open(place, flags, dir_fd=within)
    try:
        yield handle
    finally:
        os.close(handle)


def _written(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Write a state, and return its checksum and its size."""
    try:
        save_file(_apart(tensors), path)
    except SafetensorError as error:  # how safetensors says that the disk is full
        raise OSError(str(error)) from error
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    return {"sha256": _file_digest(path), "bytes": path.stat().st_size}


def find(folder: Path, check: Callable[[Checkpoint], None] = lambda _: None) -> Found:
    """The newest undamaged checkpoint; `check` raises if one does not fit the run."""
    complaints: list[str] = []
    for generation in generations(folder):
        try:
            return Found(_load(generation, check), complaints)
        except DamagedError as error:
            complaints.append(str(error))
    return Found(None, complaints)


def older(folder: Path, than: Checkpoint) -> Iterator[Checkpoint]:
    """The readable generations before a checkpoint, the oldest first."""
    for generation in reversed(generations(folder)):
        if int(generation.name) < than.round:
            with suppress(RunError):
                yield _load(generation)


def tidy(folder: Path, search: Found) -> None:
    """Rename damaged generations, so that nothing reads them, and remove what interrupted saves left behind."""
    for partial in (*folder.glob(f".*{PARTIAL}"), *folder.glob(f"{PARTIAL}-*")):  # the second until format 2
        shutil.rmtree(partial, ignore_errors=True)
    for generation in generations(folder)[: len(search.complaints)]:
        with explained("rename", generation):
            generation.rename(generation.with_name(f"{_DAMAGED}{generation.name}-{uuid.uuid4().hex[:6]}"))


def generations(folder: Path) -> list[Path]:
    """The saved generations, the newest first."""
    if not os.path.lexists(folder):
        return []
    if not is_plain_folder(folder):
        raise DamagedError(f"'{folder}' is not a folder but a file or a link: put the folder back, or remove it")
    with explained("read", folder):
        paths = [folder / name for name in os.listdir(folder) if _NAME.fullmatch(name)]
    return sorted(paths, key=lambda path: int(path.name), reverse=True)


def committed(folder: Path) -> Mapping[str, JournalMark]:
    """Where the journals ended when the newest undamaged generation was saved, by its manifest alone."""
    for generation in generations(folder):
        with suppress(RunError):
            return _marks(_manifest(generation))
    return {}


def selected_round(folder: Path) -> int | None:
    """The round whose state the newest undamaged generation keeps as the selected one, by its manifest alone."""
    for generation in generations(folder):
        with suppress(RunError):
            selected = _manifest(generation).get("selected")
            return selected.get("round") if isinstance(selected, dict) else None
    return None


def _load(generation: Path, check: Callable[[Checkpoint], None] = lambda _: None) -> Checkpoint:
    try:
        manifest = _manifest(generation)
        newest = _state(generation / STATE, manifest)
        loaded = Checkpoint(manifest["round"], newest, _marks(manifest), _selected(generation, manifest, newest))
    except _GenerationError as damage:
        raise DamagedError(f"the checkpoint '{generation}' is damaged: {damage}") from damage
    try:
        check(loaded)
    except DamagedError as error:
        raise DamagedError(f"the checkpoint '{generation}' cannot be used: {error}") from error
    return loaded


class _GenerationError(DamagedError):
    """What is wrong with a generation."""


def _expect(fine: bool, otherwise: str) -> None:
    if not fine:
        raise _GenerationError(otherwise)


def _manifest(generation: Path) -> dict[str, Any]:
    """What a generation says of itself, if that is valid."""
    _expect(is_plain_folder(generation), "it is not a folder")
    body = _unless_missing(generation / MANIFEST, lambda path: parse_json(path, read_plain(path, MAX_JSON_BYTES)))
    _expect(isinstance(body, dict), f"{MANIFEST} is not an object")
    digest = body.pop("manifest_sha256", None)
    _expect(digest == _body_digest(body), "its manifest was changed")
    check_format(generation, body.get("format", 1))
    number, journals, checksums = body.get("round"), body.get("journals"), body.get("checksums", {})
    _expect(is_count(number) and f"{number:06d}" == generation.name, f"its manifest is from round {number!r}")
    lengths = isinstance(journals, dict) and all(map(is_count, journals.values()))
    _expect(lengths, "its manifest has no lengths of journals")
    summed = isinstance(checksums, dict) and all(_is_text(each, _CRC32) for each in checksums.values())
    _expect(summed, "its manifest has no checksums of journals")
    return dict(body)


def _marks(manifest: Mapping[str, Any]) -> dict[str, JournalMark]:
    checksums = manifest.get("checksums", {})
    return {name: JournalMark(size, checksums.get(name)) for name, size in manifest["journals"].items()}


def _selected(generation: Path, manifest: Mapping[str, Any], newest: Mapping[str, Tensor]) -> SavedState | None:
    described = manifest.get("selected")
    if described is None:
        return None
    number: Any = described.get("round") if isinstance(described, dict) else None
    _expect(is_count(number) and number <= manifest["round"], "its manifest has no selected round")
    if number == manifest["round"]:
        return SavedState(number, newest)
    return SavedState(number, _state(generation / SELECTED, described))


def _state(path: Path, described: Mapping[str, Any]) -> dict[str, Tensor]:
    _expect(_is_text(described.get("sha256"), _SHA256), f"its manifest has no checksum of {path.name}")
    _expect(is_count(described.get("bytes", 0)), f"its manifest has no size of {path.name}")
    digest = _unless_missing(path, lambda path: _file_digest(path, described.get("bytes")))
    _expect(digest == described["sha256"], f"the checksum of {path.name} is wrong")
    return dict(_unless_missing(path, load_file))


def _unless_missing(path: Path, read: Callable[[Path], Any]) -> Any:
    """What is read from a file of a generation; a missing or malformed file is damage, other failures may pass."""
    try:
        return read(path)
    except FileNotFoundError as error:
        raise _GenerationError(f"{path.name} is missing") from error
    except OSError as error:  # not damage: it may be readable again in a moment
        raise RunError(f"cannot read '{path.parent}': {error.strerror}") from error
    except (DamagedError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise _GenerationError(f"{path.name}: {error}") from error


def _is_text(value: Any, form: re.Pattern[str]) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, none sharing memory with another: safetensors refuses that."""
    apart: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        plain = tensor.detach().cpu().contiguous()
        plain = plain.clone() if plain.untyped_storage().data_ptr() in seen else plain
        seen.add(plain.untyped_storage().data_ptr())
        apart[name] = plain
    return apart


def _file_digest(path: Path, size: int | None = None) -> str:
    with os.fdopen(open_plain(path), "rb") as file:
        if size is not None and os.fstat(file.fileno()).st_size != size:
            return "another size"
        return hashlib.file_digest(file, "sha256").hexdigest()


def _body_digest(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
