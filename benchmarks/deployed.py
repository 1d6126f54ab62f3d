"""A federation of real processes on this machine: seconds a round, and bytes at the socket against bytes that we count.

    python benchmarks/deployed.py --sites 3 --megabytes 1 45 200

Sites hold a few samples each, so that a round is mostly messages. *Counted* are the messages of the exchange, as the
audit log has them; *at the socket* is what passed the gate, TLS not included, with Flower's own requests. CPU seconds
are those of all processes, from the first absorbed round to the last that was seen (Linux).
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

import recording
from recording import Result, Table, bar, row, where_of
from stratafl.cli.host_command import SERVER_APP
from stratafl.config.deployment import FederationFile, federation_from
from stratafl.deploy.folders import HostAddress, prepare_host, prepare_site
from stratafl.deploy.host import Host
from stratafl.deploy.site_processes import CLIENT_APP, SiteProcesses
from stratafl.deploy.status import read_status

SIDE, CLASSES, SAMPLES = 64, 10, 40
STATES = ("asked", "accepted", "commit", "committed")
PARTS = {"superlink": "deploy.superlink", "gate": "deploy.gate", "sites": "deploy.flower_node", "host": "serverapp"}


def federation(sites: int, megabytes: float, rounds: int) -> FederationFile:
    """FedAvg of an MLP of about this size."""
    hidden = max(1, round(megabytes * 1e6 / 4 / (SIDE + CLASSES + 1)))
    return federation_from(
        {
            "algorithm": {"name": "fedavg"},
            "model": {"name": "mlp", "hidden": [hidden]},
            "data": {"validation": 0.0, "test": 0.25},
            "train": {"lr": 0.01, "batch": 10},
            "run": {"rounds": rounds, "engine": "stacked", "device": "cpu"},
            "deploy": {"sites": [f"site-{n}" for n in range(sites)], "deadline": 3600, "wait": 900, "classes": CLASSES},
        }
    )


def write_samples(path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    np.savez(path, x=rng.standard_normal((SAMPLES, SIDE), np.float32), y=np.arange(SAMPLES) % CLASSES)


def measure(
    folder: Path, sites: int, megabytes: float, rounds: int, line: Callable[[int], int] = lambda port: port
) -> Table:
    """Host and sites, each of which reaches the host at the port that `line` gives for the host's own."""
    file = federation(sites, megabytes, rounds)
    place = HostAddress("127.0.0.1", 0)
    prepared = prepare_host(folder / "host", file, place)
    begin = time.monotonic()
    with ExitStack() as stack:
        host = stack.enter_context(
            Host(folder / "host" / "flower", place.listens, prepared.certificate, prepared.authority)
        )
        running = []
        for number, name in enumerate(file.deploy.sites):
            write_samples(folder / f"{name}.npz", number)
            invitation = prepared.invite(HostAddress(place.host, line(host.address.port)))
            mine = prepare_site(folder / name, invitation, name)
            host.register(name, prepared.store_keys(name, mine.key.public))
            settings = {"data": str(folder / f"{name}.npz")}
            site = SiteProcesses(mine, settings, CLIENT_APP)
            running.append(stack.enter_context(site))
        run = host.start_run(SERVER_APP, CLIENT_APP, {"trust": False})
        used = until_it_ends(host, running, run, folder / "host")
        time.sleep(2)  # the gate writes its counts once a second
        passed = host.counts()
    seconds = time.monotonic() - begin
    return {"seconds": seconds, "rounds": rounds, "cpu": used, **figures(folder / "host", passed)}


def until_it_ends(host: Host, sites: Sequence[SiteProcesses], run: int, folder: Path) -> dict[str, float]:
    """The CPU seconds that a round took, by part of the federation."""
    used, looks = dict[int, dict[str, float]](), 0  # after each round that was seen to end
    while True:
        absorbed = (read_status(folder) or {}).get("round", 0)
        if absorbed and absorbed not in used:
            used[absorbed] = cpu_seconds()
        for each in (host, *sites):
            each.tend()
        looks += 1
        if looks % 4 == 0 and (state := host.control.run_state(run)).finished:  # as `strata host`
            if state.end != "completed":
                raise SystemExit(f"the federation ended: {state}")
            first, last = min(used), max(used)
            return {part: (used[last][part] - used[first][part]) / max(1, last - first) for part in used[last]}
        time.sleep(0.5)


def cpu_seconds() -> dict[str, float]:
    """Of this process's descendants, so far."""
    parents, lines, seconds = dict[int, int](), dict[int, str](), dict[int, float]()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields, pid = (path / "stat").read_text().rpartition(")")[2].split(), int(path.name)
            parents[pid], lines[pid] = int(fields[1]), (path / "cmdline").read_text(errors="replace")
            seconds[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    used = dict.fromkeys((*PARTS, "others"), 0.0)
    for pid in ours - {os.getpid()}:
        guarded = "guardian.py" in lines[pid]  # has the command of what it guards
        part = next((part for part, name in PARTS.items() if name in lines[pid] and not guarded), "others")
        used[part] += seconds[pid]
    return used


def figures(folder: Path, passed: Table) -> Table:
    lines = [json.loads(line) for line in (folder / "server" / "audit.jsonl").read_text().splitlines()]
    ends = [line["time"] for line in lines if line["event"] == "absorb"]
    counted = sum(line["bytes"] for line in lines if line["event"] in STATES)
    messages = sum(line["event"] in STATES for line in lines)
    status = read_status(folder) or {}
    return {
        "counted": counted,
        "messages": messages,
        "socket": sum(each["received"] + each["sent"] for each in passed.values()),
        "requests": sum(each["requests"] for each in passed.values()),
        "absorbed_at": ends,
        "state": status.get("state"),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    result = Result("deployed", given, "cpu", f"deployed-{given.sites}-sites")
    lines, bars = [], []
    for megabytes in given.megabytes:
        with tempfile.TemporaryDirectory(prefix="deployed-") as name:
            found = measure(Path(name), given.sites, megabytes, given.rounds)
        result.details[f"{megabytes} MB"] = found
        result.save()
        times = [_seconds(text) for text in found["absorbed_at"]]
        each = [b - a for a, b in pairwise(times)]
        what = f"{given.sites} sites, {megabytes:g} MB a message, {where_of(result.table['environment'])}"
        if each:
            lines.append(row(f"{what}: seconds a round", median(each), "s"))
            bars.append(bar(f"{given.sites} sites, seconds a round", f"{megabytes:g} MB", median(each), "s"))
            lines.append(row(f"{what}: CPU seconds a round", sum(found["cpu"].values()), "s"))
            lines.append(row(f"{what}: CPU seconds a round of the SuperLink", found["cpu"]["superlink"], "s"))
        lines.append(row(f"{what}: at the socket / counted", found["socket"] / found["counted"], "×"))
        extra = (found["socket"] - found["counted"]) / found["messages"]
        lines.append(row(f"{what}: more at the socket, a message", extra / 1e3, "kB"))
    result.show(lines, bars)
    result.save()
    print(f"written to {result.path}")
    return 0


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _parser() -> argparse.ArgumentParser:
    made = recording.parser(__doc__)
    made.add_argument("--sites", type=int, default=3)
    made.add_argument("--megabytes", type=float, nargs="+", default=[1.0, 45.0, 200.0])
    made.add_argument("--rounds", type=int, default=3)
    return made


if __name__ == "__main__":
    sys.exit(main())
