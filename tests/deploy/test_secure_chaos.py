"""Real federations over TLS whose host sees sums of uploads alone: they end with the simulation's bits after any kill.

Places such as `a.masked.0` are explained in tests/chaos_apps.py: here a site has done this step of a secure sum, and
its answer has not left it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

from chaos import HOST, SITES, Chaos
from stratafl.deploy.hosting import SERVER
from stratafl.deploy.member import STATE
from stratafl.deploy.secure.secure_round import MASKED
from stratafl.deploy.secure.secure_site import NUMBERS
from stratafl.deploy.signing_keys import KEYS

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]


def check_finished(chaos: Chaos, without: Sequence[str] = ()) -> None:
    status = chaos.finish()
    assert status["state"] == "finished", chaos.said()
    assert [site for site, about in status["sites"].items() if about["state"] != "has its model"] == list(without)
    assert chaos.orders == []
    assert chaos.difference(without) == 0
    assert not (chaos.host / SERVER / MASKED).exists()
    present = [folder for site, folder in chaos.sites.items() if site not in without]
    assert not [path for folder in present for path in (folder / STATE).rglob(NUMBERS)]


@pytest.mark.slow
def test_three_real_sites_that_sum_unseen_are_the_simulation_though_a_site_and_the_host_are_killed(
    tmp_path: Path,
) -> None:
    """A site after it has masked its numbers, the ServerApp when it may ask for shares; all three are in every sum.

    The site is back before the host misses it, and is asked again in the same session.
    """
    chaos = Chaos(tmp_path, server={"secure": True}, run={"rounds": 2, "participation": 1.0})
    chaos.order("die", "a.masked.0", "server.masked.1")
    chaos.order("100000", "looks")
    with chaos:
        check_finished(chaos)
    assert chaos.absorbed() == [list(SITES)] * 2
    sessions = [line["round"] for line in chaos.audit() if line["event"] == "session"]
    assert sessions == [0, 1]


@pytest.mark.nightly
def test_twelve_real_sites_that_sum_unseen_are_killed_in_every_step(tmp_path: Path) -> None:
    """Five sites at a step each, ServerApp, host, SuperLink and a process of a site; one stays away for a round."""
    sites = tuple(f"s{number:02d}" for number in range(12))
    steps = ("keys", "shares", "masked", "confirm", "open")
    chaos = Chaos(
        tmp_path, sites=sites, server={"secure": True}, run={"rounds": 4, "participation": 1.0}, deploy={"least": 1}
    )
    chaos.order("die", *(f"{site}.{step}.0" for site, step in zip(sites, steps, strict=False)), "server.masked.1")
    chaos.order("hold", "server.saved.1", "s11.masked.2", "server.saved.2")
    with chaos:
        chaos.reached("server.saved.1")
        chaos.kill(HOST, "superlink")
        chaos.kill("s07", "site")
        chaos.lift("server.saved.1")
        chaos.reached("s11.masked.2")
        chaos.kill(HOST)  # in the middle of a session, which is not continued
        chaos.start(HOST)
        chaos.lift("s11.masked.2")
        chaos.reached("server.saved.2")
        chaos.stop("s03")
        (chaos.host / KEYS / "s03.pub").unlink()  # else the host waits for it until the deadline, twice
        chaos.lift("server.saved.2")
        for site in sites:
            if site != "s03":
                chaos.until(lambda: chaos.happened("accepted", site=site, round=3), f"the receipt of {site}")  # noqa: B023
        check_finished(chaos, without=["s03"])
    assert [len(each) for each in chaos.absorbed()] == [12, 12, 12, 11]
