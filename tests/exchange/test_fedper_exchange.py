"""A real method over the exchange, with crashes, comes to the bits of the same simulation over messages."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from crashes import Disk, run_with_crashes, ways
from small_federation import SITES, Federation, bits

from stratafl.algorithms import algorithm
from stratafl.core import wire
from stratafl.core.algorithm import Total
from stratafl.core.form import form_of
from stratafl.core.state import State, pick
from stratafl.data import digits_federation
from stratafl.execute import Messages, Simulation, simulation
from stratafl.models import MLP
from stratafl.policies import LocalTraining

ROUNDS = 3


@cache
def simulated(name: str) -> Simulation:
    federation = digits_federation(clients=len(SITES))
    train = LocalTraining(lr=0.05, batch=200)
    model = lambda: MLP(shape=(1, 8, 8), classes=10, hidden=(12,))  # noqa: E731
    return simulation(algorithm(name, train=train), federation, model, rounds=ROUNDS, participation=0.7)


@dataclass(frozen=True)
class Server:
    sim: Simulation

    def start(self) -> State:
        return self.sim.algorithm.init(self.sim.setup)

    def download(self, round: int, state: State, site: str) -> bytes:
        ids = torch.tensor([SITES.index(site)])
        return wire.encode(self.sim.algorithm.download(self.sim.at(round), state, ids), self.sim.setup.layout)

    def absorb(self, round: int, state: State, uploads: Mapping[str, bytes]) -> tuple[State, Mapping[str, str]]:
        sim, rnd, total = self.sim, self.sim.at(round), Total()
        form = sim.upload_form(rnd, state)
        for client in sim.ordered(torch.tensor([SITES.index(site) for site in uploads])).tolist():
            parcel = wire.decode(uploads[SITES[client]], sim.setup.layout, form)
            total = sim.algorithm.fold(rnd, state, total, parcel, torch.tensor([client]))
        return sim.algorithm.absorb(rnd, state, total), {}


@dataclass(frozen=True)
class Site:
    sim: Simulation
    client: int

    @property
    def ids(self) -> torch.Tensor:
        return torch.tensor([self.client])

    def enrol(self) -> State:
        return pick(self.sim.algorithm.enrol(self.sim.setup, self.ids), 0)

    def work(self, round: int, download: bytes, state: State) -> tuple[State, bytes]:
        sim, method, rnd = self.sim, self.sim.algorithm, self.sim.at(round)
        like = form_of(method.download(rnd, method.init(sim.setup), self.ids), rnd.layout)
        task = sim.task(self.ids, rnd)
        client = method.receive(rnd, pick(state, None), wire.decode(download, rnd.layout, like), task)
        after = method.work(rnd, client, task)
        return pick(after.client, 0), wire.encode(after.upload, rnd.layout)


def deployed(folder, name: str) -> Federation:
    sim = simulated(name)

    def cohort(round: int) -> list[str]:
        return [SITES[client] for client in sim.cohort(sim.at(round)).tolist()]

    works = {site: Site(sim, client) for client, site in enumerate(SITES)}
    return Federation(folder, ROUNDS, cohort, server_work=Server(sim), site_works=works)


def check(federation: Federation, name: str) -> None:
    outcome, progress = federation.outcome(), simulated(name).run(Messages())
    assert outcome.server == bits(progress.server)
    sites = {name: {k: v for k, v in site.items() if k != "delivered"} for name, site in outcome.sites.items()}
    assert sites == {SITES[client]: bits(state) for client, state in progress.clients.items()}
    for client, site in enumerate(SITES):
        last = Server(simulated(name)).download(ROUNDS, progress.server, site)
        assert outcome.sites[site]["delivered"] == ("bytes", last), client
    assert name == "local" or {len(federation.cohort(round)) for round in range(ROUNDS)} == {2}


@pytest.mark.parametrize(
    "name", ["fedper", *(pytest.param(name, marks=pytest.mark.slow) for name in ("scaffold", "ditto", "local"))]
)
def test_the_exchange_comes_to_the_bits_of_the_simulation(tmp_path, name):
    federation = deployed(tmp_path, name)
    federation.run()
    check(federation, name)


@pytest.mark.parametrize(
    "cases",
    [2, pytest.param(40, marks=pytest.mark.slow), pytest.param(200, marks=pytest.mark.nightly)],
    ids=["quick", "more", "whole"],
)
@pytest.mark.budget(1, "two federations with crashes, and one without")
def test_and_so_it_does_after_crashes(tmp_path, cases):
    (tmp_path / "whole").mkdir()
    federation, disk, draw = deployed(tmp_path / "whole", "fedper"), Disk(), random.Random(cases)
    federation.arrow = disk.arrow
    run_with_crashes(federation, disk, again=True)
    for case in range(cases):
        (tmp_path / str(case)).mkdir()
        places = draw.sample(range(len(disk.seen)), 3)
        crashing = Disk({place: draw.choice(ways(disk.seen[place])) for place in places})
        federation = deployed(tmp_path / str(case), "fedper")
        federation.arrow = crashing.arrow
        run_with_crashes(federation, crashing, again=True)
        check(federation, "fedper")
