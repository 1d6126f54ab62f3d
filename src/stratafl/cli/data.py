"""`strata data list` and `strata data export`: data sets, and copies for machines without a network."""

import json
from pathlib import Path
from typing import Any

from stratafl.cli.console import result_console, titled_table
from stratafl.config.assemble import samples_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.config.settings import Settings
from stratafl.data import DATASETS, write_shards
from stratafl.data.cache import cache_folder, entries
from stratafl.data.loading import is_fetched
from stratafl.errors import counted


def data_sets() -> list[dict[str, Any]]:
    """Every data set with its size, its shape, and whether it is on this machine."""
    return [
        {
            "name": name,
            "samples": record.samples,
            "classes": record.classes,
            "shape": list(record.shape),
            "from": "the package" if record.bundled else record.hub or "a folder (data.path)",
            "here": _here(name),
        }
        for name, record in DATASETS.items()
    ]


def _here(name: str) -> str:
    if is_fetched(name):
        return "yes"
    return "from data.path" if any(entries(name)) else "no"


def print_data_sets(as_json: bool) -> None:
    """Print all data sets, as a table or as JSON."""
    found = data_sets()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    table = titled_table("data sets", found[0], names=["name"], text=("shape", "from", "here"))
    for entry in found:
        shape = " × ".join(map(str, entry["shape"]))
        table.add_row(
            entry["name"], f"{entry['samples']:,}", str(entry["classes"]), shape, entry["from"], entry["here"]
        )
    result_console().print(table)
    result_console().print(f"decoded data sets are kept in '{cache_folder()}'", markup=False, soft_wrap=True)


def export_data(name: str, out: Path, path: str | None, settings: Settings) -> None:
    """Write a data set as shards, and print how to use them."""
    experiment = with_values(Experiment(), {"data.name": name, "data.path": path, **settings})
    samples = samples_of(experiment.data, experiment.run.seed)
    files = write_shards(samples, out)
    size = sum(file.stat().st_size for file in files)
    result_console().print(
        f"{counted(len(samples.x), 'sample')} of {samples.name} in {counted(len(files), 'file')}, "
        f"{size / 1e6:,.1f} MB: copy the folder and pass it as --data FOLDER/, with a slash at the end",
        markup=False,
        soft_wrap=True,
    )
