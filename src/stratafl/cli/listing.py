"""`list`: the catalogues."""

import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

from stratafl.algorithms import ALGORITHMS
from stratafl.cli.consoles import results
from stratafl.config.plugins import parameters
from stratafl.config.protocols import PROTOCOLS
from stratafl.data import DATASETS, PARTITIONS
from stratafl.models import MODELS
from stratafl.recipes import Recipe, recipe_names, recipes

_GIVEN = ("train", "shape", "classes")  # not for options


def catalogue() -> dict[str, list[dict[str, Any]]]:
    """Everything that has a name, with a sentence and its options."""
    return {
        "algorithms": _entries(ALGORITHMS, from_module=True),
        "models": _entries(MODELS),
        "datasets": [
            {"name": name, "description": record.says, "options": record.options}
            for name, record in sorted(DATASETS.items())
        ],
        "partitions": _entries(PARTITIONS),
        "protocols": [{"name": n, "description": p.says, "options": []} for n, p in PROTOCOLS.items()],
        "recipes": [{"name": r.name, "description": r.title, "options": list(r.scales)} for r in _recipes()],
    }


def _recipes() -> list[Recipe]:
    return [recipe for name in recipe_names() for recipe in recipes(name)]


def show(as_json: bool) -> None:
    """Print it."""
    found = catalogue()
    console = results()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    for kind, entries in found.items():
        made = Table(title=kind, title_justify="left", header_style="bold", expand=False)
        made.add_column("name", no_wrap=True, style="bold")
        made.add_column("what it is")
        made.add_column("options")
        for entry in entries:
            made.add_row(entry["name"], entry["description"], ", ".join(entry["options"]))
        console.print(made)


def _entries(known: Mapping[str, Callable[..., Any]], from_module: bool = False) -> list[dict[str, Any]]:
    return [
        {"name": name, "description": _sentence(maker, from_module), "options": _options(maker)}
        for name, maker in sorted(known.items())
    ]


def _sentence(maker: Callable[..., Any], from_module: bool) -> str:
    source = inspect.getmodule(maker) if from_module else maker
    text = inspect.getdoc(source) or ""
    return " ".join(text.split("\n\n")[0].split())


def _options(maker: Callable[..., Any]) -> list[str]:
    return [name for name in parameters(maker) if name not in _GIVEN]
