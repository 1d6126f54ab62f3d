"""A federation of `strata host` and `strata join` as processes over loopback, which tests kill and start again."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import tomli_w

import stratafl
from chaos_apps import PLACES
from hosted import deployed, largest, replayed, simulated, with_tables, write_samples
from stratafl.deploy.folders import prepare_host, prepare_site
from stratafl.deploy.host import HostAddress
from stratafl.deploy.hosting import SERVER
from stratafl.deploy.processes import free_port
from stratafl.deploy.status import read_status
from stratafl.execute.exchange.audit import Line, verify
from stratafl.execute.exchange.server_store import AUDIT

SITES = ("a", "b", "c")
PATIENCE = 900.0  # seconds; only what hangs takes that long, and a busy machine takes as long as it takes
HOST = "host"
# The processes of a host and of a site, by what their command lines hold.
PARTS = {
    "superlink": "stratafl.deploy.superlink",
    "gate": "stratafl.deploy.gate",
    "server_tasks": "stratafl.deploy.server_tasks",
    "serverapp": "flwr-serverapp",
    "site": "stratafl.deploy.flower_node",
}
COMMANDS = {"chaos": [str(Path(__file__).with_name("chaos_apps.py"))], "strata": ["-m", "stratafl"]}


class Chaos:
    """Host and sites, each a process with its own; `kill` and `start` are for tests, `orders` for the processes."""

    def __init__(
        self,
        folder: Path,
        command: str = "chaos",
        sites: tuple[str, ...] = SITES,
        current: Path | None = None,
        **tables: dict[str, Any],
    ) -> None:
        self.folder, self._command, self._current = folder, COMMANDS[command], current
        self.file = with_tables(**{"run": {"participation": 1.0}, **tables, "deploy": _deploy(sites, tables)})
        self.host, self.sites = folder / HOST, {site: folder / site for site in sites}
        self.places = folder / "places"
        self.places.mkdir()
        write_samples(folder, sites)
        self.path = folder / "given.toml"
        self.path.write_text(tomli_w.dumps(self.file.tables()))
        self.place = HostAddress("127.0.0.1", free_port())
        prepared = prepare_host(self.host, self.file, self.place)
        self.invitation = prepared.invite(self.place)
        for site, mine in self.sites.items():
            shutil.copy(prepare_site(mine, self.invitation, site).key.public, prepared.keys)
        self.invitation = prepared.invite(self.place)  # under secure sums it now has the keys of all sites
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Chaos":
        self.start(HOST, *self.sites)
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            process.wait(PATIENCE)

    # Processes

    def start(self, *names: str, invitation: Path | None = None) -> None:
        for name in names:
            given = ["join", invitation or self.invitation, "--site", name, "--data", self.folder / f"{name}.csv"]
            given += ["--out", self.sites.get(name), "--yes"]
            if name == HOST:
                given = [HOST, self.path, "--out", self.host, "--address", self.place]
            with (self.folder / f"{name}.log").open("ab") as log:
                command = [sys.executable, *self._command, *map(str, given)]
                self.processes[name] = subprocess.Popen(
                    command, stdout=log, stderr=log, env=self._environment(), cwd=self._current
                )

    def kill(self, name: str, part: str | None = None) -> int:
        """SIGKILL to the process of a host or a site, or to a part of it; its pid."""
        pid = self.processes[name].pid if part is None else self.until(lambda: self.pid(name, part), f"{name}'s {part}")
        os.kill(pid, signal.SIGKILL)
        if part is None:
            self.processes[name].wait()
        return pid

    def stop(self, name: str) -> None:
        """As Ctrl-C does."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)

    def pids(self, name: str) -> list[int]:
        """What a host or a site has started, and what that has, but for guardians."""
        return [pid for pid, _ in _below(self.processes[name].pid)]

    def pid(self, name: str, part: str) -> int | None:
        return next((pid for pid, line in _below(self.processes[name].pid) if PARTS[part] in line), None)

    def finish(self) -> dict[str, Any]:
        """Until the host ends, by itself; its status."""
        self.until(lambda: self.processes[HOST].poll() is not None, "the federation")
        return read_status(self.host) or {}

    def until(self, met: Callable[[], Any], what: str) -> Any:
        latest = time.monotonic() + PATIENCE
        while not (found := met()):
            ended = [name for name in self.sites if (process := self.processes.get(name)) and (process.poll() or 0) > 0]
            assert not ended, f"{ended} ended while {what} was awaited:\n{self.said()}"
            assert time.monotonic() < latest, f"{what} hangs:\n{self.said()}"
            time.sleep(0.05)
        return found

    def said(self) -> str:
        return "\n".join(f"== {path.stem}\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))

    # Orders

    def order(self, order: str, *places: str) -> None:
        for place in places:
            (self.places / place).write_text(order)

    def reached(self, place: str) -> None:
        """Until a process that was told to hold is there."""
        self.until((self.places / f"{place}.reached").exists, place)

    def lift(self, place: str) -> None:
        (self.places / place).unlink()

    @property
    def orders(self) -> list[str]:
        """Those that nobody has carried out."""
        return sorted(path.name for path in self.places.iterdir() if path.suffix not in ("", ".reached"))

    # What came of it

    def audit(self) -> list[Line]:
        found = list[Line]()
        if (self.host / SERVER / AUDIT).exists():
            verify(self.host / SERVER / AUDIT, look=found.append)
        return found

    def happened(self, event: str, **what: Any) -> bool:
        return any(line["event"] == event and what.items() <= line.items() for line in self.audit())

    def absorbed(self) -> list[list[str]]:
        """The sites of each round, from 0; a line that was not followed by saving is replaced by a later one."""
        rounds = {line["round"]: list(line["absorbed"]) for line in self.audit() if line["event"] == "absorb"}
        return [rounds[number] for number in sorted(rounds)]

    def difference(self, without: Sequence[str] = ()) -> float:
        """The largest difference to what the same uploads give without Flower, kills and disks.

        `without`: sites that ended in the middle of a round, whose states are not compared.

        If nobody missed a round, that is also the simulation of the experiment.
        """
        present = {site: folder for site, folder in self.sites.items() if site not in without}
        found = deployed(self.host, present, self.file)
        absorbed = self.absorbed()
        same = replayed(self.folder, self.host, self.sites, self.file, absorbed)
        least = largest(found, {key: x for key, x in same.items() if key in found or not without})
        if all(len(sites) == len(self.sites) for sites in absorbed):
            least = max(least, largest(found, simulated(self.folder, self.file)))
        return least

    def _environment(self) -> dict[str, str]:
        paths = [str(Path(__file__).parent), str(Path(stratafl.__file__).parents[1])]
        return {**os.environ, PLACES: str(self.places), "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def _deploy(sites: tuple[str, ...], tables: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {"sites": list(sites), "least": len(sites), **tables.get("deploy", {})}


def _below(top: int) -> Iterator[tuple[int, str]]:
    """Pid and command line of all processes that a process started, and that those started; not of guardians."""
    known, parents = {top}, {int(path.name): _parent(path) for path in Path("/proc").glob("[0-9]*")}
    while more := {pid for pid, parent in parents.items() if parent in known} - known:
        known |= more
    for pid in sorted(known - {top}):
        line = _text(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")
        if "guardian.py" not in line:
            yield pid, line


def _parent(process: Path) -> int:
    after = _text(process / "stat").rpartition(")")[2].split()
    return int(after[1]) if len(after) > 1 else 0


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:  # it is gone
        return ""
