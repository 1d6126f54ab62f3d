"""FedALP: groups of similar clients, each with its own layer weights.

A warm-up of FedAvg; then clients are grouped by the cosines of their updates (Eq. 3–4), and every group gets layer
weights Ψ_m from how much each of its layers moves (Eq. 5–8). From there on a client is sent Ψ_m·w_m + (1 − Ψ_m)·w_g
(Eq. 9–10), groups learn from their clients, and the global model from the groups.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Fixed, Range, Tune
from stratafl.core.fields import Count, FieldSpec, Number, ShareOfClients, Side, Start, count_of
from stratafl.core.footprint import Footprint
from stratafl.core.layout import Layout, Rows, per_row
from stratafl.core.parcel import Field, Parcel
from stratafl.core.phased import Phase, Phased, warm_up
from stratafl.core.records import record
from stratafl.core.reduce import add_group_sums, add_rows, add_rows_by_group, add_weights, cosines, mean_or_hold, pieces
from stratafl.core.round import Round, Setup
from stratafl.core.state import Computed, State, rows_of, tensor_of
from stratafl.core.steps import MergeRows, MergeSums, Serve
from stratafl.errors import RecordError
from stratafl.policies import Broadcast, LocalTraining

Base = Literal["received", "group"]
Gamma = Literal["group", "all"]
USUAL_GROUPS = ShareOfClients(0.75, least=2, most=20)  # the server keeps a model for each group


@method(
    "clustered",
    paper="Xie et al., 2023",
    title="FedALP: An Adaptive Layer-Based Approach for Improved Personalized Federated Learning",
)
def fedalp(
    *,
    beta: Annotated[float, Range(least=0, most=1), Tune(0.3, 1.0)] = 0.6,
    groups: Annotated[int, Range(least=1), Tune(2, 10)] | None = None,
    warmup: Annotated[int, Range(least=1), Fixed("a number of rounds: tune `warmup_share`")] | None = None,
    warmup_share: Annotated[float, Range(least=0, below=1), Tune(0.4, 0.7)] = 0.5,
    base: Base = "received",
    gamma: Gamma = "group",
    features: Literal["cosine", "angle"] = "cosine",
    train: LocalTraining = LocalTraining(),
) -> Phased:
    """FedALP (Xie et al., 2023): groups of clients, each mixing its model with the global one, layer by layer.

    Algorithm 1: the last round of the warm-up asks all clients for an update, from which groups are formed: `groups` of
    them, or else three for every four clients, from 2 to 20. The warm-up takes `warmup` rounds, or else
    `warmup_share` of the run's, and one at least. `beta` is the largest weight of a group's own layers (Eq. 8). `base`
    is what the group's step is added to: the model its clients received, or the group's old model (line 10 to the
    letter); `gamma` is normalised in the group, or over all clients; `features` are what Ward's method sees.
    """
    M = USUAL_GROUPS if groups is None else groups
    server: dict[str, FieldSpec] = {
        "theta": Start(),
        "group": Start(copies=M),
        "member": Number(0.0, width="clients"),
        "psi": LayerWeights(M),
        "active": Number(0.0),
    }
    average = replace(fedavg(train=train), server=server, welcome=(Broadcast(),), global_model="theta")
    formed = replace(average, merge=(FormGroups(M, beta, features),))
    main = replace(average, serve=(MixGroups(M),), merge=(LearnGroups(base, gamma, M),))
    rounds = warm_up(warmup, warmup_share, less=1)
    first = (Phase(average, rounds=rounds),) if rounds else ()
    probe = Phase(formed, rounds=1, participation="all", only_sampled_learn=True)
    return Phased((*first, probe, Phase(main)))


@record
class LayerWeights(FieldSpec):
    """Ψ: a weight per group and layer, 0 before there are groups."""

    groups: Count

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Tensor:
        """`[M, L]`."""
        groups = count_of(self.groups, setup.clients)
        return next(iter(setup.start.values())).new_zeros(groups, len(setup.layout.layers))


@record
class FormGroups(MergeRows):
    """FedAvg's mean, and from the updates of all clients the groups and their layer weights (Algorithm 2).

    Everybody is asked once, but the mean is over those whom the round would have sampled. Groups are numbered by the
    ids of their clients, whatever the order of the cohort; an update that overflowed counts as none.
    """

    groups: Count
    beta: float = 0.6
    features: Literal["cosine", "angle"] = "cosine"
    reads = ("up.theta", "up.samples", "theta", "group", "member", "psi", "active")
    writes = ("theta", "group", "member", "psi", "active")
    compares = True

    def check(self, setup: Setup) -> None:
        groups = count_of(self.groups, setup.clients)
        if groups > setup.clients:
            raise RecordError(f"fedalp: choose groups from 1 to {setup.clients} (all clients), not {groups}")

    def footprint(self, setup: Setup) -> Footprint:
        """Uploads and updates of one tensor at a time, what they come to in each group, and the mean's sums."""
        block, row = (f(dtype=torch.float64) for f in (setup.block_bytes, setup.row_bytes))
        groups = count_of(self.groups, setup.clients)
        return Footprint(absorbed=3 * setup.block_bytes(), merge=(groups + 1) * block + row)

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        """w_g, w_m ← w_g, the members and Ψ."""
        layout, trained, w_g = rnd.layout, up["theta"].rows, rows_of(server, "theta")
        samples, member, psi = up["samples"].tensor, tensor_of(server, "member"), tensor_of(server, "psi")
        order = ids.argsort()
        change = Computed(layout.trainable(), lambda name: trained[name][order].sub_(w_g[name]))
        delta_w = without_overflow(change)  # Δw_k
        rho = cosines(layout.gram(delta_w).sum(0, keepdim=True))[0]  # Eq. 3–4
        labels = ward(rho, len(psi), self.features).to(member.device)
        share = shares(delta_w, samples[order], labels, len(psi), layout)  # Eq. 5–7
        mean = _mean_of_sampled(rnd, trained, samples, ids, w_g)
        return {
            "theta": mean,
            "group": {n: mean[n].expand_as(x).clone() for n, x in rows_of(server, "group").items()},
            "member": member.index_copy(0, ids[order].to(member.device), labels.to(member.dtype)),
            "psi": self.beta * share.to(psi.dtype),  # Eq. 8
            "active": torch.zeros_like(tensor_of(server, "active")),
        }


def _mean_of_sampled(rnd: Round, trained: Mapping[str, Tensor], samples: Tensor, ids: Tensor, old: Rows) -> Rows:
    """FedAvg's mean over the sampled clients. The others are left out: 0 · ∞ of one that overflowed would be NaN."""
    sampled = rnd.sampled(ids).nonzero()[:, 0]
    rows, weights = Computed(trained, lambda name: trained[name][sampled]), samples[sampled]
    return mean_or_hold(add_rows({}, weights, rows, None), add_weights({}, weights, rows, None), old)


def ward(similarity: Tensor, groups: int, features: str = "cosine") -> Tensor:
    """The group of each client by Ward's clustering; the features of a client are its similarities to all clients.

    An update that overflowed is similar only to itself.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # a second to import, which only this method needs
    from scipy.spatial.distance import pdist

    count = len(similarity)
    if count == 1:
        return torch.zeros(1, dtype=torch.int64)
    x: NDArray[np.float64] = similarity.double().cpu().nan_to_num(0.0).clamp(-1, 1).fill_diagonal_(1.0).numpy()
    between = pdist(np.arccos(x) if features == "angle" else x)  # between rows: angles are not Euclidean distances
    labels = fcluster(linkage(between, "ward"), t=groups, criterion="maxclust")
    return torch.from_numpy(labels.astype(np.int64)) - 1


def shares(delta: Mapping[str, Tensor], samples: Tensor, labels: Tensor, groups: int, layout: Layout) -> Tensor:
    """δ_m/max δ_m, δ_m^(l) = ‖Σ_{k∈G_m} γ_k·Δw_k^(l)‖₂ (Eq. 5–8 without β): `[M, L]`; 0 where a group stays."""
    gamma = samples.double() / samples.sum()  # a quotient of whole numbers would be rounded to float32
    places = labels.to(samples.device)
    D = Computed(delta, lambda n: add_rows_by_group({}, places, groups, gamma, {n: delta[n]})[n])  # Eq. 5
    lengths = layout.norms(D)  # δ_m, Eq. 6–7
    longest = lengths.max(1, keepdim=True).values
    return torch.where(longest > 0, lengths / longest.clamp(min=torch.finfo(lengths.dtype).tiny), 0)


def without_overflow(delta: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The updates, with 0 for a client whose update is not finite: it would make the sum of its group NaN.

    A block is computed each time it is read, so that no copy of all updates is kept.
    """
    finite = torch.stack([torch.stack([row.isfinite().all() for row in delta[name]]) for name in delta]).all(0)

    def block(name: str) -> Tensor:
        x = delta[name]
        return x if bool(finite.all()) else x.masked_fill(~per_row(finite, x), 0)

    return Computed(delta, block)


@record
class MixGroups(Serve):
    """W_new^(l) = Ψ_m^(l)·w_m^(l) + (1 − Ψ_m^(l))·w_g^(l) of each client's group (Eq. 9–10); statistics are w_g's."""

    groups: Count = USUAL_GROUPS
    reads = ("theta", "group", "member", "psi")
    writes = ("down.theta",)

    def footprint(self, setup: Setup) -> Footprint:
        """A row per client, mixed for all groups, one tensor at a time."""
        return Footprint(
            client=setup.row_bytes(), served=3 * count_of(self.groups, setup.clients) * setup.block_bytes()
        )

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        m = tensor_of(server, "member")[ids].long()
        rows = group_models(server, rnd.layout)
        return {"theta": Field({name: x[m] for name, x in rows.items()})}


def group_models(server: State, layout: Layout) -> Mapping[str, Tensor]:
    """What each group's clients are sent: `[M, …]`."""
    shared, group = rows_of(server, "theta"), rows_of(server, "group")
    psi = layout.spread(tensor_of(server, "psi"), group)

    def block(n: str) -> Tensor:
        x = group[n]
        return psi[n] * x + (1 - psi[n]) * shared[n] if layout.specs[n].trainable else shared[n].expand_as(x)

    return Computed(group, block)


@record
class LearnGroups(MergeSums):
    """w_m ← base + Σ_{k∈G_m} γ_k·Δw_k (line 10), w_g ← Σ_m (Σ_{k∈G_m} γ_k)·w_m (line 11), over the cohort.

    A group without a client in the cohort keeps its model and has no weight.
    """

    base: Base = "received"
    gamma: Gamma = "group"
    groups: Count = USUAL_GROUPS
    reads = ("up.theta", "up.samples", "theta", "group", "member", "psi", "active")
    writes = ("theta", "group", "active")

    def footprint(self, setup: Setup) -> Footprint:
        """A sum per group, and the models that groups received, one tensor at a time."""
        groups, block = count_of(self.groups, setup.clients), setup.block_bytes(torch.float64)
        merge = 3 * groups * setup.block_bytes() + block
        return Footprint(sums=groups * setup.row_bytes(dtype=torch.float64), client=block, merge=merge)

    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        """Σ n_k·θ_k and Σ n_k of each group, client by client."""
        samples, groups = up["samples"].tensor, len(tensor_of(server, "psi"))
        m = tensor_of(server, "member")[ids].long()
        return add_group_sums(sums, m, groups, samples, up["theta"].rows)

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        layout, weight, group = rnd.layout, tensor_of(sums, "weight"), rows_of(server, "group")
        W_new = group_models(server, layout)  # Eq. 9–10
        share = weight / weight.sum()  # Γ_m = Σ_{k∈G_m} γ_k
        new: Rows = {}
        shared: Rows = {}
        for name, top in rows_of(sums, "top").items():
            flat = [x.reshape(len(weight), -1) for x in (top, group[name], W_new[name])]
            new[name] = torch.empty_like(group[name], memory_format=torch.contiguous_format)
            shared[name] = torch.empty_like(new[name][0])
            for some in pieces(flat[0].shape[1]):
                part, old, sent = (x[:, some].double() for x in flat)
                mean = part / weight.clamp(min=1e-300)[:, None]  # Σ_{k∈G_m} γ_k·w_k, γ normalised in the group
                if layout.specs[name].trainable:
                    delta_w = mean - sent  # Σ_{k∈G_m} γ_k·Δw_k, as every client of G_m returns Δw_k = w_k − W_new
                    step = delta_w * (1 if self.gamma == "group" else share[:, None])
                    moved = (sent if self.base == "received" else old) + step  # line 10
                else:
                    moved = mean
                w_m = torch.where(weight[:, None] > 0, moved, old)
                new[name].view(len(weight), -1)[:, some] = w_m.to(group[name].dtype)
                shared[name].view(-1)[some] = (share[:, None] * w_m).sum(0).to(group[name].dtype)  # line 11
        active = tensor_of(server, "active")
        return {"theta": shared, "group": new, "active": (weight > 0).sum().to(active.dtype)}

    def tell(self, rnd: Round, server: State) -> dict[str, Tensor]:
        """Ψ of every group, layer by layer."""
        return {"psi": tensor_of(server, "psi").T}

    def communication(self, rnd: Round, server: State) -> dict[str, float]:
        """The bytes between the servers: a model each way for each group that took part."""
        model = sum(x.numel() * x.element_size() for x in rows_of(server, "theta").values())
        return {"bytes.between": float(tensor_of(server, "active")) * 2 * model}
