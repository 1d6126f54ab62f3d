"""FedAS (Yang et al., 2024): FedPer that aligns the received base to the old one and weights by Fisher information.

Alignment pulls the features of each class to the prototype that the client's last base made of it. Weights by the trace
of the Fisher information are to keep clients that rarely train from spoiling the base.
"""

from dataclasses import replace
from typing import Annotated

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedper import fedper
from stratafl.algorithms.fisher import fisher_trace
from stratafl.algorithms.prototypes import ClassMeans, FromFeatures
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Start
from stratafl.core.layers import select
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Rows
from stratafl.core.objectives import Batch, Frozen, Loss, Net
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of
from stratafl.core.task import Task
from stratafl.policies import Adopt, Broadcast, Copy, LocalTraining, Mean, Take, Upload

BASE, HEAD = select("base"), select("head")


@method(
    "personal parts",
    paper="Yang et al., 2024",
    title="FedAS: Bridging Inconsistency in Personalized Federated Learning",
    sends="the base and the trace of the Fisher information",
    new_client="the shared base and the initial head",
)
def fedas(
    *,
    align_lr: Annotated[float, Range(least=0), Tune(1e-3, 0.1, log=True)] = 0.01,
    align_epochs: Annotated[int, Range(least=0), Tune(1, 5)] = 1,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """Prototypes of the old base, alignment of the received one, training, then F_k = Σ_batches ‖∇ mean NLL‖².

    The alignment takes `align_epochs` at `align_lr`.
    """
    align = LocalTraining(align_lr, align_epochs, train.batch, layers=BASE, objective=ToPrototypes(), purpose="align")
    learn = (OldPrototypes(), align, train, Copy("theta", "old"), Copy("theta", "statistics"))
    return replace(
        fedper(),
        serve=(Broadcast(BASE, columns="trainable"), Broadcast(BASE, "statistics", "statistics")),
        mix=(Take(), Take("statistics", "theta"), Adopt(("old",))),
        train=(*learn, *fisher_trace(train.batch)),
        send=(Upload(BASE, columns="trainable"), Upload(BASE, "statistics", "statistics"), Upload(field="fisher")),
        merge=(Mean(weights="fisher"), Mean("statistics")),
        server={"theta": Start(BASE, columns="trainable"), "statistics": Start(BASE, columns="statistics")},
        client={"theta": Start(HEAD), "old": Start(BASE)},
    )


@record
class OldPrototypes(FromFeatures):
    """c_k[y]: the mean features of each of the client's classes, with the base that it trained last."""

    reads = ("theta", "old")
    writes = ("prototypes",)

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        before: State = {"theta": {**rows_of(client, "theta"), **rows_of(client, "old")}}
        return {"prototypes": ClassMeans()(rnd, before, task)["prototypes"]}


@record
class ToPrototypes:
    """Σ_y MSE(z of the batch's samples of class y, c_k[y]), over the classes in the batch."""

    constants = ("prototypes",)
    frozen = carries = ()

    def __call__(self, net: Net, row: Rows, frozen: Frozen, batch: Batch, constants: Rows, carry: Rows) -> Loss:
        away = (net.features(row, batch.x).flatten(1) - constants["prototypes"][batch.y]).square().mean(1)
        alike = (batch.y[:, None] == batch.y).to(away.dtype) @ batch.weight  # samples of the same class
        return (batch.weight * away / alike.clamp(min=1)).sum(), carry, {}
