"""`strata list` and `strata data list` from a file, without torch, so that they answer at once.

`name_lists.json` has what these lists show of methods, models, data sets and partitions, which are described where they
are built, and building imports torch. `tools/name_lists.py` writes it, and a test compares it with the live catalogue.
What is said of one method is in `list_command`.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stratafl.cli.console import result_console, titled_table
from stratafl.files import cache_folder
from stratafl.recipes.recorded import every_recipe

FILE = "name_lists.json"
GAP = "  "
Catalogue = dict[str, list[dict[str, Any]]]


@cache
def _stored() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(files("stratafl.cli").joinpath(FILE).read_text("utf-8"))
    return stored


def listed_names() -> dict[str, list[dict[str, Any]]]:
    """Everything that has a name, by what it is, with a sentence and its options; of methods what the list shows."""
    return {**_stored()["names"], "recipes": recipe_entries()}


def recipe_entries() -> list[dict[str, Any]]:
    return [{"name": each.name, "description": each.title, "options": list(each.scales)} for each in every_recipe()]


def entries_called(name: str, everything: Catalogue) -> Catalogue:
    """One section, such as models, or the entries of this name in all sections; {} if there are none."""
    if name in everything:
        return {name: everything[name]}
    matches = {title: [entry for entry in entries if entry["name"] == name] for title, entries in everything.items()}
    return {title: entries for title, entries in matches.items() if entries}


def print_names(name: str | None, as_json: bool) -> bool:
    """Print the catalogue, a section, or what is called `name`; False if that takes more than names and sentences."""
    everything = listed_names()
    listed = everything if name is None else entries_called(name, everything)
    about_methods = "algorithms" in listed
    if not listed or (about_methods and (as_json or name not in (None, "algorithms"))):
        return False
    if as_json:
        print(json.dumps(listed, indent=2))
        return True
    console = result_console()
    if about_methods:
        _print_methods(console, listed["algorithms"])
    print_entries(console, listed)
    return True


def print_entries(console: Console, listed: Catalogue) -> None:
    """A table for each section except methods."""
    for title, entries in listed.items():
        if title == "algorithms":
            continue
        table = titled_table(title, ("name", "description", "options"), names=["name"], text=("description", "options"))
        for entry in entries:
            table.add_row(entry["name"], entry["description"], ", ".join(entry["options"]))
        console.print(table)


def _print_methods(console: Console, methods: list[dict[str, Any]]) -> None:
    """By kind, each with its idea and its paper."""
    names, ideas, papers = (
        max(len(method[field] or "") for method in methods) for field in ("name", "description", "paper")
    )
    console.print(Text("algorithms", "italic"))
    for kind, meaning in _stored()["kinds"].items():
        table = grid(names, min(ideas, console.width - names - papers - 2 * len(GAP)), papers)
        for method in methods:
            if method["kind"] == kind:
                table.add_row(Text(method["name"], "cyan"), method["description"], method["paper"] or "")
        if table.row_count:
            console.print(Text.assemble((kind, "bold"), f": {meaning}"), table, "", sep="\n")
    parts = ", ".join(f"{part} ({label})" for part, label in _stored()["parts"].items())
    console.print("strata list NAME shows a method's options, what it sends and what new clients get.")
    console.print(f"NAME+PART adds a part to a method, such as fedper+flayer: {parts}.\n")


def grid(*widths: int) -> Table:
    table = Table.grid(padding=(0, len(GAP), 0, 0))
    for width in widths:
        table.add_column(width=width, overflow="fold")
    return table


# Data sets


def data_sets() -> list[dict[str, Any]]:
    """Every data set with its size, its shape, and whether it is on this machine."""
    return [{**facts, "here": _here(facts["name"], entry)} for facts, entry in _stored()["data"]]


def _here(name: str, entry: str | None) -> str:
    """`entry` is the folder in the cache of what is fetched from the hub; None for what comes with the package."""
    if entry is None or (cache_folder() / entry).is_dir():
        return "yes"
    return "from data.path" if any(cache_folder().glob(f"{name}-{'?' * 16}/entry.json")) else "no"


def print_data_sets(as_json: bool) -> None:
    rows = data_sets()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    table = titled_table("data sets", rows[0], names=["name"], text=("shape", "from", "here"))
    for entry in rows:
        size = f"{entry['samples']:,}", str(entry["classes"]), " × ".join(map(str, entry["shape"]))
        table.add_row(entry["name"], *size, entry["from"], entry["here"])
    result_console().print(table)
    result_console().print(f"decoded data sets are cached in '{cache_folder()}'", markup=False, soft_wrap=True)
