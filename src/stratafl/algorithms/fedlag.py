"""FedLAG: layers on which clients' updates conflict become personal.

After every round the server counts, layer by layer, the pairs of clients whose updates conflict (cosine below ξ); the
k worst layers stay with the clients, the others are averaged.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Fixed, Range, Tune
from stratafl.core.fields import Number, Start
from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout
from stratafl.core.parcel import Field, LayerMask, Parcel
from stratafl.core.phased import Phase, Phased, warm_up
from stratafl.core.records import record
from stratafl.core.reduce import conflicting_pairs
from stratafl.core.round import Round, Setup
from stratafl.core.state import Computed, State, expand, rows_of, tensor_of
from stratafl.core.steps import MergeRows, field_names
from stratafl.errors import RecordError
from stratafl.policies import Broadcast, LocalTraining, Mean, Take
from stratafl.policies.serve import Download

WarmUpRounds = Annotated[int, Range(least=0), Fixed("a number of rounds: tune `warmup_share`")]
WarmUpShare = Annotated[float, Range(least=0, below=1), Tune(0.0, 0.6)]


@method(
    "personal parts",
    paper="anonymous, 2024",
    title="Towards Layer-Wise Personalized Federated Learning: "
    "Adaptive Layer Disentanglement via Conflicting Gradients",
    new_client="the mean of all layers, the personal ones included",
)
def fedlag(
    *,
    k: Annotated[int, Range(least=0), Tune(1, 5)] | None = None,
    xi: Annotated[float, Range(above=-1, most=0), Tune(-0.5, 0.0)] = -0.1,
    warmup: WarmUpRounds | None = None,
    warmup_share: WarmUpShare = 0.25,
    weights: Literal["samples", "uniform"] = "samples",
    bn: Literal["follow", "averaged"] = "follow",
    train: LocalTraining = LocalTraining(),
) -> Phased:
    """FedLAG (anonymous, 2024): layers on which clients' updates conflict become personal.

    Algorithm 1: after a warm-up of FedAvg, the `k` layers with the most conflicts are personal; two updates conflict in
    a layer where their cosine is below `xi` (Eq. 3). A layer without a conflict never is. Left open, `k` is the paper's
    5, or half of a model's layers if it has fewer than ten. The warm-up takes `warmup` rounds, or else `warmup_share`
    of the run's. `weights="uniform"` is Eq. 4; `bn` says whether a BatchNorm follows the layer that it normalises or is
    always averaged.
    """
    conflicts, mean = PersonaliseConflicts(k, xi, bn), Mean(weights=weights)
    # The warm-up personalises nothing, but the server already keeps what each client uploads: in the first round after
    # it, that is where a client's personal layers are.
    rounds = warm_up(warmup, warmup_share)
    first = (Phase(_lag(replace(conflicts, k=0), mean, train), rounds=rounds),) if rounds else ()
    return Phased((*first, Phase(_lag(conflicts, mean, train))))


def _lag(conflicts: "PersonaliseConflicts", mean: Mean, train: LocalTraining) -> Layerwise:
    return replace(
        fedavg(train=train),
        serve=(BroadcastShared(),),  # Eq. 4: θ_{l,u}^(r+1) for l ∈ L_g
        mix=(Take(),),  # Eq. 5: of a layer that is not sent, l ∈ L_p, a client keeps its own θ_{l,u}^(r,E)
        merge=(conflicts, mean),  # w_g, Algorithm 1 line 13: the mean of all layers, those of L_p too
        server={
            "theta": Start(),
            "rows": Start(per_client=True),
            "personal": Number(0.0, width="layers"),
            "conflicts": Number(0.0, width="layers"),
        },
        client={"theta": Start()},
        welcome=(Broadcast(),),
    )


@record
class BroadcastShared(Download):
    """The averaged layers, those of L_g (Eq. 4); of L_p nothing is sent, and `Take` leaves a client's own (Eq. 5)."""

    masked = True
    reads = field_names("{field}", "personal")

    def footprint(self, setup: Setup) -> Footprint:
        """Each client puts what it received and what it keeps together."""
        return Footprint(client=setup.row_bytes())

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        shared = tensor_of(server, "personal") == 0  # L_g
        return {self.field: Field(self.sent(rnd, server), common=True, mask=LayerMask(shared))}


@record
class PersonaliseConflicts(MergeRows):
    """L_p ← the k layers with the most conflicting pairs (Eq. 1–3, Algorithm 2); what clients trained is stored.

    It looks at what clients started from, so it comes before the mean that replaces the server's model.
    """

    k: int | None = None
    xi: float = -0.1
    bn: Literal["follow", "averaged"] = "follow"
    field: str = "theta"
    layers: Select = select("all")  # those that may become personal
    writes = ("rows", "personal", "conflicts")
    reads = field_names("up.{field}", "{field}", *writes)
    compares = True

    @property
    def stores(self) -> Mapping[str, str]:
        return {self.field: "rows"}

    def check(self, setup: Setup) -> None:
        most = len(self._scored(setup.layout))
        if self.k is not None and self.k > most:
            raise RecordError(f"fedlag: choose k from 0 to {most}, the number of scored layers, not {self.k}")

    def tell(self, rnd: Round, server: State) -> dict[str, Tensor]:
        """The conflicting pairs of each layer, and whether it is personal."""
        return {"conflicting_pairs": tensor_of(server, "conflicts"), "personal": tensor_of(server, "personal")}

    def footprint(self, setup: Setup) -> Footprint:
        """Uploads, starts and updates of one tensor at a time."""
        return Footprint(absorbed=3 * setup.block_bytes())

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        """Scores from what each client started from, as the server knows it."""
        layout, trained = rnd.layout, up[self.field].rows
        rows, start = rows_of(server, "rows"), started(server, ids, layout, self.field)
        names = [name for name in layout.trainable() if name in start]
        h = Computed(names, lambda name: start[name].neg_().add_(trained[name]))  # Eq. 1–2, in one block
        conflicts = conflicting_pairs(layout.gram(h), self.xi)  # GC_ξ(l), Eq. 3
        like = tensor_of(server, "personal")
        return {
            "rows": {name: x.index_copy(0, ids.to(x.device), trained[name]) for name, x in rows.items()},
            "personal": self._personal(conflicts, layout).to(like.dtype),  # L_p, Algorithm 2 line 8
            "conflicts": conflicts.to(like.dtype),
        }

    def _scored(self, layout: Layout) -> list[int]:
        allowed = {layout.index[name] for name in layout.resolve(self.layers)}
        return [i for i in layout.computing if i in allowed]

    def _personal(self, conflicts: Tensor, layout: Layout) -> Tensor:
        """Booleans `[L]`: the k scored layers with the most conflicts, of equals the later, and their BatchNorms."""
        scored = torch.tensor(self._scored(layout), dtype=torch.int64, device=conflicts.device)
        scores = conflicts[scored].flip(0)
        most = min(5, max(1, len(scored) // 2)) if self.k is None else self.k  # where k is left open, half at most
        order = scores.argsort(descending=True, stable=True)[:most]
        personal = torch.zeros(len(layout.layers), dtype=torch.bool, device=conflicts.device)
        personal[scored.flip(0)[order]] = scores[order] > 0
        if self.bn == "follow":
            personal = personal[torch.tensor(layout.leaders, device=conflicts.device)]
        return personal


def started(server: State, ids: Tensor, layout: Layout, field: str = "theta") -> Mapping[str, Tensor]:
    """w_u^(r): what these clients started the round from, as the server knows it: their own layers in L_p, else w_g."""
    rows, w_g = rows_of(server, "rows"), expand(rows_of(server, field), len(ids))
    personal = layout.spread(tensor_of(server, "personal") > 0, rows)  # l ∈ L_p
    # Eq. 5: θ_{l,u}^(r−1,E), which they uploaded last; Eq. 4 for all other layers.
    return Computed(rows, lambda name: torch.where(personal[name], rows[name][ids], w_g[name]))
