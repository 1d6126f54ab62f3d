"""FedRoD, FedPAC and FedDBE: what stays, what travels and what a new client gets; their formulas have oracles."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stratafl.algorithms import feddbe, fedpac, fedrod
from stratafl.core.algorithm import Algorithm
from stratafl.core.state import clone, flatten, rows_of
from stratafl.data import from_splits
from stratafl.errors import RecordError
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Matrix, Simulation, simulation
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.testing import CLASSES, SHAPE, difference, tiny_federation, tiny_model
from tiers import slow_except

EVERYBODY = torch.arange(6)
METHODS = {"feddbe": feddbe(), "fedpac": fedpac(), "fedrod": fedrod()}


def simulated(method: Algorithm, *, rounds: int = 2, participation: float = 1.0, **options: Any) -> Simulation:
    model = options.pop("model", tiny_model())
    return simulation(
        method, tiny_federation(), model, rounds=rounds, participation=participation, dtype=torch.float64, **options
    )


@pytest.mark.parametrize("buffers", ["follow", "local"])
def test_feddbe_keeps_nothing_of_its_first_round_but_the_mean(buffers) -> None:
    sim = simulated(
        feddbe(train=LocalTraining(momentum=0.9, optimizer_state="kept")), participation=0.5, buffers=buffers
    )
    start = sim.start()
    after, report = sim.round(start, Matrix())
    assert report.cohort.tolist() == list(range(6))
    assert difference(flatten({"theta": start.server["theta"]}), flatten({"theta": after.server["theta"]})) == 0
    assert float(after.server["feature_mean"].abs().min()) > 0
    enrolled = sim.client_states({}, EVERYBODY)
    assert difference(flatten(enrolled), flatten(sim.client_states(after.clients, EVERYBODY))) == 0
    # d numbers and n_k from each of six clients.
    assert report.up.total == 6 * 8 * (sim.setup.features + 1)


def test_feddbe_sends_the_mean_no_more_after_it_is_known() -> None:
    sim = simulated(feddbe())
    progress, _ = sim.round(sim.start(), Matrix())
    mean = progress.server["feature_mean"].clone()
    progress, report = sim.round(progress, Matrix())
    assert torch.equal(progress.server["feature_mean"], mean)
    shared = sim.setup.row_bytes(sim.setup.layout.travelling("not head.shift"))
    assert report.up.total == 6 * (shared + 8)


@pytest.mark.parametrize(("name", "personal"), [("fedrod", "head.personal"), ("feddbe", "head.shift")])
def test_the_global_model_is_what_a_client_without_a_past_receives(name, personal) -> None:
    sim = simulated(METHODS[name], participation=0.5)
    progress = sim.run(Matrix())
    model = rows_of(progress.server, "theta")
    for tensor in sim.setup.layout.trainable(personal):
        assert float(model[tensor].abs().max()) == 0
    without_a_past = replace(progress, clients=sim.start().clients)
    rows = received_models(sim, without_a_past, EVERYBODY)
    assert difference(rows, {n: x.expand(6, *x.shape) for n, x in model.items()}) == 0


def test_fedpac_mixes_the_heads_of_the_cohort_alone() -> None:
    sim = simulated(fedpac(), participation=0.5)
    start = sim.start()
    before = clone(start.server)["heads"]
    after, report = sim.round(start, Matrix(), torch.tensor([0, 4, 5]))
    for name, heads in after.server["heads"].items():
        moved = (heads - before[name]).flatten(1).abs().amax(1) > 0
        assert moved.tolist() == [True, False, False, False, True, True]
    setup = sim.setup
    told = 8 * (2 * CLASSES * setup.features + CLASSES + 2)  # H, prototypes, class counts, V, n_k
    assert report.up.total == 3 * (setup.row_bytes(setup.layout.travelling()) + told)


@pytest.mark.slow
def test_fedpac_gives_a_new_client_the_mean_head() -> None:
    sim = simulated(fedpac())
    progress = sim.run(Matrix())
    down = sim.algorithm.download(sim.at(progress.t), progress.server, torch.tensor([7]), new=True)
    for name, heads in progress.server["heads"].items():
        torch.testing.assert_close(down["heads"].rows[name], heads.mean(0))


class Scaled(nn.Module):
    """A linear model whose output is scaled by a parameter without axes: features are the pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(36, CLASSES)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1)) * self.scale


@pytest.mark.parametrize("name", METHODS)
def test_they_train_any_model(name) -> None:
    sim = simulated(METHODS[name], model=Scaled())
    assert all(bool(torch.isfinite(x).all()) for x in received_models(sim, sim.run(Matrix()), EVERYBODY).values())


@pytest.mark.parametrize("name", slow_except(["fedrod"], METHODS))
def test_they_train_a_model_with_more_outputs_than_classes(name) -> None:
    sim = simulated(METHODS[name], model=build("mlp", shape=SHAPE, classes=CLASSES + 2, hidden=(8,)))
    assert all(bool(torch.isfinite(x).all()) for x in received_models(sim, sim.run(Matrix()), EVERYBODY).values())


@pytest.mark.parametrize("name", METHODS)
def test_they_refuse_targets_that_are_numbers(name) -> None:
    clients = [{"train": (torch.rand(8, *SHAPE).numpy(), torch.rand(8).numpy())} for _ in range(2)]
    with pytest.raises(RecordError, match="classes"):
        simulation(METHODS[name], from_splits(clients, classes=None), build("mlp", shape=SHAPE, classes=1), rounds=3)
