"""Processes that tests start: none is left behind, and only one that hangs is ever given up on."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

PATIENCE = 900  # seconds; only what hangs takes that long, and a busy machine takes as long as it takes
COMMANDS = ("run", "compare", "report")


class Command:
    """`strata` in a process of its own, with what a test needs of `subprocess.Popen`; it prints into one file.

    It is forked from a process that has imported everything, which saves four seconds each time.
    """

    def __init__(self, *arguments: object, environment: Mapping[str, str] | None = None) -> None:
        handle, printed = tempfile.mkstemp()
        os.close(handle)
        self._printed = Path(printed)
        start = (tuple(map(str, arguments)), dict(environment or os.environ), os.getcwd(), printed)
        self._process = _forkserver().Process(target=_strata, args=start)
        self._process.start()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        assert self._process.pid  # 0 would be the whole group of processes
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("strata", timeout or 0)
        text = self._printed.read_text() if self._printed.exists() else ""
        self._printed.unlink(missing_ok=True)
        return text, ""


Process = Command | subprocess.Popen[str]


@cache
def _forkserver() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    modules = ("torch._dynamo", "stratafl.tuning", "stratafl.cli.app", *(f"stratafl.cli.{c}_command" for c in COMMANDS))
    context.set_forkserver_preload(list(modules))
    return context


def _strata(arguments: tuple[str, ...], environment: dict[str, str], folder: str, printed: str) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    handle = os.open(printed, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(handle, stream)
    import torch

    from stratafl.cli import main

    torch.set_num_threads(int(environment.get("OMP_NUM_THREADS", torch.get_num_threads())))  # read when it was imported
    sys.argv = ["strata", *arguments]
    code = main(list(arguments))
    sys.stdout.flush()
    os._exit(code)


def outputs(process: Process) -> tuple[str, str]:
    """What a process printed until it ended by itself; it is gone afterwards, whatever happens."""
    try:
        return process.communicate(timeout=PATIENCE)
    finally:
        end(process)


def end(process: Process) -> None:
    """Kill a process and wait for it: one that nobody waited for is blamed on another test."""
    process.kill()
    with suppress(ValueError):  # its pipes are closed already
        process.communicate()


def wait_until(met: Callable[[], bool], process: Process) -> None:
    """Until something is so, or the process that would bring it about has ended."""
    latest = time.monotonic() + PATIENCE
    while not met() and process.poll() is None:
        assert time.monotonic() < latest, "it hangs"
        time.sleep(0.002)
