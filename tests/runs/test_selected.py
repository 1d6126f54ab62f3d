"""What is reported is what is delivered: `load`, `fit` and exports give the models of the round that tables score."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from stored_runs import finished, left, selected_early

import stratafl
from stratafl.algorithms import fedavg
from stratafl.core.state import flatten
from stratafl.errors import UnknownNameError
from stratafl.evaluation.evaluate import accuracy
from stratafl.evaluation.metrics import METRICS
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.report.outcome import read_outcome
from stratafl.runs import Run
from stratafl.runs.checkpoint import _body_digest
from stratafl.runs.prediction_file import predicted_round, read_predictions


def left_early(folder, *settings, rounds=None):
    """A copy of the run whose selected round is in the middle, also one that was left after some rounds."""
    given = (*selected_early(), *settings)
    return shutil.copytree(finished(*given), folder) if rounds is None else left(folder, rounds, *given)


@pytest.fixture(scope="module")
def example():
    return finished(*selected_early())


def assert_delivers_what_is_reported(folder):
    numbers, fitted = read_outcome(folder).numbers(), stratafl.load(folder)
    assert accuracy(fitted.sim, fitted.progress) == numbers["deployed"]
    assert fitted.accuracy == numbers["deployed"]
    assert fitted.round == fitted.selected["round"] == numbers["selected_round"]
    return fitted


def test_what_is_reported_is_what_is_loaded_to_the_bit(example):
    fitted = assert_delivers_what_is_reported(example)
    assert fitted.round < 4  # or else it would say nothing
    assert len(fitted.history) == 4
    numbers, given = read_outcome(example).numbers(), read_predictions(example)
    assert predicted_round(example) == fitted.round
    assert given.value(METRICS["accuracy"]) == pytest.approx(numbers["deployed"])


def test_the_newest_state_is_there_for_who_asks(example):
    newest = stratafl.load(example, round="newest")
    assert newest.round == 4
    assert newest.accuracy == newest.history[-1]["test.deployed.accuracy"] == accuracy(newest.sim, newest.progress)
    with pytest.raises(UnknownNameError, match="'best'"):
        stratafl.load(example, round="best")


def test_an_export_is_that_of_the_selected_round(example, tmp_path):
    fitted = stratafl.load(example)
    model = load_file(fitted.client(1).export(tmp_path / "client.safetensors"))
    newest = stratafl.load(example, round="newest").client(1).model.state_dict()
    assert any(not torch.equal(x, newest[name]) for name, x in model.items())
    mine = fitted.sim.runtime.federation.split("test").of(1)
    federation = fitted.sim.runtime.federation
    hits = int((fitted.client(1).predict(federation.x[mine]) == federation.y[mine]).sum())
    (line,) = [
        line
        for line in map(json.loads, (example / "clients.jsonl").read_text().splitlines())
        if (line["round"], line["client"]) == (fitted.round, 1)
    ]
    assert line["test.deployed.accuracy"] == pytest.approx(hits / len(mine))


@pytest.mark.parametrize("select", ["best", pytest.param("last", marks=pytest.mark.slow)])
def test_the_round_is_the_one_that_the_settings_ask_for(select):
    fitted = assert_delivers_what_is_reported(finished(*selected_early(), f"evaluate.select={select}"))
    if select == "last":
        assert fitted.round == 4


@pytest.mark.parametrize("store", ["ram", pytest.param("disk", marks=pytest.mark.slow)])
def test_a_run_that_was_left_ends_with_the_same_selected_state(tmp_path, example, store):
    folder = left(tmp_path / "left", 3, *selected_early(), "run.checkpoint=2", f"run.store={store}")
    with Run.open(folder) as run:
        list(run.rounds())
    for place in (folder, finished(*selected_early(), f"run.store={store}")):
        assert_same_selected(stratafl.load(place), stratafl.load(example))


def states(fitted):
    return map(flatten, [fitted.progress.server, *(fitted.progress.clients[client] for client in range(3))])


def assert_same_selected(fitted, other):
    assert fitted.round == other.round
    for state, expected in zip(*map(states, (fitted, other)), strict=True):
        assert state.keys() == expected.keys()
        assert all(torch.equal(x, expected[name]) for name, x in state.items())


def test_nothing_more_is_stored_where_the_selected_round_is_the_newest(tmp_path):
    folder = left(tmp_path / "run", 1, "evaluate.select=last")
    names = {path.name for path in (folder / "checkpoint" / "000001").iterdir()}
    assert names == {"state.safetensors", "manifest.json"}


def test_a_run_that_kept_no_selected_state_is_loaded_as_before_and_says_so(tmp_path, example, caplog):
    folder = left_early(tmp_path / "run")
    for generation in (folder / "checkpoint").iterdir():  # as older versions saved them
        manifest = json.loads((generation / "manifest.json").read_text())
        body = {key: manifest[key] for key in ("round", "journals", "sha256")}
        (generation / "manifest.json").write_text(json.dumps({**body, "manifest_sha256": _body_digest(body)}))
        (generation / "selected.safetensors").unlink(missing_ok=True)
    fitted = stratafl.load(folder)
    assert fitted.round == 4
    (record,) = caplog.records
    assert record.args == (folder, stratafl.load(example).round, 4)


def test_fit_delivers_the_round_with_the_best_validation_accuracy():
    rng = np.random.default_rng(0)
    clients = [(rng.standard_normal((40, 5)).astype(np.float32), rng.integers(0, 3, 40)) for _ in range(3)]
    model = build("mlp", shape=(5,), classes=3, hidden=[8])
    fits = (
        stratafl.fit(fedavg(train=LocalTraining(lr=1.0)), clients, model, rounds=4, seed=seed) for seed in range(20)
    )
    fitted = next(each for each in fits if each.selected["round"] < 4)
    best = max(line["validation.deployed.accuracy"] for line in fitted.history)
    assert fitted.selected["round"] == fitted.round
    assert fitted.selected["validation.deployed.accuracy"] == best
    assert fitted.accuracy == accuracy(fitted.sim, fitted.progress) == fitted.selected["test.deployed.accuracy"]
    assert len(fitted.history) == 4


# Another machine


@pytest.mark.parametrize("device", ["cuda", pytest.param("cuda:1", marks=pytest.mark.slow)])
def test_a_run_made_on_a_gpu_is_loaded_on_a_machine_without(tmp_path, example, monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = left_early(tmp_path / "run")
    config, about = folder / "config.toml", folder / "environment.json"
    config.write_text(config.read_text().replace('device = "auto"', f'device = "{device}"'))
    config.write_text(config.read_text().replace('precision = "fp32"', 'precision = "tf32"'))
    then = json.loads(about.read_text())
    then["identity"]["config"]["run"] |= {"device": device, "precision": "tf32"}
    then |= {"device": device, "tuning": {"compiled": True, "products": {}}}
    about.write_text(json.dumps(then))
    fitted = stratafl.load(folder)
    assert fitted.sim.runtime.device.type == "cpu"
    there = stratafl.load(example)
    assert fitted.round == there.round
    assert torch.equal(
        fitted.client(0).outputs(torch.ones(2, 1, 8, 8)), there.client(0).outputs(torch.ones(2, 1, 8, 8))
    )
    assert stratafl.load(folder, device="cpu").round == there.round


@pytest.mark.slow
def test_a_run_that_does_not_fit_any_more_is_loaded_and_goes_on_all_the_same(tmp_path, caplog, monkeypatch):
    """An estimate that has grown, or a smaller machine, must not lock a run away."""
    folder = left_early(tmp_path / "run", "run.memory_limit=50GB", rounds=3)
    monkeypatch.setattr("stratafl.execute.executors.device_memory", lambda device: 1000)
    monkeypatch.setattr(
        "stratafl.execute.build_simulation.limit_left", lambda limit, device: None if limit is None else 1000
    )
    assert stratafl.load(folder).accuracy >= 0
    with Run.open(folder) as run:
        assert len(list(run.rounds())) == 1
    assert any("one client" in message for message in caplog.messages)
    assert_delivers_what_is_reported(folder)
