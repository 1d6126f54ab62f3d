"""Recipes from their TOML, every key and name known: those that ship, and anybody's own."""

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from stratafl.core.annotations import checked
from stratafl.core.records import from_settings
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
    except OSError as error:
        raise RecordError(f"the recipe '{path}' cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RecordError(f"the recipe '{path}' cannot be read: {error}") from error


def read(name: str, text: str) -> Recipe:
    """A recipe from its TOML, every key known."""
    try:
        return _recipe(name, tomllib.loads(text))
    except (StrataError, tomllib.TOMLDecodeError) as error:
        raise RecordError(f"recipe '{name}': {error}") from error


@dataclass(frozen=True)
class _File:
    """The tables of a recipe as they stand in its file."""

    title: str
    columns: list[Any]
    rows: list[Any]
    scales: Mapping[str, Any]
    protocol: str = "clean"
    settings: Mapping[str, Any] = field(default_factory=dict)
    claims: list[Any] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)
    readings: list[Any] = field(default_factory=list)


def _recipe(name: str, table: dict[str, Any]) -> Recipe:
    found = from_settings("recipe", _File, table)
    for key in ("title", "columns", "rows", "scales"):
        if not table[key]:
            raise RecordError(f"a recipe needs some '{key}', as those of `strata reproduce` have it")
    made = Recipe(
        name=name,
        title=found.title,
        columns=tuple(from_settings("columns", Column, each) for each in found.columns),
        rows=tuple(from_settings("rows", Row, each) for each in found.rows),
        scales={scale: from_settings(scale, Scale, each) for scale, each in found.scales.items()},
        claims=tuple(from_settings("claims", Claim, each) for each in found.claims),
        protocol=found.protocol,
        settings=found.settings,
        notes=tuple(map(str, found.notes)),
        readings=tuple(map(str, found.readings)),
    )
    _check(made)
    return made


def _check(recipe: Recipe) -> None:
    columns, rows = [column.name for column in recipe.columns], [row.name for row in recipe.rows]
    _different("columns", columns)
    _different("rows", rows)
    for scale, each in recipe.scales.items():
        if scale not in SCALES:
            raise unknown("scale", scale, SCALES)
        _known("column", each.columns or [], columns)
    _known("measure", list(recipe.readings), list(MEASURES))
    for row in recipe.rows:
        _known("measure", list(row.also), list(MEASURES))
        _known("column", row.columns or [], columns)
        for measure, printed in {"printed": row.printed, **row.also}.items():
            numbers = checked(f"rows.{measure}", Mapping, printed)
            _known("column", list(numbers), columns)
            for column, number in numbers.items():
                checked(f"rows.{measure}.{column}", float, number)
    for claim in recipe.claims:
        claim.check()
        _known("row", claim.names, rows)
        _known("column", claim.columns or [], columns)


def _different(kind: str, names: list[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise RecordError(f"{count} {kind} are called '{name}': their numbers could not be told apart")


def _known(kind: str, names: list[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            raise unknown(kind, str(name), known)


def _papers() -> list[Traversable]:
    return [entry for entry in files("stratafl.recipes").iterdir() if entry.is_dir() and not entry.name.startswith("_")]


def _tables(paper: Traversable) -> list[Traversable]:
    return [entry for entry in paper.iterdir() if entry.name.endswith(".toml")]
