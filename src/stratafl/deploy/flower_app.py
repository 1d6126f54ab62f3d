"""Flower apps that are nothing but a `pyproject.toml`, whose code is installed packages.

`strata host` starts its runs with one. `strata flower-app` writes one for a Flower federation that is there already:
`plain_server.py` and `plain_client.py` use nothing but Flower's public names, and trust is in signatures alone.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import tomli_w

from stratafl.errors import DeployError, shown
from stratafl.files import write_atomically
from stratafl.version import VERSION

SERVER_APP, CLIENT_APP = "stratafl.deploy.plain_server:app", "stratafl.deploy.plain_client:app"
_FILE = "pyproject.toml"


def write_app(folder: Path, server_app: str, client_app: str, settings: Mapping[str, str | int | float | bool]) -> Path:
    """A Flower app that is nothing but a `pyproject.toml`, whose code is installed packages (`package.module:app`)."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    version = ".".join((*re.findall(r"\d+", VERSION)[:3], "0", "0", "0")[:3])  # Flower takes three numbers
    project = {"name": "stratafl", "version": version, "dependencies": []}
    app = {
        "publisher": "stratafl",
        "components": {"serverapp": server_app, "clientapp": client_app},
        "config": dict(settings),
    }
    write_atomically(folder / _FILE, tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}}).encode())
    return folder


def write_plain_app(folder: Path, host: Path, trust: bool) -> Path:
    """The app of a host's folder; Flower sends all files in an app's folder to every site, so there are no others."""
    others = sorted(path.name for path in folder.glob("*") if path.name != _FILE) if folder.exists() else []
    if others:
        wrong = f"'{folder}' also holds '{shown(others[0])}', which Flower would send to every site"
        raise DeployError(f"{wrong}: choose a new folder with --out")
    return write_app(folder, SERVER_APP, CLIENT_APP, {"folder": str(host.absolute()), "trust": trust})


def node_configuration(site: str, folder: Path, place: str, trust: bool) -> str:
    """What the owner of a site gives to a SuperNode as --node-config."""
    settings = {"site": site, "folder": str(folder.absolute()), "data": place}
    wrong = next((value for value in settings.values() if re.search(r"[\"\\\x00-\x1f]", value)), None)
    if wrong is not None:
        raise DeployError(f"'{shown(wrong)}' has a character that Flower cannot read in a configuration: rename it")
    return " ".join([*(f'{name}="{value}"' for name, value in settings.items()), *(["trust=true"] if trust else [])])
