"""Tasks of a SuperLink or a SuperNode: what `flower-superexec` does, but with a secret and a report of every end.

Flower hands each run (at the SuperLink) and each message (at a SuperNode) to a client that asks its Runtime API.
`server_tasks.py` and `client_tasks.py` ask, and only they know the secret.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx

from stratafl.deploy.certificates import read_key
from stratafl.deploy.flower_internals import Kind, acquire_task, push_task_end, runtime_client, send_task_heartbeat

_PAUSES = (0.2, 1.0)  # seconds between two questions at least, and at most, which flower-superexec always takes
_HEARTBEAT = 10.0  # seconds
_AGAIN = 1.0  # seconds before an end is reported again
PATIENCE = 300.0  # seconds for which it is tried


@dataclass(frozen=True)
class RuntimeApi:
    """Where a Runtime API is; without root certificates the connection is plain, which only loopback may be."""

    address: str
    root_certificates: Path | None = None

    def client(self, *, secret: bytes | None = None, token: str = "", retries: bool = True) -> Any:
        certificates = read_key(self.root_certificates) if self.root_certificates else None
        return runtime_client(self.address, certificates, secret=secret, token=token, retries=retries)


def task_tokens(runtime: RuntimeApi, kind: Kind, secret: Path) -> Iterator[str]:
    """The tokens of tasks of this kind, one after the other, for ever; a wait grows by a tenth at most.

    A question takes 20 ms of a core: five of them a second cost an idle site a tenth of one.
    """
    client = runtime.client(secret=read_key(secret))
    since = time.monotonic()
    while True:
        if token := acquire_task(client, kind):
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
