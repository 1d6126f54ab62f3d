"""A federation of sites and a server in one process: each message builds its side anew, and only bytes cross.

What is left between two messages is what a deployment has on its disks: the server's state, the state of each site, and
each site's own samples, which nobody else is given.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from safetensors.torch import load, save

from stratafl.core.layout import Rows
from stratafl.core.state import State, flatten, unflatten
from stratafl.data import Federation
from stratafl.data.sample_format import SampleFormat, Splits
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.roster import Roster, RosterEntry
from stratafl.execute.server import Absorbed, Server
from stratafl.execute.site import Site, SiteWork


def own_samples(federation: Federation, client: int) -> Splits:
    """The samples of one client, copied, as a site has them."""
    held = {name: split.of(client) for name, split in federation.splits.items()}
    return {name: (federation.x[mine].clone(), federation.y[mine].clone()) for name, mine in held.items()}


@dataclass
class Deployed:
    """The sites of a blueprint with these samples by client; clients from `blueprint().clients` only predict."""

    blueprint: Callable[[], Blueprint]  # made anew for every message, as in a process of its own
    samples: dict[int, Any]  # of each client: `Splits`, unless `own` makes a federation of something else
    server: bytes = b""
    sites: dict[int, bytes] = field(default_factory=dict)
    widest: dict[str, int] | None = None

    def __post_init__(self) -> None:
        server = self.a_server()
        self.widest = dict(server.widest)
        self.server = saved(server.start())

    @cached_property
    def roster(self) -> Roster:
        blueprint = self.blueprint()
        entries = [RosterEntry.of(f"site {k}", k, self.own(blueprint.samples, k)) for k in self.samples]
        return Roster.of(blueprint.clients, entries)

    def own(self, agreed: SampleFormat, client: int) -> Federation:
        return agreed.client(self.samples[client], f"site {client}")

    def a_server(self) -> Server:
        return Server.of(self.blueprint(), self.roster)

    def a_site(self, client: int) -> Site:
        blueprint = self.blueprint()
        return Site.of(blueprint, self.own(blueprint.samples, client), client, widest=self.widest)

    def state_of(self, site: Site) -> State | None:
        found = self.sites.get(site.client)
        return None if found is None else restored(found)

    def work(self, t: int, client: int, download: bytes) -> SiteWork:
        site = self.a_site(client)
        return site.work(t, self.state_of(site), download)

    def round(self, t: int, arriving: Callable[[list[int]], Iterable[int]] = reversed) -> Absorbed:
        """Round t; uploads arrive in another order than that in which they are summed up."""
        server = self.a_server()
        before = restored(self.server)
        cohort: list[int] = server.cohort(server.at(t)).tolist()
        done = {client: self.work(t, client, server.download(t, before, client)) for client in arriving(cohort)}
        found = server.absorb(t, before, {client: work.upload for client, work in done.items()})
        self.server = saved(found.server)
        self.sites |= {client: saved(done[client].state) for client in found.present}
        return found

    def run(self) -> "Deployed":
        for t in range(self.rounds):
            self.round(t)
        return self

    @cached_property
    def rounds(self) -> int:
        return self.a_server().rounds

    def deployed(self, site: Site, server: Server | None = None) -> Rows:
        """The model that a site uses in the end; one that only predicts is served as a new client."""
        server = server or self.a_server()
        state, new = restored(self.server), not site.trains
        download = server.download(self.rounds, state, site.client, new)
        return site.deployed(self.rounds, self.state_of(site), download)

    def everything(self) -> Rows:
        """What a simulation's `everything` has: the server, the state of each client, and every deployed model."""
        found = {"t": torch.tensor(self.rounds)}
        found |= {f"server/{name}": x for name, x in load(self.server).items()}
        for client, state in self.sites.items():
            found |= {f"client/{client}/{name}": x for name, x in load(state).items()}
        server = self.a_server()
        each = [self.deployed(self.a_site(client), server) for client in range(server.setup.clients)]
        models = {name: torch.cat([rows[name] for rows in each]) for name in each[0]}
        return {**found, **flatten({"deployed": models})}


def saved(state: State) -> bytes:
    return save({name: x.contiguous() for name, x in flatten(state).items()})


def restored(data: bytes) -> State:
    """Copied, so that products see memory aligned as in a simulation."""
    return unflatten({name: x.clone() for name, x in load(data).items()})
