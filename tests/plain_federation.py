"""A Flower federation as people have it, with its own SuperLink and SuperNodes, that runs our app by `flwr run`."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import tomli_w

from chaos import _below
from hosted import deployed, largest, simulated, with_tables, write_samples
from stratafl.cli import main
from stratafl.deploy.certificates import create_authority, create_server_certificate, create_site_key
from stratafl.deploy.hosting import SERVER
from stratafl.deploy.processes import flower_environment, free_port
from stratafl.deploy.signing_keys import KEYS
from stratafl.deploy.status import read_status
from stratafl.execute.exchange.audit import Line, verify
from stratafl.execute.exchange.server_store import AUDIT

SITES = ("a", "b", "c")
PATIENCE = 900.0  # seconds; only what hangs takes that long, and a busy machine takes as long as it takes
STILL = 180.0  # seconds without a line in the audit log, after which an operator restarts what no longer answers
BETWEEN = 20.0  # seconds between two kills, at most
ANSWERED = ("uploaded", "has its model")  # states of a site from which nothing is awaited
COMMANDS = Path(sys.executable).parent
# Kinds of Flower's processes: what their command lines hold, and whether they are the SuperLink's.
KINDS = {
    "superlink": ("flower-superlink", True),
    "superlink's superexec": ("flower-superexec", True),
    "serverapp": ("flwr-serverapp", True),
    "supernode": ("flower-supernode", False),
    "supernode's superexec": ("flower-superexec", False),
    "clientapp": ("flwr-clientapp", False),
}


class PlainFederation:
    """Ends all processes when it is left; if `secured`, with TLS, and the SuperLink knows the keys of its nodes."""

    def __init__(self, folder: Path, *, secured: bool = False, **tables: dict[str, Any]) -> None:
        deploy = {"sites": list(SITES), "least": len(SITES), **tables.pop("deploy", {})}
        self.folder, self._secured = folder, secured
        run = {"rounds": 3, "participation": 1.0, **tables.pop("run", {})}
        self.file = with_tables(**tables, run=run, deploy=deploy)
        self.host, self.app = folder / "host", folder / "app"
        self.sites = {site: folder / site for site in self.file.deploy.sites}
        self.processes = dict[str, subprocess.Popen[bytes]]()
        self.restarted = list[str]()  # sites whose SuperNodes were silent, and a SuperLink without a superexec
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
        self.port, self._ports = free_port(), {site: free_port() for site in self.sites}
        home = self.folder / "flwr"
        home.mkdir(exist_ok=True)
        self._environment = {
            **flower_environment(home),
            "PATH": f"{COMMANDS}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "OMP_NUM_THREADS": "1",
        }
        del self._environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"]  # a stock SuperLink runs `uv sync`
        trust = f'root-certificates = "{self._tls / "ca.pem"}"' if self._secured else "insecure = true"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "127.0.0.1:{self.port}"\n{trust}\n'
        )
        self.start("superlink")
        if self._secured:
            self._register_nodes()
        self.start(*self.sites)
        return self

    @property
    def _tls(self) -> Path:
        """Certificates, and keys of nodes."""
        return self.folder / "tls"

    def _register_nodes(self) -> None:
        for site in self.sites:
            key = create_site_key(self._tls, site).public
            command = [COMMANDS / "flwr", "supernode", "register", key, "lab"]
            subprocess.run(command, env=self._environment, check=True, timeout=PATIENCE)

    def __exit__(self, *raised: object) -> None:
        for name in [*self.processes]:
            self.stop(name)
        for pid in self._running():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _running(self) -> dict[int, str]:
        """The command lines of all processes, also of those that outlived the one that had started them."""
        lines, home = dict[int, str](), f"FLWR_HOME={self.folder / 'flwr'}\0".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if home in (process / "environ").read_bytes():
                    lines[int(process.name)] = (process / "cmdline").read_text()
        return lines

    # Processes

    def start(self, *names: str) -> None:
        for name in names:
            self._started(
                name, *(self._superlink() if name == "superlink" else self._supernode(name, self.sites[name]))
            )
            if name == "superlink":
                self.until(self._answers, "the SuperLink")

    def _superlink(self) -> list[object]:
        place = ["--host", "127.0.0.1", "--port", self.port, "--database", self.folder / "flwr.db"]
        if not self._secured:
            return ["flower-superlink", *place, "--insecure"]
        if not self._tls.exists():
            self._tls.mkdir()
            create_server_certificate(self._tls, (), create_authority(self._tls))
        options = {"ca-certfile": "ca.pem", "certfile": "server.pem", "keyfile": "server.key"}
        tls = [part for name, file in options.items() for part in (f"--ssl-{name}", self._tls / file)]
        return ["flower-superlink", *place, *tls, "--enable-supernode-auth"]

    def _supernode(self, site: str, folder: Path) -> list[object]:
        config = f'site="{site}" folder="{folder}" data="{self.folder / site}.csv"'
        port = free_port() if folder != self.sites[site] else self._ports[site]
        place = ["--superlink", f"127.0.0.1:{self.port}", "--port", port, "--node-config", config]
        if not self._secured:
            return ["flower-supernode", *place, "--insecure"]
        trust = ["--root-certificates", self._tls / "ca.pem"]
        return ["flower-supernode", *place, *trust, "--auth-supernode-private-key", self._tls / f"{site}.key"]

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
            scheme, checks = ("https", False) if self._secured else ("http", True)
            url = f"{scheme}://127.0.0.1:{self.port}/health"
            return httpx.get(url, trust_env=False, verify=checks).status_code < 500
        return False

    def stop(self, name: str) -> None:
        """The process and all that it has started."""
        process = self.processes.pop(name)
        for pid in (*(pid for pid, _ in _below(process.pid)), process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

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

    def finish_despite(self, kills: Sequence[str], moments: random.Random) -> list[tuple[str, int]]:
        """Kill these kinds at random moments, two for each absorbed round, and do what an operator does until it ends.

        What is gone is started again, and `flwr run` is given again. Returns each kind with the rounds that had been
        absorbed when it was killed.
        """
        killed, lines, moved, begin = list[tuple[str, int]](), 0, time.monotonic(), time.monotonic()
        due = begin + moments.uniform(0, BETWEEN)
        while not self.is_finished():
            now = time.monotonic()
            assert now - begin < PATIENCE * (1 + len(kills) / 4), f"the federation hangs:\n{self.said()}"
            self._tend()
            if len(self.audit()) > lines:
                lines, moved = len(self.audit()), now
            elif now - moved > STILL:
                silent = self._restart_silent()
                print(f"{now - begin:7.1f} s  nothing for {STILL:.0f} s; started again: {', '.join(silent) or 'none'}")
                self.restarted += silent
                moved = now
            absorbed = len(self.absorbed())
            if len(killed) < min(len(kills), 2 * absorbed + 2) and now >= due:
                kind = kills[len(killed)]
                if owner := self._killed(kind, moments):
                    killed.append((kind, absorbed))
                    at = "" if owner == "superlink" else f" of '{owner}'"
                    print(f"{now - begin:7.1f} s  kill {len(killed)}: {kind}{at}, {absorbed} rounds absorbed")
                due = now + moments.uniform(0, BETWEEN)
            time.sleep(0.2)
        print(f"{time.monotonic() - begin:7.1f} s  finished")
        return killed

    def is_finished(self) -> bool:
        status = read_status(self.host) or {}
        return (status.get("state"), status.get("reason")) == ("finished", "")

    def _tend(self) -> None:
        gone = [name for name, process in self.processes.items() if name != "run" and process.poll() is not None]
        self.start(*gone)
        if "run" not in self.processes or self.processes["run"].poll() is not None:
            self.run()

    def _restart_silent(self) -> list[str]:
        """The SuperNodes of sites that have been asked and do not answer, and a SuperLink that starts no ServerApp."""
        sites = (read_status(self.host) or {}).get("sites", {})
        silent = [site for site in self.sites if sites.get(site, {}).get("state") not in ANSWERED]
        silent += [] if self._owners("superlink's superexec") else ["superlink"]
        for name in silent:
            self.stop(name)
            self.start(name)
        return silent

    def _killed(self, kind: str, moments: random.Random) -> str:
        """SIGKILL to one process of this kind, if there is one now; whose it was."""
        owners = self._owners(kind)
        if not owners:
            return ""
        pid = moments.choice(sorted(owners))
        os.kill(pid, signal.SIGKILL)
        return owners[pid]

    def _owners(self, kind: str) -> dict[int, str]:
        """The processes of this kind, and whose each is, by the port in its command line."""
        (command, is_superlink), owners = KINDS[kind], dict[int, str]()
        for pid, line in self._running().items():
            owner = next((site for site, port in self._ports.items() if str(port) in line), "superlink")
            if command in line and (owner == "superlink") == is_superlink:
                owners[pid] = owner
        return owners

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
