"""pFedLA and HeurpFedLA in plain PyTorch, client by client: the oracle of its tests."""

import copy

import torch
from torch.nn.functional import cross_entropy

from stratafl.policies import LocalTraining

TRAIN = LocalTraining(lr=0.3, epochs=2, batch=32)  # batches that hold everything: their order is no concern here
LAYERS = ("conv1", "bn1", "conv2", "bn2", "fc")


class PlainPFedLA:
    """Both algorithms with a stock module, a dictionary and an autograd graph for each client."""

    def __init__(
        self, sim, *, lr, depth=2, normalise="softmax", unit="layer", k=0, retained=(), buffers="follow", cosines=False
    ):
        self.sim, self.lr, self.depth, self.normalise, self.unit = sim, lr, depth, normalise, unit
        self.cosines = cosines
        self.k, self.retained, self.buffers = k, retained, buffers
        server = sim.algorithm.init(sim.setup)
        self.hyper = [{n: x[i].clone() for n, x in server.items() if n != "rows"} for i in range(4)]
        self.models = [copy.deepcopy(sim.template) for _ in range(4)]

    def alpha(self, i, hyper):
        x = hyper["v"]
        for d in range(self.depth):
            x = torch.relu(hyper[f"psi{d}.weight"] @ x + hyper[f"psi{d}.bias"])
        z = torch.stack([hyper["out.weight"][j] @ x + hyper["out.bias"][j] for j in range(4)])  # [N, L or 1]
        if self.normalise == "softmax":
            found = z.softmax(0)
        else:
            positive = z.relu()
            found = positive / positive.sum(0)
        return {layer: found[:, n if self.unit == "layer" else 0] for n, layer in enumerate(LAYERS)}

    def mixture(self, i, hyper):
        """Parameters and statistics of θ̄_i, differentiable in the hypernetwork, and the retained layers."""
        alpha = self.alpha(i, hyper)
        ranked = sorted(("conv1", "conv2", "fc"), key=lambda n: (-float(alpha[n][i].detach()), -LAYERS.index(n)))
        kept = self.retained or tuple(ranked[: self.k])
        state = {}
        for name, own in self.models[i].state_dict().items():
            layer, statistic = name.split(".")[0], "running" in name
            if layer in kept or (statistic and self.buffers == "local") or not own.is_floating_point():
                state[name] = own.clone()
            else:
                state[name] = sum(alpha[layer][j] * self.models[j].state_dict()[name] for j in range(4))
        return state, kept

    def received(self, i):
        net = copy.deepcopy(self.models[i])
        net.load_state_dict({n: x.detach() for n, x in self.mixture(i, self.hyper[i])[0].items()})
        return net

    def round(self, t):
        cohort = self.sim.setup.sampled(t).tolist()
        work = {i: self._client(i) for i in cohort}
        for i, (net, hyper) in work.items():
            self.models[i], self.hyper[i] = net, hyper

    def _client(self, i):
        hyper = {n: x.clone().requires_grad_() for n, x in self.hyper[i].items()}
        state, kept = self.mixture(i, hyper)
        net = self.trained(i)
        taught = [n for n, _ in net.named_parameters() if n.split(".")[0] not in kept]
        delta = [net.get_parameter(n).detach() - state[n].detach() for n in taught]
        if self.cosines:
            agreement = self.agreement(i, hyper, dict(zip(taught, delta, strict=True)))
            steps = torch.autograd.grad(agreement, list(hyper.values()))
        else:
            steps = torch.autograd.grad([state[n] for n in taught], list(hyper.values()), delta)  # Eq. 10 and 11
        return net, {n: (x + self.lr * s).detach() for (n, x), s in zip(hyper.items(), steps, strict=True)}

    def agreement(self, i, hyper, delta):
        """Σ_l Σ_j α^{l,j}·cos(θ_j^l − m^l, Δθ_i^l)/max α^l, which the hypernetwork climbs."""
        alpha, total = self.alpha(i, hyper), 0.0
        layers = dict.fromkeys(n.split(".")[0] for n in delta) if self.unit == "layer" else ("",)
        for layer in layers:
            names = [n for n in delta if n.startswith(layer)]
            flat = [torch.cat([net.get_parameter(n).detach().flatten() for n in names]) for net in self.models]
            update, mean = torch.cat([delta[n].flatten() for n in names]), torch.stack(flat).mean(0)
            cosines = torch.stack([torch.cosine_similarity(x - mean, update, 0, eps=1e-300) for x in flat])
            weights = alpha[layer or LAYERS[0]]
            total = total + (weights * cosines).sum() / weights.detach().max()
        return total

    def trained(self, i):
        net, data = self.received(i), self.sim.runtime.federation
        x, y = (part[data.split("train").of(i)] for part in (data.x, data.y))
        optimiser = torch.optim.SGD(net.train().parameters(), TRAIN.lr)
        for _ in range(TRAIN.epochs):
            optimiser.zero_grad()
            cross_entropy(net(x), y).backward()
            optimiser.step()
        return net
