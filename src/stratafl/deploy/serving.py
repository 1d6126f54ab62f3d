"""A host's folder: its server, built from its file and the agreement, its audit log, and forgetting a site."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratafl.config.deployment import FederationFile, blueprint_of, read_federation, server_of
from stratafl.core.state import State
from stratafl.deploy.agreement import Agreement
from stratafl.deploy.certificates import secret_of
from stratafl.errors import DamagedError, DeployError
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.exchange import open_server, verify
from stratafl.execute.exchange.server_store import AUDIT, STATE, known_mark
from stratafl.execute.server import Server
from stratafl.execute.uploads import OutlyingUpdate

log = logging.getLogger("stratafl.deploy")
FILE, AGREED, SERVER, NOISE = "federation.toml", "agreement.json", "server", "noise.key"  # in the host's folder


@dataclass(frozen=True)
class Serving:
    """The server of the exchange, in which sites have names."""

    server: Server
    sites: Sequence[str]  # in the order of their numbers
    shortened: dict[str, str] = field(default_factory=dict)  # by the last round, and how long their updates were

    def start(self) -> State:
        return self.server.start()

    def download(self, round: int, state: State, site: str) -> bytes:
        client = self.sites.index(site)
        return self.server.download(round, state, client, new=client >= self.server.setup.clients)

    def absorb(self, round: int, state: State, uploads: Mapping[str, bytes]) -> tuple[State, Mapping[str, str]]:
        numbers = {self.sites.index(site): body for site, body in uploads.items()}
        done = self.server.absorb(round, state, numbers)
        self.shortened.clear()
        self.shortened.update({self.sites[update.client]: _length(update) for update in done.shortened})
        for outlier in done.outliers:
            log.warning("round %d: the update of '%s' is %s", round + 1, self.sites[outlier.client], _length(outlier))
        return done.server, {self.sites[outlier.client]: outlier.reason for outlier in done.left_out}


def _length(update: OutlyingUpdate) -> str:
    return "unusually long" if update.ratio is None else f"{update.ratio:g} times as long as the median"


def served(
    file: FederationFile, agreed: Agreement, trust: bool = False, secrets: Path | None = None
) -> tuple[Blueprint, Serving]:
    """What a host computes with, from its file and what was agreed on.

    A method whose server adds noise finds its secret in the folder `secrets`, or makes it there; no round is absorbed
    without.
    """
    deploy = file.deploy
    blueprint = blueprint_of(file.experiment, agreed.format, len(deploy.sites), trust)
    noisy = blueprint.algorithm.requires.noise
    secret = secret_of(secrets / NOISE) if noisy and secrets is not None else None
    server = server_of(file.experiment, blueprint, agreed.roster, secret)
    return blueprint, Serving(server, deploy.all_sites)


def checked_log(folder: Path) -> list[Mapping[str, Any]]:
    """All lines of a host's audit log, which is whole and holds all that the server's state knows of."""
    path = folder / SERVER / AUDIT
    if not path.exists():
        raise DeployError(f"'{folder}' has no audit log: name the folder of a host that has started, federations/NAME")
    mark = known_mark(folder / SERVER)  # first: the log only grows
    lines: list[Mapping[str, Any]] = []
    verify(path, mark, lines.append)
    state = folder / SERVER / STATE
    if not os.path.lexists(state) and any(line.get("event") == "asked" for line in lines):
        raise DamagedError(f"'{state}' is missing, so the length of the audit log cannot be checked: restore it")
    return lines


def forget_site(folder: Path, site: str, *, trust: bool = False) -> None:
    """Let a site that lost its state start over; its absorbed uploads stay absorbed."""
    file, agreed = read_federation(folder / FILE, plain=True), Agreement.load(folder / AGREED)
    file.deploy.number(site)  # raises if there is no such site
    if agreed is None:
        raise DeployError(f"'{folder}' has not started, so it has no state of '{site}' to forget")
    _, serving = served(file, agreed, trust)
    with open_server(folder / SERVER, file.deploy.name, serving.sites, serving) as exchange:
        exchange.forget(site)
