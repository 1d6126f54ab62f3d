"""Hints between a host's gate and its ServerApp, so that neither asks the SuperLink again and again.

A signal is the time of a file. It carries no content and decides nothing: who misses one asks a few seconds later. One
file has a number: how many bytes a site's next reply takes at most.
"""

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

from stratafl.files import write_atomically

# A message for the site lies at the SuperLink; the site asks for its next message; the one posted then is lost.
Event = Literal["posted", "asked", "lost"]
FOLDER, LIMIT = "signals", "limit"
MAX_TRIES = 3  # of a site in one round, after which it has missed it; it may answer all of them late


class Signals:
    """The signals of sites, in the folder `signals/` of a host."""

    def __init__(self, host: Path) -> None:
        self._folder = host / FOLDER
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def tell(self, site: str, event: Event, when: int | None = None) -> None:
        """Now, or the time of the event that this one is about."""
        with suppress(OSError):  # such as a full disk
            os.close(os.open(path := self._path(site, event), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
            os.utime(path, ns=(then := when or time.time_ns(), then))  # a file system's own clock is too coarse

    def last(self, site: str, event: Event) -> int:
        """When it was told last; 0 if never."""
        with suppress(OSError):
            return self._path(site, event).stat().st_mtime_ns
        return 0

    def limit_replies(self, most: int) -> None:
        """Say how many bytes a reply takes at most, for the gate."""
        write_atomically(self._folder / LIMIT, str(most).encode())

    def most_reply_bytes(self) -> int | None:
        """As it was said last; None before."""
        with suppress(OSError, ValueError):
            return int((self._folder / LIMIT).read_bytes())
        return None

    def _path(self, site: str, event: Event) -> Path:
        return self._folder / f"{site}.{event}"
