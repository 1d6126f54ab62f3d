"""What can be done with a host's folder besides hosting it: check its audit log, and forget a site."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratafl.config.deployment import read_federation
from stratafl.deploy.agreement import Agreement
from stratafl.deploy.hosting import AGREED, FILE, SERVER
from stratafl.deploy.serving import served
from stratafl.errors import DamagedError, DeployError, unknown
from stratafl.execute.exchange import open_server, verify
from stratafl.execute.exchange.server_store import AUDIT, STATE, known_mark


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
    names = (*file.deploy.sites, *file.deploy.predict)
    if site not in names:
        raise unknown(f"site of federation '{file.deploy.name}'", site, names)
    if agreed is None:
        raise DeployError(f"'{folder}' has not started, so it has no state of '{site}' to forget")
    _, serving = served(file, agreed, trust)
    with open_server(folder / SERVER, file.deploy.name, names, serving) as exchange:
        exchange.forget(site)
