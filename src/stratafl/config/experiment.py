"""An experiment as a person writes it: frozen tables ↔ TOML, every key known, every value checked.

    [algorithm]            [train]          [model]         [data]                  [run]
    name = "fedper"        lr = 0.05        name = "mlp"    name = "digits"         rounds = 20
    personal = "head"      epochs = 1                       partition = "dirichlet" participation = 1.0

Further keys of `[algorithm]`, `[model]` and `[data]` are options of the method, the model and the partition. An
algorithm or a model may also be a path, `package.module:name`, and data a file or a folder, `samples.npz`, `photos/`.
"""

import dataclasses
import json
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stratafl.algorithms import ALGORITHMS
from stratafl.config import settings
from stratafl.config.protocols import PROTOCOLS
from stratafl.config.settings import setting
from stratafl.data import PARTITIONS, Partition
from stratafl.data.labels import TARGETS
from stratafl.data.loading import check_name
from stratafl.data.reading import NORMALISED
from stratafl.data.splitting import SPLIT
from stratafl.errors import RecordError, StrataError, UnknownNameError, shown, unknown
from stratafl.files import read_plain
from stratafl.models import MODELS
from stratafl.runtime.precision import PRECISIONS
from stratafl.runtime.speed import CHOICES, CONVOLUTIONS

Setting = tuple[str, str, Any]  # table, key, value

MANY = 10**9  # more rounds, clients or samples than anybody can mean
LARGEST = 1 << 20  # bytes of a configuration
LOGGERS = ("tensorboard", "mlflow", "wandb")
_CHOICES = (("algorithm", "name"), ("model", "name"), ("data", "partition"))  # what has options of its own
BEFORE = {"split": "random"}  # keys of [data] that came later, as runs had them before
_CODE = (("algorithm", "name"), ("model", "name"))  # what may be a path `package.module:name`
_DIVIDING = ("alpha", "minimum", "per_client")  # keys of [data] that only some partitions listen to


@dataclass(frozen=True)
class AlgorithmTable:
    """Which method, and its options."""

    name: str = setting("fedper", "the method: a name of `strata list`, or `package.module:builder`", named=ALGORITHMS)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainTable:
    """Local descent; `decay` multiplies the rate after each round."""

    lr: float = setting(0.05, "learning rate", least=0, most=1e30)
    epochs: int = setting(1, "local epochs per round", least=1, most=MANY)
    batch: int = setting(10, "samples per batch", least=1, most=MANY)
    momentum: float = setting(0.0, "momentum of SGD, which starts anew each round", least=0, below=1)
    weight_decay: float = setting(0.0, "weight decay of SGD", least=0, most=1e6)
    clip: float | None = setting(None, "largest norm of a gradient", above=0, most=1e12)
    decay: float = setting(1.0, "the learning rate is multiplied by this after each round", above=0, most=1)
    drop_last: bool = setting(False, "leave out last batches that are not full")


@dataclass(frozen=True)
class ModelTable:
    """Which model, its head where that cannot be guessed, a file with initial weights, and its options."""

    name: str = setting("mlp", "the model: a name of `strata list`, or `package.module:Class`", named=MODELS)
    head: str | None = setting(None, "the module that is the head, where it cannot be found out")
    weights: str | None = setting(None, "a safetensors file with the initial weights")
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataTable:
    """Which data, over how many clients, divided how; `new clients` of them never take part in training.

    `partition = "auto"` keeps the clients that a file names, and else draws Dirichlet shares, or even ones where there
    are no classes; `seed` fixes the division while the seed of the run changes. Further keys are options of the
    partition.
    """

    name: str = setting("digits", "the data: a name of `strata data list`, or a file or folder, see [data](data.md)")
    path: str | None = setting(
        None, "a file or folder with the data set of that name, or with a folder of its name; none: from the hub"
    )
    label: str | None = setting(None, "the column with the labels of your own table; none: `label` or `y`")
    client: str | None = setting(None, "the column that says whose a sample of your own table is; none: `client`")
    group: str | None = setting(
        None,
        "a column of your own table, such as `patient_id`: samples with the same value stay on one side of the split; "
        "the data must name its clients",
    )
    targets: str = setting(
        "auto",
        "what is predicted of your own data; `auto`: classes where labels are names or whole numbers, else numbers; "
        "`scaled`: numbers with mean 0 and deviation 1 over what is trained on",
        among=TARGETS,
    )
    normalise: str = setting(
        "auto",
        "pixels of 8 or 16 bits as numbers: from −1 to 1, from 0 to 1, by each channel's mean and deviation, or as "
        "they are; a table of numbers by each column's mean and deviation over what is trained on; `auto`: `half` for "
        "images, else none",
        among=NORMALISED,
    )
    size: int | None = setting(None, "images are resized to a square of so many pixels", least=1, most=10_000)
    vocabulary: int | None = setting(None, "texts: so many tokens at most, the most frequent ones", least=4, most=MANY)
    owners: int | None = setting(
        None, "only so many of those whose samples they are, drawn by the seed", least=1, most=MANY
    )
    fewest: int | None = setting(None, "… of those with so many samples at least", least=1, most=MANY)
    most: int | None = setting(None, "… and so many at most", least=1, most=MANY)
    clients: int = setting(20, "how many clients share the data", least=1, most=MANY)
    new_clients: int = setting(0, "the last so many clients never take part in training", least=0, most=MANY)
    partition: str = setting(
        "auto",
        "how data is divided; `auto`: as a file says, or else `dirichlet`, or `iid` where there are no classes",
        among=("auto", *PARTITIONS),
    )
    alpha: float = setting(0.1, "concentration of Dirichlet shares; small is uneven", above=0, most=1e9)
    minimum: int | None = setting(
        None, "samples that each client has at least; none: as the partition says", least=1, most=MANY
    )
    per_client: int | None = setting(None, "classes per client; none: as the partition says", least=1, most=MANY)
    validation: float = setting(0.1, "share of each client's samples held out for validation", least=0, most=0.9)
    test: float = setting(
        0.25,
        "share of each client's samples held out for testing, unless the partition says who tests on what",
        above=0,
        most=0.9,
    )
    split: str = setting(
        "stratified",
        "how each client's samples are split: `stratified` by class (numbers by quantile), or at `random`",
        among=SPLIT,
    )
    seed: int | None = setting(
        None, "seed of the division, where it is to stay while `run.seed` changes", least=0, most=settings.WHOLE
    )
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunTable:
    """How long, with whom, on what; `checkpoint` counts rounds, 0 chooses so that saving takes little of the time."""

    protocol: str = setting("clean", "defaults of other settings, as a code base or a paper has them", among=PROTOCOLS)
    rounds: int = setting(20, "how many rounds", least=1, most=MANY)
    participation: float = setting(1.0, "share of the clients that take part in a round", above=0, most=1)
    seed: int = setting(0, "seed of everything random", least=0, most=settings.WHOLE)
    buffers: str = setting(
        "follow", "BatchNorm statistics follow their layer or stay with the client", among=("follow", "local")
    )
    granularity: str = setting("module", "what counts as a layer", among=("tensor", "module", "block"))
    device: str = setting("auto", "`auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1` …")
    engine: str = setting("auto", "all clients in one step, or client by client", among=("auto", "stacked", "loop"))
    precision: str = setting("fp32", "digits of products on a GPU: 24, 11 or 8 bits", among=PRECISIONS)
    compile: str = setting("auto", "compile steps; `auto`: on a GPU, if the run is long enough to pay", among=CHOICES)
    graphs: str = setting("auto", "capture steps and replay them; `auto`: on a GPU", among=CHOICES)
    convolutions: str = setting(
        "auto", "as products of shifted slices, or stock; `auto`: on a GPU as measured", among=CONVOLUTIONS
    )
    memory_limit: int | None = setting(
        None, "what the run may take: bytes, or a size such as `8GB` or `500MiB`", size=True
    )
    store: str = setting(
        "auto",
        "where clients' memories are kept between rounds; `auto`: by size",
        among=("auto", "device", "ram", "disk"),
    )
    checkpoint: int = setting(0, "rounds between checkpoints; 0: as often as takes 5 % of the time", least=0, most=MANY)


@dataclass(frozen=True)
class EvaluateTable:
    """When and on whom, and which of all the numbers is the score of a run.

    `clients` counts them (0: all; else a sample that stays the same).
    """

    every: int = setting(1, "rounds between evaluations; the last round always is", least=1, most=MANY)
    clients: int = setting(0, "evaluate so many clients, always the same ones; 0: all", least=0, most=MANY)
    select: str = setting(
        "validation",
        "the round that counts: by validation, by test accuracy (as many papers do), or the last",
        among=("validation", "best", "last"),
    )
    stage: str = setting(
        "deployed",
        "the models that count: as received, right after training, deployed, or the global one",
        among=("received", "trained", "deployed", "global"),
    )
    average: str = setting(
        "samples", "accuracy over all samples, or its mean over clients", among=("samples", "clients")
    )
    lab: int = setting(
        0, "rounds between looks at every layer (conflicts, CKA, weights …); 0: never", least=0, most=MANY
    )


@dataclass(frozen=True)
class StopTable:
    """When to stop early, by the validation accuracy of deployed models.

    At `target`, or when `patience` evaluated rounds brought no `margin` over the best before them.
    """

    target: float | None = setting(None, "stop when this validation accuracy is reached", above=0, most=1)
    patience: int | None = setting(
        None, "stop when so many evaluated rounds have brought no more than `margin`", least=1, most=MANY
    )
    margin: float = setting(0.005, "what counts as progress", least=0, most=1e12)


@dataclass(frozen=True)
class LogTable:
    """Where the lines of the rounds go besides the run directory."""

    to: tuple[str, ...] = setting((), "services that are told every round, as a list", each=LOGGERS)


@dataclass(frozen=True)
class Experiment:
    """A complete configuration."""

    algorithm: AlgorithmTable = AlgorithmTable()
    train: TrainTable = TrainTable()
    model: ModelTable = ModelTable()
    data: DataTable = DataTable()
    run: RunTable = RunTable()
    evaluate: EvaluateTable = EvaluateTable()
    stop: StopTable = StopTable()
    log: LogTable = LogTable()

    def __post_init__(self) -> None:
        data, stop = self.data, self.stop
        check_name(data.name)
        partition_of(data)
        if (stop.target is not None or stop.patience is not None) and data.validation == 0:
            raise RecordError("stop looks at validation accuracy: set data.validation, such as 0.1")


def partition_of(data: DataTable) -> Partition:
    """The partition with its options, of which `alpha`, `minimum` and `per_client` are keys of the table itself."""
    partition = PARTITIONS["dirichlet" if data.partition == "auto" else data.partition]
    hints = {name: hint for name, hint in typing.get_type_hints(partition.__init__).items() if name != "return"}
    own = {key: value for key, value in vars(data).items() if key != settings.OPTIONS}
    for key in data.options:
        if key not in hints:
            raise unknown("key of [data]", key, [*own, *(name for name in hints if name not in own)])
    given = {key: value for key, value in own.items() if key in hints and value is not None}
    made = {key: settings.checked(f"data.{key}", hints[key], value) for key, value in {**given, **data.options}.items()}
    return partition(**made)


def unheard(data: DataTable) -> list[str]:
    """Keys of the table that are set, but that other partitions listen to, and not this one."""
    heard, usual = vars(partition_of(data)), DataTable()
    return [key for key in _DIVIDING if key not in heard and getattr(data, key) != getattr(usual, key)]


TABLES: dict[str, type[Any]] = {f.name: type(f.default) for f in dataclasses.fields(Experiment)}


def from_tables(tables: Mapping[str, Any]) -> Experiment:
    """An experiment from plain tables; unknown tables and keys are refused with the nearest match.

    What they leave open is as their protocol has it, or else at its default.
    """
    for name, table in tables.items():
        if name not in TABLES:
            raise unknown("table", name, TABLES)
        if not isinstance(table, Mapping):
            raise RecordError(f"[{name}] is a table of keys, not {settings.said(table)}")
    given = {name: tables.get(name, {}) for name in TABLES}
    run = settings.from_table("run", RunTable, given["run"])
    method = settings.from_table("algorithm", AlgorithmTable, given["algorithm"]).name
    open_ones = PROTOCOLS[run.protocol].tables(method)
    made = {
        name: settings.from_table(name, cls, {**open_ones.get(name, {}), **given[name]}) for name, cls in TABLES.items()
    }
    return Experiment(**made)


def to_tables(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """The complete configuration as plain tables; keys at None are left out."""
    return {name: settings.to_table(getattr(experiment, name)) for name in TABLES}


def read_toml(path: Path, *, plain: bool = False) -> dict[str, Any]:
    """The tables of a TOML file; a `plain` one is no link: a person's own file may be one, a run's may not."""
    try:
        if plain:
            data = read_plain(path, LARGEST)
        else:
            if path.exists() and not path.is_file():
                raise RecordError(f"'{path}' is not a file: give a TOML file")
            with path.open("rb") as file:
                data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise RecordError(f"'{path}' is too large: a configuration has at most {LARGEST:,} bytes")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise RecordError(f"cannot read '{path}': {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of numbers with thousands of digits, and lists without end
        raise RecordError(f"'{path}' is not TOML: {shown(error, 400)}") from error


def load(path: Path) -> Experiment:
    """The experiment in a TOML file."""
    return _made(path, from_tables)


def load_stored(path: Path) -> Experiment:
    """The experiment that a run was made with."""
    return _made(path, from_stored, plain=True)


def from_stored(tables: Mapping[str, Any]) -> Experiment:
    """The experiment of tables that were written with a run: what they do not say is as it was then."""
    data = tables.get("data", {})
    if not isinstance(data, Mapping):
        return from_tables(tables)  # which says what is wrong
    return from_tables({**tables, "data": {**BEFORE, **data}})


def _made(path: Path, make: Callable[[Mapping[str, Any]], Experiment], *, plain: bool = False) -> Experiment:
    tables = read_toml(path, plain=plain)
    try:
        return make(tables)
    except StrataError as error:
        raise type(error)(f"'{path}': {error}") from error


def with_settings(experiment: Experiment, given: Sequence[str]) -> Experiment:
    """The experiment with `table.key=value` settings, as the command takes them; values are TOML, or else text."""
    return with_values(experiment, map(_parsed, given))


def with_values(experiment: Experiment, given: Iterable[Setting]) -> Experiment:
    """The experiment with these settings, whose values are taken as they are."""
    tables = to_tables(experiment)
    parsed = sorted(given, key=lambda each: each[:2] not in _CHOICES)  # whose options may come before
    for table, key, value in parsed:
        if (table, key) == ("run", "protocol"):
            tables = _open_again(experiment, value)
    for name, key, value in parsed:
        table = "algorithm" if name == tables["algorithm"].get("name") else name
        if table in ALGORITHMS:
            raise UnknownNameError(
                f"{table}.{shown(key)} is an option of {table}, the method is {shown(tables['algorithm']['name'])}"
            )
        if table not in TABLES:
            raise unknown("table", table, TABLES)
        if table in ("algorithm", "model") and key == "name" and tables[table]["name"] != value:
            tables[table] = {}  # the options of another method or model mean nothing here
        if (table, key) == ("data", "partition") and tables[table]["partition"] != value:
            tables[table] = _divided_anew(tables[table], value)
        tables[table][key] = value
    return from_tables(tables)


def as_typed(key: str, value: object) -> str:
    """The setting `table.key=value` whose value arrives as it is: a text may hold quotes, or look like a number."""
    if not isinstance(value, str):
        return f"{key}={value}"
    return f"{key}={json.dumps(value, ensure_ascii=False)}".replace("\x7f", "\\u007f")  # which TOML wants escaped


def names_code(experiment: Experiment) -> bool:
    """Whether it names code by a path `package.module:name`, which has to be trusted when it comes from a file."""
    return any(":" in getattr(experiment, table).name for table, _ in _CODE)


def paths_in(given: Sequence[str]) -> list[str]:
    """The names of methods and models in settings as the command takes them."""
    parsed = map(_parsed, given)
    return [value for table, key, value in parsed if (table, key) in _CODE and isinstance(value, str)]


def _divided_anew(table: Mapping[str, Any], partition: Any) -> dict[str, Any]:
    """The table of the data for another partition: what means nothing to it is left behind."""
    kind = PARTITIONS.get(str(partition), PARTITIONS["dirichlet"])
    heard = {f.name for f in dataclasses.fields(typing.cast(Any, kind))}
    known = settings.without_options(DataTable, table)
    return {key: value for key, value in known.items() if key in heard or key not in _DIVIDING}


def _open_again(experiment: Experiment, protocol: Any) -> dict[str, dict[str, Any]]:
    """The tables under another protocol: settings that are as the one before has them are left to it."""
    before = {"run": {"protocol": experiment.run.protocol}, "algorithm": {"name": experiment.algorithm.name}}
    usual = to_tables(from_tables(before))
    tables = {
        name: {key: value for key, value in table.items() if key not in usual[name] or value != usual[name][key]}
        for name, table in to_tables(experiment).items()
    }
    tables["run"]["protocol"], tables["algorithm"]["name"] = protocol, experiment.algorithm.name
    return to_tables(from_tables(tables))


def _parsed(given: str) -> Setting:
    path, equals, text = given.partition("=")
    table, dot, key = path.strip().partition(".")
    if not (equals and dot and key):
        raise RecordError(f"a setting is written table.key=value, such as train.lr=0.1, not '{shown(given)}'")
    return table, key, _value(text.strip(), _is_text(table, key))


def _is_text(table: str, key: str) -> bool:
    """Whether a setting is a text, whatever it looks like: a column may be called 2020, or true."""
    hint = typing.get_type_hints(TABLES[table]).get(key) if table in TABLES else None
    return hint is str or set(typing.get_args(hint)) == {str, types.NoneType}


def _value(text: str, is_text: bool) -> Any:
    """What was typed, as TOML or else as it is."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # also of numbers with thousands of digits, and lists without end
        return text
    plain = len(found) > 1 or (is_text and not isinstance(found["value"], str))  # a second line is no second key
    return text if plain else found["value"]
