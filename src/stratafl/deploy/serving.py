"""What a host computes: the server of its file and of what was agreed on, in which sites have names."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from secrets import token_bytes

from stratafl.config.deployment import FederationFile, blueprint_of, server_of
from stratafl.core.state import State
from stratafl.deploy.agreement import Agreement
from stratafl.deploy.certificates import write_once
from stratafl.errors import DamagedError
from stratafl.execute.blueprint import Blueprint
from stratafl.execute.server import SECRET, Server
from stratafl.files import read_plain

log = logging.getLogger("stratafl.deploy")
NOISE = "noise.key"  # in the host's folder


@dataclass(frozen=True)
class Serving:
    """The server of the exchange, in which sites have names."""

    server: Server
    sites: Sequence[str]  # in the order of their numbers

    def start(self) -> State:
        return self.server.start()

    def download(self, round: int, state: State, site: str) -> bytes:
        client = self.sites.index(site)
        return self.server.download(round, state, client, new=client >= self.server.setup.clients)

    def absorb(self, round: int, state: State, uploads: Mapping[str, bytes]) -> tuple[State, Mapping[str, str]]:
        numbers = {self.sites.index(site): body for site, body in uploads.items()}
        done = self.server.absorb(round, state, numbers)
        for outlier in done.outliers:
            far = "far" if outlier.ratio is None else f"{outlier.ratio:g} times the median"
            log.warning(
                "round %d: the update of '%s' is %s from what it received", round + 1, self.sites[outlier.client], far
            )
        return done.server, {self.sites[outlier.client]: outlier.reason for outlier in done.left_out}


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
    secret = _secret(secrets / NOISE) if noisy and secrets is not None else None
    server = server_of(file.experiment, blueprint, agreed.roster, secret)
    return blueprint, Serving(server, (*deploy.sites, *deploy.predict))


def _secret(path: Path) -> bytes:
    """From the operating system, once: an absorbed round must have the same noise when it is absorbed again."""
    if not path.exists():
        write_once(path, token_bytes(SECRET))
    secret = read_plain(path, SECRET)
    if len(secret) != SECRET:
        raise DamagedError(f"'{path}' does not have {SECRET} bytes: remove it, and the host makes a new secret")
    return secret
