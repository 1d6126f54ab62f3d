"""Files that are whole or not there, and journals that only grow."""

import errno
import json
import os
import shutil
import signal
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from stratafl.errors import RunError


@contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot {action} '{path}': {error.strerror or error}") from error
    except SafetensorError as error:
        raise RunError(f"cannot {action} '{path}': {error}") from error


def write_whole(path: Path, data: bytes) -> None:
    """Write a file under another name, make sure that it is on the disk, then give it its name."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    with explained("write", path):
        try:
            with partial.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            sync_folder(path.parent)
        finally:
            partial.unlink(missing_ok=True)


@contextmanager
def appearing(folder: Path) -> Iterator[Path]:
    """A folder to fill under another name; it gets its own when it is complete."""
    place = folder.absolute()  # "." has no name to put a dot before
    partial = place.with_name(f".{place.name}.{uuid.uuid4().hex}.partial")
    with explained("create", folder):
        try:
            partial.mkdir(parents=True)
            yield partial
            if place.exists() and place.samefile(Path.cwd()):  # where somebody stands cannot be replaced
                if any(place.iterdir()):
                    raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
                for file in sorted(partial.iterdir()):
                    file.rename(place / file.name)
            else:
                partial.rename(place)  # over a folder only if that is empty
            sync_folder(place.parent)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def clear_remains(folder: Path) -> None:
    """Remove what interrupted writes left in a folder."""
    for partial in folder.glob(".*.partial"):
        if partial.is_file():
            partial.unlink(missing_ok=True)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Put off Ctrl-C and the like until what must be whole is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []
    kinds = (signal.SIGINT, signal.SIGTERM)
    before = {kind: signal.signal(kind, lambda number, _: waiting.append(number)) for kind in kinds}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
        for number in waiting:
            os.kill(os.getpid(), number)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """A JSON file, whole or not there."""
    write_whole(path, json.dumps(value, indent=2, sort_keys=False, allow_nan=False).encode() + b"\n")


def parsed_json(path: Path) -> Any:
    """Whatever is in a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"cannot read '{path}': {error.strerror}") from error
    except ValueError as error:
        raise RunError(f"'{path}' is damaged: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    value = parsed_json(path)
    if not isinstance(value, dict):
        raise RunError(f"'{path}' is damaged: it holds {type(value).__name__}, not an object")
    return value


def sync_folder(folder: Path) -> None:
    """Make sure that names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Journal:
    """A file of JSON lines that only grows; `size` is how much of it is committed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = path.stat().st_size if path.exists() else 0

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add whole lines."""
        data = "".join(json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n" for line in lines).encode()
        with explained("write", self.path), self.path.open("ab") as file:
            file.write(data)
        self.size += len(data)

    def cut(self, size: int) -> None:
        """Drop what was written after `size`: lines of rounds that were not committed."""
        with explained("write", self.path), self.path.open("ab") as file:
            if file.tell() < size:
                raise RunError(f"'{self.path}' was cut: it holds {file.tell()} bytes, {size} were committed")
            if file.tell() > size:
                file.truncate(size)
            os.fsync(file.fileno())
        self.size = size


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal; one that is torn at the end is left out."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f"cannot read '{path}': {error}") from error
    whole = text[: text.rfind("\n") + 1].splitlines()
    try:
        lines = [json.loads(line) for line in whole]
    except ValueError as error:
        raise RunError(f"'{path}' is damaged: {error}") from error
    if not all(isinstance(line, dict) for line in lines):
        raise RunError(f"'{path}' is damaged: its lines are not all objects")
    return lines
