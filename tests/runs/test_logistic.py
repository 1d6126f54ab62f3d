"""Logistic regressions outside the federation: the right optimum, of each client alone and of pooled samples."""

from math import exp

import numpy as np
import pytest
import torch

from stratafl.data import from_splits
from stratafl.runs import logistic as baselines
from stratafl.runs.logistic import (
    LOGISTIC_ALONE,
    LOGISTIC_POOLED,
    baseline_predictions,
    is_for,
    logistic,
    logistic_here,
)

PAIR = np.array([[1.0], [-1.0]])


def drawn(classes, samples, columns):
    rng = np.random.default_rng(classes)
    x = rng.standard_normal((samples, columns))
    return x, (x @ rng.standard_normal((columns, classes)) + rng.gumbel(size=(samples, classes))).argmax(1)


def test_the_optimum_of_two_samples_by_hand():
    # 2 log(1 + exp(-w)) + w²/2 is least where w (1 + exp(w)) = 2, and the intercept is 0.
    model = logistic_here(PAIR, np.array([1, 0]))
    weight = float(model.weights[0, 0])
    assert weight * (1 + exp(weight)) == pytest.approx(2)
    assert model.intercepts[0] == pytest.approx(0, abs=1e-9)
    assert model.probabilities(PAIR, 3)[0].tolist() == pytest.approx([1 / (1 + exp(weight)), 1 / (1 + exp(-weight)), 0])


def test_of_several_classes_the_gradient_is_zero_at_the_optimum():
    x, y = drawn(3, 60, 4)
    model = logistic_here(x, y)
    residual = model.probabilities(x, 3).double().numpy() - np.eye(3)[y]
    assert residual.T @ x + model.weights == pytest.approx(0, abs=1e-4)
    assert residual.sum(0) == pytest.approx(0, abs=1e-4)


@pytest.mark.slow  # scikit-learn takes two seconds to import
@pytest.mark.parametrize("shape", [(2, 200, 5), (4, 500, 6), (10, 1500, 30)])
def test_scikit_learn_finds_the_same_optimum(monkeypatch, shape):
    monkeypatch.setattr(baselines, "PACKAGE", "sklearn.linear_model")
    x, y = drawn(*shape)
    ours, theirs = logistic_here(x, y), logistic(x, y)
    assert ours.weights == pytest.approx(theirs.weights, abs=1e-5)
    assert ours.intercepts == pytest.approx(theirs.intercepts, abs=1e-5)


def test_alone_and_pooled_on_clients_that_contradict_each_other():
    x = np.array([[2.0], [1.0], [-1.0], [-2.0]] * 3, np.float32)
    rising, falling = (x[:, 0] > 0).astype(int), (x[:, 0] < 0).astype(int)
    clients = {"a": {"train": (x, rising), "test": (x, rising)}, "b": {"train": (x, falling), "test": (x, falling)}}
    clients["c"] = {"train": (x, np.zeros(12, int)), "test": (x[:2], np.array([0, 1]))}  # one class
    clients["new"] = {"train": (x, np.ones(12, int)), "test": (x, rising)}  # never trains
    predicted = baseline_predictions(from_splits(clients), clients=3)
    assert {*predicted[LOGISTIC_ALONE].client.tolist()} == {*predicted[LOGISTIC_POOLED].client.tolist()} == {0, 1, 2}
    hits = {name: [float(predicted[name].of(i).hits().mean()) for i in range(3)] for name in predicted}
    assert hits[LOGISTIC_ALONE] == [1.0, 1.0, 0.5]
    # Of pooled samples each x has 1 for a third: the answer is 0 for all of them.
    assert hits[LOGISTIC_POOLED] == [0.5, 0.5, 0.5]
    assert predicted[LOGISTIC_POOLED].scores[:, 1].tolist() == pytest.approx(
        [1 / 3] * len(predicted[LOGISTIC_POOLED]), abs=1e-6
    )


def test_only_tables_with_classes_have_these_baselines():
    x, y = np.zeros((8, 2), np.float32), np.arange(8) % 2
    table = from_splits([{"train": (x, y)}])
    assert is_for(table)
    assert not is_for(from_splits([{"train": (x, y.astype(np.float32))}]))
    assert not is_for(from_splits([{"train": (np.zeros((8, 1, 3, 3), np.float32), y)}]))
    assert not is_for(from_splits([{"train": (torch.zeros(8, 2, dtype=torch.int64), y)}]))
