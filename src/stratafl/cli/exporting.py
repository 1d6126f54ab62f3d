"""`data`: what there is and what is here, and copies of it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from stratafl.cli.consoles import results
from stratafl.config.assemble import samples_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.config.settings import parse_settings
from stratafl.data import DATASETS, write_shards
from stratafl.data.cache import cache_folder, entries
from stratafl.data.loading import is_fetched
from stratafl.errors import counted


def known() -> list[dict[str, Any]]:
    """Every data set with its size, its shape, and where it is."""
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


def show(as_json: bool) -> None:
    """Print it."""
    found = known()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    made = Table(title="data sets", title_justify="left", header_style="bold", expand=False)
    for column in ("name", "samples", "classes", "shape", "from", "here"):
        made.add_column(
            column, no_wrap=column == "name", justify="right" if column in ("samples", "classes") else "left"
        )
    for entry in found:
        shape = " × ".join(map(str, entry["shape"]))
        words = (f"{entry['samples']:,}", str(entry["classes"]), shape, entry["from"], entry["here"])
        made.add_row(entry["name"], *words)
    results().print(made)
    results().print(f"what was decoded lies in '{cache_folder()}'", soft_wrap=True)


def export(name: str, out: Path, path: str | None, settings: Sequence[str]) -> None:
    """Write a data set into shards, and say how to use them."""
    experiment = with_values(Experiment(), {"data.name": name, "data.path": path, **parse_settings(settings)})
    samples = samples_of(experiment.data, experiment.run.seed)
    files = write_shards(samples, out)
    size = sum(file.stat().st_size for file in files)
    results().print(
        f"{counted(len(samples.x), 'sample')} of {samples.name} in {counted(len(files), 'file')}, "
        f"{size / 1e6:,.1f} MB: copy the folder and set data.name to it, with a slash at its end",
        soft_wrap=True,
    )
