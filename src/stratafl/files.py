"""Files that are not believed and never lost: opened without following a link, read up to a limit, never overwritten.

A run directory may come from anywhere, so nothing in it is opened by its name alone: a link could lead out of it, a
pipe would never answer, and a file can be larger than memory. Everybody may import this module.
"""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from stratafl.errors import DamagedError, RunError

_WRITING = os.O_WRONLY | os.O_RDWR


def open_plain(path: Path, flags: int = os.O_RDONLY, *, folder: int | None = None) -> int:
    """A handle of a plain file; with `folder`, of the file of this name in the directory that this handle is of.

    What is there but no plain file is refused, and so is writing to a file that has a second name elsewhere.
    """
    name = path if folder is None else Path(path.name)
    try:
        handle = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _not_plain(path) from error
        raise
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise _not_plain(path)
        if flags & _WRITING and found.st_nlink > 1:
            raise DamagedError(f"'{path}' has a second name (a hard link), which writing would change: copy the folder")
    except BaseException:
        os.close(handle)
        raise
    return handle


def read_plain(path: Path, most: int) -> bytes:
    """The bytes of a plain file of at most `most` bytes."""
    with os.fdopen(open_plain(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise DamagedError(f"'{path}' is too large: it may hold {most:,} bytes")
    return data


def is_plain(path: Path) -> bool:
    """Whether there is a plain file, and not a link to one."""
    return stat.S_ISREG(_mode(path))


def is_plain_folder(path: Path) -> bool:
    """Whether there is a folder, and not a link to one."""
    return stat.S_ISDIR(_mode(path))


def _mode(path: Path) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _not_plain(path: Path) -> DamagedError:
    return DamagedError(f"'{path}' is not a plain file but a link, a folder, a pipe or a device: put the file back")


def check_new(paths: Sequence[Path | None]) -> None:
    """Refuse files that exist, or whose folder does not: nothing is overwritten."""
    for path in paths:
        if path is not None and path.exists():
            raise RunError(f"'{path}' exists: choose another name, or remove it")
        if path is not None:
            check_folder(path)


def check_folder(path: Path) -> None:
    """Refuse a file whose folder is not there."""
    if not path.absolute().parent.is_dir():
        raise RunError(f"cannot write '{path}': there is no folder '{path.parent}'")
