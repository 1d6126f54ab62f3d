"""Robust merges in plain Python, number by number: the oracle of their tests, and uploads to merge."""

import math
from statistics import median

import torch
from oracle_loops import Federated, state

from stratafl.core.parcel import Field, Parcel


def middle(values, counts):
    return median(values)


def trimmed(share):
    """The mean by counts of what is left when the smallest and the largest are taken away."""

    def merge(values, counts):
        cut = min(math.ceil(share * len(values) - 1e-9), (len(values) - 1) // 2)
        kept = sorted(zip(values, counts, strict=True))[cut : len(values) - cut]
        return math.fsum(v * n for v, n in kept) / sum(n for _, n in kept)

    return merge


def krum(f, keep):
    """Of the clients' weights, each a list of numbers: who lies nearest to n − f − 2 others."""

    def choose(models):
        n = len(models)
        apart = [[math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True)) for b in models] for a in models]
        score = [math.fsum(sorted(row[:i] + row[i + 1 :])[: n - f - 2]) for i, row in enumerate(apart)]
        return sorted(range(n), key=score.__getitem__)[:keep]

    return choose


def is_statistic(name):
    return "running" in name


class RobustFederated(Federated):
    """FedAvg and FedPer whose server merges in another way, and moves by `lr` towards the mean."""

    def merging(self, merge=None, norm=None, factor=None, lr=1.0, choose=None):
        self.merge, self.norm, self.factor, self.lr, self.choose = merge, norm, factor, lr, choose
        return self

    def round(self, t):
        cohort, base = self.cohort(t), {name: x.clone() for name, x in state(self.server).items()}
        counts = [len(self.federation.split("train").of(k)) for k in cohort]
        sent = []
        for k in cohort:
            self.clients[k] = net = self.received(k)
            for phase in self.phases:
                self.descend(net, {}, k, t, phase)
            sent.append({name: state(net)[name].clone() for name in self.shared()})
        if self.choose is not None:
            weights = [name for name in self.shared() if not is_statistic(name)]
            chosen = self.choose([[v for n in weights for v in one[n].flatten().tolist()] for one in sent])
            self.chosen = [*getattr(self, "chosen", []), *(cohort[place] for place in chosen)]
            sent, counts = ([each[place] for place in chosen] for each in (sent, counts))
        elif self.merge is None:
            sent = self.shortened(sent, base)
        new = {name: self.merged([one[name] for one in sent], counts) for name in self.shared()}
        moved = {n: x if is_statistic(n) else base[n] + self.lr * (x - base[n]) for n, x in new.items()}
        self.server.load_state_dict(moved, strict=False)

    def merged(self, each, counts):
        if self.merge is None:
            return sum(x * n for x, n in zip(each, counts, strict=True)) / sum(counts)
        columns = zip(*(x.reshape(-1).tolist() for x in each), strict=True)
        return torch.tensor([self.merge(c, counts) for c in columns], dtype=torch.float64).reshape(each[0].shape)

    def shortened(self, sent, base):
        """Every client's weights, and apart from them its statistics, no further from the server than allowed."""
        out = [dict(one) for one in sent]
        for statistics in (False, True):
            names = [name for name in self.shared() if is_statistic(name) is statistics]
            lengths = [math.sqrt(sum(float(((one[n] - base[n]) ** 2).sum()) for n in names)) for one in sent]
            most = self.norm or self.factor * median([x for x in lengths if x > 0] or [0.0])
            self.cut = [*getattr(self, "cut", []), sum(length > most for length in lengths)]
            for one, length in zip(out, lengths, strict=True):
                if length > most:
                    one.update({n: base[n] + (one[n] - base[n]) * (most / length) for n in names})
        return out


def drawn(sim, clients, mask=None, seed=0):
    """A server's row, and uploads of so many clients with as many samples as their number."""
    draw = torch.Generator().manual_seed(seed)
    layout = sim.setup.layout
    held = {n: torch.randn(s.shape, generator=draw, dtype=torch.float64) for n, s in layout.specs.items()}
    rows = {n: torch.randn(clients, *s.shape, generator=draw, dtype=torch.float64) for n, s in layout.specs.items()}
    field = Field(rows, mask=mask(rows, draw) if mask else None).poisoned(layout)
    return held, Parcel({"theta": field, "samples": Field(torch.arange(1, clients + 1))})
