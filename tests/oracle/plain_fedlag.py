"""FedLAG in plain PyTorch, client by client: the oracle of its tests."""

from dataclasses import dataclass, field

import torch
from plain_clients import UNITS, Clients, Model, flat, layer_of, state


@dataclass
class PlainFedLAG:
    """FedLAG in a plain loop over whole models."""

    clients: Clients
    k: int = 1
    xi: float = 0.0
    warmup: int = 0
    weights: str = "samples"
    bn: str = "follow"
    personal: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.global_model = state(self.clients.module)
        self.own: list[Model] = [dict(self.global_model) for _ in self.clients.everybody]
        self.sets: list[set[str]] = []
        self.scores: dict[str, int] = {}

    def start(self, client: int) -> Model:
        return {n: self.own[client][n] if layer_of(n) in self.personal else x for n, x in self.global_model.items()}

    def run(self, rounds: int) -> "PlainFedLAG":
        for t in range(rounds):
            self.round(t)
        return self

    def round(self, t: int) -> None:
        cohort = self.clients.sampled(t)
        starts = {k: self.start(k) for k in cohort}
        trained = {k: self.clients.trained(starts[k], k, t) for k in cohort}
        h = {k: {n: trained[k][n] - starts[k][n] for n in self.global_model} for k in cohort}
        scores = self.scores = {layer: self.conflicts([flat(h[k], layer) for k in cohort]) for layer in UNITS}
        ranked = sorted(UNITS, key=lambda layer: (scores[layer], UNITS.index(layer)), reverse=True)
        chosen = [layer for layer in ranked[: self.k] if scores[layer] > 0] if t >= self.warmup else []
        follow = {"conv1": "bn1", "conv2": "bn2"} if self.bn == "follow" else {}
        self.personal = {*chosen, *(follow[layer] for layer in chosen if layer in follow)}
        self.sets.append(self.personal)
        self.global_model = self.clients.mean(trained, uniform=self.weights == "uniform")
        for client, model in trained.items():
            self.own[client] = model

    def conflicts(self, h: list[torch.Tensor]) -> int:
        pairs = [(h[u], h[v]) for u in range(len(h)) for v in range(u)]
        return sum(bool(torch.cosine_similarity(a, b, dim=0) < self.xi) for a, b in pairs)
