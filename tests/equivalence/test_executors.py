"""Executors and chunks give the same: to 1e-12 in float64, to the bit in float32 on the CPU."""

from functools import cache

import pytest
import torch

from methods import every_method
from stratafl.algorithms import ALGORITHMS, algorithm
from stratafl.data import digits
from stratafl.execute import Debug, Matrix, Messages, simulation
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.testing import difference, everything

EXECUTORS = {"messages": Messages(), "seven chunks": Matrix(chunk=3), "debug": Debug()}
# Phases so short that the last one acts.
EARLY = {"fedalp": {"warmup": 1}, "fedavg30local": {"warmup": 1}, "feddbe": {}, "fedlag": {"warmup": 0}}


@cache  # the plain run is what all others are compared with
def run(name, executor, dtype, model="convnorm"):
    federation = digits(clients=20, dtype=dtype)
    train = LocalTraining(lr=0.05, momentum=0.0 if name == "scaffold" else 0.5, epochs=1, batch=30, clip=5.0)
    sim = simulation(
        algorithm(name, train=train, **EARLY.get(name, {})),
        federation,
        lambda: build(model, shape=(1, 8, 8), classes=10),
        rounds=2 if name in EARLY else 1,
        dtype=dtype,
    )
    return everything(sim, sim.run(executor))


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("name", ["fedavg", "fedrep"])
def test_float32_is_the_same_to_the_bit(name, executor):
    plain, other = run(name, Matrix(), torch.float32), run(name, EXECUTORS[executor], torch.float32)
    assert len(plain) > 10
    assert difference(plain, other) == 0


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_float32_is_the_same_to_the_bit_for_other_models(model):
    plain = run("fedper", Matrix(), torch.float32, model)
    assert difference(plain, run("fedper", Messages(), torch.float32, model)) == 0
    assert difference(plain, run("fedper", Matrix(chunk=3), torch.float32, model)) == 0


@pytest.mark.parametrize("name", every_method(set(ALGORITHMS) - {"fedfomo"}))  # which needs validation data
def test_float64_agrees_between_matrix_and_chunks(name):
    plain = run(name, Matrix(), torch.float64)
    assert difference(plain, run(name, Matrix(chunk=3), torch.float64)) <= 1e-12


def test_seven_chunks_are_seven():
    federation = digits(clients=20)
    sim = simulation(algorithm("fedavg"), federation, lambda: build("mlp", shape=(1, 8, 8), classes=10), rounds=1)
    assert len(list(Matrix(chunk=3).groups(sim, torch.arange(20)))) == 7
