"""Columns and targets with mean 0 and deviation 1 over what is trained on."""

import numpy as np
import pytest
import torch

from stratafl.data import IID, Reading, federate, from_samples, load_samples
from stratafl.data.splitting import SplitPlan
from stratafl.errors import DataError


def test_mean_and_deviation_are_those_of_the_training_samples():
    x = np.array([[1.0, 7, 0.1], [3, 7, 0.1], [5, 7, 0.1], [99, 8, 0.1]], np.float32)
    whole = federate(x, np.zeros(4), [[0, 1, 2, 3]], test=0.25, seed=0)
    tested = int(whole.split("test").indices[0])
    made = whole.standardised(["x"])
    training = made.x[made.split("train").indices]
    kept = np.delete(x[:, 0], tested)
    assert torch.allclose(made.x[:, 0], torch.from_numpy((x[:, 0] - kept.mean()) / kept.std()))
    assert abs(float(training[:, 0].mean())) < 1e-6
    assert abs(float(training[:, 0].std(correction=0)) - 1) < 1e-6
    assert (made.x[:, 2] == 0).all()
    assert torch.equal(made.y, whole.y)


def test_what_never_changes_in_training_is_zero_for_tests_as_well():
    x = np.array([[0.1], [0.1], [0.1], [5.0]], np.float32)
    seeds = (federate(x, np.zeros(4), [[0, 1, 2, 3]], seed=seed) for seed in range(20))
    whole = next(each for each in seeds if each.split("test").indices.tolist() == [3])
    assert (whole.standardised(["x"]).x == 0).all()


@pytest.fixture
def table(tmp_path):
    """Whole numbers far from 0, and large targets."""
    path = tmp_path / "own.npz"
    np.savez(path, x=np.arange(24).reshape(12, 2) * 1000, y=np.arange(12) * 1e5)
    return str(path)


def test_both_are_asked_for_by_name(table):
    given = {"clients": 2, "partition": IID(), "fallback": IID(), "plan": SplitPlan()}
    made = from_samples(load_samples(table, Reading(normalise="columns", targets="scaled")), **given)
    for values in (made.x, made.y):
        seen = values[made.split("train").indices].double()
        assert values.dtype == torch.float32
        assert torch.allclose(seen.mean(0), torch.zeros(()).double(), atol=1e-6)
        assert torch.allclose(seen.std(0, correction=0), torch.ones(()).double(), atol=1e-6)
    as_it_is = from_samples(load_samples(table, Reading(targets="numbers")), **given)
    assert (as_it_is.x.max(), as_it_is.y.max()) == (23_000, 1.1e6)


def test_columns_are_of_tables(tmp_path, table):
    np.savez(tmp_path / "images.npz", x=np.zeros((4, 3, 8, 8), np.uint8), y=np.arange(4) % 2)
    with pytest.raises(DataError, match=r"'columns'.*'images'.*3.*8.*8"):
        load_samples(str(tmp_path / "images.npz"), Reading(normalise="columns"))
    with pytest.raises(DataError, match=r"'auto'.*'columns'"):
        load_samples(table, Reading(normalise="unit", targets="numbers"))
    np.savez(tmp_path / "named.npz", x=np.zeros((4, 2)), y=np.array(["a", "b"] * 2))
    with pytest.raises(DataError, match=r"data.targets = 'scaled'"):
        load_samples(str(tmp_path / "named.npz"), Reading(targets="scaled"))
