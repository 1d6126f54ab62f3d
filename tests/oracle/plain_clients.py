"""Clients as anybody would write them in plain PyTorch: a stock module, a loop over batches, dictionaries of tensors.

Of the library only the keyed draws are used (who is in a cohort, which samples form a batch) and its small federation.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stratafl.core import keys
from stratafl.data import Federation
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Progress, Simulation
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.testing import CLASSES, SHAPE, tiny_federation

Model = dict[str, Tensor]
UNITS = ("conv1", "conv2", "fc")  # what convnorm has beside its BatchNorms, bn1 and bn2
LAYERS = ("conv1", "bn1", "conv2", "bn2", "fc")

SIZES = (31, 23, 14, 12, 7, 4)  # clients go far enough apart for FedExP to step further


def convnorm() -> nn.Module:
    """Convolutions and BatchNorm, no dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return build("convnorm", shape=SHAPE, classes=CLASSES, channels=4, dropout=0.0).double()


def state(module: nn.Module) -> Model:
    """Parameters and statistics; the counters of BatchNorm are not part of a model."""
    return {n: x.detach().clone() for n, x in module.state_dict().items() if x.is_floating_point()}


def layer_of(name: str) -> str:
    return name.partition(".")[0]


def is_statistic(name: str) -> bool:
    return "running" in name


def flat(model: Mapping[str, Tensor], layer: str | None = None) -> Tensor:
    """The trained numbers of a model or of one layer, as one vector."""
    return torch.cat([x.flatten() for n, x in model.items() if not is_statistic(n) and layer in (None, layer_of(n))])


@dataclass
class Clients:
    """A federation whose clients train by a plain loop."""

    federation: Federation
    module: nn.Module
    train: LocalTraining
    participation: float = 1.0
    seed: int = 0

    @property
    def everybody(self) -> list[int]:
        return list(range(self.federation.clients))

    def sampled(self, t: int) -> list[int]:
        count = max(1, int(self.participation * self.federation.clients))
        whole = count == self.federation.clients
        return self.everybody if whole else keys.sample(self.seed, t, self.federation.clients, count).tolist()

    def samples(self, client: int) -> int:
        return len(self.federation.split("train").of(client))

    def trained(self, model: Model, client: int, t: int) -> Model:
        """The model after this client's epochs of round t."""
        net = copy.deepcopy(self.module)
        net.load_state_dict(model, strict=False)
        net.train()
        optimiser = torch.optim.SGD(net.parameters(), self.train.lr)
        for batch in self._batches(client, t):
            optimiser.zero_grad()
            cross_entropy(net(self.federation.x[batch]), self.federation.y[batch]).backward()
            optimiser.step()
        return state(net)

    def mean(self, models: Mapping[int, Model], uniform: bool = False) -> Model:
        """Weighted by n_k, or not."""
        weights = {k: 1 if uniform else self.samples(k) for k in models}
        names = next(iter(models.values()))
        return {n: sum(weights[k] * models[k][n] for k in models) / sum(weights.values()) for n in names}

    def _batches(self, client: int, t: int) -> Iterable[Tensor]:
        held = self.federation.split("train").of(client)
        base = keys.keys(self.seed, t, torch.tensor([client]), "train/0")
        for epoch in range(self.train.epochs):
            order = keys.shuffles(keys.fold(base, epoch), torch.tensor([len(held)]), len(held))[0]
            yield from held[order].split(self.train.batch)


def clients(participation: float = 1.0, train: LocalTraining | None = None) -> Clients:
    """The contract's six ragged clients with convolutions and BatchNorm."""
    return Clients(tiny_federation(SIZES), convnorm(), train or LocalTraining(lr=0.1), participation)


def assert_same(sim: Simulation, progress: Progress, models: Iterable[Model], tolerance: float = 1e-10) -> None:
    """Every client, in the last cohort or not, would start its next round from its model here."""
    rows = received_models(sim, progress, torch.arange(sim.setup.clients))
    for client, model in enumerate(models):
        assert set(rows) == set(model)
        gaps = {name: float((rows[name][client] - x).abs().max()) for name, x in model.items()}
        assert max(gaps.values()) < tolerance, (client, gaps)
