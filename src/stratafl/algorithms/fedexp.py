"""FedExP (Jhunjhunwala et al., 2023): FedAvg whose server steps further where clients' updates disagree."""

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.catalogue import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range, Tune
from stratafl.core.footprint import Footprint
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import row_dot
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.policies import SGD, Mean
from stratafl.policies.merge import kept_blocks


@method(
    "global",
    paper="Jhunjhunwala et al., 2023",
    title="FedExP: Speeding Up Federated Averaging via Extrapolation",
    sends="the whole model",
    new_client="the global model",
)
def fedexp(
    *, epsilon: Annotated[float, Range(above=0), Tune(1e-4, 1e-1, log=True)] = 1e-3, train: SGD = SGD()
) -> Layerwise:
    """θ ← θ + η_g·Δ̄ with η_g = max{1, Σ p_k‖Δ_k‖² / (2(‖Δ̄‖² + ε))} and p_k = n_k/Σn (Eq. 7)."""
    return replace(fedavg(train=train), merge=(Extrapolate(epsilon=epsilon),))


@record
class Extrapolate(Mean):
    """The server's model moves along Δ̄, the mean update, by η_g ≥ 1; statistics take the mean."""

    epsilon: float = 1e-3

    def footprint(self, setup: Setup) -> Footprint:
        """The sums of the mean, and a client's update of one tensor at a time."""
        return Footprint(client=setup.block_bytes(torch.float64), sums=setup.row_bytes(dtype=torch.float64))

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        """The sums of the mean, Σ p_k‖Δ_k‖² and Σ p_k."""
        held = rows_of(server, self.field)
        rows, sent = kept_blocks(up[self.field], held, rnd.layout)
        squares = torch.zeros(len(ids), dtype=torch.float64, device=next(iter(rows.values())).device)
        for name, row in rows.items():
            if rnd.layout.specs[name].trainable:
                update = row.double() - held[name]
                update = update if sent is None else torch.where(sent[name], update, 0)
                squares += row_dot(update, update)
        weights = torch.ones_like(squares) if self.weights == "uniform" else up[self.weights].tensor.to(squares)
        norms = torch.stack([(weights * squares).sum(), weights.sum()])
        return {**super().fold(rnd, server, sums, up, ids), "norms": norms + (tensor_of(sums, "norms") if sums else 0)}

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        held, mean = rows_of(server, self.field), self.mean(server, sums)
        trainable = [name for name in mean if rnd.layout.specs[name].trainable]
        delta = {name: mean[name].double() - held[name] for name in trainable}  # Δ̄
        total, weight = tensor_of(sums, "norms")
        square = torch.stack([x.square().sum() for x in delta.values()]).sum()
        eta = (total / weight / (2 * (square + self.epsilon))).clamp(min=1)
        moved = {name: (held[name] + eta * x).to(held[name].dtype) for name, x in delta.items()}
        return {self.field: {**mean, **moved}}
