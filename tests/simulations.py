"""Small simulations that tests share: each is built and run once per process, whoever asks first.

    sim = built("fedper", batchnorm=False)                        # a method by name, or any record of one
    sim, progress = finished(fedper(finetune=1), rounds=3)        # the same simulation, run to its end
    tensors = outcome("fedavg", Messages(), participation=0.5)    # all it ends with, and every client's deployed model

Other keywords are those of `stratafl.execute.simulation`. The federation is the contract's tiny one (`SIZES`), in
float64 and on the stacked engine unless you say otherwise. Use them where a test only reads: a simulation is explicit
state and pure functions, so going on from a finished one with `sim.round(progress, …)` is reading, too. A test that
writes into a shared tensor is noticed at the next request for it. A test that patches the engine, counts calls, or
measures time or memory builds its own with `tiny_federation` and `tiny_model`.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple, TypeVar

import torch

from stratafl.algorithms import algorithm
from stratafl.core.algorithm import Algorithm
from stratafl.core.layout import Rows
from stratafl.data import Federation
from stratafl.execute import Executor, Matrix, Progress, Simulation, simulation
from stratafl.testing import SIZES, everything, tiny_federation, tiny_model

T = TypeVar("T")
_CACHE: dict[str, Any] = {}
_VERSIONS: dict[str, dict[str, int]] = {}


class Finished(NamedTuple):
    """A simulation and where it ended."""

    sim: Simulation
    progress: Progress


@cache
def federation(sizes: tuple[int, ...] = SIZES, dtype: torch.dtype = torch.float64, seed: int = 0) -> Federation:
    """The contract's federation, drawn once."""
    return tiny_federation(sizes, seed, dtype)


def built(
    method: str | Algorithm, *, sizes: tuple[int, ...] = SIZES, batchnorm: bool = True, rounds: int = 2, **options: Any
) -> Simulation:
    options = {"dtype": torch.float64, "engine": "stacked", **options}

    def build() -> Simulation:
        made = algorithm(method) if isinstance(method, str) else method
        data = federation(tuple(sizes), options["dtype"])
        return simulation(made, data, tiny_model(batchnorm), rounds=rounds, **options)

    return _once(build, "built", method, tuple(sizes), batchnorm, rounds, sorted(options.items()))


def finished(method: str | Algorithm, executor: Executor | None = None, **options: Any) -> Finished:
    sim = built(method, **options)
    executor = executor or Matrix()
    parts = ("finished", method, executor, sorted(options.items()))
    progress = _once(lambda: sim.run(executor), *parts)
    versions = {name: x._version for name, x in progress.tensors().items()}
    assert _VERSIONS.setdefault(repr(parts), versions) == versions, f"a test wrote into a shared simulation: {parts}"
    return Finished(sim, progress)


def outcome(method: str | Algorithm, executor: Executor | None = None, **options: Any) -> Rows:
    done = finished(method, executor, **options)
    parts = ("outcome", method, executor or Matrix(), sorted(options.items()))
    return dict(_once(lambda: everything(*done), *parts))


def _once(make: Callable[[], T], *parts: Any) -> T:
    key = repr(parts)
    if " at 0x" in key:
        raise TypeError(f"only records and plain values can be shared, their repr says what they are: {key}")
    if key not in _CACHE:
        _CACHE[key] = make()
    result: T = _CACHE[key]
    return result
