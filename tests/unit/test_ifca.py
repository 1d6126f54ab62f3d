"""IFCA: who is in which group, and what becomes of a group's model."""

import torch

from stratafl.algorithms import ifca
from stratafl.algorithms.ifca import ChooseGroup, MeanOfGroups
from stratafl.core.parcel import Field, Parcel
from stratafl.execute import Matrix, simulation
from stratafl.testing import tiny_federation, tiny_model

D = torch.float64


def merged(groups, chosen, samples, rows):
    step, ids = MeanOfGroups(len(groups)), torch.arange(len(rows))
    up = {"theta": Field({"w": rows}), "group": Field(torch.tensor(chosen)), "samples": Field(torch.tensor(samples))}
    server, sums = {"groups": {"w": groups}}, {}
    for k in ids.split(1):
        sums = step.fold(None, server, sums, Parcel(up).pick(k), k)
    return step.finish(None, server, sums)["groups"]["w"]


def test_a_group_becomes_the_mean_of_its_clients_by_their_samples():
    rows = torch.tensor([[1.0, 0.0], [4.0, 8.0], [7.0, 7.0]], dtype=D)
    found = merged(torch.full((3, 2), 9.0, dtype=D), [0, 0, 2], [3, 1, 5], rows)
    assert found.tolist() == [[1.75, 2.0], [9.0, 9.0], [7.0, 7.0]]  # nobody chose the second


def test_a_group_that_does_not_exist_is_nobodys():
    rows = torch.tensor([[1.0], [5.0], [6.0]], dtype=D)
    found = merged(torch.tensor([[8.0], [9.0]], dtype=D), [0, 2, -1], [1, 1, 1], rows)
    assert found.tolist() == [[1.0], [9.0]]


class Losses:
    """A task in which client k's loss of a model is (w − target_k)², summed over its samples."""

    def __init__(self, *targets):
        self.targets = torch.tensor(targets, dtype=D)

    def __len__(self):
        return len(self.targets)

    def scores(self, rows, split):
        assert split == "train"
        return type("Scores", (), {"loss": (rows["w"][:, 0] - self.targets).square()})


def test_a_client_takes_the_model_with_the_smallest_loss_and_of_equals_the_first():
    groups = torch.tensor([[torch.nan], [0.0], [4.0]], dtype=D)
    down = Parcel({"groups": Field({"w": groups}, common=True)})
    found = ChooseGroup()(None, {"theta": {}}, down, Losses(0.5, 3.0, 2.0))
    assert found["group"].tolist() == [1, 2, 1]
    assert found["theta"]["w"].tolist() == [[0.0], [4.0], [0.0]]


def test_groups_start_from_models_of_their_own_and_new_clients_choose_as_well():
    sim = simulation(ifca(groups=3), tiny_federation(), tiny_model(), rounds=1, new_clients=2)
    groups = sim.start().server["groups"]
    assert all(
        len(x.flatten(1).unique(dim=0)) == 3 for n, x in groups.items() if n.endswith("weight") and "bn" not in n
    )
    server, rnd, ids = sim.run(Matrix()).server, sim.at(1), sim.new_clients
    down, task = sim.algorithm.download(rnd, server, ids, new=True), sim.task(ids, rnd)
    rows = sim.algorithm.receive(rnd, sim.client_states({}, ids), down, task)["theta"]
    losses = torch.stack(
        [task.scores({n: x[[m, m]] for n, x in server["groups"].items()}, "train").loss for m in range(3)]
    )
    for k, m in enumerate(losses.argmin(0).tolist()):
        assert all(torch.equal(rows[n][k], x[m]) for n, x in server["groups"].items())
