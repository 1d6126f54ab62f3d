"""The results in docs/results, as data in the package: `python docs/tools/results.py` writes recipes/results.toml.

Every page there that `strata reproduce` wrote becomes an entry for `strata reproduce --list`, but for those of recipes
that are no part of the package. Claims that a recipe got after the run are not judged. A page may leave verdicts out of
its counts, with the reason in its text:

    <!-- not counted: seconds, time, relative -->      all that are about these measures

A test fails if the file is not what this would write.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import tomli_w

from stratafl.recipes.claims import MEASURES
from stratafl.recipes.recipe import recipes as read_recipes
from stratafl.recipes.recorded import FILE, ListedRecipe, RecipeResult, counted_signs, every_recipe
from stratafl.recipes.verdicts import verdicts

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "src/stratafl/recipes" / FILE
HEAD = "# What was run, from the pages in docs/results: python docs/tools/results.py writes this file.\n\n"
TITLE = re.compile(r"^## (?P<recipe>\S+), scale (?P<scale>\w+): ")
DATE = re.compile(r"(\d{4}-\d\d-\d\d) \d\d:\d\d UTC")
NOT_COUNTED = re.compile(r"<!-- not counted: (.*) -->")
SIGNS = {"✓ holds": True, "✗ does not hold": False}


def results_file() -> str:
    pages = sorted((ROOT / "docs/results").glob("*/*.md"))
    recipes = {recipe.name: recipe for recipe in every_recipe()}
    entries = [vars(result) for page in pages if (result := _result(page, recipes)) is not None]
    return HEAD + tomli_w.dumps({"results": [dict(entry) for entry in entries]})


def _result(page: Path, recipes: dict[str, ListedRecipe]) -> RecipeResult | None:
    text = page.read_text("utf-8")
    title = TITLE.match(text)
    if title is None or title["recipe"] not in recipes:
        return None
    line = next(line for line in text.splitlines() if line.startswith("`strata reproduce "))
    command = line.split("`")[1]
    asked = re.search(r"--seeds (\d+)", command)
    seeds = int(asked[1]) if asked else recipes[title["recipe"]].table["scales"][title["scale"]].get("seeds", 1)
    result = RecipeResult(title["recipe"], title["scale"], DATE.findall(line)[-1], seeds, "--tuned" in command)
    where = {"page": page.relative_to(ROOT).as_posix(), "command": command, "rows": _rows(text)}
    signs = [*_signs(text), *_later(text, result.recipe, list(where["rows"]))]
    return counted_signs(RecipeResult(**{**vars(result), **where}), signs)


def _rows(text: str) -> dict[str, int]:
    """How many rows of the first table have a number of ours, by column."""
    table = text[text.index("| method |") :].split("\n\n")[0].splitlines()
    (_, *heads), *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in (table[0], *table[2:]))
    ours = [(at, head.removesuffix(": here")) for at, head in enumerate(heads, 1) if head.endswith(": here")]
    return {column: sum(row[at][:1].isdigit() for row in rows) for at, column in ours}


def _later(text: str, recipe: str, columns: list[str]) -> Iterator[tuple[None, bool, bool]]:
    """The same for claims of the recipe that the page does not have, in each column that was run."""
    (asked,) = read_recipes(recipe)
    for claim in asked.claims:
        if f"| {claim.says} |" not in text:
            yield from ((None, False, False) for _ in verdicts(claim, {}, {}, columns))


def _signs(text: str) -> Iterator[tuple[bool | None, bool, bool]]:
    """Of each verdict: whether it holds, was measured, and is within noise."""
    left_out = [f"({MEASURES[name.strip()]})" for each in NOT_COUNTED.findall(text) for name in each.split(",")]
    for line in text[text.index("| claim | where |") :].split("\n\n")[0].splitlines()[2:]:
        _, _, predicate, _, measured, words, _ = line.strip().removeprefix("| ").removesuffix(" |").split(" | ")
        sign, _, doubts = words.strip("*").partition(", ")
        if any(measure in predicate for measure in left_out):
            yield None, False, False
        else:
            yield SIGNS.get(sign), bool(measured.strip()), "within noise" in doubts


if __name__ == "__main__":
    TARGET.write_text(results_file(), encoding="utf-8")
