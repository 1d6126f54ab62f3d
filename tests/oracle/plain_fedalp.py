"""FedALP in plain PyTorch, client by client: the oracle of its tests."""

from dataclasses import dataclass

import torch
from plain_clients import LAYERS, Clients, Model, flat, is_statistic, layer_of, state
from torch import Tensor


@dataclass
class PlainFedALP:
    """FedALP in a plain loop: the last warm-up round asks everybody."""

    clients: Clients
    groups: int = 2
    beta: float = 0.8
    warmup: int = 1
    base: str = "received"
    gamma: str = "group"

    def __post_init__(self) -> None:
        self.global_model = state(self.clients.module)
        self.group: list[Model] = []
        self.member: list[int] = []
        self.psi: list[dict[str, float]] = []

    def run(self, rounds: int) -> "PlainFedALP":
        for t in range(rounds):
            if t < self.warmup:
                self.warm(t)
            else:
                self.main(t)
        return self

    def warm(self, t: int) -> None:
        asked = self.clients.everybody if t == self.warmup - 1 else self.clients.sampled(t)
        trained = {k: self.clients.trained(self.global_model, k, t) for k in asked}
        if t == self.warmup - 1:
            self.form({k: {n: x - self.global_model[n] for n, x in model.items()} for k, model in trained.items()})
        self.global_model = self.clients.mean({k: trained[k] for k in self.clients.sampled(t)})
        self.group = [dict(self.global_model) for _ in range(self.groups)]

    def form(self, updates: dict[int, Model]) -> None:
        from scipy.cluster.hierarchy import fcluster, linkage  # takes a second to import

        vectors = torch.stack([flat(updates[k]) for k in self.clients.everybody])
        rho = torch.corrcoef(torch.cat([vectors, -vectors], 1))  # symmetric about 0: a correlation is a cosine
        self.member = [int(x) for x in fcluster(linkage(rho.numpy(), "ward"), t=self.groups, criterion="maxclust") - 1]
        for m in range(self.groups):
            mine = [k for k in self.clients.everybody if self.member[k] == m]
            D_m = {n: sum(self.clients.samples(k) * updates[k][n] for k in mine) for n in self.global_model}
            length = {layer: float(flat(D_m, layer).norm()) for layer in LAYERS}
            self.psi.append({layer: self.beta * x / max(length.values()) for layer, x in length.items()})

    def sent(self, m: int) -> Model:
        def mix(n: str) -> Tensor:
            psi = 0.0 if is_statistic(n) else self.psi[m][layer_of(n)]
            return psi * self.group[m][n] + (1 - psi) * self.global_model[n]

        return {n: mix(n) for n in self.global_model}

    def main(self, t: int) -> None:
        cohort = self.clients.sampled(t)
        total = sum(self.clients.samples(k) for k in cohort)
        received = [self.sent(m) for m in range(self.groups)]
        global_model = {n: torch.zeros_like(x) for n, x in self.global_model.items()}
        for m in range(self.groups):
            mine = [k for k in cohort if self.member[k] == m]
            if not mine:
                continue
            mean = self.clients.mean({k: self.clients.trained(received[m], k, t) for k in mine})
            mass = sum(self.clients.samples(k) for k in mine) / total
            for n, x in mean.items():
                base = received[m] if self.base == "received" else self.group[m]
                step = (x - received[m][n]) * (1 if self.gamma == "group" else mass)
                self.group[m][n] = x if is_statistic(n) else base[n] + step
                global_model[n] += mass * self.group[m][n]
        self.global_model = global_model

    def models(self) -> list[Model]:
        return [self.sent(self.member[k]) for k in self.clients.everybody]
