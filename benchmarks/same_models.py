"""Whether PFLlib and this package compute the same, before they are timed: both train on the same batches.

Our side draws its batches as ever; which samples each client took in which order is noted and given to PFLlib. Then
each client's model (parameters and BatchNorm statistics) and the average must be the same but for rounding:

    a round in float64      on some of the images in the same kind of shares; any other formula, batch or weight shows
    a step in float32       one batch of each client, in the type of the race

Rounding grows from step to step, because a ReLU or a maximum that flips changes a gradient by more than it was off: a
round of ResNet-18 with batches of 10 in float32 ends somewhere else on any two machines. In float64 it is the same.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pfllib_side import MERGED, tensors_of
from recording import Table
from stratafl.config.assemble import algorithm_of, federation_of, model_of, simulation_with
from stratafl.config.experiment import Experiment
from stratafl.core.state import State, rows_of
from stratafl.data import Federation
from stratafl.execute import Matrix, Simulation
from stratafl.execute.simulation import Progress
from stratafl.runtime.batches import PlannedBatches
from stratafl.runtime.cohort_task import CohortTask
from stratafl.runtime.scan import Scan
from stratafl.runtime.speed import Speed

# As a share of what training changed. Measured on ARM: a round in float64 1e-13 (CNN) and 3e-12 (ResNet-18; 7e-10 with
# some 40 steps of a client), a step in float32 0 and 8e-4 beyond what storing costs.
TOLERANCES = {torch.float64: 1e-6, torch.float32: 5e-2}
STORED = 4  # units of the last place that storing and adding weights may cost, whatever training changed
Model = Sequence[Tensor]


@dataclass(frozen=True)
class FirstRound:
    """What one side's clients and server have after one round; tensors are in the order of the model."""

    clients: Mapping[int, Model]
    merged: Model


# Our side


@contextmanager
def watched(seen: dict[int, tuple[Tensor, dict[str, Tensor]]]) -> Iterator[None]:
    """Note of each client that trains the samples it takes, in their order, and its row after the last step."""
    execute = CohortTask._executed

    def executed(task: CohortTask, scan: Scan, planned: Sequence[PlannedBatches]) -> State:
        done = execute(task, scan, planned)
        if "row" in done:  # of a descent; the scan of an evaluation has none
            for place, client in enumerate(task.ids.tolist()):
                batches, steps = scan.batches[0].pick(slice(place, place + 1)), scan.steps[place]
                real = torch.arange(batches.samples.shape[2]) < batches.sizes[0, :steps, None]
                order = batches.samples[0, :steps].cpu()[real]
                seen[client] = order, {name: x[place].cpu() for name, x in rows_of(done, "row").items()}
        return done

    CohortTask._executed = executed  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        CohortTask._executed = execute  # type: ignore[method-assign]


def exact_simulation(experiment: Experiment, dtype: torch.dtype) -> Simulation:
    """What a run of the experiment computes with, in numbers of this type."""
    federation, run = federation_of(experiment), experiment.run
    model = model_of(experiment.model, tuple(federation.x.shape[1:]), federation.classes)
    speed = Speed("fp32", run.graphs, run.compile, run.convolutions)
    return simulation_with(experiment, algorithm_of(experiment), federation, model, speed=speed, dtype=dtype)


def our_round(sim: Simulation, orders: Path) -> FirstRound:
    """The first round; the places of the samples that each client took among its own go into a file."""
    seen: dict[int, tuple[Tensor, dict[str, Tensor]]] = {}
    with watched(seen):
        progress, _ = sim.round(sim.start(), Matrix())
    module, federation = sim.template, sim.runtime.federation
    assert module is not None
    arrays: Any = {str(client): places(federation, client, order).numpy() for client, (order, _) in seen.items()}
    np.savez(orders, **arrays)
    clients = {client: [row[name] for name in tensors_of(module)] for client, (_, row) in seen.items()}
    return FirstRound(clients, merged(sim, progress))


def places(federation: Federation, client: int, samples: Tensor) -> Tensor:
    """Where these samples are among the client's own for training."""
    own = federation.split("train").of(client).cpu()
    at = torch.full((len(federation.x),), -1)
    at[own] = torch.arange(len(own))
    return at[samples]


def merged(sim: Simulation, progress: Progress) -> Model:
    """The parameters of the global model."""
    assert sim.template is not None
    theta = rows_of(progress.server, "theta")
    return [theta[name].cpu() for name, _ in sim.template.named_parameters()]


# PFLlib's side, as `pfllib_side.py` writes it


def read_model(path: Path) -> list[Tensor]:
    with np.load(path) as file:
        return [torch.from_numpy(file[name]) for name in file.files]


def difference(ours: Model, theirs: Model, start: Model) -> tuple[float, float]:
    """The largest difference of a tensor as a share of what PFLlib changed in it, and without what storing may cost.

    Compared with the weights themselves, which a round hardly changes, a side that did not train would seem close.
    """
    shares, beyond = [0.0], [0.0]
    for mine, other, before in zip(ours, theirs, start, strict=True):
        moved, apart = ((other - x).double().norm().item() for x in (before, mine))
        stored = STORED * torch.finfo(other.dtype).eps * other.double().norm().item()
        shares.append(_share(apart, moved))
        beyond.append(0.0 if apart <= stored else _share(apart - stored, moved))
    return max(shares), max(beyond)


def _share(apart: float, moved: float) -> float:
    if apart == 0:
        return 0.0
    return apart / moved if moved and isfinite(apart) else inf


def differences(ours: FirstRound, folder: Path, start: Model) -> Table:
    """The largest of all, of each client and of the average; PFLlib's models are in the folder."""
    found = {MERGED: difference(ours.merged, read_model(folder / f"{MERGED}.npz"), start[: len(ours.merged)])}
    for client, model in sorted(ours.clients.items()):
        found[str(client)] = difference(model, read_model(folder / f"{client}.npz"), start)
    shares, beyond = ({name: each[i] for name, each in found.items()} for i in range(2))
    return {"largest": max(shares.values()), "beyond_storing": max(beyond.values()), "each": shares}
