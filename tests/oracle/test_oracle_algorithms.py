"""Each algorithm, three rounds of it, against plain loops; BatchNorm statistics are part of what is compared."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from oracle_loops import CLASSES, SHAPE, SIZES, Federated, Phase, assert_same_models, check, convnorm, images, state
from torch import Tensor, nn
from torch.nn.functional import relu

from stratafl.algorithms import fedavg, fedbn, fedper, fedprox, fedrep, lgfedavg, local
from stratafl.core.algorithm import Algorithm
from stratafl.errors import ModelError
from stratafl.evaluation.evaluate import received_models
from stratafl.execute import Matrix, Simulation, simulation
from stratafl.policies import LocalTraining
from tiers import slow_except

# test_oracle_traced.py traces
pytestmark = [pytest.mark.usefixtures("untraced"), pytest.mark.budget(1.0, "three rounds beside a plain loop")]

TRAIN = LocalTraining(lr=0.1, epochs=1, batch=10, momentum=0.9, weight_decay=0.01)
BASE = ("conv1", "bn1", "conv2", "bn2", "drop")
JOINT = (Phase(TRAIN),)
HEAD_EPOCHS = Phase(replace(TRAIN, epochs=2), ("fc",), "finetune")


@dataclass(frozen=True)
class Case:
    algorithm: Algorithm
    oracle: Callable[..., Federated]


def _case(algorithm: Algorithm, phases: tuple[Phase, ...] = JOINT, **options: object) -> Case:
    return Case(algorithm, lambda **more: Federated(images(), convnorm(), phases, **options, **more))


def _alternating(head: Phase, base: LocalTraining) -> tuple[Phase, ...]:
    return (head, Phase(base, BASE))


METHODS = {
    "fedavg": _case(fedavg(train=TRAIN)),
    "fedprox": _case(fedprox(strength=0.3, train=TRAIN), prox=0.3),
    "fedper": _case(fedper(train=TRAIN), personal=("fc",)),
    "fedrep": _case(
        fedrep(head_epochs=2, train=TRAIN),
        _alternating(Phase(replace(TRAIN, epochs=2), ("fc",), "head"), TRAIN),
        personal=("fc",),
    ),
    "fedbn": _case(fedbn(train=TRAIN), personal=("bn1", "bn2")),
    "lgfedavg": _case(lgfedavg(train=TRAIN), personal=BASE),
    "local": _case(local(train=TRAIN), personal=(*BASE, "fc"), everybody=True),
}
SPLITS_OF_FEDPER = {
    "blocks:2": ("conv2", "bn2", "fc"),
    "first:1": ("conv1", "bn1"),
    "middle:1": ("conv2", "bn2"),
    "last:2": ("conv2", "bn2", "fc"),
    "conv2": ("conv2",),
    "bn1+fc": ("bn1", "fc"),
    "not conv1": ("bn1", "conv2", "bn2", "fc"),
}


def _simulation(algorithm: Algorithm, buffers: str = "follow", participation: float = 1.0) -> Simulation:
    return simulation(
        algorithm,
        images(),
        convnorm(),
        rounds=3,
        participation=participation,
        buffers=buffers,  # type: ignore[arg-type]
        engine="stacked",
        dtype=torch.float64,
    )


SETTINGS = [("follow", 0.5), pytest.param("local", 1.0, marks=pytest.mark.slow)]
SETTINGS += [pytest.param(*each, marks=pytest.mark.nightly) for each in (("follow", 1.0), ("local", 0.5))]


@pytest.mark.parametrize(("buffers", "participation"), SETTINGS)
@pytest.mark.parametrize("name", METHODS)
def test_method_is_its_plain_loop(name: str, buffers: str, participation: float) -> None:
    case = METHODS[name]
    check(
        _simulation(case.algorithm, buffers, participation), case.oracle(buffers=buffers, participation=participation)
    )


def test_partial_participation_leaves_somebody_out() -> None:
    oracle = METHODS["fedper"].oracle(participation=0.5)
    cohorts = [oracle.cohort(t) for t in range(3)]
    assert [len(set(cohort)) for cohort in cohorts] == [2, 2, 2]
    assert len(set(map(tuple, cohorts))) > 1
    sim = _simulation(fedper(train=TRAIN), participation=0.5)
    assert [sorted(sim.cohort(sim.at(t)).tolist()) for t in range(3)] == cohorts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedper", "fedprox"])
def test_order_and_chunks_of_a_cohort_do_not_matter(name: str) -> None:
    case = METHODS[name]
    sim, oracle = _simulation(case.algorithm), case.oracle(rounds=3)
    progress = sim.start()
    for t in range(2):
        progress, _ = sim.round(progress, Matrix(chunk=3), torch.tensor([2, 0, 3, 1]))
        oracle.round(t)
    assert_same_models(sim, progress, oracle)


@pytest.mark.parametrize("name", slow_except(["fedper"], ["fedavg", "fedrep", "lgfedavg"]))
def test_only_shared_tensors_are_on_the_server(name: str) -> None:
    for buffers in ("follow", "local"):
        sim = _simulation(METHODS[name].algorithm, buffers)
        oracle = METHODS[name].oracle(buffers=buffers)
        progress, _ = sim.round(sim.start(), Matrix())
        oracle.round(0)
        served = progress.server["theta"]
        assert set(served) == set(oracle.shared())
        for tensor in served:
            torch.testing.assert_close(served[tensor], state(oracle.server)[tensor], rtol=0, atol=1e-12)


@pytest.mark.parametrize("personal", slow_except(["blocks:2", "bn1+fc"], SPLITS_OF_FEDPER))
def test_fedper_with_other_personal_layers(personal: str) -> None:
    case = _case(fedper(personal=personal, train=TRAIN), personal=SPLITS_OF_FEDPER[personal])
    check(_simulation(case.algorithm, "follow", 0.5), case.oracle(participation=0.5))


@pytest.mark.parametrize("buffers", slow_except(["follow"], ["local"]))
def test_fedper_with_heads_of_their_own(buffers: str) -> None:
    sim = _simulation(fedper(initial="own", train=TRAIN), buffers, 0.5)
    drawn = sim.setup.fresh(torch.arange(len(SIZES)))
    heads = {k: {name: drawn[name][k] for name in ("fc.weight", "fc.bias")} for k in range(len(SIZES))}
    assert len({float(head["fc.bias"][0]) for head in heads.values()}) == len(SIZES)
    oracle = Federated(images(), convnorm(), JOINT, personal=("fc",), heads=heads, buffers=buffers, participation=0.5)
    check(sim, oracle)


@pytest.mark.parametrize("buffers", slow_except(["follow"], ["local"]))
def test_fedper_that_fine_tunes_its_head_first(buffers: str) -> None:
    case = _case(fedper(finetune=2, train=TRAIN), (HEAD_EPOCHS, *JOINT), personal=("fc",))
    check(_simulation(case.algorithm, buffers), case.oracle(buffers=buffers))


@pytest.mark.slow
def test_fedper_fine_tunes_personal_blocks_with_their_own_statistics() -> None:
    personal = ("conv2", "bn2", "fc")
    first = Phase(replace(TRAIN, epochs=2), (*personal, "drop"), "finetune")
    case = _case(fedper(personal="blocks:2", finetune=2, train=TRAIN), (first, *JOINT), personal=personal)
    check(_simulation(case.algorithm, "follow", 0.5), case.oracle(participation=0.5))


@pytest.mark.slow
def test_fedrep_with_more_head_epochs_and_a_larger_head() -> None:
    personal = ("conv2", "bn2", "fc")
    phases = (Phase(replace(TRAIN, epochs=3), personal, "head"), Phase(TRAIN, ("conv1", "bn1")))
    case = _case(fedrep(personal="last:2", head_epochs=3, train=TRAIN), phases, personal=personal)
    check(_simulation(case.algorithm), case.oracle())


@pytest.mark.slow
def test_frozen_modules_may_be_left_in_training_mode() -> None:
    """With `frozen_modules_train` a frozen base normalises with its batches and moves its statistics."""
    train = replace(TRAIN, frozen_modules_train=True)
    case = _case(fedper(finetune=2, train=train), (HEAD_EPOCHS, *JOINT), personal=("fc",), keep_training=True)
    check(_simulation(case.algorithm), case.oracle())


class LinearNorm(nn.Module):
    """BatchNorm on single values per channel: stock PyTorch refuses to train it on one sample."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(36, 5)
        self.norm = nn.BatchNorm1d(5)
        self.fc = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(relu(self.norm(self.first(x.flatten(1)))))


@pytest.mark.parametrize(("buffers", "engine"), slow_except([("follow", "stacked")], [("local", "loop")]))
def test_batches_of_one_sample_that_batchnorm_refuses_are_skipped(buffers: str, engine: str) -> None:
    torch.manual_seed(1)
    module, federation = LinearNorm().double(), images((21, 1, 11, 12))
    with pytest.raises(ValueError, match="more than 1 value"):
        module.train()(federation.x[:1])
    sim = simulation(
        fedper(train=TRAIN), federation, module, rounds=3, buffers=buffers, engine=engine, dtype=torch.float64
    )  # type: ignore[arg-type]
    check(sim, Federated(federation, module, JOINT, personal=("fc",), buffers=buffers, smallest=2))


def test_a_client_that_can_never_train_keeps_what_it_received() -> None:
    """Its only batch is a single sample, which is dropped and noted."""
    torch.manual_seed(1)
    module, federation = LinearNorm().double(), images((1, 12))
    sim = simulation(fedavg(train=TRAIN), federation, module, rounds=1, dtype=torch.float64)
    alone, report = sim.round(sim.start(), Matrix(), torch.tensor([0]))
    assert report.notes["train/dropped"].tolist() == [1]
    rows = received_models(sim, alone, torch.arange(2))
    assert all(torch.equal(rows[name][0], x) for name, x in state(module).items())


def test_batches_that_no_batchnorm_takes_are_refused() -> None:
    sim = simulation(fedavg(train=replace(TRAIN, batch=1)), images((12,)), LinearNorm().double(), rounds=1)
    with pytest.raises(ModelError, match="batches of 1"):
        sim.round(sim.start(), Matrix())


def test_shape_of_the_model_is_as_the_oracle_names_it() -> None:
    children = [name for name, _ in convnorm().named_children()]
    assert children == [*BASE, "fc"]
    assert tuple(images().x.shape[1:]) == SHAPE
