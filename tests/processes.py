"""Processes that tests start: none is left behind, and only one that hangs is ever given up on."""

import subprocess
import time
from collections.abc import Callable
from contextlib import suppress

PATIENCE = 900  # seconds; only what hangs takes that long, and a busy machine takes as long as it takes


def outputs(process: "subprocess.Popen[str]") -> tuple[str, str]:
    """What a process printed until it ended by itself; it is gone afterwards, whatever happens."""
    try:
        return process.communicate(timeout=PATIENCE)
    finally:
        end(process)


def end(process: "subprocess.Popen[str]") -> None:
    """Kill a process and wait for it: one that nobody waited for is blamed on another test."""
    process.kill()
    with suppress(ValueError):  # its pipes are closed already
        process.communicate()


def wait_until(met: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Until something is so, or the process that would bring it about has ended."""
    latest = time.monotonic() + PATIENCE
    while not met() and process.poll() is None:
        assert time.monotonic() < latest, "it hangs"
        time.sleep(0.002)
