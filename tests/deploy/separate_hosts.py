"""Host and sites as separate hosts on one machine: network namespaces, a link that is cut, a link that is slow.

    sudo python tests/deploy/separate_hosts.py FOLDER --cut 60 --rate 8mbit

Needs root and `ip` and `tc` of iproute2. Writes what happened when to standard output: the seconds of every round, what
passed the slow link, and the difference to the simulation of the same samples.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import tomli_w

sys.path.insert(0, str(Path(__file__).parents[1]))
from hosted import SITES, deployed, largest, simulated, with_tables, write_samples
from stratafl.deploy.status import read_status

HOST, BRIDGE = "strata-host", "br0"
SLOW = ((HOST, "to-b"), ("strata-b", "eth0"))  # both ends of a cable
PATIENCE = 1800.0  # seconds


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@contextmanager
def networks(sites: tuple[str, ...]) -> Iterator[None]:
    """A namespace for the host with a bridge, and one for each site with a cable to it."""
    names = [HOST, *(f"strata-{site}" for site in sites)]
    for name in names:
        ip("netns", "add", name)
    try:
        inside = lambda name, *words: ip("-n", name, *words)  # noqa: E731
        inside(HOST, "link", "add", BRIDGE, "type", "bridge")
        inside(HOST, "addr", "add", "10.77.0.1/24", "dev", BRIDGE)
        for name in names:
            inside(name, "link", "set", "lo", "up")
        inside(HOST, "link", "set", BRIDGE, "up")
        for number, site in enumerate(sites, 2):
            mine = f"strata-{site}"
            inside(HOST, "link", "add", f"to-{site}", "type", "veth", "peer", "name", "eth0", "netns", mine)
            inside(HOST, "link", "set", f"to-{site}", "master", BRIDGE, "up")
            inside(mine, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            inside(mine, "link", "set", "eth0", "up")
        yield
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def strata(namespace: str, log: Path, *words: object) -> subprocess.Popen[bytes]:
    command = ["ip", "netns", "exec", namespace, sys.executable, "-m", "stratafl", *map(str, words)]
    with log.open("ab") as file:
        return subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True)


def until(met: Callable[[], bool], what: str, process: subprocess.Popen[bytes]) -> None:
    latest = time.monotonic() + PATIENCE
    while not met():
        if time.monotonic() > latest or (process.poll() is not None and not met()):
            raise SystemExit(f"{what} did not come about; the host's exit code is {process.poll()}")
        time.sleep(0.5)


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)


def main() -> int:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("folder", type=Path)
    made.add_argument("--cut", type=float, default=60.0, help="seconds for which a link is cut")
    made.add_argument("--rate", default="8mbit", help="of the slow link: 8mbit is 1 MB/s")
    made.add_argument("--hidden", type=int, default=400_000, help="width of the model, of which 36 bytes each are sent")
    given = made.parse_args()
    folder = given.folder.absolute()
    folder.mkdir(parents=True)
    write_samples(folder)
    file = with_tables(model={"hidden": [given.hidden]}, run={"participation": 1.0}, deploy={"least": len(SITES)})
    (folder / "federation.toml").write_text(tomli_w.dumps(file.tables()))
    with networks(SITES), ExitStack() as stack:
        host = strata(HOST, folder / "host.log", "host", folder / "federation.toml", "--out", folder / "host",
                      "--address", "10.77.0.1:9443")  # fmt: skip
        stack.callback(end, host)
        round_of = lambda: int((read_status(folder / "host") or {}).get("round", 0))  # noqa: E731
        until((folder / "host" / "invitation.toml").exists, "the invitation", host)
        for site in SITES:
            shutil.copy(folder / "host" / "invitation.toml", folder / f"{site}.toml")
            words = ["join", folder / f"{site}.toml", "--site", site, "--data", folder / f"{site}.csv", "--yes"]
            stack.callback(end, strata(f"strata-{site}", folder / f"{site}.log", *words, "--out", folder / site))
            until((folder / site / f"{site}.pub").exists, f"the key of {site}", host)
            shutil.copy(folder / site / f"{site}.pub", folder / "host" / "keys")
        say("all sites have joined")
        until(lambda: round_of() >= 1, "round 1", host)
        say(f"round {round_of()} is absorbed; the link of 'a' is cut for {given.cut:g} s")
        ip("-n", HOST, "link", "set", "to-a", "down")
        time.sleep(given.cut)
        ip("-n", HOST, "link", "set", "to-a", "up")
        say(f"the link is back, round {round_of()}")
        until(lambda: round_of() >= 3, "round 3", host)
        say(f"round {round_of()} is absorbed; the link of 'b' is slowed to {given.rate}")
        for namespace, link in SLOW:
            limit = ["rate", given.rate, "burst", "32kbit", "latency", "400ms"]
            subprocess.run(["tc", "-n", namespace, "qdisc", "add", "dev", link, "root", "tbf", *limit], check=True)
        until(lambda: (read_status(folder / "host") or {}).get("state") == "finished", "the end", host)
        host.wait(120)
        say(f"finished, round {round_of()}, exit code {host.returncode}")
        for namespace, link in SLOW:
            say(f"passed {link} while it was slow: {passed(namespace, link) / 1e6:.1f} MB")
    for line in (folder / "host" / "rounds.jsonl").read_text().splitlines():
        told = json.loads(line)
        say(f"round {told['round']}: {told['uploads']} uploads, {told['seconds.train']:.0f} s until the last of them")
    apart = largest(deployed(folder / "host", {site: folder / site for site in SITES}, file), simulated(folder, file))
    say(f"largest difference to the simulation: {apart:g}")
    return int(apart > 0 or host.returncode != 0)


def passed(namespace: str, link: str) -> int:
    """The bytes that a slow link let through."""
    told = subprocess.run(["tc", "-n", namespace, "-s", "-j", "qdisc", "show", "dev", link], capture_output=True)
    return int(json.loads(told.stdout)[0]["bytes"])


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, 15)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)


if __name__ == "__main__":
    sys.exit(main())
