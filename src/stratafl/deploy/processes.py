"""Processes of a federation: each has a log, a guardian that ends it with its parent, and a one-line outcome."""

import logging
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from stratafl.child_processes import installed_command, python_command, safe_environment
from stratafl.errors import DeployError, shown
from stratafl.files import explained

GRACE = 30.0  # seconds between SIGTERM and SIGKILL; on a busy machine a SuperLink takes 18 to say goodbye
SILENT = ("httpx", "httpcore")  # loggers with a line for every request
PATIENCE = 300.0  # seconds for a process to answer; on a busy machine Flower takes half a minute to import
RETRY = 5  # seconds, at most, after which a site tries again to reach its server; flwr takes 20
FLOWER_VERSIONS = (("1", "41"), ("1", "42"))
GUARDIAN = Path(__file__).with_name("guardian.py")  # run by file name: it imports nothing of ours
# Environment variables that tell an app its folder: here, because an app is started often and imports little else.
FLOWER_FOLDER, SITE_FOLDER = "STRATAFL_FLOWER_FOLDER", "STRATAFL_SITE_FOLDER"
# What a site's process (flower_node.py) says in its log; site_processes.py looks for it.
CONNECTED = "connected as node"
LOST, FOUND = "the server cannot be reached", "the server answers again"
NOT_TAKEN = "a reply was not taken"
SHUT_OUT, BAD_KEY = "the server does not know this site's key", "the private key cannot be read"
BAD_CERTIFICATE = "certificate verify failed"  # says OpenSSL
_PAUSE = 0.05


class Process:
    """A command that runs until `end`, until it exits, or until this process is gone."""

    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name, self.log = name, log
        with explained("write", log):
            handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._start = os.fstat(handle).st_size
        try:
            self._guardian = subprocess.Popen(
                python_command("-I", "-S", GUARDIAN, GRACE, *command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=handle,
                env=safe_environment(environment),
                start_new_session=True,
                umask=0o077,  # of all files that it writes
            )
        finally:
            os.close(handle)
        assert self._guardian.stdout is not None
        pid = self._guardian.stdout.readline()
        self._guardian.stdout.close()
        if not pid:
            self.end()
            raise DeployError(f"cannot start {name}: {self.last_line()} (log: '{log}')")
        self.pid = int(pid)

    def running(self) -> bool:
        return self._guardian.poll() is None

    def outcome(self) -> str:
        """How it ended, for a message: its exit code or signal, and the last line of its log."""
        code = self._guardian.poll()
        if code is None:
            return f"{self.name} is running"
        how = f"was killed by {signal.Signals(code - 128).name}" if _is_signal(code) else f"exited with code {code}"
        return f"{self.name} {how}; last line of '{self.log}': {self.last_line()}"

    def was_killed(self) -> bool:
        """Whether a signal ended it."""
        return _is_signal(self._guardian.poll() or 0)

    def said(self) -> str:
        """Its log since it was started, at most the last 64 KB."""
        with suppress(OSError), open(self.log, "rb") as file:
            file.seek(max(self._start, file.seek(0, os.SEEK_END) - 65536))
            return file.read().decode(errors="replace")
        return ""

    def last_line(self) -> str:
        lines = [line for line in self.said().splitlines() if line.strip()]
        return shown(lines[-1].strip(), 200) if lines else "(nothing was logged)"

    def terminate(self) -> None:
        """Ask it to end; `end` waits for that."""
        assert self._guardian.stdin is not None
        with suppress(OSError):
            self._guardian.stdin.close()

    def end(self) -> None:
        """SIGTERM, then SIGKILL, to the process and all that it started; returns when they are gone."""
        self.terminate()
        try:
            self._guardian.wait(GRACE + 30)
        except subprocess.TimeoutExpired:  # a guardian does not hang; a machine that swaps might
            self._guardian.kill()
            self._guardian.wait()


def wait_until(answers: Callable[[], bool], process: Process, what: str, patience: float = PATIENCE) -> None:
    """Until it answers; an error if the process ends first, or after `patience` seconds."""
    latest = time.monotonic() + patience
    while not answers():
        if not process.running():
            raise DeployError(f"{what} did not start: {process.outcome()}")
        if time.monotonic() > latest:
            raise DeployError(f"{what} has not answered for {patience:.0f} s: see '{process.log}'")
        time.sleep(_PAUSE)


def flower_environment(home: Path) -> dict[str, str]:
    """The environment of every Flower process: nothing is reported, looked up or installed, and no proxy is used."""
    inherited = {name: value for name, value in os.environ.items() if not _is_dropped(name)}
    return inherited | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "PYTHONUNBUFFERED": "1",
    }


def log_to_stderr() -> None:
    """For modules that run as processes: time, level and message, a line each."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("flwr").propagate = False  # it has a handler of its own
    for name in SILENT:
        logging.getLogger(name).setLevel(logging.WARNING)


def python_module(module: str, *arguments: object, **options: object) -> list[str]:
    """The command that runs a module of ours with this Python; `options` become `--name value`."""
    named = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    return python_command("-m", module, *arguments, *named)


def flower_command(name: str) -> str:
    """The path of a Flower command, which pip puts into the folder of this Python."""
    require_flower()
    path = installed_command(name)
    if not path.exists():
        raise DeployError(f"the command '{path}' is missing: install Flower again with pip install 'stratafl[flower]'")
    return str(path)


def require_flower() -> None:
    """Whether a Flower is installed with which all of this was tried."""
    if find_spec("flwr") is None:
        raise DeployError("a federation needs Flower, which is not installed: run pip install 'stratafl[flower]'")
    installed = version("flwr")
    if tuple(installed.split(".")[:2]) not in FLOWER_VERSIONS:
        tried = " or ".join(f"{'.'.join(each)}" for each in FLOWER_VERSIONS)
        raise DeployError(
            f"a federation needs Flower {tried}, not {shown(installed, 40)}: run pip install 'stratafl[flower]'"
        )


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free now. Another process may take it first; then ours says so and ends."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _is_signal(code: int) -> bool:
    return code > 128 and code - 128 in signal.valid_signals()


def _is_dropped(name: str) -> bool:
    """Settings of Flower that are not ours, and proxies, which httpx would use even for loopback."""
    return name.startswith("FLWR_") or name.lower() in ("http_proxy", "https_proxy", "all_proxy")
