"""At the edges: features that are not flat, outputs without a class, schedules that end, numbers too large."""

import logging
from dataclasses import replace

import pytest
import torch
from torch import nn

from stratafl.algorithms import fedala, fedavg, fedavgft, fedbabu, fedopt, fedprior, moon, pfedhn, scaffold
from stratafl.algorithms.fedamp import CosineAttention
from stratafl.core.layout import Layout
from stratafl.errors import MemoryLimitError, RecordError
from stratafl.evaluation.evaluate import deployed, received_models
from stratafl.execute import Matrix, simulation
from stratafl.policies import Constant, Cosine, LocalTraining
from stratafl.policies.robust import ClippedMean, robust
from stratafl.testing import CLASSES, SIZES, tiny_federation, tiny_model
from stratafl.testing.watch import Tampered

D = torch.float64


def built(method, model=tiny_model, rounds=2, **options):
    return simulation(method, tiny_federation(), model(), rounds=rounds, dtype=D, **options)


class ImageHead(nn.Module):
    """A head that is given feature maps of 4×4."""

    def __init__(self):
        super().__init__()
        self.body = nn.Conv2d(1, 3, 3)
        self.head = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten(), nn.Linear(32, CLASSES))

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


@pytest.mark.budget(0.9, "both engines")
@pytest.mark.parametrize("batch", [4, pytest.param(3, marks=pytest.mark.slow)])
def test_moon_compares_whole_features(batch):
    """Batches as wide as the maps, and not: a cosine for each column would broadcast against samples."""
    model = ImageHead().double()
    sim = built(moon(train=LocalTraining(batch=batch)), lambda: model, head="head")
    loop = built(moon(train=LocalTraining(batch=batch)), lambda: model, head="head", engine="loop")
    rows, plain = (received_models(s, s.run(Matrix()), torch.arange(6))["body.weight"] for s in (sim, loop))
    torch.testing.assert_close(rows, plain)


class MoreOutputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(36, CLASSES + 4)

    def forward(self, x):
        return self.fc(x.flatten(1))


def test_fedprior_knows_outputs_without_a_class():
    sim = built(fedprior(smoothing=2.0), MoreOutputs)
    prior = received_models(sim, sim.start(), torch.arange(6))["fc.prior.value"].exp()
    torch.testing.assert_close(prior.sum(1), torch.ones(6, dtype=D))
    torch.testing.assert_close(prior[0, CLASSES:], torch.full((4,), 2 / (SIZES[0] + 2 * (CLASSES + 4)), dtype=D))


@pytest.mark.parametrize("method", [fedavgft, pytest.param(fedbabu, marks=pytest.mark.slow)])
def test_tuning_is_at_the_full_rate_and_keeps_nothing(method):
    train = LocalTraining(lr=0.1, schedule=Cosine(), decay=0.5, momentum=0.9, optimizer_state="kept")
    (tune,) = method(train=train).tune
    assert (tune.schedule, tune.decay, tune.optimizer_state, tune.momentum) == (Constant(), 1.0, "dropped", 0.9)
    sim = built(method(train=train))
    progress = sim.run(Matrix())
    moved = (
        deployed(sim, progress, torch.arange(6))["fc.weight"]
        - received_models(sim, progress, torch.arange(6))["fc.weight"]
    )
    assert float(moved.abs().max()) > 1e-2


@pytest.mark.parametrize("train", [LocalTraining(optimizer="adam"), LocalTraining(momentum=0.9)])
def test_scaffold_refuses_what_is_no_gradient_step(train):
    with pytest.raises(RecordError, match=r"momentum=0\.9" if train.momentum else "'adam'"):
        scaffold(train=train)


def test_fedopt_has_a_rate_for_each_optimiser():
    assert [fedopt(optimizer=name).merge[0].lr for name in ("adam", "yogi", "momentum")] == [0.01, 0.01, 1.0]


@pytest.mark.slow
def test_fedala_without_layers_is_fedavg():
    plain, other = (built(method, rounds=1) for method in (fedavg(), fedala(layers="none")))
    rows, same = (received_models(s, s.run(Matrix()), torch.arange(6))["fc.weight"] for s in (plain, other))
    torch.testing.assert_close(rows, same)


def test_a_hypernetwork_that_never_fits_is_refused_at_once():
    with pytest.raises(MemoryLimitError, match=r"\dGB"):
        built(pfedhn(hidden=10**9), memory_limit=10**10)


def test_attention_keeps_the_nearest_in_float32():
    rows = {"w": torch.randn(3, 500, generator=torch.Generator().manual_seed(0))}

    class OneLayer(Layout):
        def __init__(self):
            return

        def gram(self, a):
            return (a["w"] @ a["w"].T)[None]

    weights = CosineAttention(0.5, 1000.0)(rows, OneLayer())
    torch.testing.assert_close(weights.sum(1), torch.full((3,), 0.5))


def test_clipping_does_not_count_steps_of_length_0():
    """Three of five clients have no full batch: the median is that of the two who moved."""
    method = robust(fedavg(train=LocalTraining(batch=10, drop_last=True)), "clipped")
    assert method.merge == (ClippedMean(),)
    federation = tiny_federation((31, 23, 4, 4, 4))
    sim = simulation(method, federation, tiny_model(False), rounds=1, dtype=D)
    moved = sim.run(Matrix()).server["theta"]["fc.weight"] - sim.setup.start["fc.weight"]
    assert float(moved.abs().max()) > 1e-3


def test_a_state_that_is_not_finite_is_not_kept(caplog):
    """An update whose norm is finite and whose squares, which FedAdam sums in float32, are not."""

    def huge(parcel):
        field = parcel["theta"]
        blown = {name: torch.full_like(x, 1e30) for name, x in field.rows.items()}
        return type(parcel)({**parcel, "theta": replace(field, value=blown)})

    method = fedopt(optimizer="adam")
    sim = simulation(method, tiny_federation(), tiny_model(), rounds=1)
    sim = replace(sim, algorithm=Tampered(method, {0: huge}))
    with caplog.at_level(logging.WARNING, "stratafl"):
        server = sim.run(Matrix()).server["theta"]
    assert all(torch.equal(x, sim.setup.start[name]) for name, x in server.items())
    assert [record.levelname for record in caplog.records if record.name == "stratafl"] == ["WARNING"]
