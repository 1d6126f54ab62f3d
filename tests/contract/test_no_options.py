"""Every method of the catalogue runs with no option set, on the digits and on a table.

On the table for the default rounds, where methods that are not the one of their kind slowly take a few and nightly
all; on the digits for one of them, or for all if the mechanism waits: of one method of each kind and of those that wait
slowly, of all others nightly.
"""

import numpy as np
import pytest
import torch

from methods import KINDS, NIGHTLY, SLOW
from stratafl.algorithms import ALGORITHMS
from stratafl.config.assemble import simulation_of
from stratafl.config.experiment import Experiment, with_settings
from stratafl.core.phased import Phased
from stratafl.evaluation.evaluate import score_stages
from stratafl.execute import Matrix
from tiers import slow_except

WAITING = ("fedalp", "fedavg30local", "fedlag")  # methods that begin with another one
WHOLE = {*WAITING, *KINDS.values()}
FEW_ROUNDS = 4


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Five sites of 24 rows, two columns and a class."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("table") / "sites.csv"
    x, sites = rng.normal(size=(120, 2)), np.arange(120) % 5
    rows = [f"{a:.4f},{b:.4f},s{site},{'yes' if a > 0 else 'no'}" for (a, b), site in zip(x, sites, strict=True)]
    path.write_text("\n".join(["a,b,client,label", *rows]) + "\n", encoding="utf-8")
    return path


def simulated(name, data):
    return simulation_of(with_settings(Experiment(), [f"algorithm.name={name}", f"data.name={data}"]))


@pytest.mark.parametrize("name", WAITING)
def test_the_mechanism_of_a_method_that_waits_begins_within_the_default_rounds(name, table):
    for data in ("digits", table):
        sim = simulated(name, data)
        assert isinstance(sim.algorithm, Phased)
        assert 0 < sim.algorithm.before(sim.setup.rounds) < sim.setup.rounds
    assert sim.setup.rounds == Experiment().run.rounds


def check_run(name, data, rounds=None):
    sim = simulated(name, data)
    progress = sim.start()
    for _ in range(rounds or sim.rounds):
        progress, _ = sim.round(progress, Matrix())
    scores = score_stages(sim, progress, torch.arange(sim.setup.clients), ("test",))["test.deployed"]
    assert progress.t == (rounds or sim.rounds)
    assert bool(torch.isfinite(scores.loss).all())


@pytest.mark.budget(1.5, "twenty rounds")
@pytest.mark.parametrize("name", slow_except(["fedlag", "pfedla"], ALGORITHMS))
def test_a_method_runs_on_a_table_with_no_option_set(name, table):
    check_run(name, table, None if name in WHOLE else FEW_ROUNDS)


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(ALGORITHMS.keys() - WHOLE))
def test_a_method_runs_on_a_table_for_the_default_rounds(name, table):
    check_run(name, table)


@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW if n in WHOLE else NIGHTLY) for n in ALGORITHMS])
def test_a_method_runs_on_the_digits_with_no_option_set(name):
    check_run(name, "digits", None if name in WAITING else 1)
