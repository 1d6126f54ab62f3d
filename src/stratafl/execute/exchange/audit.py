"""The audit log: who sent what and when, in an append-only file of JSON lines.

Each line holds the digest of the line before it and ends with its own, so a line that is changed, cut out or put in is
noticed. What a chain cannot notice is the loss of its end: a `LogMark`, which the server saves with its state, says how
many lines there must be at least, and the digest of the last of them. Digests are no signatures: a person who can
write the log, the state and all copies can forge another history.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from stratafl.errors import DamagedError, RunError
from stratafl.execute.exchange.state_file import explained_full
from stratafl.files import explained, json_value, open_plain, sync_folder, write_all

log = logging.getLogger("stratafl")
START = "0" * 64  # what the first line has in the place of the digest of the line before it
MAX_LINE_BYTES = 1 << 20  # bytes of a line
_END = re.compile(rb',"digest":"([0-9a-f]{64})"}\n\Z')
Line = dict[str, Any]


@dataclass(frozen=True)
class LogMark:
    """The number of lines, and the digest of the last one."""

    lines: int = 0
    digest: str = START


@dataclass(frozen=True)
class Verified:
    """What a log came to: its mark, where its last whole line ends, and how many bytes of a torn line follow."""

    mark: LogMark
    size: int
    torn: int


def verify(path: Path, saved: LogMark | None = None, look: Callable[[Line], None] = lambda line: None) -> Verified:
    """Check every line of a log, which must hold at least the lines up to a known mark; `look` is shown each.

    The last line may be torn by a crash, unless it is before the mark; anything else that is wrong raises.
    """
    saved, mark, size = saved or LogMark(), LogMark(), 0
    with explained("read", path), os.fdopen(open_plain(path), "rb") as file:
        file_size = os.fstat(file.fileno()).st_size
        for text in _texts(path, file):
            line = _whole_line(text)
            if line is None and size + len(text) == file_size and mark.lines >= saved.lines:
                break
            if line is None or (line.get("line"), line.get("before")) != (mark.lines + 1, mark.digest):
                raise DamagedError(f"'{path}' was changed: line {mark.lines + 1} does not continue the lines before it")
            mark, size = LogMark(mark.lines + 1, line["digest"]), size + len(text)
            if mark.lines == saved.lines and mark.digest != saved.digest:
                raise DamagedError(f"'{path}' was changed: line {mark.lines} differs from the server's saved state")
            look(line)
    if mark.lines < saved.lines:
        raise DamagedError(
            f"'{path}' was truncated: it has {mark.lines} of the {saved.lines} lines that the server wrote; restore it"
        )
    return Verified(mark, size, file_size - size)


def _texts(path: Path, file: IO[bytes]) -> Iterator[bytes]:
    while text := file.readline(MAX_LINE_BYTES + 1):
        if len(text) > MAX_LINE_BYTES:
            raise DamagedError(f"'{path}' was changed: a line has more than {MAX_LINE_BYTES:,} bytes")
        yield text


def _whole_line(text: bytes) -> Line | None:
    """A line that ends with its digest; None if it does not."""
    end = _END.search(text)
    if end is None or end[1].decode() != _digest(text[: end.start()]):
        return None
    with suppress(ValueError):
        line = json_value(text)
        return line if isinstance(line, dict) else None
    return None


def _digest(body: bytes) -> str:
    return blake2b(body, digest_size=32).hexdigest()


class AuditLog:
    """A log that is open for writing: each line is on the disk before anything follows from it."""

    def __init__(
        self,
        path: Path,
        saved: LogMark,
        look: Callable[[Line], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.path, self._now = path, now
        self.mark, self._size = LogMark(), 0
        if not os.path.lexists(path):
            if saved.lines:
                raise DamagedError(
                    f"'{path}' is missing, but the server's saved state has {saved.lines} lines: restore it"
                )
            with explained("write", path):
                os.close(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                sync_folder(path.parent)
        verified = verify(path, saved, look)
        self.mark, self._size = verified.mark, verified.size
        if verified.torn:
            self._write(b"")
            log.warning("'%s' ended with an incomplete line after a crash: the line was removed", path)
            self.append("cut", bytes=verified.torn)

    def append(self, event: str, **what: Any) -> None:
        """Add a line; an error if it cannot be written, and then it is not there."""
        line = {"line": self.mark.lines + 1, "time": self._now().isoformat(timespec="milliseconds"), "event": event}
        body = json.dumps({**line, **what, "before": self.mark.digest}, separators=(",", ":")).encode()[:-1]
        digest = _digest(body)
        data = body + f',"digest":"{digest}"}}\n'.encode()
        if len(data) > MAX_LINE_BYTES:
            raise RunError(f"a line of '{self.path}' has {len(data):,} bytes; at most {MAX_LINE_BYTES:,} are allowed")
        self._write(data)
        self.mark, self._size = LogMark(self.mark.lines + 1, digest), self._size + len(data)

    def _write(self, data: bytes) -> None:
        """Write after the last whole line, over whatever an earlier failure left there."""
        try:
            with explained("write", self.path):
                handle = open_plain(self.path, os.O_RDWR)
                try:
                    os.ftruncate(handle, self._size)
                    write_all(handle, data, self._size)
                    os.fsync(handle)
                finally:
                    os.close(handle)
        except RunError as error:
            raise explained_full(error) from error
