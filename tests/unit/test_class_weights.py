"""Weights of classes: the formula, its place in the loss, and what does not fit."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import stratafl
from stratafl.algorithms import fedavg, fedper, moon
from stratafl.config.assemble import simulation_of
from stratafl.config.deployment import blueprint_of, federation_from
from stratafl.config.experiment import from_tables, to_tables, with_values
from stratafl.config.setting_tables import parse_settings
from stratafl.core.objectives import balanced_weights
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import RecordError, StrataError
from stratafl.policies import LocalTraining

X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.5], [-1.0, 1.0]])
Y = torch.tensor([1, 0, 0, 0])
START = torch.tensor([[0.5, -0.25], [0.1, 0.2]])


def step(class_weight, clients=((X, Y),), algorithm=fedavg):
    """A client's weight after one step on all samples at the rate 0.1."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        model[0].weight.copy_(START)
    data = [{"train": pair} for pair in clients]
    train = LocalTraining(lr=0.1, batch=4)
    return stratafl.fit(
        algorithm(train=train), data, model, rounds=1, normalise="none", class_weight=class_weight
    )  # fmt: skip


def by_hand(weights, x=X, y=Y):
    """START − 0.1·∇ of (1/n)·Σ w_y·L, by torch's own derivative."""
    theta = START.clone().requires_grad_()
    loss = (torch.tensor(weights)[y] * F.cross_entropy(x @ theta.T, y, reduction="none")).mean()
    return (START - 0.1 * torch.autograd.grad(loss, theta)[0]).detach()


def test_balanced_weights_by_hand():
    """Counts (6, 2): 8 / (2·6) and 8 / (2·2). A class without samples is no class, and has no weight."""
    assert torch.allclose(balanced_weights(torch.tensor([6, 2])), torch.tensor([2 / 3, 2.0]).double())
    rows = balanced_weights(torch.tensor([[3, 0, 1], [0, 0, 5]]))
    assert torch.allclose(rows, torch.tensor([[2 / 3, 0, 2], [0, 0, 1]]).double())


@pytest.mark.parametrize(
    ("given", "weights"),
    [
        ("none", [1.0, 1.0]),
        ("balanced", [4 / 6, 2.0]),
        ("pooled", [4 / 6, 2.0]),
        ([0.5, 3.0], [0.5, 3.0]),
        ({0: 0.5, 1: 3.0}, [0.5, 3.0]),
        (np.array([0.5, 3.0]), [0.5, 3.0]),
        (torch.tensor([0.5, 3.0]), [0.5, 3.0]),
        ({0: np.float32(0.5), 1: np.int64(3)}, [0.5, 3.0]),
    ],
)
def test_a_step_by_hand(given, weights):
    assert torch.allclose(step(given).client(0).model[0].weight, by_hand(weights), atol=1e-6)


def test_pooled_weights_are_those_of_all_clients_and_balanced_those_of_each():
    """Counts (3, 1) and (1, 3): balanced by client differ, together all classes are alike."""
    clients = ((X, Y), (X, 1 - Y))
    pooled, plain, own = (step(given, clients, fedper) for given in ("pooled", "none", "balanced"))
    assert all(torch.equal(pooled.client(k).model[0].weight, plain.client(k).model[0].weight) for k in range(2))
    assert not torch.equal(own.client(0).model[0].weight, plain.client(0).model[0].weight)


def test_methods_with_objectives_of_their_own_are_weighted_too():
    plain, ones, weighted = (
        step(given, algorithm=moon).client(0).outputs(X) for given in ("none", [1.0, 1.0], [1.0, 9.0])
    )
    assert torch.allclose(plain, ones, atol=1e-6)
    assert not torch.allclose(plain, weighted, atol=1e-4)


NAMED = np.array(["ill", "well"])[Y]


@pytest.mark.parametrize(
    ("given", "y"),
    [
        ("even", Y),
        ([1.0], Y),
        ([1.0, 2.0, 3.0], Y),
        ([1.0, 0.0], Y),
        ([1.0, -2.0], Y),
        ([1.0, float("nan")], Y),
        (["a", "b"], Y),
        ({0: 1.0}, Y),
        ({0: 1.0, 1: 2.0, 2: 3.0}, Y),
        ({"ill": 1.0, "dead": 2.0}, NAMED),
        ({"ill": 1.0, "well": "much"}, NAMED),
        ({}, NAMED),
        (3.0, Y),
        ("balanced", X[:, 0]),
        ([1.0, 2.0], X),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_one_line(given, y):
    with pytest.raises(StrataError) as error:
        step(given, ((X, y),))
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


def test_several_targets_are_predicted_together():
    """θ after a step by hand: the mean over samples and targets of the squared error."""
    targets = torch.stack([X[:, 0] + X[:, 1], X[:, 0] - X[:, 1]], 1)
    fitted = step("none", ((X, targets),))
    theta = START.clone().requires_grad_()
    gradient = torch.autograd.grad(((X @ theta.T - targets) ** 2).mean(), theta)[0]
    assert torch.allclose(fitted.client(0).model[0].weight, (START - 0.1 * gradient), atol=1e-6)
    assert fitted.client(0).predict(X).shape == (4, 2)


TABLES = {"data": {"name": "digits", "clients": 3}, "run": {"rounds": 1}, "algorithm": {"name": "fedavg"}}
EACH = ",".join(f"{digit}:{1 + digit}" for digit in range(10))


@pytest.mark.parametrize("typed", [f"train.class_weight={EACH}", f"train.class_weight={{{EACH.replace(':', '=')}}}"])
def test_weights_by_name_are_a_setting_in_a_run_and_at_sites(typed):
    experiment = with_values(from_tables(TABLES), parse_settings([typed]))
    assert from_tables(to_tables(experiment)) == experiment
    sim = simulation_of(experiment)
    weights = tuple(map(float, range(1, 11)))
    assert sim.algorithm.train[0].class_weight == weights
    site = blueprint_of(experiment, SampleFormat.of(sim.runtime.federation), 3)
    assert site.algorithm.train[0].class_weight == weights


def test_pooled_is_a_setting_of_runs_and_refused_where_nobody_knows_all_counts():
    experiment = with_values(from_tables(TABLES), {"train.class_weight": "pooled"})
    sim = simulation_of(experiment)
    counts = sim.runtime.federation.class_counts("train").sum(0)
    assert sim.algorithm.train[0].class_weight == tuple((counts.sum() / (10 * counts.double())).tolist())
    with pytest.raises(RecordError, match="pooled"):
        federation_from({**to_tables(experiment), "deploy": {"sites": ["a", "b"]}})


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("pooledd", "pooled"),
        ("1:2", "'0'"),
        (f"{EACH},ten:3", "'ten'"),
        ("0:-1", "-1"),
        ("0:nan", "nan"),
        ("0:1;1:2", "0:1;1"),
        ("0:1,0:2", "0:1,0:2"),
        ("0:1e9", "1000000000"),
    ],
)
def test_settings_of_weights_that_do_not_fit_are_refused_in_one_line(typed, value):
    with pytest.raises(StrataError, match=value) as error:
        simulation_of(with_values(from_tables(TABLES), {"train.class_weight": typed}))
    assert "\n" not in str(error.value)
    assert error.value.exit_code == 2


@pytest.mark.parametrize("value", [None, 3, True, np.array(2.0)])
def test_what_is_no_weight_of_classes_is_refused_with_all_that_is_allowed(value):
    with pytest.raises(RecordError, match="balanced, pooled"):
        step(value)
