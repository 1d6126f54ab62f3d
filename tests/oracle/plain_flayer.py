"""FLAYER in plain PyTorch, client by client: the oracle of its tests."""

import copy
import math
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from stratafl.core import keys
from stratafl.policies import LocalTraining

TRAIN = LocalTraining(lr=0.05, epochs=2, batch=5)


def share_correct(module, row, x, y):
    net = copy.deepcopy(module).double().eval()
    net.load_state_dict(row, strict=False)
    with torch.no_grad():
        return float((net(x).argmax(1) == y).double().mean())


def of(federation, client, split="train"):
    held = federation.split(split).of(client)
    return federation.x[held], federation.y[held]


def cut(federation, seed, t, client, sgd, purpose="train"):
    """The batches of a client: the keyed shuffle is all that is taken from the library."""
    held = federation.split("train").of(client)
    base = keys.keys(seed, t, torch.tensor([client]), f"{purpose}/0")
    for epoch in range(sgd.epochs):
        order = keys.shuffles(keys.fold(base, epoch), torch.tensor([len(held)]), len(held))[0]
        yield from held[order].split(sgd.batch)


def state(net):
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    return {name: x.detach().clone() for name, x in tensors.items() if x.is_floating_point()}


def is_statistic(name):
    return "running" in name


@dataclass
class PlainFlayer:
    """FLAYER client by client, with stock modules and autograd; layers are lists of prefixes."""

    federation: object
    server: nn.Module
    layers: tuple[tuple[str, ...], ...]
    s: int = 1
    buffers: str = "follow"
    unsent: str = "held"
    least: float = 0.1
    fixed: float | None = None
    split: str = "train"
    moment: str = "trained"
    participation: float = 0.6
    own: dict = field(default_factory=dict)
    accuracy: dict = field(default_factory=dict)
    cohorts: list = field(default_factory=list)

    def __post_init__(self):
        self.own = {k: state(self.server) for k in range(self.federation.clients)}  # Algorithm 1 line 1

    def layer_of(self, name):
        return next(i for i, prefixes in enumerate(self.layers, 1) if name.partition(".")[0] in prefixes)

    def initialised(self, k):
        net, global_model = copy.deepcopy(self.server), state(self.server)
        A = self.accuracy.get(k, 0.0 if self.fixed is None else self.fixed)
        start = dict(global_model)
        for name, x in self.own[k].items():
            if self.buffers == "local" and is_statistic(name):
                start[name] = x
            elif self.layer_of(name) > len(self.layers) - self.s:
                start[name] = A * x + (1 - A) * global_model[name]
        net.load_state_dict(start, strict=False)
        return net

    def descend(self, net, k, t):
        net.train()
        L = len(self.layers)
        for samples in cut(self.federation, 0, t, k, TRAIN):
            names, tensors = zip(*net.named_parameters(), strict=True)
            loss = cross_entropy(net(self.federation.x[samples]), self.federation.y[samples])
            gradients = dict(zip(names, torch.autograd.grad(loss, tensors), strict=True))
            squares = [0.0] * (L + 1)
            for name, g in gradients.items():
                squares[self.layer_of(name)] += float(g.square().sum())
            with torch.no_grad():
                for name, p in zip(names, tensors, strict=True):
                    i = self.layer_of(name)
                    norm = max(math.sqrt(squares[i]), 1e-8)
                    p -= TRAIN.lr * (1 + math.log(1 + 1 / norm) * i / L) * gradients[name]

    def mask(self, before, after):
        kept = {name: torch.ones_like(x) for name, x in after.items()}
        L = len(self.layers)
        for i in range(1, L + 1):
            names = [n for n in after if self.layer_of(n) == i and not is_statistic(n)]
            change = [(float(d), n, j) for n in names for j, d in enumerate((after[n] - before[n]).abs().flatten())]
            ranked = sorted(range(len(change)), key=lambda j, change=change: (-change[j][0], j))
            count = math.ceil(round(min(max(i / L, self.least), 1) * len(change), 6))
            for j in ranked[count:]:
                kept[change[j][1]].view(-1)[change[j][2]] = 0
        return kept

    def round(self, t):
        N = self.federation.clients
        cohort = keys.sample(0, t, N, int(self.participation * N)).tolist()
        self.cohorts.append(cohort)
        global_model, top_sum, weight, everyone = state(self.server), {}, {}, 0
        for k in cohort:
            net = self.initialised(k)
            before, began = state(net), copy.deepcopy(net)
            self.descend(net, k, t)
            after, n = state(net), len(self.federation.split("train").of(k))
            if self.fixed is None:
                judged = net if self.moment == "trained" else began
                self.accuracy[k] = share_correct(self.server, state(judged), *of(self.federation, k, self.split))
            kept = self.mask(before, after)
            everyone += n
            for name, x in after.items():
                top_sum[name] = top_sum.get(name, 0) + n * kept[name] * x
                weight[name] = weight.get(name, 0) + n * kept[name]
            self.own[k] = after
        new = {}
        for name, x in global_model.items():
            if self.unsent == "zero":
                new[name] = top_sum[name] / everyone
            else:
                new[name] = torch.where(weight[name] > 0, top_sum[name] / weight[name].clamp(min=1), x)
            if self.buffers == "local" and is_statistic(name):
                new[name] = x
        self.server.load_state_dict(new, strict=False)


@dataclass
class PlainOfficial:
    """The authors' code in plain loops, for the model `Short` with local statistics."""

    federation: object
    server: nn.Module
    epochs: int = 2
    lr: float = 0.01
    batch: int = 5
    middle: float = 20.0
    p: int = 2
    own: dict = field(default_factory=dict)
    accuracy: dict = field(default_factory=dict)

    def batches(self, k):
        held = self.federation.split("train").of(k)
        return [b for b in held.split(self.batch) if len(b) == self.batch]  # in order, the last dropped

    def gradients(self, net, samples):
        loss = cross_entropy(net(self.federation.x[samples]), self.federation.y[samples])
        names, tensors = zip(*net.named_parameters(), strict=True)
        return dict(zip(names, torch.autograd.grad(loss, tensors), strict=True))

    @property
    def head(self):
        return [name for name, _ in self.server.named_parameters()][-self.p :]

    def initialised(self, k):
        net, A = copy.deepcopy(self.server), self.accuracy.get(k, 0.0)
        start = state(net)
        for name, x in self.own.get(k, {}).items():
            if is_statistic(name):
                start[name] = x
            elif name in self.head:
                start[name] = A * x + (1 - A) * start[name]
        net.load_state_dict(start, strict=False)
        net.train()  # all of it: statistics move
        for samples in self.batches(k):
            gradients = self.gradients(net, samples)
            with torch.no_grad():
                for name in self.head:
                    net.get_parameter(name).sub_(self.lr / 5 * gradients[name])
        return net

    def rates(self, gradients):
        names = list(dict.fromkeys(n.partition(".")[0] for n in gradients))
        rates = dict.fromkeys(names, 1.0) | {"fc": 0.2}
        for i, child in enumerate(names[1:-1], 1):
            logs = [math.log(1 + 1 / float(g.norm())) for n, g in gradients.items() if n.startswith(f"{child}.")]
            rates[child] = self.middle * (1 + i / (len(names) - 1) * sum(logs) / len(logs))
        return rates

    def train(self, net, k):
        net.train()
        for _ in range(self.epochs):
            for step, samples in enumerate(self.batches(k)):
                gradients = self.gradients(net, samples)
                if step == 0:
                    rates = self.rates(gradients)
                with torch.no_grad():
                    for name, p in net.named_parameters():
                        p -= self.lr * rates[name.partition(".")[0]] * gradients[name]

    def round(self):
        cohort = sorted(range(self.federation.clients), key=lambda k: -len(self.federation.split("train").of(k)))
        sums, weights = {}, {}
        for k in cohort:
            net = self.initialised(k)
            self.accuracy[k] = share_correct(self.server, state(net), *of(self.federation, k, "test"))
            before = state(net)
            self.train(net, k)
            self.own[k] = after = state(net)
            n, names = len(self.federation.split("train").of(k)), [n for n in after if not is_statistic(n)]
            for i, name in enumerate(names):
                change = (after[name] - before[name]).abs()
                kept = self.kept(change, min(max(i / len(names), 0.1), 0.9), i >= len(names) - 2)
                sums[name] = sums.get(name, 0) + n * kept * after[name]
                weights[name] = weights.get(name, 0) + n * kept
        global_model = state(self.server)
        for name, total in sums.items():
            global_model[name] = torch.where(weights[name] > 0, total / weights[name].clamp(min=1), global_model[name])
        self.server.load_state_dict(global_model, strict=False)

    def kept(self, change, keep, last):
        kept = torch.ones_like(change)
        if last or change.ndim == 2:
            return kept
        groups = change.flatten(0, 1).flatten(1) if change.ndim == 4 else change[None]
        flags = kept.view(groups.shape)
        for group, flag in zip(groups, flags, strict=True):
            size = len(group)
            pruned = round(size * (1 - keep))
            if change.ndim == 4:
                pruned = 1 if size == 1 else min(max(pruned, 1), size - 1)
            flag[sorted(range(size), key=lambda j, group=group: (float(group[j]), j))[:pruned]] = 0
        return kept
