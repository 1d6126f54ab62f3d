"""FedPAC (Xu et al., 2023): features aligned to common prototypes, and for each client the best mixture of heads.

FedRep with feature alignment, and with classifier collaboration by a quadratic programme on the server.
"""

from dataclasses import replace
from types import MappingProxyType
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.prototypes import ClassMeans, FromFeatures, Prototypes, class_sums
from stratafl.algorithms.simplex import minimise_on_simplex
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Start
from stratafl.core.layers import select
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Rows
from stratafl.core.objectives import Batch, Frozen, Loss, Net, cross_entropies
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of
from stratafl.core.steps import MergeRows
from stratafl.core.task import Task
from stratafl.policies import Broadcast, Deliver, LocalTraining, Mean, MeanOfRows, Take, Upload

HEAD, BASE = select("head"), select("base")


@method(
    "personal parts",
    paper="Xu et al., 2023",
    title="Personalized Federated Learning with Feature Alignment and Classifier Collaboration",
    sends="the whole model, class counts, and mean features of each class before and after training",
    new_client="the shared base and the mean of all clients' heads",
)
def fedpac(
    *,
    strength: Annotated[float, Range(least=0), Tune(0.01, 10.0, log=True)] = 1.0,
    head_epochs: Annotated[int, Range(least=0), Tune(1, 10)] = 1,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """`head_epochs` on h_i with φ frozen, then train.epochs on φ_i with h_i frozen and L + strength·MSE(z, c_y).

    `strength` is how close features stay to the prototypes c_y.
    """
    shared = (Broadcast(BASE), Broadcast(field="prototypes"), Broadcast(field="known"))
    return replace(
        fedavg(),
        serve=(*shared, Deliver(field="heads")),
        mix=(Take(), Take("heads", "theta"), Take("prototypes"), Take("known")),
        train=(
            FeatureStatistics(),
            replace(train, layers=HEAD, epochs=head_epochs, steps=None, purpose="head"),
            replace(train, layers=BASE, objective=Aligned(strength)),
            ClassMeans(),
        ),
        send=(Upload(), *(Upload(field=name) for name in ("H", "V", "prototypes", "class_counts"))),
        merge=(Mean(), MixHeads(), Prototypes()),
        server={"theta": Start(BASE), "heads": Start(HEAD, per_client=True)},
        welcome=(*shared, MeanOfRows("heads", "heads")),
    )


@record
class FeatureStatistics(FromFeatures):
    """H_i[y] = p_y·μ_y and V_i = (Σ_y p_y·tr E[zzᵀ|y] − Σ_y p_y²·‖μ_y‖²)/n_i of the model as received."""

    reads = ("theta",)
    writes = ("H", "V")

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        z, y, weight = task.features(rows_of(client, "theta"), "train")
        n = weight.sum(1)
        H = class_sums(z, y, weight, task.class_counts("train").shape[1]) / n[:, None, None]
        square = (z.double().square().flatten(2).sum(2) * weight).sum(1) / n  # Σ_y p_y·tr E[zzᵀ|y], without zzᵀ
        return {"H": H.to(z.dtype), "V": ((square - H.square().sum((1, 2))) / n).to(z.dtype)}


@record
class Aligned:
    """CE + strength·MSE(z, c_y), a mean over samples and features; 0 for samples of a class without a prototype."""

    strength: float = 1.0
    frozen = carries = ()
    constants = ("prototypes", "known")

    def __call__(self, net: Net, row: Rows, frozen: Frozen, batch: Batch, constants: Rows, carry: Rows) -> Loss:
        logits, z = net.both(row, batch.x)
        away = (z.flatten(1) - constants["prototypes"][batch.y]).square().mean(1) * constants["known"][batch.y]
        return batch.mean(cross_entropies(logits, batch.y) + self.strength * away), carry, {}


@record
class MixHeads(MergeRows):
    """h_i ← Σ_j α_ij·h_j over the cohort."""

    reads = ("up.theta", "up.H", "up.V", "heads")
    writes = ("heads",)
    bounds = MappingProxyType({"up.V": "nonnegative"})

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        heads, sent, V = rows_of(server, "heads"), up["theta"].rows, up["V"].tensor
        mixed = rnd.layout.blend(head_weights(up["H"].tensor, V).to(V.dtype), {name: sent[name] for name in heads})
        return {"heads": {name: x.index_copy(0, ids.to(x.device), mixed[name]) for name, x in heads.items()}}


def head_weights(H: Tensor, V: Tensor) -> Tensor:
    """`[C, C]`: for each client i the α on the simplex with the least αᵀ(diag(V) + D_i)α, weights below 1e-3 dropped.

    D_i[j, l] = ⟨H_i − H_j, H_i − H_l⟩, so that αᵀD_iα = ‖H_i − Σ_j α_j·H_j‖²: one matrix ⟨H_j, H_l⟩ serves all clients.
    """
    H, V = H.double().flatten(1), V.double()
    H = H - H.mean(0)  # only differences count; rounding would lose them next to a large mean
    gram = H @ H.T
    least = 1e-12 * (gram.diagonal() + V).mean() + 1e-100  # a client with one sample has V = 0
    alpha = minimise_on_simplex(gram + torch.diag(V.maximum(least)), gram)
    sparse = torch.where(alpha < min(1e-3, 0.5 / len(V)), 0, alpha)  # never all of them
    return sparse / sparse.sum(1, keepdim=True)
