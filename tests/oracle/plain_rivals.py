"""FedLC, ConFREE and pFedFDA in plain PyTorch, client by client: the oracles of their tests."""

from collections.abc import Callable, Mapping
from itertools import combinations

import torch
from plain_clients import Clients, Model, is_statistic, state
from plain_parts import Batch, Parts, Plain
from torch import Tensor
from torch.nn.functional import cross_entropy

from stratafl.core import keys
from stratafl.testing import CLASSES


class PlainFedLC(Plain):
    """FedAvg whose loss sees only the classes that a client has, each logit lowered by τ·n^(−1/4)."""

    def __init__(self, clients: Clients, *, tau: float = 1.0) -> None:
        super().__init__(clients)
        self.tau = tau

    def loss(self, net: Parts, batch: Batch, client: int) -> Tensor:
        logits, counts = net.head(net.features(batch.x)), self.counts(client).tolist()
        held = [c for c in range(CLASSES) if counts[c] > 0]
        lowered = torch.stack([logits[:, c] - self.tau * counts[c] ** -0.25 for c in held], 1)
        return cross_entropy(lowered, torch.tensor([held.index(int(y)) for y in batch.y]))


def least_gain(gram: Tensor, gains: Tensor, radius: float) -> Tensor:
    """The x on the simplex with the least gains·x + radius·√(xᵀGx), in closed form for every set of positive places.

    With the places known, G·x = (s/c)·(λ − gains) and Σx = 1 leave a quadratic equation for λ.
    """
    best, least = torch.zeros_like(gains), torch.inf
    for size in range(1, len(gains) + 1):
        for support in combinations(range(len(gains)), size):
            at = torch.tensor(support)
            a, b = torch.linalg.solve(gram[at][:, at], torch.stack([torch.ones(size).double(), gains[at]], 1)).unbind(1)
            A, B, D = a.sum(), b.sum(), gains[at] @ b
            if (inner := B**2 - A * (D - radius**2)) <= 0:
                continue
            x = torch.zeros_like(gains)
            x[at] = ((B + inner.sqrt()) / A * a - b) / inner.sqrt()
            value = float(gains @ x + radius * (x @ gram @ x).sqrt())
            if bool((x >= 0).all()) and value < least:
                best, least = x, value
    return best


def conflict_free(updates: Tensor, order: Mapping[int, list[int]], alpha: float) -> Tensor:
    """The server's step from updates `[C, P]`, where update i meets the others in the given order."""
    changed = updates.clone()
    for i, others in order.items():
        for j in others:
            against = changed[i] @ updates[j]
            if against < 0:
                changed[i] -= against / (updates[j] @ updates[j]) * updates[j]
    guide = changed.mean(0)
    radius = float(alpha * guide.norm())
    if radius == 0:
        return guide / (1 + alpha**2)
    worst = least_gain(updates @ updates.T, updates @ guide, radius) @ updates
    return (guide + radius * worst / worst.norm()) / (1 + alpha**2)


class PlainConFREE(Plain):
    """FedAvg with a conflict-free step in every layer; running statistics take the mean."""

    def __init__(self, clients: Clients, *, radius: float = 0.1) -> None:
        super().__init__(clients)
        self.radius = radius

    def merge(self, trained: Mapping[int, Model], t: int) -> None:
        before, ids = dict(self.server), sorted(trained)
        super().merge(trained, t)
        draws = {i: keys.keys(self.clients.seed, t, torch.tensor([i]), "confree") for i in ids}
        order = {
            ids.index(i): sorted(
                (place for place in range(len(ids)) if ids[place] != i),
                key=lambda place: int(keys.stream(draws[i], torch.tensor([ids[place]]))),
            )
            for i in ids
        }
        for layer in {n.rpartition(".")[0] for n in self.server}:
            names = [
                n for n in self.server if n.rpartition(".")[0] == layer and not is_statistic(n) and not self.stays(n)
            ]
            if not names:
                continue
            updates = torch.stack([torch.cat([(trained[i][n] - before[n]).flatten() for n in names]) for i in ids])
            step = conflict_free(updates, order, self.radius)
            for n, part in zip(names, step.split([before[n].numel() for n in names]), strict=True):
                self.server[n] = before[n] + part.reshape(before[n].shape)


class PlainFedPerConFREE(PlainConFREE):
    personal = ("body.fc.",)


Gauss = tuple[Tensor, Tensor]  # means of classes, and the covariance of all


class PlainPFedFDA(Plain):
    """Gaussians of features in place of a head: the clients' means and covariances, mixed with those of all."""

    personal = ("body.fc.",)

    def __init__(
        self, clients: Clients, *, epsilon: float = 1e-4, ridge: float = 1.0, beta: float | None = None
    ) -> None:
        super().__init__(clients)
        self.epsilon, self.ridge, self.beta = epsilon, ridge, beta
        weight = self.net.linear.weight.detach().clone()
        self.shared: Gauss = (weight, torch.eye(weight.shape[1]).double())
        self.trained: dict[int, Gauss] = {}

    def log_prior(self, client: int) -> Tensor:
        counts = self.counts(client)
        shares = counts / counts.sum() + self.epsilon
        return torch.log(shares / shares.sum())

    def classifier(self, gauss: Gauss, client: int) -> Gauss:
        """Weights and biases of the class with the largest log π + log N(z; μ, Σ)."""
        means, covariance = gauss
        share, width = 1e-4, len(covariance)
        inverse = torch.linalg.inv(
            (1 - share) * covariance + share * covariance.trace() / width * torch.eye(width).double()
        )
        weight = means @ inverse
        return weight, self.log_prior(client) - torch.stack([m @ inverse @ m for m in means]) / 2

    def estimated(self, z: Tensor, y: Tensor) -> Gauss:
        means = self.shared[0].clone()
        for c in y.unique():
            means[c] = z[y == c].mean(0)
        away = [(z_i - means[y_i])[:, None] for z_i, y_i in zip(z, y, strict=True)]
        scatter = sum((a @ a.T for a in away), torch.zeros(z.shape[1], z.shape[1]).double())
        return means, scatter / max(1, len(y) - 1) + self.ridge * torch.eye(z.shape[1]).double()

    def mixed(self, own: Gauss, of_means: float, of_covariance: float) -> Gauss:
        (means, covariance), (all_means, all_covariance) = own, self.shared
        return (
            of_means * means + (1 - of_means) * all_means,
            of_covariance * covariance + (1 - of_covariance) * all_covariance,
        )

    def betas(self, z: Tensor, y: Tensor, client: int) -> list[float]:
        if self.beta is not None:
            return [self.beta, self.beta]
        nth = torch.tensor([int((y[:i] == label).sum()) for i, label in enumerate(y)])
        halves = [nth % 2 == 0, nth % 2 == 1]
        own = [self.estimated(z[half], y[half]) for half in halves]

        def loss(of_means: float, of_covariance: float) -> float:
            total = 0.0
            for gauss, other in zip(own, reversed(halves), strict=True):
                weight, bias = self.classifier(self.mixed(gauss, of_means, of_covariance), client)
                total += float(cross_entropy(z[other] @ weight.T + bias, y[other], reduction="sum"))
            return total

        found = [0.5, 0.5]
        for _ in range(2):
            found[0] = golden(lambda b: loss(b, found[1]))
            found[1] = golden(lambda b: loss(found[0], b))
        return found

    def adapted(self, model: Model, client: int) -> Gauss:
        z, y = self.features(model, client)
        return self.mixed(self.estimated(z, y), *self.betas(z, y, client))

    def with_classifier(self, model: Model, gauss: Gauss, client: int) -> Model:
        weight, bias = self.classifier(gauss, client)
        return {**model, "body.fc.weight": weight, "body.fc.bias": bias}

    def received(self, client: int) -> Model:
        return self.with_classifier(self.server, self.adapted(self.server, client), client)

    def work(self, model: Model, client: int, t: int) -> Model:
        net = self.load(self.with_classifier(self.server, self.shared, client))
        base = tuple(n for n in dict(net.named_parameters()) if not n.startswith("body.fc."))
        self.descend(net, client, t, lambda net, batch: self.loss(net, batch, client), layers=base)
        trained = state(net)
        self.trained[client] = self.adapted(trained, client)
        return trained

    def merge(self, trained: Mapping[int, Model], t: int) -> None:
        super().merge(trained, t)
        share = {k: self.clients.samples(k) / sum(map(self.clients.samples, trained)) for k in trained}
        means = torch.stack([share[k] * self.trained[k][0] for k in trained]).sum(0)
        covariance = torch.stack([share[k] * self.trained[k][1] for k in trained]).sum(0)
        self.shared = means, covariance


def golden(loss: Callable[[float], float]) -> float:
    """Where from 0 to 1 it is least, after 16 evaluations of golden-section search."""
    ratio, low, high = (5**0.5 - 1) / 2, 0.0, 1.0
    left, right = 1 - ratio, ratio
    at_left, at_right = loss(left), loss(right)
    for _ in range(14):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = loss(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = loss(right)
    return (low + high) / 2
