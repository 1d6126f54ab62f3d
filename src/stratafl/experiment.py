"""An experiment as a person writes it: frozen tables ↔ TOML, every key known, every value checked.

    [algorithm]            [train]          [model]         [data]                  [run]
    name = "fedper"        lr = 0.05        name = "mlp"    name = "digits"         rounds = 20
    personal = "head"      epochs = 1                       partition = "dirichlet" participation = 1.0

Further keys of `[algorithm]` and `[model]` are options of the method and of the model.
"""

import dataclasses
import inspect
import operator
import tomllib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratafl.algorithm import Algorithm
from stratafl.algorithms import ALGORITHMS
from stratafl.data import PARTITIONS, Federation, digits
from stratafl.errors import RecordError, unknown
from stratafl.execute import Simulation, simulation
from stratafl.models import MODELS, build
from stratafl.policies import SGD, Constant, Exponential

DATASETS = {"digits": digits}
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "least": ("at least", operator.ge),
    "most": ("at most", operator.le),
    "above": ("above", operator.gt),
}


def setting(default: Any, **limits: Any) -> Any:
    """A key with its default and limits: `least`, `most`, `above`, or `among`."""
    return field(default=default, metadata=limits)


@dataclass(frozen=True)
class AlgorithmTable:
    """Which method, and its options."""

    name: str = setting("fedper", among=ALGORITHMS)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainTable:
    """Local descent; `decay` multiplies the rate after each round."""

    lr: float = setting(0.05, least=0)
    epochs: int = setting(1, least=1)
    batch: int = setting(10, least=1)
    momentum: float = setting(0.0, least=0, most=1)
    weight_decay: float = setting(0.0, least=0)
    clip: float | None = setting(None, above=0)
    decay: float = setting(1.0, above=0, most=1)
    drop_last: bool = False


@dataclass(frozen=True)
class ModelTable:
    """Which model, its options, and a file with initial weights."""

    name: str = setting("mlp", among=MODELS)
    weights: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataTable:
    """Which data, over how many clients, divided how."""

    name: str = setting("digits", among=DATASETS)
    clients: int = setting(20, least=1)
    partition: str = setting("dirichlet", among=PARTITIONS)
    alpha: float = setting(0.1, above=0)
    minimum: int = setting(10, least=1)
    per_client: int = setting(2, least=1)
    validation: float = setting(0.0, least=0, most=0.9)
    test: float = setting(0.25, least=0, most=0.9)


@dataclass(frozen=True)
class RunTable:
    """How long, with whom, on what."""

    rounds: int = setting(20, least=1)
    participation: float = setting(1.0, above=0, most=1)
    seed: int = setting(0, least=0)
    buffers: str = setting("follow", among=("follow", "local"))
    granularity: str = setting("module", among=("tensor", "module", "block"))
    device: str = "cpu"
    engine: str = setting("auto", among=("auto", "stacked", "loop"))
    memory: int | None = setting(None, least=1)


@dataclass(frozen=True)
class Experiment:
    """A complete configuration."""

    algorithm: AlgorithmTable = AlgorithmTable()
    train: TrainTable = TrainTable()
    model: ModelTable = ModelTable()
    data: DataTable = DataTable()
    run: RunTable = RunTable()


TABLES: dict[str, type[Any]] = {f.name: type(f.default) for f in dataclasses.fields(Experiment)}


def from_tables(tables: Mapping[str, Any]) -> Experiment:
    """An experiment from plain tables; unknown tables and keys are refused with the nearest match."""
    made = {}
    for name, table in tables.items():
        if name not in TABLES:
            raise unknown("table", name, TABLES)
        if not isinstance(table, Mapping):
            raise RecordError(f"[{name}] is a table of keys, not {table!r}")
        made[name] = _table(name, TABLES[name], table)
    return Experiment(**made)


def load(path: Path) -> Experiment:
    """The experiment in a TOML file."""
    try:
        return from_tables(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise RecordError(f"cannot read '{path}': {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecordError(f"'{path}' is not TOML: {error}") from error


def to_tables(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """The complete configuration as plain tables; keys at None are left out."""
    tables = {}
    for name in TABLES:
        values = vars(getattr(experiment, name))
        options = values.get("options", {})
        plain = {key: value for key, value in values.items() if key != "options" and value is not None}
        tables[name] = {**plain, **options}
    return tables


def with_settings(experiment: Experiment, settings: Sequence[str]) -> Experiment:
    """The experiment with `table.key=value` settings, as the command takes them; values are TOML, or else text."""
    tables = to_tables(experiment)
    for given in settings:
        path, equals, text = given.partition("=")
        table, dot, key = path.strip().partition(".")
        if not (equals and dot and key):
            raise RecordError(f"a setting is written table.key=value, such as train.lr=0.1, not '{given}'")
        if table not in TABLES:
            raise unknown("table", table, TABLES)
        tables[table][key] = _value(text.strip())
    return from_tables(tables)


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _table(name: str, cls: type[Any], table: Mapping[str, Any]) -> Any:
    hints = typing.get_type_hints(cls)
    fields = {f.name: f for f in dataclasses.fields(cls) if f.name != "options"}
    known = {key: value for key, value in table.items() if key in fields}
    options = {key: value for key, value in table.items() if key not in fields}
    if options and "options" not in hints:
        raise unknown(f"key of [{name}]", next(iter(options)), fields)
    checked = {key: _checked(f"{name}.{key}", hints[key], fields[key].metadata, v) for key, v in known.items()}
    return cls(**checked, **({"options": options} if "options" in hints else {}))


def _checked(key: str, hint: Any, limits: Mapping[str, Any], value: Any) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if isinstance(value, int) and not isinstance(value, bool) and float in kinds:
        value = float(value)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = {float: "a number", int: "a whole number", str: "a text", bool: "true or false"}[kinds[0]]
        raise RecordError(f"{key} is {wanted}, not {value!r}")
    if "among" in limits and value not in limits["among"]:
        raise unknown(key, str(value), sorted(limits["among"]))
    for limit, (word, fits) in _LIMITS.items():
        if limit in limits and not fits(value, limits[limit]):
            raise RecordError(f"{key} must be {word} {limits[limit]}, not {value}")
    return value


def algorithm_of(experiment: Experiment) -> Algorithm:
    """The method with its options and the experiment's local descent."""
    table, train = experiment.algorithm, experiment.train
    builder = ALGORITHMS[table.name]
    accepted = [name for name in inspect.signature(builder).parameters if name != "train"]
    for option in table.options:
        if option not in accepted:
            raise unknown(f"option of {table.name}", option, accepted)
    numbers = {key: value for key, value in vars(train).items() if key != "decay"}
    schedule = Constant() if train.decay == 1 else Exponential(train.decay)
    return builder(**table.options, train=SGD(**numbers, schedule=schedule))


def federation_of(experiment: Experiment) -> Federation:
    """The data over its clients."""
    data = experiment.data
    partition = PARTITIONS[data.partition]
    accepted = {f.name for f in dataclasses.fields(partition)}
    options = {key: getattr(data, key) for key in ("alpha", "minimum", "per_client") if key in accepted}
    return DATASETS[data.name](
        clients=data.clients,
        partition=partition(**options),
        validation=data.validation,
        test=data.test,
        seed=experiment.run.seed,
    )


def simulation_of(experiment: Experiment) -> Simulation:
    """Everything put together."""
    federation, model, run = federation_of(experiment), experiment.model, experiment.run
    shape, classes = tuple(federation.x.shape[1:]), federation.classes
    return simulation(
        algorithm_of(experiment),
        federation,
        lambda: build(model.name, shape=shape, classes=classes or 1, **model.options),
        weights=model.weights,
        **vars(run),
    )
