"""A client whose features are far from the others' is named; ordinary differences between clients are not."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from stratafl import fit
from stratafl.algorithms import fedavg
from stratafl.data import IID, Dirichlet, Federation, digits_federation, federate, from_clients
from stratafl.data.builders import from_samples
from stratafl.data.outliers import outlier_warnings, outliers
from stratafl.data.samples import Samples
from stratafl.data.splitting import SplitPlan
from stratafl.models import build

NAMES = ("age", "creatinine", "pressure", "smoker", "always", "cost", "score", "visits", "fever")


def patients(rng, client):
    """Numbers of hospitals: shifted, skewed, of two values, constant, heavy-tailed, around 0, mostly 0, narrow."""
    n = int(rng.integers(60, 300))
    return np.column_stack(
        [
            rng.normal(58 + (3 * client) % 14, 15, n).clip(18, 99),
            np.exp(rng.normal(0, 0.5, n)),
            rng.normal(130 + 5 * (client % 3), 20, n),
            rng.random(n) < rng.choice([0.02, 0.5, 0.98]),
            np.full(n, 3.0),
            np.exp(rng.normal(0, 2, n)),
            rng.normal(0, 1, n),
            rng.poisson(0.4, n),
            rng.normal(37, 0.5, n),
        ]
    ).astype(np.float32)


def hospitals(clients, seed=0, odd=None, column=0, factor=1.0, shift=0.0):
    rng = np.random.default_rng(seed)
    tables = [patients(rng, client) for client in range(clients)]
    if odd is not None:
        tables[odd][:, column] = tables[odd][:, column] * factor + shift
    made = from_clients([(x, rng.integers(0, 2, len(x))) for x in tables])
    return replace(made, column_names=NAMES, client_names=tuple(f"site {i}" for i in range(clients)))


def in_another_unit(federation: Federation, client, factor):
    x = federation.x.clone()
    for split in federation.splits.values():
        x[split.of(client)] *= factor
    return replace(federation, x=x)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 10])
@pytest.mark.parametrize("clients", [3, 20, 40])
def test_shares_of_the_digits_are_no_other_unit(clients, alpha):
    for seed in range(4):
        federation = digits_federation(clients=clients, partition=Dirichlet(alpha=alpha, minimum=4), seed=seed)
        assert outliers(federation) == ()
        assert outliers(replace(federation, x=federation.x.flatten(1))) == ()


@pytest.mark.parametrize("clients", [2, 3, 6, 12, 20])
def test_hospitals_that_differ_are_not_named(clients):
    for seed in range(6):
        assert outlier_warnings(hospitals(clients, seed)) == []


@pytest.mark.parametrize("factor", [100, 1e4, 1e-2])
@pytest.mark.parametrize(("clients", "odd"), [(3, 1), (20, 7)])
def test_digits_in_another_unit(clients, odd, factor):
    federation = digits_federation(clients=clients, partition=Dirichlet(alpha=0.1, minimum=10), seed=1)
    [far] = outliers(in_another_unit(federation, odd, factor))
    assert (far.client, far.feature, far.measure) == (odd, "a sample", "size")
    assert far.value / far.others == pytest.approx(factor, rel=0.2)


@pytest.mark.parametrize("column", [0, 1, 2, 6])
@pytest.mark.parametrize("clients", [3, 12])
@pytest.mark.parametrize("factor", [100, 1e4])
def test_a_column_in_another_unit(clients, column, factor):
    [far] = outliers(hospitals(clients, 2, odd=1, column=column, factor=factor))
    assert (far.client, far.feature, far.features) == (1, f"column '{NAMES[column]}'", 1)
    assert far.value / far.others == pytest.approx(factor, rel=0.5)


def test_ten_times_is_found_in_a_narrow_column():
    [far] = outliers(hospitals(20, odd=4, column=2, factor=10))
    assert (far.client, far.feature) == (4, "column 'pressure'")


def test_a_shift_is_found():
    """37 °C are 98.6 °F: less than three times as much, and far away for a temperature of the body."""
    [far] = outliers(hospitals(12, odd=3, column=8, factor=1.8, shift=32))
    assert (far.client, far.feature, far.measure) == (3, "column 'fever'", "value")
    assert (far.value, far.others) == pytest.approx((98.6, 37), abs=0.3)


def test_two_of_them_do_not_hide_each_other():
    federation = hospitals(12, odd=3, column=2, factor=100)
    both = in_another_unit(federation, 5, 100)
    assert [far.client for far in outliers(both)] == [3, 5]


def test_of_two_clients_both_are_named():
    assert [far.client for far in outliers(hospitals(2, odd=0, column=2, factor=100))] == [0, 1]


def test_what_is_said():
    x = np.tile(np.linspace(90, 110, 21)[:, None], (1, 2)).astype(np.float32)
    federation = from_clients([(x * (100 if i == 2 else 1), np.arange(21) % 2) for i in range(4)], split="random")
    named = replace(federation, client_names=("east", "west", "north", "south"), column_names=("glucose", "sodium"))
    [line] = outlier_warnings(named)
    assert re.search("'north'.*'glucose'.*9,900.*100.*1 more", line)
    assert re.match("client 2: column 0 ", outlier_warnings(federation)[0])


def test_channels_of_images_are_compared_by_themselves():
    rng = np.random.default_rng(0)
    x = rng.integers(1000, 3000, (80, 3, 4, 4)).astype(np.uint16)
    x[20:40, 1] *= 16  # 12 bits in the lower part of 16, and in the upper part
    from stratafl.data import Scaling

    federation = federate(x, np.arange(80) % 2, np.split(np.arange(80), 4), scaling=Scaling((0,), (1,), 65535))
    [far] = outliers(federation)
    assert (far.client, far.feature, far.features) == (1, "channel 1", 1)


def test_tokens_are_not_looked_at():
    tokens = np.ones((60, 5), np.int64)
    tokens[:20] = 30_000
    assert outliers(federate(tokens, np.arange(60) % 2, np.split(np.arange(60), 3))) == ()


def test_a_few_samples_say_nothing():
    x = np.ones((12, 2), np.float32)
    x[:4] *= 1e6
    assert outliers(federate(x, np.arange(12) % 2, np.split(np.arange(12), 3))) == ()


def test_it_is_found_before_columns_are_standardised():
    federation = hospitals(6, odd=2, column=2, factor=1e4)
    owner = torch.cat(
        [torch.full((int(n),), i) for i, n in enumerate(sum(federation.counts(s) for s in federation.splits))]
    )
    samples = Samples(
        federation.x.numpy(), federation.y.numpy(), owner=owner.numpy(), columns=NAMES, standardise=("x",)
    )
    made = from_samples(samples, SplitPlan(0.1, 0.2), clients=6, partition=None, fallback=IID())
    [far] = outliers(made)
    assert (far.client, far.value > 1e6) == (2, True)


def test_it_is_said_once_before_the_first_round(caplog):
    rng = np.random.default_rng(0)
    clients = [(rng.normal(100, 10, (20, 2)) * (1e4 if i == 1 else 1), np.arange(20) % 2) for i in range(3)]
    fit(fedavg(), clients, build("mlp", shape=(2,), classes=2, hidden=(2,)), rounds=1)
    said = [record.getMessage() for record in caplog.records if "column " in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("client 1: column ")


def test_a_target_in_another_unit_is_named():
    rng = np.random.default_rng(0)
    clients = [
        (rng.normal(size=(30, 2)).astype(np.float32), rng.normal(50, 5, 30).astype(np.float32)) for _ in range(3)
    ]
    assert outlier_warnings(from_clients(clients)) == []
    clients[1] = (clients[1][0], clients[1][1] * 10_000)
    [line] = outlier_warnings(from_clients(clients))
    assert line.startswith("client 1: the target ")
