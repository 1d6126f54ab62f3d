"""Journals: files of JSON lines that only grow.

Each line ends with a checksum of the line and of all lines before it. That finds damage and careless editing; it is not
a signature: whoever wants to deceive can compute it anew.
"""

import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stratafl.errors import DamagedError, RunError
from stratafl.files import explained, open_plain
from stratafl.runs.json_files import MAX_JSON_BYTES, parse_json

_CHECKSUM = re.compile(rb',"checksum":"([0-9a-f]{8})"}\n\Z')
_LENGTH = len(',"checksum":"00000000"}\n')


@dataclass(frozen=True)
class JournalMark:
    """A position in a journal: its offset in bytes, and the checksum of all lines before it."""

    size: int
    checksum: str | None = None  # None in checkpoints of format 1


class Journal:
    """A file of JSON lines that only grows; with `folder`, a handle, it is in that directory wherever it is now."""

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
    def mark(self) -> JournalMark:
        return JournalMark(self.size, f"{self._checksum:08x}")

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
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
        """Drop what was written after `size`: lines of rounds that no checkpoint covers."""
        with explained("write", self.path), self._opened() as file:
            length = file.seek(0, os.SEEK_END)
            if length < size:
                raise DamagedError(f"'{self.path}' was cut: it holds {length} bytes, {size} were committed")
            if length > size:
                file.truncate(size)
            if length:  # an empty file has only its name, which the folder keeps
                os.fsync(file.fileno())
            self.size, self._checksum = size, _checksum_before(file.fileno(), size)

    def _opened(self) -> IO[bytes]:
        handle = open_plain(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, folder=self._folder)
        return os.fdopen(handle, "ab")


def _checksum_before(handle: int, size: int) -> int:
    """The checksum of the line that ends at `size`, 0 if there is none."""
    match = _CHECKSUM.search(os.pread(handle, _LENGTH, max(0, size - _LENGTH)))
    return int(match[1], 16) if match and size >= _LENGTH else 0


def line_bodies(path: Path, *, summed: bool = False, until: JournalMark | None = None) -> Iterator[bytes]:
    """The lines of a journal without their checksums, which are verified; a torn last line is left out.

    Lines without a checksum may come before the first that has one, as in runs of format 1, unless all are `summed`.
    With `until`, only the lines up to that mark, which must be where a line ends.
    """
    checksum, size, begun = 0, 0, summed
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            length = os.fstat(file.fileno()).st_size
            if until is not None and length < until.size:
                raise DamagedError(f"'{path}' was cut: it holds {length} bytes, {until.size} were committed")
            while (until is None or size < until.size) and (line := _whole_line(path, file)):
                match, size = _CHECKSUM.search(line), size + len(line)
                if match is None and begun:
                    raise DamagedError(f"'{path}' was changed: {_shown(line)} has no checksum")
                if match is not None:
                    begun, checksum = True, zlib.crc32(line[: match.start()], checksum)
                    if int(match[1], 16) != checksum:
                        raise DamagedError(f"'{path}' was changed: {_shown(line)} is not what was written")
                yield line if match is None else line[: match.start()] + b"}"
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunError(f"cannot read '{path}': {error.strerror}") from error
    if until is not None and (size, until.checksum or f"{checksum:08x}") != (until.size, f"{checksum:08x}"):
        raise DamagedError(f"'{path}' was changed: its first {until.size} bytes are not what was committed")


def _whole_line(path: Path, file: IO[bytes]) -> bytes:
    """The next line; empty at the end, or if it is torn."""
    line = file.readline(MAX_JSON_BYTES)
    if len(line) == MAX_JSON_BYTES:
        raise DamagedError(f"'{path}' is damaged: a line has more than {MAX_JSON_BYTES:,} bytes")
    return line if line.endswith(b"\n") else b""


def _shown(line: bytes) -> str:
    return f"the line {line[:24].decode(errors='replace')!r}…"


def parsed_line(path: Path, body: bytes) -> dict[str, Any]:
    line = parse_json(path, body)
    if not isinstance(line, dict):
        raise DamagedError(f"'{path}' is damaged: its lines are not all objects")
    return line


def read_lines(path: Path, *, summed: bool = False, until: JournalMark | None = None) -> list[dict[str, Any]]:
    """The lines of a journal; arguments as `line_bodies`."""
    return [parsed_line(path, body) for body in line_bodies(path, summed=summed, until=until)]
