"""Scores, counts and features of the task against plain computations, and which splits it opens."""

from dataclasses import replace

import pytest
import torch
from oracle_loops import CLASSES, Federated, Phase, convnorm, images
from oracle_models import made
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, mse_loss, relu

from stratafl.algorithms import fedavg, fedper
from stratafl.core.algorithm import Algorithm
from stratafl.core.layout import Rows
from stratafl.core.records import record
from stratafl.data import Federation, from_splits
from stratafl.errors import DataError, MemoryLimitError
from stratafl.evaluation.evaluate import accuracy, deployed, received_models, score
from stratafl.execute import Matrix, Progress, Simulation, simulation
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.runtime.cohort_task import CohortTask
from tiers import slow_except

pytestmark = pytest.mark.usefixtures("untraced")

TRAIN = LocalTraining(lr=0.1, epochs=2, batch=10, momentum=0.9)
SIZES = (14, 21, 4)
HELD_OUT = ((3, 5), (300, 1), (2, 270))  # more than one pass of an evaluation, and clients that are done before others
IDS = torch.arange(3)


def _nets(count: int = 3) -> list[nn.Module]:
    """A different model for each client, with statistics that are not those of the start."""
    nets = []
    for k in range(count):
        torch.manual_seed(20 + k)
        net = build("convnorm", shape=(1, 6, 6), classes=CLASSES, channels=4, dropout=0.2).double()
        net.train()(torch.randn(30, 1, 6, 6, dtype=torch.float64) + k)
        nets.append(net.eval())
    return nets


def _rows(nets: list[nn.Module], sim: Simulation) -> Rows:
    return {name: torch.stack([net.state_dict()[name] for net in nets]) for name in sim.setup.layout.specs}


@pytest.fixture(scope="module")
def federation() -> Federation:
    return images(SIZES, held_out=HELD_OUT)


@pytest.fixture(params=["stacked", "loop"])
def sim(request: pytest.FixtureRequest, federation: Federation) -> Simulation:
    return simulation(
        fedavg(train=TRAIN), federation, convnorm(0.2), rounds=2, engine=request.param, dtype=torch.float64
    )


def _task(sim: Simulation, ids: Tensor = IDS) -> CohortTask:
    return sim.task(ids, sim.at(0), splits=("train", "validation", "test"))


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_scores_are_hits_and_summed_loss_of_each_client(sim: Simulation, federation: Federation, split: str) -> None:
    nets = _nets()
    ids = torch.tensor([2, 0, 1])
    scores = _task(sim, ids).scores(_rows([nets[i] for i in ids.tolist()], sim), split)
    for c, client in enumerate(ids.tolist()):
        held = federation.split(split).of(client)
        with torch.no_grad():
            logits = nets[client](federation.x[held])
        assert int(scores.count[c]) == len(held)
        assert int(scores.hits[c]) == int((logits.argmax(1) == federation.y[held]).sum())
        expected = float(cross_entropy(logits, federation.y[held], reduction="sum"))
        assert float(scores.loss[c]) == pytest.approx(expected, abs=1e-9)
        assert float(scores.accuracy[c]) == pytest.approx(int(scores.hits[c]) / len(held), abs=1e-15)


def test_scores_of_regression_are_squared_errors() -> None:
    base = images(SIZES)
    y = base.x[:, 0, 0, :2].contiguous()
    federation = replace(base, y=y, classes=None)
    torch.manual_seed(0)
    module = build("mlp", shape=(1, 6, 6), classes=2, hidden=(4,)).double()
    sim = simulation(fedavg(), federation, module, rounds=1, dtype=torch.float64)
    rows = received_models(sim, sim.start(), IDS)
    scores = score(sim, sim.start(), rows, IDS, "test")
    for client in range(3):
        held = federation.split("test").of(client)
        expected = float(mse_loss(module(federation.x[held]).detach(), y[held])) * len(held)
        assert float(scores.loss[client]) == pytest.approx(expected, abs=1e-10)
    assert scores.hits.tolist() == [0, 0, 0]


def test_counts_are_counted_by_hand(sim: Simulation, federation: Federation) -> None:
    ids = torch.tensor([1, 2, 0])
    task = _task(sim, ids)
    assert task.sizes().tolist() == [21, 4, 14]
    assert task.sizes("test").tolist() == [1, 270, 5]
    for split in ("train", "validation"):
        counts = task.class_counts(split)
        for c, client in enumerate(ids.tolist()):
            labels = federation.y[federation.split(split).of(client)].tolist()
            assert counts[c].tolist() == [labels.count(label) for label in range(CLASSES)]


def _features(net: nn.Module, x: Tensor) -> Tensor:
    x = max_pool2d(relu(net.bn1(net.conv1(x))), 2)
    return relu(net.bn2(net.conv2(x))).mean((-2, -1))


@pytest.mark.parametrize("split", ["train", "validation"])
def test_features_are_what_the_head_is_given(sim: Simulation, federation: Federation, split: str) -> None:
    nets = _nets()
    z, y, weight = _task(sim).features(_rows(nets, sim), split)
    for client, net in enumerate(nets):
        held = federation.split(split).of(client)
        count = len(held)
        assert weight[client].tolist() == [1.0] * count + [0.0] * (z.shape[1] - count)
        assert torch.equal(y[client, :count], federation.y[held])
        with torch.no_grad():
            expected = _features(net, federation.x[held])
        torch.testing.assert_close(z[client, :count], expected, rtol=0, atol=1e-12)


def test_evaluation_moves_no_statistics(sim: Simulation) -> None:
    rows = _rows(_nets(), sim)
    before = {name: x.clone() for name, x in rows.items()}
    task = _task(sim)
    task.scores(rows, "validation")
    task.features(rows, "validation")
    assert all(torch.equal(rows[name], before[name]) for name in rows)


def test_the_test_split_is_closed_to_an_algorithm(sim: Simulation) -> None:
    task, rows = sim.task(IDS, sim.at(0)), received_models(sim, sim.start(), IDS)
    assert float(task.scores(rows, "train").count.sum()) == sum(SIZES)
    for closed in ("test", "validation"):
        for ask in (task.scores, task.features):
            with pytest.raises(DataError, match=f"'{closed}'"):
                ask(rows, closed)
        for count in (task.sizes, task.class_counts):
            with pytest.raises(DataError, match=f"'{closed}'"):
                count(closed)


@record
class OracleValidated(LocalTraining):
    """Descent that declares that it looks at validation samples."""

    splits = ("validation",)


@record
class OracleCheater(LocalTraining):
    """Descent that declares that it looks at test samples."""

    splits = ("test",)


def _training(step: LocalTraining) -> Algorithm:
    return replace(fedavg(), train=(step,))


def test_a_declared_validation_split_is_open(federation: Federation) -> None:
    sim = simulation(_training(OracleValidated()), federation, convnorm(), rounds=1, dtype=torch.float64)
    scores = sim.task(IDS, sim.at(0)).scores(received_models(sim, sim.start(), IDS), "validation")
    assert scores.count.tolist() == [3, 300, 2]


def test_splits_that_cannot_be_given_are_refused() -> None:
    full = images(SIZES)
    with pytest.raises(DataError, match="test split"):
        simulation(_training(OracleCheater()), full, convnorm(), rounds=1)
    pairs = [(full.x[:6], full.y[:6]), (full.x[6:12], full.y[6:12])]
    without = from_splits([{"train": pair, "test": pair} for pair in pairs], classes=CLASSES)
    with pytest.raises(DataError, match="'validation'"):
        simulation(_training(OracleValidated()), without, convnorm(), rounds=1)


# Evaluation of a run


def _hits(net: nn.Module, federation: Federation, client: int, split: str) -> tuple[int, int]:
    held = federation.split(split).of(client)
    with torch.no_grad():
        return int((net.eval()(federation.x[held]).argmax(1) == federation.y[held]).sum()), len(held)


@pytest.mark.parametrize("split", slow_except(["test"], ["train", "validation"]))
def test_accuracy_is_the_share_of_all_samples(federation: Federation, split: str) -> None:
    module = convnorm()
    sim = simulation(
        fedper(train=TRAIN), federation, module, rounds=2, participation=0.7, buffers="local", dtype=torch.float64
    )
    oracle = Federated(
        federation, module, (Phase(TRAIN),), personal=("fc",), rounds=2, participation=0.7, buffers="local"
    )
    progress = sim.run(Matrix())
    oracle.run()
    pairs = [_hits(oracle.received(k), federation, k, split) for k in range(3)]
    expected = sum(hits for hits, _ in pairs) / sum(count for _, count in pairs)
    assert accuracy(sim, progress, split) == pytest.approx(expected, abs=1e-12)
    by_client = sum(hits / count for hits, count in pairs) / 3
    assert abs(expected - by_client) > 1e-6  # the mean over clients would be another number


def test_deployed_models_are_the_received_ones_unless_tuned(federation: Federation) -> None:
    module = convnorm()
    sim = simulation(fedper(train=TRAIN), federation, module, rounds=2, dtype=torch.float64)
    progress = sim.run(Matrix())
    had, used = received_models(sim, progress, IDS), deployed(sim, progress, IDS)
    assert all(torch.equal(had[name], used[name]) for name in had)


@pytest.mark.slow
def test_tuned_models_are_deployed_and_forgotten(federation: Federation) -> None:
    """A record with a tune step deploys a model trained once more from what was received; the run goes on without."""
    module = convnorm()
    tune = replace(TRAIN, purpose="tune", epochs=1)
    tuned = replace(fedper(train=TRAIN), tune=(tune,))
    sim = simulation(tuned, federation, module, rounds=2, dtype=torch.float64)
    progress, _ = sim.round(sim.start(), Matrix())
    oracle = Federated(federation, module, (Phase(TRAIN),), personal=("fc",), rounds=2)
    oracle.round(0)
    rows = deployed(sim, progress, IDS)
    hits = count = 0
    for client in range(3):
        net = oracle.received(client)
        oracle.descend(net, {}, client, 1, Phase(tune, None, "tune"))
        for name, x in net.state_dict().items():
            if x.is_floating_point():
                torch.testing.assert_close(rows[name][client], x, rtol=0, atol=1e-11)
        right, held = _hits(net, federation, client, "test")
        hits, count = hits + right, count + held
    assert accuracy(sim, progress) == pytest.approx(hits / count, abs=1e-12)
    progress, _ = sim.round(progress, Matrix())
    oracle.round(1)
    rows = received_models(sim, progress, IDS)
    for name in oracle.shared():
        torch.testing.assert_close(rows[name][0], oracle.server.state_dict()[name], rtol=0, atol=1e-11)


def _received_one_by_one(sim: Simulation, progress: Progress) -> Rows:
    """Under the least memory that will do, to the nearest half: enough for one client and not for two."""
    memory = 1000
    while True:
        try:
            return received_models(replace(sim, round_limit=memory), progress, IDS)
        except MemoryLimitError:
            memory += memory // 2


def test_models_are_the_same_when_read_in_chunks() -> None:
    """A memory limit cuts the evaluation into chunks; every client still gets its own model."""
    module, data = made("mlp")
    sim = simulation(fedper(train=TRAIN, initial="own"), data, module, rounds=1, dtype=torch.float64)
    progress = sim.run(Matrix())
    whole, cut = received_models(sim, progress, IDS), _received_one_by_one(sim, progress)
    assert all(torch.equal(whole[name], cut[name]) for name in whole)
    assert len({float(x[0]) for x in whole["fc.bias"]}) == 3
