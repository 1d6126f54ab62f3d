"""What was run of each recipe, with which verdicts, and what is left; read without torch, so that a list comes at once.

`results.toml` has an entry for every result in docs/results, from which docs/tools/results.py writes it. It is part of
the package because an installation has no docs. Verdicts of your own runs are read from their folders.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

FILE = "results.toml"
SCALES = ("smoke", "short", "headline")
COUNTED = ("hold", "fail", "untold", "unjudged")  # a verdict is one of these
UNOBTAINABLE = ("flickr-aes", "emnist-byclass", "emnist-digits")  # data sets that no package registry has
FOLDER_ENDINGS = ("short", "short-tuned", "headline", "headline-tuned")  # of your own runs that are evidence


@dataclass(frozen=True)
class RecipeResult:
    """A recipe that was run at a scale: when, how many rows of each column, and the verdicts."""

    recipe: str
    scale: str
    when: str
    seeds: int
    tuned: bool = False
    hold: int = 0
    fail: int = 0
    noise: int = 0  # of those that hold or fail
    untold: int = 0
    unjudged: int = 0
    page: str = ""
    command: str = ""
    rows: Mapping[str, int] = field(default_factory=dict)  # with numbers, by column


def recorded_results() -> list[RecipeResult]:
    text = files("stratafl.recipes").joinpath(FILE).read_text("utf-8")
    return [RecipeResult(**entry) for entry in tomllib.loads(text).get("results", [])]


def own_results(root: Path, name: str) -> list[RecipeResult]:
    """Those of your own runs of a recipe in `runs/reproduce` or another folder."""
    places = [(ending, root / f"{name.replace('/', '-')}-{ending}" / "verdicts.json") for ending in FOLDER_ENDINGS]
    return [_own(name, ending, path) for ending, path in places if path.is_file()]


def _own(name: str, ending: str, path: Path) -> RecipeResult:
    scale, _, tuned = ending.partition("-")
    when = datetime.fromtimestamp(path.stat().st_mtime, UTC).date().isoformat()
    result = RecipeResult(name, scale, when, 0, bool(tuned), page=str(path.with_name("result.md")))
    try:
        entries = json.loads(path.read_text("utf-8"))
        signs = [(entry["holds"], bool(entry["measured"]), bool(entry.get("noise"))) for entry in entries]
        return counted_signs(result, signs)
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # damaged: `strata report` says how
        return result


def counted_signs(result: RecipeResult, signs: Iterable[tuple[bool | None, bool, bool]]) -> RecipeResult:
    """The result with its verdicts counted: whether each holds, was measured, and is within noise."""
    words = [
        ({True: "hold", False: "fail", None: "untold" if measured else "unjudged"}[holds], noise and holds is not None)
        for holds, measured, noise in signs
    ]
    hold, fail, untold, unjudged = (sum(word == name for word, _ in words) for name in COUNTED)
    noise = sum(noisy for _, noisy in words)
    return replace(result, hold=hold, fail=fail, untold=untold, unjudged=unjudged, noise=noise)


@dataclass(frozen=True)
class ListedRecipe:
    """A recipe as its file has it, unchecked: enough for a list."""

    name: str
    table: Mapping[str, Any]

    @property
    def title(self) -> str:
        return str(self.table["title"])

    @property
    def scales(self) -> Mapping[str, Any]:
        return dict(self.table["scales"])

    @property
    def claims(self) -> int:
        return len(self.table.get("claims", ()))

    def _scale(self, scale: str) -> Mapping[str, Any]:
        return dict(self.scales.get(scale, {}))

    def minutes(self, scale: str) -> float:
        """The estimated minutes of a scale on an H200."""
        return float(self._scale(scale).get("minutes", 0))

    @property
    def columns(self) -> list[str]:
        return [column["name"] for column in self.table["columns"]]

    @property
    def obtainable(self) -> list[str]:
        """The columns whose data can be obtained."""
        common = self.table.get("settings", {})
        data = {c["name"]: {**common, **c.get("settings", {})}.get("data.name") for c in self.table["columns"]}
        return [column for column, name in data.items() if name not in UNOBTAINABLE]

    def columns_at(self, scale: str) -> list[str]:
        return list(self._scale(scale).get("columns") or self.columns)

    def rows(self, scale: str) -> dict[str, int]:
        """How many rows each column of a scale has, of those whose data can be obtained."""
        columns = [column for column in self.columns_at(scale) if column in self.obtainable]
        runnable = [row.get("columns") for row in self.table["rows"] if not row.get("missing")]
        return {column: sum(not only or column in only for only in runnable) for column in columns}

    def left(self, scale: str, recorded: Iterable[RecipeResult]) -> float:
        """The estimated minutes of the runs that no result has: rows, columns and seeds."""
        rows, seeds = self.rows(scale), int(self._scale(scale).get("seeds", 1))
        done = dict.fromkeys(rows, 0.0)
        for result in recorded:
            if (result.recipe, result.scale, result.tuned) == (self.name, scale, False):
                share = min(1.0, result.seeds / seeds)
                done |= {c: max(done[c], share * min(n, rows[c])) for c, n in result.rows.items() if c in rows}
        return self.minutes(scale) * (1 - sum(done.values()) / sum(rows.values())) if rows else 0.0


@cache
def every_recipe() -> tuple[ListedRecipe, ...]:
    folder = files("stratafl.recipes")
    return tuple(
        ListedRecipe(n, tomllib.loads(folder.joinpath(f"{n}.toml").read_text("utf-8"))) for n in recipe_names()
    )


def recipe_names() -> list[str]:
    papers = [entry for entry in files("stratafl.recipes").iterdir() if entry.is_dir()]
    tables = [f"{paper.name}/{entry.name}" for paper in papers for entry in paper.iterdir()]
    return sorted(table.removesuffix(".toml") for table in tables if table.endswith(".toml"))


def by_claims_per_minute(scale: str) -> list[str]:
    """All recipes; first those that judge the most claims in a minute, last those with nothing left to run."""
    recorded = recorded_results()

    def order(recipe: ListedRecipe) -> tuple[bool, float]:
        return recipe.left(scale, recorded) < 0.05, -recipe.claims / max(recipe.minutes(scale), 0.1)

    return [recipe.name for recipe in sorted(every_recipe(), key=order)]
