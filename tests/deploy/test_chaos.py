"""SIGKILL, full disks, damaged files, sites that go away: real federations end as the simulation does, or say why.

Places such as `a.kept.2` are explained in tests/chaos_apps.py. Rounds count from 0, and the commit is the round after
the last. In sites: `test_sites_that_are_killed`, and so on. These are nightly, with three sites; places with a star are
in the slow test, with two. The same kills of the protocol alone, without Flower, are in tests/exchange.

    SIGKILL a site in training                      sites   a.training.0
    between fsync and reply                         sites   b.kept.0 * (by itself), b.answered.1 * (from outside)
    between reply and commit, idle                  sites   server.saved.1: process of a, all of b *
    while it learns that it was absorbed            sites   a.promoted.2, c.promoting.1; the last time c.delivered.3
    its process alone                               sites   a.trained.2 *
    SIGKILL the server in a round                   hosts   server.accepted.1, server.asked.0; all of it a.training.1 *
    between absorbing and saving, between rounds    hosts   server.absorbed.0 *, server.saved.2
    SIGKILL the SuperLink; gate and server_tasks    hosts   server.saved.0 *; b.training.2 (the gate alone *)
    a damaged state file                            sites   not yet absorbed *; hosts   absorbed: it stops
    gone for two rounds, another address            away    rounds 1 and 2, then from 127.0.0.2 and from another folder
    a full disk at a site                           away    round 4

At random moments: tests/kill_federation.py.
"""

import asyncio
import errno
import os
import shutil
import sys
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

from test_guardian import is_gone, soon
from test_hostile_folder import hostile, plant_apps, traces

from chaos import HOST, SITES, Chaos
from chaos_apps import LATE
from stratafl.deploy.member import STATE
from stratafl.deploy.processes import free_port
from stratafl.execute.exchange import site_folder
from stratafl.execute.exchange.site_store import DAMAGED, PENDING

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]


def state_of(chaos: Chaos, site: str) -> Path:
    return site_folder(chaos.sites[site] / STATE, chaos.file.deploy.name, site)


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def check_finished(chaos: Chaos) -> None:
    """It came to its end, every order was carried out, and everything is as if nothing had happened."""
    status = chaos.finish()
    assert (status["state"], status["reason"]) == ("finished", ""), chaos.said()
    assert chaos.orders == []
    assert chaos.difference() == 0


@pytest.mark.slow
def test_a_federation_whose_processes_are_killed(tmp_path: Path) -> None:
    """Each kind of process of host and site once, a site and the host as a whole, and a damaged file.

    All of them are started in a hostile folder, and run nothing of it.
    """
    sites, folder = SITES[:2], hostile(tmp_path / "sent")
    chaos = Chaos(tmp_path, sites=sites, current=folder, run={"rounds": 3, "participation": 1.0})
    plant_apps(folder, chaos.host / "flower")
    chaos.order("die", "b.kept.0", "server.absorbed.0")
    chaos.order("hold", "server.saved.0", "a.training.1", "b.answered.1", "server.saved.1", "a.trained.2")
    with chaos:
        chaos.reached("server.saved.0")
        chaos.kill(HOST, "superlink")  # while nobody sends: a reply on its way would take Flower 180 s to give up
        chaos.lift("server.saved.0")
        chaos.reached("b.answered.1")  # it has kept what it has not sent
        damage(state_of(chaos, "b") / PENDING)
        chaos.kill("b", "site")
        chaos.lift("b.answered.1")
        chaos.reached("a.training.1")
        killed = chaos.pids(HOST)
        chaos.kill(HOST)
        chaos.start(HOST)
        chaos.lift("a.training.1")
        chaos.reached("server.saved.1")  # between two rounds: all sites are idle
        chaos.kill("b")
        chaos.start("b")
        chaos.lift("server.saved.1")
        chaos.reached("a.trained.2")
        chaos.kill("a", "site")
        chaos.kill(HOST, "gate")
        chaos.lift("a.trained.2")
        check_finished(chaos)
    assert len(killed) >= 4  # SuperLink, gate, server_tasks, ServerApp: nothing is left of them
    assert all(soon(lambda pid=pid: is_gone(pid)) for pid in killed)
    assert not traces(folder)
    assert chaos.absorbed() == [list(sites)] * 3
    assert (state_of(chaos, "b") / DAMAGED).exists()


@pytest.mark.nightly
def test_sites_that_are_killed(tmp_path: Path) -> None:
    """Nine kills: at arrows of the protocol, idle, the process alone, the command; and a damaged file."""
    chaos = Chaos(tmp_path, run={"rounds": 3, "participation": 1.0})
    chaos.order("die", "a.training.0", "b.kept.0", "a.promoted.2", "c.promoting.1", "c.delivered.3")
    chaos.order("hold", "b.answered.1", "server.saved.1", "a.trained.2")
    with chaos:
        chaos.reached("b.answered.1")
        damage(state_of(chaos, "b") / PENDING)
        chaos.kill("b", "site")
        chaos.lift("b.answered.1")
        chaos.reached("server.saved.1")
        chaos.kill("a", "site")
        chaos.kill("b")
        chaos.start("b")
        chaos.lift("server.saved.1")
        chaos.reached("a.trained.2")
        chaos.kill("a", "site")
        chaos.lift("a.trained.2")
        check_finished(chaos)
    assert chaos.absorbed() == [list(SITES)] * 3
    assert (state_of(chaos, "b") / DAMAGED).exists()


@pytest.mark.nightly
def test_hosts_that_are_killed(tmp_path: Path) -> None:
    """Eight kills: ServerApp in a round, between absorbing and saving; SuperLink, gate, all of it."""
    chaos = Chaos(tmp_path, run={"rounds": 3, "participation": 1.0})
    chaos.order("die", "server.asked.0", "server.absorbed.0", "server.accepted.1", "server.saved.2")
    chaos.order("hold", "server.saved.0", "a.training.1", "server.saved.1", "b.training.2")
    with chaos:
        chaos.reached("server.saved.0")
        chaos.kill(HOST, "superlink")
        chaos.lift("server.saved.0")
        chaos.reached("a.training.1")
        chaos.kill(HOST)
        chaos.start(HOST)
        chaos.lift("a.training.1")
        chaos.reached("server.saved.1")
        kept = tmp_path / "kept"
        shutil.copy(state_of(chaos, "b") / PENDING, kept)
        damage(state_of(chaos, "b") / PENDING)  # which has been absorbed: there is no other copy of its personal layers
        chaos.lift("server.saved.1")
        status = chaos.finish()
        assert status["state"] == "failed"
        assert f"round 3 has {len(SITES) - 1} of {len(SITES)} uploads: 'b' " in status["reason"]
        assert status["reason"].endswith("--forget b")
        shutil.copy(kept, state_of(chaos, "b") / PENDING)
        chaos.start(HOST)
        chaos.reached("b.training.2")
        chaos.kill(HOST, "gate")
        chaos.kill(HOST, "server_tasks")
        chaos.lift("b.training.2")
        check_finished(chaos)
    assert chaos.absorbed() == [list(SITES)] * 3


@pytest.mark.nightly
def test_sites_that_are_away_or_whose_disk_is_full(tmp_path: Path) -> None:
    """One is gone for two rounds and comes back from another folder and address; the disk of another is full."""
    chaos = Chaos(tmp_path, run={"rounds": 6, "participation": 1.0}, deploy={"least": 1})
    chaos.order("hold", *(f"server.saved.{number}" for number in (0, 1, 2, 3, 4)))
    with chaos:
        chaos.reached("server.saved.0")
        chaos.stop("c")
        for number in (1, 2):
            chaos.lift(f"server.saved.{number - 1}")
            for site in "ab":
                chaos.until(lambda: chaos.happened("accepted", site=site, round=number), f"round {number}")  # noqa: B023
            chaos.order(str(number * 1000), LATE)  # its deadline has passed; this clock never goes back
            chaos.reached(f"server.saved.{number}")
        elsewhere = tmp_path / "moved"
        elsewhere.mkdir()
        shutil.copy(tmp_path / "c.csv", elsewhere)
        chaos.sites["c"] = chaos.sites["c"].rename(elsewhere / "c")
        chaos.start("c", invitation=invitation_by(Detour("127.0.0.2", chaos.place.port), chaos.invitation, tmp_path))
        chaos.lift("server.saved.2")
        chaos.reached("server.saved.3")
        chaos.order("full", "b.disk")
        chaos.lift("server.saved.3")
        chaos.reached("server.saved.4")
        for done in ("b.disk", "server.saved.4"):
            chaos.lift(done)
        check_finished(chaos)
    without = [sorted(set(SITES) - set(sites)) for sites in chaos.absorbed()]
    assert without == [[], ["c"], ["c"], [], ["b"], []]
    said = [line["reason"] for line in chaos.audit() if line["event"] == "declined"]
    assert said
    assert all(os.strerror(errno.ENOSPC) in reason for reason in said)


class Detour:
    """Passes connections on to a port of 127.0.0.1, which sees them come from another address."""

    def __init__(self, address: str, target: int) -> None:
        self.port, self._address, self._target = free_port(), address, target
        Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()

    async def _serve(self) -> None:
        async with await asyncio.start_server(self._passed, "127.0.0.1", self.port) as server:
            await server.serve_forever()

    async def _passed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far, to_far = await asyncio.open_connection("127.0.0.1", self._target, local_addr=(self._address, 0))
        except OSError:  # the host has ended
            writer.close()
            return
        await asyncio.gather(_copied(reader, to_far), _copied(far, writer))


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


def invitation_by(detour: Detour, invitation: Path, folder: Path) -> Path:
    server = next(line for line in invitation.read_text().splitlines() if line.startswith("server ="))
    path = folder / "other.toml"
    path.write_text(invitation.read_text().replace(server, f'server = "127.0.0.1:{detour.port}"'))
    return path
