"""Tasks of a SuperLink or a SuperNode: what `flower-superexec` does, with a secret, and with ends that are reported.

Flower hands each run (at the SuperLink) and each message (at a SuperNode) to whoever asks its Runtime API for a task.
`server_tasks.py` and `client_tasks.py` ask, and only they know the secret.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.proto.runtime_pb2 import AcquireTaskRequest, PushTaskOutputRequest
from flwr.supercore.constant import TaskType
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)
from flwr.supercore.retry import RetryInvoker, make_simple_http_retry_invoker
from flwr.supercore.runtime import RuntimeHttpClient

from stratafl.deploy.certificates import MOST_BYTES
from stratafl.files import read_plain

_PAUSE = 0.2  # seconds between two questions; flower-superexec takes 1
_PROTECTED = ("/flwr.proto.Runtime/AcquireTask",)


@dataclass(frozen=True)
class Runtime:
    """Where a Runtime API is; without root certificates the connection is plain, which only loopback may be."""

    address: str
    root_certificates: Path | None = None

    def client(self, *, secret: bytes | None = None, token: str = "") -> tuple[RuntimeHttpClient, RetryInvoker]:
        """A client that may ask for tasks (`secret`) or work on one (`token`), and who decides how long it retries."""
        retries = make_simple_http_retry_invoker()
        interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="stratafl")]
        if secret is not None:
            interceptors.append(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=_PROTECTED))
        if token:
            interceptors.append(RuntimeTokenHttpInterceptor(token))
        certificates = read_plain(self.root_certificates, MOST_BYTES) if self.root_certificates else None
        insecure = certificates is None
        client = RuntimeHttpClient.from_server_address(
            self.address, insecure, certificates, interceptors, retry_invoker=retries
        )
        return client, retries


def tokens(runtime: Runtime, kind: TaskType, secret: bytes) -> Iterator[str]:
    """The tokens of tasks of this kind, one after the other, for ever."""
    client, _ = runtime.client(secret=secret)
    request = AcquireTaskRequest(supported_task_types=[kind])
    while True:
        found = client.AcquireTask(request)
        if found.HasField("task") and found.token:
            yield found.token
        else:
            time.sleep(_PAUSE)


def report_failure(runtime: Runtime, token: str, reason: str) -> None:
    """End a task whose process is gone, at once and with a reason; by itself Flower notices after a minute."""
    client, retries = runtime.client(token=token)
    retries.max_time = 10
    try:
        client.PushTaskOutput(PushTaskOutputRequest(sub_status="failed", details=reason))
    finally:
        client.close()
