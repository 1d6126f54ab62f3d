"""FedExP (Jhunjhunwala et al., 2023): FedAvg whose server takes larger steps where clients' updates disagree."""

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range, Tune
from stratafl.core.footprint import Footprint
from stratafl.core.layerwise import Layerwise
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import Computed, State, rows_of, tensor_of
from stratafl.core.steps import Names
from stratafl.policies import LocalTraining, Mean


@method("global", paper="Jhunjhunwala et al., 2023", title="FedExP: Speeding Up Federated Averaging via Extrapolation")
def fedexp(
    *,
    epsilon: Annotated[float, Range(above=0), Tune(1e-4, 1e-1, log=True)] = 1e-3,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """θ ← θ + η_g·Δ̄ with η_g = max{1, Σ p_k‖Δ_k‖² / (2(‖Δ̄‖² + ε))} and p_k = n_k/Σn (Eq. 7).

    `epsilon` keeps η_g from growing where updates cancel.
    """
    return replace(fedavg(train=train), merge=(Extrapolate(epsilon=epsilon),))


@record
class Extrapolate(Mean):
    """The server's model moves along Δ̄, the mean update, by η_g ≥ 1; statistics take the mean."""

    epsilon: float = 1e-3
    unless: str | None = None  # a field with a number for each layer: where it is above 0, only the mean is taken
    compares = True

    @property
    def reads(self) -> Names:
        return (*super().reads, *(() if self.unless is None else (self.unless,)))

    def footprint(self, setup: Setup) -> Footprint:
        """The sums of the mean, and a client's update of one tensor at a time."""
        mean = super().footprint(setup)
        return replace(mean, client=mean.client + setup.block_bytes(torch.float64))

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        """The sums of the mean, Σ p_k‖Δ_k‖² layer by layer, and Σ p_k."""
        theta = rows_of(server, self.field)
        rows, sent = self.uploaded(rnd, server, up)

        def update(name: str) -> Tensor:
            delta = rows[name].double() - theta[name]
            return delta if sent is None else torch.where(sent[name], delta, 0)

        updates = Computed(rows, update)
        squares = rnd.layout.dot(updates, updates)
        weights = torch.ones_like(squares[:, 0]) if self.weights == "uniform" else up[self.weights].tensor.to(squares)
        norms, weight = (weights[:, None] * squares).sum(0), weights.sum()
        before = (tensor_of(sums, "norms"), tensor_of(sums, "weight")) if sums else (0, 0)
        mean = super().fold(rnd, server, sums, up, ids)
        return {**mean, "norms": norms + before[0], "weight": weight + before[1]}

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        theta, mean, layout = rows_of(server, self.field), self.mean(server, sums), rnd.layout
        norms = tensor_of(sums, "norms")
        far = torch.ones_like(norms) if self.unless is None else (tensor_of(server, self.unless) <= 0).to(norms)
        trainable = [name for name in mean if layout.specs[name].trainable]
        delta = {name: mean[name].double() - theta[name] for name in trainable}  # Δ̄
        square = torch.stack([x.square().sum() * far[layout.specs[name].layer] for name, x in delta.items()]).sum()
        eta = ((norms * far).sum() / tensor_of(sums, "weight") / (2 * (square + self.epsilon))).clamp(min=1)
        steps = 1 + (eta - 1) * far  # of each layer
        moved = {n: (theta[n] + steps[layout.specs[n].layer] * x).to(theta[n].dtype) for n, x in delta.items()}
        return {self.field: {**mean, **moved}}
