"""Steps that are traced and replayed: against plain loops, whatever was traced before."""

from dataclasses import replace

import pytest
import torch
from oracle_loops import Federated, Phase, check, convnorm, images

from stratafl.algorithms import fedper, fedprox, fedrep
from stratafl.execute import simulation
from stratafl.policies import LocalTraining

pytestmark = [pytest.mark.usefixtures("traced"), pytest.mark.budget(1.5, "steps are traced")]

TRAIN = LocalTraining(lr=0.05, batch=10, momentum=0.9, weight_decay=0.01, epochs=2)
BASE = ("conv1", "bn1", "conv2", "bn2")


@pytest.mark.slow
def test_algorithms_that_share_an_engine() -> None:
    """What was traced for one algorithm must be right for the next one that asks for a step of the same shape."""
    federation, module = images((14, 12)), convnorm()
    sim = simulation(
        fedprox(strength=0.3, train=TRAIN), federation, module, rounds=2, engine="stacked", dtype=torch.float64
    )
    check(sim, Federated(federation, module, (Phase(TRAIN),), prox=0.3, rounds=2))
    head, base = Phase(TRAIN, ("fc",), "head"), Phase(TRAIN, BASE)
    sim = replace(sim, algorithm=fedrep(head_epochs=2, train=TRAIN))
    check(sim, Federated(federation, module, (head, base), personal=("fc",), rounds=2))
    # The same tensors are trained as in FedRep's head phase, but with the base in training mode.
    first = replace(head, purpose="finetune")
    sim = replace(sim, algorithm=fedper(finetune=2, train=replace(TRAIN, frozen_modules_train=True)))
    oracle = Federated(federation, module, (first, Phase(TRAIN)), personal=("fc",), rounds=2, keep_training=True)
    check(sim, oracle)


@pytest.mark.slow
def test_ragged_clients() -> None:
    federation, module = images((14, 4, 11)), convnorm()
    sim = simulation(fedper(train=TRAIN), federation, module, rounds=2, engine="stacked", dtype=torch.float64)
    check(sim, Federated(federation, module, (Phase(TRAIN),), personal=("fc",), rounds=2))
