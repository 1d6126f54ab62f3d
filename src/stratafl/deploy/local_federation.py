"""A rehearsal on one machine: the samples of an experiment, divided into a file for each site."""

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
    """The federation of a file, or of an experiment, with `count` sites on this machine."""
    names = [f"site-{number}" for number in range(1, count + 1)]
    deploy = tables.get(DEPLOY, {})
    if not isinstance(deploy, dict):
        return federation_from(tables)  # which raises the error
    file = federation_from({**tables, DEPLOY: {"sites": names, **deploy}})
    if len(file.deploy.sites) != count:
        raise DeployError(f"the federation has {len(file.deploy.sites)} sites: use --local {len(file.deploy.sites)}")
    data = file.experiment.data
    _refuse_standardised(columns=data.normalise == "columns", targets=data.targets == "scaled")
    if file.deploy.predict:
        raise DeployError("a rehearsal has no sites that only predict: remove deploy.predict from the file")
    return file


def divided(file: FederationFile, folder: Path) -> dict[str, Path]:
    """The samples of each site in a file of its own; those that are there are left as they are."""
    names = file.deploy.sites
    places = {name: folder / f"{name}.npz" for name in names}
    if not all(path.exists() for path in places.values()):
        whole = federation_of(with_values(file.experiment, {"data.clients": len(names)}))
        if whole.clients != len(names):
            raise DeployError(f"the data has {whole.clients} clients: use --local {whole.clients}")
        _refuse_standardised(columns=whole.columns is not None, targets=whole.targets is not None)
        _write(whole, names, places)
    return places


def _refuse_standardised(*, columns: bool, targets: bool) -> None:
    """Whether samples are standardised may be set, or found when they are read."""
    if columns or targets:
        fits = "data.normalise = 'none'" if columns else "data.targets = 'numbers'"
        raise DeployError(f"standardised samples cannot be divided among sites: set {fits}")


def _write(whole: Federation, names: Sequence[str], places: Mapping[str, Path]) -> None:
    for client, name in enumerate(names):
        samples = np.concatenate([split.of(client).cpu().numpy() for split in whole.splits.values()])
        with atomically(places[name]) as partial, partial.open("wb") as file:
            np.savez(file, x=whole.x[samples].cpu().numpy(), y=whole.y[samples].cpu().numpy())
