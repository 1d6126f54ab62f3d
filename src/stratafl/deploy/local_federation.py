"""A rehearsal on one machine: the samples of an experiment, divided into a file for each site."""

import csv
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stratafl.config.assemble import federation_of, samples_of, seeds_of
from stratafl.config.deployment import DEPLOY, FederationFile, federation_from
from stratafl.config.experiment import with_values
from stratafl.config.setting_tables import DataTable, reading_of
from stratafl.data.federation import Federation
from stratafl.data.loading import is_place
from stratafl.data.samples import Samples
from stratafl.data.tables.kinds import cells_from
from stratafl.data.user_files import LABELS, read_columns
from stratafl.errors import DeployError, counted
from stratafl.files import atomically

log = logging.getLogger("stratafl")


def rehearsed(tables: Mapping[str, Any], count: int) -> FederationFile:
    """The federation of a file, or of an experiment, with `count` sites on this machine."""
    names = [f"site-{number}" for number in range(1, count + 1)]
    deploy = tables.get(DEPLOY, {})
    if not isinstance(deploy, dict):
        return federation_from(tables)  # which raises the error
    file = federation_from({**tables, DEPLOY: {"sites": names, **deploy}}, divides=True)
    if len(file.deploy.sites) != count:
        raise DeployError(f"the federation has {len(file.deploy.sites)} sites: use --local {len(file.deploy.sites)}")
    if file.experiment.data.targets == "scaled":
        raise DeployError("scaled targets would need a mean over all sites: set data.targets = 'numbers'")
    if file.deploy.predict:
        raise DeployError("a rehearsal has no sites that only predict: remove deploy.predict from the file")
    if file.deploy.classes:
        return file
    samples = samples_of(file.experiment.data, seeds_of(file.experiment).partition)
    y = np.asarray(samples.y)
    numbered = int(y.max()) + 1 if y.dtype.kind in "iu" else ()
    return replace(file, deploy=replace(file.deploy, classes=samples.names or samples.classes or numbered))


def divided(file: FederationFile, folder: Path) -> dict[str, Path]:
    """The samples of each site, as they are in the data, in a file of its own; those that are there are left.

    A table stays a table, so that sites know the names of columns and classes, and texts stay texts; other samples are
    arrays.
    """
    names = file.deploy.sites
    by_suffix = {suffix: {name: folder / f"{name}{suffix}" for name in names} for suffix in (".npz", ".csv")}
    places = next((each for each in by_suffix.values() if all(path.exists() for path in each.values())), None)
    if places is None:
        samples = samples_of(file.experiment.data, seeds_of(file.experiment).partition)
        texts = _texts_of(samples, file.experiment.data)
        places = by_suffix[".csv" if samples.columns or texts else ".npz"]
        named = file.experiment.data.partition == "auto" and samples.owner is not None
        experiment = file.experiment if named else with_values(file.experiment, {"data.clients": len(names)})
        whole = federation_of(experiment, raw=True)
        if whole.clients < len(names):
            most = f"use --local {whole.clients}" if whole.clients == 1 else f"use --local 1 to {whole.clients}"
            raise DeployError(f"the data has {counted(whole.clients, 'client')}: {most}")
        if whole.clients > len(names):
            log.warning("the sites are the first %d of the %d clients of the data", len(names), whole.clients)
        _write(whole, samples, file.experiment.data, places, texts)
    return places


def _texts_of(samples: Samples, data: DataTable) -> list[Any]:
    """The texts of a person's own table, or none where they are not to be read again, row by row."""
    if samples.text is None or not is_place(data.name) or data.name.endswith(".npz"):
        return []
    columns, _ = read_columns(Path(data.name), reading_of(data, 0))
    texts = list(columns[samples.text.column])
    return texts if len(texts) == len(samples.x) else []


def _write(whole: Federation, samples: Samples, data: DataTable, places: Mapping[str, Path], texts: list[Any]) -> None:
    """One file for each site, with the names that the settings give to labels, clients and groups."""
    for client, path in enumerate(places.values()):
        rows = np.concatenate([split.of(client).cpu().numpy() for split in whole.splits.values()])
        x, y = whole.x[rows].cpu().numpy(), whole.y[rows].cpu().numpy()
        names = whole.column_names
        columns = [column for column in whole.codes if column.is_coded]
        cells = [cells_from(column, x[:, at]) for at, column in enumerate(columns)] or x.T.tolist()
        if texts and samples.text is not None:
            names, cells = (samples.text.column,), [[texts[row] for row in rows]]
        more = {data.client: np.full(len(rows), whole.client_name(client))} if data.client else {}
        if data.group and samples.group is not None:
            more[data.group] = samples.group[rows]
        with atomically(path) as partial:
            if path.suffix == ".csv":
                _write_table(
                    partial,
                    dict(zip(names, cells, strict=True)) | {data.label or LABELS[0]: _named(whole, y), **more},
                )
            else:
                with partial.open("wb") as file:
                    np.savez(file, **{"x": x, data.label or LABELS[1]: y, **more})  # type: ignore[arg-type]


def _named(whole: Federation, y: NDArray[Any]) -> list[Any]:
    return y.tolist() if whole.classes is None else [whole.class_name(label) for label in y.tolist()]


def _write_table(path: Path, columns: Mapping[str, Any]) -> None:
    """Cells by the name of their column; Python writes numbers so that they read back as the same."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
