"""The stacked engine, the loop engine and stock autograd on models of every kind; what cannot be stacked falls back."""

import logging

import pytest
import torch
from oracle_loops import CLASSES, Federated, Phase, check, gap, give_keys, images, with_masks
from oracle_models import MODELS, made
from torch import Tensor, nn

from stratafl.algorithms import fedavg
from stratafl.errors import ModelError
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Matrix, simulation
from stratafl.policies import LocalTraining
from stratafl.runtime import LoopEngine, StackedEngine
from tiers import slow_except

pytestmark = pytest.mark.usefixtures("untraced")

TRAIN = LocalTraining(lr=0.05, batch=5, momentum=0.9)
UNSTACKABLE = ("lstm",)
FAST = [(name, "auto") for name in ("mlp", "embedding", "attention", "odd convolutions", "tied", "lstm", "dropping")]
FAST += [("convnorm with dropout", "loop")]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of torch's own attention, which vmap unrolls
@pytest.mark.parametrize(
    ("name", "engine"), slow_except(FAST, ((name, e) for name in MODELS for e in ("auto", "loop")))
)
def test_model_trains_as_stock_autograd_trains_it(name: str, engine: str) -> None:
    module, federation = made(name)
    sim = simulation(fedavg(train=TRAIN), federation, module, rounds=1, engine=engine, dtype=torch.float64)  # type: ignore[arg-type]
    stacked = engine == "auto" and name not in UNSTACKABLE
    assert type(sim.runtime.engine) is (StackedEngine if stacked else LoopEngine)
    oracle = Federated(federation, with_masks(module), (Phase(TRAIN),), rounds=1, before_batch=give_keys)
    oracle.smallest = 2 if name == "tied" else 1
    check(sim, oracle)


@pytest.fixture
def _two_threads(torch_threads) -> None:
    torch_threads(2)


@pytest.mark.slow
@pytest.mark.usefixtures("_two_threads")
@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_several_threads_change_nothing(engine: str) -> None:
    module, federation = made("convnorm with dropout")
    sim = simulation(fedavg(train=TRAIN), federation, module, rounds=3, engine=engine, dtype=torch.float64)
    check(sim, Federated(federation, with_masks(module), (Phase(TRAIN),), rounds=3, before_batch=give_keys))


def test_the_pad_token_is_never_trained() -> None:
    module, federation = made("embedding")
    assert (federation.x == 0).any()
    sim = simulation(fedavg(train=TRAIN), federation, module, rounds=1, engine="stacked", dtype=torch.float64)
    rows = received_models(sim, sim.run(Matrix()), torch.arange(3))
    assert torch.equal(rows["embedding.weight"][:, 0], torch.zeros(3, 5, dtype=torch.float64))


class Branching(nn.Module):
    """Reads a value of its input on the host."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(36, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        if x[:, :2].sum() > 5:
            x = -2 * x
        return self.fc(x)


def _branching() -> tuple[nn.Module, object]:
    torch.manual_seed(3)
    return Branching().double(), images((13, 6, 11))


def test_a_module_that_branches_on_values_runs_client_by_client(caplog: pytest.LogCaptureFixture) -> None:
    module, federation = _branching()
    with caplog.at_level(logging.WARNING, logger="stratafl"):
        sim = simulation(fedavg(train=TRAIN), federation, module, rounds=2, dtype=torch.float64)
    (record,) = [r for r in caplog.records if r.name == "stratafl"]
    assert record.levelno == logging.WARNING
    assert "Branching" in record.getMessage()
    assert "data-dependent" in record.getMessage()
    assert isinstance(sim.runtime.engine, LoopEngine)
    check(sim, Federated(federation, module, (Phase(TRAIN),), rounds=2))


def test_both_branches_are_taken() -> None:
    """Or the test above would show nothing."""
    module, federation = _branching()
    signs = set()
    oracle = Federated(federation, module, (Phase(TRAIN),), rounds=2)
    for child in (oracle.server, *oracle.clients):
        child.register_forward_pre_hook(lambda _, inputs: signs.add(bool(inputs[0].flatten(1)[:, :2].sum() > 5)))
    oracle.run()
    assert signs == {True, False}


def test_a_module_that_branches_on_values_cannot_be_forced_to_be_stacked() -> None:
    module, federation = _branching()
    with pytest.raises(ModelError, match=r"Branching .*data-dependent"):
        simulation(fedavg(), federation, module, rounds=1, engine="stacked")


def test_a_model_that_stacks_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    module, federation = made("mlp")
    simulation(fedavg(), federation, module, rounds=1)
    assert caplog.records == []


@pytest.mark.parametrize("engine", slow_except(["stacked"], ["loop"]))
def test_precision_is_the_one_asked_for(engine: str) -> None:
    """In single precision the engine stays as near to the oracle as single precision allows, and not nearer."""
    module, federation = made("groupnorm")
    sim = simulation(fedavg(train=TRAIN), federation, module, rounds=1, engine=engine)
    rows = received_models(sim, sim.run(Matrix()), torch.arange(3))
    oracle = Federated(federation, module, (Phase(TRAIN),), rounds=1).run()
    assert all(x.dtype == torch.float32 for x in rows.values())
    assert 1e-12 < gap(rows, 0, oracle.received(0)) < 1e-5
