"""Dropout against masks recomputed from the keys, and against what dropout is supposed to be."""

from collections.abc import Iterator
from math import sqrt

import pytest
import torch
from oracle_loops import CLASSES, Federated, Phase, check, convnorm, give_keys, images, state, with_masks
from oracle_models import made
from torch import Size, Tensor, nn

from stratafl.algorithms import fedavg, fedper
from stratafl.core.records import record
from stratafl.core.task import Stack
from stratafl.evaluation.evaluate import received_models, score
from stratafl.execute import Matrix, Simulation, simulation
from stratafl.policies import LocalTraining

pytestmark = pytest.mark.usefixtures("untraced")

ONE_STEP = LocalTraining(lr=0.1, batch=50)


@pytest.mark.parametrize(("name", "engine"), [("convnorm with dropout", "stacked"), ("dropping", "loop")])
def test_one_step_with_the_same_mask(name: str, engine: str) -> None:
    module, federation = made(name)
    sim = simulation(fedavg(train=ONE_STEP), federation, module, rounds=1, engine=engine, dtype=torch.float64)  # type: ignore[arg-type]
    check(sim, Federated(federation, with_masks(module), (Phase(ONE_STEP),), rounds=1, before_batch=give_keys))


def test_three_rounds_with_the_same_masks() -> None:
    train = LocalTraining(lr=0.1, batch=8, epochs=1, momentum=0.9)
    module, federation = convnorm(0.4), images((14, 21, 4))
    sim = simulation(fedper(train=train), federation, module, rounds=3, engine="stacked", dtype=torch.float64)
    masked = with_masks(module)
    oracle = Federated(federation, masked, (Phase(train),), personal=("fc",), before_batch=give_keys)
    check(sim, oracle)


@record
class OracleWatch:
    """The loss of nothing in particular; the features, as training sees them, are its metrics."""

    frozen = constants = carries = ()

    def __call__(self, net, row, frozen, batch, constants, carry):  # type: ignore[no-untyped-def]
        output, features = net.both(row, batch.x)
        return output.mean(), carry, {"features": features}


def _left(drop: nn.Module, shape: tuple[int, ...], engine: str = "stacked") -> Tensor:
    """What dropout leaves of ones `[5 clients, 20 samples, *shape]` in one training step."""
    module = nn.Sequential(drop, nn.Flatten(), nn.Linear(Size(shape).numel(), CLASSES))
    sim = simulation(fedavg(), images((4,) * 5, shape), module, rounds=1, engine=engine, dtype=torch.float64)  # type: ignore[arg-type]
    ids = torch.arange(5)
    stack = Stack(
        torch.ones(5, 20, *shape, dtype=torch.float64),
        torch.zeros(5, 20, dtype=torch.int64),
        torch.ones(5, 20, dtype=torch.float64),
        sim.at(0).keys(ids, "some purpose"),
        (20,) * 5,
    )
    out = sim.task(ids, sim.at(0)).gradients(received_models(sim, sim.start(), ids), stack, objective=OracleWatch())
    return out.metrics["features"].reshape(5, 20, *shape)


@pytest.mark.parametrize(("p", "engine"), [(0.1, "stacked"), (0.5, "loop"), (0.9, "stacked")])
def test_the_fraction_dropped(p: float, engine: str) -> None:
    left = _left(nn.Dropout(p), (50, 4), engine)
    assert left.unique().tolist() == [0.0, pytest.approx(1 / (1 - p), rel=1e-12)]
    count = left.numel()
    spread = sqrt(p * (1 - p) / count)
    assert abs(float((left == 0).double().mean()) - p) < 4 * spread
    per_client = (left == 0).double().flatten(1).mean(1)
    assert (per_client - p).abs().max() < 5 * spread * sqrt(5)


def test_masks_differ_between_clients_samples_and_channels() -> None:
    left = _left(nn.Dropout(0.5), (50, 4))
    for axis in range(4):
        first, second = left.select(axis, 0), left.select(axis, 1)
        agreement = float((first == second).double().mean())
        assert abs(agreement - 0.5) < 5 * sqrt(0.25 / first.numel())


def test_channels_are_dropped_as_a_whole() -> None:
    left = _left(nn.Dropout2d(0.3), (50, 3, 3))
    assert torch.equal(left, left[..., :1, :1].expand_as(left))
    channels = left[..., 0, 0]
    assert abs(float((channels == 0).double().mean()) - 0.3) < 4 * sqrt(0.21 / channels.numel())


def _rounds(sim: Simulation) -> Iterator[Tensor]:
    progress = sim.start()
    for _ in range(2):
        progress, _ = sim.round(progress, Matrix())
        yield received_models(sim, progress, torch.tensor([0]))["fc.weight"]


def test_evaluation_drops_nothing() -> None:
    """A model whose dropout drops nearly everything scores in evaluation as if it had none."""
    module, federation = convnorm(0.9), images((14, 4))
    sim = simulation(fedavg(), federation, module, rounds=1, dtype=torch.float64)
    ids = torch.arange(2)
    progress = sim.start()
    scores = score(sim, progress, received_models(sim, progress, ids), ids, "test")
    plain = convnorm(0.0)
    plain.load_state_dict(state(module), strict=False)
    held = federation.split("test").of(0)
    loss = nn.functional.cross_entropy(plain.eval()(federation.x[held]), federation.y[held], reduction="sum")
    assert float(scores.loss[0]) == pytest.approx(float(loss.detach()), abs=1e-12)


def test_the_ambient_generator_is_neither_used_nor_moved() -> None:
    results = []
    for ambient in (1, 2):
        torch.manual_seed(ambient)
        module, federation = made("dropping")
        torch.manual_seed(ambient)
        sim = simulation(fedavg(train=ONE_STEP), federation, module, rounds=2, dtype=torch.float64)
        before = torch.get_rng_state()
        results.append(list(_rounds(sim)))
        assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
