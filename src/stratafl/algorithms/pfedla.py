"""pFedLA and HeurpFedLA: the server mixes the models of all clients, layer by layer, for each of them.

The server keeps the latest model θ_j of every client and, for each client i, an embedding v_i and a hypernetwork ψ_i.
Client i is sent θ̄_i^l = Σ_j α_i^{l,j}·θ_j^l (Eq. 6); what it learned from there, Δθ_i, moves v_i and ψ_i (Eq. 10–11).
The paper gives no rate for these steps. Their scale is that of ⟨θ_j^l, Δθ_i^l⟩, which depends on the layer's size, the
local learning rate and the number of local steps, so by default a cosine takes its place (`LearnFromCosines`).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Literal, Protocol

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.hypernetwork import Hypernetwork, Width
from stratafl.core.annotations import Fixed, Range, Tune
from stratafl.core.fields import FieldSpec, Start
from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows
from stratafl.core.parcel import Field, LayerMask, Parcel
from stratafl.core.records import record
from stratafl.core.reduce import cosines_between
from stratafl.core.round import Round, Setup
from stratafl.core.state import Computed, State, rows_of
from stratafl.core.steps import MergeRows, Serve
from stratafl.errors import RecordError
from stratafl.policies import LocalTraining, MeanOfRows, StoreRows

HyperStep = Annotated[float, Range(least=0), Tune(0.01, 1.0, log=True)]
HyperRate = Annotated[float, Range(least=0), Fixed("its scale is that of the data and the model: tune hyper_step")]


_method_of_the_paper = method(
    "hypernetwork",
    paper="Ma et al., 2022",
    title="Layer-wised Model Aggregation for Personalized Federated Learning",
    new_client="the mean of all clients' models",
)


@_method_of_the_paper
def pfedla(
    *,
    hyper_step: HyperStep = 0.1,
    hyper_lr: HyperRate | None = None,
    embedding: Width = 100,
    width: Width = 100,
    depth: Width = 3,
    unit: Literal["layer", "model"] = "layer",
    normalise: Literal["softmax", "relu"] = "softmax",
    initial: Literal["drawn", "uniform"] = "uniform",
    sign: Literal["descent", "public"] = "descent",
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """pFedLA (Ma et al., 2022): a hypernetwork per client weighs, layer by layer, the models of all clients.

    Algorithm 1. `unit="model"` is one weight per pair of clients, shared by all layers. `normalise="relu"` and
    `sign="public"` are what public code does (the second moves away from the trained model); `initial` are equal
    weights or drawn hypernetworks; `embedding`, `width` and `depth` are sizes of the hypernetworks. `hyper_step` is
    their step, in which neither sizes nor learning rates count; `hyper_lr` is instead the plain rate of Eq. 10–11.
    """
    hyper = Hypernetwork(embedding, width, depth, unit, normalise, initial)
    learn = _learn(hyper, Retain(), hyper_step, hyper_lr, -1 if sign == "public" else 1)
    return mixing(hyper, train, Retain(), (learn,), hyper.fields())


@_method_of_the_paper
def heurpfedla(
    *,
    k: Annotated[int, Range(least=0), Tune(1, 3)] | None = None,
    retained: str | Select = "none",
    hyper_step: HyperStep = 0.1,
    hyper_lr: HyperRate | None = None,
    embedding: Width = 100,
    width: Width = 100,
    depth: Width = 3,
    normalise: Literal["softmax", "relu"] = "softmax",
    initial: Literal["drawn", "uniform"] = "uniform",
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """HeurpFedLA (Ma et al., 2022): pFedLA that leaves each client the layers with the largest weight on itself.

    Algorithm 2: the `k` layers (1) with the largest self weight are not sent; or instead the `retained` ones.
    `hyper_step`, `hyper_lr`, `embedding`, `width`, `depth`, `normalise` and `initial` are those of pFedLA.
    """
    hyper = Hypernetwork(embedding, width, depth, "layer", normalise, initial)
    retain = _retain(k, select(retained))
    method = mixing(hyper, train, retain, (_learn(hyper, retain, hyper_step, hyper_lr),), hyper.fields())
    return replace(method, client={"theta": Start()}) if retain.anything else method  # θ_i^retain (line 13)


def _retain(k: int | None, named: Select) -> "Retain":
    if k is not None and named != select("none"):
        raise RecordError(f"heurpfedla: choose retained='{named}' or k={k}, not both")
    if named != select("none"):
        return Retain(0, named)
    return Retain(1 if k is None else k)


def _learn(hyper: Hypernetwork, retain: "Retain", step: float, lr: float | None, sign: int = 1) -> "LearnWeights":
    return LearnFromCosines(hyper, retain, sign * step) if lr is None else LearnWeights(hyper, retain, sign * lr)


class Weights(Protocol):
    """Where α comes from."""

    @property
    def names(self) -> tuple[str, ...]:
        """The server fields it needs, apart from the models."""

    def footprint(self, setup: Setup) -> Footprint:
        """What it takes to compute them."""

    def weights(self, rnd: Round, server: State, ids: Tensor) -> Tensor:
        """α of these clients: `[C, L, N]`, which sums to 1 over the last axis."""


def mixing(
    weights: Weights,
    train: LocalTraining,
    retain: "Retain | None" = None,
    learn: tuple[MergeRows, ...] = (),
    fields: Mapping[str, FieldSpec] | None = None,
) -> Layerwise:
    """A server that keeps the latest model of every client and sends each a mixture of them, layer by layer."""
    return replace(
        fedavg(train=train),
        serve=(MixLayers(weights, retain or Retain()),),
        # Algorithm 1 line 7. Learning comes first: it needs the models that were mixed, which StoreRows replaces.
        merge=(*learn, StoreRows()),
        server={"rows": Start(per_client=True), **(fields or {})},
        welcome=(MeanOfRows(),),
    )


@record
class Retain:
    """Which layers each client keeps: the `k` with the largest self weight (Eq. 12), or always the named ones.

    Normalisation layers are not chosen; of equal weights the layer nearest the output comes first.
    """

    k: int = 0
    named: Select = select("none")

    @property
    def anything(self) -> bool:
        return self.k > 0 or self._by_name

    @property
    def _by_name(self) -> bool:
        return self.named != select("none")

    def __call__(self, alpha: Tensor, ids: Tensor, layout: Layout) -> Tensor:
        """Booleans `[C, L]`: the layers that stay, for weights `[C, L, N]`."""
        if self._by_name:
            return layout.layer_mask(self.named, alpha.device).expand(alpha.shape[:2])
        eligible = torch.tensor(layout.computing, dtype=torch.int64, device=alpha.device)
        self_weights = alpha[torch.arange(len(ids), device=alpha.device), :, ids.to(alpha.device)][:, eligible]
        order = self_weights.flip(1).argsort(dim=1, descending=True, stable=True)[:, : self.k]
        chosen = torch.zeros(alpha.shape[:2], dtype=torch.bool, device=alpha.device)
        return chosen.scatter_(1, eligible.flip(0)[order], True)

    def check(self, setup: Setup) -> None:
        most = len(setup.layout.computing)
        if self.k > most:
            raise RecordError(f"heurpfedla: choose k from 0 to {most}, the number of retainable layers, not {self.k}")


@record
class MixLayers(Serve):
    """θ̄_i^l = Σ_j α_i^{l,j}·θ_j^l (Eq. 5–6), without the layers that are retained."""

    given: Weights
    retain: Retain = Retain()
    writes = ("down.theta",)

    @property
    def reads(self) -> tuple[str, ...]:
        return ("rows", *self.given.names)

    @property
    def masked(self) -> bool:
        return self.retain.anything

    def footprint(self, setup: Setup) -> Footprint:
        """A row per client, the client's own with its retained layers, and what the weights are computed from."""
        rows = (2 if self.retain.anything else 1) * setup.row_bytes()
        weighing = self.given.footprint(setup)
        return replace(weighing, client=weighing.client + rows)

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        alpha = self.given.weights(rnd, server, ids)
        rows = mixed(alpha, rows_of(server, "rows"), rnd.layout)
        if not self.retain.anything:
            return {"theta": Field(rows)}
        return {"theta": Field(rows, mask=LayerMask(~self.retain(alpha, ids, rnd.layout)))}

    def tell(self, rnd: Round, server: State) -> dict[str, Tensor]:
        """α of all clients: `[L, N, N]`, row i for client i."""
        everybody = torch.arange(rnd.setup.clients)
        return {"alpha": self.given.weights(rnd, server, everybody).transpose(0, 1)}

    def check(self, setup: Setup) -> None:
        self.retain.check(setup)


def mixed(alpha: Tensor, rows: Rows, layout: Layout) -> Rows:
    return layout.blend(alpha.transpose(0, 1), rows)


@record
class LearnWeights(MergeRows):
    """v_i and ψ_i ← + lr·(∂θ̄_i/∂(v_i, ψ_i))ᵀ·Δθ_i (Eq. 10–11), for the whole cohort at once.

    Δθ_i points downhill, so adding is descent: θ̄_i moves towards the trained model. A retained layer was not mixed, so
    it teaches nothing.
    """

    hyper: Hypernetwork
    retain: Retain = Retain()
    lr: float = 0.005

    @property
    def reads(self) -> tuple[str, ...]:
        return ("up.theta", "rows", *self.hyper.names)

    @property
    def writes(self) -> tuple[str, ...]:
        return self.hyper.names

    def footprint(self, setup: Setup) -> Footprint:
        """Uploads, mixtures and updates of one tensor at a time, or the hypernetworks with their gradients."""
        return Footprint(absorbed=max(3 * setup.block_bytes(), 6 * self.hyper.client_bytes(setup)))

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        rows, trained, layout = rows_of(server, "rows"), up["theta"].rows, rnd.layout
        alpha = self.hyper.weights(rnd, server, ids)
        # Δθ_i, from θ̄_i, of the models that were mixed: those before line 7; tensor by tensor, for the sake of memory.
        delta_theta = Computed(layout.trainable(), lambda n: trained[n] - mixed(alpha, {n: rows[n]}, layout)[n])
        # Eq. 10–11 by the chain rule: (∂θ̄_i/∂(v_i, ψ_i))ᵀ·Δθ_i = (∂α_i/∂(v_i, ψ_i))ᵀ·(∂θ̄_i/∂α_i)ᵀ·Δθ_i.
        # The right-hand factor, [C, L, N], is ∂⟨θ̄_i, Δθ_i⟩/∂α_i^{l,j} = ⟨θ_j^l, Δθ_i^l⟩; `moved` applies the left one.
        toward = self.toward(delta_theta, rows, alpha, layout)
        if self.retain.anything:
            retained = self.retain(alpha, ids, layout)  # their Δθ_i is from another start
            toward = torch.where(retained[..., None], 0, toward)
        return self.hyper.moved(server, ids, toward, self.lr)

    def toward(self, delta_theta: Mapping[str, Tensor], rows: Rows, alpha: Tensor, layout: Layout) -> Tensor:
        """⟨θ_j^l, Δθ_i^l⟩: `[C, L, N]`."""
        return layout.cross(delta_theta, rows).permute(1, 0, 2)


@record
class LearnFromCosines(LearnWeights):
    """Eq. 10–11 with cos(θ_j^l − m^l, Δθ_i^l) / max_j α_i^{l,j} for ⟨θ_j^l, Δθ_i^l⟩, m the mean of all θ_j.

    Since Σ_j α_i^{l,j} = 1, leaving out m changes nothing in Eq. 10–11. What remains of the product is divided by its
    own scale: sizes of layers, local learning rates and steps do not count. Before the softmax, the weight of j moves
    in proportion to α_i^{l,j} / max_j α_i^{l,j}, at most 1, whatever the number of clients.
    """

    def toward(self, delta_theta: Mapping[str, Tensor], rows: Rows, alpha: Tensor, layout: Layout) -> Tensor:
        """`[C, L, N]`, or `[C, 1, N]` if all layers share their weights."""
        learned = Computed(layout.trainable(), lambda n: rows[n] - rows[n].mean(0))  # θ_j − m
        products = layout.cross(delta_theta, learned)
        squares, learned_squares = (layout.dot(x, x).T for x in (delta_theta, learned))
        if self.hyper.unit == "model":
            products, squares, learned_squares = (x.sum(0, keepdim=True) for x in (products, squares, learned_squares))
            alpha = alpha[:, :1]
        cosines = cosines_between(products, squares.sqrt(), learned_squares.sqrt())
        return cosines.transpose(0, 1) / alpha.amax(-1, keepdim=True)
