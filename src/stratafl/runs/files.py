"""Files that are whole or not there, and journals that only grow.

Each line of a journal ends with a checksum of the line and of all lines before it. That finds damage and careless
editing; it is not a signature, and whoever wants to deceive can compute it anew.
"""

import errno
import json
import os
import re
import shutil
import signal
import threading
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from stratafl.errors import DamagedError, RunError
from stratafl.files import open_plain, read_plain

LARGEST = 64 << 20  # bytes of a JSON file, or of a line of a journal
_DIGITS = 19  # of whole numbers
_CHECKSUM = re.compile(rb',"checksum":"([0-9a-f]{8})"}\n\Z')
_LENGTH = len(',"checksum":"00000000"}\n')


@contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot {action} '{path}': {error.strerror or error}") from error
    except SafetensorError as error:
        raise RunError(f"cannot {action} '{path}': {error}") from error


def write_whole(path: Path, data: bytes, folder: int | None = None) -> None:
    """Write a file under another name, make sure that it is on the disk, then give it its name.

    With `folder`, in the directory that this handle is of, wherever it is now.
    """
    place = path if folder is None else Path(path.name)
    partial = place.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    with explained("write", path):
        try:
            handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666, dir_fd=folder)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, place, src_dir_fd=folder, dst_dir_fd=folder)
            if folder is None:
                sync_folder(path.parent)
            else:
                os.fsync(folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(partial, dir_fd=folder)


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


def write_json(path: Path, value: Mapping[str, Any], folder: int | None = None) -> None:
    """A JSON file, whole or not there."""
    write_whole(path, json.dumps(value, indent=2, sort_keys=False, allow_nan=False).encode() + b"\n", folder)


def parsed_json(path: Path) -> Any:
    """Whatever is in a JSON file."""
    try:
        return parsed(path, read_plain(path, LARGEST))
    except OSError as error:
        raise RunError(f"cannot read '{path}': {error.strerror}") from error


def parsed(path: Path, data: bytes) -> Any:
    """The JSON value in these bytes of a file; numbers are finite, and values are not nested without end."""
    try:
        return json.loads(data.decode(), parse_constant=_refused, parse_float=_finite, parse_int=_whole)
    except (ValueError, RecursionError) as error:
        reason = "values are nested too deeply" if isinstance(error, RecursionError) else error
        raise DamagedError(f"'{path}' is damaged: {reason}") from error


def _refused(text: str) -> float:
    raise ValueError(f"{text[:20]} is not a number that JSON knows")


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _refused(text)


def _whole(text: str) -> int:
    return int(text) if len(text) <= _DIGITS else int(_refused(text))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    value = parsed_json(path)
    if not isinstance(value, dict):
        raise DamagedError(f"'{path}' is damaged: it holds {type(value).__name__}, not an object")
    return value


def sync_folder(folder: Path) -> None:
    """Make sure that names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@dataclass(frozen=True)
class Mark:
    """A place in a journal: so many bytes, and the checksum of all lines up to there."""

    size: int
    checksum: str | None = None  # None: of a checkpoint that was saved before lines had one


class Journal:
    """A file of JSON lines that only grows; `size` is how much of it is committed.

    With `folder`, it is in the directory that this handle is of, wherever that is now.
    """

    def __init__(self, path: Path, folder: int | None = None) -> None:
        self.path, self._folder = path, folder
        self.size, self._checksum = 0, 0
        with explained("read", path), suppress(FileNotFoundError):
            handle = open_plain(path, folder=folder)
            try:
                self.size = os.fstat(handle).st_size
                self._checksum = _checksum_before(handle, self.size)
            finally:
                os.close(handle)

    @property
    def mark(self) -> Mark:
        """Where it ends."""
        return Mark(self.size, f"{self._checksum:08x}")

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add whole lines."""
        texts, checksum = [], self._checksum
        for line in lines:
            body = json.dumps(line, allow_nan=False, separators=(",", ":")).encode()[:-1]
            checksum = zlib.crc32(body, checksum)
            texts.append(body + f',"checksum":"{checksum:08x}"}}\n'.encode())
        data = b"".join(texts)
        with explained("write", self.path), self._opened() as file:
            file.write(data)
        self.size, self._checksum = self.size + len(data), checksum

    def cut(self, size: int) -> None:
        """Drop what was written after `size`: lines of rounds that were not committed."""
        with explained("write", self.path), self._opened() as file:
            there = file.seek(0, os.SEEK_END)
            if there < size:
                raise DamagedError(f"'{self.path}' was cut: it holds {there} bytes, {size} were committed")
            if there > size:
                file.truncate(size)
            os.fsync(file.fileno())
            self.size, self._checksum = size, _checksum_before(file.fileno(), size)

    def _opened(self) -> IO[bytes]:
        handle = open_plain(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, folder=self._folder)
        return os.fdopen(handle, "ab")


def _checksum_before(handle: int, size: int) -> int:
    """The checksum at the end of the line before this place; 0 where there is none."""
    found = _CHECKSUM.search(os.pread(handle, _LENGTH, max(0, size - _LENGTH)))
    return int(found[1], 16) if found and size >= _LENGTH else 0


def line_bodies(path: Path, *, summed: bool = False, until: Mark | None = None) -> Iterator[bytes]:
    """The whole lines of a journal without their checksums, which are compared; a torn one at the end is left out.

    Lines before the first that has a checksum may be without, unless all are `summed`. With `until`, the lines up to
    there, if that is where a line ends and the checksum is what it was.
    """
    checksum, size, begun = 0, 0, summed
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            there = os.fstat(file.fileno()).st_size
            if until is not None and there < until.size:
                raise DamagedError(f"'{path}' was cut: it holds {there} bytes, {until.size} were committed")
            while (until is None or size < until.size) and (line := _whole_line(path, file)):
                found, size = _CHECKSUM.search(line), size + len(line)
                if found is None and begun:
                    raise DamagedError(f"'{path}' was changed: {_shown(line)} has no checksum")
                if found is not None:
                    begun, checksum = True, zlib.crc32(line[: found.start()], checksum)
                    if int(found[1], 16) != checksum:
                        raise DamagedError(f"'{path}' was changed: {_shown(line)} is not what was written")
                yield line if found is None else line[: found.start()] + b"}"
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunError(f"cannot read '{path}': {error.strerror}") from error
    if until is not None and (size, until.checksum or f"{checksum:08x}") != (until.size, f"{checksum:08x}"):
        raise DamagedError(f"'{path}' was changed: its first {until.size} bytes are not what was committed")


def _whole_line(path: Path, file: IO[bytes]) -> bytes:
    """The next line, or nothing where it is torn."""
    line = file.readline(LARGEST)
    if len(line) == LARGEST:
        raise DamagedError(f"'{path}' is damaged: a line has more than {LARGEST:,} bytes")
    return line if line.endswith(b"\n") else b""


def _shown(line: bytes) -> str:
    """The beginning of a line, for a message."""
    return f"the line {line[:24].decode(errors='replace')!r}…"


def parsed_line(path: Path, body: bytes) -> dict[str, Any]:
    """The object in a line of a journal."""
    line = parsed(path, body)
    if not isinstance(line, dict):
        raise DamagedError(f"'{path}' is damaged: its lines are not all objects")
    return line


def read_lines(path: Path, *, summed: bool = False, until: Mark | None = None) -> list[dict[str, Any]]:
    """The whole lines of a journal; one that is torn at the end is left out."""
    return [parsed_line(path, body) for body in line_bodies(path, summed=summed, until=until)]
