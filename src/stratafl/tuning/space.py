"""The search space of a method: the learning rate, and every number whose annotation says where to look (`Tune`)."""

import inspect
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from stratafl.algorithms.declaration import GIVEN, Hyperparameter, hyperparameter
from stratafl.config.assemble import builder_of, completed
from stratafl.config.experiment import Experiment, to_tables
from stratafl.config.setting_tables import TABLES, Settings, parse_settings
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.core.annotations import Range, Tune
from stratafl.errors import RecordError, shown
from stratafl.policies import LocalTraining
from stratafl.runs.comparison import METHOD_TABLES

LR = "train.lr"
OPTION_PREFIX = "algorithm."  # before the options of a method
Grids = Mapping[str, Sequence[Any]]  # values by `table.key`, or by `METHOD.option`
NO_GRIDS: Grids = MappingProxyType({})


@dataclass(frozen=True)
class Dimension:
    """A setting that is looked for: in its range, among its choices, or exactly at the values given."""

    path: str  # table.key
    default: Any  # None: what the method does without it
    tune: Tune | None
    limits: Range | None = None
    whole: bool = False
    values: tuple[Any, ...] = ()

    @property
    def numeric(self) -> bool:
        """Whether its values have an order, so that one of them can be the lowest."""
        if self.values:
            return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self.values)
        return self.tune is not None and not self.tune.choices


def search_space(
    experiment: Experiment,
    only: Sequence[str] = (),
    grids: Grids = NO_GRIDS,
    trust: Trust | bool = NO_TRUST,
) -> tuple[Dimension, ...]:
    """What is looked for with the method of an experiment, the learning rate first.

    `only` and `grids` name settings as `table.key` or `METHOD.option`; those of other methods have no effect. A setting
    of a grid needs no declared range.
    """
    name = experiment.algorithm.name
    values_by_path = {_path(path, name): tuple(values) for path, values in grids.items()}
    wanted = {_path(path, name) for path in only}
    tables = to_tables(completed(experiment, trust))
    flat = {f"{table}.{key}": value for table, keys in tables.items() for key, value in keys.items()}
    rate = hyperparameter("lr", typing.get_type_hints(LocalTraining, include_extras=True)["lr"], None)
    declared = {LR: rate, **{f"{OPTION_PREFIX}{each.name}": each for each in hyperparameters(name, trust)}}
    paths = [path for path, each in declared.items() if each.tune is not None or path in values_by_path]
    paths += [path for path in values_by_path if path not in declared and not _of_another(path)]
    for path in paths:
        if not is_own(path):
            raise RecordError(
                f"{shown(path)} cannot be tuned, because all trials share it: tune METHOD.option or settings of "
                + " and ".join(f"[{table}]" for table in METHOD_TABLES)
            )
    return tuple(
        _dimension(path, flat.get(path), declared.get(path), values_by_path.get(path, ()))
        for path in paths
        if not wanted or path in wanted or path in values_by_path
    )


def hyperparameters(name: str, trust: Trust | bool = NO_TRUST) -> list[Hyperparameter]:
    """The options of a method: of the catalogue, a composition or your own, as far as they are annotated."""
    builder = builder_of(name, trust)
    try:
        hints = typing.get_type_hints(builder, include_extras=True)
        options = inspect.signature(builder).parameters.values()
    except (TypeError, ValueError, NameError):  # a person's own builder may be annotated with anything
        return []
    return [hyperparameter(p.name, hints[p.name], p.default) for p in options if p.name in hints and p.name != GIVEN]


def parse_grids(typed: Sequence[str]) -> dict[str, list[Any]]:
    """Values as a person types them: `train.lr=0.001,0.01,0.1`."""
    grids: dict[str, list[Any]] = {}
    for grid in typed:
        path, _, texts = grid.partition("=")
        values = [v for text in texts.split(",") if text.strip() for v in parse_settings([f"{path}={text}"]).values()]
        if not values or len({str(value) for value in values}) < len(values):
            raise RecordError(f"a grid is written table.key=value,value with different values, not '{shown(grid)}'")
        grids[path.strip()] = values
    return grids


def own_settings(method: str, settings: Settings) -> dict[str, Any]:
    """The settings of one method as a comparison takes them: `METHOD.option`, `METHOD.train.lr`."""
    return {f"{method}.{path.removeprefix(OPTION_PREFIX)}": value for path, value in settings.items()}


def is_own(path: str) -> bool:
    """Whether methods and trials may differ in a setting: all share data, model, rounds, seed and evaluation."""
    table, _, key = path.partition(".")
    return f"{table}." == OPTION_PREFIX and key not in ("", "name") if table not in METHOD_TABLES else key != ""


def _dimension(path: str, default: Any, declared: Hyperparameter | None, values: tuple[Any, ...]) -> Dimension:
    if declared is None:
        return Dimension(path, default, None, values=values)
    return Dimension(path, default, declared.tune, declared.limits, declared.type == "int", values)


def _path(path: str, method: str) -> str:
    """`METHOD.option` as the key of the table that it is in."""
    option = path.removeprefix(f"{method}.")
    if option == path:
        return path
    return option if option.partition(".")[0] in METHOD_TABLES else f"{OPTION_PREFIX}{option}"


def _of_another(path: str) -> bool:
    return path.partition(".")[0] not in TABLES
