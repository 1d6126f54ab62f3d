"""Ditto, pFedMe, Per-FedAvg, FedBABU and fine-tuned FedAvg in plain PyTorch: the oracles of their tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from plain_clients import LAYERS, Model, layer_of
from plain_descents import PlainMethod, batches, change, descended, gradient, moved, pull, statistics, trainable
from torch import Tensor


@dataclass
class PlainFedAvgFT(PlainMethod):
    """FedAvg; deployed after some epochs on everything."""

    tune_epochs: int = 1

    def deployed(self, client: int) -> Model:
        return self.tuned(self.received(client), client)

    def tuned(self, model: Model, client: int) -> Model:
        sgd = replace(self.clients.train, epochs=self.tune_epochs)
        return descended(self.clients, model, client, self.rounds, sgd, purpose="tune")


@dataclass
class PlainFedAvgLPFT(PlainFedAvgFT):
    """FedAvg; deployed after some epochs on the head alone and then on everything."""

    head_epochs: int = 1

    def deployed(self, client: int) -> Model:
        sgd = replace(self.clients.train, epochs=self.head_epochs)
        received = self.received(client)
        probed = descended(self.clients, received, client, self.rounds, sgd, purpose="probe", layers=("fc",))
        return self.tuned(probed, client)


@dataclass
class PlainFedBABU(PlainFedAvgFT):
    """Some layers stay as they were drawn, the others are trained and averaged; deployed after tuning everything."""

    fixed: tuple[str, ...] = ("fc",)

    def trained(self, client: int, t: int) -> Model:
        body = [layer for layer in LAYERS if layer not in self.fixed]
        model = descended(self.clients, self.global_model, client, t, layers=body)
        assert all(model[n].equal(x) for n, x in self.start.items() if layer_of(n) in self.fixed)
        return model

    @property
    def sent(self) -> list[str]:
        return [n for n in self.global_model if layer_of(n) not in self.fixed]


@dataclass
class PlainDitto(PlainMethod):
    """Personal models on L(v) + (strength/2)·‖v − received‖²; beside them FedAvg."""

    strength: float = 1.0
    personal_epochs: int | None = None
    personal: dict[int, Model] = field(default_factory=dict)

    def trained(self, client: int, t: int) -> Model:
        w, train = self.global_model, self.clients.train
        sgd = train if self.personal_epochs is None else replace(train, epochs=self.personal_epochs)
        v = self.received(client)
        edit = pull(self.strength, w)
        self.personal[client] = descended(self.clients, v, client, t, sgd, purpose="personal", edit=edit)
        return descended(self.clients, w, client, t)

    def received(self, client: int) -> Model:
        return dict(self.personal.get(client, self.global_model))


@dataclass
class PlainPFedMe(PlainMethod):
    """θ near the minimum of f(θ) + (strength/2)·‖θ − w_i‖², w_i follows θ; w ← (1 − β)·w + β·mean of w_i."""

    strength: float = 15.0
    inner: int = 5
    personal_lr: float = 0.01
    beta: float = 1.0
    personal: dict[int, Model] = field(default_factory=dict)

    def trained(self, client: int, t: int) -> Model:
        theta, w = dict(self.global_model), trainable(self.global_model)
        for samples in batches(self.clients, client, t):
            for _ in range(self.inner):
                g, passed = gradient(self.clients, theta, samples)
                inner = {n: g[n] + self.strength * (theta[n] - w[n]) for n in g}
                theta = {**moved(theta, inner, -self.personal_lr), **passed}
            w = {n: x - self.clients.train.lr * self.strength * (x - theta[n]) for n, x in w.items()}
        self.personal[client] = theta
        return {**w, **statistics(theta)}

    def merged(self, trained: Mapping[int, Model]) -> Model:
        mean = self.clients.mean(trained)
        mixed = {n: (1 - self.beta) * w + self.beta * mean[n] for n, w in trainable(self.global_model).items()}
        return {**mixed, **statistics(mean)}

    def received(self, client: int) -> Model:
        return dict(self.personal.get(client, self.global_model))


@dataclass
class PlainPerFedAvg(PlainMethod):
    """A start that is good after one step; β is the learning rate, α that of the step."""

    version: str = "fo"
    alpha: float | None = None
    delta: float = 1e-3

    @property
    def inner(self) -> float:
        return self.clients.train.lr if self.alpha is None else self.alpha

    def trained(self, client: int, t: int) -> Model:
        w, draws = dict(self.global_model), [batches(self.clients, client, t, draw=d) for d in range(3)]
        for three in zip(*draws, strict=True):
            meta, passed = self.meta_gradient(w, *three)
            w = {**moved(w, meta, -self.clients.train.lr), **passed}
        return w

    def meta_gradient(self, w: Model, first: Tensor, second: Tensor, third: Tensor) -> tuple[Model, Model]:
        """The direction of one step, and the statistics of the pass at w̃."""
        at_w, _ = gradient(self.clients, w, first)
        g, passed = gradient(self.clients, moved(w, at_w, -self.inner), second)
        if self.version == "fo":
            return g, passed
        above, below = (gradient(self.clients, moved(w, g, sign * self.delta), third)[0] for sign in (1, -1))
        curved = change(above, below)
        return {n: x - self.inner / (2 * self.delta) * curved[n] for n, x in g.items()}, passed

    def deployed(self, client: int) -> Model:
        model = self.received(client)
        g, passed = gradient(self.clients, model, batches(self.clients, client, self.rounds, purpose="tune")[0])
        return {**moved(model, g, -self.inner), **passed}
