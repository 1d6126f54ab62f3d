"""SCAFFOLD, FedExP, FedOpt and MOON in plain PyTorch, client by client: the oracles of their tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from plain_clients import Model
from plain_descents import (
    Loss,
    PlainMethod,
    batches,
    both,
    change,
    descended,
    frozen,
    moved,
    square,
    statistics,
    trainable,
)
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def zeros(model: Model) -> Model:
    return {n: torch.zeros_like(x) for n, x in trainable(model).items()}


@dataclass
class PlainScaffold(PlainMethod):
    """y ← y − η(g(y) − c_i + c), then c_i ← c_i − c + (x − y)/(Kη); everything is averaged uniformly."""

    server_lr: float = 1.0
    planned: int = 3  # rounds of the run, for schedules

    def __post_init__(self) -> None:
        super().__post_init__()
        self.c = zeros(self.start)
        self.own_c = [zeros(self.start) for _ in self.clients.everybody]

    def round(self, t: int) -> None:
        cohort, old = self.clients.sampled(t), [dict(c) for c in self.own_c]
        sent = {k: self.trained(k, t) for k in cohort}
        x, mean = self.global_model, self.clients.mean(sent, uniform=True)
        self.global_model = {**moved(x, change(mean, x), self.server_lr), **statistics(mean)}
        N = self.clients.federation.clients
        self.c = {n: c + sum(self.own_c[k][n] - old[k][n] for k in cohort) / N for n, c in self.c.items()}

    def trained(self, client: int, t: int) -> Model:
        sgd, x, c, c_i = self.clients.train, self.global_model, self.c, self.own_c[client]
        lr = sgd.lr * sgd.schedule(t, self.planned)
        y = descended(
            self.clients, x, client, t, edit=lambda found, _: {n: g - c_i[n] + c[n] for n, g in found.items()}, lr=lr
        )
        K = len(batches(self.clients, client, t))
        if K:
            self.own_c[client] = {n: c_i[n] - c[n] + (x[n] - y[n]) / (K * lr) for n in c}
        return y


@dataclass
class PlainFedExp(PlainMethod):
    """w ← w + max(1, Σ p_i‖Δ_i‖² / (2(‖Δ̄‖² + ε)))·Δ̄ with p_i = n_i/Σn."""

    epsilon: float = 1e-3
    steps: list[float] = field(default_factory=list)

    def merged(self, trained: Mapping[int, Model]) -> Model:
        w, mean = self.global_model, self.clients.mean(trained)
        total = sum(self.clients.samples(k) for k in trained)
        spread = sum(self.clients.samples(k) / total * square(change(y, w)) for k, y in trained.items())
        direction = change(mean, w)
        self.steps.append(max(1.0, spread / (2 * (square(direction) + self.epsilon))))
        return {**moved(w, direction, self.steps[-1]), **statistics(mean)}


@dataclass
class PlainFedOpt(PlainMethod):
    """The mean change is the server's (negative) gradient, for Adam, Yogi or momentum; no bias correction."""

    optimizer: str = "adam"
    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.m = zeros(self.start)
        self.v = {n: torch.full_like(x, self.tau**2) for n, x in self.m.items()}

    def merged(self, trained: Mapping[int, Model]) -> Model:
        mean = self.clients.mean(trained)
        steps = {n: self.step(n, d) for n, d in change(mean, self.global_model).items()}
        return {**moved(self.global_model, steps, self.server_lr), **statistics(mean)}

    def step(self, name: str, change: Tensor) -> Tensor:
        """What the server adds to one tensor, at a learning rate of 1."""
        if self.optimizer == "momentum":
            self.m[name] = self.beta1 * self.m[name] + change
            return self.m[name]
        self.m[name] = self.beta1 * self.m[name] + (1 - self.beta1) * change
        v, squared = self.v[name], change * change
        if self.optimizer == "adam":
            self.v[name] = self.beta2 * v + (1 - self.beta2) * squared
        else:
            self.v[name] = v - (1 - self.beta2) * squared * torch.sign(v - squared)
        return self.m[name] / (self.v[name].sqrt() + self.tau)


@dataclass
class PlainMoon(PlainMethod):
    """Cross-entropy + strength·ℓ_con: features near the received model's, far from the client's previous model's."""

    strength: float = 1.0
    temperature: float = 0.5
    previous: dict[int, Model] = field(default_factory=dict)

    def trained(self, client: int, t: int) -> Model:
        before = self.previous.get(client, self.global_model)
        model = descended(self.clients, self.global_model, client, t, loss=self.loss(before))
        self.previous[client] = model
        return model

    def loss(self, previous: Model) -> Loss:
        received, before = frozen(self.clients, self.global_model), frozen(self.clients, previous)

        def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            logits, z = both(net, x)
            near, far = (self.similarity(z, both(other, x)[1]) for other in (received, before))
            return cross_entropy(logits, y) - self.strength * torch.log(near / (near + far)).mean()

        return loss

    def similarity(self, a: Tensor, b: Tensor) -> Tensor:
        """e^(cos/τ), sample by sample."""
        cosine = (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))
        return torch.exp(cosine / self.temperature)
