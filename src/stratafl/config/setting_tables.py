"""The tables of a configuration: every setting with its default, its range and its meaning, and how users type it.

A page of settings is made from these. Further keys of `[algorithm]`, `[model]` and `[data]` are options of the method,
the model and the partition. `[train]` has the fields of `LocalTraining` (`stratafl.policies.train`) that say what they
mean. Typed settings are parsed once, here; everywhere else settings are mappings of `table.key` to values.
"""

import dataclasses
import tomllib
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from stratafl.algorithms import ALGORITHMS
from stratafl.algorithms.composition import is_composition, parse_composition
from stratafl.config.protocols import PROTOCOLS
from stratafl.core.annotations import MAX_INTEGER, FilePath, Named, Range, Size, checked, parts, union
from stratafl.core.layers import Select, select
from stratafl.core.layout import Buffers, Granularity
from stratafl.core.records import keys_of, record
from stratafl.data import PARTITIONS, Partition
from stratafl.data.augmentation import FLIPS
from stratafl.data.catalogue import DATASETS
from stratafl.data.labels import TARGETS
from stratafl.data.memory_limit import USUAL_LIMIT, MemoryLimit
from stratafl.data.reading import NORMALISED, Reading
from stratafl.data.shift import KINDS, STRENGTH, Shift, shift_kinds
from stratafl.data.splitting import SPLIT
from stratafl.data.texts import LENGTH, MAX_LENGTH, MAX_VOCABULARY, TOKENS, VOCABULARY
from stratafl.errors import RecordError, shown, unknown
from stratafl.evaluation.metrics import METRICS, named_metric
from stratafl.execute.memory import Store
from stratafl.execute.simulated_time import BANDWIDTH, STEP_SECONDS, SimulatedTime
from stratafl.execute.uploads import USUAL_NORM_CLIP, USUAL_NORM_LIMIT, Multiple
from stratafl.models import MODELS
from stratafl.policies import LocalTraining
from stratafl.policies.krum import Keep, Wrong
from stratafl.policies.merge import Positive
from stratafl.policies.robust import Factor, Share
from stratafl.runtime.build import EngineName
from stratafl.runtime.speed import Choice, Convolutions, Precision

MAX_COUNT = 10**9  # rounds, clients or samples: a larger number is a mistake
LOGGERS = ("tensorboard", "mlflow", "wandb")
DIVIDING = ("alpha", "minimum", "per_client")  # keys of [data] that only some partitions have

Some = Range(least=1, most=MAX_COUNT)
SomeOrNone = Range(least=0, most=MAX_COUNT)
Seed = Range(least=0, most=MAX_INTEGER)
Options = Mapping[str, Any]
Settings = Mapping[str, Any]  # of table.key


@dataclasses.dataclass(frozen=True)
class MethodName(Named):
    """A method of the catalogue, a composition such as `fedper+flayer`, or a path."""

    def check(self, key: str, value: str) -> None:
        if is_composition(value):
            parse_composition(value)
        elif value.endswith(".py"):
            path = ".".join(Path(value).with_suffix("").parts)
            raise RecordError(
                f"{key} '{shown(value)}' is a file: give the method in it, such as {shown(path)}:my_method"
            )
        else:
            super().check(key, value)


@dataclasses.dataclass(frozen=True)
class MetricName(Named):
    """A metric of the catalogue, which may say a specificity, a choice by the data, or a path."""

    def check(self, key: str, value: str) -> None:
        if "@" in value and ":" not in value:
            named_metric(value)
        elif value not in self.names and ":" not in value:
            raise unknown(key, value, [*sorted(self.names), "sensitivity@0.95", "module:function"])


@dataclasses.dataclass(frozen=True)
class ShiftName(Named):
    """A kind of shift, or several with + between them."""

    def check(self, key: str, value: str) -> None:
        shift_kinds(value)


@record
class AlgorithmTable:
    """Which method, and its options."""

    name: Annotated[
        str,
        MethodName(ALGORITHMS, paths=True),
        "as in `strata list`, a [composition](../methods/composition.md) such as `fedper+flayer`, or",
        "`package.module:builder`",
    ] = "fedper"
    options: Options = dataclasses.field(default_factory=dict)


@record
class ServerTable:
    """How the server merges uploads, of methods that average them, and which it leaves out."""

    merge: Annotated[
        Literal["mean", "median", "trimmed", "clipped", "krum"],
        "what replaces a method's mean: the median or the trimmed mean of each column, the mean of updates whose",
        "norms are clipped, or the mean of the uploads nearest to the others (Krum)",
    ] = "mean"
    share: Annotated[Share, "`trimmed`: share of the values that is left out at each end"] = 0.2
    factor: Annotated[Factor, "`clipped`: the largest norm, as a multiple of the cohort's median"] = 1.0
    norm: Annotated[
        Positive | None,
        "`clipped`: the largest norm, as a fixed number; stores no uploads, works with server optimisers",
    ] = None
    f: Annotated[Wrong, "`krum`: number of faulty clients to tolerate; a round needs 2f + 3 clients"] = 1
    keep: Annotated[Keep, "`krum`: number of uploads to average; 1 is Krum, more is Multi-Krum"] = 1
    norm_limit: Annotated[
        Multiple | None,
        "updates with a norm above this multiple of the cohort's median are left out of the round; 0: no limit;",
        f"by default {USUAL_NORM_LIMIT:g}, and no limit with noise, with secure sums and in the protocols of papers",
    ] = None
    norm_clip: Annotated[Multiple | None, f"shortens longer updates to this; 0: none; usually {USUAL_NORM_CLIP:g}"] = (
        None
    )
    secure: Annotated[bool, "whether the server sees [sums of uploads](../guide/secure.md) alone"] = False


@record
class ModelTable:
    """Which model, its head where that cannot be guessed, a file with initial weights, and its options."""

    name: Annotated[str, Named(MODELS, paths=True), "as in `strata list`, or `package.module:Class`"] = "mlp"
    head: Annotated[str | None, "the module that is the head, if it cannot be detected"] = None
    frozen: Annotated[
        Select,
        "layers that are not trained and that no round carries, such as `*.lora_A`, see",
        "[adapters](../guide/adapters.md#what-is-frozen)",
    ] = select("none")
    weights: Annotated[str | None, FilePath(), "a safetensors file with the initial weights"] = None
    seed: Annotated[int | None, Seed, "seed of the initial weights; none: `run.seed`"] = None
    options: Options = dataclasses.field(default_factory=dict)


@record
class DataTable:
    """Which data, over how many clients, divided how, and the options of the partition."""

    name: Annotated[
        str, FilePath(DATASETS), "a name from `strata data list`, or a file or folder, see [data](../guide/data.md)"
    ] = "digits"
    path: Annotated[
        str | None, FilePath(), "the file or folder of that data set, or the folder it is in; none: the hub"
    ] = None
    label: Annotated[str | None, "the column with the labels in your own table; none: `label` or `y`"] = None
    client: Annotated[str | None, "the column with each sample's client in your own table; none: `client`"] = None
    group: Annotated[
        str | None,
        "a column in your own table, such as `patient_id`: samples with the same value stay on one side of the split;",
        "the data must name its clients",
    ] = None
    columns: Annotated[
        str | None,
        "the columns of your own table to use, with a kind where you know better: `age,sex:category`; kinds: `number`,",
        "`boolean`, `category`, `date`, `identifier`, `constant`, `text`; none: all, see [tables](../guide/tables.md)",
    ] = None
    ignore: Annotated[str | None, "columns of your own table to ignore, by name or pattern: `patient_id,*_date`"] = None
    targets: Annotated[
        str,
        Named(TARGETS),
        "the kind of targets of your own data; `auto`: classes if labels are names or whole numbers, else numbers;",
        "`scaled`: numbers with mean 0 and deviation 1 over the training samples",
    ] = "auto"
    normalise: Annotated[
        str,
        Named(NORMALISED),
        "pixels of 8 or 16 bits as numbers: from −1 to 1, from 0 to 1, by each channel's mean and deviation, by those",
        "of each `image`, or as they are; `columns`: a table of numbers by each column's mean and deviation over the",
        "client's own training samples; `pooled`: over those of all clients together, which a deployment cannot know;",
        "`auto`: `half` for images of 8 bits, `image` for 16, `columns` for tables of numbers, `pooled` for",
        "[other tables](../guide/tables.md); of older runs `images`: `half` for images, tables as they are,",
        "and `former`: `half` for all images, tables as with `auto`",
    ] = "auto"
    size: Annotated[int | None, Range(least=1, most=10_000), "resize images to squares with this side in pixels"] = None
    flip: Annotated[str, Named(FLIPS), "mirror training images at random, along these axes"] = "none"
    crop: Annotated[int | None, Range(least=1, most=10_000), "largest random shift of training images, in pixels"] = (
        None
    )
    tokens: Annotated[
        str,
        Named(("auto", *TOKENS)),
        "how texts become tokens: by a hash of each word, or by a tokenizer trained on the training texts of all",
        "clients, whose words can be read from it; `auto`: `hashed`, or the words of the training texts of `ag-news`",
    ] = "auto"
    vocabulary: Annotated[
        int | None, Range(least=4, most=MAX_VOCABULARY), f"number of tokens; none: {VOCABULARY:,}, of `ag-news` all"
    ] = None
    length: Annotated[
        int | None, Range(least=2, most=MAX_LENGTH), f"the most tokens of a text; none: {LENGTH}, of `ag-news` 200"
    ] = None
    owners: Annotated[int | None, Some, "number of owners of samples to draw, by the seed"] = None
    fewest: Annotated[int | None, Some, "… among owners with at least this many samples"] = None
    most: Annotated[int | None, Some, "… and at most this many"] = None
    classes: Annotated[str | None, "only samples of these classes, such as `0..9` or `cat,dog`; none: all"] = None
    subset: Annotated[
        int | None,
        Some,
        "number of samples to draw, by the seed, of each client and class in proportion, for a quick try; none: all",
    ] = None
    clients: Annotated[int, Some, "number of clients that share the data"] = 20
    new_clients: Annotated[int, SomeOrNone, "number of clients, the last ones, that never train"] = 0
    partition: Annotated[
        str,
        Named(("auto", *PARTITIONS)),
        "how samples are partitioned; `auto`: as a file says, else `dirichlet`, or `iid` if there are no classes",
    ] = "auto"
    alpha: Annotated[float, Range(above=0, most=1e9), "concentration of Dirichlet shares; smaller is less even"] = 0.1
    minimum: Annotated[int | None, Some, "minimum number of samples per client; none: as the partition says"] = None
    per_client: Annotated[int | None, Some, "classes per client; none: as the partition says"] = None
    shift: Annotated[
        str | None,
        ShiftName(KINDS),
        "how clients' samples differ, whichever they have: `rotation`, `blur`, `colour`, `noise`, `domains` of images,",
        "permuted `labels`, or several, as in `rotation+noise`, see [shifts](partitions.md#shifts); none: not at all",
    ] = None
    strength: Annotated[float | None, Range(least=0, most=1), f"how large shifts are; none: {STRENGTH:g}"] = None
    shift_groups: Annotated[
        int | None, Some, "number of groups of clients that share a shift; none: each has its own, see `data.shift`"
    ] = None
    validation: Annotated[float, Range(least=0, most=0.9), "share of each client's samples for validation"] = 0.1
    test: Annotated[
        float, Range(above=0, most=0.9), "share of each client's samples for testing, unless the partition chooses them"
    ] = 0.25
    split: Annotated[
        str,
        Named(SPLIT),
        "how samples are split: `stratified` by class (numbers by quantile), at `random`, or `ordered`: the last "
        "samples of each client are for testing, those before them for validation",
    ] = "stratified"
    seed: Annotated[
        int | None,
        Seed,
        "seed of the partition and of the splits; none: `run.seed`, see [noise](../understand/noise.md)",
    ] = None
    options: Options = dataclasses.field(default_factory=dict)


@record
class RunTable:
    """How long, with which share of the clients, on what device, with what speed and memory."""

    protocol: Annotated[str, Named(PROTOCOLS), "defaults of other settings, as in a code base or a paper"] = "clean"
    rounds: Annotated[int, Some, "number of rounds"] = 20
    participation: Annotated[float, Range(above=0, most=1), "share of the clients that take part in a round"] = 1.0
    drop: Annotated[
        float, Range(least=0, below=1), "probability that a client drops out of a round and sends nothing"
    ] = 0.0
    slow: Annotated[
        float | None,
        Range(least=0, most=5),
        "how unequally fast clients are, to write simulated seconds: 0: equally; 1: the slowest of 20 take about seven",
        "times as long as a typical one; none: nothing is written, see [slow clients](partitions.md#slow-clients)",
    ] = None
    bandwidth: Annotated[
        float | None, Range(above=0, most=1e9), f"Mbit per second of a typical client, each way; none: {BANDWIDTH:g}"
    ] = None
    step_seconds: Annotated[
        float | None, Range(least=0, most=1e6), f"seconds of a typical client's local step; none: {STEP_SECONDS:g}"
    ] = None
    seed: Annotated[int, Seed, "seed of everything random that has no seed of its own"] = 0
    batch_seed: Annotated[
        int | None, Seed, "seed of batches, cohorts and all other draws in training; none: `run.seed`"
    ] = None
    buffers: Annotated[Buffers, "BatchNorm statistics follow their layer or stay with the client"] = "follow"
    granularity: Annotated[Granularity, "what counts as a layer"] = "module"
    device: Annotated[str, "`auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1` …"] = "auto"
    engine: Annotated[EngineName, "all clients in one step, or client by client; `auto`: on a CPU as measured"] = "auto"
    precision: Annotated[Precision, "precision of products on a GPU: 24, 11 or 8 bits"] = "fp32"
    compile: Annotated[Choice, "compile steps; `on`: before the first round; `auto`: on a GPU, if the run is long"] = (
        "auto"
    )
    graphs: Annotated[Choice, "capture steps and replay them; `auto`: on a GPU"] = "auto"
    convolutions: Annotated[
        Convolutions, "products of shifted slices, PyTorch's own, or Triton kernels; `auto`: on a GPU the fastest"
    ] = "auto"
    memory_limit: Annotated[int | None, Size(), "memory the run may use, in bytes or as `8GB` or `500MiB`"] = None
    store: Annotated[Store, "where client states are kept between rounds; `auto`: by size"] = "auto"
    checkpoint: Annotated[int, SomeOrNone, "rounds between checkpoints; 0: as often as 5 % of the time allows"] = 0


@record
class EvaluateTable:
    """When and on which clients, and which of all the numbers is the score of a run."""

    every: Annotated[int, Some, "rounds between evaluations; the last round is always evaluated"] = 1
    clients: Annotated[int | None, SomeOrNone, "clients to evaluate; 0: all; none: 2,000 of more than 5,000"] = None
    metric: Annotated[
        str,
        MetricName(("auto", "plain", *METRICS), paths=True),
        "selects rounds and ranks methods: a [metric](metrics.md), or `package.module:function`; `auto`:",
        "`accuracy`, or `balanced_accuracy` where the largest class has more than 60 % of the samples, `mse` for",
        "numbers; `plain`: `accuracy` or `mse`, whatever the class shares",
    ] = "auto"
    average: Annotated[
        Literal["auto", "samples", "clients"],
        "the metric over all samples, or its mean over clients; `auto`: as [metrics](metrics.md) says",
    ] = "auto"
    better: Annotated[
        Literal["auto", "larger", "smaller"],
        "which values of your own metric are better; `auto`: as its `larger_is_better` says, else larger ones",
    ] = "auto"
    select: Annotated[
        Literal["validation", "best", "last"],
        "the round that counts: by the metric on validation data, on test data (as many papers do), or the last",
    ] = "validation"
    ties: Annotated[
        Literal["loss", "first"],
        "among equally good rounds: the last one with the lowest loss; `first`: the first round,",
        "as runs of earlier versions have it",
    ] = "loss"
    stage: Annotated[
        Literal["received", "trained", "deployed", "global"],
        "the models that count: as received, right after training, deployed, or the global one",
    ] = "deployed"
    test: Annotated[bool, "whether test samples are scored; `false` in the trials of `strata tune`"] = True
    guard: Annotated[
        bool,
        "at the end, each client takes the model that is best on its validation samples, or keeps local",
        "training, see [guard](../guide/guard.md)",
    ] = False
    cross_site: Annotated[
        bool,
        "at the end, score every client's model on every client's test samples, see [report](../understand/report.md)",
    ] = False
    lab: Annotated[int, SomeOrNone, "rounds between layer diagnostics (conflicts, CKA, weights …); 0: never"] = 0


@record
class StopTable:
    """When to stop early, by the metric of deployed models on validation data."""

    target: Annotated[
        float | None, Range(above=0, most=1e12), "stop when the metric reaches this on validation data, such as 0.9"
    ] = None
    patience: Annotated[int | None, Some, "stop after this many evaluations without a gain above `margin`"] = None
    margin: Annotated[float, Range(least=0, most=1e12), "smallest gain that counts as progress"] = 0.005


@record
class LogTable:
    """Where the lines of the rounds go besides the run directory."""

    to: Annotated[tuple[Annotated[str, Named(LOGGERS)], ...], "services that log every round, as a list"] = ()


TABLES: dict[str, type[Any]] = {
    "algorithm": AlgorithmTable,
    "train": LocalTraining,
    "server": ServerTable,
    "model": ModelTable,
}
TABLES |= {"data": DataTable, "run": RunTable, "evaluate": EvaluateTable, "stop": StopTable, "log": LogTable}


def partition_of(data: DataTable) -> Partition:
    """The partition with its options, of which `alpha`, `minimum` and `per_client` are keys of the table itself."""
    partition = PARTITIONS["dirichlet" if data.partition == "auto" else data.partition]
    hints = typing.get_type_hints(partition.__init__, include_extras=True)
    hints.pop("return", None)
    table_values = {key: getattr(data, key) for key in keys_of(DataTable)}
    for key in data.options:
        if key not in hints:
            raise unknown("key of [data]", key, [*table_values, *(name for name in hints if name not in table_values)])
    options = {key: value for key, value in table_values.items() if key in hints and value is not None} | {
        **data.options
    }
    return partition(**{key: checked(f"data.{key}", hints[key], value) for key, value in options.items()})


def shift_of(data: DataTable, seed: int) -> Shift | None:
    """How the table shifts the samples of clients, if it does."""
    if data.shift is None:
        for key in ("strength", "shift_groups"):
            if getattr(data, key) is not None:
                raise RecordError(f"data.{key} has no effect without data.shift: leave it out, or choose a shift")
        return None
    strength = STRENGTH if data.strength is None else data.strength
    return Shift(shift_kinds(data.shift), strength, data.shift_groups, seed)


def time_of(run: RunTable) -> SimulatedTime | None:
    """How long the table says that rounds take, if it does."""
    costs = {key: value for key in ("bandwidth", "step_seconds") if (value := getattr(run, key)) is not None}
    if run.slow is None:
        for key in costs:
            raise RecordError(f"run.{key} has no effect without run.slow: leave it out, or set run.slow, such as 0")
        return None
    return SimulatedTime(run.slow, **costs)


READING_KEYS = tuple(f.name for f in dataclasses.fields(Reading) if f.name not in ("seed", "limit"))


def reading_of(data: DataTable, seed: int, limit: MemoryLimit = USUAL_LIMIT) -> Reading:
    """How the table says that samples are read."""
    return Reading(**{key: getattr(data, key) for key in READING_KEYS}, seed=seed, limit=limit)


def without_effect(data: DataTable) -> list[str]:
    """Keys that are set, but that only other partitions have."""
    partition_options, usual = vars(partition_of(data)), DataTable()
    return [key for key in DIVIDING if key not in partition_options and getattr(data, key) != getattr(usual, key)]


def parse_settings(typed: Iterable[str]) -> dict[str, Any]:
    """The settings in `table.key=value`, as the command takes them; values are TOML, or else text."""
    settings = {}
    for setting in typed:
        path, equals, text = setting.partition("=")
        table, _, key = path.strip().partition(".")
        if not (equals and key):
            near = "".join(f"; did you mean '{shown(f'{each}={text}')}'?" for each in settings_called(path.strip())[:1])
            example = "a setting is written table.key=value, such as train.lr=0.1"
            raise RecordError(f"{example}, not '{shown(setting)}'{near}")
        settings[f"{table}.{key}"] = _value(text.strip(), _is_text(table, key))
    return settings


def settings_called(key: str) -> list[str]:
    """The settings with this key: `lr` is `train.lr`."""
    return [f"{table}.{key}" for table, record in TABLES.items() if key in keys_of(record)]


def _is_text(table: str, key: str) -> bool:
    """Whether a setting is a text, whatever it looks like: a column may be called 2020, or true."""
    keys = keys_of(TABLES[table]) if table in TABLES else {}
    hint = parts(keys[key].hint)[0] if key in keys else int
    return all(each in (str, type(None)) or typing.get_origin(each) is Literal for each in union(hint) or (hint,))


def _value(text: str, is_text: bool) -> Any:
    """The typed text as a TOML value, or unchanged if it is not one."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # also of numbers with thousands of digits, and lists without end
        return text
    plain = len(parsed) > 1 or (is_text and not isinstance(parsed["value"], str))  # a second line is no second key
    return text if plain else parsed["value"]
