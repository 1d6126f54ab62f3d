"""Runs the ServerApps of this host's SuperLink, each in a process, and reports every end with its reason.

It does what `flower-superexec` does, but with a secret: Flower hands each run to a client that asks its Runtime API. A
ServerApp reports its own end only once. If the SuperLink is down at that moment, the report would be lost.
"""

import argparse
import logging
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import httpx

from stratafl.child_processes import safe_environment
from stratafl.deploy.certificates import read_key, write_once
from stratafl.deploy.flower_internals import acquire_task, push_task_end, runtime_client, send_task_heartbeat
from stratafl.deploy.processes import flower_command, log_to_stderr

log = logging.getLogger("stratafl.deploy")
_PAUSES = (0.2, 1.0)  # seconds between two questions at least, and at most, which flower-superexec always takes
_HEARTBEAT = 10.0  # seconds
_AGAIN = 1.0  # seconds before an end is reported again
PATIENCE = 300.0  # seconds for which it is tried


@dataclass(frozen=True)
class RuntimeApi:
    """Where a Runtime API is."""

    address: str
    root_certificates: Path

    def client(self, *, secret: bytes | None = None, token: str = "", retries: bool = True) -> Any:
        roots = read_key(self.root_certificates)
        return runtime_client(self.address, roots, secret=secret, token=token, retries=retries)


def task_tokens(runtime: RuntimeApi, secret: Path) -> Iterator[str]:
    """The tokens of tasks of this kind, one after the other, for ever; a wait grows by a tenth at most.

    A question takes 20 ms of a core: five of them a second cost an idle site a tenth of one.
    """
    client = runtime.client(secret=read_key(secret))
    since = time.monotonic()
    while True:
        if token := acquire_task(client):
            yield token
            since = time.monotonic()
        else:
            time.sleep(pause_after(time.monotonic() - since))


def pause_after(waited: float) -> float:
    """Seconds until the next question, a tenth of those waited so far, within `_PAUSES`."""
    least, most = _PAUSES
    return min(most, max(least, waited / 10))


@contextmanager
def kept_alive(runtime: RuntimeApi, token: str) -> Iterator[None]:
    """Send heartbeats for a task while its process starts and runs.

    Flower takes a task back that is silent for 30 s, and a ServerApp that imports torch on a busy machine is: it would
    be started again and again.
    """
    done = Event()
    client = runtime.client(token=token, retries=False)

    def beat() -> None:
        waiting = True
        while waiting:
            try:
                send_task_heartbeat(client)
            except httpx.TransportError:
                pass
            except httpx.HTTPStatusError:  # the task is over; its own process is told, too
                return
            waiting = not done.wait(_HEARTBEAT)

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        client.close()


def report_end(runtime: RuntimeApi, token: str, completed: bool, reason: str, patience: float = PATIENCE) -> bool:
    """Say how a task ended, once more where its process may not have been heard; whether the SuperLink knows it now.

    A task whose end is known is refused. An outage of the SuperLink is waited out: without a report it
    would take half an hour (`superlink.py`) to notice that the task has ended.
    """
    latest = time.monotonic() + patience
    with closing(runtime.client(token=token, retries=False)) as client:
        while True:
            try:
                push_task_end(client, completed, reason)
                return True
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500:
                    return True
            except httpx.TransportError:
                pass
            if time.monotonic() > latest:
                return False
            time.sleep(_AGAIN)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--root-certificates", type=Path, required=True)
    parser.add_argument("--secret", type=Path, required=True)
    options = parser.parse_args()
    log_to_stderr()
    runtime = RuntimeApi(options.runtime, options.root_certificates)
    for token in task_tokens(runtime, options.secret):
        _run(runtime, token)


def _run(runtime: RuntimeApi, token: str) -> None:
    log.info("a ServerApp starts")
    with TemporaryDirectory(prefix="stratafl-") as folder:  # only we can look into it; a command line is public
        write_once(Path(folder) / "token", token.encode())
        options = ["--runtime-api-address", runtime.address, "--root-certificates", str(runtime.root_certificates)]
        owner = ["--token-file", f"{folder}/token", "--parent-pid", str(os.getpid())]
        command = [flower_command("flwr-serverapp"), *options, *owner]
        with kept_alive(runtime, token):
            # flwr installs the app below FLWR_HOME and imports from there first, so nothing else may be there.
            code = subprocess.run(command, env=safe_environment(FLWR_HOME=folder), check=False).returncode
    log.info("the ServerApp ended with code %d", code)
    how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    if not report_end(runtime, token, code == 0, f"the ServerApp {how}"):
        log.warning("the ServerApp's end could not be reported: the SuperLink does not answer")


if __name__ == "__main__":
    main()
