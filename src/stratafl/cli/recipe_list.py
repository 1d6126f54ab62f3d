"""`strata reproduce --list`: every recipe with what was run of it, the verdicts, and the minutes that are left."""

from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from stratafl.cli.console import fitting_columns, result_console, titled_table
from stratafl.errors import unknown
from stratafl.recipes.recorded import SCALES, ListedRecipe, RecipeResult, every_recipe, own_results, recorded_results

MEASURED = ("short", "headline")  # scales with the papers' data
NAMES = ("recipe", "scale", "last run")
COUNTS = ("hold", "do\nnot", "within\nnoise", "cannot\nbe told", "not\njudged")
HEAD = (*NAMES, "columns\n× seeds", *COUNTS, "left:\nshort", "left:\nheadline")
SPARE = ("cannot\nbe told", "columns\n× seeds", "last run", "within\nnoise")  # what a narrow console leaves out
FOOT = (
    "Verdicts: those of docs/results, or of your runs in {out}; a claim counts once in every column. Scale smoke is "
    "no evidence and has no line. Within noise: how many of the claims that hold or do not are within noise. Left: "
    "estimated minutes on an H200 of a scale's rows, columns and seeds without a result, where data can be obtained; "
    "shared runs are counted in each. In all {short:.0f} minutes are left at short, {headline:.0f} at headline."
)


def print_recipes(name: str | None, out: Path, scale: str) -> int:
    """List all recipes, those of a paper, or one, at every scale."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    recipes = [recipe for recipe in every_recipe() if name in (None, recipe.name, recipe.name.partition("/")[0])]
    if not recipes:
        names = [recipe.name for recipe in every_recipe()]
        raise unknown("recipe", str(name), [*sorted({each.partition("/")[0] for each in names}), *names])
    recorded = recorded_results()
    console = result_console()
    lines = [dict(zip(HEAD, line, strict=True)) for recipe in recipes for line in _lines(recipe, recorded, out)]
    widths = {title: max(map(len, (*title.split("\n"), *(line[title] for line in lines)))) for title in HEAD}
    titles = fitting_columns(widths, SPARE, console.width)
    table = titled_table("Recipes", titles, names=NAMES)
    for line in lines:
        table.add_row(*(line[title] for title in titles))
    left = {scale: sum(recipe.left(scale, recorded) for recipe in recipes) for scale in MEASURED}
    console.print(table)
    console.print(Text(FOOT.format(out=out, **left), style="dim"))
    return 0


def _lines(recipe: ListedRecipe, recorded: list[RecipeResult], out: Path) -> Iterator[tuple[str, ...]]:
    """A line for each result of a recipe; the first has its name and the minutes that are left."""
    left = [f"{recipe.left(scale, recorded):.1f}" for scale in MEASURED]
    several = [*(each for each in recorded if each.recipe == recipe.name), *own_results(out, recipe.name)]
    if not several:
        yield recipe.name, "not run", *[""] * 6, str(recipe.claims), *left
    for number, result in enumerate(several):
        name, minutes = (recipe.name, left) if number == 0 else ("", ["", ""])
        columns = f"{sum(bool(rows) for rows in result.rows.values())}/{len(recipe.columns)}"
        about = f"{columns} × {result.seeds}" if result.rows else "yours"
        counts = (result.hold, result.fail, result.noise, result.untold, result.unjudged)
        scale = f"{result.scale}, tuned" if result.tuned else result.scale
        yield name, scale, result.when, about, *map(str, counts), *minutes
