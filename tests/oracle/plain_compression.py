"""Compressed uploads in plain PyTorch, number by number where that is clearest: the oracle of its tests."""

import math

import torch
from oracle_loops import Federated, state
from plain_pfedla import PlainPFedLA


def quantised(x, bits):
    """Each number as a whole multiple of max|x| / (2^(bits − 1) − 1)."""
    most = 2 ** (bits - 1) - 1
    step = max(abs(v) for v in x) / most
    return [0.0 if step == 0 else round(v / step) * step for v in x]  # Python rounds halves to even


def largest(x, keep):
    """The ⌈keep·n⌉ numbers furthest from 0, of equals the first; 0 for all others."""
    count = max(1, math.ceil(keep * len(x) - 1e-9))
    chosen = sorted(range(len(x)), key=lambda i: (-abs(x[i]), i))[:count]
    return [v if i in chosen else 0.0 for i, v in enumerate(x)]


HOW = {
    "q8": lambda x: quantised(x, 8),
    "q4": lambda x: quantised(x, 4),
    "topk": lambda x: largest(x, 0.1),
}


class Sender:
    """What a client remembers of what it could not send."""

    def __init__(self, how, feedback, min_size):
        self.how, self.feedback, self.min_size, self.left = how, feedback, min_size, {}

    def sent(self, name, own, base):
        """What the server reads of a tensor, whose base both have."""
        if "running" in name or own.numel() < self.min_size:
            return own.clone()
        owed = own - base + (self.left.get(name, 0.0) if self.feedback else 0.0)
        back = torch.tensor(HOW[self.how](owed.reshape(-1).tolist()), dtype=own.dtype).reshape(own.shape)
        self.left[name] = owed - back
        return base + back


class Compressed(Federated):
    """FedAvg and FedPer whose clients send compressed differences from what they received."""

    def compressing(self, how, feedback, min_size):
        self.senders = [Sender(how, feedback, min_size) for _ in self.clients]
        return self

    def round(self, t):
        cohort, base = self.cohort(t), {name: x.clone() for name, x in state(self.server).items()}
        total = sum(len(self.federation.split("train").of(k)) for k in cohort)
        mean = {name: torch.zeros_like(base[name]) for name in self.shared()}
        for k in cohort:
            self.clients[k] = net = self.received(k)
            for phase in self.phases:
                self.descend(net, {}, k, t, phase)
            for name in self.shared():
                share = len(self.federation.split("train").of(k)) / total
                mean[name] += self.senders[k].sent(name, state(net)[name], base[name]) * share
        self.server.load_state_dict(mean, strict=False)


class CompressedPFedLA(PlainPFedLA):
    """HeurpFedLA whose server has of each client what it could read of it."""

    def compressing(self, how, feedback, min_size):
        self.senders = [Sender(how, feedback, min_size) for _ in self.models]
        self.stored = [{n: x.clone() for n, x in model.state_dict().items()} for model in self.models]
        return self

    def mixture(self, i, hyper):
        alpha = self.alpha(i, hyper)
        _, kept = super().mixture(i, hyper)
        mixed = {}
        for name, own in self.models[i].state_dict().items():
            layer = name.split(".")[0]
            if layer in kept or not own.is_floating_point():
                mixed[name] = own.clone()
            else:
                mixed[name] = sum(alpha[layer][j] * self.stored[j][name] for j in range(4))
        return mixed, kept

    def round(self, t):
        work = {i: self._client(i) for i in self.sim.setup.sampled(t).tolist()}
        for i, (net, hyper, stored) in work.items():
            self.models[i], self.hyper[i], self.stored[i] = net, hyper, stored

    def _client(self, i):
        hyper = {n: x.clone().requires_grad_() for n, x in self.hyper[i].items()}
        mixed, kept = self.mixture(i, hyper)
        net, sender = self.trained(i), self.senders[i]
        stored = dict(net.state_dict())
        for name, own in stored.items():
            if not own.is_floating_point():
                continue
            retained = name.split(".")[0] in kept
            if retained:  # from what was sent last, in which nothing is owed
                sender.left.pop(name, None)
            base = self.stored[i][name] if retained else mixed[name].detach()
            stored[name] = sender.sent(name, own.detach(), base)
            if retained:
                sender.left.pop(name, None)
        taught = [n for n, _ in net.named_parameters() if n.split(".")[0] not in kept]
        delta = [stored[n] - mixed[n].detach() for n in taught]
        steps = torch.autograd.grad([mixed[n] for n in taught], list(hyper.values()), delta)
        return net, {n: (x + self.lr * s).detach() for (n, x), s in zip(hyper.items(), steps, strict=True)}, stored
