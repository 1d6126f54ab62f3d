"""FedALP (Xie et al., 2023): groups of similar clients, each mixing its own model with the global one layer by layer.

A warm-up of FedAvg; then clients are grouped by the cosines of their updates (Eq. 3–4), and every group gets layer
weights Ψ_m from how much each of its layers moves (Eq. 5–8). From there on a client is sent Ψ_m·w_m + (1 − Ψ_m)·w_g
(Eq. 9–10), groups learn from their clients, and the global model from the groups.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stratafl.algorithm import Round, Setup
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.fedlag import cosines
from stratafl.errors import RecordError, unknown
from stratafl.fields import FieldSpec, Number, Start
from stratafl.layout import Layout, Rows
from stratafl.parcel import Field, Parcel
from stratafl.phased import Phase, Phased
from stratafl.policies import SGD, Broadcast
from stratafl.records import record
from stratafl.reduce import add_rows, add_weights, mean_or_hold
from stratafl.state import State, rows_of, tensor_of

Base = Literal["received", "group"]
Gamma = Literal["group", "all"]


def fedalp(
    *,
    beta: float = 0.6,
    groups: int = 4,
    warmup: int = 10,
    base: Base = "received",
    gamma: Gamma = "group",
    features: Literal["cosine", "angle"] = "cosine",
    train: SGD = SGD(),
) -> Phased:
    """Algorithm 1: the last of `warmup` rounds asks everybody for an update, from which the groups are formed.

    `base` is what the group's step is added to: the model its clients received, or the group's old model (line 10 to
    the letter); `gamma` is normalised in the group, or over all clients; `features` are what Ward's method sees.
    """
    if not 0 <= beta <= 1:
        raise RecordError(f"fedalp: beta must be from 0 to 1, not {beta}")
    if groups < 1:
        raise RecordError(f"fedalp: groups must be at least 1, not {groups}")
    if warmup < 1:
        raise RecordError(f"fedalp: warmup must be at least 1 round, whose updates form the groups, not {warmup}")
    for key, given, allowed in (
        ("base", base, ("received", "group")),
        ("gamma", gamma, ("group", "all")),
        ("features", features, ("cosine", "angle")),
    ):
        if given not in allowed:
            raise unknown(f"{key} of fedalp", str(given), allowed)
    server: dict[str, FieldSpec] = {
        "theta": Start(),
        "group": Start(copies=groups),
        "member": Number(0.0, width="clients"),
        "psi": Weights(groups),
        "active": Number(0.0),
    }
    average = replace(fedavg(train=train), server=server, welcome=(Broadcast(),), world="theta")
    formed = replace(average, merge=(FormGroups(groups, beta, features),))
    main = replace(average, serve=(MixGroups(),), merge=(LearnGroups(base, gamma),))
    first = (Phase(average, rounds=warmup - 1),) if warmup > 1 else ()
    return Phased((*first, Phase(formed, rounds=1, participation="all"), Phase(main)))


@record
class Weights:
    """Ψ: a weight per group and layer, 0 before there are groups."""

    groups: int

    def names(self, layout: Layout, side: str) -> None:
        """It keeps no layer of the model."""
        return

    def create(self, setup: Setup, ids: Tensor | None, side: str) -> Tensor:
        """`[M, L]`."""
        return next(iter(setup.start.values())).new_zeros(self.groups, len(setup.layout.layers))


@record
class FormGroups:
    """FedAvg's mean, and from the updates of all clients the groups and their layer weights (Algorithm 2).

    Everybody is asked once, but the mean is over those whom the round would have sampled.
    """

    groups: int
    beta: float = 0.6
    features: Literal["cosine", "angle"] = "cosine"
    reads = ("up.theta", "up.samples", "theta", "group", "member", "psi", "active")
    writes = ("theta", "group", "member", "psi", "active")

    def check(self, setup: Setup) -> None:
        """Refuse more groups than clients."""
        if self.groups > setup.clients:
            raise RecordError(f"fedalp: groups is from 1 to {setup.clients}, the clients, not {self.groups}")

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        """w_g, w_m ← w_g, the members and Ψ."""
        layout, trained, held = rnd.layout, up["theta"].rows, rows_of(server, "theta")
        samples = up["samples"].tensor
        delta = {name: trained[name] - held[name] for name in layout.trainable()}
        labels = ward(cosines(layout.gram(delta).sum(0, keepdim=True))[0], self.groups, self.features)
        sampled = torch.isin(ids.cpu(), rnd.setup.sampled(rnd.t)).to(samples.device)
        weights = samples * sampled
        mean = mean_or_hold(add_rows({}, weights, trained, None), add_weights({}, weights, trained, None), held)
        group = rows_of(server, "group")
        member = tensor_of(server, "member").index_copy(
            0, ids.to(samples.device), labels.to(samples.device).to(_type(server))
        )
        return {
            "theta": mean,
            "group": {name: mean[name].expand(self.groups, *mean[name].shape).clone() for name in group},
            "member": member,
            "psi": self.beta * shares(delta, samples, labels, self.groups, layout).to(_type(server)),
            "active": torch.zeros_like(tensor_of(server, "active")),
        }


def _type(server: State) -> torch.dtype:
    return tensor_of(server, "psi").dtype


def ward(similarity: Tensor, groups: int, features: str = "cosine") -> Tensor:
    """The group of each client: Ward's clustering, with its similarities to everybody as its features.

    An update that overflowed is like none: similar to nobody but itself.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # only whoever forms groups needs scipy
    from scipy.spatial.distance import pdist

    count = len(similarity)
    if count == 1:
        return torch.zeros(1, dtype=torch.int64)
    x: NDArray[np.float64] = similarity.double().cpu().nan_to_num(0.0).clamp(-1, 1).fill_diagonal_(1.0).numpy()
    between = pdist(np.arccos(x) if features == "angle" else x)  # of rows: a matrix of angles is not of distances
    labels = fcluster(linkage(between, "ward"), t=groups, criterion="maxclust")
    return torch.from_numpy(labels.astype(np.int64)) - 1


def shares(delta: Rows, samples: Tensor, labels: Tensor, groups: int, layout: Layout) -> Tensor:
    """δ_m/max δ_m with δ_m^(l) = ‖Σ_{k∈G_m} γ_k·Δw_k^(l)‖₂ (Eq. 5–8): `[M, L]`; 0 for a group that does not move."""
    parts = [samples * (labels.to(samples.device) == m) for m in range(groups)]
    D = [add_rows({}, part / samples.sum(), delta, None) for part in parts]
    lengths = layout.norms({name: torch.stack([d[name] for d in D]) for name in delta})
    longest = lengths.max(1, keepdim=True).values
    return torch.where(longest > 0, lengths / longest.clamp(min=torch.finfo(lengths.dtype).tiny), 0)


@record
class MixGroups:
    """W_new^(l) = Ψ_m^(l)·w_m^(l) + (1 − Ψ_m^(l))·w_g^(l) of each client's group (Eq. 9–10); statistics are w_g's."""

    reads = ("theta", "group", "member", "psi")
    writes = ("down.theta",)

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        """A row per client."""
        m = tensor_of(server, "member")[ids].long()
        rows = group_models(server, rnd.layout)
        return {"theta": Field({name: x[m] for name, x in rows.items()})}


def group_models(server: State, layout: Layout) -> Rows:
    """What each group's clients are sent: `[M, …]`."""
    world, group = rows_of(server, "theta"), rows_of(server, "group")
    psi = layout.spread(tensor_of(server, "psi"), group)
    return {
        n: psi[n] * x + (1 - psi[n]) * world[n] if layout.specs[n].trainable else world[n].expand_as(x)
        for n, x in group.items()
    }


@record
class LearnGroups:
    """w_m ← base + Σ_{k∈G_m} γ_k·Δw_k (line 10), w_g ← Σ_m (Σ_{k∈G_m} γ_k)·w_m (line 11), over those who took part.

    A group of whom nobody did keeps its model and has no weight.
    """

    base: Base = "received"
    gamma: Gamma = "group"
    reads = ("up.theta", "up.samples", "theta", "group", "member", "psi", "active")
    writes = ("theta", "group", "active")

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        """Σ n_k·θ_k and Σ n_k of each group, client by client."""
        trained, samples = up["theta"].rows, up["samples"].tensor.double()
        m = tensor_of(server, "member")[ids].long()
        group = rows_of(server, "group")
        top = {n: x.clone() for n, x in rows_of(sums, "top").items()} if sums else _zeros(group)
        weight = tensor_of(sums, "weight").clone() if sums else samples.new_zeros(len(next(iter(group.values()))))
        for client, place in enumerate(m.tolist()):
            weight[place] += samples[client]
            for name, total in top.items():
                total[place].addcmul_(trained[name][client], samples[client])
        return {"top": top, "weight": weight}

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        """The groups' models and the global one."""
        layout, weight, group = rnd.layout, tensor_of(sums, "weight"), rows_of(server, "group")
        received = group_models(server, layout)
        share = weight / weight.sum()  # Γ_m
        new: Rows = {}
        world: Rows = {}
        for name, top in rows_of(sums, "top").items():
            old, sent = group[name].double(), received[name].double()
            mean = top / _per_group(weight.clamp(min=1e-300), top)
            if layout.specs[name].trainable:
                step = (mean - sent) * (1 if self.gamma == "group" else _per_group(share, top))
                moved = (sent if self.base == "received" else old) + step
            else:
                moved = mean
            kept = torch.where(_per_group(weight > 0, top), moved, old)
            new[name] = kept.to(group[name].dtype)
            world[name] = (_per_group(share, top) * kept).sum(0).to(group[name].dtype)
        active = tensor_of(server, "active")
        return {"theta": world, "group": new, "active": (weight > 0).sum().to(active.dtype)}

    def tell(self, rnd: Round, server: State) -> dict[str, Tensor]:
        """Ψ of every group, layer by layer."""
        return {"psi": tensor_of(server, "psi").T}

    def costs(self, rnd: Round, server: State) -> dict[str, float]:
        """The bytes between the servers: a model each way for each group that took part."""
        model = sum(x.numel() * x.element_size() for x in rows_of(server, "theta").values())
        return {"bytes.between": float(tensor_of(server, "active")) * 2 * model}


def _zeros(group: Rows) -> Rows:
    return {name: torch.zeros_like(x, dtype=torch.float64) for name, x in group.items()}


def _per_group(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *(1,) * (like.ndim - 1))
