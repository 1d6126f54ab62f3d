"""What the attacks come to over the clients of a run: for each layer, after one round and over rounds.

The host is honest but curious. It knows the method, the initial model and all that it sent, and has samples of its own,
which are the clients' test samples here. Of layers that stay with clients it takes the initial ones.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from stratafl.core.layout import Rows
from stratafl.core.reprs import holder
from stratafl.errors import RunError
from stratafl.execute import Simulation
from stratafl.leak.attacks import (
    area,
    correlation,
    guessed_labels,
    guessed_shares,
    loss_scores,
    matched_inputs,
    membership_scores,
    recovered_inputs,
    sample_gradients,
    similarity,
)
from stratafl.leak.replay import SeenRound, replayed

SHARES, PRESENCE, LARGEST_CLASS = "class shares", "class presence", "largest class"
MEMBERSHIP, INVERSION = "membership", "inputs"
ATTACKS = {  # with what a number of it is
    SHARES: "correlation of guessed and true shares of classes",
    PRESENCE: "probability that a class which a client holds is ranked above one that it does not hold",
    LARGEST_CLASS: "share of clients whose largest class is found",
    MEMBERSHIP: "probability that a training sample is ranked above a test sample of the client",
    INVERSION: "correlation of a recovered input with the training sample most like it",
}
WHOLE_MODEL = "whole model"
MAX_SAMPLES = 40  # of a client that are tried, of each kind
OWN_SAMPLES = 20  # of each class, from which the host computes gradients
MAX_HOST_SAMPLES = 5000
MAX_MATCHED_SAMPLES = 16  # samples of a client whose inputs are looked for by descent


@dataclass(frozen=True)
class Leak:
    """How well an attack works on a layer, and what guessing comes to; `rounds` are those it could use."""

    layer: str
    attack: str
    rounds: int
    value: float
    guess: float


@holder
class _Trial:
    """The scores of one client in a round: of its classes, and of its samples, with which of them are members."""

    client: int
    shares: Tensor | None = None
    members: Tensor | None = None
    inputs: tuple[float, float] | None = None


def leakage(sim: Simulation, rounds: int, clients: int) -> list[Leak]:
    """Every attack on every layer that is sent, after the first round and over all `rounds`."""
    data = sim.runtime.federation
    if data.classes is None:
        raise RunError("the attacks need classes, but the targets of this run are numbers")
    trials = defaultdict[tuple[str, int], list[_Trial]](list)
    seen_rounds = 0
    for seen in replayed(sim, rounds):
        seen_rounds += 1
        for place, client in enumerate(seen.ids[:clients].tolist()):
            for layer, trial in _attacked(sim, seen, place, client).items():
                trials[layer, client].append(trial)
    layers = dict.fromkeys(layer for layer, _ in trials)
    leaks = list[Leak]()
    for layer in layers:
        of_clients = [of_client for (name, _), of_client in trials.items() if name == layer]
        for count in dict.fromkeys((1, seen_rounds)):
            leaks += _judged(sim, layer, count, [of_client[:count] for of_client in of_clients])
    return leaks


def _attacked(sim: Simulation, seen: SeenRound, place: int, client: int) -> dict[str, _Trial]:
    """The attacks on one client's upload, by layer."""
    layout, module, data = sim.setup.layout, sim.template, sim.runtime.federation
    assert module is not None
    module.eval()
    model = {name: x[place] for name, x in seen.base.items()}
    samples, members = _tried(sim, client)
    x, y = data.inputs(data.x[samples], torch.float32), data.y[samples].long()
    host = data.split("test").indices[:: max(1, len(data.split("test").indices) // MAX_HOST_SAMPLES)]
    host_x, host_y = data.inputs(data.x[host], torch.float32), data.y[host].long()
    classes = [(host_y == label).nonzero()[:OWN_SAMPLES, 0].tolist() for label in range(data.classes or 0)]
    by_class = sample_gradients(module, model, host_x, host_y, [places for places in classes if places])
    by_sample = sample_gradients(module, model, x, y, [[i] for i in range(len(samples))])
    trials = dict[str, _Trial]()
    for layer in layout.layers:
        names = [name for name in layer.tensors if name in seen.update and name in by_class]
        if not names:
            continue
        update = torch.cat([seen.update[name].flatten(1) for name in names], 1)
        g_class, g_sample = (torch.cat([g[name].flatten(1) for name in names], 1) for g in (by_class, by_sample))
        guessed = torch.full((data.classes or 0,), -torch.inf, dtype=torch.float64)
        guessed[[label for label, places in enumerate(classes) if places]] = guessed_shares(update[place], g_class)
        inputs = _inputs(seen, names, place, x[members], host_x)
        trials[layer.name] = _Trial(client, guessed, membership_scores(g_sample, update, place), inputs)
        for name in names:
            if seen.update[name].shape[1:] == (data.classes,):  # of an output; it needs no samples of the host
                trials[f"{layer.name}, bias alone"] = _Trial(client, seen.update[name][place])
    shares = next((trial.shares for trial in reversed(trials.values()) if trial.shares is not None), None)
    few = shares is not None and len(data.split("train").of(client)) <= MAX_MATCHED_SAMPLES
    matched = _matched(seen, place, module, model, shares, x[members], host_x) if few and shares is not None else None
    trials[WHOLE_MODEL] = _Trial(client, None, loss_scores(_drops(sim, seen, model, x, y), place), matched)
    return trials


def _tried(sim: Simulation, client: int) -> tuple[Tensor, Tensor]:
    """Samples of the client, some that it trained on and some that it did not, and which are which."""
    data = sim.runtime.federation
    train, test = (data.split(split).of(client)[:MAX_SAMPLES] for split in ("train", "test"))
    return torch.cat([train, test]), torch.arange(len(train) + len(test)) < len(train)


def _inputs(
    seen: SeenRound, names: Iterable[str], place: int, trained: Tensor, host: Tensor
) -> tuple[float, float] | None:
    """How alike recovered and trained inputs are, and as many of the host's samples; None of another layer."""
    weight = next((seen.update[name][place] for name in names if seen.update[name].ndim == 3), None)
    bias = next((seen.update[name][place] for name in names if seen.update[name].ndim == 2), None)
    if weight is None or bias is None or weight.shape[1] != trained[0].numel() or not len(trained):
        return None
    candidates = recovered_inputs(weight, bias)
    guesses = host.flatten(1)[torch.linspace(0, len(host) - 1, max(1, len(candidates))).long()]
    return similarity(candidates, trained.flatten(1)), similarity(guesses, trained.flatten(1))


def _matched(
    seen: SeenRound, place: int, module: nn.Module, model: Rows, shares: Tensor, trained: Tensor, host: Tensor
) -> tuple[float, float]:
    """As `_inputs`, by descent over all layers that were sent; the host knows the number of samples."""
    count = len(trained)
    start = torch.randn(trained.shape, generator=torch.Generator().manual_seed(seen.t)) / 10
    update = {name: x[place] for name, x in seen.update.items()}
    candidates = matched_inputs(module, model, update, start, guessed_labels(shares, count))
    guesses = host.flatten(1)[torch.linspace(0, len(host) - 1, count).long()]
    return similarity(candidates.flatten(1), trained.flatten(1)), similarity(guesses, trained.flatten(1))


def _drops(sim: Simulation, seen: SeenRound, model: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    """`[n, C]`: by how much the loss of each sample falls from what the client was sent to each client's upload."""
    module = sim.template
    assert module is not None

    def losses(update: Rows, place: int) -> Tensor:
        moved = {name: value + update[name][place] if name in update else value for name, value in model.items()}
        return cross_entropy(functional_call(module, moved, (x,)), y, reduction="none")

    with torch.no_grad():
        before = cross_entropy(functional_call(module, dict(model), (x,)), y, reduction="none")
        return torch.stack([before - losses(seen.update, place) for place in range(len(seen.ids))], 1)


# Over clients and rounds


def _judged(sim: Simulation, layer: str, rounds: int, clients: list[list[_Trial]]) -> list[Leak]:
    """What the scores of all clients come to, each averaged over its rounds."""
    data, values = sim.runtime.federation, defaultdict[str, list[float]](list)
    counts = data.class_counts("train")[: sim.setup.clients]
    usual = int(counts.sum(0).argmax())
    guesses = {SHARES: 0.0, PRESENCE: 0.5, MEMBERSHIP: 0.5}
    guesses[LARGEST_CLASS] = float((counts.argmax(1) == usual).double().mean())
    for trials in clients:
        client = trials[0].client
        shares = [_scaled(trial.shares) for trial in trials if trial.shares is not None]
        if shares:
            guessed, true = torch.stack(shares).mean(0), counts[client]
            values[SHARES].append(correlation(guessed, true))
            values[LARGEST_CLASS].append(float(true[int(guessed.argmax())] == true.max()))
            presence = area(guessed, true > 0)
            values[PRESENCE] += [] if presence is None else [presence]
        members = [_scaled(trial.members) for trial in trials if trial.members is not None]
        if members:
            membership = area(torch.stack(members).mean(0), _tried(sim, client)[1])
            values[MEMBERSHIP] += [] if membership is None else [membership]
        inputs = [trial.inputs for trial in trials if trial.inputs is not None]
        if inputs:  # the best of the rounds, for the host and for guessing alike
            values[INVERSION].append(max(value for value, _ in inputs))
            values["guessed"].append(max(guess for _, guess in inputs))
    means = {attack: sum(each) / len(each) for attack, each in values.items() if each}
    guesses[INVERSION] = means.pop("guessed", 0.0)
    return [Leak(layer, attack, rounds, value, guesses[attack]) for attack, value in means.items()]


def _scaled(scores: Tensor) -> Tensor:
    """Scores with mean 0 and length 1, so that every round counts alike; 0 if all are the same."""
    finite = scores[scores.isfinite()]
    centred = torch.where(scores.isfinite(), scores - finite.mean(), (finite - finite.mean()).min())
    length: Tensor = centred.norm().clamp(min=1e-30)
    return centred / length
