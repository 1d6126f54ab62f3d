"""What makes it fast changes nothing: traced steps and lanes of clients give the same bits."""

import threading

import pytest
import torch

from stratafl.algorithms import fedavg
from stratafl.data import digits
from stratafl.execute import Matrix, simulation
from stratafl.models import build
from stratafl.policies import SGD
from stratafl.runtime import lanes, tracing
from stratafl.testing import difference, everything

LARGER = pytest.param("convnorm", marks=pytest.mark.slow)


def run(model, steps=None, **options):
    sim = simulation(
        fedavg(train=SGD(lr=0.05, momentum=0.9, steps=steps)),
        digits(clients=8),
        lambda: build(model, shape=(1, 8, 8), classes=10),
        rounds=2,
        **options,
    )
    return everything(sim, sim.run(Matrix())), sim


@pytest.mark.parametrize("model", ["mlp", LARGER])
def test_traced_steps_give_the_same_bits(model, monkeypatch):
    monkeypatch.setattr(tracing, "PATIENCE", 10**9)
    eager, sim = run(model)
    assert not sim.runtime.engine._traced
    monkeypatch.setattr(tracing, "PATIENCE", 1)
    traced, sim = run(model)
    assert sim.runtime.engine._traced
    assert difference(eager, traced) == 0


@pytest.mark.parametrize("steps", [None, 5])
@pytest.mark.parametrize("model", ["mlp", LARGER])
def test_lanes_give_the_same_bits(model, steps, monkeypatch):
    one, _ = run(model, steps)
    monkeypatch.setattr(lanes.torch, "get_num_threads", lambda: 3)
    monkeypatch.setattr(lanes, "WORTHWHILE", 0)
    monkeypatch.setattr(tracing, "PATIENCE", 1)
    three, sim = run(model, steps)
    assert len(sim.runtime.engine._traced) > (steps is None)  # equal lanes share their trace
    assert difference(one, three) == 0


def test_lanes_run_in_threads_of_their_own():
    names = lanes.in_lanes(lambda lane: threading.current_thread().name, 2)
    assert all(name.startswith("lane") for name in names)
    assert lanes.side_by_side(5, 2**30, torch.device("cuda")) == 1
    assert lanes.side_by_side(1, 2**30, torch.device("cpu")) == 1
    assert lanes.side_by_side(5, 2**10, torch.device("cpu")) == 1


def test_lanes_do_not_nest():
    inner = lanes.in_lanes(lambda lane: lanes.in_lanes(lambda other: (lane, other), 2), 2)
    assert inner == [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
