"""Claims: only one process at a time works on a folder. A claim is a lock that ends with its process."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stratafl.errors import BusyError
from stratafl.files import lock

POLL_SECONDS = 0.1  # seconds until a process that waits looks again


@contextmanager
def claimed(folder: Path) -> Iterator[bool]:
    """Hold the claim on a folder, which need not exist; False if another process holds it."""
    place = folder.with_name(f".{folder.name}.claim")
    place.mkdir(parents=True, exist_ok=True)
    try:
        handle = lock(place)
    except BusyError:
        yield False
        return
    try:
        yield True
    finally:
        os.close(handle)


@contextmanager
def waited_for(folder: Path) -> Iterator[None]:
    """Hold the claim on a folder as soon as no other process does."""
    while True:
        with claimed(folder) as is_held:
            if is_held:
                yield
                return
        time.sleep(POLL_SECONDS)
