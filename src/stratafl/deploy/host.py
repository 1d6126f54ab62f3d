"""The server's side of a federation: SuperLink, the process that runs ServerApps, and the gate.

All that is kept is in one folder: database, keys of sites, logs. The SuperLink listens on loopback; the gate has the
address that sites know. `tend` starts again what ended: the run survives an outage of SuperLink and gate.
"""

import os
import re
import secrets
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx

from stratafl.deploy.admission import Quota
from stratafl.deploy.certificates import LOOPBACK, Pair, check_site_name, read_key, read_public_key, write_once
from stratafl.deploy.control import ControlClient
from stratafl.deploy.flower_app import write_app
from stratafl.deploy.processes import (
    FLOWER_FOLDER,
    Process,
    flower_environment,
    free_port,
    python_module,
    require_flower,
    wait_until,
)
from stratafl.deploy.status import read_counts
from stratafl.errors import DeployError, shown
from stratafl.files import is_stamped, lock, make_private, stamp

RESTARTS, WITHIN = 5, 600.0  # restarts of a process within this many seconds, after which the host gives up
PORT = 9443  # of a host, unless its address names another
# A name or an IP address: no option, path or control character.
_HOST = re.compile(r"[A-Za-z0-9\[:_][A-Za-z0-9\]:_.%-]*")


@dataclass(frozen=True)
class HostAddress:
    """How sites reach a host, or what its gate listens on, such as `server.example.org:9443`; port 0: any free one."""

    host: str
    port: int

    @staticmethod
    def parse(text: str) -> "HostAddress":
        host, _, port = text.rpartition(":") if ":" in text else (text, "", str(PORT))
        if not _HOST.fullmatch(host) or not port.isdecimal() or not 0 <= int(port) < 1 << 16:
            raise DeployError(f"'{shown(text)}' is not an address: write it as HOST:PORT, such as 192.168.1.5:{PORT}")
        return HostAddress(host, int(port))

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def listens(self) -> "HostAddress":
        """What the gate listens on: loopback alone if sites are on this machine, else all of its addresses."""
        return HostAddress(self.host if self.host in LOOPBACK else "0.0.0.0", self.port)


class RestartedProcess:
    """A process that is started again when it ends, and given up when it ends too often."""

    def __init__(self, start: Callable[[], Process]) -> None:
        self._start, self._starts = start, list[float]()
        self.process = start()

    def tend(self) -> str | None:
        """What happened, if something did."""
        if self.process.running():
            return None
        outcome, now = self.process.outcome(), time.monotonic()
        self._starts = [*(then for then in self._starts if now - then < WITHIN), now]
        if len(self._starts) > RESTARTS:
            raise DeployError(
                f"{outcome}. It ended {RESTARTS + 1} times in {WITHIN / 60:.0f} minutes and will not be restarted"
            )
        self.process.end()
        try:
            self.process = self._start()
        except DeployError as error:  # killed again, or before it answered: that counts as another end
            return f"{outcome}. Restarting it failed: {error}"
        return f"{outcome}. It was restarted"


class Host:
    """Starts everything, keeps it running while `tend` is called, and ends it with this process."""

    def __init__(
        self, folder: Path, address: HostAddress, certificate: Pair, authority: Path, quota: Quota | None = None
    ) -> None:
        require_flower()
        self._quota = quota or Quota()
        self.folder, self.address, self._certificate, self._authority = folder, address, certificate, authority
        for part in (folder, *(folder / name for name in ("sites", "logs", "flower"))):
            make_private(part)
        self._lock = lock(folder)
        if not is_stamped(folder):
            self._start_afresh()
        self._kept = list[RestartedProcess]()
        self._port = free_port()
        self._roots = read_key(authority)
        try:
            self.control = ControlClient(f"127.0.0.1:{self._port}", self._roots, self._secret("token"))
            self._secret("secret")
            self._start()
        except BaseException:
            self.end()
            raise

    def __enter__(self) -> "Host":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def register(self, site: str, public_key: Path) -> int:
        """Let a site in, now and whenever this folder is hosted again; returns its node id."""
        key = read_public_key(public_key)
        node = self.control.register(check_site_name(site), key)
        stored = self.folder / "sites" / f"{site}.pub"
        if not stored.exists():
            write_once(stored, read_key(public_key))
        return node

    @property
    def registered(self) -> list[str]:
        """The sites that the gate lets in; after a kill the SuperLink may know one more."""
        return [path.stem for path in (self.folder / "sites").glob("*.pub")]

    def unregister(self, site: str) -> None:
        """Shut a site out at once: at the gate first."""
        check_site_name(site)
        with suppress(FileNotFoundError):
            (self.folder / "sites" / f"{site}.pub").unlink()
        self.control.unregister(site)

    def start_run(self, server_app: str, client_app: str, settings: Mapping[str, str | int | float | bool]) -> int:
        """Start a run of two installed apps (`package.module:app`); the settings are its `context.run_config`."""
        with TemporaryDirectory(prefix="stratafl-") as folder:  # every file in it becomes part of the app
            return self.control.start_run(write_app(Path(folder), server_app, client_app, settings))

    def counts(self) -> dict[str, dict[str, float]]:
        return read_counts(self.folder)

    def tend(self) -> list[str]:
        """Start again what ended; says what it did, and raises a `DeployError` if something ends too often."""
        events = [process.tend() for process in self._kept]
        return [line for line in events if line is not None]

    def end(self) -> None:
        """End all processes, and all that they started."""
        if hasattr(self, "control"):
            self.control.close()  # the SuperLink would wait for our connection
        for restarted in reversed(self._kept):
            restarted.process.terminate()
        for restarted in reversed(self._kept):
            restarted.process.end()
        self._kept.clear()
        with suppress(OSError):
            os.close(self._lock)

    def _start(self) -> None:
        self._kept.append(RestartedProcess(self._start_superlink))
        self._check_token()
        for public_key in sorted((self.folder / "sites").glob("*.pub")):
            self.control.register(public_key.stem, read_public_key(public_key))
        self._kept.append(RestartedProcess(self._start_server_tasks))
        self._kept.append(RestartedProcess(self._start_gate))

    def _start_superlink(self) -> Process:
        options: dict[str, object] = {"host": "127.0.0.1", "port": self._port, "database": self.folder / "superlink.db"}
        options |= {"ssl_certfile": self._certificate.public, "ssl_keyfile": self._certificate.key}
        options |= {"ssl_ca_certfile": self._authority, "isolation": "process"}
        options |= {"superexec_auth_secret_file": self.folder / "secret"}
        flags = ("--enable-supernode-auth", "--disable-runtime-dependency-installation")
        process = self._process("superlink", "stratafl.deploy.superlink", self.folder / "token", *flags, **options)
        return self._answering(process, lambda: self._status("GET", "/health") == 200)

    def _start_server_tasks(self) -> Process:
        self._stop_leftovers()
        options = {"runtime": f"127.0.0.1:{self._port}", "root_certificates": self._authority}
        return self._process("serverapp", "stratafl.deploy.server_tasks", secret=self.folder / "secret", **options)

    def _start_gate(self) -> Process:
        if not self.address.port:
            self.address = HostAddress(self.address.host, free_port(self.address.host))
        options: dict[str, object] = {"host": self.address.host, "port": self.address.port}
        options |= {"superlink_port": self._port, "authority": self._authority}
        options |= {"certificate": self._certificate.public, "key": self._certificate.key}
        options |= {"sites": self.folder / "sites", "counts": self.folder / "counts.json"}
        options |= {"most": self._quota.most, "seconds": self._quota.seconds}
        process = self._process("gate", "stratafl.deploy.gate", **options)
        try:
            return self._answering(process, lambda: "listening on" in process.said())
        except DeployError as error:
            if "Address already in use" not in process.said():
                raise
            taken = f"port {self.address.port} of this machine is in use"
            raise DeployError(
                f"{taken}: stop the program that uses it, or choose another port with --address"
            ) from error

    def _process(self, name: str, module: str, *arguments: object, **options: object) -> Process:
        environment = flower_environment(self.folder / "flower") | {FLOWER_FOLDER: str(self.folder.absolute())}
        return Process(
            name, python_module(module, *arguments, **options), self.folder / "logs" / f"{name}.log", environment
        )

    def _answering(self, process: Process, answers: Callable[[], bool]) -> Process:
        try:
            wait_until(answers, process, f"the {process.name}")
        except BaseException:
            process.end()
            raise
        return process

    def _status(self, method: str, path: str) -> int | None:
        context = ssl.create_default_context(cadata=self._roots.decode())
        with suppress(httpx.TransportError), httpx.Client(verify=context, trust_env=False, timeout=10) as client:
            return int(client.request(method, f"https://127.0.0.1:{self._port}{path}").status_code)
        return None

    def _check_token(self) -> None:
        """Without the token nothing may be asked; this would fail with a flwr that takes its accounts elsewhere."""
        stranger = ControlClient(f"127.0.0.1:{self._port}", self._roots, "wrong")
        try:
            stranger.nodes()
        except DeployError:
            self.control.nodes()
            return
        finally:
            stranger.close()
        raise DeployError("this version of flwr answers control requests without a token: install the tested version")

    def _stop_leftovers(self) -> None:
        """Stop runs of a killed host or server_tasks: Flower does not notice that their ServerApps are gone."""
        for run in self.control.unfinished_runs():
            self.control.stop_run(run)

    def _start_afresh(self) -> None:
        """Remove database and secrets of a folder that was not made here: a run in them would be code.

        A host that was put back from a copy loses nothing by it, because its sites are registered again.
        """
        for path in (*self.folder.glob("superlink.db*"), self.folder / "token", self.folder / "secret"):
            path.unlink(missing_ok=True)
        stamp(self.folder)

    def _secret(self, name: str) -> str:
        path = self.folder / name
        if not path.exists():
            write_once(path, secrets.token_hex(32).encode())
        return read_key(path).decode()
