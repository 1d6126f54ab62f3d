"""JSON files and journals, read as untrusted input: limited size, limited nesting, finite numbers.

A journal is a file of JSON lines that only grows. Each line ends with a checksum of the line and of all lines before
it. That finds damage and careless editing; it is not a signature: a forger can compute it, too.
"""

import json
import os
import re
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from types import NoneType
from typing import IO, Any, get_args

from stratafl.errors import DamagedError, shown
from stratafl.files import explained, json_value, open_plain, read_plain, write_atomically

MAX_JSON_BYTES = 64 << 20  # bytes of a JSON file, or of a line of a journal
_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", list: "a list"}
_WORDS |= {dict: "a table", NoneType: "nothing"}
_CHECKSUM = re.compile(rb',"checksum":"([0-9a-f]{8})"}\n\Z')
_LENGTH = len(',"checksum":"00000000"}\n')


def write_json(path: Path, value: Mapping[str, Any], *, folder: int | None = None) -> None:
    write_atomically(path, json.dumps(value, indent=2, allow_nan=False).encode() + b"\n", folder=folder)


def read_json(path: Path) -> dict[str, Any]:
    value = read_json_value(path)
    if not isinstance(value, dict):
        raise DamagedError(f"'{path}' is damaged: it holds {type(value).__name__}, not an object")
    return value


def read_json_value(path: Path) -> Any:
    with explained("read", path):
        return parse_json(path, read_plain(path, MAX_JSON_BYTES))


def parse_json(path: Path, data: bytes) -> Any:
    """The JSON value in these bytes of the file `path`."""
    try:
        return json_value(data)
    except ValueError as error:
        raise DamagedError(f"'{path}' is damaged: {error}") from error


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def is_list_of(kind: type, value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is kind for each in value)


def check_table(table: Any, kinds: Mapping[str, Any], optional: Container[str] = ()) -> dict[str, Any]:
    """The table, if each key has a value of its type, such as `float | None`; ValueError says what is wrong."""
    if not isinstance(table, dict):
        raise ValueError(f"{shown(table)} is not a table")
    for key, kind in kinds.items():
        if key in table:
            check_value(key, table[key], kind)
        elif key not in optional:
            raise ValueError(f"{key} is missing")
    return table


def check_value(key: str, value: Any, kind: Any) -> None:
    """Raise ValueError unless the value is of the type; a number is finite, and may be whole."""
    allowed = get_args(kind) or (kind,)
    sound = type(value) in allowed or (type(value) is int and float in allowed)
    if not sound or (type(value) is float and not isfinite(value)):
        words = " or ".join(_WORDS[each] for each in allowed)
        raise ValueError(f"{shown(key)} is {shown(value)}, not {words}")


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
    with explained("read", path), suppress(FileNotFoundError), os.fdopen(open_plain(path), "rb") as file:
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
