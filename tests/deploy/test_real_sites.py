"""Four sites as real processes over TLS with keys: what is on their disks is what the simulation has."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

from flower_federation import PATIENCE
from hosted import (
    ACTING,
    ROUNDING,
    SITES,
    acting,
    deployed,
    deployed_models,
    largest,
    simulated,
    simulated_models,
    write_samples,
)
from stratafl.cli.host_command import SERVER_APP
from stratafl.deploy.folders import HostFolder, prepare_host, prepare_site
from stratafl.deploy.host import Host, HostAddress
from stratafl.deploy.site_processes import CLIENT_APP, SiteProcesses
from stratafl.deploy.status import read_status
from stratafl.errors import DeployError


@contextmanager
def sites_of(folder: Path, prepared: HostFolder, host: Host, invitation: Path) -> Iterator[dict[str, SiteProcesses]]:
    with ExitStack() as stack:
        found = {}
        for name in SITES:
            mine = prepare_site(folder / name, invitation, name)
            host.register(name, prepared.store_keys(name, mine.key.public))
            made = SiteProcesses(mine, {"data": str(folder / f"{name}.csv")})
            found[name] = stack.enter_context(made)
        yield found


def finished(host: Host, sites: dict[str, SiteProcesses], run: int) -> None:
    latest = time.monotonic() + PATIENCE
    while time.monotonic() < latest:
        for each in (host, *sites.values()):
            each.tend()
        try:
            state = host.control.run_state(run)
        except DeployError:  # a machine that is busy enough takes longer than flwr waits for an answer
            continue
        if state.finished:
            assert state.end == "completed", state
            return
        time.sleep(0.2)
    raise AssertionError("the federation hangs")


def check(folder: Path, method: str) -> None:
    file = acting(method)
    write_samples(folder)
    place = HostAddress("127.0.0.1", 0)
    prepared = prepare_host(folder / "host", file, place)
    with Host(folder / "host" / "flower", place.listens, prepared.certificate, prepared.authority) as host:
        invitation = prepared.invite(HostAddress(place.host, host.address.port))
        with sites_of(folder, prepared, host, invitation) as sites:
            run = host.start_run(SERVER_APP, CLIENT_APP, {"trust": False})
            finished(host, sites, run)
    status = read_status(folder / "host")
    assert status is not None
    assert status["state"] == "finished"
    assert {known["state"] for known in status["sites"].values()} == {"has its model"}
    log = (folder / "host" / "flower" / "logs" / "superlink.log").read_text()
    assert "Fleet." in log
    assert not {"ControlServicer.ListRuns", "/v1/control/list-runs"} & set(log.split())  # asked all the time
    places = {name: folder / name for name in SITES}
    states = largest(deployed(folder / "host", places, file), simulated(folder, file))
    models = largest(deployed_models(places), simulated_models(folder, file))
    print(f"largest differences of {method}: states {states:g}, models {models:g}")
    assert max(states, models) <= ROUNDING.get(method, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("method", ACTING)
def test_methods_on_four_real_sites_are_the_simulation(tmp_path, method):
    check(tmp_path, method)
