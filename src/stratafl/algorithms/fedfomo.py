"""FedFomo (Zhang et al., 2021): each client mixes the models that are better than its own on its validation data."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Number, Start
from stratafl.core.footprint import Footprint
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import per_row
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.core.steps import MergeRows, Mix, Serve
from stratafl.core.task import Task
from stratafl.policies import LocalTraining, StoreRows, Take, Upload


@method(
    "mixtures",
    paper="Zhang et al., 2021",
    title="Personalized Federated Learning with First Order Model Optimization",
    sends="the whole model and a weight for each model that it was sent",
    new_client="the initial model, or a mixture of the models that others value most",
)
def fedfomo(
    *, models: Annotated[int, Range(least=0), Tune(1, 20)] = 5, train: LocalTraining = LocalTraining()
) -> Layerwise:
    """θ_i ← Σ_j w_j⁺·θ_j/Σ_j w_j⁺ over the models that client i is sent, those with the largest affinity P_ij.

    `models` is how many it is sent. It needs validation data: the weights of others come from a client's loss on its
    own validation split.
    """
    return replace(
        fedavg(train=train),
        serve=(SendValued(models),),
        mix=(Take("models"), MixBetter()),
        send=(Upload(), Upload(field="gain")),
        merge=(AddGain(models), StoreRows()),  # P, as it was, says whom a client was sent
        server={"rows": Start(per_client=True), "P": Number(width="clients", per_client=True)},
        client={"theta": Start()},
        welcome=(SendValued(models),),
    )


def valued(P: Tensor, ids: Tensor, models: int) -> Tensor:
    """The clients whose models these clients are sent, `[C, M]`: others with the largest P_ij, of equals the first.

    A new client has no row of P: it is sent the models that all others value most together.
    """
    ids, N = ids.to(P.device)[:, None], len(P)
    P = torch.cat([P, P.sum(0, keepdim=True)])[ids[:, 0].clamp(max=N)]
    others = P.masked_fill(ids == torch.arange(N, device=P.device), -torch.inf)
    return others.argsort(dim=1, descending=True, stable=True)[:, : min(models, N - 1)]


@record
class SendValued(Serve):
    """To each client the models of others that it values most."""

    models: int
    reads = ("rows", "P")
    writes = ("down.models",)

    def footprint(self, setup: Setup) -> Footprint:
        return Footprint(client=self.models * setup.row_bytes())

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        who = valued(tensor_of(server, "P"), ids, self.models)
        return {"models": Field({n: x[who] for n, x in rows_of(server, "rows").items()})}


@record
class MixBetter(Mix):
    """w_j = (L_i(θ_i) − L_i(θ_j))/‖θ_j − θ_i‖ on validation data; θ_i ← Σ_j w_j⁺·θ_j/Σ_j w_j⁺ with w⁺ = max(w, 0)."""

    reads = ("theta", "models")
    writes = ("theta", "gain")
    splits = ("validation",)
    scores = True

    def footprint(self, setup: Setup) -> Footprint:
        """A difference, and the mixture."""
        return Footprint(client=2 * setup.row_bytes())

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        theta, models = rows_of(client, "theta"), rows_of(client, "models")
        like = next(iter(models.values()))
        w = like.new_zeros(like.shape[:2])
        loss, samples = task.scores(theta, "validation").loss, task.sizes("validation")
        for j in range(w.shape[1]):
            other = {**theta, **{n: x[:, j] for n, x in models.items()}}
            far = rnd.layout.norms({n: x - theta[n] for n, x in other.items()}).square().sum(1).sqrt()
            better = (loss - task.scores(other, "validation").loss) / samples
            w[:, j] = (better / far).nan_to_num(0.0, 0.0, 0.0)  # at distance 0, or where a model overflows
        total = w.clamp(min=0).sum(1, keepdim=True)
        share, keeps = w.clamp(min=0) / total.where(total > 0, 1), (total == 0).to(w.dtype)  # no model is better
        mixed = {n: torch.einsum("cm,cm...->c...", share, x) for n, x in models.items()}
        return {"theta": {**theta, **{n: x + theta[n] * per_row(keeps, x) for n, x in mixed.items()}}, "gain": w}


@record
class AddGain(MergeRows):
    """P_i ← P_i + w_i, at those whose models client i was sent."""

    models: int
    reads = ("up.gain", "P")
    writes = ("P",)

    def footprint(self, setup: Setup) -> Footprint:
        return Footprint()

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        P, at = tensor_of(server, "P"), ids.to(tensor_of(server, "P").device)
        gain = P[at].scatter_add(1, valued(P, ids, self.models), up["gain"].tensor.to(P.dtype))
        return {"P": P.index_copy(0, at, gain)}
