"""FedCAC (Wu et al., 2023): what matters most to a client is averaged over similar clients alone, the rest over all."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.catalogue import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Filled, Start
from stratafl.core.footprint import Footprint
from stratafl.core.layerwise import Layerwise
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import Computed, State, expand, rows_of
from stratafl.core.steps import MergeRows, Serve
from stratafl.policies import SGD, Broadcast, Mean

EQUAL = 1e-9  # overlaps are ratios of counts: many are equal, or meet their mean


@method(
    "personal parts",
    paper="Wu et al., 2023",
    title="Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through Cautiously "
    "Aggressive Collaboration",
    sends="the whole model",
    new_client="the global model",
)
def fedcac(
    *,
    share: Annotated[float, Range(least=0, most=1), Tune(0.1, 0.9)] = 0.5,
    beta: Annotated[float, Range(above=0), Tune(10.0, 300.0, log=True)] = 100.0,
    train: SGD = SGD(),
) -> Layerwise:
    """θ_i ← M_i⊙w_i + (1 − M_i)⊙w_g, with w_i the mean over clients whose critical parameters M overlap with M_i.

    Of each tensor a `share` is critical. Clients look for others ever more carefully; after `beta` rounds they are
    alone.
    """
    return replace(
        fedavg(train=train),
        serve=(Customised(),),
        merge=(Customise(share, beta), Mean()),  # it compares with what clients were sent, so before the mean
        server={
            "theta": Start(),  # w_g
            "customised": Start(per_client=True, columns="trainable"),  # w_i
            "critical": Filled(0.0, per_client=True),  # M_i
        },
        welcome=(Broadcast(),),
        global_model="theta",
    )


@record
class Customised(Serve):
    """M_i⊙w_i + (1 − M_i)⊙w_g with the newest w_g, and its statistics; before a client took part, M_i = 0."""

    reads = ("theta", "customised", "critical")
    writes = ("down.theta",)

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        w_g, w, M = (rows_of(server, name) for name in self.reads)
        w_g, at = expand(w_g, len(ids)), ids.to(next(iter(w_g.values())).device)
        return {"theta": Field({n: torch.where(M[n][at] > 0, w[n][at], x) if n in w else x for n, x in w_g.items()})}


@record
class Customise(MergeRows):
    """M_i and w_i of the clients that took part; the server knows what it sent, so that M_i need not be uploaded."""

    share: float
    beta: float
    reads = ("up.theta", *Customised.reads)
    writes = ("customised", "critical")

    def footprint(self, setup: Setup) -> Footprint:
        """What was sent and the masks, and one tensor at a time in float64 with its ranks."""
        return Footprint(absorbed=2 * setup.row_bytes() + 4 * setup.block_bytes(torch.float64))

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        old, new = Customised()(rnd, server, ids)["theta"].rows, up["theta"].rows
        w, held = (rows_of(server, name) for name in self.writes)
        M = {n: critical((new[n] - old[n]) * new[n], self.share) for n in w}
        at = ids.to(next(iter(M.values())).device)
        shared = rnd.layout.gram(Computed(M, lambda n: M[n].double())).sum(0)  # ‖M_i ∧ M_j‖₁
        C = collaborators(shared / shared.diagonal().clamp(min=1), rnd.t / self.beta).double()
        mean = Computed(w, lambda n: rnd.layout.blend((C / C.sum(1, keepdim=True)).to(M[n].dtype), {n: new[n]})[n])
        customised = {n: x.index_copy(0, at, mean[n]) for n, x in w.items()}
        return {"customised": customised, "critical": {n: x.index_copy(0, at, M[n]) for n, x in held.items()}}


def critical(change: Tensor, share: float) -> Tensor:
    """1 for the ⌈share·size⌉ entries with the largest Ω = |(θ_new − θ_old)·θ_new| of a client, of equals the first."""
    omega = change.abs().reshape(len(change), -1)
    count = math.ceil(round(share * omega.shape[1], 6))  # 0.3 of ten are three
    first = omega.argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(omega).scatter_(1, first, 1.0).reshape(change.shape)


def collaborators(overlap: Tensor, care: float) -> Tensor:
    """C_i = {i} ∪ {j: o_ij ≥ mean + care·(max − mean)} as booleans `[C, C]`, with care = t/β.

    All M have one size, so that o_ij = 1 − ‖M_i − M_j‖₁/(2·‖M_i‖₁) is the share of the entries that are in both.
    """
    alone = torch.eye(len(overlap), dtype=torch.bool, device=overlap.device)
    if len(overlap) == 1:
        return alone
    o = overlap[~alone]
    return alone | (overlap >= torch.lerp(o.mean(), o.max(), care) - EQUAL)
