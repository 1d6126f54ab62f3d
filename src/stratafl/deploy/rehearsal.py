"""A federation on one machine: the samples of an experiment, divided and written to a file for each site."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stratafl.config.assemble import federation_of
from stratafl.config.deployment import DEPLOY, FederationFile, federation_from
from stratafl.config.experiment import with_values
from stratafl.data.federation import Federation
from stratafl.errors import DeployError
from stratafl.files import atomically


def rehearsed(tables: Mapping[str, Any], count: int) -> FederationFile:
    """The federation of a file, or of an experiment, with so many sites on this machine."""
    names = [f"site-{number}" for number in range(1, count + 1)]
    given = tables.get(DEPLOY, {})
    if isinstance(given, dict) and len(given.get("sites", names)) != count:
        raise DeployError(
            f"the federation has {len(given['sites'])} sites: rehearse with --local {len(given['sites'])}"
        )
    return federation_from({**tables, DEPLOY: {"sites": names, **given}})


def divided(file: FederationFile, folder: Path) -> dict[str, Path]:
    """The samples of each site in a file of its own; those that are there are left as they are."""
    names = file.deploy.sites
    places = {name: folder / f"{name}.npz" for name in names}
    if not all(path.exists() for path in places.values()):
        whole = federation_of(with_values(file.experiment, {"data.clients": len(names)}))
        if whole.clients != len(names):
            raise DeployError(f"the data names {whole.clients} clients: rehearse with --local {whole.clients}")
        if whole.columns is not None or whole.targets is not None:
            raise DeployError("standardised samples cannot be divided: set data.normalise and data.targets to 'none'")
        _write(whole, names, places)
    return places


def _write(whole: Federation, names: Sequence[str], places: Mapping[str, Path]) -> None:
    for client, name in enumerate(names):
        mine = np.concatenate([split.of(client).cpu().numpy() for split in whole.splits.values()])
        with atomically(places[name]) as partial, partial.open("wb") as file:
            np.savez(file, x=whole.x[mine].cpu().numpy(), y=whole.y[mine].cpu().numpy())
