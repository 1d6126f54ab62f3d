"""`stratafl.digits` and `stratafl.partition`: samples divided among clients in Python."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import stratafl
from stratafl.config.assemble import federation_of
from stratafl.config.experiment import from_tables
from stratafl.data.shift import Shift
from stratafl.errors import RecordError, UnknownNameError
from stratafl.methods import Assignment, Partition, record

X = np.arange(24.0).reshape(12, 2)
NAMES = ["a", "b", "c"] * 4


@record
class ByOrder(Partition):
    """The first client has the first samples, and so on."""

    def draw(self, pool, clients, rng):
        return np.array_split(np.arange(len(pool.labels)), clients)


@record
class LastIsTested(Partition):
    """All clients train on the first samples and test on the last one."""

    def draw(self, pool, clients, rng):
        last = len(pool.labels) - 1
        return Assignment([np.arange(last)] * clients, [np.array([last])] * clients, overlap=True)


def test_the_digits_are_divided_as_the_command_divides_them():
    federation = federation_of(from_tables({}))
    clients = stratafl.digits()
    assert len(clients) == federation.clients == 20
    for number, (x, y) in enumerate(clients):
        rows = (
            torch.cat([federation.splits[split].of(number) for split in ("train", "validation", "test")]).sort().values
        )
        assert np.array_equal(y, federation.y[rows])
        assert np.array_equal(x, federation.x[rows])


def test_partitions_options_and_seeds_by_name():
    evenly = stratafl.digits("iid", clients=7)
    assert {len(y) for _, y in evenly} == {256, 257}
    assert all(len({*y.tolist()}) == 1 for _, y in stratafl.digits("classes", clients=10, per_client=1))
    first, again, other = (stratafl.digits(alpha=5.0, seed=seed)[0][1] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor, pd.DataFrame, list])
def test_samples_of_every_kind_stay_with_their_labels(kind):
    x = list(map(str, range(12))) if kind is list else kind(X)
    clients = stratafl.partition(x, NAMES, ByOrder(), clients=3)
    assert [y for _, y in clients] == [["a", "b", "c", "a"], ["b", "c", "a", "b"], ["c", "a", "b", "c"]]
    assert [type(own) for own, _ in clients] == [type(x)] * 3
    expected = ["4", "5", "6", "7"] if kind is list else X[4:8].tolist()
    assert (clients[1][0] if kind is list else np.asarray(clients[1][0]).tolist()) == expected


def test_named_inputs_and_a_series():
    labels = pd.Series(NAMES, index=range(50, 62))
    [_, (x, y)] = stratafl.partition({"a": X, "b": X + 1}, labels, ByOrder(), clients=2)
    assert y.tolist() == NAMES[6:]
    assert np.array_equal(x["b"], X[6:] + 1)


def test_numbers_to_predict_are_divided_evenly_alone():
    clients = stratafl.partition(X, X[:, 0] / 7, "iid", clients=2)
    assert all(np.array_equal(x[:, 0] / 7, y) for x, y in clients)
    with pytest.raises(stratafl.StrataError, match="'iid'"):
        stratafl.partition(X, X[:, 0] / 7, clients=2)


def test_own_tests_are_splits():
    clients = stratafl.partition(X, NAMES, LastIsTested(), clients=2)
    assert [(len(each["train"][1]), each["test"][1]) for each in clients] == [(11, ["c"])] * 2
    assert clients[1]["test"][0].tolist() == [[22.0, 23.0]]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kind": "dirichlt"}, "'dirichlet'"),
        ({"alph": 1.0}, "'alpha'"),
        ({"kind": "iid", "alpha": 1.0}, "'alpha'"),
        ({"alpha": -1.0}, "alpha"),
        ({"clients": 0}, "clients"),
        ({"clients": 13}, "12"),
        ({"seed": -1}, "seed"),
        ({"kind": ByOrder(), "alpha": 1.0}, "'alpha'"),
        ({"y": NAMES[:-1]}, "11"),
        ({"y": None}, "None"),
        ({"x": 5}, "5"),
        ({"x": {"a": X, "b": X[:-1]}}, "11"),
        ({"x": {}}, "x"),
        ({"kind": ["iid"]}, "iid"),
    ],
)
def test_what_does_not_fit_is_refused(options, words):
    arguments = {"x": X, "y": NAMES, "minimum": 1, **options}
    if "kind" in options:
        arguments.pop("minimum")
    with pytest.raises(stratafl.StrataError, match=words):
        stratafl.partition(**arguments)


def test_fit_shifts_clients_as_the_commands_do():
    rng = np.random.default_rng(0)
    clients = [(rng.random((8, 1, 6, 6), np.float32), np.arange(8) % 4) for _ in range(3)]
    options = {"rounds": 1, "seed": 4, "test": 0.5, "validation": 0.0, "device": "cpu", "normalise": "none"}
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 4))
    shifted, plain = (
        stratafl.fit("fedavg", clients, model, **options, **shift).sim.runtime.federation
        for shift in ({"shift": "rotation+labels", "strength": 1.0}, {})
    )
    expected = Shift(("rotation", "labels"), 1.0, seed=4).applied(plain)
    assert torch.equal(shifted.x, expected.x)
    assert torch.equal(shifted.y, expected.y)
    assert not torch.equal(shifted.x, plain.x)
    for wrong in ({"strength": 0.5}, {"shift": "rotations"}, {"shift": "blur", "strength": 2.0}, {"shift": 3}):
        with pytest.raises((RecordError, UnknownNameError)):
            stratafl.fit("fedavg", clients, model, **wrong)
