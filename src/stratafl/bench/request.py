"""From options to the rows to measure; rows that cannot be measured are refused before the first one runs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast, get_args

import torch

from stratafl.algorithms import ALGORITHMS
from stratafl.bench.options import BenchOptions
from stratafl.bench.workload import BENCH_MODELS, Workload, bench_model
from stratafl.errors import RecordError, counted, unknown
from stratafl.execute.memory import device_of
from stratafl.runtime.build import EngineName
from stratafl.runtime.speed import Speed, check_precision

SWEEPS = {
    "clients": (20, 100, 1_000, 10_000),
    "cohort": (1, 5, 20, 100, 500, 1_000, 10_000),
    "batch": (5, 10, 20, 50, 100, 200),
}


class BenchCell(NamedTuple):
    """One row to measure."""

    model: str
    method: str
    workload: Workload


@dataclass(frozen=True)
class BenchRequest:
    """All rows, and how to measure each; methods on the same model and size follow each other."""

    cells: tuple[BenchCell, ...]
    device: str
    speed: Speed
    repeats: int
    baselines: bool
    engine: EngineName = "auto"
    busy: int = 0  # other processes at work meanwhile


def request_of(options: BenchOptions) -> BenchRequest:
    models, methods = _names("models", options.models), _names("methods", options.methods)
    models = tuple(BENCH_MODELS) if models == ("all",) else models
    for name in models:
        bench_model(name)  # raises if there is none
    for name in methods:
        if name not in ALGORITHMS:
            raise unknown("method", name, sorted(ALGORITHMS))
    for name in ("clients", "batch", "repeats", "largest", "steps", "cohort"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise RecordError(f"--{name} must be at least 1, not {value}")
    if options.busy < 0:
        raise RecordError(f"--busy must be at least 0, not {options.busy}")
    if options.engine not in get_args(EngineName):
        raise unknown("engine", options.engine, get_args(EngineName))
    if options.cohort is not None and options.cohort > options.clients and options.sweep != "clients":
        raise RecordError(f"--cohort must be at most {options.clients}, the number of clients, not {options.cohort}")
    if options.paper and options.steps is not None:
        raise RecordError(f"--steps {options.steps} has no effect with --paper, which fixes the samples: leave it out")
    device = device_of(options.device)
    speed = Speed(precision=cast(Any, options.precision), compile=cast(Any, options.compile))
    check_precision(speed.precision, torch.device(device))
    sizes = {model: list(_workloads(options, model)) for model in models}
    cells = (BenchCell(model, method, workload) for model in models for workload in sizes[model] for method in methods)
    engine = cast(EngineName, options.engine)
    return BenchRequest(tuple(cells), device, speed, options.repeats, options.baselines, engine, options.busy)


def _names(option: str, text: str) -> tuple[str, ...]:
    """Each name once."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise RecordError(f"--{option} must be names separated by commas, not '{text}'")
    return names


def _workloads(options: BenchOptions, model: str) -> Iterator[Workload]:
    samples = (options.steps or bench_model(model).steps) * options.batch
    usual = Workload(options.clients, options.cohort or options.clients, options.batch, samples, options.paper)
    if options.sweep is None:
        yield usual
        return
    for value in _swept(options, options.sweep, model, samples):
        varied: dict[str, Any] = {options.sweep: value}
        if options.sweep == "clients":
            varied["cohort"] = min(value, options.cohort or value)
        yield replace(usual, **varied)


def _swept(options: BenchOptions, sweep: str, model: str, samples: int) -> list[int]:
    if sweep not in SWEEPS:
        raise unknown("sweep", sweep, SWEEPS)
    values = [value for value in SWEEPS[sweep] if value <= options.largest]
    if not values:
        raise RecordError(f"--largest must be at least {SWEEPS[sweep][0]} for this sweep, not {options.largest}")
    if sweep == "batch" and values[0] > samples:
        raise RecordError(
            f"the sweep starts with batches of {values[0]}, but a client of {model} has only "
            f"{counted(samples, 'sample')}: raise --steps or --batch"
        )
    most = {"cohort": options.clients, "batch": samples}.get(sweep, options.largest)
    return [value for value in values if value <= most]
