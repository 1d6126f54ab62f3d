"""Columns and targets with mean 0 and deviation 1 over what is trained on."""

import numpy as np
import pytest
import torch

from stratafl.data import IID, Reading, federate, from_samples, load_samples
from stratafl.data.partitions import Assignment
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


def test_each_client_by_its_own_training_samples_even_of_samples_that_clients_share():
    """By hand: client 0 trains on 1 and 3 (mean 2, deviation 1), client 1 on 10 and 30 (20, 10); both test on 40."""
    x, y = np.array([[1.0], [3.0], [10.0], [30.0], [40.0]], np.float32), np.array([0, 1, 0, 1, 0])
    whole = federate(x, y, Assignment([np.array([0, 1]), np.array([2, 3])], [np.array([4])] * 2, overlap=True))
    made = whole.standardised(("client",))
    values = [made.x[made.split("train").of(client), 0].tolist() for client in (0, 1)]
    assert values == [[-1, 1], [-1, 1]]
    assert [float(made.x[made.split("test").of(client), 0]) for client in (0, 1)] == [38, 2]
    assert [made.preprocessing.of(client).columns.mean for client in (0, 1)] == [(2.0,), (20.0,)]
    assert [made.y[made.split("test").of(client)].tolist() for client in (0, 1)] == [[0], [0]]


@pytest.mark.parametrize("what", ["client", "x"])
def test_a_new_client_in_another_unit_changes_nobody_elses_columns_and_targets(what):
    rng = np.random.default_rng(0)
    x, y = rng.normal(50, 9, (40, 2)).astype(np.float32), rng.normal(size=40).astype(np.float32)
    x[30:], y[30:] = 1000 * x[30:], 1000 * y[30:]
    with_new = federate(x, y, [range(15), range(15, 30), range(30, 40)]).standardised((what, "y"), new_clients=1)
    without = federate(x[:30], y[:30], [range(15), range(15, 30)]).standardised((what, "y"))
    assert torch.equal(with_new.x[:30], without.x)
    assert torch.equal(with_new.y[:30], without.y)


def test_a_table_is_standardised_by_default_and_tokens_and_images_are_not(tmp_path):
    for name, x, done in (
        ("table", np.arange(24.0).reshape(12, 2), ("client",)),
        ("tokens", np.arange(24).reshape(12, 2), ()),
        ("images", np.zeros((12, 1, 2, 2), np.uint8), ()),
    ):
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(12) % 2)
        assert load_samples(str(tmp_path / f"{name}.npz")).standardise == done
        for way in ("none", "images"):
            assert load_samples(str(tmp_path / f"{name}.npz"), Reading(normalise=way)).standardise == ()


@pytest.fixture
def table(tmp_path):
    """Whole numbers far from 0, and large targets."""
    path = tmp_path / "own.npz"
    np.savez(path, x=np.arange(24).reshape(12, 2) * 1000, y=np.arange(12) * 1e5)
    return str(path)


def test_both_are_asked_for_by_name(table):
    given = {"clients": 2, "partition": IID(), "fallback": IID(), "plan": SplitPlan()}
    made = from_samples(load_samples(table, Reading(normalise="pooled", targets="scaled")), **given)
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
