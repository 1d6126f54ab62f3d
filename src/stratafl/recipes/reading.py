"""Recipes from their TOML, every key and name known: those that ship, and anybody's own."""

import tomllib
from dataclasses import replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from stratafl import settings
from stratafl.errors import RecordError, StrataError, unknown
from stratafl.recipes.claims import MEASURES, Claim
from stratafl.recipes.recipe import SCALES, Column, Recipe, Row, Scale


def recipe_names() -> list[str]:
    """All recipes, as paper/table."""
    return sorted(f"{paper.name}/{file.name.removesuffix('.toml')}" for paper in _papers() for file in _tables(paper))


def recipes(name: str) -> list[Recipe]:
    """The recipe `paper/table`, all of a paper, or that of a file `table.toml`."""
    if name.endswith(".toml"):
        return [_own(Path(name))]
    known = recipe_names()
    papers = sorted({each.partition("/")[0] for each in known})
    chosen = [each for each in known if name in (each, each.partition("/")[0])]
    if not chosen:
        raise unknown("recipe", name, [*papers, *known])
    return [read(each, files("stratafl.recipes").joinpath(f"{each}.toml").read_text("utf-8")) for each in chosen]


def _own(path: Path) -> Recipe:
    try:
        return replace(read(f"own/{path.stem}", path.read_text("utf-8")), source=str(path.resolve()))
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"the recipe '{path}' cannot be read: {error}") from error


def read(name: str, text: str) -> Recipe:
    """A recipe from its TOML, every key known."""
    try:
        return _recipe(name, tomllib.loads(text))
    except (StrataError, tomllib.TOMLDecodeError) as error:
        raise RecordError(f"recipe '{name}': {error}") from error


def _recipe(name: str, table: dict[str, Any]) -> Recipe:
    known = ("title", "protocol", "readings", "settings", "columns", "rows", "scales", "claims", "notes")
    for key in table:
        if key not in known:
            raise unknown("key", key, known)
    for key in ("title", "columns", "rows", "scales"):
        if not table.get(key):
            raise RecordError(f"a recipe needs '{key}', as those of `strata reproduce` have it")
    columns = tuple(settings.from_table("columns", Column, each) for each in table["columns"])
    rows = tuple(settings.from_table("rows", Row, each) for each in table["rows"])
    scales = {scale: settings.from_table(scale, Scale, each) for scale, each in table["scales"].items()}
    claims = tuple(settings.from_table("claims", Claim, each) for each in table.get("claims", ()))
    head: dict[str, Any] = {key: table[key] for key in ("title", "protocol", "settings") if key in table}
    head |= {key: tuple(table[key]) for key in ("notes", "readings") if key in table}
    made = Recipe(name=name, columns=columns, rows=rows, scales=scales, claims=claims, **head)
    _check(made)
    return made


def _check(recipe: Recipe) -> None:
    columns, rows = [column.name for column in recipe.columns], [row.name for row in recipe.rows]
    for scale, each in recipe.scales.items():
        if scale not in SCALES:
            raise unknown("scale", scale, SCALES)
        _known("column", each.columns or [], columns)
    _known("measure", list(recipe.readings), list(MEASURES))
    for row in recipe.rows:
        _known("measure", list(row.also), list(MEASURES))
        for printed in (row.columns or [], row.printed, *row.also.values()):
            _known("column", list(printed), columns)
    for claim in recipe.claims:
        claim.check()
        _known("row", claim.names, rows)
        _known("column", claim.columns or [], columns)


def _known(kind: str, names: list[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown(kind, name, known)


def _papers() -> list[Traversable]:
    return [entry for entry in files("stratafl.recipes").iterdir() if entry.is_dir() and not entry.name.startswith("_")]


def _tables(paper: Traversable) -> list[Traversable]:
    return [entry for entry in paper.iterdir() if entry.name.endswith(".toml")]
