"""The predictions that a finished run leaves: those of its selected round, whole or not at all."""

import numpy as np
import pytest
import torch
from stored_runs import finished, left, selected_early, whole

from stratafl.algorithms import fedavg
from stratafl.data import from_clients
from stratafl.errors import DamagedError
from stratafl.evaluation.evaluate import deployed
from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.predictions import Predictions, predictions, row_predictions
from stratafl.execute import simulation
from stratafl.models import MLP
from stratafl.runs import Run, read_run
from stratafl.runs.directory import config_of
from stratafl.runs.json_files import read_lines
from stratafl.runs.prediction_file import PREDICTIONS, predicted_round, read_predictions
from stratafl.runs.summary import counting


@pytest.fixture(scope="module")
def example():
    return finished(*selected_early())


@pytest.mark.parametrize("split", ["validation", "test"])
def test_they_give_the_scores_of_the_selected_round(example, split):
    line = counting(read_lines(example / "rounds.jsonl"), config_of(example).evaluate)
    found = read_predictions(example, split)
    assert predicted_round(example) == line["round"]
    assert found.value(METRICS["accuracy"]) == pytest.approx(line[f"{split}.deployed.accuracy"], abs=1e-12)
    assert float(found.losses().mean()) == pytest.approx(line[f"{split}.deployed.loss"], abs=1e-5)
    clients = [each for each in read_lines(example / "clients.jsonl") if each["round"] == line["round"]]
    assert found.by_client(METRICS["accuracy"]) == pytest.approx(
        {each["client"]: each[f"{split}.deployed.accuracy"] for each in clients}, abs=1e-12
    )


def test_they_are_what_the_stored_models_give(example):
    sim, progress, _ = read_run(example, "selected")
    ids, found = torch.arange(3), read_predictions(example)
    for again in (
        predictions(sim, progress, ids, "test"),
        row_predictions(sim, sim.at(progress.t), deployed(sim, progress, ids), ids, "test"),
    ):
        assert torch.equal(found.client, again.client)
        assert torch.equal(found.y, again.y)
        torch.testing.assert_close(found.scores, again.scores, rtol=0, atol=1e-6)
    held = sim.runtime.federation.split("test")
    assert torch.equal(found.y, sim.runtime.federation.y[held.indices])  # in the order of each client's samples
    assert torch.equal(found.client, held.clients())


def test_of_numbers_they_hold_outputs(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 3)).astype("float32")
    np.savez(tmp_path / "d.npz", x=x, y=x[:, 0] + 0.1 * rng.normal(size=120).astype("float32"))
    folder = whole(tmp_path / "run", f"data.name={tmp_path / 'd.npz'}", "run.rounds=1").folder
    found = read_predictions(folder)
    (line,) = read_lines(folder / "rounds.jsonl")
    assert found.scores.shape == (len(found), 1)
    assert found.value(METRICS["mse"]) == pytest.approx(line["test.deployed.loss"], rel=1e-5)


def test_an_unfinished_run_has_none_and_a_finished_one_gets_what_is_missing(tmp_path):
    left(tmp_path / "run", 3)
    assert read_predictions(tmp_path / "run") is None
    (tmp_path / "run" / PREDICTIONS).write_bytes(b"of rounds that are repeated")
    with Run.open(tmp_path / "run") as run:
        assert read_predictions(tmp_path / "run") is None
        list(run.rounds())
    there = (tmp_path / "run" / PREDICTIONS).read_bytes()
    (tmp_path / "run" / PREDICTIONS).write_bytes(there[:-1])
    with pytest.raises(DamagedError, match=PREDICTIONS):
        read_predictions(tmp_path / "run")
    with Run.open(tmp_path / "run"):
        pass
    assert (tmp_path / "run" / PREDICTIONS).read_bytes() == there
    assert read_predictions(tmp_path / "run", "train") is None


def test_whose_round_they_are_is_known_from_their_header(example, tmp_path, monkeypatch):
    """A large file is not read for that; one that was cut off is damaged, whatever its header says."""
    monkeypatch.setattr("stratafl.runs.prediction_file.read_plain", None)
    assert predicted_round(example) in (2, 3)
    whole = (example / PREDICTIONS).read_bytes()
    for damaged in (b"", whole[:40], whole[:-1], whole + b"x", whole.replace(b"round", b"pound")):
        (tmp_path / PREDICTIONS).write_bytes(damaged)
        with pytest.raises(DamagedError, match=PREDICTIONS):
            predicted_round(tmp_path)


def test_a_changed_file_is_refused(example, tmp_path):
    data = bytearray((example / PREDICTIONS).read_bytes())
    data[-3] ^= 1
    (tmp_path / PREDICTIONS).write_bytes(data)
    with pytest.raises(DamagedError, match=PREDICTIONS):
        read_predictions(tmp_path)


@pytest.mark.slow
def test_clients_on_disk_give_the_same(example):
    one, other = read_predictions(example), read_predictions(finished(*selected_early(), "run.store=disk"))
    assert isinstance(one, Predictions)
    torch.testing.assert_close(one.scores, other.scores, rtol=0, atol=1e-6)


@pytest.mark.parametrize("targets", ["labels", "numbers"])
def test_a_split_may_be_empty(targets):
    """With `data.validation=0` nobody has validation samples, as a client with a single group has none."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3)).astype("float32")
    y = (x[:, 0] > 0).astype("int64") if targets == "labels" else x[:, 0]
    federation = from_clients([(x[:20], y[:20]), (x[20:], y[20:])])
    outputs = 2 if targets == "labels" else 1
    sim = simulation(fedavg(), federation, MLP(shape=(3,), classes=outputs, hidden=(4,)), rounds=1)
    found = predictions(sim, sim.start(), torch.arange(2), "validation")
    assert len(found) == 0
    assert found.scores.shape == (0, outputs)
