"""Extending a federation that has begun: more rounds, further sites, and no new federation.

The host's file changes alone, and may change again: only the sites that have agreed and the rounds that are done stay.
Every site joins again with the new invitation, because each consents to a number of rounds and to the sites of a
federation; until it has, it refuses what goes beyond its consent.
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
from stratafl.errors import DeployError
from stratafl.execute.exchange.server_store import saved_rounds
from stratafl.files import json_value, read_plain, write_atomically

REJOINING = "rejoining.json"  # in a host's folder
MAX_REJOINING_BYTES = 1 << 20


def is_same_federation(stored: FederationFile, offered: FederationFile) -> bool:
    """Whether two files differ in rounds and sites alone."""
    old, new = stored.deploy, offered.deploy
    experiment = replace(offered.experiment, run=replace(offered.experiment.run, rounds=stored.experiment.run.rounds))
    deploy = replace(new, sites=old.sites, predict=old.predict, least=old.least)
    return replace(offered, experiment=experiment, deploy=deploy).common() == stored.common()


def extensions(stored: FederationFile, offered: FederationFile) -> list[str]:
    """How rounds and sites differ between two files of a federation."""
    old, new = stored.deploy, offered.deploy
    before, after = stored.experiment.run.rounds, offered.experiment.run.rounds
    changed = {
        "new sites": [site for site in new.all_sites if site not in old.all_sites],
        "no longer sites": [site for site in old.all_sites if site not in new.all_sites],
        "sites that now train": [site for site in old.predict if site in new.sites],
        "sites that now only predict": [site for site in old.sites if site in new.predict],
    }
    changes = [f"{after} rounds instead of {before}"] if after != before else []
    changes += [f"{what}: {', '.join(sites)}" for what, sites in changed.items() if sites]
    moved = old.all_sites != new.all_sites and not any(changed.values())
    return [*changes, *([f"sites in another order: {', '.join(new.all_sites)}"] if moved else [])]


def stored_changes(folder: Path, offered: FederationFile) -> list[str]:
    """How rounds and sites of an offered file differ from those of the one in the folder of a host or a site."""
    path = folder / FILE
    if not path.exists():
        return []
    stored, offered = read_federation(path, plain=True), offered.as_begun(read_toml(path, plain=True))
    same = [file for file in (stored, stored.invited()) if is_same_federation(file, offered)]
    return extensions(same[0], offered) if same else []


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
    """Raise if the federation in a host's folder cannot become the offered one: what is done would have differed.

    Whatever nobody has agreed to or done may change again, such as the name of a site that has not joined.
    """
    stored, agreed = read_federation(folder / FILE, plain=True), Agreement.load(folder / AGREED)
    if agreed is None:
        return
    sites, done = agreed.roster.names, saved_rounds(folder / SERVER)
    if offered.deploy.sites[: len(sites)] != tuple(sites):
        wrong = f"deploy.sites begins with {', '.join(offered.deploy.sites[: len(sites)])}, but other sites have agreed"
        raise DeployError(f"{wrong}: begin with {', '.join(sites)}; to do without one of them, remove its key")
    rounds = offered.experiment.run.rounds
    counts = agreed.roster.clients, len(offered.deploy.sites)
    before, after = (blueprint_of(offered.experiment, agreed.format, clients, trust) for clients in counts)
    least = done - after.algorithm.requires.extra_rounds
    if rounds < least:
        raise DeployError(f"run.rounds = {rounds}, but {least} rounds are done: set it to at least {least}")
    check_goes_on(after.algorithm, done, stored.experiment.run.rounds, after.rounds)
    if counts[0] != counts[1]:
        check_more_clients(after.algorithm, done, before.setup(), after.setup())
