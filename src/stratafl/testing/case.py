"""The small federation of the contract, and the outcome of its runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stratafl.core.algorithm import Algorithm
from stratafl.core.keys import torchs_generator
from stratafl.core.layout import Buffers, Rows
from stratafl.core.phased import Phased
from stratafl.core.state import flatten
from stratafl.data import Federation, from_splits
from stratafl.evaluation.evaluate import deployed
from stratafl.execute import Executor, Matrix, Progress, Simulation, simulation
from stratafl.models import build
from stratafl.runtime.build import EngineName

# Training samples: up to three batches of ten, short last batches, two clients below one batch.
SIZES = (21, 13, 12, 10, 7, 4)
NEW_SIZES = (9, 5)  # of clients that never take part
SHAPE, CLASSES = (1, 6, 6), 3


def tiny_federation(sizes: Iterable[int] = SIZES, seed: int = 0, dtype: torch.dtype = torch.float64) -> Federation:
    """Clients of these sizes with random images of three classes, each with validation and test samples.

    A process draws it once: do not write to it.
    """
    return _federation(tuple(sizes), seed, dtype)


@lru_cache(64)
def _federation(sizes: tuple[int, ...], seed: int, dtype: torch.dtype) -> Federation:
    rng = np.random.default_rng(seed)

    def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, CLASSES, count)
        return rng.standard_normal((count, *SHAPE)) + y[:, None, None, None] / 2, y

    clients = [{"train": samples(n), "validation": samples(3), "test": samples(4)} for n in sizes]
    return from_splits(clients, classes=CLASSES, dtype=dtype, name="tiny")


def tiny_model(batchnorm: bool = True) -> nn.Module:
    """A model with convolution, BatchNorm and dropout, or an MLP without BatchNorm."""
    options: dict[str, object] = {"channels": 4, "dropout": 0.3} if batchnorm else {"hidden": (8,)}
    with torchs_generator(7):
        return build("convnorm" if batchnorm else "mlp", shape=SHAPE, classes=CLASSES, **options)


WARM, ACTING = 2, 2  # rounds that the contract gives to a phase before the last, and to the last at least
LONG_RUN_ROUNDS = 1000  # of a run in which no phase is left out


def within_reach(algorithm: Algorithm, rounds: int) -> tuple[Algorithm, int]:
    """The algorithm with phases that are short, and as many rounds as it takes to see its last phase act."""
    if not isinstance(algorithm, Phased):
        return algorithm, rounds
    before = tuple(replace(phase, rounds=min(phase.length(LONG_RUN_ROUNDS), WARM)) for phase in algorithm.phases[:-1])
    short = replace(algorithm, phases=(*before, algorithm.phases[-1]))
    return short, max(rounds, short.before(LONG_RUN_ROUNDS) + ACTING)


@dataclass(frozen=True, eq=False)
class Case:
    """An algorithm in one setting of the contract."""

    algorithm: Algorithm
    buffers: Buffers
    participation: float
    rounds: int
    shared_runs: dict[Any, Any] = field(default_factory=dict, init=False, repr=False)  # of laws, see `laws.py`

    def simulation(
        self,
        algorithm: Algorithm | None = None,
        *,
        seed: int = 0,
        engine: EngineName = "stacked",
        dtype: torch.dtype = torch.float64,
        batchnorm: bool = True,
        sizes: Iterable[int] = SIZES,
        new_clients: int = 0,
    ) -> Simulation:
        """The case's simulation, or one that differs in some respect."""
        return simulation(
            algorithm or self.algorithm,
            tiny_federation(sizes, dtype=dtype),
            tiny_model(batchnorm),
            rounds=self.rounds,
            participation=self.participation,
            seed=seed,
            buffers=self.buffers,
            dtype=dtype,
            engine=engine,
            new_clients=new_clients,
        )

    @cached_property
    def plain(self) -> Simulation:
        """The simulation that all others are compared with."""
        return self.simulation()

    @cached_property
    def joined(self) -> Simulation:
        """The same simulation with clients that never take part; what the plain one progressed to is its own too."""
        return self.simulation(sizes=(*SIZES, *NEW_SIZES), new_clients=len(NEW_SIZES))

    @cached_property
    def finished(self) -> Progress:
        """Where the plain simulation ends with the matrix executor, in one chunk."""
        return self.plain.run(Matrix())

    @cached_property
    def outcome(self) -> Rows:
        """What the matrix executor makes of it, in one chunk."""
        return everything(self.plain, self.finished)

    @cached_property
    def entries(self) -> list[Progress]:
        """Where each phase begins; of an algorithm without phases, where it starts."""
        sim, progress, begun = self.plain, self.plain.start(), list[Progress]()
        phases = [sim.at(t).plan.phase for t in range(max(self.rounds, 1))]
        begins = [t for t, phase in enumerate(phases) if phase not in phases[:t]]
        for t in begins:
            while progress.t < t:
                progress, _ = sim.round(progress, Matrix())
            begun.append(progress)
        return begun

    def __str__(self) -> str:
        return f"buffers '{self.buffers}', participation {self.participation}"


def outcome(sim: Simulation, executor: Executor) -> Rows:
    """Everything a run ends with: server, memories, and every client's deployed model."""
    return everything(sim, sim.run(executor))


def everything(sim: Simulation, progress: Progress) -> Rows:
    """The tensors of a progress and every client's deployed model."""
    models = deployed(sim, progress, torch.arange(sim.setup.clients))
    return {**progress.tensors(), **flatten({"deployed": models})}


def furthest(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> str:
    """The name of the tensor that differs most."""
    lonely = sorted(set(a) ^ set(b))
    return lonely[0] if lonely else max(a, key=lambda name: difference({"": a[name]}, {"": b[name]}))


def difference(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest difference between tensors of the same names; infinite if names, shapes or NaNs differ."""
    if set(a) != set(b):
        return float("inf")
    worst = 0.0
    for name, x in a.items():
        y = b[name]
        if x.is_meta and y.is_meta:  # nothing to compare, and `isnan` would import torch._dynamo, which takes seconds
            continue
        if x.shape != y.shape or not torch.equal(torch.isnan(x), torch.isnan(y)):
            return float("inf")
        if x.numel():
            worst = max(worst, float((x.double() - y.double()).abs().nan_to_num().max()))
    return worst
