"""Local training in plain PyTorch, with what methods do differently: layers, losses, edited gradients, several draws.

A method's oracle is a `PlainMethod`: it has the server's model, what each client keeps, and `round`.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Self

import torch
from plain_clients import Clients, Model, is_statistic, state
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from stratafl.core import keys
from stratafl.policies import LocalTraining

Layers = Iterable[str] | None  # names of layers; None: all
Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]  # (network, inputs, labels)
Edit = Callable[[Model, Model], Model]  # (gradients, model) → gradients


def label_loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(net(x), y)


# Arithmetic on models


def trainable(model: Mapping[str, Tensor]) -> Model:
    return {n: x for n, x in model.items() if not is_statistic(n)}


def statistics(model: Mapping[str, Tensor]) -> Model:
    return {n: x for n, x in model.items() if is_statistic(n)}


def change(after: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> Model:
    """after − before, without statistics."""
    return {n: x - before[n] for n, x in trainable(after).items()}


def moved(model: Mapping[str, Tensor], direction: Mapping[str, Tensor], rate: float = 1.0) -> Model:
    """model + rate·direction; what has no direction stays."""
    return {n: x + rate * direction[n] if n in direction else x.clone() for n, x in model.items()}


def square(direction: Mapping[str, Tensor]) -> float:
    """‖direction‖² over all of its tensors."""
    return sum(float(x.square().sum()) for x in direction.values())


def furthest(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    """The largest difference between two models of the same names."""
    assert set(a) == set(b)
    return max(float((a[n] - b[n]).abs().max()) for n in a)


# Training


def network(clients: Clients, model: Model, layers: Layers = None) -> nn.Module:
    """The module with these numbers; layers that are not trained are frozen and in evaluation mode."""
    net = copy.deepcopy(clients.module)
    net.load_state_dict(model, strict=False)
    trained = None if layers is None else set(layers)
    for name, child in net.named_children():
        child.train(trained is None or name in trained)
        child.requires_grad_(trained is None or name in trained)
    return net


def frozen(clients: Clients, model: Model) -> nn.Module:
    """The module with these numbers, to be asked and not trained."""
    return network(clients, model, ()).eval()


def both(net: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs, and what the head is given."""
    given: list[Tensor] = []
    hook = net.get_submodule("fc").register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    outputs = net(x)
    hook.remove()
    return outputs, given[0]


def batches(
    clients: Clients, client: int, t: int, sgd: LocalTraining | None = None, purpose: str = "train", draw: int = 0
) -> list[Tensor]:
    """The samples of every step, in order; draws with other numbers are independent."""
    sgd = sgd or clients.train
    held = clients.federation.split("train").of(client)
    base = keys.keys(clients.seed, t, torch.tensor([client]), f"{purpose}/{draw}")
    taken: list[Tensor] = []
    epoch = 0
    while epoch < sgd.epochs if sgd.steps is None else len(taken) < sgd.steps:
        order = keys.shuffles(keys.fold(base, epoch), torch.tensor([len(held)]), len(held))[0]
        usable = [part for part in held[order].split(sgd.batch) if not sgd.drop_last or len(part) == sgd.batch]
        if not usable:
            return []
        taken += usable
        epoch += 1
    return taken[: sgd.steps]


def gradient(
    clients: Clients, model: Model, samples: Tensor, layers: Layers = None, loss: Loss = label_loss
) -> tuple[Model, Model]:
    """The gradient of the trained layers at this model, and the statistics after the pass that it took."""
    net = network(clients, model, layers)
    trained = {n: p for n, p in net.named_parameters() if p.requires_grad}
    value = loss(net, clients.federation.x[samples], clients.federation.y[samples])
    found = torch.autograd.grad(value, list(trained.values()))
    return dict(zip(trained, found, strict=True)), statistics(state(net))


def descended(
    clients: Clients,
    model: Model,
    client: int,
    t: int,
    sgd: LocalTraining | None = None,
    *,
    purpose: str = "train",
    layers: Layers = None,
    loss: Loss = label_loss,
    edit: Edit | None = None,
    lr: float | None = None,
) -> Model:
    """The model after this client's steps of round t; `edit` sees gradients before they are clipped.

    `lr` is for learning rates that a schedule changes.
    """
    sgd = sgd or clients.train
    net = network(clients, model, layers)
    trained = {n: p for n, p in net.named_parameters() if p.requires_grad}
    rate = sgd.lr if lr is None else lr
    optimiser = torch.optim.SGD(trained.values(), rate, momentum=sgd.momentum, weight_decay=sgd.weight_decay)
    for samples in batches(clients, client, t, sgd, purpose):
        optimiser.zero_grad()
        loss(net, clients.federation.x[samples], clients.federation.y[samples]).backward()
        if edit is not None:
            found = {n: p.grad.clone() for n, p in trained.items() if p.grad is not None}
            for n, g in edit(found, state(net)).items():
                trained[n].grad = g
        if sgd.clip is not None:
            nn.utils.clip_grad_norm_(trained.values(), sgd.clip)
        optimiser.step()
    return state(net)


def pull(strength: float, anchor: Model) -> Edit:
    """Add the gradient of (strength/2)·‖model − anchor‖²."""
    return lambda found, model: {n: g + strength * (model[n] - anchor[n]) for n, g in found.items()}


# Methods


@dataclass
class PlainMethod:
    """A server with a model and clients that train, one after the other; FedAvg until a method says otherwise."""

    clients: Clients

    def __post_init__(self) -> None:
        self.start = state(self.clients.module)
        self.global_model: Model = dict(self.start)
        self.rounds = 0  # so many are done

    def run(self, rounds: int) -> Self:
        for t in range(rounds):
            self.round(t)
            self.rounds = t + 1
        return self

    def round(self, t: int) -> None:
        trained = {k: self.trained(k, t) for k in self.clients.sampled(t)}
        self.global_model = self.merged(trained)

    def trained(self, client: int, t: int) -> Model:
        """What a client sends; what it keeps is put aside here."""
        return descended(self.clients, self.global_model, client, t)

    def merged(self, trained: Mapping[int, Model]) -> Model:
        """The server's next model."""
        return self.clients.mean(trained)

    def received(self, client: int) -> Model:
        """What a client would be evaluated with before it trains in the next round."""
        return dict(self.global_model)

    def deployed(self, client: int) -> Model:
        """What a client would use in production."""
        return self.received(client)

    @property
    def sent(self) -> list[str]:
        """The tensors that the server has."""
        return list(self.global_model)
