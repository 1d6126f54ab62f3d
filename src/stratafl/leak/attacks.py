"""The attacks, as formulas on one client's update Δ = uploaded − sent.

A gradient step moves a layer by −η·g, so Δ points against the mean gradient of the client's samples. Class shares are
the s that solve Δ ≈ −Σ s_c·g_c, with g_c the gradient of the host's own samples of class c. A sample is taken for a
member if its own gradient points against Δ, more than against the updates of the others, which never saw it: they
are the shadow models. A row of a linear first layer moves by a weighted sum of inputs, and its bias by the sum of the
weights, so their quotient is a weighted mean of inputs, and an input itself if only one sample moved the row.
Inputs of a few samples are also found by descent: on those whose gradients point against Δ (Geiping et al., 2020).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy
from torch.optim.adam import adam

RIDGE = 1e-2  # of the mean squared length of the gradients of a class
MAX_ROUNDING = 1e-9
MATCHING_STEPS = 200
ADAM: Mapping[str, Any] = {"lr": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
CANDIDATES = 10  # inputs that are recovered from a client's update


def sample_gradients(
    module: nn.Module, model: Mapping[str, Tensor], x: Tensor, y: Tensor, groups: Sequence[Sequence[int]]
) -> dict[str, Tensor]:
    """The gradients of the mean loss of each group of samples, `[G, …]` for each tensor that is trained."""
    trained = {name for name, _ in module.named_parameters()}
    leaves = {name: value.detach().clone().requires_grad_() for name, value in model.items() if name in trained}
    rest = {name: value for name, value in model.items() if name not in trained}
    gradients = []
    for places in groups:
        logits = functional_call(module, {**rest, **leaves}, (x[list(places)],))
        loss = cross_entropy(logits, y[list(places)])
        gradients.append(torch.autograd.grad(loss, list(leaves.values()), allow_unused=True))
    columns = zip(*gradients, strict=True)
    return {
        name: torch.stack([torch.zeros_like(leaves[name]) if g is None else g for g in column])
        for name, column in zip(leaves, columns, strict=True)
    }


def guessed_shares(update: Tensor, gradients: Tensor) -> Tensor:
    """`[classes]`: the s of Δ ≈ −Σ s_c·g_c with a small ridge, from Δ `[P]` and g `[classes, P]`."""
    wide = gradients.double()
    gram = wide @ wide.T
    ridge = RIDGE * gram.diagonal().mean().clamp(min=1e-30) * torch.eye(len(gram), dtype=torch.float64)
    shares: Tensor = torch.linalg.solve(gram + ridge, -(wide @ update.double()))
    return shares


def guessed_labels(shares: Tensor, count: int) -> Tensor:
    """`[count]`: labels in the guessed shares, one at a time to the class that has fewest for its share."""
    weights, counts = shares.clamp(min=0) + 1e-12, torch.zeros_like(shares)
    for _ in range(count):
        counts[int((weights / (counts + 1)).argmax())] += 1
    return torch.repeat_interleave(torch.arange(len(shares)), counts.long())


def membership_scores(gradients: Tensor, updates: Tensor, client: int) -> Tensor:
    """`[n]`: −cos(g(x), Δ_k), minus its mean over the updates of the other clients; g `[n, P]`, Δ `[C, P]`."""
    against = -_unit(gradients.double()) @ _unit(updates.double()).T
    return _beyond_others(against, client)


def loss_scores(drops: Tensor, client: int) -> Tensor:
    """`[n]`: how much more the loss of a sample falls by the client's update than by those of others; `[n, C]`."""
    return _beyond_others(drops.double(), client)


def _beyond_others(scores: Tensor, client: int) -> Tensor:
    others = [place for place in range(scores.shape[1]) if place != client]
    beyond = scores[:, client] - scores[:, others].mean(1) if others else scores[:, client]
    return beyond.masked_fill(beyond.abs() < MAX_ROUNDING, 0)  # where all updates are the same, nothing is known


def _unit(x: Tensor) -> Tensor:
    lengths: Tensor = x.norm(dim=1, keepdim=True).clamp(min=1e-30)
    return x / lengths


def recovered_inputs(weight: Tensor, bias: Tensor, most: int = CANDIDATES) -> Tensor:
    """`[m, inputs]`: ΔW_i/Δb_i of the rows whose bias moved most."""
    moved = bias.abs().argsort(descending=True)[:most]
    moved = moved[bias[moved] != 0]
    return weight[moved].double() / bias[moved].double()[:, None]


def matched_inputs(
    module: nn.Module, model: Mapping[str, Tensor], update: Mapping[str, Tensor], start: Tensor, labels: Tensor
) -> Tensor:
    """`[n, …]`: inputs from `start` on, after some steps of Adam on 1 + cos(g(x), Δ) over all that was sent."""
    x = start.clone().requires_grad_()
    names = [name for name, _ in module.named_parameters() if name in update]
    leaves = {name: model[name].detach().clone().requires_grad_() for name in names}
    target = torch.cat([update[name].flatten() for name in names])
    mean, square, taken = torch.zeros_like(x), torch.zeros_like(x), torch.zeros(())
    for _ in range(MATCHING_STEPS):
        loss = cross_entropy(functional_call(module, {**model, **leaves}, (x,)), labels)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(leaves.values()), create_graph=True)])
        (slope,) = torch.autograd.grad(1 + torch.cosine_similarity(gradient, target, dim=0), x)
        with torch.no_grad():  # the class Adam imports torch's compiler
            adam([x], [slope], [mean], [square], [], [taken], amsgrad=False, maximize=False, **ADAM)
    return x.detach()


def similarity(candidates: Tensor, samples: Tensor) -> float:
    """The mean over candidates of the correlation with the sample that is most like it; 0 without candidates."""
    if not len(candidates):
        return 0.0
    first, second = (_unit(x.double() - x.double().mean(1, keepdim=True)) for x in (candidates, samples))
    return float((first @ second.T).max(1).values.mean())


def area(scores: Tensor, is_positive: Tensor) -> float | None:
    """The probability that a positive has a higher score than a negative, ties half; None without one of each."""
    positives, negatives = scores[is_positive], scores[~is_positive]
    if not len(positives) or not len(negatives):
        return None
    higher = (positives[:, None] > negatives).double() + (positives[:, None] == negatives).double() / 2
    return float(higher.mean())


def correlation(first: Tensor, second: Tensor) -> float:
    """Pearson's, 0 if one of them does not vary."""
    centred = [x.double() - x.double().mean() for x in (first, second)]
    length = float(centred[0].norm() * centred[1].norm())
    return float(centred[0] @ centred[1]) / length if length > 1e-12 else 0.0
