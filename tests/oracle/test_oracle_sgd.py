"""Descent in detail against torch.optim.SGD and clip_grad_norm_: every option, one by one and together."""

from collections.abc import Mapping
from dataclasses import replace
from math import cos, pi

import numpy as np
import pytest
import torch
from oracle_loops import Federated, Phase, batches, check, convnorm, images, state
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from stratafl.algorithms import fedavg, fedper, fedprox
from stratafl.core.fields import Number, Start
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows
from stratafl.core.objectives import MeanSquaredError
from stratafl.core.records import record
from stratafl.core.state import Value, rows_of, tensor_of
from stratafl.data import Federation, from_splits
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Matrix, simulation
from stratafl.models import build
from stratafl.policies import Broadcast, Cosine, Deliver, Exponential, LocalTraining, Mean, Remember, Take, Upload
from tiers import slow_except

pytestmark = pytest.mark.usefixtures("untraced")

PLAIN = LocalTraining(lr=0.1, epochs=2, batch=10)
CLIP = 0.2
OPTIONS = {
    "plain": PLAIN,
    "momentum": replace(PLAIN, momentum=0.7),
    "weight decay": replace(PLAIN, weight_decay=0.1),
    "clip": replace(PLAIN, clip=CLIP),
    "clip, decay, momentum": replace(PLAIN, clip=CLIP, weight_decay=0.1, momentum=0.9),
    "a clip that never bites": replace(PLAIN, clip=1e3),
    "exponential": replace(PLAIN, schedule=Exponential(0.5)),
    "cosine": replace(PLAIN, schedule=Cosine(0.1)),
    "fewer steps than an epoch": replace(PLAIN, steps=2),
    "more steps than an epoch": replace(PLAIN, steps=5, momentum=0.9),
    "drop last": replace(PLAIN, drop_last=True, momentum=0.9),
    "steps, drop last": replace(PLAIN, drop_last=True, steps=3),
    "no shuffle": replace(PLAIN, shuffle=False),
    "batches of one": replace(PLAIN, batch=1, epochs=1),
    "batches larger than anybody": replace(PLAIN, batch=50),
}


FAST = ["clip, decay, momentum", "cosine", "more steps than an epoch", "steps, drop last", "no shuffle"]


@pytest.mark.parametrize("name", slow_except(FAST, OPTIONS))
def test_option_is_that_of_torch(name: str) -> None:
    train, federation, module = OPTIONS[name], images((14, 11, 4)), convnorm()
    sim = simulation(fedavg(train=train), federation, module, rounds=2, engine="stacked", dtype=torch.float64)
    check(sim, Federated(federation, module, (Phase(train),), rounds=2))


def test_the_clip_bites() -> None:
    federation, module = images((14, 11, 4)), convnorm()
    norms: list[float] = []

    def note(net: nn.Module, anchor: dict[str, Tensor]) -> None:
        norms.append(float(torch.stack([p.grad.norm() for p in net.parameters()]).norm()))

    train = OPTIONS["clip"]
    Federated(federation, module, (Phase(train),), rounds=2, before_step=note).run()
    assert min(norms) > CLIP


def test_schedules_are_what_their_names_say() -> None:
    assert [Exponential(0.5)(t, 3) for t in range(3)] == [1.0, 0.5, 0.25]
    torch_rates = []
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], 1.0)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=4, eta_min=0.1)
    for _ in range(4):
        torch_rates.append(schedule.get_last_lr()[0])
        optimiser.step()
        schedule.step()
    assert [Cosine(0.1)(t, 4) for t in range(4)] == pytest.approx(torch_rates, abs=1e-12)
    assert Cosine()(1, 4) == pytest.approx((1 + cos(pi / 4)) / 2, abs=1e-15)


def test_a_client_below_a_batch_does_nothing_if_the_last_batch_is_dropped() -> None:
    train, federation, module = OPTIONS["drop last"], images((14, 4)), convnorm()
    assert batches(federation, 0, 0, 1, Phase(train), 1) == []
    sim = simulation(fedavg(train=train), federation, module, rounds=1, dtype=torch.float64)
    progress, _ = sim.round(sim.start(), Matrix(), torch.tensor([1]))
    rows = received_models(sim, progress, torch.tensor([0]))
    assert all(torch.equal(rows[name][0], x) for name, x in state(module).items())


@pytest.mark.slow
def test_clipping_counts_trained_layers_only() -> None:
    """Fine-tuning clips by the norm of the head's gradient, as clip_grad_norm_ on the head's parameters does."""
    train = replace(PLAIN, clip=CLIP)
    federation, module = images((14, 11, 4)), convnorm()
    sim = simulation(fedper(finetune=1, train=train), federation, module, rounds=2, dtype=torch.float64)
    first = Phase(replace(train, epochs=1), ("fc",), "finetune")
    check(sim, Federated(federation, module, (first, Phase(train)), personal=("fc",), rounds=2))


def test_clipping_sees_the_pull_of_fedprox() -> None:
    train = replace(PLAIN, clip=CLIP, momentum=0.9, weight_decay=0.1)
    federation, module = images((14, 11, 4)), convnorm()
    sim = simulation(fedprox(strength=2.0, train=train), federation, module, rounds=2, dtype=torch.float64)
    check(sim, Federated(federation, module, (Phase(train),), prox=2.0, rounds=2))


# Regression


def _numbers(width: int | None) -> Federation:
    rng = np.random.default_rng(3)
    slope = rng.standard_normal((4, width or 1))

    def samples(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.standard_normal((count, 4))
        y = np.tanh(x @ slope) + 0.1 * rng.standard_normal((count, width or 1))
        return x, y if width else y[:, 0]

    return from_splits([{"train": samples(n), "test": samples(3)} for n in (13, 6, 21)], dtype=torch.float64)


@pytest.mark.parametrize(
    ("objective", "width"), slow_except([(None, None), (MeanSquaredError(), 3)], [(None, 3), (MeanSquaredError(), 1)])
)
def test_regression_by_squared_error(objective: MeanSquaredError | None, width: int | None) -> None:
    federation = _numbers(width)
    torch.manual_seed(2)
    module = build("mlp", shape=(4,), classes=width or 1, hidden=(5,)).double()
    train = replace(PLAIN, momentum=0.9, objective=objective)
    sim = simulation(fedavg(train=train), federation, module, rounds=2, engine="stacked", dtype=torch.float64)

    def loss(output: Tensor, y: Tensor) -> Tensor:
        return mse_loss(output, y.reshape(len(y), -1))

    check(sim, Federated(federation, module, (Phase(train),), rounds=2, loss=loss))


# Edits and rates


@record
class OracleHeadRate:
    """The head learns with a rate of its own."""

    factor: float
    reads = ()

    def __call__(self, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout) -> Rows:
        factors = torch.ones(len(layout.layers), dtype=torch.float64)
        factors[layout.layer_mask("head")] = self.factor
        return layout.spread(factors, gradients)


@record
class OracleNormRate:
    """Each layer of each client is slowed down by the norm of its gradient."""

    reads = ()

    def __call__(self, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout) -> Rows:
        return layout.spread(1 / (1 + layout.norms(gradients)), gradients)


@record
class OraclePace:
    """The gradient times each client's own number."""

    reads = ("pace",)

    def __call__(self, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout) -> Rows:
        pace = tensor_of(client, "pace")
        return {name: g * pace.reshape(-1, *(1,) * (g.ndim - 1)) for name, g in gradients.items()}


@record
class OracleCubic:
    """The gradient of ¼·‖θ − anchor‖₄⁴, added."""

    reads = ("anchor",)

    def __call__(self, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout) -> Rows:
        anchor = rows_of(client, "anchor")
        return {name: g + (row[name] - anchor[name]) ** 3 for name, g in gradients.items()}


MOVING = replace(PLAIN, momentum=0.9, weight_decay=0.05)


def _torch_with_groups(net: nn.Module, lr: float) -> torch.optim.SGD:
    head = [p for name, p in net.named_parameters() if name.startswith("fc.")]
    base = [p for name, p in net.named_parameters() if not name.startswith("fc.")]
    groups = [{"params": base}, {"params": head, "lr": lr * 0.25}]
    return torch.optim.SGD(groups, lr, momentum=0.9, weight_decay=0.05)


@pytest.mark.slow
def test_a_rate_per_layer_is_a_parameter_group() -> None:
    train = replace(MOVING, rates=(OracleHeadRate(0.5), OracleHeadRate(0.5)))  # two rates multiply
    federation, module = images((14, 11, 4)), convnorm()
    sim = simulation(fedavg(train=train), federation, module, rounds=2, engine="stacked", dtype=torch.float64)
    check(sim, Federated(federation, module, (Phase(train),), rounds=2, optimiser=_torch_with_groups))


LAYERS = ("conv1", "bn1", "conv2", "bn2", "fc")


def _slowed(net: nn.Module, anchor: dict[str, Tensor]) -> None:
    """Without momentum, decay and clipping, a factor on the rate is a factor on the gradient."""
    for layer in LAYERS:
        own = list(net.get_submodule(layer).parameters())
        norm = torch.cat([p.grad.flatten() for p in own]).norm()
        for p in own:
            p.grad /= 1 + norm


@pytest.mark.slow
def test_a_rate_per_layer_and_client() -> None:
    train = replace(PLAIN, rates=(OracleNormRate(),))
    federation, module = images((14, 11, 4)), convnorm()
    sim = simulation(fedavg(train=train), federation, module, rounds=2, engine="stacked", dtype=torch.float64)
    check(sim, Federated(federation, module, (Phase(train),), rounds=2, before_step=_slowed))


@pytest.mark.slow
def test_an_edit_that_reads_the_anchor() -> None:
    train = replace(MOVING, lr=0.3, clip=0.5, edits=(OracleCubic(),))
    federation, module = images((14, 11, 4)), convnorm()
    algorithm = replace(fedavg(), mix=(Take(), Remember()), train=(train,))
    sim = simulation(algorithm, federation, module, rounds=2, engine="stacked", dtype=torch.float64)

    def cubic(net: nn.Module, anchor: dict[str, Tensor]) -> None:
        for name, p in net.named_parameters():
            p.grad += (p.detach() - anchor[name]) ** 3

    check(sim, Federated(federation, module, (Phase(train),), rounds=2, before_step=cubic))


@pytest.mark.slow
def test_an_edit_that_reads_a_number_of_each_client() -> None:
    """Each client has its own factor, and keeps it when clients are sorted and cut into groups."""
    train = replace(MOVING, edits=(OraclePace(),))
    federation, module, paces = images((4, 21, 14)), convnorm(), [0.5, 2.0, -1.0]
    algorithm = Layerwise(
        serve=(Broadcast(), Deliver(field="pace")),
        mix=(Take(), Take("pace")),
        train=(train,),
        send=(Upload(),),
        merge=(Mean(),),
        server={"theta": Start(), "pace": Number(per_client=True)},
        client={"theta": Start()},
    )
    sim = simulation(algorithm, federation, module, rounds=2, engine="stacked", dtype=torch.float64)
    progress = sim.start()
    progress.server["pace"] = torch.tensor(paces, dtype=torch.float64)
    oracle = Federated(federation, module, (Phase(train),), rounds=2)

    def pace(net: nn.Module, client: int, t: int, step: int) -> None:
        oracle.loss = lambda output, y: paces[client] * cross_entropy(output, y)

    oracle.before_batch = pace
    for _ in range(2):
        progress, _ = sim.round(progress, Matrix(), torch.arange(3))
    rows = received_models(sim, progress, torch.arange(3))
    oracle.run()
    for name, x in state(oracle.server).items():
        torch.testing.assert_close(rows[name][0], x, rtol=0, atol=1e-10)
