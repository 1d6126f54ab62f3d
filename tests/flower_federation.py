"""A federation of real processes for tests: host, gate and sites over loopback, with TLS and keys."""

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stratafl.deploy.certificates import Pair, create_authority, create_server_certificate, create_site_key
from stratafl.deploy.control import RunState
from stratafl.deploy.folders import SiteFolder
from stratafl.deploy.host import Host, HostAddress
from stratafl.deploy.site_processes import SiteProcesses
from stratafl.errors import DeployError

PATIENCE = 900.0  # seconds; only what hangs takes that long, and a busy machine takes as long as it takes
SERVER_APP, CLIENT_APP = "flower_echo:server", "flower_echo:client"


class Federation:
    """Host and sites, all tended by whoever waits for something; ends all of them when it is left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tests = str(Path(__file__).parent)
        if tests not in os.environ.get("PYTHONPATH", "").split(os.pathsep):  # where processes find the echo apps
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
        self.authority = create_authority(folder)
        self.certificate = create_server_certificate(folder, ["127.0.0.1"], self.authority)
        self.sites, self.notes = dict[str, SiteProcesses](), list[str]()
        self.host = self.start_host()

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *raised: object) -> None:
        for site in self.sites.values():
            site.end()
        self.host.end()

    def start_host(self) -> Host:
        return Host(self.folder / "host", HostAddress("127.0.0.1", 0), self.certificate, self.authority.public)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.host.address.port}"

    def join(
        self, name: str, *, register: bool = True, key: Pair | None = None, authority: Path | None = None
    ) -> SiteProcesses:
        key = key or create_site_key(self.folder, name)
        if register:
            self.host.register(name, key.public)
        folder = SiteFolder(self.folder / name, None, name, self.address, key, authority or self.authority.public)
        site = SiteProcesses(folder, {}, CLIENT_APP)
        self.sites[name] = site
        return site

    def run(self, name: str, **settings: str | int | float | bool) -> "Run":
        log = self.folder / f"{name}.jsonl"
        log.touch()
        given = {"log": str(log), "size": 100, "rounds": 2, "sites": len(self.sites), "deadline": PATIENCE}
        return Run(self, log, self.host.start_run(SERVER_APP, CLIENT_APP, {**given, **settings}))

    def tend(self) -> None:
        self.notes += self.host.tend()
        for site in self.sites.values():
            self.notes += site.tend()

    def until(self, met: Callable[[], Any], what: str = "it") -> Any:
        latest = time.monotonic() + PATIENCE
        while not (found := met()):
            assert time.monotonic() < latest, f"{what} hangs; {self.notes}"
            self.tend()
            time.sleep(0.05)
        return found

    def hold(self, site: str) -> Path:
        """Make the app of a site wait in the middle of its next message; remove the file to let it go on."""
        path = self.sites[site].folder / "hold"
        path.touch()
        return path

    def messages(self, site: str) -> list[dict[str, Any]]:
        return lines(self.sites[site].folder / "messages.jsonl")


class Run:
    """A run of the echo apps under way."""

    def __init__(self, federation: Federation, log: Path, number: int) -> None:
        self.federation, self.log, self.number = federation, log, number

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in lines(self.log) if event["event"] == kind]

    def state(self) -> RunState:
        return self.federation.host.control.run_state(self.number)

    def finish(self) -> RunState:
        """Until it ends; how it ended."""
        self.federation.until(lambda: self._ended(), f"run {self.log.stem}")
        return self.state()

    def _ended(self) -> bool:
        time.sleep(0.5)
        with suppress(DeployError):  # a machine that is busy enough takes longer than flwr waits for an answer
            return self.state().finished
        return False


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
