"""FedAMP and HeurFedAMP: each client trains its own w_i with a pull to u_i = Σ_j ξ_ij·w_j, a mixture of all models.

The server keeps the latest model w_j of every client. BatchNorm statistics stay with the client.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.core.annotations import Fixed, Range, Tune
from stratafl.core.fields import Start
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows
from stratafl.core.parcel import Field
from stratafl.core.records import record
from stratafl.core.reduce import cosines
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of
from stratafl.core.steps import Serve
from stratafl.policies import Adopt, LocalTraining, MeanOfRows, Pull, StoreRows, Take, Upload

_method_of_the_paper = method(
    "mixtures",
    paper="Huang et al., 2021",
    title="Personalized Cross-Silo Federated Learning on Non-IID Data",
    new_client="the mean of all clients' models",
)


@_method_of_the_paper
def fedamp(
    *,
    strength: Annotated[float, Range(least=0), Tune(0.01, 10.0, log=True)] = 0.1,
    alpha: Annotated[float, Range(least=0), Fixed("defaults to σ: nearest clients then weigh most")] | None = None,
    sigma: Annotated[float, Range(above=0), Fixed("defaults to the distance between clients")] | None = None,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """FedAMP (Huang et al., 2021): each client is pulled to a mixture in which similar clients weigh most.

    The gradient is that of L_i + (strength/2)·‖w_i − u_i‖², with ξ from `Attention`: `strength` is how much a client is
    pulled, `sigma` the squared distance at which others count for little, `alpha` the step towards them.
    """
    return attentive(Attention(alpha, sigma), strength, train)


@_method_of_the_paper
def heurfedamp(
    *,
    strength: Annotated[float, Range(least=0), Tune(0.01, 10.0, log=True)] = 0.1,
    own: Annotated[float, Range(least=0, most=1), Tune(0.1, 0.9)] = 0.5,
    sharpness: Annotated[float, Range(least=0), Tune(1.0, 100.0, log=True)] = 10.0,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """HeurFedAMP (Huang et al., 2021): FedAMP that weighs by cosines, with a fixed weight on a client's own model.

    `own` is that weight, `sharpness` how much the nearest others are preferred, `strength` the pull as in FedAMP.
    """
    return attentive(CosineAttention(own, sharpness), strength, train)


def attentive(weights: "Attention | CosineAttention", strength: float, train: LocalTraining) -> Layerwise:
    """Every client is pulled to its own mixture of all models."""
    return Layerwise(
        serve=(CloudModels(weights),),
        mix=(Take("u"), Adopt(("theta",), source="u")),
        train=(replace(train, edits=(*train.edits, Pull(strength, "u"))),),
        send=(Upload(columns="trainable"),),
        merge=(StoreRows(),),
        server={"rows": Start(per_client=True, columns="trainable")},
        client={"theta": Start()},
        welcome=(MeanOfRows(field="u"),),
    )


@record
class Attention:
    """ξ_ij = α·A′(‖w_i − w_j‖²) with A′(x) = e^{−x/σ}/σ, for j ≠ i; ξ_ii is the rest, 1/N at least."""

    alpha: float | None = None  # None: σ
    sigma: float | None = None  # None: the median of all squared distances

    def __call__(self, rows: Rows, layout: Layout) -> Tensor:
        d = layout.squared_distances(rows)
        apart, most = ~torch.eye(len(d), dtype=torch.bool, device=d.device), 1 - 1 / len(d)
        sigma = self.sigma or (float(d[apart].median()) if len(d) > 1 else 0.0) or 1.0
        xi = (sigma if self.alpha is None else self.alpha) / sigma * torch.exp(-d / sigma) * apart
        total = xi.sum(1, keepdim=True)
        return torch.where(total > most, xi * most / total, xi)


@record
class CosineAttention:
    """ξ_ij ∝ exp(sharpness·cos(w_i, w_j)) for j ≠ i, which sum to 1 − own."""

    own: float = 0.5
    sharpness: float = 10.0

    def __call__(self, rows: Rows, layout: Layout) -> Tensor:
        cos = cosines(layout.gram(rows).sum(0, keepdim=True))[0].fill_diagonal_(-1)
        raw = torch.exp(self.sharpness * (cos - cos.amax(1, keepdim=True))).fill_diagonal_(0)
        return (1 - self.own) * raw / raw.sum(1, keepdim=True).clamp(min=torch.finfo(raw.dtype).tiny)  # N may be 1


@record
class CloudModels(Serve):
    """u_i = Σ_j ξ_ij·w_j, with ξ_ii = 1 − Σ_{j≠i} ξ_ij."""

    others: Attention | CosineAttention  # ξ_ij for j ≠ i
    reads = ("rows",)
    writes = ("down.u",)

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        rows = rows_of(server, "rows")
        xi = self.others(rows, rnd.layout)
        return {"u": Field(rnd.layout.blend((xi + torch.diag(1 - xi.sum(1)))[ids.to(xi.device)], rows))}
