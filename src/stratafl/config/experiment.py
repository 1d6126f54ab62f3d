"""An experiment as you write it: tables ↔ TOML, with every key known and every value checked.

    [algorithm]            [train]          [model]         [data]                  [run]
    name = "fedper"        lr = 0.05        name = "mlp"    name = "digits"         rounds = 20
    personal = "head"      epochs = 1                       partition = "dirichlet" participation = 1.0

`setting_tables` has everything that can be set. An algorithm or a model may also be a path, `package.module:name`, and
data a file or a folder, `samples.npz`, `photos/`.
"""

import dataclasses
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from stratafl.algorithms import ALGORITHMS
from stratafl.algorithms.composition import PLUS, is_composition
from stratafl.config.migrations import migrate
from stratafl.config.protocols import PROTOCOLS
from stratafl.config.setting_tables import (
    DIVIDING,
    READING_KEYS,
    TABLES,
    AlgorithmTable,
    DataTable,
    EvaluateTable,
    LogTable,
    ModelTable,
    RunTable,
    ServerTable,
    Settings,
    StopTable,
    parse_settings,
    partition_of,
    reading_of,
    shift_of,
    time_of,
)
from stratafl.core.annotations import FilePath, parts, said
from stratafl.core.records import from_settings, keys_of, record, to_settings
from stratafl.data import PARTITIONS
from stratafl.data.loading import check_name, own_texts
from stratafl.errors import RecordError, StrataError, UnknownNameError, shown, unknown
from stratafl.files import read_plain
from stratafl.policies import LocalTraining

T = TypeVar("T")
MAX_CONFIG_BYTES = 1 << 20
# Keys that came later, as runs had them before.
BEFORE = {"data": {"split": "random"}, "evaluate": {"metric": "plain", "ties": "first"}}
_CODE = ("algorithm.name", "model.name")  # what may be a path `package.module:name`
_PATHS = (*_CODE, "evaluate.metric")  # … without options
_CHOICES = (*_CODE, "data.partition")  # what has options of its own
# What other settings have defaults by: the protocol, the model, the data and how they are read.
_DECIDING = ("run.protocol", "model.name", "data.name", *(f"data.{key}" for key in READING_KEYS))


@record
class Experiment:
    """A complete configuration."""

    algorithm: AlgorithmTable = AlgorithmTable()
    train: LocalTraining = LocalTraining()
    server: ServerTable = ServerTable()
    model: ModelTable = ModelTable()
    data: DataTable = DataTable()
    run: RunTable = RunTable()
    evaluate: EvaluateTable = EvaluateTable()
    stop: StopTable = StopTable()
    log: LogTable = LogTable()

    def __post_init__(self) -> None:
        data, stop, evaluate = self.data, self.stop, self.evaluate
        if evaluate.select == "best" and not evaluate.test:
            raise RecordError("evaluate.select = 'best' uses test samples: set it to 'validation' or 'last'")
        if self.train != from_settings("train", LocalTraining, to_settings(self.train)):
            raise RecordError(f"train may only set {', '.join(keys_of(LocalTraining))} in a configuration")
        check_name(data.name)
        partition_of(data)
        shift_of(data, 0)
        time_of(self.run)
        if (stop.target is not None or stop.patience is not None) and data.validation == 0:
            raise RecordError("stop needs validation data: set data.validation, such as 0.1")
        if self.evaluate.guard and data.validation == 0:
            raise RecordError("the guard chooses on validation samples: set data.validation, such as 0.1")


def from_tables(tables: Mapping[str, Any], look: bool = False) -> Experiment:
    """An experiment from plain tables; unknown tables and keys are refused with the nearest match.

    What they leave open is as their protocol has it, or their data set, or else at its default. `look`: whether a
    user's own file may be opened to see if it holds texts; stored tables leave nothing open, and an invitation may not.
    """
    for name, table in tables.items():
        if name not in TABLES:
            raise unknown("table", name, TABLES)
        if not isinstance(table, Mapping):
            raise RecordError(f"[{name}] must be a table of keys, not {said(table)}")
    values = {name: tables.get(name, {}) for name in TABLES}
    run = from_settings("run", RunTable, values["run"])
    method = from_settings("algorithm", AlgorithmTable, values["algorithm"]).name
    data = from_settings("data", DataTable, values["data"])
    model, texts = values["model"].get("name"), own_texts(data.name, reading_of(data, 0)) if look else None
    usual = PROTOCOLS[run.protocol].tables(method, data.name, model, None if texts is None else texts.vocabulary)
    usual["data"] = _divided_anew(usual.get("data", {}), data.partition)
    return Experiment(
        **{name: from_settings(name, cls, {**usual.get(name, {}), **values[name]}) for name, cls in TABLES.items()}
    )


def to_tables(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """The complete configuration as plain tables; keys at None are left out."""
    return {name: to_settings(getattr(experiment, name)) for name in TABLES}


def read_toml(path: Path, *, plain: bool = False) -> dict[str, Any]:
    """The tables of a TOML file; a `plain` one is no link: a person's own file may be one, a run's may not."""
    try:
        if plain:
            data = read_plain(path, MAX_CONFIG_BYTES)
        else:
            if path.exists() and not path.is_file():
                raise RecordError(f"'{path}' is not a file: give a TOML file")
            with path.open("rb") as file:
                data = file.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            raise RecordError(f"'{path}' is too large: a configuration has at most {MAX_CONFIG_BYTES:,} bytes")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise RecordError(f"cannot read '{path}': {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits, and lists without end
        raise RecordError(f"'{path}' is not TOML: {shown(error, 400)}") from error


def load_experiment(path: Path, settings: Settings = MappingProxyType({})) -> Experiment:
    """The experiment in a TOML file, of this version or an older one.

    `settings` are what will change it. Another protocol or other data in them have other defaults, so they are put into
    the tables before: afterwards, a value of the file cannot be told from a default.
    """

    def read(tables: Mapping[str, Any]) -> tuple[Experiment, dict[str, Any]]:
        migrated = migrate(tables)
        return from_tables(migrated, look=True), migrated

    experiment, tables = read_as(path, read)
    if not settings.keys() & {*_DECIDING}:
        return experiment
    return from_tables(_decided(tables, settings), look=True)


def load_stored(path: Path) -> Experiment:
    """The experiment that a run was made with."""
    return read_as(path, from_stored, plain=True)


def from_stored(tables: Mapping[str, Any]) -> Experiment:
    """The experiment of tables that were written with a run: what they do not say is as it was then."""
    tables = migrate(tables, stored=True)
    if not all(isinstance(tables.get(name, {}), Mapping) for name in BEFORE):
        return from_tables(tables)  # which raises the error
    return from_tables({**tables, **{name: {**then, **tables.get(name, {})} for name, then in BEFORE.items()}})


def read_as(path: Path, make: Callable[[Mapping[str, Any]], T], *, plain: bool = False) -> T:
    """What `make` gives for the tables of a TOML file; its errors name the file."""
    tables = read_toml(path, plain=plain)
    try:
        return make(tables)
    except StrataError as error:
        raise type(error)(f"'{path}': {error}") from error


def with_settings(experiment: Experiment, typed: Iterable[str]) -> Experiment:
    """The experiment with settings as a person types them, `table.key=value`."""
    return with_values(experiment, parse_settings(typed))


def with_values(experiment: Experiment, settings: Settings) -> Experiment:
    """The experiment with these settings; None is the default of a key that may be none."""
    tables = to_tables(experiment)
    if settings.keys() & {*_DECIDING}:
        tables = _open_again(experiment, settings)
    for path in sorted(settings, key=lambda path: path not in _CHOICES):  # whose options may come before
        (name, _, key), value = path.partition("."), settings[path]
        table = "algorithm" if name in _method_names(tables["algorithm"].get("name")) else name
        if table in ALGORITHMS:
            method = shown(tables["algorithm"]["name"])
            raise UnknownNameError(f"{table}.{shown(key)} is an option of {table}, but the method is {method}")
        if table not in TABLES:
            raise unknown("table", table, TABLES)
        if path in _CODE and tables[table]["name"] != value:
            tables[table] = {}  # without the options of another method or model
        if path == "data.partition" and tables[table]["partition"] != value:
            tables[table] = _divided_anew(tables[table], value)
        tables[table][key] = value
    return from_tables(tables)


def _method_names(name: Any) -> tuple[str, ...]:
    """What its options may be written after: the method, and what a composition is made of."""
    return (name, *name.split(PLUS)) if isinstance(name, str) and is_composition(name) else (name,)


def names_code(experiment: Experiment) -> bool:
    """Whether it names code by a path `package.module:name`, which has to be trusted when it comes from a file."""
    return any(":" in name for name in (experiment.algorithm.name, experiment.model.name, experiment.evaluate.metric))


def named_files(experiment: Experiment) -> dict[str, str]:
    """The settings that name a file or folder, with what they name."""
    files = dict[str, str]()
    for name, table in to_tables(experiment).items():
        for key, setting in keys_of(TABLES[name]).items():
            markers = [marker for marker in parts(setting.hint)[1] if isinstance(marker, FilePath)]
            if markers and key in table and table[key] not in markers[0].others:
                files[f"{name}.{key}"] = table[key]
    return files


def paths_in(settings: Settings) -> list[str]:
    """The names of methods, models and metrics in settings, which may be paths."""
    return [settings[path] for path in _PATHS if isinstance(settings.get(path), str)]


def _divided_anew(table: Mapping[str, Any], partition: Any) -> dict[str, Any]:
    """The table of the data for another partition, without the keys of the one before."""
    kind = PARTITIONS.get(str(partition), PARTITIONS["dirichlet"])
    options = {field.name for field in dataclasses.fields(typing.cast(Any, kind))}
    keys = keys_of(DataTable)
    return {key: v for key, v in table.items() if key in keys and (key in options or key not in DIVIDING)}


def _open_again(experiment: Experiment, settings: Settings) -> dict[str, dict[str, Any]]:
    """The tables with other data, another model or protocol: what is as those before have it is left open to them."""
    today, plain = to_tables(experiment), to_tables(Experiment())
    method, model = {"algorithm": {"name": experiment.algorithm.name}}, experiment.model.name
    deciding = (*_DECIDING, "data.partition")
    decided = {path: today[path.partition(".")[0]].get(path.partition(".")[2]) for path in _DECIDING}
    before = _decided(method, {path: value for path, value in decided.items() if value is not None})
    before["data"]["partition"] = experiment.data.partition
    usual = to_tables(from_tables(before, look=True))
    chosen = model if from_tables({**before, "model": {}}, look=True).model.name != model else None
    tables = {
        name: {
            key: value
            for key, value in table.items()
            if value != (plain if f"{name}.{key}" in deciding else usual)[name].get(key)
        }
        for name, table in today.items()
    }
    tables["model"].pop("name", None)
    tables["model"] |= {"name": chosen} if chosen else {}
    tables["run"]["protocol"], tables["algorithm"]["name"] = experiment.run.protocol, experiment.algorithm.name
    return to_tables(from_tables(_decided(tables, settings), look=True))


def _decided(tables: Mapping[str, Mapping[str, Any]], settings: Settings) -> dict[str, dict[str, Any]]:
    """The tables with those of the settings by which others have defaults; options of another model are left out."""
    decided = {name: dict(table) for name, table in tables.items()}
    for path in (path for path in _DECIDING if path in settings):
        name, _, key = path.partition(".")
        if path == "model.name" and decided.get(name, {}).get(key) not in (None, settings[path]):
            decided[name] = {}
        decided.setdefault(name, {})[key] = settings[path]
    return decided
