"""What is asked of the bench, checked, and the rows that it comes to."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from stratafl.algorithms import ALGORITHMS
from stratafl.bench.workload import PAPER_CLIENTS, Workload, subject
from stratafl.errors import RecordError, unknown
from stratafl.execute.devices import device_of
from stratafl.runtime.precision import check_precision
from stratafl.runtime.speed import USUAL, Speed

MODELS = "mlp,cnn,resnet18,embedding"
METHODS = "fedavg,fedper,flayer,pfedla,fedlag,fedalp"
SWEEPS = {
    "clients": (20, 100, 1_000, 10_000),
    "cohort": (1, 5, 20, 100, 500, 1_000, 10_000),
    "batch": (5, 10, 20, 50, 100, 200),
}


@dataclass(frozen=True)
class Cell:
    """One row to be measured."""

    model: str
    method: str
    workload: Workload


@dataclass(frozen=True)
class Request:
    """Options of the command; `steps` are per client and round, None is as many as a model usually takes here."""

    models: tuple[str, ...]
    methods: tuple[str, ...]
    clients: int = PAPER_CLIENTS
    cohort: int | None = None
    batch: int = 10
    steps: int | None = None
    paper: bool = False
    device: str = "cpu"
    speed: Speed = USUAL
    repeats: int = 3
    baselines: bool = True
    sweep: str | None = None
    largest: int = 10_000

    def __post_init__(self) -> None:
        for name in self.models:
            subject(name)
        for name in self.methods:
            if name not in ALGORITHMS:
                raise unknown("method", name, sorted(ALGORITHMS))
        for name in ("clients", "batch", "repeats", "largest", "steps", "cohort"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RecordError(f"--{name} is a whole number from 1, not {value}")
        if self.cohort is not None and self.cohort > self.clients and self.sweep != "clients":
            raise RecordError(f"--cohort is from 1 to {self.clients}, the clients, not {self.cohort}")
        if self.sweep is not None and self.sweep not in SWEEPS:
            raise unknown("sweep", self.sweep, SWEEPS)
        if self.paper and self.steps is not None:
            raise RecordError(f"--paper says how many samples clients have: leave out --steps {self.steps}")
        check_precision(self.speed.precision, torch.device(device_of(self.device)))
        if self.sweep is not None and not self._values:
            raise RecordError(f"--largest {self.largest} leaves nothing of the sweep over {self.sweep}")
        for model in self.models:
            if not self._workloads(model):
                raise RecordError(
                    f"no batch of the sweep is within the {self._samples(model)} samples of a client of {model}"
                )

    def cells(self) -> Iterator[Cell]:
        """The rows: for each model and size, all methods one after the other, on the same data."""
        for model in self.models:
            for workload in self._workloads(model):
                yield from (Cell(model, method, workload) for method in self.methods)

    @property
    def _values(self) -> list[int]:
        most = min(self.largest, self.clients) if self.sweep == "cohort" else self.largest
        return [value for value in SWEEPS[self.sweep or ""] if value <= most]

    def _samples(self, model: str) -> int:
        return (self.steps or subject(model).steps) * self.batch

    def _workloads(self, model: str) -> list[Workload]:
        samples = self._samples(model)
        cohort = self.clients if self.cohort is None else self.cohort
        usual = Workload(self.clients, cohort, self.batch, samples, self.paper)
        if self.sweep == "clients":
            return [replace(usual, clients=n, cohort=min(n, self.cohort or n)) for n in self._values]
        if self.sweep is None:
            return [usual]
        if self.sweep == "cohort":
            return [replace(usual, cohort=value) for value in self._values]
        return [replace(usual, batch=value) for value in self._values if value <= samples]


def requested(models: str, methods: str, device: str, precision: Any, compile: Any, **options: Any) -> Request:
    """The request from the words of a command line; `options` are those of `Request`."""
    return Request(
        listed(models, "models"),
        listed(methods, "methods"),
        device=device_of(device),
        speed=Speed(precision=precision, compile=compile),
        **options,
    )


def listed(text: str, option: str) -> tuple[str, ...]:
    """Names by comma, each once."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise RecordError(f"--{option} is a list of names by comma, not '{text}'")
    return names
