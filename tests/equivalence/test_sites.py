"""Sites and a server that exchange bytes end where the simulation of the same blueprint and seed ends."""

from functools import cache, partial

import numpy as np
import pytest
import torch

from deployed import Deployed, own_samples
from methods import every_method
from stratafl.algorithms import algorithm, fedcp, fedper, gpfl
from stratafl.core.keys import Seeds
from stratafl.data import Federation, from_splits
from stratafl.data.sample_format import SampleFormat
from stratafl.execute import Messages, simulation
from stratafl.execute.blueprint import Blueprint
from stratafl.models import build
from stratafl.policies import SGD
from stratafl.testing import difference, everything

SIZES, SHAPE, CLASSES = (31, 23, 14, 12, 7, 4), (1, 6, 6), 3
LACKING = {1: 2, 3: 0, 4: 1}  # a class that a client has no samples of
# Options with which the mechanism acts within a few rounds.
ACTING = {
    "fedalp": {"groups": 2, "warmup": 1},
    "fedavg30local": {"warmup": 2},
    "fedlag": {"k": 2, "xi": 0.0, "warmup": 0},
    "flayer": {"s": 1},
    "heurpfedla": {"k": 2, "hyper_lr": 50.0, "initial": "uniform"},
    "pfedla": {"hyper_lr": 50.0, "initial": "uniform"},
}
ROUNDS = 4


@cache
def federation(dtype: torch.dtype, sizes: tuple[int, ...] = SIZES) -> Federation:
    """Clients of other sizes, each with validation and test samples; some lack a class."""
    rng = np.random.default_rng(3)

    def samples(count, client):
        y = rng.choice([label for label in range(CLASSES) if label != LACKING.get(client)], count)
        return rng.standard_normal((count, *SHAPE)) + y[:, None, None, None] / 2, y

    clients = [
        {"train": samples(n, k), "validation": samples(3 + k, k), "test": samples(4, k)} for k, n in enumerate(sizes)
    ]
    return from_splits(clients, classes=CLASSES, dtype=dtype, name="sites")


def model():
    """With convolution, BatchNorm and dropout."""
    return build("convnorm", shape=SHAPE, classes=CLASSES, channels=4, dropout=0.3)


def blueprint(method, dtype, **options):
    clients = options.pop("clients", len(SIZES))
    given = {"rounds": ROUNDS, "participation": 0.5, "seeds": Seeds.of(5), "dtype": dtype, **options}
    return Blueprint(method, given.pop("model", model), SampleFormat.of(federation(dtype)), clients, **given)


def both(method, dtype, sizes=SIZES, **options):
    """What sites and the simulation end with."""
    data = federation(dtype, sizes)
    given = {"rounds": ROUNDS, "participation": 0.5, "seed": 5, "dtype": dtype, **options}
    sim = simulation(method, data, given.pop("model", model), **given)
    sites = Deployed(
        partial(blueprint, method, dtype, **options, clients=len(sizes)),
        {client: own_samples(data, client) for client in range(len(sizes))},
    )
    return sites.run().everything(), everything(sim, sim.run(Messages()))


def acting(name):
    return algorithm(name, **ACTING.get(name, {}))


@pytest.mark.parametrize("name", every_method())
def test_every_method_ends_where_the_simulation_ends_in_float64(name):
    sites, simulated = both(acting(name), torch.float64)
    assert difference(sites, simulated) <= 1e-12


@pytest.mark.parametrize("name", every_method())
def test_every_method_has_the_simulations_bits_in_float32(name):
    sites, simulated = both(acting(name), torch.float32)
    assert difference(sites, simulated) == 0
