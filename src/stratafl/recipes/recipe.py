"""A recipe: a table or figure of a paper as rows × columns of experiments, with what is printed and what is claimed.

title = "…"                                what it is
protocol = "flayer"                        how the paper sets up and reads its experiments
readings = ["trained"]                     measures that the printed accuracy may be as well, where the paper is silent
[settings]                                 of all cells, as "table.key" = value
[[columns]] name, settings                 and `smoke`, the settings that scale smoke has in addition
[[rows]]    name, settings, printed = {column = number}; or `missing = "method"` where we have none
[scales.smoke] seeds, settings, columns    and short, full: what is run; the settings go before all others
[[claims]]  says, kind, …                  written before the run, see `claims`

Settings of the recipe, column, row, scale and command, in this order, the later before the earlier. `flayer.s` is the
option of one method alone. Another model or partition leaves the options of the one before behind.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any

from stratafl.algorithms import ALGORITHMS
from stratafl.config.experiment import Experiment, with_values
from stratafl.config.settings import Settings
from stratafl.core.annotations import Range
from stratafl.errors import unknown
from stratafl.recipes.claims import MEASURES, Claim

SCALES = ("smoke", "short", "full")


@dataclass(frozen=True)
class Column:
    """A setting in which all rows are run."""

    name: str
    settings: Settings = field(default_factory=dict)
    smoke: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """A method or variant, and the numbers that the paper prints for it, by column."""

    name: str
    settings: Settings = field(default_factory=dict)
    printed: Mapping[str, Any] = field(default_factory=dict)
    also: Mapping[str, Any] = field(default_factory=dict)  # what is printed of other measures than the score
    columns: list[str] | None = None  # where it is run; None: everywhere
    control: bool = False  # not of the paper, so that it is nobody's rival
    missing: str | None = None  # the method that it needs and that is not in the catalogue

    def prints(self, measure: str) -> Mapping[str, float]:
        """What the paper prints of a measure, by column."""
        return self.printed if measure == "score" else self.also.get(measure, {})

    def runs(self, column: str) -> bool:
        """Whether it is run in a column."""
        return self.missing is None and (self.columns is None or column in self.columns)


@dataclass(frozen=True)
class Scale:
    """How much of it is run, and how long."""

    seeds: Annotated[int, Range(least=1, most=10_000)] = 1  # how many runs there are of each cell
    settings: Settings = field(default_factory=dict)
    columns: list[str] | None = None  # None: all of them
    stand_in: str | None = None  # what is run in place of the paper's data and model, so that no number compares


@dataclass(frozen=True)
class Cell:
    """One row in one column with one seed."""

    row: str
    column: str
    seed: int
    experiment: Experiment


@dataclass(frozen=True)
class Recipe:
    """A table or figure."""

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
    source: str | None = None  # the file of one that does not ship

    @property
    def measures(self) -> list[str]:
        """The score, what else the paper prints, and what else its numbers may be."""
        shown = ("score", *self.readings)
        return [name for name in MEASURES if name in shown or any(row.prints(name) for row in self.rows)]

    @property
    def runnable(self) -> list[Row]:
        """The rows whose methods we have."""
        return [row for row in self.rows if row.missing is None]

    def at(self, scale: str) -> Scale:
        """A scale by its name."""
        if scale not in self.scales:
            raise unknown("scale", scale, [name for name in SCALES if name in self.scales])
        return self.scales[scale]

    def columns_at(self, scale: str) -> list[str]:
        """The columns that are run at a scale."""
        return self.at(scale).columns or [column.name for column in self.columns]

    def cells(self, scale: str, more: Settings = MappingProxyType({}), seeds: int | None = None) -> list[Cell]:
        """What is run at a scale, seed by seed, so that what is stopped early has something of everything."""
        run = set(self.columns_at(scale))
        return [
            Cell(row.name, column.name, seed, self._experiment(row, column, scale, {**more, "run.seed": seed}))
            for seed in range(seeds or self.at(scale).seeds)
            for column in self.columns
            if column.name in run
            for row in self.runnable
            if row.runs(column.name)
        ]

    def _experiment(self, row: Row, column: Column, scale: str, more: Settings) -> Experiment:
        stand_in = column.smoke if scale == "smoke" else {}
        layers = (self.settings, column.settings, stand_in, row.settings, self.at(scale).settings)
        method = {key: value for each in layers for key, value in each.items()}.get("algorithm.name")
        first = {"run.protocol": self.protocol} | ({"algorithm.name": method} if method else {})
        made = with_values(Experiment(), first)
        for layer in layers:
            made = with_values(made, {k: v for k, v in _for(method, layer).items() if k != "algorithm.name"})
        return with_values(made, _for(method, more))


def _for(method: str | None, settings: Settings) -> Settings:
    """The settings without options of other methods."""
    tables = {path: path.partition(".")[0] for path in settings}
    return {path: settings[path] for path, table in tables.items() if table not in ALGORITHMS or table == method}
