"""Files, read as untrusted input and written atomically. Every package may import this module.

A run directory may come from anywhere: a link could lead out of it, a pipe would block, and a file could be larger
than memory. So links are not followed, and files are read up to a limit.
"""

import errno
import json
import os
import shutil
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any

from stratafl.errors import BusyError, DamagedError, RunError

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

STAMP = "made-here"  # a file that only the folder itself has, not a copy of it
_MAX_STAMP_BYTES = 100
PARTIAL = ".partial"  # ends the names of files that are being written
_WRITING = os.O_WRONLY | os.O_RDWR
_DIGITS = 19  # of whole numbers in JSON
# Windows lacks most of these, and only Windows has O_BINARY.
_NOFOLLOW, _NONBLOCK, _CLOEXEC, _BINARY = (
    getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY")
)


def cache_folder() -> Path:
    """`$STRATAFL_CACHE`, or `~/.cache/stratafl`."""
    folder = os.environ.get("STRATAFL_CACHE")
    return Path(folder) if folder else Path.home() / ".cache" / "stratafl"


def open_plain(path: Path, flags: int = os.O_RDONLY, *, folder: int | None = None) -> int:
    """A handle of a plain file; with `folder`, a handle of a directory, of the file of this name in it.

    Anything but a plain file is refused, and so is writing to a file that has a second name (a hard link).
    """
    name = path if folder is None else Path(path.name)
    if not _NOFOLLOW and os.path.lexists(path) and not is_plain(path):  # Windows
        raise _not_plain(path)
    try:
        handle = os.open(name, flags | _NOFOLLOW | _NONBLOCK | _CLOEXEC | _BINARY, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):
            raise _not_plain(path) from error
        raise
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise _not_plain(path)
        if flags & _WRITING and status.st_nlink > 1:
            raise DamagedError(f"'{path}' has a second name (a hard link): copy the folder, so that only one changes")
    except BaseException:
        os.close(handle)
        raise
    return handle


def read_plain(path: Path, most: int) -> bytes:
    """The bytes of a plain file, refused if it has more than `most`."""
    with os.fdopen(open_plain(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(min(size, most) + 1)  # a buffer of `most` bytes may not fit into memory
    if len(data) > most:
        raise DamagedError(f"'{path}' is too large: it may hold at most {most:,} bytes")
    return data


@contextmanager
def explained(action: str, path: Path) -> Iterator[None]:
    """Turn an error of the operating system into one sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot {action} '{path}': {error.strerror or error}") from error


@contextmanager
def atomically(path: Path, *, folder: int | None = None) -> Iterator[Path]:
    """A temporary name to write a file or a folder under, which becomes `path` when the block ends without an error.

    With `folder`, a handle of a directory, the name is relative to that.
    """
    place = path.absolute() if folder is None else Path(path.name)  # "." has no name to put a dot before
    partial = place.with_name(f".{place.name}.{uuid.uuid4().hex}{PARTIAL}")
    try:
        yield partial
        if folder is None and place.is_dir() and place.samefile(Path.cwd()):
            _fill(place, partial)
        else:
            os.replace(partial, place, src_dir_fd=folder, dst_dir_fd=folder)  # over a folder only if that is empty
    finally:
        _remove(partial, folder)


def write_atomically(path: Path, *parts: bytes, folder: int | None = None) -> None:
    """Write a whole file or nothing, so that it survives a power cut; with `folder`, as `atomically`."""
    with explained("write", path):
        with atomically(path, folder=folder) as partial:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOEXEC | _BINARY
            with os.fdopen(os.open(partial, flags, 0o666, dir_fd=folder), "wb") as file:
                file.writelines(parts)
                file.flush()
                os.fsync(file.fileno())
        sync_folder(path.absolute().parent, folder)


def write_all(handle: int, data: bytes, position: int) -> None:
    """Write at a position of an open file, in as many pieces as the system takes."""
    view = memoryview(data)
    while view:
        done = os.pwrite(handle, view, position)
        view, position = view[done:], position + done


def sync_folder(path: Path, handle: int | None = None) -> None:
    """Make sure that the names in a folder are on the disk, where the system can (Windows cannot)."""
    if handle is not None:
        os.fsync(handle)
    elif os.name != "nt":
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _fill(working: Path, partial: Path) -> None:
    """Move the files of a folder into the working directory, which a rename would replace under the process's feet."""
    if any(working.iterdir()):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    for file in sorted(partial.iterdir()):
        file.rename(working / file.name)


def _remove(path: Path, folder: int | None) -> None:
    with suppress(OSError):
        if stat.S_ISDIR(os.stat(path, dir_fd=folder, follow_symlinks=False).st_mode):
            shutil.rmtree(path, ignore_errors=True, dir_fd=folder)
        else:
            os.unlink(path, dir_fd=folder)


def clear_partial(folder: Path) -> None:
    """Remove what interrupted writes left behind."""
    for partial in folder.glob(f".*{PARTIAL}"):
        if is_plain_folder(partial):
            shutil.rmtree(partial, ignore_errors=True)
        elif partial.is_file():
            partial.unlink(missing_ok=True)


def check_lockable() -> None:
    """Raise on systems where two processes could write into the same directory."""
    if fcntl is None:
        raise RunError("this system cannot lock a run directory: use Linux or macOS (on Windows, WSL)")


def lock(folder: Path) -> int:
    """A handle of the directory, locked until it is closed or the process ends, however it ends."""
    check_lockable()
    assert fcntl is not None
    with explained("open", folder):
        handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise BusyError(f"another process is writing to '{folder}': wait until it ends, or stop it") from error
    except OSError as error:
        os.close(handle)
        raise RunError(f"cannot lock '{folder}': {error.strerror}") from error
    return handle


@contextmanager
def private_folder(folder: Path) -> Iterator[None]:
    """A folder for this user alone, made if it is missing, and locked until the block ends."""
    make_private(folder)
    handle = lock(folder)
    try:
        clear_partial(folder)
        yield
    finally:
        os.close(handle)


def changed_at(path: Path) -> int:
    """When a file was last changed, in nanoseconds since 1970; 0 if there is none."""
    with suppress(FileNotFoundError):
        return path.stat().st_mtime_ns
    return 0


def stamp(folder: Path) -> None:
    """Note that a folder was made here, and not sent or copied."""
    write_atomically(folder / STAMP, b"")
    write_atomically(folder / f"{STAMP}.txt", _birthmark(folder / STAMP))


def is_stamped(folder: Path) -> bool:
    """Whether a folder still has its stamp. A copy has not, because no archive sets when a file was last changed."""
    with suppress(OSError, DamagedError):
        return read_plain(folder / f"{STAMP}.txt", _MAX_STAMP_BYTES) == _birthmark(folder / STAMP)
    return False


def _birthmark(path: Path) -> bytes:
    status = os.stat(path, follow_symlinks=False)
    return f"{status.st_ino} {status.st_ctime_ns}".encode()


def make_private(folder: Path) -> None:
    """Make a folder for this user alone, or restrict an existing one."""
    with explained("create", folder):
        for place in reversed([each for each in (folder, *folder.parents) if not os.path.lexists(each)]):
            with suppress(FileExistsError):
                os.mkdir(place, 0o700)
                sync_folder(place.parent)
        if not is_plain_folder(folder):
            raise DamagedError(f"'{folder}' is not a folder but a file or a link: put the folder back, or remove it")
        if os.stat(folder).st_mode & 0o777 != 0o700:
            os.chmod(folder, 0o700)


def json_value(data: bytes) -> Any:
    """The JSON value in untrusted bytes; ValueError says what is wrong."""
    try:
        return json.loads(data.decode(), parse_constant=_refused, parse_float=_finite, parse_int=_whole)
    except RecursionError as error:
        raise ValueError("values are nested too deeply") from error


def _refused(text: str) -> float:
    raise ValueError(f"{text[:20]} is not a number that JSON allows")


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _refused(text)


def _whole(text: str) -> int:
    return int(text) if len(text) <= _DIGITS else int(_refused(text))


def is_plain(path: Path) -> bool:
    return stat.S_ISREG(_mode(path))


def is_plain_folder(path: Path) -> bool:
    return stat.S_ISDIR(_mode(path))


def _mode(path: Path) -> int:
    try:
        return os.lstat(path).st_mode
    except OSError:
        return 0


def _not_plain(path: Path) -> DamagedError:
    return DamagedError(f"'{path}' is not a plain file but a link, a folder, a pipe or a device: put the file back")


def check_new(paths: Sequence[Path | None]) -> None:
    """Refuse files that exist, or whose folder does not."""
    for path in filter(None, paths):
        if path.exists():
            raise RunError(f"'{path}' exists: choose another name, or remove it")
        check_folder(path)


def check_folder(path: Path) -> None:
    if not path.absolute().parent.is_dir():
        raise RunError(f"cannot write '{path}': there is no folder '{path.parent}'")
