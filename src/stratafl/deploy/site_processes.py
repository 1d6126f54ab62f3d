"""A site's side of a federation: the process that answers its messages, started again after a pause that grows.

The site's folder keeps its log, the node's id and whatever the ClientApp writes there (`STRATAFL_SITE_FOLDER`); the
private key stays where it is.
"""

import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from stratafl.deploy.certificates import read_key
from stratafl.deploy.flower_internals import sign_off
from stratafl.deploy.folders import SiteFolder
from stratafl.deploy.member import AGREED
from stratafl.deploy.processes import (
    BAD_CERTIFICATE,
    BAD_KEY,
    CONNECTED,
    FOUND,
    LOST,
    NOT_TAKEN,
    RETRY,
    SHUT_OUT,
    SITE_FOLDER,
    Process,
    flower_environment,
    python_module,
)
from stratafl.errors import DeployError, StrataError, shown
from stratafl.files import lock, make_private, read_plain, write_atomically

PAUSES = (1.0, 2.0, 5.0, 10.0, 20.0)  # seconds before the next start; the last one is repeated
HEALTHY = 120.0  # seconds of connection after which the first pause is used again
LOOK = 0.5  # seconds between two looks into the logs
_NODE = re.compile(rf"{CONNECTED} (\d{{1,20}})")
# As client_app and the exchange log what they refuse, and flower_node what the host refuses.
_REFUSAL = re.compile(rf"^[\d:, -]+ WARNING (refused|{NOT_TAKEN}): (.+)$", re.MULTILINE)
# What the log of the process says before it ends, and what that means; the first that is found is said.
_REASONS = {
    BAD_CERTIFICATE: "the server's certificate is not signed by the authority that this site was given",
    "[code: 2004]": "the server still counts this site as connected and admits it within a minute",
    "[code: ": "the server refuses this site",
    BAD_KEY: BAD_KEY,
    SHUT_OUT: "the host has not let this site in yet, or clocks differ: send it this site's NAME.pub",
}
_REVOKED = "the host no longer lets this site in: it has removed or replaced this site's key, or clocks differ"
_FINAL = (BAD_CERTIFICATE, BAD_KEY)  # trying again would not help

CLIENT_APP = "stratafl.deploy.client_app:app"


class SiteStatus(Enum):
    """Where a site stands."""

    STARTING = "starting"
    CONNECTED = "connected"
    UNREACHABLE = "the server does not answer"
    PAUSED = "waiting to start again"
    ENDED = "ended"


class SiteProcesses:
    """Keeps a site in a federation while `tend` is called; ends with this process.

    `settings` are for the ClientApp, which is that of every federation unless another one is named.
    """

    def __init__(
        self, site: SiteFolder, settings: Mapping[str, str | int | float | bool], client_app: str | None = None
    ) -> None:
        folder, self.name, self._server = site.path, site.name, site.server
        self.folder = folder
        self._key, self._authority, self._app = site.key.key, site.authority, client_app or CLIENT_APP
        for part in (folder, folder / "logs", folder / "flower"):
            make_private(part)
        self._lock = lock(folder)
        self._process: Process | None = None
        self._tries, self._next, self._look = 0, 0.0, 0.0
        self._connected_at: float | None = None
        self.refusal = self.reason = self._said = ""  # of a request; for a pause; what was said last
        self._was_connected = False
        self.status = SiteStatus.STARTING
        self._config = site.write_node(settings)
        self._release()

    def __enter__(self) -> "SiteProcesses":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def tend(self) -> list[str]:
        """Start the process if it should run. Returns what happened; a `DeployError` if another try cannot help."""
        if self._process is None:
            return self._start_again()
        return self._progress(self._process) if self._process.running() else self._fell(self._process)

    def pid(self) -> int | None:
        """Of the process, if it runs."""
        return self._process.pid if self._process is not None and self._process.running() else None

    def end(self) -> None:
        """Leave, and tell the server, so that it does not wait for this site."""
        self._end_process()
        self._release()
        self.status = SiteStatus.ENDED
        with suppress(OSError):
            os.close(self._lock)

    def _start_again(self) -> list[str]:
        if time.monotonic() < self._next:
            return []
        self._connected_at = None
        self.status = self._not_connected()
        environment = flower_environment(self.folder / "flower") | {SITE_FOLDER: str(self.folder.absolute())}
        node: dict[str, object] = {"server": self._server, "authority": self._authority, "key": self._key}
        node |= {"config": self._config, "app": self._app}
        command = python_module("stratafl.deploy.flower_node", **node)
        self._process = Process("site", command, self.folder / "logs" / "site.log", environment)
        return []

    def _progress(self, process: Process) -> list[str]:
        now = time.monotonic()
        if now < self._look:
            return []
        self._look = now + LOOK
        log = process.said()
        node_id = _NODE.search(log)
        if node_id and self._connected_at is None:
            self._connected_at = now
            write_atomically(self.folder / "node", node_id[1].encode())
        if self._connected_at is not None and now - self._connected_at > HEALTHY:
            self._tries = 0
        return [*self._refused(log), *self._told(self._status_now(log))]

    def _refused(self, log: str) -> list[str]:
        """That this site does not do what it was asked, or that the host did not take what it did."""
        refusals = _REFUSAL.findall(log)
        if not refusals:
            return []
        what, why = refusals[-1]
        refusal = f"{what}: {why}" if what == NOT_TAKEN else why
        if refusal == self.refusal:
            return []
        self.refusal = refusal
        does = f"site '{self.name}'{':' if what == NOT_TAKEN else ' refuses a request:'}"
        return [f"{does} {shown(refusal, 400)}"]

    def _status_now(self, log: str) -> SiteStatus:
        """From the log of the process, which waits for its server."""
        if log.rfind(LOST) > log.rfind(FOUND):
            return SiteStatus.UNREACHABLE
        return self._not_connected() if self._connected_at is None else SiteStatus.CONNECTED

    def _not_connected(self) -> SiteStatus:
        """A site that starts again for the reason for which it paused still waits."""
        return SiteStatus.PAUSED if self.reason else SiteStatus.STARTING

    def _told(self, status: SiteStatus) -> list[str]:
        """The line for a new status, if it changed."""
        before, self.status = self.status, status
        if status is before or status in (SiteStatus.STARTING, SiteStatus.PAUSED):
            return []
        if status is SiteStatus.CONNECTED:
            again, self._was_connected, self._said = " again" * self._was_connected, True, ""
            self.reason = ""
            return [f"site '{self.name}' is connected{again}"]
        return [f"site '{self.name}': no answer from {self._server}; the site tries again at least every {RETRY} s"]

    def _fell(self, gone: Process) -> list[str]:
        log, outcome = gone.said(), gone.outcome()
        cause = next((text for text in _REASONS if text in log), None)
        self._end_process()
        self._release()
        was_let_in = self._was_connected or (self.folder / AGREED).exists()
        why = _REVOKED if was_let_in and cause == SHUT_OUT else _REASONS[cause] if cause else outcome
        began = self._connected_at is not None or LOST in log or _NODE.search(log)
        if cause in _FINAL or (cause is None and not began and not gone.was_killed()):
            self.status = SiteStatus.ENDED
            raise DeployError(f"site '{self.name}': {f'{why} ({outcome})' if cause else outcome}")
        pause = PAUSES[min(self._tries, len(PAUSES) - 1)]
        self._tries, self._next = self._tries + 1, time.monotonic() + pause
        self.status, self.reason = SiteStatus.PAUSED, why
        if cause is None:
            return [f"site '{self.name}': {outcome}. It starts again in {pause:.0f} s"]
        is_new, self._said = why != self._said, why
        return [f"site '{self.name}': {why}. It keeps trying"] if is_new else []

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None

    def _release(self) -> None:
        """Sign off a process that has ended: for a minute the server would wait for it and refuse another one."""
        place = self.folder / "node"
        if not place.exists():
            return
        with suppress(httpx.HTTPError, ValueError, OSError, StrataError):  # if this fails, the minute has to pass
            key = load_ssh_private_key(read_key(self._key), None)
            if not isinstance(key, ec.EllipticCurvePrivateKey):
                return
            sign_off(self._server, read_key(self._authority), key, int(read_plain(place, 100)))
        with suppress(FileNotFoundError):
            place.unlink()
