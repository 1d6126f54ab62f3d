"""A federation of files for tests: each site has its own table, and a simulation reads all of them together."""

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
import torch
from torch import Tensor

from stratafl.api import Fitted
from stratafl.config.assemble import simulation_of
from stratafl.config.deployment import FederationFile, blueprint_of, federation_from, server_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.core.state import flatten
from stratafl.data import digits_federation
from stratafl.deploy.agreement import Agreement
from stratafl.deploy.courier import Content, Delivered, Kind, SignedMessage
from stratafl.deploy.hosting import AGREED, FILE, SERVER
from stratafl.deploy.member import STATE, SiteMember
from stratafl.deploy.serving import Serving
from stratafl.deploy.signatures import SignedMember
from stratafl.deploy.signing_keys import (
    HOST_KEY,
    KEYS,
    SIGNING_KEY,
    SITE_KEYS,
    create_signing_key,
    public_line,
    write_site_keys,
)
from stratafl.deploy.site_model import final_model
from stratafl.deploy.site_processes import SiteStatus
from stratafl.errors import StrataError
from stratafl.execute import Matrix, Progress, Simulation
from stratafl.execute.exchange import read_site, state_form
from stratafl.execute.exchange.server_store import ServerStore

SITES = ("a", "b", "c", "d")
# Options with which each mechanism acts in the rounds of `acting`; tests/deploy/test_acting.py shows that it does.
ACTING: dict[str, dict[str, Any]] = {
    "fedper": {},
    "flayer": {"least": 0.3},
    "pfedla": {"hyper_lr": 3.0},
    "heurpfedla": {"k": 1, "hyper_lr": 3.0},
    "fedalp": {"warmup": 2, "groups": 2},
    "fedlag": {"k": 2, "warmup": 1, "xi": -0.01},
    "ditto": {},
    "scaffold": {},
    "fedbabu": {"tune_epochs": 1},
}
# Where the simulation mixes the models of all clients in one product; everywhere else bits are equal.
ROUNDING = {"pfedla": 1e-6, "heurpfedla": 1e-6}
TABLES: dict[str, dict[str, Any]] = {
    "algorithm": {"name": "fedper"},
    "model": {"name": "mlp", "hidden": [8]},
    "data": {"validation": 0.2, "test": 0.25, "seed": 3},
    "train": {"lr": 0.1, "batch": 10},
    "run": {"rounds": 5, "participation": 0.7, "seed": 8, "engine": "stacked"},
    "deploy": {"sites": list(SITES), "name": "test", "wait": 900, "deadline": 900, "classes": 10, "report": False},
}


def with_tables(**changed: Mapping[str, Any]) -> FederationFile:
    names = {**TABLES, **changed}
    return federation_from({name: {**TABLES.get(name, {}), **changed.get(name, {})} for name in names})


def acting(method: str) -> FederationFile:
    """Six rounds of three out of four sites, of which each is away at least once and each learns."""
    return with_tables(
        algorithm={"name": method, **ACTING[method]},
        model={"hidden": [8, 8, 8]},
        data={"normalise": "none"},  # so that sites differ, and FedLAG's updates conflict in every round
        train={"lr": 0.3, "epochs": 2},
        run={"rounds": 6, "participation": 0.75, "seed": 5},
    )


def write_samples(folder: Path, sites: Sequence[str] = SITES) -> None:
    """A table for each site, and one of all sites with a column that says whose a row is."""
    whole = digits_federation(clients=1)
    x, y = whole.x.reshape(len(whole.x), -1)[:240, 20:28].numpy(), whole.y[:240].numpy()
    shares = np.arange(len(sites), 0, -1) / (len(sites) * (len(sites) + 1) / 2)
    owner = np.random.default_rng(1).choice(sites, len(x), p=shares)
    head = ",".join(f"p{n}" for n in range(x.shape[1])) + ",label"
    rows = [",".join(f"{value:g}" for value in row) + f",{label}" for row, label in zip(x, y, strict=True)]
    for site in sites:
        mine = [row for row, whose in zip(rows, owner, strict=True) if whose == site]
        (folder / f"{site}.csv").write_text("\n".join([head, *mine, ""]))
    both = [f"{row},{whose}" for row, whose in zip(rows, owner, strict=True)]
    (folder / "all.csv").write_text("\n".join([f"{head},client", *both, ""]))


def write_file(folder: Path, file: FederationFile) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    (folder / FILE).write_text(tomli_w.dumps(file.tables()))


def with_all_samples(folder: Path, file: FederationFile) -> Experiment:
    """The experiment on all sites' samples; its other settings are those of the federation, whatever the data."""
    experiment = with_values(file.experiment, {"run.device": "cpu"})
    return replace(experiment, data=replace(experiment.data, name=str(folder / "all.csv")))


def simulation(folder: Path, file: FederationFile) -> Simulation:
    """All sites' samples in one simulation."""
    sim = simulation_of(with_all_samples(folder, file))
    assert sim.runtime.federation.client_names == tuple(sorted(file.deploy.sites))
    return sim


_RUNS: dict[str, tuple[Simulation, Progress]] = {}


def _ran(folder: Path, file: FederationFile) -> tuple[Simulation, Progress]:
    """The simulation at its end, which is run once for its states and its models."""
    key = json.dumps([str(folder), file.tables()])
    if key not in _RUNS:
        sim = simulation(folder, file)
        _RUNS[key] = sim, sim.run(Matrix())
    return _RUNS[key]


def simulated(folder: Path, file: FederationFile) -> dict[str, Tensor]:
    """The states of server and clients after the simulation of all sites' samples."""
    _, progress = _ran(folder, file)
    found = flatten({"server": flatten(progress.server)})
    for client, state in progress.clients.items():
        found |= flatten({file.deploy.sites[client]: flatten(state)})
    return found


def deployed(host: Path, sites: Mapping[str, Path], file: FederationFile) -> dict[str, Tensor]:
    """The same from the disks of a host and its sites."""
    found: dict[str, Tensor] = {}
    for name, folder in sites.items():
        member = SiteMember(folder, name, str(folder.parent / f"{name}.csv"))
        store = read_site(folder / STATE, file.deploy.name, name, state_form(member._ready().enrol()))
        assert store.pending() is None
        current = store.current()
        if current is not None:
            found |= flatten({name: flatten(current.state)})

    agreed = Agreement.load(host / AGREED)
    assert agreed is not None
    names = file.deploy.sites
    server = server_of(file.experiment, blueprint_of(file.experiment, agreed.format, len(names)), agreed.roster)
    saved = ServerStore(host / SERVER, file.deploy.name, state_form(Serving(server, names).start())).load()
    assert saved is not None
    assert saved.round == server.rounds
    return {**flatten({"server": flatten(saved.state)}), **found}


def simulated_models(folder: Path, file: FederationFile) -> dict[str, Tensor]:
    """The models that clients of the simulation end with, tuned where the method tunes them."""
    fitted = Fitted(*_ran(folder, file), [])
    return flatten({site: fitted.client(client).model.state_dict() for client, site in enumerate(file.deploy.sites)})


def deployed_models(sites: Mapping[str, Path]) -> dict[str, Tensor]:
    """The same as sites predict with them."""
    members = {name: SiteMember(folder, name, str(folder.parent / f"{name}.csv")) for name, folder in sites.items()}
    return flatten({name: final_model(member).module.state_dict() for name, member in members.items()})


def replayed(
    folder: Path, host: Path, sites: Mapping[str, Path], file: FederationFile, absorbed: Sequence[Sequence[str]]
) -> dict[str, Tensor]:
    """The same if in each round these sites do their part, without messages, disks and processes."""
    agreed = Agreement.load(host / AGREED)
    assert agreed is not None
    server = server_of(
        file.experiment, blueprint_of(file.experiment, agreed.format, len(file.deploy.sites)), agreed.roster
    )
    serving = Serving(server, file.deploy.sites)
    working = {name: SiteMember(path, name, str(folder / f"{name}.csv"))._ready() for name, path in sites.items()}
    state, states = serving.start(), {}
    for number, names in enumerate(absorbed):
        uploads = {}
        for name in names:
            done = working[name].site.work(number, states.get(name), serving.download(number, state, name))
            states[name], uploads[name] = done.state, done.upload
        if server.secure:
            parts = [working[name].site.contribution(number, upload) for name, upload in uploads.items()]
            clients = [working[name].site.client for name in uploads]
            state = server.absorb_sum(number, state, torch.stack(parts).sum(0), clients) if parts else state
            continue
        state, left_out = serving.absorb(number, state, uploads)
        assert not left_out
    found = {name: flatten({name: flatten(kept)}) for name, kept in states.items()}
    return {**flatten({"server": flatten(state)}), **{key: x for each in found.values() for key, x in each.items()}}


class Local:
    """Carries messages to members in this process; with `restarts`, each is made again for every message."""

    def __init__(self, folder: Path, sites: Mapping[str, Path], *, restarts: bool = False) -> None:
        self._folder, self.sites, self._restarts = folder, dict(sites), restarts
        self._members = dict[tuple[str, Path], SiteMember]()
        self.away: Callable[[str], bool] = lambda site: False
        self.carried = list[tuple[str, str]]()

    def connected(self) -> frozenset[str]:
        return frozenset(site for site in self.sites if not self.away(site))

    def carry(self, kind: Kind, messages: Mapping[str, Content], seconds: float) -> Delivered:
        replies, failures = {}, {}
        for site, (table, body) in messages.items():
            self.carried.append((kind, site))
            try:
                replies[site] = self._answer(self._member(site), kind, table, body)
            except StrataError as error:
                failures[site] = str(error)
        return Delivered(replies, failures)

    def _member(self, site: str) -> SiteMember:
        place = site, self.sites[site]
        if self._restarts or place not in self._members:
            self._members[place] = SiteMember(place[1], site, str(self._folder / f"{site}.csv"))
        return self._members[place]

    def _answer(self, member: SiteMember, kind: Kind, table: Mapping[str, Any], body: bytes) -> Content:
        return member.answer(kind, table, body)


class Joined:
    """A site that is left at once, as by Ctrl-C."""

    status = SiteStatus.STARTING
    reason = refusal = ""

    def __init__(self, *_):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def tend(self):
        os.kill(os.getpid(), signal.SIGINT)
        return []


def write_folders(folder: Path, file: FederationFile, *, keys: bool = False) -> dict[str, Path]:
    """Samples, and the folders of a host and of its sites; those of the sites."""
    write_samples(folder)
    sites = {name: folder / name for name in SITES}
    for place in (folder / "host", *sites.values()):
        write_file(place, file)
    if keys:
        write_keys(folder / "host", sites)
    return sites


def write_keys(host: Path, sites: Mapping[str, Path]) -> None:
    """Signing keys of host and sites, and what each knows of the others."""
    (host / KEYS).mkdir(mode=0o700)
    lines = dict[str, str]()
    public = public_line(create_signing_key(host / SIGNING_KEY), "host")
    for name, folder in sites.items():
        (folder / HOST_KEY).write_text(public)
        signing = public_line(create_signing_key(folder / SIGNING_KEY), name)
        (host / KEYS / f"{name}.pub").write_text(f"the key of its connection\n{signing}\n")
        lines[name] = signing
    for folder in sites.values():
        write_site_keys(folder / SITE_KEYS, lines)


class SignedLocal:
    """Carries signed messages to members in this process.

    `change` is given kind, site, request and reply, and returns the reply that arrives.
    """

    def __init__(self, folder: Path, sites: Mapping[str, Path]) -> None:
        self._folder, self._sites = folder, dict(sites)
        self.change: Callable[[Kind, str, SignedMessage, SignedMessage], SignedMessage] = lambda *given: given[-1]
        self.requests, self._members = list[tuple[Kind, str, SignedMessage]](), dict[str, SignedMember]()

    def connected(self) -> frozenset[str]:
        return frozenset(self._sites)

    def member(self, site: str) -> SignedMember:
        return SignedMember(SiteMember(self._sites[site], site, str(self._folder / f"{site}.csv")))

    def carry(self, kind: Kind, messages: Mapping[str, SignedMessage], seconds: float) -> Delivered[SignedMessage]:
        self.requests += [(kind, site, request) for site, request in messages.items()]
        for site in set(messages) - set(self._members):
            self._members[site] = self.member(site)
        replies = {site: self._members[site].answer(kind, request) for site, request in messages.items()}
        return Delivered({site: self.change(kind, site, messages[site], reply) for site, reply in replies.items()}, {})


def largest(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    assert set(a) == set(b), sorted(set(a) ^ set(b))
    return max(float((a[name].double() - b[name].double()).abs().max()) if a[name].numel() else 0.0 for name in a)
