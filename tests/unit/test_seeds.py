"""Seeds of the partition, of the initial weights and of the batches, together and apart."""

import pytest
import torch

from stratafl.config.assemble import seeds_of, simulation_of
from stratafl.config.experiment import Experiment, from_tables, with_values
from stratafl.core.keys import Seeds
from stratafl.core.state import flatten
from stratafl.evaluation.trial import Trial
from stratafl.execute import Matrix

SMALL = {"run": {"rounds": 1, "seed": 5, "participation": 0.5}, "data": {"clients": 4}, "evaluate": {"clients": 2}}


def made(method="fedper", **settings):
    base = from_tables({**SMALL, "algorithm": {"name": method}})
    return simulation_of(with_values(base, {key.replace("__", "."): value for key, value in settings.items()}))


def state(sim):
    progress = sim.run(Matrix())
    everybody = sim.client_states(progress.clients, torch.arange(sim.setup.clients))
    return {**flatten(progress.server, "server/"), **flatten(everybody, "client/")}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(x, b[name]) for name, x in a.items())


def test_parts_follow_the_seed_of_the_run_unless_they_are_set():
    assert Seeds.of(3) == Seeds(3, 3, 3, 3)
    experiment = with_values(Experiment(), {"run.seed": 3, "model.seed": 0})
    assert seeds_of(experiment) == Seeds(run=3, partition=3, weights=0, batches=3)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["pfedhn", "pfedla"])  # whose servers draw
def test_parts_at_the_seed_of_the_run_change_nothing(method):
    usual = state(made(method))
    assert same(usual, state(made(method, data__seed=5, model__seed=5, run__batch_seed=5, run__seed=99)))
    assert not same(usual, state(made(method, run__batch_seed=6)))


@pytest.mark.budget(1, "five federations")
@pytest.mark.parametrize("method", ["fedper", pytest.param("pfedhn", marks=pytest.mark.slow)])
def test_each_seed_changes_its_own_part_only(method):
    usual = made(method)

    def differs(**settings):
        sim = made(method, **settings)
        starts = [flatten(each.algorithm.init(each.setup), "server/") for each in (usual, sim)]
        splits = [each.runtime.federation.split("train").indices for each in (usual, sim)]
        rounds = [each.at(0).keys(torch.arange(4), "batches") for each in (usual, sim)]
        cohorts = [[each.setup.sampled(t).tolist() for t in range(9)] for each in (usual, sim)]
        looked = [Trial(each, sample=2).ids.tolist() for each in (usual, sim)]
        found = (not same(*starts), not torch.equal(*splits), not torch.equal(*rounds), cohorts[0] != cohorts[1])
        return (*found, looked[0] != looked[1])

    assert differs(data__seed=6) == (False, True, False, False, True)
    assert differs(model__seed=6) == (True, False, False, False, False)
    assert differs(run__batch_seed=6) == (False, False, True, True, False)
    assert differs(run__seed=6) == (True, True, True, True, True)
