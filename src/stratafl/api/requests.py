"""What is asked in Python, as the commands have it: settings, a folder, and the code that may be imported.

Samples in memory are written beside the folder once, in a folder that is named after their digest. So a comparison can
be continued by the same call, by `strata resume` and by several processes, and other samples are noticed: they have
another name. A model that is an object stays in this process; runs know it by its layers and initial weights.
"""

import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

from torch import nn

from stratafl.api.client_samples import samples_in_memory
from stratafl.config.experiment import Experiment, from_tables, paths_in
from stratafl.config.setting_tables import Settings
from stratafl.config.trust import PYTHON, Trust, named_object, typed
from stratafl.core.records import keys_of
from stratafl.data import Federation
from stratafl.data.builders import Clients
from stratafl.data.loading import is_place
from stratafl.data.samples import Samples
from stratafl.data.shards import digest_name, store_samples
from stratafl.errors import ModelError, RecordError, UnknownNameError, check_known
from stratafl.execute.build_simulation import ModelSource
from stratafl.policies import LocalTraining
from stratafl.runs.directory import unused_run_folder
from stratafl.runs.joined import usual_jobs

Source = Federation | Clients | str | Path  # samples in memory as `fit` takes them, or a data set, file or folder
P = ParamSpec("P")
T = TypeVar("T")


class SharedOptions(TypedDict, total=False):
    """Options that `compare`, `tune` and `advise` share. One that you leave out has its usual setting."""

    label: str
    client: str
    rounds: int
    lr: float
    frozen: str
    seed: int
    validation: float
    test: float
    split: Literal["stratified", "random", "ordered"]
    normalise: Literal["auto", "columns", "none"]
    shift: str
    strength: float
    metric: str
    evaluate_every: int
    participation: float
    guard: bool
    cross_site: bool
    device: str


TABLES = {
    "data": ("label", "client", "validation", "test", "split", "normalise", "shift", "strength"),
    "run": ("rounds", "seed", "participation", "device"),
    "train": ("lr",),
    "model": ("frozen",),
    "evaluate": ("metric", "guard", "cross_site"),
}
OPTIONS = {option: f"{table}.{option}" for table, options in TABLES.items() for option in options}
OPTIONS["evaluate_every"] = "evaluate.every"


def check_options(function: str, names: Iterable[str], allowed: Collection[str], place: str) -> None:
    """Refuse an option that a function has not; an option of local training has a `place` where it is given."""
    for name in names:
        if name not in allowed and name in keys_of(LocalTraining):
            raise UnknownNameError(f"'{name}' is not an option of {function}: give it in {place.format(name)}")
    check_known(f"option of {function}", names, allowed)


def known_options(function: Callable[P, T]) -> Callable[P, T]:
    """Refuse an unknown option with the nearest one that the function has, instead of Python's `TypeError`."""
    parameters = inspect.signature(function).parameters
    options = [name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY]

    @wraps(function)
    def checking(*args: P.args, **kwargs: P.kwargs) -> T:
        named = [name for name in kwargs if name not in parameters]
        check_options(function.__name__, named, options, "a method, such as fedper(train=LocalTraining({}=…))")
        return function(*args, **kwargs)

    return checking


@dataclass(frozen=True)
class PythonRequest:
    """Settings over the default experiment, as if they had been typed, and where the answer goes."""

    folder: Path
    settings: Settings
    trust: Trust
    samples: Samples | None = None  # in memory

    def store(self) -> None:
        """Write samples in memory, unless they are there."""
        if self.samples is not None:
            store_samples(self.samples, Path(self.settings["data.name"]))

    @property
    def base(self) -> Experiment:
        return from_tables({})

    @property
    def has_object(self) -> bool:
        """Whether the model is an object, which no other process has."""
        return str(self.settings.get("model.name", "")).startswith(PYTHON)

    def check_jobs(self, wanted: int | None) -> None:
        if wanted is not None and (not isinstance(wanted, int) or wanted < 1):
            raise RecordError(f"jobs must be a number of processes, at least 1, not {wanted!r}")
        if self.has_object and (wanted or 1) > 1:
            raise RecordError("several processes cannot share a model that is an object: name its class, module:Class")

    def jobs(self, wanted: int | None, runs: int, device: str) -> int:
        """How many processes share the runs."""
        return wanted or (1 if self.has_object else usual_jobs(runs, device))


def requested(
    kind: str,
    clients: Source,
    model: ModelSource | str,
    folder: str | Path | None,
    settings: Mapping[str, Any] | None,
    options: Mapping[str, Any],
    names: Sequence[str] = (),
    trust: bool = False,
) -> PythonRequest:
    """What a call asks for. `names` are methods, which may be paths of code."""
    check_options(kind, options, OPTIONS, "settings={{'train.{}': …}}")
    place = Path(folder) if folder is not None else unused_run_folder(kind)
    chosen = {OPTIONS[option]: value for option, value in options.items()}
    twice = [path for path in settings or {} if path in chosen]
    if twice:
        raise RecordError(f"{twice[0]} is in settings and is an option, too: leave out one of them")
    samples = _samples(clients, options)
    if not isinstance(samples, str):  # which have their labels and clients
        chosen = {path: value for path, value in chosen.items() if path not in ("data.label", "data.client")}
    name = samples if isinstance(samples, str) else str(place.absolute().parent / digest_name(samples))
    chosen |= {"data.name": name, "model.name": _model_name(model)}
    for key in ("data.name", "model.name"):
        if key in (settings or {}):
            raise RecordError(f"{key} is an argument of {kind}: leave it out of settings")
    if not isinstance(chosen.get("evaluate.metric", ""), str):
        raise RecordError("metric must be a name here: give your own function as package.module:function")
    every = {**chosen, **(settings or {})}
    trusted = typed([*names, *paths_in(every)], trust)
    return PythonRequest(place, every, trusted, None if isinstance(samples, str) else samples)


@contextmanager
def each_warning_once() -> Iterator[None]:
    """Log every warning once: all runs of a comparison would say the same of their data."""
    seen, log = set[str](), logging.getLogger("stratafl")

    def is_new(record: logging.LogRecord) -> bool:
        message = record.getMessage()
        is_known = message in seen
        seen.add(message)
        return not is_known

    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


def method_names(methods: str | Sequence[str]) -> list[str]:
    """The methods of a list, or of a text as the commands take it."""
    names = methods.split(",") if isinstance(methods, str) else list(methods)
    for name in names:
        if not isinstance(name, str):
            wrong = f"a method must be a name here, such as 'fedper', not {type(name).__name__}"
            options = "options are settings, such as {'fedper.personal': 'head'}"
            raise RecordError(f"{wrong}; {options}; a method of your own is named as in mine:method, a file mine.py")
    return [name.strip() for name in names]


def _model_name(model: ModelSource | str) -> str:
    if isinstance(model, str):
        return model
    if not isinstance(model, nn.Module) and not callable(model):
        raise ModelError(f"model must be a name, an nn.Module or a function that returns one, not {model!r}")
    return named_object(model)


def _samples(clients: Source, options: Mapping[str, Any]) -> Samples | str:
    """The samples of clients in memory, or the name of the data."""
    if isinstance(clients, str | Path):
        name = str(clients)
        return f"{name}/" if isinstance(clients, Path) and clients.is_dir() and not is_place(name) else name
    return samples_in_memory(clients, options.get("label"), options.get("client"), options.get("normalise", "auto"))
