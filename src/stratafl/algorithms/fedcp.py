"""FedCP (Zhang et al., 2023): a policy divides the features of each sample between a personal and a shared head.

The shared head is fixed while a client trains; base, personal head and policy learn, and the features stay close to
those of the base that the client received.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedper import fedper
from stratafl.algorithms.prototypes import NeedsClasses
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import FieldSpec, Number
from stratafl.core.layers import select
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows, per_row
from stratafl.core.objectives import Batch, Frozen, Loss, Net, cross_entropies
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.core.steps import Mix, Send
from stratafl.core.task import Task
from stratafl.models.heads import HeadExtension
from stratafl.policies import LocalTraining, Remember, Take, Upload

PERSONAL, GENERIC = select("head.personal"), select("head.generic")
BANDWIDTHS = (10, 15, 20, 50)


@method(
    "personal parts",
    paper="Zhang et al., 2023",
    title="FedCP: Separating Feature Information for Personalized Federated Learning via Conditional Policy",
    sends="the base, the policy, and the mean of the personal and the shared head",
    new_client="the shared base, policy and head; its personal head starts as the shared one",
)
def fedcp(
    *,
    strength: Annotated[float, Range(least=0), Tune(1e-4, 10.0, log=True)] = 1.0,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """Logits h_p(r⊙z) + h_g(s⊙z) with r + s = 1; the loss is their cross-entropy + λ·MMD(z, z of the received base).

    `strength` is λ.
    """
    return replace(
        fedper(personal=PERSONAL),
        mix=(Take(), FirstHead(), Remember()),
        train=(replace(train, layers=~GENERIC, objective=Separation(strength)),),  # h_g is fixed
        send=(UploadMeanHead(),),
        extension=HeadExtension("gated"),
    )


@record
class Separation:
    """CE(h_p(r⊙z) + h_g(s⊙z), y) + λ·MMD(z, z_fixed), where Gumbel noise enters (r, s)."""

    strength: float
    frozen = ("anchor",)
    constants = carries = ()

    def __call__(self, net: Net, row: Rows, frozen: Frozen, batch: Batch, constants: Rows, carry: Rows) -> Loss:
        z, fixed = net.features(row, batch.x), net.features(frozen["anchor"], batch.x)
        gumbel = -torch.log(-torch.log(batch.uniform("gumbel", 2, z.shape[1])))
        loss = batch.mean(cross_entropies(net.part("head", row, z, gumbel), batch.y))
        return loss + self.strength * discrepancy(z, fixed, batch.weight), carry, {}


def discrepancy(a: Tensor, b: Tensor, weight: Tensor) -> Tensor:
    """MMD²: the mean of k(a, a′) + k(b, b′) − 2k(a, b) over pairs of real samples, k a sum of Gaussian kernels."""
    pairs = weight[:, None] * weight / weight.sum().square()
    return (pairs * (_kernel(a, a) + _kernel(b, b) - 2 * _kernel(a, b))).sum()


def _kernel(a: Tensor, b: Tensor) -> Tensor:
    distances = (a[:, None] - b).square().sum(-1)
    return torch.stack([torch.exp(-distances / (2 * s)) for s in BANDWIDTHS]).sum(0)


def _heads(layout: Layout) -> list[tuple[str, str]]:
    """Pairs of tensors: of the personal head, and the same one of the shared head."""
    return list(zip(layout.trainable(PERSONAL), layout.trainable(GENERIC), strict=True))


@record
class FirstHead(NeedsClasses, Mix):
    """The first time a client is met, its personal head starts from the shared one."""

    reads = ("theta", "met")
    writes = ("theta", "met")

    @property
    def keeps(self) -> Mapping[str, FieldSpec]:
        return {"met": Number(0.0)}

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        theta, met = rows_of(client, "theta"), tensor_of(client, "met")
        new = {p: per_row(met == 0, theta[p]) for p, _ in _heads(rnd.layout)}
        first = {p: torch.where(new[p], theta[g], theta[p]) for p, g in _heads(rnd.layout)}
        return {"theta": {**theta, **first}, "met": torch.ones_like(met)}


@record
class UploadMeanHead(Send):
    """All that is shared, with (h_p + h_g)/2 as the head."""

    reads = ("theta",)
    writes = ("up.theta", "up.samples")

    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        theta = rows_of(client, "theta")
        mean = {g: 0.5 * theta[p] + 0.5 * theta[g] for p, g in _heads(rnd.layout)}
        return Upload(~PERSONAL)(rnd, {"theta": {**theta, **mean}}, task)
