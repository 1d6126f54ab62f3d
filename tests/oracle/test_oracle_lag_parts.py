"""LAG on methods with heads of their own, FedRoD and FedPAC, against plain loops: heads that are personal or mixed for
a client are neither scored nor withheld."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from plain_clients import Clients, Model, convnorm, is_statistic
from plain_parts import Plain, PlainFedPAC, PlainFedRoD, skewed
from test_oracle_rivals_b import TRAIN, assert_same_predictions, simulated

from stratafl.execute import Matrix

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("untraced")]

ROUNDS, K, XI = 3, 1, 0.0
FOLLOWS = {"conv1": ("conv1", "bn1"), "conv2": ("conv2", "bn2"), "fc": ("fc",)}


class Lagging(Plain):
    """After each round, `K` of the scored layers become personal: those with the most conflicting pairs."""

    scored: tuple[str, ...] = ("conv1", "conv2", "fc")
    withheld: tuple[str, ...] = ()  # prefixes of names, those of L_p
    sets: tuple[tuple[str, ...], ...] = ()

    def received(self, client: int) -> Model:
        kept = self.kept.get(client, self.initial)
        mine = {n: x for n, x in kept.items() if self.withheld and n.startswith(self.withheld)}
        return {**super().received(client), **mine}

    def round(self, t: int) -> None:
        if t == 0:
            self.initial, self.kept = dict(self.server), dict[int, Model]()
        self.starts = {k: self.received(k) for k in self.cohort(t)}
        super().round(t)

    def merge(self, trained: Mapping[int, Model], t: int) -> None:
        super().merge(trained, t)
        learned = [{n: trained[k][n] - x for n, x in start.items()} for k, start in self.starts.items()]
        scores = {layer: self.conflicts(learned, layer) for layer in self.scored}
        ranked = sorted(self.scored, key=lambda layer: (scores[layer], layer), reverse=True)
        chosen = [layer for layer in ranked[:K] if scores[layer] > 0]
        self.withheld = tuple(f"body.{part}." for layer in chosen for part in FOLLOWS[layer])
        self.sets = (*self.sets, self.withheld)
        self.kept |= trained

    def conflicts(self, learned: list[Model], layer: str) -> int:
        mine = [
            torch.cat([x.flatten() for n, x in h.items() if n.startswith(f"body.{layer}.") and not is_statistic(n)])
            for h in learned
        ]
        pairs = [(a, b) for i, a in enumerate(mine) for b in mine[:i]]
        return sum(bool(torch.cosine_similarity(a, b, dim=0) < XI) for a, b in pairs)


class PlainFedRoDLag(Lagging, PlainFedRoD):
    """The generic head is scored, the personal one is not."""


class PlainFedPACLag(Lagging, PlainFedPAC):
    """The base is scored; heads are the mixtures that the server makes for each client."""

    scored = ("conv1", "conv2")


@pytest.mark.parametrize("participation", [pytest.param(1.0, marks=pytest.mark.nightly), 0.5])
@pytest.mark.parametrize(("name", "oracle"), [("fedrod+lag", PlainFedRoDLag), ("fedpac+lag", PlainFedPACLag)])
def test_composition_is_its_plain_loop(name: str, oracle: type[Lagging], participation: float) -> None:
    clients = Clients(skewed(), convnorm(), replace(TRAIN, lr=0.2), participation)
    sim, plain = simulated(name, clients, k=K, xi=XI, warmup=0), oracle(clients)
    progress = sim.start()
    for t in range(ROUNDS):
        progress, _ = sim.round(progress, Matrix())
        plain.round(t)
        assert_same_predictions(sim, progress, plain)
    assert any(plain.sets)
