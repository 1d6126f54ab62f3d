"""GPFL (Zhang et al., 2023): a valve derives global features, guided by class embeddings, and personal features.

Base, embeddings and valve are shared; every client has its own classifier, which sees the personal features.
"""

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn.functional import normalize

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedper import fedper
from stratafl.core.annotations import Range, Tune
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows
from stratafl.core.objectives import Batch, Frozen, Loss, Net, cross_entropies
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of
from stratafl.core.steps import Mix
from stratafl.core.task import Task
from stratafl.models.heads import HeadExtension
from stratafl.policies import LocalTraining, Take
from stratafl.policies.descent import Fields

FREQUENCIES, EMBEDDING = select("head.frequencies"), select("head.embedding")
GUIDE = select("head.embedding+head.valve")


@method(
    "personal parts",
    paper="Zhang et al., 2023",
    title="GPFL: Simultaneously Learning Global and Personalized Feature Information for Personalized Federated "
    "Learning",
    sends="the base, the class embeddings and the valve",
    new_client="the shared layers, its own class frequencies and the initial classifier",
)
def gpfl(
    *,
    strength: Annotated[float, Range(least=0), Tune(1e-4, 1.0, log=True)] = 0.01,
    decay: Annotated[float, Range(least=0), Tune(1e-4, 1.0, log=True)] = 0.1,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """Clients predict with h(CoV(z, p)); λ is `strength`, μ the weight decay of embeddings and valve, `decay`."""
    edits = (*train.edits, Decay(decay - train.weight_decay, GUIDE))
    return replace(
        fedper(personal="head.classifier+head.frequencies"),
        mix=(Take(), Conditions()),
        train=(replace(train, layers=~FREQUENCIES, objective=Guided(strength), edits=edits),),
        extension=HeadExtension("conditional"),
    )


@record
class Conditions(Mix):
    """From the received embeddings e: g = mean_c e_c and p = Σ_c f_c·e_c, with the client's class frequencies f."""

    frequencies: Select = FREQUENCIES
    embedding: Select = EMBEDDING
    reads = ("theta",)
    writes = ("theta", "embeddings", "generic", "personal")

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        theta = rows_of(client, "theta")
        (f,), (e,) = rnd.layout.trainable(self.frequencies), rnd.layout.trainable(self.embedding)
        embeddings, counts = theta[e], task.class_counts().to(theta[e].dtype)
        frequencies = counts / counts.sum(1, keepdim=True).clamp(min=1)
        personal = (frequencies[:, :, None] * embeddings).sum(1)
        conditions = {"embeddings": embeddings, "generic": embeddings.mean(1), "personal": personal}
        return {"theta": {**theta, f: frequencies}, **conditions}


@record
class Guided:
    """CE(h(CoV(z, p)), y) + CE(cos(CoV(z, g), e), y) + λ·‖CoV(z, g) − e_y as received‖ over the batch."""

    strength: float
    constants = ("embeddings", "generic", "personal")
    frozen = carries = ()

    def __call__(self, net: Net, row: Rows, frozen: Frozen, batch: Batch, constants: Rows, carry: Rows) -> Loss:
        received, g, p = (constants[name] for name in self.constants)
        z = net.features(row, batch.x)
        generic, personal = (net.part("head.valve", row, z, condition) for condition in (g, p))
        cosines = normalize(generic, dim=1) @ normalize(net.part("head.embedding", row), dim=1).T
        logits = net.part("head.classifier", row, personal)
        guided = cross_entropies(cosines, batch.y) + cross_entropies(logits, batch.y)
        return batch.mean(guided) + self.strength * _magnitude(generic - received[batch.y], batch), carry, {}


def _magnitude(distances: Tensor, batch: Batch) -> Tensor:
    """The norm over all real samples, whose gradient at 0 is 0."""
    norm: Tensor = torch.linalg.vector_norm(distances * batch.weight[:, None])
    return norm


@record
class Decay:
    """Weight decay of some layers, in addition to that of the optimiser."""

    strength: float
    layers: Select
    reads = ()

    def __call__(self, gradients: Rows, row: Rows, client: Fields, layout: Layout) -> Rows:
        decayed = {n for n in layout.trainable(self.layers) if n in gradients}
        return {n: g + self.strength * row[n] if n in decayed else g for n, g in gradients.items()}
