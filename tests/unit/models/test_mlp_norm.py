"""The MLP with batch norm after each hidden layer."""

import pytest
import torch
from torch import nn

from stratafl.algorithms import fedavg, fedbn
from stratafl.core.describe import describe
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Matrix, simulation
from stratafl.models import MLP
from stratafl.policies import LocalTraining
from stratafl.runtime import LoopEngine, StackedEngine
from stratafl.testing import tiny_federation


def normed(hidden: tuple[int, ...] = (7, 5), norm: bool = True) -> MLP:
    torch.manual_seed(3)
    return MLP(shape=(1, 6, 6), classes=3, hidden=hidden, norm=norm)


def test_layers_are_named_in_forward_order() -> None:
    assert [name for name, _ in normed().named_children()] == ["fc1", "bn1", "fc2", "bn2", "fc"]
    assert [name for name, _ in normed(norm=False).named_children()] == ["fc1", "fc2", "fc"]
    assert [name for name, _ in normed(hidden=()).named_children()] == ["fc"]
    assert describe(normed()).names == ("fc1", "bn1", "fc2", "bn2", "fc")


def test_each_stage_holds_its_layer_and_its_norm() -> None:
    stages = normed().stages()
    assert [(stage.name, stage.modules) for stage in stages] == [
        ("fc1", ("fc1", "bn1")),
        ("fc2", ("fc2", "bn2")),
        ("fc", ("fc",)),
    ]
    for name in normed().state_dict():
        assert sum(name.startswith(f"{module}.") for stage in stages for module in stage.modules) == 1, name


@pytest.mark.parametrize("training", [True, False])
def test_it_equals_its_definition(training: bool) -> None:
    model = normed().train(training)
    norms = (nn.BatchNorm1d(7), nn.BatchNorm1d(5))
    layers = (nn.Flatten(), model.fc1, norms[0], nn.ReLU(), model.fc2, norms[1], nn.ReLU(), model.fc)
    definition = nn.Sequential(*layers).train(training)
    x = torch.randn(4, 1, 6, 6)
    torch.testing.assert_close(model(x), definition(x), rtol=0, atol=0)
    torch.testing.assert_close(model.bn2.running_mean, norms[1].running_mean, rtol=0, atol=0)
    assert bool(model.bn2.running_mean.any()) is training


def test_features_are_what_the_head_is_given() -> None:
    model, x = normed().eval(), torch.randn(4, 1, 6, 6)
    assert model.features(x).shape == (4, 5)
    torch.testing.assert_close(model(x), model.fc(model.features(x)), rtol=0, atol=0)


def test_numbers_of_columns() -> None:
    layout = describe(normed())
    # weights and biases of 36·7, 7·5 and 5·3, scale and shift of 7 and of 5
    assert layout.columns == (36 * 7 + 7) + 14 + (7 * 5 + 5) + 10 + (5 * 3 + 3)
    assert layout.layer("bn1").tensors == ("bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var")


def test_rules_find_the_norms() -> None:
    assert describe(normed(hidden=(7,))).resolve("batchnorm") == ("bn1",)
    assert describe(normed()).resolve("batchnorm") == ("bn1", "bn2")
    assert describe(normed(norm=False)).resolve("batchnorm") == ()
    assert describe(normed()).resolve("linear") == ("fc1", "fc2", "fc")


def test_a_norm_goes_with_what_it_normalises() -> None:
    layout = describe(normed())
    assert layout.layer("bn1").normalises == "fc1"
    assert layout.resolve("first:1") == ("fc1", "bn1")
    assert layout.resolve("last:2") == ("fc2", "bn2", "fc")
    assert layout.resolve("blocks:2") == ("fc2", "bn2", "fc")
    assert describe(normed(), granularity="block").names == ("fc1", "fc2", "fc")


def test_a_client_of_fedbn_keeps_its_norms() -> None:
    sim = simulation(fedbn(), tiny_federation((12, 8)), normed(), rounds=1, dtype=torch.float64)
    progress = sim.run(Matrix())
    assert {name.partition(".")[0] for name in progress.clients[0]["theta"]} == {"bn1", "bn2"}
    assert not any(name.startswith("bn") for name in progress.server["theta"])


@pytest.mark.parametrize("buffers", ["follow", "local"])
def test_the_stacked_engine_equals_the_loop(buffers: str) -> None:
    """With last batches of one sample, which BatchNorm refuses, of the clients with 21 and 11."""
    rows = []
    for engine, kind in (("stacked", StackedEngine), ("loop", LoopEngine)):
        sim = simulation(
            fedavg(train=LocalTraining(lr=0.1, batch=5, momentum=0.9)),
            tiny_federation((21, 12, 11)),
            normed(),
            rounds=2,
            buffers=buffers,  # type: ignore[arg-type]
            engine=engine,  # type: ignore[arg-type]
            dtype=torch.float64,
        )
        assert type(sim.runtime.engine) is kind
        rows.append(received_models(sim, sim.run(Matrix()), torch.arange(3)))
    for name, x in rows[0].items():
        torch.testing.assert_close(x, rows[1][name], rtol=0, atol=1e-11)
    moved = rows[0]["bn1.running_mean"]
    assert moved.abs().min() > 0
    assert torch.equal(moved[0], moved[1]) is (buffers == "follow")
