"""FLAYER's three parts and LAG on other methods, in plain PyTorch, client by client: the oracles of their tests.

FLAYER's layers are conv1 with bn1, conv2 with bn2, and fc: i = 1, 2, 3 of L = 3, whatever a host trains or sends. Its
options are the defaults of `flayer`: s = 1, the accuracy of the trained model on the training split, unsent entries are
held. LAG scores conv1, conv2 and fc; a BatchNorm follows its convolution; there is no warm-up.
"""

import copy
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import plain_descents
import torch
from plain_clients import UNITS, Model, flat, is_statistic, layer_of
from plain_fedlag import PlainFedLAG
from plain_flayer import PlainFlayer, share_correct
from plain_mixtures import Factors, Plain, PlainFedALA, PlainFedAMP, batches, descended, pulled, trainable
from torch import Tensor

from stratafl.testing import CLASSES

FLAYERS = (("conv1", "bn1"), ("conv2", "bn2"), ("fc",))
BASE, HEAD = ("conv1", "bn1", "conv2", "bn2"), ("fc",)
Phases = tuple[tuple[str, tuple[str, ...] | None, int | None], ...]  # purpose, layers, epochs


def layer_rates(gradients: Model) -> dict[str, float]:
    """1 + ln(1 + 1/‖g^(i)‖)·i/L for every tensor (FLAYER Eq. 4), from gradients after a host's own terms."""
    factors: dict[str, float] = {}
    for i, layers in enumerate(FLAYERS, 1):
        mine = [n for n in gradients if layer_of(n) in layers]
        norm = max(math.sqrt(sum(float(gradients[n].square().sum()) for n in mine)), 1e-8)
        factors |= dict.fromkeys(mine, 1 + math.log(1 + 1 / norm) * i / len(FLAYERS))
    return factors


@dataclass
class Flayered(Plain):
    """What FLAYER's parts have in common on all hosts; `rates` and `mask` switch two of them."""

    rates: bool = True
    mask: bool = True

    @property
    def factors(self) -> Factors | None:
        return layer_rates if self.rates else None

    def masked_mean(self, starts: Mapping[int, Model], trained: Mapping[int, Model], held: Model) -> Model:
        """Each entry's mean, by n_k, over those who sent it (Eq. 5–9); what nobody sent is held."""
        if not self.mask:
            return {n: x for n, x in self.clients.mean(trained).items() if n in held}
        tool: Any = PlainFlayer(self.clients.federation, self.clients.module, FLAYERS)
        kept = {k: tool.mask(starts[k], trained[k]) for k in trained}
        new = {}
        for n, old in held.items():
            weight = sum(self.clients.samples(k) * kept[k][n] for k in trained)
            total = sum(self.clients.samples(k) * kept[k][n] * trained[k][n] for k in trained)
            new[n] = torch.where(weight > 0, total / weight.clamp(min=1), old)
        return new

    def accuracy_of(self, model: Model, client: int) -> float:
        held = self.clients.federation.split("train").of(client)
        data = self.clients.federation.x[held], self.clients.federation.y[held]
        return float(share_correct(self.clients.module, model, *data))  # type: ignore[no-untyped-call]

    def guided(self, own: Model, received: Model, accuracy: float) -> Model:
        """A·own + (1 − A)·received in the head (Eq. 2), the client's own elsewhere."""
        mixed = {n: accuracy * x + (1 - accuracy) * received[n] for n, x in own.items() if layer_of(n) in HEAD}
        return {**own, **mixed}


@dataclass
class PlainFedPerFlayer(Flayered):
    """FedPer and FedRep with FLAYER: rates in every phase, also of the head; a masked upload of the base alone."""

    phases: Phases = (("train", None, None),)

    def start(self) -> None:
        self.global_model = {n: x for n, x in self.initial.items() if layer_of(n) in BASE}
        self.own: list[Model] = [dict(self.initial) for _ in range(self.N)]

    def model(self, client: int, t: int) -> Model:
        return {**self.own[client], **self.global_model}

    def round(self, t: int) -> None:
        cohort = self.clients.sampled(t)
        starts = {k: self.model(k, t) for k in cohort}
        trained = dict(starts)
        for k in cohort:
            for purpose, layers, epochs in self.phases:
                more: Any = {"purpose": purpose, "layers": layers, "epochs": epochs, "factors": self.factors}
                trained[k] = descended(self.clients, trained[k], k, t, **more)
            self.own[k] = trained[k]
        self.global_model = self.masked_mean(starts, trained, self.global_model)


@dataclass
class PlainDittoFlayer(Flayered):
    """Ditto with FLAYER: the personal head is guided by A of the personal model, rates in both branches.

    v_head ← A·v_head + (1 − A)·w_head whenever the client receives w; v_base stays. The pull is part of the gradient
    whose norm sets the rate. The masked upload is that of the global branch.
    """

    strength: float = 1.0
    personal_epochs: int | None = None

    def start(self) -> None:
        self.global_model = self.initial
        self.v: dict[int, Model] = {}
        self.A: dict[int, float] = {}

    def model(self, client: int, t: int) -> Model:
        if client not in self.v:
            return self.global_model
        return self.guided(self.v[client], self.global_model, self.A[client])

    def round(self, t: int) -> None:
        trained, w = {}, self.global_model
        for k in self.clients.sampled(t):
            more: Any = {"factors": self.factors, "epochs": self.personal_epochs, "purpose": "personal"}
            self.v[k] = descended(self.clients, self.model(k, t), k, t, edit=pulled(self.strength, w), **more)
            self.A[k] = self.accuracy_of(self.v[k], k)
            trained[k] = descended(self.clients, w, k, t, factors=self.factors)
        self.global_model = self.masked_mean(dict.fromkeys(trained, w), trained, w)


@dataclass
class PlainFedALAFlayer(PlainFedALA, Flayered):
    """FedALA with FLAYER: W takes the place of A; rates in training, not where W is learned; everything is masked.

    What changed is measured from where training started, after W was applied.
    """

    def trained(self, model: Model, client: int, t: int) -> Model:
        return descended(self.clients, model, client, t, factors=self.factors)

    def merged(self, starts: Mapping[int, Model], trained: Mapping[int, Model]) -> Model:
        return self.masked_mean(starts, trained, self.global_model)


class Shifted(Plain):
    """Clients that add log π_k to their logits wherever they use a model: π_k(c) = (n_kc + s)/(n_k + s·C)."""

    smoothing: float = 1.0

    def log_prior(self, client: int) -> Tensor:
        held = self.clients.federation.split("train").of(client)
        counts = torch.bincount(self.clients.federation.y[held], minlength=CLASSES).double()
        return torch.log((counts + self.smoothing) / (counts.sum() + self.smoothing * CLASSES))

    @contextmanager
    def shifted(self, client: int) -> Iterator[None]:
        """The clients' network gives this client's logits."""
        plain, module = self.clients, copy.deepcopy(self.clients.module)
        prior = self.log_prior(client)
        module.register_forward_hook(lambda module, inputs, logits: logits + prior)
        self.clients = replace(plain, module=module)
        yield
        self.clients = plain

    def run(self, rounds: int) -> list[Model]:
        """With the names that a composed head has in the library."""
        models = super().run(rounds)
        renamed = [{n.replace("fc.", "fc.linear."): x for n, x in model.items()} for model in models]
        return [{**model, "fc.prior.value": self.log_prior(k)} for k, model in enumerate(renamed)]


@dataclass
class PlainPriorFlayer(Shifted, Flayered):
    """FLAYER with priors: logits are shifted, the accuracy A is of shifted models, and the guide mixes plain heads."""

    smoothing: float = 1.0

    def start(self) -> None:
        self.global_model = self.initial
        self.own: list[Model] = [dict(self.initial) for _ in range(self.N)]
        self.A = [0.0] * self.N

    def model(self, client: int, t: int) -> Model:
        own = {n: x for n, x in self.own[client].items() if layer_of(n) in HEAD}
        return {**self.global_model, **self.guided(own, self.global_model, self.A[client])}

    def round(self, t: int) -> None:
        starts = {k: self.model(k, t) for k in self.clients.sampled(t)}
        for k, start in starts.items():
            with self.shifted(k):
                self.own[k] = descended(self.clients, start, k, t, factors=self.factors)
                self.A[k] = self.accuracy_of(self.own[k], k)
        self.global_model = self.masked_mean(starts, {k: self.own[k] for k in starts}, self.global_model)


@dataclass
class PlainFedStrata(Shifted, Flayered):
    """One model for all, trained on shifted logits: rates by layer, and a mean over those who sent an entry."""

    smoothing: float = 1.0

    def start(self) -> None:
        self.global_model = self.initial

    def model(self, client: int, t: int) -> Model:
        return self.global_model

    def round(self, t: int) -> None:
        trained, start = {}, self.global_model
        for k in self.clients.sampled(t):
            with self.shifted(k):
                trained[k] = descended(self.clients, start, k, t, factors=self.factors)
        self.global_model = self.masked_mean(dict.fromkeys(trained, start), trained, start)


@dataclass
class PlainFedALAPrior(Shifted, PlainFedALA):
    """FedALA with priors: W is learned, and training runs, on shifted logits."""

    smoothing: float = 1.0

    def learned(self, client: int, t: int) -> Model:
        with self.shifted(client):
            return super().learned(client, t)

    def trained(self, model: Model, client: int, t: int) -> Model:
        with self.shifted(client):
            return super().trained(model, client, t)


@dataclass
class PlainFedAMPFlayer(PlainFedAMP, Flayered):
    """FedAMP with FLAYER: the base starts from u_i, the head from A·w_i + (1 − A)·u_i; nothing is masked.

    Statistics stay the client's own. The pull is to u_i, and part of the gradient whose norm sets the rate.
    """

    def start(self) -> None:
        super().start()
        self.A = [0.0] * self.N

    def model(self, client: int, t: int) -> Model:
        u = self.anchor(client)
        if client not in self.met:
            return u
        mixed = self.guided(self.rows[client], u, self.A[client])
        return {n: u[n] if layer_of(n) in BASE and not is_statistic(n) else x for n, x in mixed.items()}

    def trained(self, model: Model, anchor: Model, client: int, t: int) -> Model:
        after = descended(self.clients, model, client, t, edit=pulled(self.strength, anchor), factors=self.factors)
        self.A[client] = self.accuracy_of(after, client)
        return after


@dataclass
class Lagged(Plain):
    """LAG: after each round the k layers with the most conflicting updates become personal, L_p, for the next."""

    k: int = 1
    xi: float = 0.0
    scored: tuple[str, ...] = UNITS

    def start(self) -> None:
        self.global_model = self.initial
        self.own: list[Model] = [dict(self.initial) for _ in range(self.N)]
        self.sets: list[set[str]] = [set()]

    @property
    def personal(self) -> set[str]:
        return self.sets[-1]

    def model(self, client: int, t: int) -> Model:
        return {n: self.own[client][n] if layer_of(n) in self.personal else x for n, x in self.global_model.items()}

    def conflicting(self, h: list[Model]) -> set[str]:
        counts = PlainFedLAG(self.clients, xi=self.xi).conflicts
        scores = {layer: counts([flat(each, layer) for each in h]) for layer in self.scored}
        ranked = sorted(self.scored, key=lambda layer: (scores[layer], UNITS.index(layer)), reverse=True)
        chosen = [layer for layer in ranked[: self.k] if scores[layer] > 0]
        return {*chosen, *({"conv1": "bn1", "conv2": "bn2"}[layer] for layer in chosen if layer != "fc")}

    def round(self, t: int) -> None:
        cohort = self.clients.sampled(t)
        starts = {k: self.model(k, t) for k in cohort}
        trained = {k: self.trained(starts[k], k, t) for k in cohort}
        h = [{n: trained[k][n] - starts[k][n] for n in self.initial} for k in cohort]
        personal = self.conflicting(h)
        self.global_model = self.merged(trained, personal)
        self.sets.append(personal)
        for k in cohort:
            self.own[k] = trained[k]

    def trained(self, model: Model, client: int, t: int) -> Model:
        return descended(self.clients, model, client, t)

    def merged(self, trained: Mapping[int, Model], personal: set[str]) -> Model:
        return self.clients.mean(trained)


@dataclass
class PlainFedEXPLag(Lagged):
    """FedEXP with LAG: only the layers that are averaged now, those not in the new L_p, count and are extrapolated.

    Δ_i = θ_i − w with the server's w, which is what FedEXP says; the scores use what each client learned since it
    started. The server's copy of the layers in L_p is their plain mean, and so are all statistics.
    """

    epsilon: float = 1e-3

    def start(self) -> None:
        super().start()
        self.steps: list[float] = []

    def merged(self, trained: Mapping[int, Model], personal: set[str]) -> Model:
        w, mean = self.global_model, self.clients.mean(trained)
        shared = [n for n in trainable(w) if layer_of(n) not in personal]
        total = sum(self.clients.samples(k) for k in trained)

        def square(model: Model) -> float:
            return sum(float((model[n] - w[n]).square().sum()) for n in shared)

        spread = sum(self.clients.samples(k) / total * square(model) for k, model in trained.items())
        self.steps.append(max(1.0, spread / (2 * (square(mean) + self.epsilon))))
        return {**mean, **{n: w[n] + self.steps[-1] * (mean[n] - w[n]) for n in shared}}


@dataclass
class PlainScaffoldLag(Lagged):
    """SCAFFOLD with LAG: control variates of all layers go on, but those in L_p are trained without them.

    In a layer of the L_p with which the client was sent its model, c_i and c count as 0 in its steps and in
    c_i⁺ = c_i − c + (x − y)/(Kη), so that c_i⁺ is its mean gradient there too; x is where the client started.
    c ← c + (1/N)·Σ(c_i⁺ − c_i) with the c_i that was kept. Means are uniform.
    """

    server_lr: float = 1.0

    def start(self) -> None:
        super().start()
        zeros = {n: torch.zeros_like(self.initial[n]) for n in trainable(self.initial)}
        self.c, self.c_i = zeros, [dict(zeros) for _ in range(self.N)]
        self.learned: dict[int, Model] = {}

    def trained(self, model: Model, client: int, t: int) -> Model:
        use = {n: 0.0 if layer_of(n) in self.personal else 1.0 for n in self.c}
        correct = {n: use[n] * (self.c[n] - self.c_i[client][n]) for n in self.c}
        edited = descended(self.clients, model, client, t, edit=lambda g, _: {n: g[n] + correct[n] for n in g})
        sgd = self.clients.train
        K = len(list(chain(*batches(self.clients, client, t, "train", sgd.epochs))))
        self.learned[client] = {n: (model[n] - edited[n]) / (K * sgd.lr) - correct[n] for n in self.c}
        return edited

    def merged(self, trained: Mapping[int, Model], personal: set[str]) -> Model:
        for k in trained:
            self.c = {n: c + (self.learned[k][n] - self.c_i[k][n]) / self.N for n, c in self.c.items()}
            self.c_i[k] = self.learned[k]
        mean, x = self.clients.mean(trained, uniform=True), self.global_model
        return {n: y if is_statistic(n) else x[n] + self.server_lr * (y - x[n]) for n, y in mean.items()}


@dataclass
class PlainFedBABULag(Lagged):
    """FedBABU with LAG: the body is trained under the common head, which is neither scored nor averaged."""

    scored: tuple[str, ...] = ("conv1", "conv2")

    def trained(self, model: Model, client: int, t: int) -> Model:
        return descended(self.clients, model, client, t, layers=BASE)


@dataclass
class PlainPFedMeLag(Lagged):
    """pFedMe with LAG: w_i and its layers in L_p are what LAG looks at and what clients keep; θ_i is used.

    Of layers in the new L_p the server's w is the mean, of all others (1 − β)·w + β·mean.
    """

    strength: float = 15.0
    inner: int = 5
    personal_lr: float = 0.01
    beta: float = 1.0

    def start(self) -> None:
        super().start()
        self.theta: dict[int, Model] = {}

    def run(self, rounds: int) -> list[Model]:
        """θ_i of all clients; w of those who never took part."""
        return [self.theta.get(k, model) for k, model in enumerate(super().run(rounds))]

    def trained(self, model: Model, client: int, t: int) -> Model:
        theta, w = dict(model), {n: model[n] for n in trainable(model)}
        for samples in plain_descents.batches(self.clients, client, t):
            for _ in range(self.inner):
                g, passed = plain_descents.gradient(self.clients, theta, samples)
                step = {n: g[n] + self.strength * (theta[n] - w[n]) for n in g}
                theta = {**theta, **{n: theta[n] - self.personal_lr * x for n, x in step.items()}, **passed}
            w = {n: x - self.clients.train.lr * self.strength * (x - theta[n]) for n, x in w.items()}
        self.theta[client] = theta
        return {**w, **{n: x for n, x in theta.items() if is_statistic(n)}}

    def merged(self, trained: Mapping[int, Model], personal: set[str]) -> Model:
        mean, w = self.clients.mean(trained), self.global_model
        mixed = [n for n in trainable(mean) if layer_of(n) not in personal]
        return {**mean, **{n: (1 - self.beta) * w[n] + self.beta * mean[n] for n in mixed}}
