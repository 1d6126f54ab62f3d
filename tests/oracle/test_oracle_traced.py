"""Steps that are traced and replayed: against plain loops, whatever was traced before."""

from dataclasses import replace

import pytest
import torch
from oracle_loops import Federated, Phase, check, convnorm, images

from stratafl.algorithms import fedper, fedprox, fedrep
from stratafl.execute import simulation
from stratafl.policies import SGD

pytestmark = pytest.mark.usefixtures("traced")

TRAIN = SGD(lr=0.05, batch=10, momentum=0.9, weight_decay=0.01, steps=4)
BASE = ("conv1", "bn1", "conv2", "bn2")


def test_algorithms_that_share_an_engine() -> None:
    """What was traced for one algorithm must be right for the next one that asks for a step of the same shape."""
    federation, module = images((14, 12)), convnorm()
    sim = simulation(
        fedprox(strength=0.3, train=TRAIN), federation, module, rounds=2, engine="stacked", dtype=torch.float64
    )
    check(sim, Federated(federation, module, (Phase(TRAIN),), prox=0.3, rounds=2))
    head, base = Phase(TRAIN, ("fc",), "head"), Phase(TRAIN, BASE)
    sim = replace(sim, algorithm=fedrep(train=TRAIN))
    check(sim, Federated(federation, module, (head, base), personal=("fc",), rounds=2))
    sim = replace(sim, algorithm=fedper(train=TRAIN))
    check(sim, Federated(federation, module, (Phase(TRAIN),), personal=("fc",), rounds=2))


def test_ragged_clients() -> None:
    train = replace(TRAIN, steps=None, epochs=2)
    federation, module = images((14, 4, 11)), convnorm()
    sim = simulation(fedper(train=train), federation, module, rounds=2, engine="stacked", dtype=torch.float64)
    check(sim, Federated(federation, module, (Phase(train),), personal=("fc",), rounds=2))
