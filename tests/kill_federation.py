"""Federations of real processes, one of which is killed at random, again and again.

    python tests/kill_federation.py --kills 100 --out kills.txt

A victim is any process of `strata host` and of three `strata join`, or the command itself, at a random moment; SIGKILL
each time. All kinds of processes are hit equally often, in random order. Commands that are gone are started again,
everything else is up to them. A federation that is finished is compared with the simulation, or with what the same
uploads give if a site missed a round; then the next one begins.
"""

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import IO

from chaos import HOST, PARTS, SITES, Chaos
from stratafl.deploy.hosting import SERVER
from stratafl.deploy.status import read_status
from stratafl.execute.exchange.server_store import AUDIT

OF_HOST, OF_SITE = ("superlink", "gate", "server_tasks", "serverapp"), ("site",)
VICTIMS = [(HOST, part) for part in (None, *OF_HOST)] + [(site, part) for site in SITES for part in (None, *OF_SITE)]
KINDS = [(True, part) for part in (None, *OF_HOST)] + [(False, part) for part in (None, *OF_SITE)]  # of the host?, part
HANGS = 3600.0  # seconds after the last kill
TABLES = {"run": {"rounds": 10, "participation": 1.0}, "deploy": {"failures": 1000, "deadline": 300}}


class Killing:
    """So many kills, and what came of them."""

    def __init__(self, given: argparse.Namespace, out: IO[str]) -> None:
        self.kills, self.each, self.pause, self.hasty, self.out = given.kills, given.each, given.pause, given.hasty, out
        self.random, self.start = random.Random(given.seed), time.monotonic()
        self.latest = self.start + given.minutes * 60
        self.killed, self.federations, self.stopped, self.worst = Counter[str](), 0, 0, 0.0
        self.rounds, self.kinds = Counter[str](), list[tuple[bool, str | None]]()

    def run(self) -> None:
        while self.killed.total() < self.kills and time.monotonic() < self.latest:
            self.federations += 1
            with tempfile.TemporaryDirectory(prefix="kills-") as folder:
                chaos = Chaos(Path(folder), "strata", **TABLES)
                with chaos:
                    self._federation(chaos)
                difference = chaos.difference()
                self.worst = max(self.worst, difference)
                whole = all(len(sites) == len(SITES) for sites in chaos.absorbed())
                to = "the simulation" if whole else f"the same uploads without kills: {chaos.absorbed()}"
                self.say(f"federation {self.federations} is finished: largest difference to {to} = {difference:g}")
        parts = ", ".join(f"{part} {count}" for part, count in sorted(self.killed.items()))
        self.say(f"{self.killed.total()} kills ({parts}) of {self.federations} federations, {len(SITES)} sites each")
        self.say(f"when: {', '.join(f'{when} {count}' for when, count in sorted(self.rounds.items()))}")
        self.say(f"hosts that stopped by themselves, with a reason, and were started again: {self.stopped}")
        self.say(f"largest difference of any tensor of any server or site: {self.worst:g}")

    def _federation(self, chaos: Chaos) -> None:
        """Kill, and let it finish; most kills wait until all is there and goes on, whatever that takes the machine."""
        kills, then, hasty, last, events = 0, None, False, time.monotonic(), 0
        while not self._finished(chaos):
            assert time.monotonic() - last < HANGS, f"this federation hangs:\n{chaos.said()}"
            self._start_again(chaos)
            alive = [(name, part) for name, part in VICTIMS if part is None or chaos.pid(name, part) is not None]
            if len(alive) < len(VICTIMS):
                events = _lines(chaos)
            if then is None and (hasty or _lines(chaos) > events + 1):  # beyond the line that it was opened
                then = time.monotonic() + self.random.uniform(0, 2 * self.pause)
            enough = kills >= self.each or self.killed.total() >= self.kills or time.monotonic() > self.latest
            if not enough and then is not None and time.monotonic() >= then:
                kills += self._kill(chaos, *self._victim(alive))
                then, hasty, last = None, self.random.random() < self.hasty, time.monotonic()
                events = _lines(chaos)
            time.sleep(0.1)

    def _victim(self, alive: list[tuple[str, str | None]]) -> tuple[str, str | None]:
        """One of those that are alive, of the next kind that is."""
        found = list[tuple[str, str | None]]()
        while not found:
            if not self.kinds:
                self.kinds = self.random.sample(KINDS, len(KINDS))
            of_host, kind = self.kinds.pop()
            found = [(name, part) for name, part in alive if (name == HOST, part) == (of_host, kind)]
        return self.random.choice(found)

    def _finished(self, chaos: Chaos) -> bool:
        status = read_status(chaos.host) or {}
        ended = chaos.processes[HOST].poll() == 0
        return ended and (status.get("state"), status.get("reason")) == ("finished", "")

    def _start_again(self, chaos: Chaos) -> None:
        for name, process in chaos.processes.items():
            code = process.poll()
            if code is None:
                continue
            if code >= 0:
                last = (chaos.folder / f"{name}.log").read_text().strip().splitlines()[-1]
                self.stopped += name == HOST
                self.say(f"{name} ended with code {code}: {last}")
            chaos.start(name)

    def _kill(self, chaos: Chaos, name: str, part: str | None) -> bool:
        status = read_status(chaos.host) or {}
        try:
            chaos.kill(name, part)
        except ProcessLookupError:  # it has just ended
            return False
        told = f"strata {'host' if name == HOST else 'join'}" if part is None else part
        self.killed[told] += 1
        where = f"{status.get('state', 'starting')}, round {status.get('round', 0)}"
        self.rounds["while it started" if status.get("state", "starting") == "starting" else "in its rounds"] += 1
        self.say(f"kill {self.killed.total()}: {told} of {name}, while the federation is {where}")
        return True

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self.start:7.1f} s  {line}", file=self.out, flush=True)


def _lines(chaos: Chaos) -> int:
    """How much has happened, by the audit log, whose last line may be torn."""
    path = chaos.host / SERVER / AUDIT
    return path.read_bytes().count(b"\n") if path.exists() else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--each", type=int, default=25, help="at most so many of one federation, which then finishes")
    parser.add_argument("--pause", type=float, default=4.0, help="seconds before a kill, on average")
    parser.add_argument("--hasty", type=float, default=0.2, help="share of kills that wait for no recovery")
    parser.add_argument("--minutes", type=float, default=600.0, help="after which nothing is killed any more")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    assert set(OF_HOST + OF_SITE) == set(PARTS)
    with given.out.open("w") if given.out else sys.stdout as out:
        Killing(given, out).run()


if __name__ == "__main__":
    main()
