"""Extending a federation that has begun: more rounds, further sites, and no new federation.

The host's file changes alone. Every site joins again with the new invitation, because each consents to a number of
rounds and to the sites of a federation; until it has, it refuses what goes beyond its consent.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stratafl.config.deployment import FederationFile, blueprint_of, read_federation
from stratafl.config.experiment import read_toml
from stratafl.core.pace import check_goes_on, check_more_clients
from stratafl.deploy.agreement import Agreement
from stratafl.deploy.serving import AGREED, FILE, SERVER
from stratafl.execute.exchange.server_store import saved_rounds
from stratafl.files import json_value, read_plain, write_atomically

REJOINING = "rejoining.json"  # in a host's folder
MAX_REJOINING_BYTES = 1 << 20


def extensions(stored: FederationFile, offered: FederationFile) -> list[str]:
    """In what an offered file goes beyond the stored one; none if it differs in anything else."""
    old, new, run = stored.deploy, offered.deploy, offered.experiment.run
    before = stored.experiment.run.rounds
    experiment = replace(offered.experiment, run=replace(run, rounds=before))
    deploy = replace(new, sites=old.sites, predict=old.predict, least=old.least)
    only_longer = new.sites[: len(old.sites)] == old.sites and set(old.predict) <= set(new.all_sites)
    if replace(offered, experiment=experiment, deploy=deploy).common() != stored.common() or not only_longer:
        return []
    if run.rounds < before:
        return []
    further = {
        "new sites": [site for site in new.all_sites if site not in old.all_sites],
        "sites that now train": [site for site in old.predict if site in new.sites],
    }
    changes = [f"{run.rounds} rounds instead of {before}"] if run.rounds > before else []
    return [*changes, *(f"{what}: {', '.join(sites)}" for what, sites in further.items() if sites)]


def stored_changes(folder: Path, offered: FederationFile) -> list[str]:
    """In what an offered file goes beyond the one in the folder of a host or a site."""
    path = folder / FILE
    if not path.exists():
        return []
    stored, offered = read_federation(path, plain=True), offered.as_begun(read_toml(path, plain=True))
    return extensions(stored, offered) or extensions(stored.invited(), offered)


def read_rejoining(folder: Path) -> list[str]:
    """The sites of a host's folder that have not agreed yet to its extension, as far as the host knows."""
    path = folder / REJOINING
    with suppress(ValueError):
        names = json_value(read_plain(path, MAX_REJOINING_BYTES)) if path.exists() else []
        return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return []


def write_rejoining(folder: Path, sites: Sequence[str]) -> None:
    """Note who has to agree again; the host waits for them before it goes on, as before the first round."""
    write_atomically(folder / REJOINING, json.dumps(list(sites)).encode())


def check_extension(folder: Path, offered: FederationFile, trust: bool) -> None:
    """Raise if the federation in a host's folder cannot become the offered one: what is done would have differed."""
    stored, agreed = read_federation(folder / FILE, plain=True), Agreement.load(folder / AGREED)
    if agreed is None:
        return
    counts = len(stored.deploy.sites), len(offered.deploy.sites)
    before, after = (blueprint_of(offered.experiment, agreed.format, clients, trust) for clients in counts)
    done = saved_rounds(folder / SERVER)
    check_goes_on(after.algorithm, done, stored.experiment.run.rounds, after.rounds)
    if counts[0] != counts[1]:
        check_more_clients(after.algorithm, done, before.setup(), after.setup())
