"""pFedLA and HeurpFedLA (Ma et al., 2022): a hypernetwork per client weighs, layer by layer, the models of all clients.

The server keeps the latest model θ_j of every client and, for each client i, an embedding v_i and a hypernetwork ψ_i.
Client i is sent θ̄_i^l = Σ_j α_i^{l,j}·θ_j^l (Eq. 6); what it learned from there, Δθ_i, moves v_i and ψ_i (Eq. 10–11).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from stratafl.algorithm import Round, Setup
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.hypernetwork import Hypernetwork
from stratafl.errors import RecordError, unknown
from stratafl.fields import Start
from stratafl.layerwise import Layerwise
from stratafl.layout import Layout, Rows
from stratafl.parcel import Field, LayerMask, Parcel
from stratafl.policies import SGD
from stratafl.records import record
from stratafl.state import State, rows_of

if TYPE_CHECKING:
    from stratafl.task import Task  # noqa: F401


def pfedla(
    *,
    hyper_lr: float = 0.005,
    hyper: Hypernetwork = Hypernetwork(),
    unit: Literal["layer", "model"] = "layer",
    normalise: Literal["softmax", "relu"] = "softmax",
    initial: Literal["drawn", "uniform"] = "drawn",
    sign: Literal["descent", "public"] = "descent",
    train: SGD = SGD(),
) -> Layerwise:
    """Algorithm 1. `unit="model"` is one weight per pair of clients, shared by all layers.

    `normalise="relu"` and `sign="public"` are what public code does (the second moves away from the trained model);
    `initial="uniform"` starts the hypernetworks from equal weights.
    """
    return _mixing(replace(hyper, unit=unit, normalise=normalise, initial=initial), hyper_lr, 0, sign, train)


def heurpfedla(
    *,
    k: int = 1,
    retained: tuple[str, ...] = (),
    hyper_lr: float = 0.005,
    hyper: Hypernetwork = Hypernetwork(),
    normalise: Literal["softmax", "relu"] = "softmax",
    initial: Literal["drawn", "uniform"] = "drawn",
    train: SGD = SGD(),
) -> Layerwise:
    """Algorithm 2: the `k` layers with the largest self weight are not sent; or always the `retained` ones."""
    if k < 0:
        raise RecordError(f"heurpfedla: k is a number of layers from 0, not {k}")
    hyper = replace(hyper, normalise=normalise, initial=initial)
    if k == 0 and not retained:
        return _mixing(hyper, hyper_lr, 0, "descent", train)
    method = _mixing(hyper, hyper_lr, k, "descent", train, tuple(retained))
    return replace(method, client={"theta": Start()})  # θ_i^retain lives with the client (line 13)


def _mixing(hyper: Hypernetwork, lr: float, k: int, sign: str, train: SGD, retained: tuple[str, ...] = ()) -> Layerwise:
    if sign not in ("descent", "public"):
        raise unknown("sign of pfedla", sign, ("descent", "public"))
    if lr < 0:
        raise RecordError(f"pfedla: hyper_lr must be at least 0, not {lr}")
    retain = Retain(k, retained)
    return replace(
        fedavg(train=train),
        serve=(MixLayers(hyper, retain),),
        merge=(LearnWeights(hyper, retain, lr if sign == "descent" else -lr),),
        server={"rows": Start(per_client=True), **hyper.fields()},
        welcome=(MeanOfRows(),),
    )


@record
class Retain:
    """Which layers each client keeps: the `k` with the largest self weight (Algorithm 2 line 6), or named ones.

    Normalisation layers are not chosen; of equal weights the layer nearest the output comes first.
    """

    k: int = 0
    named: tuple[str, ...] = ()

    def __call__(self, alpha: Tensor, ids: Tensor, layout: Layout) -> Tensor:
        """Booleans `[C, L]`: the layers that stay, for weights `[C, L, N]`."""
        chosen = torch.zeros(alpha.shape[:2], dtype=torch.bool, device=alpha.device)
        if self.named:
            chosen[:, [layout.index[name] for name in self.named]] = True
            return chosen
        eligible = torch.tensor(eligible_layers(layout), device=alpha.device)
        own = alpha[torch.arange(len(ids), device=alpha.device), :, ids.to(alpha.device)][:, eligible]
        order = own.flip(1).argsort(dim=1, descending=True, stable=True)[:, : self.k]
        return chosen.scatter_(1, eligible.flip(0)[order], True)

    def check(self, setup: Setup) -> None:
        """Refuse more layers than there are."""
        for name in self.named:
            setup.layout.layer(name)
        most = len(eligible_layers(setup.layout))
        if self.k > most:
            raise RecordError(f"heurpfedla: k is from 0 to {most}, the layers of this model, not {self.k}")


def eligible_layers(layout: Layout) -> list[int]:
    """The layers that are not normalisations."""
    return [i for i, layer in enumerate(layout.layers) if layer.kind not in ("batchnorm", "norm")]


@record
class MixLayers:
    """θ̄_i^l = Σ_j α_i^{l,j}·θ_j^l (Eq. 5–6), without the layers that are retained."""

    hyper: Hypernetwork
    retain: Retain = Retain()
    writes = ("down.theta",)

    @property
    def reads(self) -> tuple[str, ...]:
        """The models of all clients, and the hypernetworks."""
        return ("rows", *self.hyper.names)

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        """A row per client."""
        alpha = self.hyper.weights(server, ids, rnd.layout)
        rows = mixed(alpha, rows_of(server, "rows"), rnd.layout)
        if self.retain == Retain():
            return {"theta": Field(rows)}
        return {"theta": Field(rows, mask=LayerMask(~self.retain(alpha, ids, rnd.layout)))}

    def tell(self, rnd: Round, server: State) -> dict[str, Tensor]:
        """α of all clients: `[L, N, N]`, row i for client i."""
        everybody = torch.arange(rnd.setup.clients)
        return {"alpha": self.hyper.weights(server, everybody, rnd.layout).transpose(0, 1)}

    def check(self, setup: Setup) -> None:
        """See `Retain`."""
        self.retain.check(setup)


def mixed(alpha: Tensor, rows: Rows, layout: Layout) -> Rows:
    """Rows mixed by weights `[C, L, N]`."""
    return layout.blend(alpha.transpose(0, 1), rows)


@record
class LearnWeights:
    """θ_i ← what client i trained; v_i and ψ_i ← + lr·(∂θ̄_i/∂(v_i, ψ_i))ᵀ·Δθ_i (Eq. 10–11), for the whole cohort.

    Δθ_i points downhill, so adding is descent: θ̄_i moves towards the trained model. A retained layer was not mixed, so
    it teaches nothing.
    """

    hyper: Hypernetwork
    retain: Retain = Retain()
    lr: float = 0.005

    @property
    def reads(self) -> tuple[str, ...]:
        """Uploads, the models of all clients, and the hypernetworks."""
        return ("up.theta", "rows", *self.hyper.names)

    @property
    def writes(self) -> tuple[str, ...]:
        """The models and the hypernetworks."""
        return ("rows", *self.hyper.names)

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        """Rows and hypernetworks of these clients."""
        rows, trained, layout = rows_of(server, "rows"), up["theta"].rows, rnd.layout
        alpha = self.hyper.weights(server, ids, layout)
        kept = self.retain(alpha, ids, layout)
        start = mixed(alpha, rows, layout)
        if self.retain != Retain():
            start = layout.mask(layout.spread(kept, rows), {n: x[ids] for n, x in rows.items()}, start)
        delta = {name: trained[name] - start[name] for name in layout.trainable()}
        toward = layout.cross(delta, rows).permute(1, 0, 2)  # ⟨Δθ_i^l, θ_j^l⟩ = ∂⟨θ̄_i, Δθ_i⟩/∂α_i^{l,j}: [C, L, N]
        moved = self.hyper.moved(server, ids, torch.where(kept[..., None], 0, toward), self.lr)
        return {"rows": {name: _put(x, ids, trained[name]) for name, x in rows.items()}, **moved}


def _put(rows: Tensor, ids: Tensor, new: Tensor) -> Tensor:
    return rows.index_copy(0, ids.to(rows.device), new)


@record
class MeanOfRows:
    """The mean of all clients' models, for somebody who has no hypernetwork yet."""

    reads = ("rows",)
    writes = ("down.theta",)

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        """One common field."""
        return {"theta": Field({name: x.mean(0) for name, x in rows_of(server, "rows").items()}, common=True)}
