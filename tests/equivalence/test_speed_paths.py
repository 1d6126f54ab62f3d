"""What makes it fast changes nothing: traced steps and lanes of clients give the same bits."""

import threading

import pytest
import torch
from torch import nn

from stratafl.algorithms import fedavg
from stratafl.core import lanes
from stratafl.data import digits_federation
from stratafl.execute import Matrix, Messages, simulation
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.runtime import cohort_task, engine, threads
from stratafl.testing import difference, everything

SLOW = pytest.mark.slow


def run(model, steps=None, batch=10, rounds=2):
    sim = simulation(
        fedavg(train=LocalTraining(lr=0.05, momentum=0.9, steps=steps, batch=batch)),
        digits_federation(clients=8),
        lambda: build(model, shape=(1, 8, 8), classes=10),
        rounds=rounds,
    )
    return everything(sim, sim.run(Matrix())), sim


@pytest.mark.slow
def test_traced_steps_of_a_larger_model_give_the_same_bits(monkeypatch):
    monkeypatch.setattr(engine, "PATIENCE", 10**9)
    eager, sim = run("convnorm")
    assert not sim.runtime.engine._traced
    monkeypatch.setattr(engine, "PATIENCE", 1)
    traced, sim = run("convnorm")
    assert sim.runtime.engine._traced
    assert difference(eager, traced) == 0


@pytest.mark.parametrize(
    ("model", "steps"), [("mlp", 5), *(pytest.param("convnorm", n, marks=SLOW) for n in (None, 5))]
)
def test_lanes_give_the_same_bits(model, steps, torch_threads, monkeypatch):
    one, _ = run(model, steps)
    torch_threads(3)
    monkeypatch.setattr(threads, "WORTHWHILE", 0)
    monkeypatch.setattr(engine, "PATIENCE", 1)
    three, sim = run(model, steps)
    assert len(sim.runtime.engine._traced) > (steps is None)  # equal lanes share their trace
    assert difference(one, three) == 0


@pytest.mark.parametrize("model", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_the_number_of_threads_changes_no_bit_of_stacked_clients(model, torch_threads, monkeypatch):
    """`Pace` chooses it by the clock; batches are so large that torch does use threads."""
    monkeypatch.setattr(cohort_task, "pace", lambda *_: None)
    ends = []
    for count in (1, 3):
        torch_threads(count)
        ends.append(run(model, steps=2, batch=100)[0])
    assert difference(*ends) == 0


@pytest.mark.slow
def test_nor_do_clients_that_are_left_alone_at_the_end(torch_threads, monkeypatch):
    """With two threads MKL would divide the long sums of one client's convolutions."""

    def all_threads_or_one(elements, device, clients):
        chosen = threads.pace(elements, device, clients)
        return chosen if clients < torch.get_num_threads() else None

    monkeypatch.setattr(cohort_task, "pace", all_threads_or_one)
    ends = []
    for count in (1, 2):
        torch_threads(count)
        ends.append(run("convnorm", batch=30)[0])
    assert difference(*ends) == 0


@pytest.mark.budget(1.5, "three runs with unequal clients")
def test_reading_several_steps_at_once_gives_the_same_bits(monkeypatch):
    """Step by step, and three steps of all clients at a time; clients have unequal numbers of steps."""
    usual, sim = run("mlp", rounds=1)
    assert len(set(sim.runtime.federation.counts("train").tolist())) > 1
    for numbers in (1, 64 * 10 * 8 * 3):
        monkeypatch.setattr(cohort_task, "NUMBERS_PER_READ", numbers)
        assert difference(usual, run("mlp", rounds=1)[0]) == 0


def test_lanes_run_in_threads_of_their_own(torch_threads):
    torch_threads(2)
    names = lanes.in_lanes(lambda lane: threading.current_thread().name, range(2))
    assert all(name.startswith("lane") for name in names)


def test_lanes_do_not_nest(torch_threads):
    torch_threads(2)
    inner = lanes.in_lanes(lambda lane: lanes.in_lanes(lambda other: (lane, other), range(2)), range(2))
    assert inner == [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]


@pytest.mark.budget(2, "four runs client by client")
@pytest.mark.parametrize(("model", "options"), [("mlp", {"norm": True}), pytest.param("convnorm", {}, marks=SLOW)])
def test_client_by_client_gives_the_same_bits_for_every_executor_and_number_of_lanes(model, options, torch_threads):
    """In single precision, with unequal clients and BatchNorm."""
    plain = by_client(Matrix(), model, options)
    torch_threads(3)
    executors = (Matrix(), Matrix(chunk=3), Messages())
    assert [difference(plain, by_client(executor, model, options)) for executor in executors] == [0, 0, 0]


def by_client(executor, model, options):
    sim = simulation(
        fedavg(train=LocalTraining(lr=0.05, momentum=0.9, steps=2)),
        digits_federation(clients=5),
        lambda: build(model, shape=(1, 8, 8), classes=10, **options),
        rounds=1,
        engine="loop",
    )
    assert sim.runtime.engine.parallel
    return everything(sim, sim.run(executor))


class NoisyNet(nn.Module):
    """Draws random numbers of its own, as an LSTM with dropout does."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 10)

    def forward(self, x):
        x = x.flatten(1)
        return self.fc(x + x.new_empty(x.shape).normal_() if self.training else x)


def test_modules_with_random_numbers_of_their_own_are_computed_one_at_a_time(torch_threads):
    torch_threads(3)
    run = [
        simulation(fedavg(train=LocalTraining(steps=2)), digits_federation(clients=4), NoisyNet, rounds=1)
        for _ in range(2)
    ]
    assert not run[0].runtime.engine.parallel
    first, second = (everything(sim, sim.run(each)) for sim, each in zip(run, (Matrix(), Messages()), strict=True))
    assert difference(first, second) == 0
