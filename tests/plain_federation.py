"""A Flower federation as people have it, with its own SuperLink and SuperNodes, that runs our app by `flwr run`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from chaos import _below
from hosted import deployed, largest, simulated, with_tables, write_samples
from stratafl.cli import main
from stratafl.deploy.hosting import SERVER
from stratafl.deploy.processes import flower_environment, free_port
from stratafl.deploy.signing_keys import KEYS
from stratafl.execute.exchange.audit import Line, verify
from stratafl.execute.exchange.server_store import AUDIT

SITES = ("a", "b", "c")
PATIENCE = 900.0  # seconds; only what hangs takes that long, and a busy machine takes as long as it takes
COMMANDS = Path(sys.executable).parent
# Flower's processes, by what their command lines hold.
PARTS = {
    "superlink": "flower-superlink",
    "superexec": "flower-superexec",
    "serverapp": "flwr-serverapp",
    "supernode": "flower-supernode",
    "clientapp": "flwr-clientapp",
}


class PlainFederation:
    """Ends all processes when it is left; `kill` and `start` are for tests."""

    def __init__(self, folder: Path, **tables: dict[str, Any]) -> None:
        deploy = {"sites": list(SITES), "least": len(SITES), **tables.pop("deploy", {})}
        self.folder = folder
        run = {"rounds": 3, "participation": 1.0, **tables.pop("run", {})}
        self.file = with_tables(**tables, run=run, deploy=deploy)
        self.host, self.app = folder / "host", folder / "app"
        self.sites = {site: folder / site for site in self.file.deploy.sites}
        self.processes = dict[str, subprocess.Popen[bytes]]()
        write_samples(folder, self.file.deploy.sites)
        (folder / "given.toml").write_text(tomli_w.dumps(self.file.tables()))
        self.prepare()
        for site in self.sites:
            self.join(site)

    def prepare(self) -> None:
        places = ["--out", self.app, "--folder", self.host, "--invitation", self.folder / "invitation.toml"]
        assert main(list(map(str, ["flower-app", self.folder / "given.toml", *places]))) == 0

    def join(self, site: str) -> None:
        """Its owner prepares its folder and sends its keys."""
        given = [self.folder / "invitation.toml", "--site", site, "--data", self.folder / f"{site}.csv", "--yes"]
        assert main(list(map(str, ["join", *given, "--out", self.sites[site]]))) == 0
        (self.host / KEYS / f"{site}.pub").write_bytes((self.sites[site] / f"{site}.pub").read_bytes())

    def __enter__(self) -> "PlainFederation":
        self.port = free_port()
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        self._environment = {
            **flower_environment(home),
            "PATH": f"{COMMANDS}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
        }
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        self.start("superlink", *self.sites)
        return self

    def __exit__(self, *raised: object) -> None:
        for name in [*self.processes]:
            self.stop(name)

    # Processes

    def start(self, *names: str) -> None:
        for name in names:
            self._started(
                name, *(self._superlink() if name == "superlink" else self._supernode(name, self.sites[name]))
            )
            if name == "superlink":
                self.until(self._answers, "the SuperLink")

    def _superlink(self) -> list[object]:
        place = ["--host", "127.0.0.1", "--port", self.port]
        return ["flower-superlink", "--insecure", *place, "--database", self.folder / "flwr.db"]

    def _supernode(self, site: str, folder: Path) -> list[object]:
        config = f'site="{site}" folder="{folder}" data="{self.folder / site}.csv"'
        place = ["--superlink", f"127.0.0.1:{self.port}", "--port", free_port()]
        return ["flower-supernode", "--insecure", *place, "--node-config", config]

    def start_node(self, name: str, site: str, folder: Path) -> None:
        """A further SuperNode, which says that it is this site."""
        self._started(name, *self._supernode(site, folder))

    def _started(self, name: str, command: str, *arguments: object) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(COMMANDS / command), *map(str, arguments)],
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )

    def _answers(self) -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"http://127.0.0.1:{self.port}/health", trust_env=False).status_code < 500
        return False

    def stop(self, name: str) -> None:
        """The process and all that it has started."""
        process = self.processes.pop(name)
        for pid in (*(pid for pid, _ in _below(process.pid)), process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def kill(self, name: str, part: str) -> int:
        """SIGKILL to a part of a SuperNode's or the SuperLink's processes, once it is there; its pid."""
        pid = self.until(lambda: self.pid(name, part), f"{name}'s {part}")
        os.kill(pid, signal.SIGKILL)
        return int(pid)

    def pid(self, name: str, part: str) -> int | None:
        """The SuperNode or SuperLink itself, or what it has started."""
        if PARTS[part] == PARTS.get(name, PARTS["supernode"]):
            return self.processes[name].pid
        return next((pid for pid, line in _below(self.processes[name].pid) if PARTS[part] in line), None)

    # Runs

    def run(self) -> subprocess.Popen[bytes]:
        """`flwr run`, which ends with the run."""
        self._started("run", "flwr", "run", self.app, "lab", "--stream")
        return self.processes["run"]

    def finish(self) -> int:
        """`flwr run` until the run is over."""
        process = self.run()
        self.until(lambda: process.poll() is not None, "the run")
        return int(self.processes.pop("run").wait())

    def until(self, met: Callable[[], Any], what: str) -> Any:
        latest = time.monotonic() + PATIENCE
        while not (result := met()):
            assert time.monotonic() < latest, f"{what} hangs:\n{self.said()}"
            time.sleep(0.1)
        return result

    def said(self) -> str:
        return "\n".join(f"== {path.stem}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))

    # What came of it

    def audit(self) -> list[Line]:
        lines = list[Line]()
        if (self.host / SERVER / AUDIT).exists():
            verify(self.host / SERVER / AUDIT, look=lines.append)
        return lines

    def absorbed(self) -> list[list[str]]:
        """The sites of each round, from 0; a line that was not followed by saving is replaced by a later one."""
        rounds = {line["round"]: list(line["absorbed"]) for line in self.audit() if line["event"] == "absorb"}
        return [rounds[number] for number in sorted(rounds)]

    def difference(self) -> float:
        """The largest difference from the simulation of the same experiment."""
        return largest(deployed(self.host, self.sites, self.file), simulated(self.folder, self.file))
