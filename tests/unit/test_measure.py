"""Numbers of a round, each worked out by hand."""

import json
from math import sqrt

import pytest
import torch

from stratafl.algorithms import fedavg, fedper
from stratafl.core.describe import describe
from stratafl.core.parcel import Bytes
from stratafl.core.task import Scores
from stratafl.evaluation.measure import (
    MetricValues,
    layer_lines,
    round_line,
    score_line,
    score_statistics,
    scored_clients,
)
from stratafl.evaluation.metrics import METRICS
from stratafl.execute import Matrix, Report, simulation
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.testing import SIZES, tiny_federation, tiny_model


def scores(hits, loss, count):
    return Scores(*(torch.tensor(each, dtype=torch.float64) for each in (hits, loss)), torch.tensor(count))


def of_accuracies(shares):
    """Clients with a hundred samples each."""
    return scores([round(100 * share) for share in shares], [0.0] * len(shares), [100] * len(shares))


def report(notes, down=(8, 8), up=(4, 5), seconds=(3.0, 0.5)):
    sides = [Bytes(torch.tensor(each), torch.tensor([sum(each)]), 0, torch.tensor([0])) for each in (down, up)]
    return Report(torch.arange(len(down)), *sides, notes, *seconds)


# Statistics over many clients


def test_per_sample_and_per_client_are_two_means():
    numbers = score_statistics(scores([9, 1], [2.0, 3.0], [10, 2]), classes=3)
    assert numbers == {
        "accuracy": pytest.approx(10 / 12),
        "client_accuracy": pytest.approx((0.9 + 0.5) / 2),
        "std": pytest.approx(0.2),  # of 0.9 and 0.5 around 0.7, divided by 2 and not by 1
        "worst10": 0.5,
        "loss": pytest.approx(5 / 12),
    }


def test_the_spread_is_over_clients_and_not_over_samples():
    numbers = score_statistics(scores([10, 0, 5], [0.0] * 3, [10, 1, 10]), classes=2)
    assert numbers["std"] == pytest.approx(sqrt((0.5**2 + 0.5**2 + 0) / 3))


@pytest.mark.parametrize(
    ("clients", "worst"), [(1, 0.0), (5, 0.0), (10, 0.0), (11, 0.005), (20, 0.005), (21, 0.01), (30, 0.01)]
)
def test_the_worst_tenth_is_rounded_up(clients, worst):
    shares = [i / 100 for i in reversed(range(clients))]  # …, 0.02, 0.01, 0
    assert score_statistics(of_accuracies(shares), classes=2)["worst10"] == pytest.approx(worst)


def test_the_worst_tenth_of_a_metric_is_rounded_up():
    values = {client: client / 100 for client in range(11)}
    worst = {name: MetricValues(METRICS[name], 0.5, values).statistics()["worst10"] for name in ("auroc", "log_loss")}
    assert worst == {"auroc": pytest.approx(0.005), "log_loss": pytest.approx(0.095)}


def test_clients_without_samples_are_left_out():
    numbers = score_statistics(scores([3, 0, 1], [1.0, 0.0, 2.0], [4, 0, 4]), classes=2)
    assert numbers["client_accuracy"] == pytest.approx(0.5)
    assert numbers["worst10"] == pytest.approx(0.25)
    assert numbers["std"] == pytest.approx(0.25)


def test_eleven_clients_of_whom_one_has_no_samples_are_ten():
    """So that the worst tenth is one client."""
    shares = [i / 100 for i in range(1, 12)]
    given = of_accuracies(shares)
    given.count[5] = 0
    assert score_statistics(given, classes=2)["worst10"] == pytest.approx(0.01)


def test_without_any_sample_there_is_nothing_to_say():
    assert score_statistics(scores([0, 0], [0.0, 0.0], [0, 0]), classes=2) == {}
    assert score_statistics(scores([], [], []), classes=2) == {}


def test_regression_speaks_of_the_loss_and_its_highest():
    numbers = score_statistics(scores([0, 0, 0], [6.0, 1.0, 4.0], [2, 1, 1]), classes=None)
    assert numbers == {
        "loss": pytest.approx(11 / 4),
        "client_loss": pytest.approx((3 + 1 + 4) / 3),
        "std": pytest.approx(sqrt(((1 / 3) ** 2 + (5 / 3) ** 2 + (4 / 3) ** 2) / 3)),
        "worst10": 4.0,
    }


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_no_number_is_none(loss):
    numbers = score_statistics(scores([1, 2], [loss, 1.0], [2, 2]), classes=2)
    assert numbers["loss"] is None
    assert (numbers["accuracy"], numbers["worst10"]) == (0.75, 0.5)
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert set(score_statistics(scores([0, 0], [loss, 1.0], [2, 2]), classes=None).values()) <= {None, 0.5}


def test_a_board_is_one_flat_line():
    board = {"test.received": scores([1], [2.0], [4]), "validation.received": scores([0], [0.0], [0])}
    assert score_line(board, 2) == {
        "test.received.accuracy": 0.25,
        "test.received.client_accuracy": 0.25,
        "test.received.std": 0.0,
        "test.received.worst10": 0.25,
        "test.received.loss": 0.5,
    }
    assert set(score_line(board, None, "new.")) == {
        f"new.test.received.{key}" for key in ("loss", "client_loss", "std", "worst10")
    }


# Clients


def test_every_client_has_its_line():
    board = {
        "test.received": scores([1, 0, 2], [2.0, 0.0, 1.0], [4, 0, 2]),
        "test.deployed": scores([3, 0, 1], [1.0, 0.0, float("nan")], [4, 0, 2]),
    }
    assert scored_clients(torch.tensor([7, 2, 5]), board, 3).lines() == [
        {
            "client": 7,
            "test.samples": 4,
            "test.received.accuracy": 0.25,
            "test.received.loss": 0.5,
            "test.deployed.accuracy": 0.75,
            "test.deployed.loss": 0.25,
        },
        {"client": 2, "test.samples": 0},
        {
            "client": 5,
            "test.samples": 2,
            "test.received.accuracy": 1.0,
            "test.received.loss": 0.5,
            "test.deployed.accuracy": 0.5,
            "test.deployed.loss": None,
        },
    ]


def test_clients_of_a_regression_have_no_accuracy():
    lines = scored_clients(torch.tensor([1]), {"test.trained": scores([0], [6.0], [4])}, None).lines()
    assert lines == [{"client": 1, "test.samples": 4, "test.trained.loss": 1.5}]


# What a round cost


def test_the_loss_of_a_round_is_weighted_by_steps():
    notes = {"train/steps": torch.tensor([1, 3]), "train/loss": torch.tensor([4.0, 2.0])}
    assert round_line(report(notes)) == {
        "cohort": 2,
        "train.loss": pytest.approx((1 * 4 + 3 * 2) / 4),
        "train.steps": 4,
        "bytes.down": 16,
        "bytes.up": 9,
        "seconds.train": 3.0,
        "seconds.server": 0.5,
    }


def test_every_descent_of_a_round_is_told_apart():
    notes = {
        "head/steps": torch.tensor([2, 2]),
        "head/loss": torch.tensor([1.0, 3.0]),
        "train/steps": torch.tensor([1, 0]),
        "train/loss": torch.tensor([5.0, 0.0]),
        "other/loss": torch.tensor([9.0, 9.0]),
    }
    line = round_line(report(notes))
    assert (line["head.loss"], line["head.steps"]) == (2.0, 4)
    assert (line["train.loss"], line["train.steps"]) == (5.0, 1)
    assert not any(key.startswith("other") for key in line)


def test_steps_without_a_loss_and_a_loss_without_steps():
    assert round_line(report({"train/steps": torch.tensor([2, 1])}))["train.steps"] == 3
    idle = round_line(report({"train/steps": torch.tensor([0, 0]), "train/loss": torch.tensor([0.0, 0.0])}))
    assert idle["train.steps"] == 0
    for line in (round_line(report({"train/steps": torch.tensor([2, 1])})), idle, round_line(report({}))):
        assert "train.loss" not in line


def test_a_training_loss_that_is_no_number_is_none():
    notes = {"train/steps": torch.tensor([1, 1]), "train/loss": torch.tensor([float("nan"), 1.0])}
    assert round_line(report(notes))["train.loss"] is None


def test_dropped_samples_of_all_descents_add_up():
    assert "dropped_samples" not in round_line(report({}))
    notes = {"head/dropped": torch.tensor([1, 0]), "train/dropped": torch.tensor([1, 2])}
    assert round_line(report(notes))["dropped_samples"] == 4


def test_a_note_that_is_no_tensor_is_refused():
    with pytest.raises(TypeError):
        round_line(report({"train/steps": {"fc.weight": torch.zeros(2)}}))


def one_round(alg, federation, model, executor=None):
    sim = simulation(alg, federation, model, rounds=1, dtype=torch.float64)
    _, given = sim.round(sim.start(), executor or Matrix())
    return given, sim.setup.layout


def normed():
    return build("mlp", shape=(1, 6, 6), classes=3, hidden=(4,), norm=True)


def test_a_batch_of_one_sample_that_batchnorm_refuses_is_counted_as_dropped():
    given, _ = one_round(fedavg(train=LocalTraining(batch=10)), tiny_federation((21, 12, 11)), normed())
    line = round_line(given)
    assert line["dropped_samples"] == 2  # one of the client with 21, one of the client with 11
    assert line["train.steps"] == 2 + 2 + 1
    whole, _ = one_round(
        fedavg(train=LocalTraining(batch=10)), tiny_federation((21, 12, 11)), tiny_model(batchnorm=False)
    )
    assert "dropped_samples" not in round_line(whole)
    assert round_line(whole)["train.steps"] == 3 + 2 + 2


def test_dropped_samples_do_not_depend_on_the_chunk():
    given, _ = one_round(
        fedavg(train=LocalTraining(batch=10)), tiny_federation((21, 12, 11)), normed(), Matrix(chunk=1)
    )
    assert round_line(given)["dropped_samples"] == 2


# Layers


def test_bytes_of_the_layers_are_all_but_what_belongs_to_no_layer():
    given, layout = one_round(fedavg(), tiny_federation(), tiny_model())
    lines = layer_lines(given, layout)
    assert [line["layer"] for line in lines] == ["conv1", "bn1", "conv2", "bn2", "fc"]
    # 3×3 kernels from 1 to 4 and from 4 to 4 channels; scale, shift, mean and variance; 4 to 3 classes
    assert [line["columns"] for line in lines] == [36, 16, 144, 16, 15]
    assert [line["bytes.down"] for line in lines] == [8 * 6 * n for n in (36, 16, 144, 16, 15)]
    assert sum(line["bytes.down"] for line in lines) == given.down.total
    assert sum(line["bytes.up"] for line in lines) == given.up.total - given.up.other
    assert given.up.other == 8 * len(SIZES)  # everybody's number of samples


def test_what_is_personal_sends_nothing():
    given, layout = one_round(fedper(), tiny_federation(), tiny_model(batchnorm=False))
    lines = {line["layer"]: line for line in layer_lines(given, layout)}
    assert lines["fc"] == {"layer": "fc", "columns": 8 * 3 + 3, "bytes.down": 0, "bytes.up": 0}
    sent = 8 * len(SIZES) * (36 * 8 + 8)
    assert lines["fc1"] == {"layer": "fc1", "columns": 36 * 8 + 8, "bytes.down": sent, "bytes.up": sent}
    assert round_line(given)["bytes.down"] == sent
    assert round_line(given)["bytes.up"] == sent + 8 * len(SIZES)


def test_both_directions_of_a_layer_are_told_apart():
    layout = describe(build("mlp", shape=(2,), classes=2, hidden=(3,)))
    none = torch.zeros(2)
    down = Bytes(torch.tensor([33]), torch.tensor([10, 20]), 3, none)
    up = Bytes(torch.tensor([7]), torch.tensor([4, 3]), 0, none)
    assert layer_lines(Report(torch.tensor([0]), down, up, {}, 0.0, 0.0), layout) == [
        {"layer": "fc1", "columns": 9, "bytes.down": 10, "bytes.up": 4},
        {"layer": "fc", "columns": 8, "bytes.down": 20, "bytes.up": 3},
    ]


def test_lines_can_be_written_as_json():
    given, layout = one_round(fedper(), tiny_federation(), tiny_model())
    for line in (round_line(given), *layer_lines(given, layout)):
        assert json.loads(json.dumps(line, allow_nan=False)) == line
