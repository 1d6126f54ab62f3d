"""All routes to the end of a run give the same: executors, kinds of steps, where states are kept, joined runs, ranks.

A route differs from the plain run in several ways at once, so that few runs cover all of them: a covering array. Every
kind of method takes two routes, and every route is taken by four kinds or more. `make test-slow` takes every other
method of the catalogue through one more; the full product is nightly.
"""

from functools import cache, partial

import pytest
import torch
from thread_ranks import by_two_ranks

from simulations import federation, outcome
from stratafl.algorithms import ALGORITHMS, algorithm
from stratafl.core.state import flatten
from stratafl.data import digits_federation
from stratafl.evaluation.evaluate import deployed
from stratafl.execute import Debug, Distributed, Matrix, Messages, simulation
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.runtime import engine, threads
from stratafl.runtime.joining import Joining
from stratafl.runtime.speed import Speed
from stratafl.testing import difference, everything, tiny_model, within_reach

# One method of each kind: a personal head, two descents a round, masked layers, rows of all clients on the server,
# client weights per layer, phases, two models per client, a model with further modules, fields beside the model.
KINDS = ("fedper", "fedrep", "flayer", "fedlag", "pfedla", "fedalp", "ditto", "fedcp", "scaffold")
ROUTES = ("chunks, captured, disk", "messages, traced", "debug, lanes", "joined, disk", "two ranks")
OPTIONS = {  # with which the mechanism acts at once
    "fedalp": {"groups": 2, "warmup": 1},
    "fedlag": {"k": 2, "xi": 0.0, "warmup": 0},
    "flayer": {"s": 1},
    "heurpfedla": {"k": 1, "hyper_lr": 0.5},
    "pfedla": {"hyper_lr": 0.5},
}
EXECUTORS = {"chunks": Matrix(chunk=2), "messages": Messages(), "debug": Debug()}


def made(name, participation, seed=0, store="auto", graphs="off"):
    method, rounds = within_reach(algorithm(name, **OPTIONS.get(name, {})), 2)
    options = {"dtype": torch.float64, "participation": participation, "seed": seed, "engine": "stacked"}
    data, speed = federation(dtype=torch.float64), Speed(graphs=graphs, compile="off")
    return simulation(method, data, tiny_model(), rounds=rounds, store=store, speed=speed, **options)


def run(sim, executor):
    """All tensors at the end, and what rounds report of the clients."""
    progress, reports = sim.start(), {}
    while progress.t < sim.rounds:
        progress, report = sim.round(progress, executor, watched=True)
        noted = {"up": report.up.clients, "down": report.down.clients, "layers": report.up.layers, **report.notes}
        reports |= flatten({"": noted}, f"round {progress.t}")
    return sim, progress, reports


def ended(sim, progress, reports):
    """The server, the state of each client wherever it is kept, each client's deployed model, and the reports."""
    models = {"server": progress.server, "deployed": deployed(sim, progress, torch.arange(sim.setup.clients))}
    flat = {f"{part}/{name}": x for part, state in models.items() for name, x in flatten(state).items()}
    clients = {f"client {k}/{name}": x for k, state in progress.clients.items() for name, x in flatten(state).items()}
    return {**flat, **clients, **reports}


@cache
def plain(name, participation):
    """One process, all clients at once, no step captured or traced."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "PATIENCE", 10**9)
        return ended(*run(made(name, participation), Matrix()))


def joined(name, participation):
    """Beside itself with another seed, and beside FedAvg, whose step many methods share."""
    ends = {}

    def work(key, make):
        ends[key] = ended(*run(make(), Matrix()))

    works = {
        "this": partial(made, name, participation, store="disk"),
        "another seed": partial(made, name, participation, seed=1),
        "fedavg": partial(made, "fedavg", participation, seed=2),
    }
    Joining(lambda: len(works)).drive(partial(work, key, make) for key, make in works.items())
    return ends["this"]


def of_ranks(name, participation):
    """The server as all ranks have it, and the clients of each."""

    def work(process_group):
        return run(made(name, participation), Distributed(process_group, Matrix(chunk=2)))

    (sim, first, reports), (_, second, others) = by_two_ranks(work)
    assert difference(flatten(first.server), flatten(second.server)) == 0
    assert difference(reports, others) == 0
    assert not set(first.clients) & set(second.clients)
    clients = first.clients
    for client, state in second.clients.items():
        clients = clients.updated([client], {n: _row(x) for n, x in state.items()})
    return ended(sim, type(first)(first.t, first.server, clients), reports)


def _row(value):
    return value.unsqueeze(0) if isinstance(value, torch.Tensor) else {n: x.unsqueeze(0) for n, x in value.items()}


def by_route(name, participation, route, torch_threads):
    if route == "two ranks":
        return of_ranks(name, participation)
    if route == "joined, disk":
        return joined(name, participation)
    executor, _, rest = route.partition(", ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "PATIENCE", 1 if "traced" in rest else 10**9)
        if "lanes" in rest:
            torch_threads(3)
            patch.setattr(threads, "WORTHWHILE", 0)
        options = {"store": "disk" if "disk" in rest else "ram", "graphs": "on" if "captured" in rest else "off"}
        sim, progress, reports = run(made(name, participation, **options), EXECUTORS[executor])
        if "captured" in rest:
            assert len(sim.runtime.captured) > 0
        if "traced" in rest:
            assert sim.runtime.engine.traces
        return ended(sim, progress, reports)


def taken():
    """Which method takes which route when."""
    first, second = ([(name, ROUTES[(place + more) % 5]) for place, name in enumerate(KINDS)] for more in (0, 2))
    yield from (
        (name, route, 0.5, pytest.mark.slow if place >= len(ROUTES) else ())
        for place, (name, route) in enumerate(first)
    )
    yield from ((name, route, 0.5, pytest.mark.slow) for name, route in second)
    for place, name in enumerate(sorted(ALGORITHMS)):
        for route in ROUTES:
            slow = (place % 4, route) in ((0, "chunks, captured, disk"), (2, "joined, disk"))
            if (name, route) not in (*first, *second):
                yield name, route, 0.5, pytest.mark.slow if slow else pytest.mark.nightly
            yield name, route, 1.0, pytest.mark.nightly


@pytest.mark.budget(1.5, "the plain run and another route")
@pytest.mark.parametrize(("name", "route", "participation"), [pytest.param(*t[:3], marks=t[3]) for t in taken()])
def test_every_route_ends_where_the_plain_run_ends(name, route, participation, torch_threads):
    gap = difference(plain(name, participation), by_route(name, participation, route, torch_threads))
    assert gap <= 1e-12, gap


@pytest.mark.budget(1.5, "four executors")
@pytest.mark.parametrize("name", ["fedavg", "fedrep"])
def test_executors_have_the_same_bits_in_single_precision(name):
    options = {"dtype": torch.float32, "batchnorm": name == "fedavg", "rounds": 1}
    expected = outcome(name, Matrix(), **options)
    assert all(difference(expected, outcome(name, each, **options)) == 0 for each in EXECUTORS.values())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["mlp", "cnn", "convnorm"])
def test_executors_have_the_same_bits_with_larger_models(model):
    data, method = (
        digits_federation(clients=8),
        algorithm("fedper", train=LocalTraining(lr=0.05, momentum=0.5, batch=30)),
    )
    sim = simulation(method, data, lambda: build(model, shape=(1, 8, 8), classes=10), rounds=1)
    expected, *others = (everything(sim, sim.run(each)) for each in (Matrix(), Matrix(chunk=3), Messages()))
    assert all(difference(expected, other) == 0 for other in others)
