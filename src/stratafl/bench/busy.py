"""Other processes at work: what most machines have, and what parallel threads suffer from."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# Ends by itself when its parent is gone, whatever ended that.
_WORK = """
import os
parent = os.getppid()
while os.getppid() == parent:
    sum(range(100_000))
"""


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute without pause, each on one core, until the block ends."""
    started = [subprocess.Popen([sys.executable, "-c", _WORK]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
