"""SCAFFOLD (Karimireddy et al., 2020): FedAvg whose clients correct their gradients by control variates.

A control variate is what a client (c_i), or all of them (c), take for their gradient: c − c_i keeps a client from
drifting to its own optimum.
"""

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Filled, Start
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows, per_row
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.core.steps import Names, Train
from stratafl.core.task import Task
from stratafl.errors import RecordError
from stratafl.policies import Broadcast, Increment, LocalTraining, Remember, ServerOptimizer, Take, Upload
from stratafl.policies.descent import Fields


@method(
    "global",
    paper="Karimireddy et al., 2020",
    title="SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
    sends="the whole model and how its control variate changed: twice a model",
    new_client="the global model and a control variate of zeros",
)
def scaffold(
    *, server_lr: Annotated[float, Range(above=0), Tune(0.1, 2.0)] = 1.0, train: LocalTraining = LocalTraining()
) -> Layerwise:
    """Algorithm 1 with option II for c_i; clients count alike, whatever their n_k. `server_lr` is η_g."""
    if train.optimizer != "sgd" or train.momentum:
        setting = f"momentum={train.momentum}" if train.momentum else f"optimizer '{train.optimizer}'"
        raise RecordError(f"scaffold: with {setting}, (x − y)/(K·η) is not a mean gradient: use plain sgd")
    corrected = replace(train, edits=(*train.edits, Correct()))
    return replace(
        fedavg(),
        serve=(Broadcast(), Broadcast(field="c")),
        mix=(Take(), Take("c"), Remember()),
        train=(corrected, Renew(corrected.counts)),
        send=(Upload(), Upload(field="c_change")),
        merge=(
            ServerOptimizer(weights="uniform", lr=server_lr),  # lines 16, 17: x ← x + η_g·(1/|S|)·Σ (y_i − x)
            Increment("c", by="c_change"),  # c ← c + (1/N)·Σ (c_i⁺ − c_i)
        ),
        server={"theta": Start(), "c": Filled()},
        client={**fedavg().client, "c_i": Filled()},
    )


@record
class Correct:
    """g − c_i + c (line 10)."""

    reads = ("c", "c_i")

    def __call__(self, gradients: Rows, row: Rows, client: Fields, layout: Layout) -> Rows:
        c, c_i = rows_of(client, "c"), rows_of(client, "c_i")
        return {name: g - c_i[name] + c[name] for name, g in gradients.items()}


@record
class Renew(Train):
    """c_i⁺ = c_i − c + (x − y)/(K·η) (line 12, option II); a client that took no step keeps its c_i."""

    counted: tuple[str, str, str]  # the fields with K, the loss and η
    writes = ("c_i", "c_change")

    @property
    def reads(self) -> Names:
        steps, _, rate = self.counted
        return ("theta", "anchor", "c", "c_i", steps, rate)

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        steps, _, rate = self.counted
        length = tensor_of(client, steps) * tensor_of(client, rate)
        x, y, c, c_i = (rows_of(client, name) for name in ("anchor", "theta", "c", "c_i"))
        change = {n: _over(x[n] - y[n], length, c[n]) for n in c_i}
        return {"c_i": {n: c_i[n] + change[n] for n in c_i}, "c_change": change}


def _over(way: Tensor, length: Tensor, c: Tensor) -> Tensor:
    """(x − y)/(K·η) − c, or 0 without a step."""
    length = per_row(length.to(way.dtype), way)
    return torch.where(length > 0, way / length - c, 0)
