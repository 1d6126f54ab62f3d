"""Blocks: the tensors of a download, which a site keeps by their digest so that they are not sent again.

A site offers in its reply what it has, and the server leaves those blocks out of its next download. A block that is not
there after all, or is not what its digest says, is never guessed: the site asks for the whole download.
"""

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from stratafl.core.wire import tensor_ends
from stratafl.errors import DamagedError
from stratafl.execute.exchange.protocol import MAX_OFFERED_BLOCKS, Piece, Request
from stratafl.files import atomically, clear_partial, read_plain

MIN_BLOCK_BYTES = 1024  # bytes of a tensor below which its digest is not worth sending
CACHE_BYTES = 256 << 20
_NAME = re.compile(r"[0-9a-f]{32}", re.ASCII)


def block_digest(data: bytes | memoryview) -> str:
    return blake2b(data, digest_size=16).hexdigest()


class PackedDownload(NamedTuple):
    """A parcel as the pieces of a download, and how many bytes of it are left out."""

    pieces: tuple[Piece, ...]
    body: bytes
    saved: int


def pack_download(parcel: bytes, have: Container[str]) -> PackedDownload:
    """An encoded parcel without the blocks that the site has."""
    pieces, parts = list[Piece](), list[memoryview]()
    for part, is_block in _stretches(parcel):
        digest = block_digest(part) if is_block else ""
        pieces.append(Piece(len(part), digest, not digest or digest not in have))
        parts.append(part)
    sent = [part for part, piece in zip(parts, pieces, strict=True) if piece.sent]
    body = b"".join(sent)
    return PackedDownload(tuple(pieces), body, len(parcel) - len(body))


def _stretches(parcel: bytes) -> Iterator[tuple[memoryview, bool]]:
    """The parcel in order: its large tensors, and the bytes between them."""
    view, loose, end = memoryview(parcel), 0, 0
    for stop in tensor_ends(parcel):
        if stop - end >= MIN_BLOCK_BYTES and end:
            if end > loose:
                yield view[loose:end], False
            yield view[end:stop], True
            loose = stop
        end = stop
    if end > loose:
        yield view[loose:end], False


def unpack_download(request: Request, cached: Callable[[Piece], bytes | None]) -> bytes | None:
    """The parcel of a message, with the blocks that were left out; None if one of them is not there."""
    parts = list[bytes | memoryview]()
    for piece, sent in _pieces(request):
        part = cached(piece) if sent is None else sent
        if part is None:
            return None
        parts.append(part)
    return b"".join(parts)


def sent_blocks(request: Request) -> Iterator[tuple[str, memoryview]]:
    """The blocks in a message that are what their digests say."""
    for piece, sent in _pieces(request):
        if sent is not None and piece.digest and block_digest(sent) == piece.digest:
            yield piece.digest, sent


def _pieces(request: Request) -> Iterator[tuple[Piece, memoryview | None]]:
    """Each piece of a message with its bytes; None for one that was left out."""
    view, begin = memoryview(request.body), 0
    for piece in request.pieces:
        end = begin + (piece.size if piece.sent else 0)
        yield piece, view[begin:end] if piece.sent else None
        begin = end


class BlockCache:
    """Blocks in a folder of at most `most` bytes; the oldest are removed first.

    The cache may fail: a block that cannot be written is not kept, and a damaged one counts as missing.
    """

    def __init__(self, folder: Path, most: int = CACHE_BYTES) -> None:
        self.folder, self.most = folder, most

    def prepare(self) -> "BlockCache":
        """Make the folder, and remove what interrupted writes left there."""
        with suppress(OSError):
            os.mkdir(self.folder, 0o700)
        clear_partial(self.folder)
        return self

    def get(self, piece: Piece) -> bytes | None:
        with suppress(OSError, DamagedError):
            data = read_plain(self.folder / piece.digest, piece.size)
            if len(data) == piece.size and block_digest(data) == piece.digest:
                return data
        self._remove([piece.digest])
        return None

    def add(self, blocks: Iterable[tuple[str, memoryview]], used: Iterable[str]) -> None:
        """Keep new blocks, and those that were used before older ones."""
        for digest, data in blocks:
            if len(data) <= self.most:
                with suppress(OSError, DamagedError), atomically(self.folder / digest) as partial:
                    partial.write_bytes(data)
        for digest in used:
            with suppress(OSError):
                os.utime(self.folder / digest)
        self._shrink()

    def offered(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self._newest())[:MAX_OFFERED_BLOCKS]

    def clear(self) -> None:
        self._remove([name for name, _ in self._newest()])

    def _newest(self) -> list[tuple[str, int]]:
        """Names and sizes, the newest first."""
        blocks: list[tuple[int, str, int]] = []
        with suppress(OSError):
            for entry in os.scandir(self.folder):
                if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    blocks.append((status.st_mtime_ns, entry.name, status.st_size))
        return [(name, size) for _, name, size in sorted(blocks, reverse=True)]

    def _shrink(self) -> None:
        total = 0
        for number, (name, size) in enumerate(self._newest()):
            total += size
            if total > self.most or number >= MAX_OFFERED_BLOCKS:
                self._remove([name])

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(OSError):
                os.unlink(self.folder / name)
