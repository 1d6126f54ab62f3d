"""FedCAC (Wu et al., 2023): critical parameters of a client are averaged over similar clients, the rest over all."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Filled, Start
from stratafl.core.footprint import Footprint
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Rows
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import record
from stratafl.core.reduce import PIECE, pieces
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of
from stratafl.core.steps import MergeRows, Serve
from stratafl.policies import Broadcast, LocalTraining, Mean


@method(
    "personal parts",
    paper="Wu et al., 2023",
    title="Bold but Cautious: Unlocking the Potential of Personalized Federated Learning through Cautiously "
    "Aggressive Collaboration",
)
def fedcac(
    *,
    share: Annotated[float, Range(least=0, most=1), Tune(0.1, 0.9)] = 0.5,
    beta: Annotated[float, Range(above=0), Tune(10.0, 300.0, log=True)] = 100.0,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """θ_i ← M_i⊙w_i + (1 − M_i)⊙w_g, with w_i the mean over clients whose critical parameters M overlap with M_i.

    Of each tensor a `share` is critical. Clients choose others ever more carefully; after `beta` rounds they are alone.
    """
    rows = Start(per_client=True, columns="trainable")
    return replace(
        fedavg(train=train),
        serve=(Customised(),),
        merge=(Customise(share, beta), Mean()),  # it compares with what clients were sent, so before the mean
        server={"theta": Start(), "customised": rows, "critical": Filled(per_client=True)},  # w_g, w_i, M_i
        welcome=(Broadcast(),),
        global_model="theta",
    )


@record
class Customised(Serve):
    """M_i⊙w_i + (1 − M_i)⊙w_g with the newest w_g, and its statistics; before a client took part, M_i = 0."""

    reads = ("theta", "customised", "critical")
    writes = ("down.theta",)

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        return {"theta": Field({name: sent(name, server, ids) for name in rows_of(server, "theta")})}


def sent(name: str, server: State, ids: Tensor) -> Tensor:
    w_g, w, M = (rows_of(server, field) for field in Customised.reads)
    x, at = w_g[name].expand(len(ids), *w_g[name].shape), ids.to(w_g[name].device)
    return torch.where(M[name][at] > 0, w[name][at], x) if name in w else x


@record
class Customise(MergeRows):
    """M_i and w_i of the clients that took part; the server knows what it sent, so that M_i need not be uploaded."""

    share: float
    beta: float
    reads = ("up.theta", *Customised.reads)
    writes = ("customised", "critical")
    compares = True

    def footprint(self, setup: Setup) -> Footprint:
        """The masks, one tensor of all clients twice, pieces of masks in float64; and a tensor of a client, ranked."""
        client_bytes = setup.row_bytes(dtype=torch.bool) + 2 * setup.block_bytes() + PIECE * torch.float64.itemsize
        return Footprint(absorbed=client_bytes, merge=6 * setup.block_bytes(torch.float64))

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        new, (w, M_old), single_ids = up["theta"].rows, (rows_of(server, name) for name in self.writes), ids.split(1)
        pairs = {n: zip(new[n].split(1), single_ids, strict=True) for n in w}
        M = {n: torch.cat([critical(x, sent(n, server, i), self.share) for x, i in pairs[n]]) for n in w}
        C = collaborators(overlaps(M), rnd.t / self.beta).double()
        mean, at = C / C.sum(1, keepdim=True), ids.to(C.device)
        w = {n: x.index_copy(0, at, rnd.layout.blend(mean.to(x.dtype), {n: new[n]})[n]) for n, x in w.items()}
        return {"customised": w, "critical": {n: x.index_copy(0, at, M[n].to(x.dtype)) for n, x in M_old.items()}}


def critical(new: Tensor, old: Tensor, share: float) -> Tensor:
    """M: the ⌈share·size⌉ entries with the largest Ω = |(θ_new − θ_old)·θ_new| of each client, of equals the first."""
    omega = ((new - old) * new).abs().reshape(len(new), -1)
    count = math.ceil(round(share * omega.shape[1], 6))  # 0.3 of ten are three
    first = omega.argsort(dim=1, descending=True, stable=True)[:, :count]
    return torch.zeros_like(omega, dtype=torch.bool).scatter_(1, first, True).reshape(new.shape)


def overlaps(M: Rows) -> Tensor:
    """o_ij = 1 − ‖M_i − M_j‖₁/(2·‖M_i‖₁): all M have one size, so it is the share of the entries that are in both."""
    parts = (x.reshape(len(x), -1)[:, some].double() for x in M.values() for some in pieces(x[0].numel()))
    both = sum((x @ x.T for x in parts), torch.zeros((), dtype=torch.float64))
    return both / both.diagonal().clamp(min=1)


def collaborators(overlap: Tensor, care: float) -> Tensor:
    """C_i = {i} ∪ {j: o_ij ≥ mean + care·(max − mean)} as booleans `[C, C]`, with care = t/β."""
    alone = torch.eye(len(overlap), dtype=torch.bool, device=overlap.device)
    if len(overlap) == 1:
        return alone
    o = overlap[~alone]
    return alone | (overlap >= torch.lerp(o.mean(), o.max(), care) - 1e-9)  # ratios of counts: many are equal
