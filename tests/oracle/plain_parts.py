"""Methods that change the head, and those that weigh what features say, in plain PyTorch: the oracles of their tests.

A client's model is `Parts`: the stock module as `body`, and what the method adds beside it. `Plain` is FedAvg over such
models, client by client; a method overrides what it does differently. Written from the papers' definitions: of the
library only the keyed draws are used.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, cast

import numpy as np
import torch
from plain_clients import Clients, Model, is_statistic, state
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, normalize, relu, softmax

from stratafl.core import keys
from stratafl.data import Federation, from_splits
from stratafl.models import build
from stratafl.models.staged import Staged
from stratafl.policies import LocalTraining
from stratafl.testing import CLASSES, SHAPE

EVERYTHING = ("",)  # prefixes of the names of trained tensors
BASE_LAYERS = ("body.conv", "body.bn", "body.fc1")  # all but the head, in both models of the tests
HEAD = ("body.fc.",)


def mlp() -> nn.Module:
    """A hidden layer, no BatchNorm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        return build("mlp", shape=SHAPE, classes=CLASSES, hidden=(8,)).double()


def labelled(labels: Iterable[Iterable[int]]) -> Federation:
    """Clients with exactly these training labels and random images; six test samples each, two of every class."""
    rng = np.random.default_rng(5)

    def samples(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return rng.standard_normal((len(y), *SHAPE)) + y[:, None, None, None] / 2, y

    test = np.arange(6) % CLASSES
    clients = [{"train": samples(np.array(list(y))), "test": samples(test)} for y in labels]
    return from_splits(clients, classes=CLASSES, dtype=torch.float64, name="labelled")


def skewed() -> Federation:
    """Six ragged clients that miss classes; only clients 1 and 5 have class 2."""
    counts = ((17, 6, 0), (3, 0, 8), (0, 12, 0), (9, 4, 0), (2, 5, 0), (1, 2, 11))
    return labelled([c for c, count in enumerate(each) for _ in range(count)] for each in counts)


@dataclass(frozen=True)
class Batch:
    """What one client sees in one step, and the key of what it draws in it."""

    x: Tensor
    y: Tensor
    key: Tensor

    def uniform(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Numbers of (0, 1) with 23 bits: those of padding would only follow, because samples are the first axis."""
        numbers = torch.arange(torch.Size((len(self.y), *shape)).numel())
        drawn = keys.stream(keys.fold(self.key, keys.purpose_number(purpose)), numbers)
        return (((drawn >> 41).double() + 2**22 + 0.5) / 2**23).reshape(len(self.y), *shape)


class Parts(nn.Module):
    """A client's whole model: the stock module, and what a method adds."""

    def __init__(self, body: nn.Module, **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        self.body = body
        for name, part in parts.items():
            setattr(self, name, part)

    def features(self, x: Tensor) -> Tensor:
        """What the head is given."""
        return cast(Staged, self.body).features(x)

    def head(self, z: Tensor) -> Tensor:
        out: Tensor = self.linear(z)
        return out

    @property
    def linear(self) -> nn.Linear:
        return cast(nn.Linear, self.body.get_submodule("fc"))


Loss = Callable[[Parts, Batch], Tensor]


def plain_loss(net: Parts, batch: Batch) -> Tensor:
    """The cross-entropy of the stock module."""
    return cross_entropy(net.head(net.features(batch.x)), batch.y)


def weighted(models: Mapping[int, Model], weights: Mapping[int, float]) -> Model:
    """Σ w_k·θ_k / Σ w_k"""
    total = sum(weights[k] for k in models)
    names = next(iter(models.values()))
    return {n: torch.stack([weights[k] / total * models[k][n] for k in models]).sum(0) for n in names}


class Plain:
    """FedAvg, in a plain loop over whole models; `personal` are prefixes of names that stay with the client."""

    personal: tuple[str, ...] = ()

    def __init__(self, clients: Clients, parts: Mapping[str, Tensor] | None = None) -> None:
        """`parts` are initial values of what the method adds, where they are drawn."""
        self.clients = clients
        self.net = self.compose(copy.deepcopy(clients.module)).double()
        unexpected = self.net.load_state_dict(dict(parts or {}), strict=False).unexpected_keys
        assert not unexpected
        self.server = state(self.net)
        self.own: dict[int, Model] = {}

    # What a method overrides

    def compose(self, body: nn.Module) -> Parts:
        return Parts(body)

    def loss(self, net: Parts, batch: Batch, client: int) -> Tensor:
        return cross_entropy(self.logits(net, batch.x, client), batch.y)

    def logits(self, net: Parts, x: Tensor, client: int | None) -> Tensor:
        """What the client's model says; `None`: what the global model says."""
        return net.head(net.features(x))

    def work(self, model: Model, client: int, t: int) -> Model:
        """The client's model after its training of round t."""
        net = self.load(model)
        self.descend(net, client, t, lambda net, batch: self.loss(net, batch, client))
        return state(net)

    def merge(self, trained: Mapping[int, Model], t: int) -> None:
        self.server |= self.mean(trained)

    # A round

    def run(self, rounds: int) -> "Plain":
        for t in range(rounds):
            self.round(t)
        return self

    def round(self, t: int) -> None:
        trained = {k: self.work(self.received(k), k, t) for k in self.cohort(t)}
        for client, model in trained.items():
            self.own[client] = {n: x for n, x in model.items() if self.stays(n)}
        self.merge(trained, t)

    def cohort(self, t: int) -> list[int]:
        return self.clients.sampled(t)

    def stays(self, name: str) -> bool:
        return name.startswith(self.personal) if self.personal else False

    def received(self, client: int) -> Model:
        """The newest shared part on the client's own."""
        return {**self.server, **self.own.get(client, {})}

    def mean(self, models: Mapping[int, Model], weights: Mapping[int, float] | None = None) -> Model:
        """What is shared, averaged; by n_k unless other weights are given."""
        mean = weighted(models, weights or {k: self.clients.samples(k) for k in models})
        return {n: x for n, x in mean.items() if not self.stays(n)}

    # Training and data

    def load(self, model: Model) -> Parts:
        net = copy.deepcopy(self.net)
        net.load_state_dict(model, strict=False)
        return net.eval()

    def descend(
        self,
        net: Parts,
        client: int,
        t: int,
        loss: Loss,
        layers: tuple[str, ...] = EVERYTHING,
        sgd: LocalTraining | None = None,
        purpose: str = "train",
    ) -> None:
        """Minibatch SGD on the tensors with these prefixes; modules that are not trained are in evaluation mode."""
        sgd = sgd or self.clients.train
        trained = {n: p for n, p in net.named_parameters() if n.startswith(layers)}
        mine = {id(p) for p in trained.values()}
        for module in net.modules():
            module.training = any(id(p) in mine for p in module.parameters(recurse=False))
        groups = [{"params": [p], "weight_decay": self.decay_of(n, sgd)} for n, p in trained.items()]
        optimiser = torch.optim.SGD(groups, sgd.lr, momentum=sgd.momentum)
        for step, samples in enumerate(self.batches(client, t, sgd, purpose)):
            key = keys.fold(keys.keys(self.clients.seed, t, torch.tensor(client), f"{purpose}/0/noise"), step)
            optimiser.zero_grad()
            data = self.clients.federation
            loss(net, Batch(data.x[samples], data.y[samples], key)).backward()
            optimiser.step()
        net.eval()

    def decay_of(self, name: str, sgd: LocalTraining) -> float:
        return sgd.weight_decay

    def batches(self, client: int, t: int, sgd: LocalTraining, purpose: str) -> Iterable[Tensor]:
        held = self.clients.federation.split("train").of(client)
        base = keys.keys(self.clients.seed, t, torch.tensor([client]), f"{purpose}/0")
        for epoch in range(sgd.epochs):
            order = keys.shuffles(keys.fold(base, epoch), torch.tensor([len(held)]), len(held))[0]
            yield from held[order].split(sgd.batch)

    def data(self, client: int, split: str = "train") -> tuple[Tensor, Tensor]:
        held = self.clients.federation.split(split).of(client)
        return self.clients.federation.x[held], self.clients.federation.y[held]

    def counts(self, client: int) -> Tensor:
        """n_{k,c}"""
        return torch.bincount(self.data(client)[1], minlength=CLASSES).double()

    def features(self, model: Model, client: int) -> tuple[Tensor, Tensor]:
        """What the head is given on the training split, in evaluation mode, and the labels."""
        x, y = self.data(client)
        with torch.no_grad():
            return self.load(model).features(x), y

    # What is compared

    def predictions(self, client: int, split: str = "test") -> Tensor:
        """The logits of the client's model as received."""
        with torch.no_grad():
            return self.logits(self.load(self.received(client)), self.data(client, split)[0], client)

    def global_predictions(self, client: int, split: str = "test") -> Tensor:
        """The logits of the global model on this client's samples."""
        with torch.no_grad():
            return self.logits(self.load(self.server), self.data(client, split)[0], None)


class PlainFedPer(Plain):
    personal = HEAD


class PlainFedBias(Plain):
    """FedPer whose personal part is the bias of the head."""

    personal = ("body.fc.bias",)


class PlainFedPrior(Plain):
    """FedAvg with the log of the client's smoothed class frequencies on its logits, also when it trains."""

    def __init__(self, clients: Clients, *, smoothing: float = 1.0) -> None:
        super().__init__(clients)
        self.smoothing = smoothing

    def logits(self, net: Parts, x: Tensor, client: int | None) -> Tensor:
        plain = super().logits(net, x, client)
        if client is None:
            return plain
        s, counts = self.smoothing, self.counts(client)
        return plain + torch.log((counts + s) / (counts.sum() + s * CLASSES))


class PlainFedRoD(Plain):
    """A generic head by balanced softmax, and a personal one on top that learns from what the rest leaves."""

    personal = ("extra.",)

    def __init__(self, clients: Clients, *, balanced: bool = True) -> None:
        super().__init__(clients)
        self.balanced = balanced

    def compose(self, body: nn.Module) -> Parts:
        extra = nn.Linear(Parts(body).linear.in_features, CLASSES)
        nn.init.zeros_(extra.weight)
        nn.init.zeros_(extra.bias)
        return Parts(body, extra=extra)

    def logits(self, net: Parts, x: Tensor, client: int | None) -> Tensor:
        z = net.features(x)
        return net.head(z) if client is None else net.head(z) + net.get_submodule("extra")(z)

    def loss(self, net: Parts, batch: Batch, client: int) -> Tensor:
        z = net.features(batch.x)
        generic, frozen = net.head(z), net.head(z.detach()).detach()
        prior = torch.log(self.counts(client) + 1e-8) if self.balanced else 0.0
        personal = frozen + net.get_submodule("extra")(z.detach())
        return cross_entropy(generic + prior, batch.y) + cross_entropy(personal, batch.y)


class PlainFedDBE(Plain):
    """A personal shift of the features, and a pull of their mean to that over all clients, found in round 0."""

    personal = ("shift",)

    def __init__(
        self, clients: Clients, *, strength: float = 1.0, momentum: float = 1.0, train_shift: bool = True
    ) -> None:
        super().__init__(clients)
        self.strength, self.momentum, self.train_shift = strength, momentum, train_shift
        self.feature_mean = torch.zeros(0)

    def compose(self, body: nn.Module) -> Parts:
        return Parts(body, shift=nn.Parameter(torch.zeros(Parts(body).linear.in_features)))

    def logits(self, net: Parts, x: Tensor, client: int | None) -> Tensor:
        return net.head(net.features(x) + net.get_parameter("shift"))

    def round(self, t: int) -> None:
        if t > 0:
            return super().round(t)
        means = {k: self.features(self.without_shift(k), k)[0].mean(0) for k in self.clients.everybody}
        sizes = {k: self.clients.samples(k) for k in means}
        self.feature_mean = sum((sizes[k] * means[k] for k in means), torch.zeros(())) / sum(sizes.values())
        return None

    def without_shift(self, client: int) -> Model:
        """Training as usual in the first round, before there is a mean."""
        net = self.load(self.server)
        self.descend(net, client, 0, plain_loss, layers=("body.",))
        return state(net)

    def work(self, model: Model, client: int, t: int) -> Model:
        net, mean = self.load(model), torch.zeros_like(self.feature_mean)

        def loss(net: Parts, batch: Batch) -> Tensor:
            nonlocal mean
            z = net.features(batch.x)
            mean = (1 - self.momentum) * mean.detach() + self.momentum * z.mean(0)
            pull = (0.5 * (mean - self.feature_mean).square()).mean()
            return cross_entropy(net.head(z + net.get_parameter("shift")), batch.y) + self.strength * pull

        self.descend(net, client, t, loss, layers=EVERYTHING if self.train_shift else ("body.",))
        return state(net)


def mmd(a: Tensor, b: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two samples under a sum of four Gaussian kernels."""

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        distance = (x[:, None, :] - y[None, :, :]).square().sum(-1)
        return torch.stack([torch.exp(-distance / (2 * s)) for s in (10, 15, 20, 50)]).sum(0)

    return (kernel(a, a) + kernel(b, b) - 2 * kernel(a, b)).mean()


class PlainFedCP(Plain):
    """A policy network splits every feature between a personal head and the frozen head received.

    `differentiated`: whether gradients flow through the context, which is made of the personal head's weights. If not,
    the context is the same throughout a round: gradients of cross-entropy sum to zero over the classes.
    """

    personal = ("extra.",)

    def __init__(
        self,
        clients: Clients,
        parts: Mapping[str, Tensor] | None = None,
        *,
        strength: float = 1.0,
        noise: bool = True,
        differentiated: bool = False,
    ) -> None:
        super().__init__(clients, parts)
        self.strength, self.noise, self.differentiated = strength, noise, differentiated

    def compose(self, body: nn.Module) -> Parts:
        head = Parts(body).linear
        d = head.in_features
        policy = nn.Sequential(nn.Linear(d, 2 * d), nn.LayerNorm(2 * d), nn.ReLU())
        return Parts(body, extra=copy.deepcopy(head), policy=policy)

    def received(self, client: int) -> Model:
        """A client that has never trained starts its own head from the one it receives."""
        first = {f"extra.{part}": self.server[f"body.fc.{part}"] for part in ("weight", "bias")}
        return {**self.server, **self.own.get(client, first)}

    def split(self, net: Parts, z: Tensor, noise: Tensor | float) -> Tensor:
        """The logits from features."""
        weight = net.get_parameter("extra.weight")
        v = normalize((weight if self.differentiated else weight.detach()).sum(0), dim=0)
        gates = net.get_submodule("policy")(z * v).reshape(len(z), 2, -1)
        r, s = softmax(gates + noise, 1).unbind(1)
        out: Tensor = net.get_submodule("extra")(r * z) + net.head(s * z)
        return out

    def logits(self, net: Parts, x: Tensor, client: int | None) -> Tensor:
        return self.split(net, net.features(x), 0.0)

    def work(self, model: Model, client: int, t: int) -> Model:
        net, frozen = self.load(model), self.load(model)

        def loss(net: Parts, batch: Batch) -> Tensor:
            z = net.features(batch.x)
            u = batch.uniform("gumbel", (2, z.shape[1]))
            noise = -torch.log(-torch.log(u)) if self.noise else 0.0
            with torch.no_grad():
                fixed = frozen.features(batch.x)
            return cross_entropy(self.split(net, z, noise), batch.y) + self.strength * mmd(z, fixed)

        self.descend(net, client, t, loss, layers=(*BASE_LAYERS, "extra.", "policy."))
        return state(net)

    def merge(self, trained: Mapping[int, Model], t: int) -> None:
        sent = {k: dict(model) for k, model in trained.items()}
        for model in sent.values():
            for part in ("weight", "bias"):
                model[f"body.fc.{part}"] = 0.5 * model[f"extra.{part}"] + 0.5 * model[f"body.fc.{part}"]
        super().merge(sent, t)


class PlainGPFL(Plain):
    """A conditional valve gives every sample global features, guided by class embeddings, and personal ones.

    `condition`: whether the valve's inputs come from the embeddings as received, or as they are.
    """

    personal = HEAD

    def __init__(
        self,
        clients: Clients,
        parts: Mapping[str, Tensor] | None = None,
        *,
        strength: float = 0.01,
        decay: float = 0.1,
        condition: Literal["received", "current"] = "received",
    ) -> None:
        super().__init__(clients, parts)
        self.strength, self.decay, self.condition = strength, decay, condition

    def compose(self, body: nn.Module) -> Parts:
        d = Parts(body).linear.in_features
        gamma, beta = (nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.LayerNorm(d)) for _ in range(2))
        return Parts(body, embedding=nn.Embedding(CLASSES, d), gamma=gamma, beta=beta)

    def decay_of(self, name: str, sgd: LocalTraining) -> float:
        return sgd.weight_decay if name.startswith("body.") else self.decay

    def valve(self, net: Parts, z: Tensor, condition: Tensor) -> Tensor:
        gamma, beta = (net.get_submodule(name)(condition) for name in ("gamma", "beta"))
        return relu(z * (gamma + 1) + beta)

    def conditions(self, net: Parts, client: int) -> tuple[Tensor, Tensor]:
        """g and p, of which no gradient is taken."""
        embeddings, counts = net.get_parameter("embedding.weight").detach().clone(), self.counts(client)
        return embeddings.mean(0), (counts / counts.sum()) @ embeddings

    def logits(self, net: Parts, x: Tensor, client: int | None) -> Tensor:
        assert client is not None
        return net.head(self.valve(net, net.features(x), self.conditions(net, client)[1]))

    def work(self, model: Model, client: int, t: int) -> Model:
        net, frozen = self.load(model), self.load(model)
        fixed = frozen.get_parameter("embedding.weight").detach()

        def loss(net: Parts, batch: Batch) -> Tensor:
            g, p = self.conditions(frozen if self.condition == "received" else net, client)
            z = net.features(batch.x)
            generic, personal = self.valve(net, z, g), self.valve(net, z, p)
            cosines = normalize(generic, dim=1) @ normalize(net.get_parameter("embedding.weight"), dim=1).T
            magnitude = (generic - fixed[batch.y]).square().sum().sqrt()  # over the whole batch
            guided = cross_entropy(cosines, batch.y) + self.strength * magnitude
            return cross_entropy(net.head(personal), batch.y) + guided

        self.descend(net, client, t, loss)
        return state(net)


def best_mixture(Q: Tensor) -> Tensor:
    """The α on the simplex with the least αᵀQα, by trying every set of clients that it may rest on."""
    best, least = torch.zeros(len(Q), dtype=Q.dtype), torch.inf
    for size in range(1, len(Q) + 1):
        for support in combinations(range(len(Q)), size):
            at = torch.tensor(support)
            solved = torch.linalg.solve(Q[at][:, at], torch.ones(size, dtype=Q.dtype))
            alpha = torch.zeros_like(best)
            alpha[at] = solved / solved.sum()
            value = float(alpha @ Q @ alpha)
            if bool((alpha >= 0).all()) and value < least:
                best, least = alpha, value
    return best


@dataclass(frozen=True)
class Described:
    """What FedPAC's client tells of its features: H_i, V_i."""

    H: Tensor
    V: float

    @staticmethod
    def of(z: Tensor, y: Tensor) -> "Described":
        n, H, within = len(y), torch.zeros(CLASSES, z.shape[1], dtype=z.dtype), 0.0
        for c in y.unique().tolist():
            mine = z[y == c]
            p, mu = len(mine) / n, mine.mean(0)
            H[c] = p * mu
            within += p * float(torch.trace(mine.T @ mine / len(mine))) - p**2 * float(mu @ mu)
        return Described(H, within / n)


class PlainFedPAC(Plain):
    """Head, then base with features pulled to common prototypes; heads are mixed by a quadratic programme.

    `unmet`: the head of a client that has never taken part, the initial one or the newest mean over a cohort.
    """

    personal = HEAD

    def __init__(
        self,
        clients: Clients,
        *,
        strength: float = 1.0,
        head_epochs: int = 1,
        unmet: Literal["initial", "mean"] = "initial",
    ) -> None:
        super().__init__(clients)
        self.strength, self.head_epochs, self.unmet = strength, head_epochs, unmet
        self.prototypes: dict[int, Tensor] = {}
        self.described: dict[int, Described] = {}
        self.mixtures: dict[int, Tensor] = {}

    def work(self, model: Model, client: int, t: int) -> Model:
        self.described[client] = Described.of(*self.features(model, client))
        net, train = self.load(model), self.clients.train
        head = replace(train, epochs=self.head_epochs)
        self.descend(net, client, t, plain_loss, HEAD, head, "head")
        self.descend(net, client, t, self.aligned, BASE_LAYERS)
        return state(net)

    def aligned(self, net: Parts, batch: Batch) -> Tensor:
        z = net.features(batch.x)
        known = [i for i, c in enumerate(batch.y.tolist()) if c in self.prototypes]
        pull = torch.zeros(())
        for i in known:
            pull = pull + (z[i] - self.prototypes[int(batch.y[i])]).square().mean() / len(z)
        return cross_entropy(net.head(z), batch.y) + self.strength * pull

    def merge(self, trained: Mapping[int, Model], t: int) -> None:
        super().merge(trained, t)
        cohort = list(trained)
        heads = {k: {n: x for n, x in trained[k].items() if n.startswith(HEAD)} for k in cohort}
        if self.unmet == "mean":
            self.server |= weighted(heads, {k: self.clients.samples(k) for k in cohort})
        self.mixtures = {i: self.mixture(i, cohort) for i in cohort}
        for i, alpha in self.mixtures.items():
            self.own[i] = weighted(heads, dict(zip(cohort, alpha.tolist(), strict=True)))
        found = {k: self.features(trained[k], k) for k in cohort}
        for c in range(CLASSES):
            mine = torch.cat([z[y == c] for z, y in found.values()])  # every sample counts once: weights are counts
            if len(mine):
                self.prototypes[c] = mine.mean(0)

    def mixture(self, i: int, cohort: list[int]) -> Tensor:
        away = torch.stack([(self.described[i].H - self.described[j].H).flatten() for j in cohort])
        V = torch.tensor([self.described[j].V for j in cohort], dtype=away.dtype)
        alpha = best_mixture(torch.diag(V) + away @ away.T)
        assert bool(((alpha - 1e-3).abs() > 1e-6).all())  # or another solver might drop what this one keeps
        return torch.where(alpha < 1e-3, 0.0, alpha)


class PlainFedAS(Plain):
    """FedPer that first aligns the base it receives to what its own base made of each class; weighted by Fisher traces.

    `shuffled`: whether the batches of the Fisher trace are shuffled (purpose "fisher") or in the order of the samples.
    `statistics`: how those of BatchNorm are averaged.
    """

    personal = HEAD

    def __init__(
        self,
        clients: Clients,
        *,
        align_lr: float = 0.01,
        align_epochs: int = 1,
        shuffled: bool = False,
        statistics: Literal["samples", "fisher"] = "samples",
    ) -> None:
        super().__init__(clients)
        self.align = replace(clients.train, lr=align_lr, epochs=align_epochs)
        self.shuffled, self.statistics = shuffled, statistics
        self.old: dict[int, Model] = {}
        self.weights: dict[int, float] = {}

    def work(self, model: Model, client: int, t: int) -> Model:
        z, y = self.features(self.old.get(client, model), client)
        prototypes = {c: z[y == c].mean(0) for c in y.unique().tolist()}

        def distance(net: Parts, batch: Batch) -> Tensor:
            z = net.features(batch.x)
            mine = [(z[batch.y == c], prototypes[c]) for c in batch.y.unique().tolist()]
            return torch.stack([mse_loss(some, prototype.expand_as(some)) for some, prototype in mine]).sum()

        net = self.load(model)
        self.descend(net, client, t, distance, BASE_LAYERS, self.align, "align")
        self.descend(net, client, t, lambda net, batch: self.loss(net, batch, client))
        self.old[client] = state(net)
        self.weights[client] = self.fisher(net, client, t)
        return state(net)

    def fisher(self, net: Parts, client: int, t: int) -> float:
        sgd, total = replace(self.clients.train, epochs=1), 0.0
        in_order = self.clients.federation.split("train").of(client).split(sgd.batch)
        for samples in self.batches(client, t, sgd, "fisher") if self.shuffled else in_order:
            data = self.clients.federation
            value = cross_entropy(self.logits(net, data.x[samples], client), data.y[samples])
            total += sum(float(g.square().sum()) for g in torch.autograd.grad(value, list(net.parameters())))
        return total

    def merge(self, trained: Mapping[int, Model], t: int) -> None:
        by_samples, by_fisher = self.mean(trained), self.mean(trained, self.weights)
        samples = self.statistics == "samples"
        self.server |= {n: by_samples[n] if samples and is_statistic(n) else x for n, x in by_fisher.items()}
