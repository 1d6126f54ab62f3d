"""A recipe: a table or figure of a paper as rows × columns of experiments, with its printed numbers and its claims.

title = "…"                                what it is
protocol = "flayer"                        how the paper sets up and evaluates its experiments
readings = ["trained"]                     other measures that the printed accuracy may be, if the paper does not say
tuned = true                               the learning rate of every row is chosen on validation data, column by column
paper_seeds = 5                            over how many runs the paper averages, if it says so
[settings]                                 of all cells, as "table.key" = value
[[columns]] name, settings                 and `smoke`, additional settings at scale smoke
[[rows]]    name, settings, printed = {column = number}; or `missing = "method"` if the catalogue lacks it
[scales.smoke] seeds, settings, columns    what is run, also at short and headline; `trials` learning rates, if tuned;
                                           `minutes` that it takes on an H200, estimated
[[claims]]  says, kind, …                  written before the run, see `claims`
[[unjudged]] says, why                     claims that no number of a run can judge

Settings apply in the order recipe, column, row, scale, command; a later one replaces an earlier one. `flayer.s` is an
option of that method only, and of combinations with it such as `fedper+flayer`. Another model or partition drops the
options of the one before. A row that sets `evaluate.stage = "deployed"` is fine-tuned for every score: a scale scores
it at the end and half-way only, or at the end if the last round counts, unless the command says `evaluate.every`.
"""

import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

from stratafl.algorithms import ALGORITHMS
from stratafl.config.experiment import Experiment, from_tables, with_values
from stratafl.config.setting_tables import Settings
from stratafl.core.annotations import Range, checked
from stratafl.core.records import from_settings
from stratafl.errors import RecordError, StrataError, unknown
from stratafl.recipes.claims import MEASURES, REFERENCE, Claim, UnjudgedClaim
from stratafl.recipes.recorded import SCALES, recipe_names

FULL = "scale 'full' is now 'headline': the paper's own rounds on one column; name other columns with --columns"
SCORES = {"last": 1, "best": 2}  # of a row that is fine-tuned before it is scored: at the end, and also half-way
EXTENSIONS = ("flayer", "lag")  # what follows "+" in the name of a combination
T = TypeVar("T")


@dataclass(frozen=True)
class Column:
    """Settings with which all rows are run."""

    name: str
    settings: Settings = field(default_factory=dict)
    smoke: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A method or variant, and the numbers in the paper for it, by column."""

    name: str
    settings: Settings = field(default_factory=dict)
    printed: Mapping[str, Any] = field(default_factory=dict)
    also: Mapping[str, Any] = field(default_factory=dict)  # printed numbers of other measures than the score
    columns: list[str] | None = None  # in which it is run; None: in all
    control: bool = False  # not in the paper, so it is no rival of any row
    missing: str | None = None  # its method, if the catalogue lacks it

    def prints(self, measure: str) -> Mapping[str, float]:
        """The numbers in the paper for a measure, by column."""
        return self.printed if measure == "score" else self.also.get(measure, {})

    def runs(self, column: str) -> bool:
        return self.missing is None and (self.columns is None or column in self.columns)


@dataclass(frozen=True)
class Scale:
    """How many seeds and columns are run, and with which settings."""

    seeds: Annotated[int, Range(least=1, most=10_000)] = 1  # number of runs of each cell
    settings: Settings = field(default_factory=dict)
    columns: list[str] | None = None  # None: all
    stand_in: str | None = None  # what replaces the paper's data and model; its numbers do not compare
    trials: Annotated[int, Range(least=1, most=1000)] = 6  # learning rates that are tried for each row, if it is tuned
    minutes: Annotated[float, Range(least=0)] | None = None  # estimated, of all its runs on an H200


@dataclass(frozen=True)
class RecipeCell:
    """One row in one column with one seed."""

    row: str
    column: str
    seed: int
    experiment: Experiment


@dataclass(frozen=True)
class Recipe:
    """A table or figure of a paper."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    scales: Mapping[str, Scale]
    claims: tuple[Claim, ...]
    protocol: str = "clean"
    settings: Settings = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    readings: tuple[str, ...] = ()
    source: str | None = None  # the file of a recipe of your own
    tuned: bool = False  # whether the learning rate of each row is chosen on validation data
    paper_seeds: int | None = None  # number of runs over which the paper averages, if it says so
    unjudged: tuple[UnjudgedClaim, ...] = ()
    left_out: tuple[str, ...] = ()  # rows and columns that you did not ask for
    rows_left_out: tuple[Row, ...] = ()

    @property
    def measures(self) -> list[str]:
        """The score, the other measures in the paper or its claims, and those that its numbers may be."""
        shown = {"score", *self.readings, *(claim.measure for claim in self.claims)}
        return [name for name in MEASURES if name in shown or any(row.prints(name) for row in self.rows)]

    @property
    def runnable(self) -> list[Row]:
        return [row for row in self.rows if row.missing is None]

    def at(self, scale: str) -> Scale:
        if scale not in self.scales:
            if scale == "full":
                raise RecordError(FULL)
            raise unknown("scale", scale, [name for name in SCALES if name in self.scales])
        return self.scales[scale]

    def narrowed(self, rows: str, columns: str) -> "Recipe":
        """The recipe with these rows and columns alone, also columns that a scale leaves out; with none, with all.

        Names are separated by commas, and may have commas in them.
        """
        existing = {"row": [row.name for row in self.rows], "column": [column.name for column in self.columns]}
        asked = {"row": _names("row", rows, existing["row"]), "column": _names("column", columns, existing["column"])}
        chosen = {kind: names or existing[kind] for kind, names in asked.items()}
        left = [f"{kind} {name}" for kind, names in existing.items() for name in names if name not in chosen[kind]]
        scales = {name: replace(scale, columns=asked["column"]) for name, scale in self.scales.items()}
        return replace(
            self,
            rows=tuple(row for row in self.rows if row.name in chosen["row"]),
            columns=tuple(column for column in self.columns if column.name in chosen["column"]),
            scales=scales if asked["column"] else self.scales,
            left_out=tuple(left),
            rows_left_out=tuple(row for row in self.rows if row.name not in chosen["row"]),
        )

    def columns_at(self, scale: str) -> list[str]:
        return self.at(scale).columns or [column.name for column in self.columns]

    def cells(self, scale: str, more: Settings = MappingProxyType({}), seeds: int | None = None) -> list[RecipeCell]:
        """The cells of a scale, seed by seed, so that an early stop leaves numbers for every row and column."""
        run = set(self.columns_at(scale))
        return [
            RecipeCell(row.name, column.name, seed, self._experiment(row, column, {**more, "run.seed": seed}, scale))
            for seed in range(seeds or self.at(scale).seeds)
            for column in self.columns
            if column.name in run
            for row in self.runnable
            if row.runs(column.name)
        ]

    def stated(self, row: str, column: str) -> Experiment:
        """The experiment without the settings of any scale: what the paper ran, as far as it says so."""
        (asked_row,) = (each for each in self.rows if each.name == row)
        (asked_column,) = (each for each in self.columns if each.name == column)
        return self._experiment(asked_row, asked_column)

    def rivals(self, row: str, column: str) -> list[str]:
        """All other rows of the paper in a column, also those that were not asked for or have no method."""
        every = [each for each in (*self.rows, *self.rows_left_out) if not each.control and each.name != row]
        return [each.name for each in every if each.columns is None or column in each.columns]

    def _experiment(
        self, row: Row, column: Column, more: Settings = MappingProxyType({}), scale: str | None = None
    ) -> Experiment:
        stand_in = column.smoke if scale == "smoke" else {}
        settings_of_scale = self.at(scale).settings if scale else {}
        layers = (self.settings, column.settings, stand_in, row.settings, settings_of_scale)
        merged = {key: value for layer in layers for key, value in layer.items()}
        method, data = merged.get("algorithm.name"), more.get("data.name", merged.get("data.name"))
        # Protocol, method and data come first: they decide the defaults, which must not replace what a layer sets.
        chosen = {"run.protocol": self.protocol, "algorithm.name": method, "data.name": data}
        chosen["evaluate.metric"] = "plain"  # papers print accuracies
        experiment = with_values(from_tables({}), {key: value for key, value in chosen.items() if value is not None})
        for layer in layers:
            settings = {k: v for k, v in _for(method, layer).items() if k not in ("algorithm.name", "data.name")}
            experiment = with_values(experiment, settings) if settings else experiment
        experiment = with_values(experiment, _for(method, more))
        is_fine_tuned = row.settings.get("evaluate.stage") == "deployed"
        return _scored_seldom(experiment) if scale and is_fine_tuned and "evaluate.every" not in more else experiment


def _scored_seldom(experiment: Experiment) -> Experiment:
    """The experiment, with every client fine-tuned only for the scores that count, of which there are `SCORES`."""
    scores = SCORES.get(experiment.evaluate.select)
    every = experiment.evaluate.every if scores is None else -(-experiment.run.rounds // scores)
    return with_values(experiment, {"evaluate.every": every})


def _for(method: str | None, settings: Settings) -> Settings:
    """The settings without options of other methods; those of each part of a combination are options of it."""
    parts, applicable = (method or "").split("+"), dict[str, Any]()
    for path, value in settings.items():
        table, _, key = path.partition(".")
        if table in parts:
            applicable[f"algorithm.{key}"] = value
        elif table not in ALGORITHMS and table not in EXTENSIONS:
            applicable[path] = value
    return applicable


def recipes(name: str) -> list[Recipe]:
    """The recipe `paper/table`, all recipes of a paper, or the recipe in a file `table.toml`."""
    if name.endswith(".toml"):
        return [_own(Path(name))]
    names = recipe_names()
    papers = sorted({each.partition("/")[0] for each in names})
    chosen = [each for each in names if name in (each, each.partition("/")[0])]
    if not chosen:
        raise unknown("recipe", name, [*papers, *names])
    folder = files("stratafl.recipes")
    return [parse_recipe(each, folder.joinpath(f"{each}.toml").read_text("utf-8")) for each in chosen]


def _own(path: Path) -> Recipe:
    try:
        return replace(parse_recipe(f"own/{path.stem}", path.read_text("utf-8")), source=str(path.resolve()))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise RecordError(f"the recipe '{path}' cannot be read: {why}") from error


def parse_recipe(name: str, text: str) -> Recipe:
    """A recipe from its TOML; unknown keys and names are refused."""
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
    unjudged: list[Any] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)
    readings: list[Any] = field(default_factory=list)
    tuned: bool = False
    paper_seeds: Annotated[int, Range(least=1, most=10_000)] | None = None


def _recipe(name: str, table: dict[str, Any]) -> Recipe:
    file = from_settings("recipe", _File, table)

    def records(key: str, kind: type[T]) -> tuple[T, ...]:
        return tuple(from_settings(key, kind, each) for each in getattr(file, key))

    for key in ("title", "columns", "rows", "scales"):
        if not table[key]:
            raise RecordError(f"'{key}' is empty; a recipe needs it (docs/guide/recipes.md has an example)")
    scales = {scale: from_settings(scale, Scale, each) for scale, each in file.scales.items()}
    columns, rows, claims = records("columns", Column), records("rows", Row), records("claims", Claim)
    texts = tuple(map(str, file.notes)), tuple(map(str, file.readings))
    tables = (columns, rows, scales, claims, file.protocol, file.settings)
    unjudged = records("unjudged", UnjudgedClaim)
    recipe = Recipe(
        name, file.title, *tables, *texts, tuned=file.tuned, paper_seeds=file.paper_seeds, unjudged=unjudged
    )
    _check(recipe)
    return recipe


def _check(recipe: Recipe) -> None:
    columns, rows = [column.name for column in recipe.columns], [row.name for row in recipe.rows]
    _different("columns", columns)
    _different("rows", rows)
    for scale, settings in recipe.scales.items():
        if scale not in SCALES:
            raise RecordError(FULL) if scale == "full" else unknown("scale", scale, SCALES)
        _known("column", settings.columns or [], columns)
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
    if "relative" in recipe.measures and REFERENCE not in rows:
        raise RecordError(f"'relative' divides by the seconds of the row '{REFERENCE}', which is missing; add it")


def _different(kind: str, names: list[str]) -> None:
    for name, count in Counter(names).items():
        if count > 1:
            raise RecordError(f"{count} {kind} have the same name '{name}'; give each its own")


def _known(kind: str, names: list[str], allowed: list[str]) -> None:
    for name in names:
        if name not in allowed:
            raise unknown(kind, str(name), allowed)


def _names(kind: str, text: str, allowed: list[str]) -> list[str]:
    """Names out of a list with commas, in which a name may have commas itself: the longest that is known counts."""
    parts, names = [part.strip() for part in text.split(",") if part.strip()], list[str]()
    while parts:
        several = [", ".join(parts[:length]) for length in range(len(parts), 0, -1)]
        name = next((name for name in several if name in allowed), None)
        if name is None:
            raise unknown(kind, parts[0], allowed)
        names.append(name)
        parts = parts[name.count(",") + 1 :]
    return names
