"""pFedFDA (McLaughlin and Su, 2024): a Gaussian of each class in place of a head, fitted between global and own ones.

The base is shared and trained under the classifier that the global Gaussians N(μ_c, Σ) give with the client's own class
frequencies. Before use and before sending, a client moves the Gaussians towards those of its own features, as far as
that helps on samples it did not fit them to.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot, pad

from stratafl.algorithms.declaration import method
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.prototypes import NeedsClasses
from stratafl.core.annotations import Fixed, Range, Tune
from stratafl.core.fields import FieldSpec, Side, Start
from stratafl.core.footprint import Footprint
from stratafl.core.layers import select
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows
from stratafl.core.parcel import Parcel
from stratafl.core.records import record
from stratafl.core.reprs import holder
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.core.steps import Mix, Train
from stratafl.core.task import Task
from stratafl.errors import ModelError
from stratafl.policies import Broadcast, LocalTraining, Mean, Take, Upload

HEAD, BASE = select("head"), select("base")
SHARE = 1e-4  # of Σ that is its mean variance in every direction, before it is inverted
PROBES = 16  # evaluations in the search for one β, which is then exact to 0.618¹⁵ = 0.0007
SWEEPS = 2  # searches for each β
GOLDEN = (5**0.5 - 1) / 2
Share = Annotated[float, Range(least=0, most=1), Fixed("cross-validation finds it")]


@method(
    "personal parts",
    paper="McLaughlin and Su, 2024",
    title="Personalized Federated Learning via Feature Distribution Adaptation",
    sends="the base, and a mean of each class and a covariance of features",
    new_client="the shared base, with Gaussians fitted to its own features",
)
def pfedfda(
    *,
    epsilon: Annotated[float, Range(above=0), Tune(1e-4, 0.1, log=True)] = 1e-4,
    ridge: Annotated[float, Range(above=0), Tune(1e-3, 1.0, log=True)] = 0.1,
    beta: Share | None = None,
    train: LocalTraining = LocalTraining(),
) -> Layerwise:
    """The head is W = Σ⁻¹μ, b_c = −½·μ_cᵀΣ⁻¹μ_c + log π_k(c): the global (μ, Σ) in training, the client's own in use.

    π_k(c) ∝ n_{k,c}/n_k + `epsilon`. The client's own covariance gets `ridge` on its diagonal. (μ_k, Σ_k) are
    β·own + (1 − β)·global, with a β for μ and one for Σ by cross-validation, or `beta` for both.
    """
    shared = (Broadcast(BASE), Broadcast(field="means"), Broadcast(field="covariance"))
    return replace(
        fedavg(),
        serve=shared,
        mix=(Take(), Take("means"), Take("covariance"), FitGaussians(epsilon, ridge, beta)),
        train=(GlobalHead(epsilon), replace(train, layers=BASE), RefitGaussians(epsilon, ridge, beta)),
        send=(Upload(BASE), Upload(field="means"), Upload(field="covariance")),
        merge=(Mean(), Mean("means"), Mean("covariance")),
        server={"theta": Start(BASE), "means": HeadRows(), "covariance": Identity()},
        extension=LinearHead(),
    )


# Gaussians: a mean of each class and one covariance, of C clients, in float64


@holder
class Gaussians:
    """μ `[C, classes, d]` and Σ `[C, d, d]`."""

    means: Tensor
    covariance: Tensor

    def towards(self, local: "Gaussians", betas: Tensor) -> "Gaussians":
        """β·local + (1 − β)·these, with β `[C, 2]`: one for μ, one for Σ."""
        of_means, of_covariance = betas[:, :, None, None].unbind(1)
        return Gaussians(
            torch.lerp(self.means, local.means, of_means), torch.lerp(self.covariance, local.covariance, of_covariance)
        )

    def head(self, log_prior: Tensor) -> tuple[Tensor, Tensor]:
        """W `[C, classes, d]` and b `[C, classes]` of log π(c) + log N(z; μ_c, Σ), without what all classes share."""
        root = torch.linalg.cholesky_ex(well_conditioned(self.covariance)).L  # MKL's batched LU fails with threads
        weight = torch.cholesky_solve(self.means.mT, root).mT
        return weight, log_prior - (weight * self.means).sum(2) / 2


def well_conditioned(covariance: Tensor) -> Tensor:
    """(1 − ε)·Σ + ε·(tr Σ/d)·I"""
    spread = covariance.diagonal(dim1=1, dim2=2).mean(1)
    return (1 - SHARE) * covariance + SHARE * torch.diag_embed(spread[:, None].expand(covariance.shape[:2]))


@holder
class FeatureSamples:
    """Features `[C, n, d]`, their classes as `[C, n, classes]` of 0 and 1, all 0 for a sample that does not count."""

    z: Tensor
    members: Tensor

    def gaussians(self, fallback: Gaussians, ridge: float) -> Gaussians:
        """μ_c, from `fallback` for a class without samples; Σ = Σ_i (z_i − μ_y)(z_i − μ_y)ᵀ/(n − 1) + ridge·I."""
        counts, width = self.members.sum(1), self.z.shape[2]
        sums = self.members.mT @ self.z
        means = torch.where(counts[..., None] > 0, sums / counts[..., None].clamp(min=1), fallback.means)
        away = self.z * self.members.sum(2, keepdim=True) - self.members @ means
        scatter = away.mT @ away / (counts.sum(1) - 1).clamp(min=1)[:, None, None]
        return Gaussians(means, scatter + ridge * torch.eye(width).to(scatter))

    def folds(self) -> list[tuple["FeatureSamples", "FeatureSamples"]]:
        """Every second sample of each class, and the others: those to fit to and those to judge by, both ways."""
        odd = (self.members.cumsum(1) * self.members).sum(2, keepdim=True) % 2  # of its number within its class
        parts = FeatureSamples(self.z, self.members * odd), FeatureSamples(self.z, self.members * (1 - odd))
        return [parts, parts[::-1]]


@holder
class Fold:
    """A loss over β `[C, 2]` that needs no more inverses: in this basis Σ of all is I, and the client's is diagonal."""

    samples: FeatureSamples
    shared: Tensor  # μ
    own: Tensor  # μ_k
    variances: Tensor  # the diagonal of Σ_k
    log_prior: Tensor

    def loss(self, betas: Tensor) -> Tensor:
        """`[C]`: the summed cross-entropy of the samples."""
        of_means, of_covariance = betas[:, :, None, None].unbind(1)
        means = torch.lerp(self.shared, self.own, of_means)
        weight = means / torch.lerp(torch.ones_like(self.variances), self.variances, of_covariance[:, 0])[:, None]
        bias = self.log_prior - (weight * means).sum(2) / 2
        logits = self.samples.z @ weight.mT + bias[:, None]
        return -(torch.log_softmax(logits, 2) * self.samples.members).sum((1, 2))


def fold_of(fitted: FeatureSamples, judged: FeatureSamples, shared: Gaussians, log_prior: Tensor, ridge: float) -> Fold:
    local = fitted.gaussians(shared, ridge)
    root = torch.linalg.cholesky(well_conditioned(shared.covariance))
    half = torch.linalg.solve_triangular(root, well_conditioned(local.covariance), upper=False)
    variances, turn = torch.linalg.eigh(torch.linalg.solve_triangular(root, half.mT, upper=False))
    to_basis = torch.linalg.solve_triangular(root.mT, turn, upper=True)  # z ↦ z·L⁻ᵀQ, where Σ = LLᵀ
    turned = FeatureSamples(judged.z @ to_basis, judged.members)
    return Fold(turned, shared.means @ to_basis, local.means @ to_basis, variances, log_prior)


def best_betas(samples: FeatureSamples, shared: Gaussians, log_prior: Tensor, ridge: float) -> Tensor:
    """β `[C, 2]` with the least cross-entropy of samples to which the Gaussians were not fitted, one at a time."""
    folds = [fold_of(fitted, judged, shared, log_prior, ridge) for fitted, judged in samples.folds()]
    betas = samples.z.new_full((len(samples.z), 2), 0.5)
    for place in (0, 1) * SWEEPS:

        def along(beta: Tensor, place: int = place, betas: Tensor = betas) -> Tensor:
            return torch.stack([fold.loss(_with_column(betas, place, beta)) for fold in folds]).sum(0)

        betas = _with_column(betas, place, golden_section(along, betas[:, place]))
    return betas


def _with_column(matrix: Tensor, place: int, column: Tensor) -> Tensor:
    return matrix.index_copy(1, torch.tensor([place], device=matrix.device), column[:, None])


def golden_section(loss: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
    """`[C]`: where between 0 and 1 the loss of each client is least."""
    low, high = torch.zeros_like(like), torch.ones_like(like)
    left, right = 1 - GOLDEN * high, GOLDEN * high
    at_left, at_right = loss(left), loss(right)
    for _ in range(PROBES - 2):
        down = at_left <= at_right  # the least is left of `right`
        low, high = torch.where(down, low, left), torch.where(down, right, high)
        left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        probed = loss(torch.where(down, left, right))
        at_left, at_right = torch.where(down, probed, at_right), torch.where(down, at_left, probed)
    return (low + high) / 2


# Steps


@record
class LinearHead:
    """The model itself, whose head must be one linear layer with a bias: its values are computed."""

    def __call__(self, module: nn.Module, example: Tensor, classes: int | None, head: str) -> nn.Module:
        layer = module.get_submodule(head)
        if not isinstance(layer, nn.Linear) or layer.bias is None:
            raise ModelError(
                f"pFedFDA computes the weights and biases of a linear head, but this head is {type(layer).__name__}"
                f"{' without a bias' if isinstance(layer, nn.Linear) else ''}: end the model with nn.Linear"
            )
        return module


def with_head(row: Rows, layout: Layout, head: tuple[Tensor, Tensor]) -> Rows:
    like = next(iter(row.values()))
    return {**row, **{name: x.to(like.dtype) for name, x in zip(layout.trainable(HEAD), head, strict=True)}}


def log_priors(task: Task, outputs: int, epsilon: float) -> Tensor:
    """log π_k(c) `[C, outputs]`, π_k(c) ∝ n_{k,c}/n_k + ε."""
    counts = task.class_counts("train").double()
    shares = pad(counts / counts.sum(1, keepdim=True).clamp(min=1), (0, outputs - counts.shape[1])) + epsilon
    return (shares / shares.sum(1, keepdim=True)).log()


def received_gaussians(client: State) -> Gaussians:
    return Gaussians(tensor_of(client, "means").double(), positive(tensor_of(client, "covariance").double()))


def positive(covariance: Tensor) -> Tensor:
    """The matrix itself if it is a covariance, as a mean of some is; else the nearest one: an upload may be wrong."""
    symmetric = (covariance + covariance.mT) / 2
    if not bool(torch.linalg.cholesky_ex(well_conditioned(symmetric)).info.any()):
        return symmetric
    values, turn = torch.linalg.eigh(symmetric)
    least = SHARE * values.abs().amax(1, keepdim=True).clamp(min=1.0)
    nearest: Tensor = (turn * values.maximum(least)[:, None]) @ turn.mT
    return nearest


@record
class GlobalHead(NeedsClasses, Train):
    """The head of the global Gaussians with the client's own class frequencies."""

    epsilon: float
    reads = ("theta", "means", "covariance")
    writes = ("theta",)

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        shared = received_gaussians(client)
        head = shared.head(log_priors(task, shared.means.shape[1], self.epsilon))
        return {"theta": with_head(rows_of(client, "theta"), rnd.layout, head)}


@record
class FitGaussians(NeedsClasses, Mix):
    """The head of the client's own Gaussians, from its features of the received base."""

    epsilon: float
    ridge: float
    beta: float | None = None
    scores = True
    reads = ("theta", "means", "covariance")
    writes = ("theta",)

    def footprint(self, setup: Setup) -> Footprint:
        return fitting_footprint(setup)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        _, row = fitted(self, rnd, client, task)
        return {"theta": row}


@record
class RefitGaussians(NeedsClasses, Train):
    """The client's own Gaussians and their head, from its features of the trained base."""

    epsilon: float
    ridge: float
    beta: float | None = None
    scores = True
    repeats_absent_classes = True
    reads = ("theta", "means", "covariance")
    writes = ("theta", "means", "covariance")

    def footprint(self, setup: Setup) -> Footprint:
        return fitting_footprint(setup)

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        adapted, row = fitted(self, rnd, client, task)
        like = tensor_of(client, "means").dtype
        return {"theta": row, "means": adapted.means.to(like), "covariance": adapted.covariance.to(like)}


def fitted(step: FitGaussians | RefitGaussians, rnd: Round, client: State, task: Task) -> tuple[Gaussians, Rows]:
    """(μ_k, Σ_k) = β·own + (1 − β)·global, and the model with their head."""
    shared = received_gaussians(client)
    log_prior = log_priors(task, shared.means.shape[1], step.epsilon)
    row = with_head(rows_of(client, "theta"), rnd.layout, shared.head(log_prior))
    z, y, weight = task.features(row, "train")
    members = one_hot(y, shared.means.shape[1]).double() * weight[:, :, None]
    samples = FeatureSamples(z.double().flatten(2), members)
    if step.beta is None:
        betas = best_betas(samples, shared, log_prior, step.ridge)
    else:
        betas = torch.full_like(shared.means[:, :2, 0], step.beta)
    adapted = shared.towards(samples.gaussians(shared, step.ridge), betas)
    task.note("beta", betas)
    return adapted, with_head(row, rnd.layout, adapted.head(log_prior))


def fitting_footprint(setup: Setup) -> Footprint:
    """Some matrices of all pairs of features in float64: covariances, their roots and turns, for two folds."""
    return Footprint(client=12 * torch.float64.itemsize * setup.features**2)


# The Gaussians before the first round


@record
class HeadRows(FieldSpec):
    """μ_c: the weights of the initial head, which are random, and are its weights again under Σ = I."""

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Tensor:
        return setup.start[setup.layout.trainable(HEAD)[0]].flatten(1).clone()


@record
class Identity(FieldSpec):
    """Σ = I"""

    def create(self, setup: Setup, ids: Tensor | None, side: Side) -> Tensor:
        like = next(iter(setup.start.values()))
        return torch.eye(setup.features, dtype=like.dtype, device=like.device)
