"""`strata list`: everything that has a name."""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from stratafl.algorithms import ALGORITHMS
from stratafl.cli.console import result_console, titled_table
from stratafl.config.plugins import parameters
from stratafl.config.protocols import PROTOCOLS
from stratafl.data import DATASETS, PARTITIONS
from stratafl.models import MODELS
from stratafl.recipes import recipe_names, recipes

_GIVEN = ("train", "shape", "classes")  # not options, since the run gives them


def catalogue() -> dict[str, list[dict[str, Any]]]:
    """Everything that has a name, by kind, with a sentence and its options."""
    return {
        "algorithms": _entries(ALGORITHMS, from_module=True),
        "models": _entries(MODELS),
        "datasets": [{"name": n, "description": d.says, "options": d.options} for n, d in sorted(DATASETS.items())],
        "partitions": _entries(PARTITIONS),
        "protocols": [{"name": n, "description": p.says, "options": []} for n, p in PROTOCOLS.items()],
        "recipes": [
            {"name": recipe.name, "description": recipe.title, "options": list(recipe.scales)}
            for name in recipe_names()
            for recipe in recipes(name)
        ],
    }


def print_catalogue(as_json: bool) -> None:
    found = catalogue()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    console = result_console()
    for kind, entries in found.items():
        table = titled_table(kind, ("name", "description", "options"), names=["name"], text=("description", "options"))
        for entry in entries:
            table.add_row(entry["name"], entry["description"], ", ".join(entry["options"]))
        console.print(table)


def _entries(known: Mapping[str, Callable[..., Any]], from_module: bool = False) -> list[dict[str, Any]]:
    found = []
    for name, maker in sorted(known.items()):
        text = inspect.getdoc(inspect.getmodule(maker) if from_module else maker) or ""
        options = [option for option in parameters(maker) if option not in _GIVEN]
        found.append({"name": name, "description": " ".join(text.split("\n\n")[0].split()), "options": options})
    return found
