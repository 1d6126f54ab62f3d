"""Federated learning as anybody would write it in plain PyTorch: one stock module per client and a loop over batches.

Nothing of the engine is used here. Taken from the library are only the keyed draws: which samples form a batch, who is
in a cohort, and (in `dropout_masks`) what dropout drops. Layers are named by hand, as prefixes of the state dictionary.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stratafl.core import keys
from stratafl.data import Federation, from_splits
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Matrix, Progress, Simulation
from stratafl.models import build
from stratafl.policies import LocalTraining

SIZES = (14, 11, 4, 20)  # at batches of 10: last batches of four and of one sample, a client below a batch
SHAPE, CLASSES = (1, 6, 6), 3
Loss = Callable[[Tensor, Tensor], Tensor]
Hook = Callable[[nn.Module, dict[str, Tensor]], None]  # what happens between backward and step


def images(
    sizes: Iterable[int] = SIZES, shape: tuple[int, ...] = SHAPE, held_out: Iterable[tuple[int, int]] = ((3, 5),)
) -> Federation:
    """Clients with noisy images of three classes; `held_out` counts validation and test samples, taken in turn."""
    rng = np.random.default_rng(11)

    def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.integers(0, CLASSES, count)
        return rng.standard_normal((count, *shape)) + y.reshape(-1, *(1,) * len(shape)) / 2, y

    others = list(held_out)
    clients = []
    for i, count in enumerate(sizes):
        validation, test = others[i % len(others)]
        clients.append({"train": samples(count), "validation": samples(validation), "test": samples(test)})
    return from_splits(clients, classes=CLASSES, dtype=torch.float64)


def convnorm(dropout: float = 0.0) -> nn.Module:
    """Convolutions and BatchNorm: conv1, bn1, conv2, bn2, drop, fc."""
    torch.manual_seed(5)
    return build("convnorm", shape=SHAPE, classes=CLASSES, channels=4, dropout=dropout).double()


@dataclass(frozen=True)
class Phase:
    """Local training: how, on which layers (None: all), under which key."""

    sgd: LocalTraining
    layers: tuple[str, ...] | None = None
    purpose: str = "train"


def batches(federation: Federation, seed: int, t: int, client: int, phase: Phase, smallest: int) -> list[Tensor]:
    """The samples of each batch of one client, in order: all that the oracle takes from the engine's shuffles."""
    held, sgd = federation.split("train").of(client), phase.sgd
    base = keys.keys(seed, t, torch.tensor([client]), f"{phase.purpose}/0")
    taken: list[Tensor] = []
    epoch = 0
    while epoch < sgd.epochs if sgd.steps is None else len(taken) < sgd.steps:
        order = keys.shuffles(keys.fold(base, epoch), torch.tensor([len(held)]), len(held))[0]
        cut = held[order if sgd.shuffle else torch.arange(len(held))].split(sgd.batch)
        usable = [b for b in cut if len(b) >= (sgd.batch if sgd.drop_last else smallest)]
        if not usable:
            return []
        taken += usable
        epoch += 1
    return taken if sgd.steps is None else taken[: sgd.steps]


@dataclass
class Federated:
    """A server that averages, and clients that keep what is personal: each a stock module."""

    federation: Federation
    start: nn.Module
    phases: tuple[Phase, ...]
    personal: tuple[str, ...] = ()
    buffers: str = "follow"
    participation: float = 1.0
    everybody: bool = False
    seed: int = 0
    rounds: int = 3
    prox: float = 0.0
    smallest: int = 1
    keep_training: bool = False  # frozen layers stay in training mode
    loss: Loss = cross_entropy
    optimiser: Callable[[nn.Module, float], torch.optim.Optimizer] | None = None
    before_step: Hook | None = None
    before_batch: Callable[[nn.Module, int, int, int], None] | None = None
    heads: Mapping[int, Mapping[str, Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.server = copy.deepcopy(self.start).double()
        self.clients = [copy.deepcopy(self.server) for _ in range(self.federation.clients)]
        for client, drawn in self.heads.items():
            self.clients[client].load_state_dict(drawn, strict=False)

    def shared(self) -> list[str]:
        """The entries of the state dictionary that are sent and averaged."""
        return [name for name in state(self.server) if not self._stays(name)]

    def _stays(self, name: str) -> bool:
        statistic = name.rpartition(".")[2] in ("running_mean", "running_var")
        return (statistic and self.buffers == "local") or _inside(name, self.personal)

    def received(self, client: int) -> nn.Module:
        """The newest shared part on the client's own."""
        net = copy.deepcopy(self.clients[client])
        newest = self.server.state_dict()
        net.load_state_dict({name: newest[name] for name in self.shared()}, strict=False)
        return net

    def cohort(self, t: int) -> list[int]:
        count = max(1, int(self.participation * self.federation.clients))
        if self.everybody or count == self.federation.clients:
            return list(range(self.federation.clients))
        return keys.sample(self.seed, t, self.federation.clients, count).tolist()

    def run(self) -> "Federated":
        for t in range(self.rounds):
            self.round(t)
        return self

    def round(self, t: int) -> None:
        cohort = self.cohort(t)
        for client in cohort:
            self.clients[client] = net = self.received(client)
            anchor = {name: p.detach().clone() for name, p in net.named_parameters()}
            for phase in self.phases:
                self.descend(net, anchor, client, t, phase)
        counts = {k: len(self.federation.split("train").of(k)) for k in cohort}
        total = sum(counts.values())
        states = {k: self.clients[k].state_dict() for k in cohort}
        mean = {name: sum(states[k][name] * (counts[k] / total) for k in cohort) for name in self.shared()}
        self.server.load_state_dict(mean, strict=False)

    def descend(self, net: nn.Module, anchor: dict[str, Tensor], client: int, t: int, phase: Phase) -> None:
        """A plain training loop; layers that are not trained are frozen and in evaluation mode."""
        net.train()
        for name, child in net.named_children():
            child.train(self.keep_training or phase.layers is None or name in phase.layers)
        trained = {n: p for n, p in net.named_parameters() if phase.layers is None or _inside(n, phase.layers)}
        sgd = phase.sgd
        lr = sgd.lr * sgd.schedule(t, self.rounds)
        optimiser = (
            torch.optim.SGD(trained.values(), lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay)
            if self.optimiser is None
            else self.optimiser(net, lr)
        )
        for step, samples in enumerate(batches(self.federation, self.seed, t, client, phase, self.smallest)):
            if self.before_batch is not None:
                self.before_batch(net, client, t, step)
            optimiser.zero_grad()
            loss = self.loss(net(self.federation.x[samples]), self.federation.y[samples])
            if self.prox:
                loss = loss + self.prox / 2 * sum((p - anchor[n]).square().sum() for n, p in trained.items())
            loss.backward()
            if self.before_step is not None:
                self.before_step(net, anchor)
            if sgd.clip is not None:
                nn.utils.clip_grad_norm_(trained.values(), sgd.clip)
            optimiser.step()


def step_key(seed: int, t: int, client: int, step: int, purpose: str = "train") -> Tensor:
    """The key of everything a client draws in one step."""
    return keys.fold(keys.keys(seed, t, torch.tensor(client), f"{purpose}/0/noise"), step)


class MaskedByKey(nn.Module):
    """Dropout written out: the mask is computed from the key it is given before each batch."""

    def __init__(self, p: float, path: str, spatial: bool = False) -> None:
        super().__init__()
        self.p, self.path, self.spatial = p, path, spatial
        self.key: Tensor | None = None
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        assert self.key is not None
        shape = x.shape[:2] if self.spatial else x.shape
        key = keys.fold(keys.fold(self.key, keys.purpose_number(self.path)), self.calls)
        self.calls += 1
        drawn = keys.stream(key, torch.arange(shape.numel())).double() / 2.0**64 + 0.5  # uniform on [0, 1)
        kept = (drawn >= self.p).reshape(*shape, *(1,) * (x.ndim - len(shape)))
        return torch.where(kept, x / (1 - self.p), 0.0)


def with_masks(module: nn.Module) -> nn.Module:
    """The module with every dropout written out."""
    module = copy.deepcopy(module)
    for path, sub in list(module.named_modules()):
        if isinstance(sub, nn.Dropout | nn.Dropout2d):
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, MaskedByKey(sub.p, path, isinstance(sub, nn.Dropout2d)))
    return module


def give_keys(net: nn.Module, client: int, t: int, step: int) -> None:
    """Tell every written-out dropout which step it is in; for `before_batch`."""
    for sub in net.modules():
        if isinstance(sub, MaskedByKey):
            sub.key, sub.calls = step_key(0, t, client, step), 0


def _inside(name: str, layers: tuple[str, ...]) -> bool:
    return any(name.startswith(layer + ".") for layer in layers)


def state(module: nn.Module) -> dict[str, Tensor]:
    """Parameters (tied ones once) and statistics; the counters of BatchNorm are not part of a model."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: x.detach() for name, x in tensors.items() if x.is_floating_point()}


def gap(rows: Mapping[str, Tensor], client: int, module: nn.Module) -> float:
    """The largest difference between a row of the matrix and a module; names must be the same."""
    expected = state(module)
    assert set(rows) == set(expected)
    return max(float((rows[name][client] - x).abs().max()) for name, x in expected.items())


def assert_same_models(sim: Simulation, progress: Progress, oracle: Federated, tolerance: float = 1e-10) -> None:
    """Every client, in the cohort or not, would start its next round from the same model."""
    rows = received_models(sim, progress, torch.arange(oracle.federation.clients))
    gaps = [gap(rows, k, oracle.received(k)) for k in range(oracle.federation.clients)]
    assert max(gaps) < tolerance, gaps
    trained = max(gap(rows, k, oracle.start.double()) for k in range(oracle.federation.clients))
    assert trained > 1e-3  # nothing would be shown by models that have not moved


def check(sim: Simulation, oracle: Federated, tolerance: float = 1e-10) -> Progress:
    """Run both and compare every model."""
    progress = sim.run(Matrix())
    assert_same_models(sim, progress, oracle.run(), tolerance)
    return progress
