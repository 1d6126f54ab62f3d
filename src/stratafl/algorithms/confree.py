"""ConFREE (Zheng et al., 2025): FedAvg whose server removes what conflicts between updates, layer by layer.

`with_confree` puts the same merge into other methods:

    with_confree(fedala())                   # fedala+confree

All that the server computes is a weight for every update, from the updates' inner products alone.
"""

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.simplex import minimise_on_simplex
from stratafl.core import keys
from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import Start, Together
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Rows
from stratafl.core.parcel import Parcel
from stratafl.core.phased import with_records
from stratafl.core.records import record, validated
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of
from stratafl.core.steps import MergeRows, MergeSums
from stratafl.errors import RecordError
from stratafl.policies import LocalTraining, Mean
from stratafl.policies.robust_merge import RobustMerge, Uploads

Radius = Annotated[float, Range(least=0), Tune(0.0, 0.5)]
ROUNDING = 1e-12  # of a squared norm, where the mean squared update is 1: updates that cancel leave nothing
TRIALS, NARROWINGS = 16, 8  # the limits of s come nearer by the factor 16⁸ = 4·10⁹


@method(
    "global",
    paper="Zheng et al., 2025",
    title="ConFREE: Conflict-free Client Update Aggregation for Personalized Federated Learning",
)
def confree(*, radius: Radius = 0.1, train: LocalTraining = LocalTraining()) -> Layerwise:
    """θ ← θ + (g + c·u/‖u‖)/(1 + α²), g the mean of updates without their conflicts, c = α·‖g‖, u as below.

    `radius` is α, that of the ball around g, as a share of ‖g‖, in which the client that gains least gains most.
    """
    return _conflict_free(fedavg(train=train), radius)


@validated
def with_confree(host: Algorithm, *, radius: Radius = 0.1) -> Algorithm:
    """The server removes what conflicts between the updates of a model, where the method averages them."""
    changed = with_records(host, lambda phase: _conflict_free(phase, radius))
    if changed == host:
        raise RecordError("ConFREE replaces a plain mean of models (Mean), which this method has not: choose another")
    return changed


def _conflict_free(host: Layerwise, radius: float) -> Layerwise:
    def exchanged(step: MergeSums | MergeRows) -> MergeSums | MergeRows:
        if type(step) is not Mean or step.unsent != "held" or step.clip is not None:
            return step
        model = host.server_fields[step.field]
        averages = isinstance(model, Together) or (isinstance(model, Start) and model.columns != "statistics")
        return ConflictFree(step.field, step.weights, radius) if averages else step

    return replace(host, merge=tuple(map(exchanged, host.merge)))


@record
class ConflictFree(RobustMerge):
    """θ_l + Σ_k w_{l,k}·Δ_{l,k} with Δ_k = θ_k − θ, for every layer l; running statistics take the mean.

    Every client's update counts once; `weights` are those of the statistics. A column that a client did not send has
    not changed.
    """

    radius: float = 0.1

    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        uploads = Uploads(up[self.field], server[self.field], self.weights_of(up, ids), rnd.layout)
        layers = [layer.tensors for layer in rnd.layout.layers]
        learned = [[n for n in names if n in uploads.rows and rnd.layout.specs[n].trainable] for names in layers]
        orders, moved = _orders(rnd, ids), Rows()
        for names in filter(None, learned):
            gram = uploads.gram(names)
            weights = update_weights(gram.cpu(), orders, self.radius).to(gram.device)  # many small steps
            moved |= {name: _moved(uploads, name, weights) for name in names}
        rest = {n: uploads.rows[n] for n in uploads.names if n not in moved}
        followed = rows_of(self._mean(rnd, server, up, ids, rest), self.field)
        return {self.field: {**followed, **moved}}


def _moved(uploads: Uploads, name: str, weights: Tensor) -> Tensor:
    """What the server holds of a tensor, moved by the weighted updates."""
    new = torch.empty_like(uploads.held[name], memory_format=torch.contiguous_format)
    for some, x, w, old in uploads.pieces(name):
        new.view(-1)[some] = (old + weights @ torch.where(w > 0, x - old, 0)).to(new.dtype)
    return new


def _orders(rnd: Round, ids: Tensor) -> Tensor:
    """`[C, C − 1]`: the places of all others, in the random order in which a client's update meets theirs."""
    draws = keys.stream(rnd.keys(ids, "confree")[:, None], ids[None, :])
    return draws.fill_diagonal_(torch.iinfo(torch.int64).max).argsort(1)[:, :-1].cpu()


def update_weights(gram: Tensor, orders: Tensor, alpha: float) -> Tensor:
    """`[C]`: the weight of each update of a layer, from their inner products: g and u are sums of updates, too."""
    gram = gram / gram.diagonal().mean().clamp(min=torch.finfo(gram.dtype).tiny)  # the mean squared update is 1
    guide = without_conflicts(gram, orders).mean(0)  # g = Σ_k guide_k·Δ_k
    gains = gram @ guide  # ⟨g, Δ_k⟩
    radius = alpha * (guide @ gains).clamp(min=0).sqrt()  # c = α·‖g‖
    if float(radius) == 0:
        return guide / (1 + alpha**2)
    nearest = least_gain(gram + ROUNDING * torch.eye(len(gram)).to(gram), gains, radius)
    length = (nearest @ gram @ nearest + ROUNDING).sqrt()  # ‖u‖
    return (guide + radius / length * nearest) / (1 + alpha**2)


def without_conflicts(gram: Tensor, orders: Tensor) -> Tensor:
    """`[C, C]`: each Δ_i, as a sum of updates, less ⟨Δ_i, Δ_j⟩/‖Δ_j‖²·Δ_j for every Δ_j that opposes it, in turn."""
    sums, places = torch.eye(len(gram)).to(gram), torch.arange(len(gram), device=gram.device)
    squares = gram.diagonal().clamp(min=torch.finfo(gram.dtype).tiny)
    for others in orders.T:
        products = (sums * gram[others]).sum(1)  # ⟨Δ_i as it is now, Δ_j⟩, with another j for each i
        sums[places, others] -= products.clamp(max=0) / squares[others]
    return sums


def least_gain(gram: Tensor, gains: Tensor, radius: Tensor) -> Tensor:
    """`[C]`: the x on the simplex with the least ⟨g, u⟩ + c·‖u‖, u = Σ_k x_k·Δ_k.

    It is the dual of the ball's problem: max over ‖d − g‖ ≤ c of min_k ⟨Δ_k, d⟩ is at d = g + c·u/‖u‖. As c·‖u‖ is the
    least c·(s + ‖u‖²/s)/2 over s > 0, x is that of a quadratic programme once s = ‖u‖ is known. With a larger s the
    programme's ‖u‖/s is smaller, so s is looked for between limits.
    """
    low, high = gram.new_zeros(()), gram.diagonal().max().sqrt()
    shares = torch.linspace(0, 1, TRIALS + 1).to(gram)[1:]
    for _ in range(NARROWINGS):
        lengths = low + (high - low) * shares
        x = minimise_on_simplex(gram, -lengths[:, None] / radius * gains)
        place = int(
            ((x @ gram * x).sum(1) > lengths.square()).sum().clamp(max=TRIALS - 1)
        )  # lengths that are too small
        low, high = (lengths[place - 1] if place else low), lengths[place]
    return x[place]
