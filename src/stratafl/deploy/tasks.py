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
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushTaskOutputRequest, SendTaskHeartbeatRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient

from stratafl.deploy.certificates import read_key

_PAUSES = (0.2, 1.0)  # seconds between two questions at least, and at most, which flower-superexec always takes
_HEARTBEAT = 10.0  # seconds
_AGAIN = 1.0  # seconds before an end is reported again
PATIENCE = 300.0  # seconds for which it is tried
_PROTECTED = ("/flwr.proto.Runtime/AcquireTask",)


@dataclass(frozen=True)
class RuntimeApi:
    """Where a Runtime API is; without root certificates the connection is plain, which only loopback may be."""

    address: str
    root_certificates: Path | None = None

    def client(self, *, secret: bytes | None = None, token: str = "", retries: bool = True) -> RuntimeHttpClient:
        """A client that may ask for tasks (`secret`) or work on one (`token`).

        With retries, an outage is waited out, and a 401 interrupts this process (flwr): the task is over.
        """
        interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="stratafl")]
        if secret is not None:
            interceptors.append(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_PROTECTED))
        if token:
            interceptors.append(RuntimeTokenHttpInterceptor(token))
        certificates = read_key(self.root_certificates) if self.root_certificates else None
        invoker = make_simple_http_retry_invoker() if retries else None
        return RuntimeHttpClient.from_server_address(
            self.address, certificates is None, certificates, interceptors, retry_invoker=invoker
        )


def task_tokens(runtime: RuntimeApi, kind: TaskType, secret: Path) -> Iterator[str]:
    """The tokens of tasks of this kind, one after the other, for ever; a wait grows by a tenth at most.

    A question takes 20 ms of a core: five of them a second cost an idle site a tenth of one.
    """
    client = runtime.client(secret=read_key(secret))
    request = AcquireTaskRequest(supported_task_types=[kind])
    since = time.monotonic()
    while True:
        acquired = client.AcquireTask(request)
        if acquired.HasField("task") and acquired.token:
            yield acquired.token
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
                client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
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


def report_end(runtime: RuntimeApi, token: str, status: str, reason: str, patience: float = PATIENCE) -> bool:
    """Say how a task ended, once more where its process may not have been heard; whether the SuperLink knows it now.

    A task whose end is known is refused. An outage of the SuperLink is waited out: without a report it
    would take half an hour (`superlink.py`) to notice that the task has ended.
    """
    latest = time.monotonic() + patience
    with closing(runtime.client(token=token, retries=False)) as client:
        while True:
            try:
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=reason))
                return True
            except httpx.HTTPStatusError as error:
                if error.response.status_code < 500:
                    return True
            except httpx.TransportError:
                pass
            if time.monotonic() > latest:
                return False
            time.sleep(_AGAIN)
