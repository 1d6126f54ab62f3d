"""Methods that mix, choose or generate models, in plain PyTorch, client by client: the oracles of their tests.

FedALA, APPLE, FedAMP, HeurFedAMP, FedFomo, FedCAC, IFCA, pFedHN and pFedHN-PC, each as a loop over whole models in
float64, written from its definition. What a formula leaves open is decided in the class's docstring. In all of them a
client that is not sampled keeps what it has, and `models` are those that clients would start their next round from.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

import torch
from plain_clients import Clients, Model, flat, is_statistic, layer_of, state
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stratafl.core import keys

Edit = Callable[[Model, Mapping[str, Tensor]], Model]  # (gradients, parameters) → gradients
Factors = Callable[[Model], Mapping[str, float]]  # gradients → a factor on the learning rate of each tensor


def trainable(model: Mapping[str, Tensor]) -> list[str]:
    return [name for name in model if not is_statistic(name)]


def loaded(clients: Clients, model: Mapping[str, Tensor], layers: Iterable[str] | None = None) -> nn.Module:
    """A network with this model; its `layers` in training mode, or all of it."""
    net = copy.deepcopy(clients.module)
    net.load_state_dict(model, strict=False)
    for name, child in net.named_children():
        child.train(layers is None or name in layers)
    return net


def batches(clients: Clients, client: int, t: int, purpose: str, epochs: int) -> Iterator[list[Tensor]]:
    """The batches of each epoch."""
    held = clients.federation.split("train").of(client)
    base = keys.keys(clients.seed, t, torch.tensor([client]), f"{purpose}/0")
    for epoch in range(epochs):
        order = keys.shuffles(keys.fold(base, epoch), torch.tensor([len(held)]), len(held))[0]
        yield list(held[order].split(clients.train.batch))


def gradients_of(clients: Clients, net: nn.Module, batch: Tensor, layers: Iterable[str] | None = None) -> Model:
    names = [n for n, _ in net.named_parameters() if layers is None or layer_of(n) in layers]
    loss = cross_entropy(net(clients.federation.x[batch]), clients.federation.y[batch])
    return dict(zip(names, torch.autograd.grad(loss, [net.get_parameter(n) for n in names]), strict=True))


def descended(
    clients: Clients,
    model: Model,
    client: int,
    t: int,
    *,
    purpose: str = "train",
    epochs: int | None = None,
    layers: Iterable[str] | None = None,
    edit: Edit | None = None,
    factors: Factors | None = None,
) -> Model:
    """The model after SGD on these layers, the others frozen in evaluation mode."""
    sgd, net = clients.train, loaded(clients, model, layers)
    groups = {n: {"params": [p]} for n, p in net.named_parameters() if layers is None or layer_of(n) in layers}
    optimiser = torch.optim.SGD(groups.values(), sgd.lr, momentum=sgd.momentum, weight_decay=sgd.weight_decay)
    for batch in chain(*batches(clients, client, t, purpose, sgd.epochs if epochs is None else epochs)):
        found = gradients_of(clients, net, batch, layers)
        if edit is not None:
            found = edit(found, {n: net.get_parameter(n).detach() for n in found})
        rates = factors(found) if factors is not None else {}
        for group, (name, g) in zip(optimiser.param_groups, found.items(), strict=True):
            group["params"][0].grad, group["lr"] = g, sgd.lr * rates.get(name, 1.0)
        optimiser.step()
    return state(net)


def pulled(strength: float, anchor: Mapping[str, Tensor]) -> Edit:
    """The gradient of (strength/2)·‖θ − anchor‖² beside that of the loss."""
    return lambda gradients, at: {n: g + strength * (at[n] - anchor[n]) for n, g in gradients.items()}


def mean_loss(clients: Clients, model: Model, client: int, split: str) -> float:
    """In evaluation mode."""
    held = clients.federation.split(split).of(client)
    with torch.no_grad():
        out = torch.func.functional_call(clients.module.eval(), model, clients.federation.x[held])
    return float(cross_entropy(out, clients.federation.y[held]))


@dataclass
class Plain:
    """A federation in a plain loop: `start` makes what is kept, `round` changes it, `models` are what clients have."""

    clients: Clients

    def __post_init__(self) -> None:
        self.initial = state(self.clients.module)
        self.N = self.clients.federation.clients
        self.met: set[int] = set()  # the clients that took part at least once
        self.start()

    def start(self) -> None:
        raise NotImplementedError

    def round(self, t: int) -> None:
        raise NotImplementedError

    def model(self, client: int, t: int) -> Model:
        raise NotImplementedError

    def run(self, rounds: int) -> list[Model]:
        """Every client's model as received after these rounds."""
        for t in range(rounds):
            self.round(t)
            self.met |= set(self.clients.sampled(t))
        return [self.model(k, rounds) for k in self.clients.everybody]

    def combined(self, weights: Mapping[int, float], models: Mapping[int, Model], statistics: Model) -> Model:
        """Σ_j w_j·θ_j of what is trained, with these statistics."""
        return {n: sum(w * models[j][n] for j, w in weights.items()) for n in trainable(self.initial)} | {
            n: x for n, x in statistics.items() if is_statistic(n)
        }  # type: ignore[return-value]


@dataclass
class PlainFedAvg(Plain):
    """FedAvg, or FedProx with a strength, which others must equal at their ends."""

    uniform: bool = False
    strength: float = 0.0

    def start(self) -> None:
        self.global_model = self.initial

    def round(self, t: int) -> None:
        start, pull = self.global_model, pulled(self.strength, self.global_model)
        trained = {k: descended(self.clients, start, k, t, edit=pull) for k in self.clients.sampled(t)}
        self.global_model = self.clients.mean(trained, self.uniform)

    def model(self, client: int, t: int) -> Model:
        return self.global_model


@dataclass
class PlainFedALA(Plain):
    """FedALA: own + (received − own)⊙W in some layers, with W learned before each round.

    A client that took part before learns W anew from where it was, on the first ⌈share·batches⌉ batches of each of its
    shuffled epochs (purpose `ala`): `first_passes` epochs if it took part once, else one. It keeps W when it takes
    part, not when it is evaluated. Layers that are learned run in training mode, all others in evaluation mode;
    statistics are always the received ones. The learning of W has neither momentum nor weight decay.
    """

    layers: tuple[str, ...] = ("fc",)
    weights_lr: float = 1.0
    share: float = 0.8
    first_passes: int = 10

    def start(self) -> None:
        self.global_model = self.initial
        self.own: list[Model] = [dict(self.initial) for _ in range(self.N)]
        self.names = [n for n in trainable(self.initial) if layer_of(n) in self.layers]
        self.W: list[Model] = [{n: torch.ones_like(self.initial[n]) for n in self.names} for _ in range(self.N)]
        self.times = [0] * self.N

    def mixed(self, client: int, W: Model) -> Model:
        own, theta = self.own[client], self.global_model
        return {**theta, **{n: own[n] + (theta[n] - own[n]) * W[n] for n in self.names}}

    def learned(self, client: int, t: int) -> Model:
        W = dict(self.W[client])
        if not self.times[client]:
            return W
        passes = self.first_passes if self.times[client] == 1 else 1
        gap = {n: self.global_model[n] - self.own[client][n] for n in self.names}
        net = loaded(self.clients, self.global_model, self.layers)
        for epoch in batches(self.clients, client, t, "ala", passes):
            for batch in epoch[: math.ceil(self.share * len(epoch))]:
                net.load_state_dict(self.mixed(client, W), strict=False)
                g = gradients_of(self.clients, net, batch, self.layers)
                W = {n: (W[n] - self.weights_lr * g[n] * gap[n]).clamp(0, 1) for n in self.names}
        return W

    def model(self, client: int, t: int) -> Model:
        return self.mixed(client, self.learned(client, t)) if self.times[client] else self.global_model

    def round(self, t: int) -> None:
        cohort = self.clients.sampled(t)
        for k in cohort:
            self.W[k] = self.learned(k, t)
        starts = {k: self.mixed(k, self.W[k]) if self.times[k] else self.global_model for k in cohort}
        trained = {k: self.trained(starts[k], k, t) for k in cohort}
        for k in cohort:
            self.own[k] = trained[k]
            self.times[k] += 1
        self.global_model = self.merged(starts, trained)

    def trained(self, model: Model, client: int, t: int) -> Model:
        return descended(self.clients, model, client, t)

    def merged(self, starts: Mapping[int, Model], trained: Mapping[int, Model]) -> Model:
        return self.clients.mean(trained)


@dataclass
class PlainAPPLE(Plain):
    """APPLE: w_i^p = Σ_j p_ij·w_j, whose gradient moves the client's core w_i and its p_i.

    Sums, products and regularisation are over trainable columns. p_ii starts at `own`, at 1/N without. Sizes are ones
    until a client uploads its own; p_0 is their shares before the round. The core's step uses p_ii, and p's step the
    cores, of before the step; there is no momentum. Statistics are the client's own, from its passes at w_i^p.
    """

    weights_lr: float = 1e-5
    strength: float = 0.1
    until: float = 0.1
    own: float | None = 0.5
    scaled: bool = True
    rounds: int = 3

    def start(self) -> None:
        self.cores: dict[int, Model] = {k: dict(self.initial) for k in range(self.N)}
        self.first = 1 / self.N if self.own is None else self.own
        rest = (1 - self.first) / (self.N - 1)
        self.p = torch.full((self.N, self.N), rest, dtype=torch.float64).fill_diagonal_(self.first)
        self.sizes = torch.ones(self.N, dtype=torch.float64)

    def personal(self, p: Tensor, cores: Mapping[int, Model], statistics: Model) -> Model:
        return self.combined({j: float(p[j]) for j in range(self.N)}, cores, statistics)

    def model(self, client: int, t: int) -> Model:
        return self.personal(self.p[client], self.cores, self.cores[client])

    def loss_scheduler(self, t: int) -> float:
        L = self.until * self.rounds
        return (math.cos(math.pi * t / L) + 1) / 2 if t < L else 0.0

    def client(self, i: int, t: int) -> tuple[Model, Tensor]:
        cores, p = dict(self.cores), self.p[i].clone()
        p_0, sgd = self.sizes / self.sizes.sum(), self.clients.train
        net = loaded(self.clients, self.initial)
        for batch in chain(*batches(self.clients, i, t, "train", sgd.epochs)):
            net.load_state_dict(self.personal(p, cores, cores[i]), strict=False)
            g = gradients_of(self.clients, net, batch)
            inner = torch.stack([sum((g[n] * cores[j][n]).sum() for n in g) for j in range(self.N)])  # type: ignore[misc]
            step = sgd.lr * (1 / self.first if self.scaled else 1) * float(p[i])
            cores[i] = {**state(net), **{n: cores[i][n] - step * g[n] for n in g}}
            p = p - self.weights_lr * (inner + 2 * self.loss_scheduler(t) * self.strength * (p - p_0))
        return cores[i], p

    def round(self, t: int) -> None:
        done = {i: self.client(i, t) for i in self.clients.sampled(t)}
        for i, (core, p) in done.items():
            self.cores[i], self.p[i], self.sizes[i] = core, p, self.clients.samples(i)


@dataclass
class PlainFedAMP(Plain):
    """FedAMP: u_i = Σ_j ξ_ij·w_j over what all N clients uploaded last is the anchor of client i's own training.

    Rows start as the initial model and take part in the sums from the first round on. A client that never took part has
    w_i = u_i, of which only trainable columns count: statistics are always its own. Distances are squared, over
    trainable columns. Without `sigma`, it is the median of d_ij, i ≠ j (1 if that is 0), the lower one of two.
    """

    strength: float = 1.0
    alpha: float | None = None
    sigma: float | None = None

    def start(self) -> None:
        self.rows: dict[int, Model] = {k: dict(self.initial) for k in range(self.N)}

    def others(self) -> Tensor:
        """ξ_ij for j ≠ i, and 0 on the diagonal."""
        vectors = [flat(self.rows[j]) for j in range(self.N)]
        d = torch.stack([torch.stack([(a - b).square().sum() for b in vectors]) for a in vectors])
        apart = ~torch.eye(self.N, dtype=torch.bool)
        sigma = self.sigma or float(d[apart].median()) or 1.0
        xi = (sigma if self.alpha is None else self.alpha) * torch.exp(-d / sigma) / sigma * apart
        total, most = xi.sum(1, keepdim=True), 1 - 1 / self.N
        return torch.where(total > most, xi * most / total, xi)

    def attention(self) -> Tensor:
        xi = self.others()
        return xi + torch.diag(1 - xi.sum(1))

    def anchor(self, client: int) -> Model:
        xi = self.attention()[client]
        return self.combined({j: float(xi[j]) for j in range(self.N)}, self.rows, self.rows[client])

    def model(self, client: int, t: int) -> Model:
        return self.rows[client] if client in self.met else self.anchor(client)

    def round(self, t: int) -> None:
        cohort = self.clients.sampled(t)
        anchors = {k: self.anchor(k) for k in cohort}
        starts = {k: self.model(k, t) for k in cohort}
        for k in cohort:
            self.rows[k] = self.trained(starts[k], anchors[k], k, t)

    def trained(self, model: Model, anchor: Model, client: int, t: int) -> Model:
        return descended(self.clients, model, client, t, edit=pulled(self.strength, anchor))


@dataclass
class PlainHeurFedAMP(PlainFedAMP):
    """FedAMP with ξ_ij ∝ exp(sharpness·cos(w_i, w_j)) for j ≠ i, which sum to 1 − own."""

    own: float = 0.5
    sharpness: float = 10.0

    def others(self) -> Tensor:
        w = torch.stack([flat(self.rows[j]) for j in range(self.N)])
        unit = w / w.norm(dim=1, keepdim=True)
        raw = torch.exp(self.sharpness * unit @ unit.T) * (1 - torch.eye(self.N, dtype=torch.float64))
        return (1 - self.own) * raw / raw.sum(1, keepdim=True)


@dataclass
class PlainFedFomo(Plain):
    """FedFomo: each client weighs the models that it is sent by how much better they are on its validation split.

    - The server keeps what each client uploaded last (the initial model before that) and the affinities P, `[N, N]`,
      which start as the identity.
    - Client i is sent the models of the `models` *other* clients with the largest P_ij, of equals those with the lower
      id; all N − 1 if there are not so many. Its own model it has, and it would weigh 0. There is no random choice:
      whom it has not tried is at 0, before everybody who was worse.
    - It computes w_j = (L_i(θ_i) − L_i(θ_j))/‖θ_j − θ_i‖: θ_i is its own last model (the initial one, if it never took
      part), L_i the mean loss over its validation split in evaluation mode, each model with its own statistics, the
      norm over trainable columns, without a constant; at distance 0, w_j = 0.
    - It starts from Σ_j w_j⁺θ_j/Σ_j w_j⁺, statistics included, with w⁺ = max(w, 0); from its own model if all w⁺ are 0.
      This happens in `mix`, so it is what a client is evaluated with.
    - It trains, and uploads its model and w (0 for whom it was not sent): P_i ← P_i + w_i, as it is: neither clipped at
      0 nor normalised.
    """

    models: int = 5

    def start(self) -> None:
        self.rows: dict[int, Model] = {k: dict(self.initial) for k in range(self.N)}
        self.P = torch.eye(self.N, dtype=torch.float64)

    def sent(self, i: int) -> list[int]:
        return sorted((j for j in range(self.N) if j != i), key=lambda j: (-float(self.P[i, j]), j))[: self.models]

    def weights(self, i: int) -> dict[int, float]:
        own, found = mean_loss(self.clients, self.rows[i], i, "validation"), {}
        for j in self.sent(i):
            distance = float((flat(self.rows[j]) - flat(self.rows[i])).norm())
            better = own - mean_loss(self.clients, self.rows[j], i, "validation")
            found[j] = better / distance if distance > 0 else 0.0
        return found

    def model(self, client: int, t: int) -> Model:
        return self.mixed(client, self.weights(client))

    def mixed(self, client: int, weights: Mapping[int, float]) -> Model:
        positive = {j: max(w, 0.0) for j, w in weights.items()}
        total = sum(positive.values())
        if not total:
            return self.rows[client]
        return {n: sum(w / total * self.rows[j][n] for j, w in positive.items()) for n in self.initial}  # type: ignore[misc]

    def round(self, t: int) -> None:
        cohort = self.clients.sampled(t)
        weights = {i: self.weights(i) for i in cohort}
        starts = {i: self.mixed(i, weights[i]) for i in cohort}
        for i in cohort:
            self.rows[i] = descended(self.clients, starts[i], i, t)
            for j, w in weights[i].items():
                self.P[i, j] += w


@dataclass
class PlainFedCAC(Plain):
    """FedCAC: critical parameters are averaged over similar clients, the others over all.

    - Client i trains from what it received, θ_old. Of each trainable tensor the ⌈share·size⌉ entries with the largest
      |(θ_new − θ_old)·θ_new| are critical, M_i = 1, of equals the first.
    - The server compares the clients of the round: o_ij = 1 − ‖M_i − M_j‖₁/(2·‖M_i‖₁) over all tensors together;
      threshold = mean(o) + (t/β)(max(o) − mean(o)) over pairs i ≠ j, with t = 0 in the first round;
      C_i = {i} ∪ {j: o_ij ≥ threshold}, up to 1e-9 because overlaps are ratios of counts that may well be equal or
      meet their mean; the customised w_i is the uniform mean of θ_new over C_i.
    - It keeps M_i and w_i until client i takes part again, and w_g, the mean weighted by n_k.
    - Received: M_i⊙w_i + (1 − M_i)⊙w_g with the newest w_g, and its statistics; w_g for who never took part.
    """

    share: float = 0.5
    beta: float = 100.0

    def start(self) -> None:
        self.global_model = self.initial
        self.masks: dict[int, Model] = {}
        self.customised: dict[int, Model] = {}
        self.similar: list[dict[int, list[int]]] = []
        self.margins: list[float] = []  # how far from the threshold every overlap is

    def critical(self, before: Model, after: Model) -> Model:
        masks = {}
        for n in trainable(after):
            omega = ((after[n] - before[n]) * after[n]).abs().flatten()
            ranked = sorted(range(len(omega)), key=lambda e, omega=omega: (-float(omega[e]), e))  # type: ignore[misc]
            masks[n] = torch.zeros_like(omega)
            masks[n][ranked[: math.ceil(round(self.share * len(omega), 6))]] = 1
            masks[n] = masks[n].reshape(after[n].shape)
        return masks

    def overlap(self, i: int, j: int) -> float:
        a, b = flat(self.masks[i]), flat(self.masks[j])
        return 1 - float((a - b).abs().sum() / (2 * a.sum())) if a.sum() else 1.0

    def collaborators(self, t: int, cohort: list[int]) -> dict[int, list[int]]:
        o = {(i, j): self.overlap(i, j) for i in cohort for j in cohort if i != j}
        if not o:
            return {i: [i] for i in cohort}
        mean, most = sum(o.values()) / len(o), max(o.values())
        threshold = mean + t / self.beta * (most - mean)
        self.margins += [abs(x - threshold) for x in o.values()]
        return {i: [j for j in cohort if i == j or o[i, j] >= threshold - 1e-9] for i in cohort}

    def model(self, client: int, t: int) -> Model:
        if client not in self.masks:
            return self.global_model
        mixed = {
            n: torch.where(m > 0, self.customised[client][n], self.global_model[n])
            for n, m in self.masks[client].items()
        }
        return {**self.global_model, **mixed}

    def round(self, t: int) -> None:
        cohort = self.clients.sampled(t)
        starts = {k: self.model(k, t) for k in cohort}
        trained = {k: descended(self.clients, starts[k], k, t) for k in cohort}
        for k in cohort:
            self.masks[k] = self.critical(starts[k], trained[k])
        self.similar.append(self.collaborators(t, cohort))
        for k, C in self.similar[-1].items():
            self.customised[k] = self.clients.mean({j: trained[j] for j in C}, uniform=True)
        self.global_model = self.clients.mean(trained)


@dataclass
class PlainIFCA(Plain):
    """IFCA: each client trains, of several models, the one with the smallest mean loss on its training split.

    The loss is in evaluation mode, with each group's own statistics; of equals the first group. A group's model becomes
    the mean of its members' models weighted by n_k, statistics included; a group that nobody chose is held.
    """

    groups: tuple[Model, ...] = ()  # the initial models

    def start(self) -> None:
        self.group: list[Model] = [dict(model) for model in self.groups]
        self.chosen: list[dict[int, int]] = []
        self.margins: list[float] = []  # by how much the best loss is the best

    def choice(self, client: int) -> int:
        losses = [mean_loss(self.clients, model, client, "train") for model in self.group]
        self.margins.append(math.inf if len(losses) == 1 else sorted(losses)[1] - min(losses))
        return losses.index(min(losses))

    def model(self, client: int, t: int) -> Model:
        return self.group[self.choice(client)]

    def round(self, t: int) -> None:
        cohort = self.clients.sampled(t)
        chosen = {k: self.choice(k) for k in cohort}
        trained = {k: descended(self.clients, self.group[chosen[k]], k, t) for k in cohort}
        self.chosen.append(chosen)
        for m in set(chosen.values()):
            self.group[m] = self.clients.mean({k: trained[k] for k in cohort if chosen[k] == m})


@dataclass
class Hypernet:
    """v `[N, e]`; hidden layers as (weight, bias); for each generated tensor one output layer of its size."""

    v: Tensor
    hidden: list[tuple[Tensor, Tensor]]
    out: dict[str, tuple[Tensor, Tensor]]

    @property
    def parameters(self) -> list[Tensor]:
        return [self.v, *(x for pair in (*self.hidden, *self.out.values()) for x in pair)]

    def leaves(self) -> "Hypernet":
        """A copy whose tensors autograd follows."""

        def leaf(x: Tensor) -> Tensor:
            return x.detach().clone().requires_grad_()

        pairs = {n: (leaf(w), leaf(b)) for n, (w, b) in self.out.items()}
        return Hypernet(leaf(self.v), [(leaf(w), leaf(b)) for w, b in self.hidden], pairs)

    def generated(self, client: int, like: Mapping[str, Tensor]) -> Model:
        x = self.v[client]
        for d, (weight, bias) in enumerate(self.hidden):
            x = weight @ (x if d == 0 else torch.relu(x)) + bias
        return {n: (weight @ x + bias).reshape(like[n].shape) for n, (weight, bias) in self.out.items()}


@dataclass
class PlainPFedHN(Plain):
    """pFedHN and, with personal layers, pFedHN-PC: one hypernetwork on the server generates every client's model.

    - h(v_i): Linear(e, hidden), then `depth` times ReLU and Linear(hidden, hidden), then one linear output per
      generated trainable tensor, without a ReLU before it.
    - The client trains from θ_i = h(v_i) by `train`, and Δ_i = θ_i − θ̃_i, of generated tensors. Personal layers (PC:
      the head) start from the initial model, are trained jointly and stay; statistics are the client's own.
    - The gradient of all parameters, embeddings included, is (1/|S|)·Σ_i (∂θ_i/∂·)ᵀΔ_i over the clients of the round;
      it is clipped as a whole, then one step of SGD with momentum and weight decay moves all parameters: also the
      embeddings of clients who were not there, whose gradient is 0. The velocity stays from round to round.
    """

    net: Hypernet | None = None
    personal: tuple[str, ...] = ()
    hyper_lr: float = 0.01
    momentum: float = 0.9
    decay: float = 1e-3
    clip: float = 50.0

    def start(self) -> None:
        assert self.net is not None
        self.hyper = self.net.leaves()
        self.optimiser = torch.optim.SGD(
            self.hyper.parameters, self.hyper_lr, momentum=self.momentum, weight_decay=self.decay
        )
        self.own: list[Model] = [dict(self.initial) for _ in range(self.N)]
        self.norms: list[float] = []

    def model(self, client: int, t: int) -> Model:
        made = self.hyper.generated(client, self.initial)
        return {**self.own[client], **{n: x.detach() for n, x in made.items()}}

    def round(self, t: int) -> None:
        cohort, parameters = self.clients.sampled(t), self.hyper.parameters
        self.optimiser.zero_grad()
        for i in cohort:
            made = self.hyper.generated(i, self.initial)
            self.own[i] = descended(self.clients, self.model(i, t), i, t)
            delta = [(x.detach() - self.own[i][n]) / len(cohort) for n, x in made.items()]
            torch.autograd.backward(list(made.values()), delta)
        self.norms.append(float(nn.utils.clip_grad_norm_(parameters, self.clip)))
        self.optimiser.step()
