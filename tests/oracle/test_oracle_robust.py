"""Robust merges on several methods, five rounds of some clients, against plain loops."""

import pytest
import torch
from oracle_loops import Phase, assert_same_models, convnorm, images
from plain_robust import RobustFederated, krum, middle, trimmed

from stratafl.algorithms import algorithm
from stratafl.execute import Matrix, Messages, simulation
from stratafl.policies import LocalTraining
from tiers import slow_and_nightly, slow_except

pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.budget(0.9, "some rounds beside a plain loop")]

TRAIN = LocalTraining(lr=0.1, epochs=1, batch=10, momentum=0.9)
SIZES = (14, 11, 4, 20, 9, 17)  # two thirds of the clients: an even number; all but one: an odd one
CASES = {
    "fedavg+median": ({}, {"merge": middle}, ()),
    "fedper+median": ({}, {"merge": middle}, ("fc",)),
    "fedper+trimmed": ({"trim": 0.2}, {"merge": trimmed(0.2)}, ("fc",)),
    "fedavg+trimmed": ({"trim": 0.4}, {"merge": trimmed(0.4)}, ()),
    "fedper+clipped": ({"factor": 0.8}, {"factor": 0.8}, ("fc",)),
    "fedavg+clipped": ({"norm": 0.3}, {"norm": 0.3}, ()),
    "fedopt+clipped": (
        {"norm": 0.3, "optimizer": "momentum", "beta1": 0.0, "server_lr": 0.5},
        {"norm": 0.3, "lr": 0.5},
        (),
    ),
}
KRUM = {
    "fedavg+krum": ({"f": 1}, {"choose": krum(1, 1)}, ()),
    "fedper+krum": ({"f": 0, "keep": 2}, {"choose": krum(0, 2)}, ("fc",)),
}
FAST = [("fedper+trimmed", 0.84), ("fedopt+clipped", 0.84), ("fedper+krum", 0.84)]
RUNS = slow_except(FAST, ((name, 0.84) for name in {**CASES, **KRUM}))
RUNS += slow_and_nightly((name, 0.67) for name in CASES)


@pytest.mark.parametrize(("name", "participation"), RUNS)
def test_a_robust_merge_is_the_plain_one(name, participation):
    options, plain, personal = {**CASES, **KRUM}[name]
    given = {"rounds": 5, "participation": participation}
    method = algorithm(name, train=TRAIN, **options)
    sim = simulation(method, images(SIZES), convnorm(), engine="stacked", dtype=torch.float64, **given)
    oracle = RobustFederated(images(SIZES), convnorm(), (Phase(TRAIN),), personal, **given).merging(**plain).run()
    assert_same_models(sim, sim.run(Matrix() if participation > 0.7 else Messages()), oracle)
    assert len(oracle.cohort(0)) == (5 if participation > 0.7 else 4)
    if "clipped" in name:
        assert 0 < sum(oracle.cut) < 2 * 5 * len(oracle.cohort(0))  # some updates are cut, and some are not
    if "krum" in name:
        assert len(set(oracle.chosen)) > 1  # not always the same client
