"""What is reported is what is delivered: `load`, `fit` and exports give the models of the round that tables score."""

import json
from itertools import islice

import numpy as np
import pytest
import torch
from kill import outcome as everything
from safetensors.torch import load_file

import stratafl
from stratafl.algorithms import fedavg
from stratafl.config.experiment import Experiment, with_settings
from stratafl.core.state import flatten
from stratafl.errors import UnknownNameError
from stratafl.evaluation.evaluate import accuracy
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.report.outcome import read_outcome
from stratafl.runs import Run
from stratafl.runs.checkpoint import _body_digest

# A rate at which nothing is learned for good, so that the best round may be any.
SMALL = ["data.clients=3", "data.partition=iid", "model.hidden=[4]", "run.rounds=6", "train.batch=20", "train.lr=2.5"]


def made(folder, *settings, rounds=None):
    with Run.create(with_settings(Experiment(), [*SMALL, *settings]), folder) as run:
        list(islice(run.rounds(), rounds))
    return folder


@pytest.fixture(scope="module")
def seed(tmp_path_factory):
    """A seed with which a round in the middle is selected that is not as good as the last, whatever the split."""
    place = tmp_path_factory.mktemp("seeds")
    runs = ((f"run.seed={seed}", made(place / str(seed), f"run.seed={seed}", "run.checkpoint=1")) for seed in range(20))
    return next(given for given, folder in runs if _differs(read_outcome(folder).numbers()))


def _differs(numbers):
    return 1 < numbers["selected_round"] < 6 and numbers["deployed"] != numbers["last"]


@pytest.fixture(scope="module")
def example(seed, tmp_path_factory):
    return made(tmp_path_factory.mktemp("example") / "run", seed, "run.checkpoint=1")


def assert_delivers_what_is_reported(folder):
    numbers, fitted = read_outcome(folder).numbers(), stratafl.load(folder)
    assert accuracy(fitted.sim, fitted.progress) == numbers["deployed"]
    assert fitted.accuracy == numbers["deployed"]
    assert fitted.round == fitted.selected["round"] == numbers["selected_round"]
    return fitted


def test_what_is_reported_is_what_is_loaded_to_the_bit(example):
    fitted = assert_delivers_what_is_reported(example)
    assert fitted.round < 6  # or else it would say nothing
    assert len(fitted.history) == 6


def test_the_newest_state_is_there_for_who_asks(example):
    newest = stratafl.load(example, round="newest")
    assert newest.round == 6
    assert newest.accuracy == newest.history[-1]["test.deployed.accuracy"] == accuracy(newest.sim, newest.progress)
    with pytest.raises(UnknownNameError, match="unknown round 'best'"):
        stratafl.load(example, round="best")


def test_an_export_is_that_of_the_selected_round(example, tmp_path):
    fitted = stratafl.load(example)
    model = load_file(fitted.export(1, tmp_path / "client.safetensors"))
    newest = stratafl.load(example, round="newest").model(1).state_dict()
    assert any(not torch.equal(x, newest[name]) for name, x in model.items())
    mine = fitted.sim.runtime.federation.split("test").of(1)
    federation = fitted.sim.runtime.federation
    hits = int((fitted.predict(1, federation.x[mine]) == federation.y[mine]).sum())
    (line,) = [
        line
        for line in map(json.loads, (example / "clients.jsonl").read_text().splitlines())
        if (line["round"], line["client"]) == (fitted.round, 1)
    ]
    assert line["test.deployed.accuracy"] == pytest.approx(hits / len(mine))


@pytest.mark.parametrize("select", ["best", "last"])
def test_the_round_is_the_one_that_the_settings_ask_for(tmp_path, select):
    fitted = assert_delivers_what_is_reported(made(tmp_path / "run", f"evaluate.select={select}"))
    if select == "last":
        assert fitted.round == 6


def test_on_disk_too(tmp_path, example, seed):
    disk = stratafl.load(made(tmp_path / "run", seed, "run.store=disk", "run.checkpoint=1"))
    ram = stratafl.load(example)
    assert disk.round == ram.round
    for client in range(3):
        kept, other = flatten(disk.progress.clients[client]), flatten(ram.progress.clients[client])
        assert all(torch.equal(x, other[name]) for name, x in kept.items())


@pytest.mark.parametrize("store", ["ram", "disk"])
def test_a_run_that_was_left_ends_with_the_same_selected_state(tmp_path, example, seed, store):
    whole = made(tmp_path / "whole", seed, "run.checkpoint=1", f"run.store={store}") if store == "disk" else example
    for rounds in (2, 5):
        folder = made(tmp_path / f"left-{rounds}", seed, "run.checkpoint=2", f"run.store={store}", rounds=rounds)
        with Run.open(folder) as run:
            list(run.rounds())
        found, expected = everything(folder), everything(whole)
        assert {**found, "saved": ""} == {**expected, "saved": ""}


def test_nothing_more_is_stored_where_the_selected_round_is_the_newest(tmp_path):
    folder = made(tmp_path / "run", "evaluate.select=last", "run.checkpoint=1", rounds=2)
    names = {path.name for path in (folder / "checkpoint" / "000002").iterdir()}
    assert names == {"state.safetensors", "manifest.json"}


def test_a_run_that_kept_no_selected_state_is_loaded_as_before_and_says_so(tmp_path, example, seed, caplog):
    folder = made(tmp_path / "run", seed, "run.checkpoint=1")
    for generation in (folder / "checkpoint").iterdir():  # as older versions saved them
        manifest = json.loads((generation / "manifest.json").read_text())
        body = {key: manifest[key] for key in ("round", "journals", "sha256")}
        (generation / "manifest.json").write_text(json.dumps({**body, "manifest_sha256": _body_digest(body)}))
        (generation / "selected.safetensors").unlink(missing_ok=True)
    fitted = stratafl.load(folder)
    assert fitted.round == 6
    selected = stratafl.load(example).round
    assert f"has not kept the state of its selected round {selected}: you get round 6" in caplog.text


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


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_run_made_on_a_gpu_is_loaded_on_a_machine_without(tmp_path, example, seed, monkeypatch, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    folder = made(tmp_path / "run", seed, "run.checkpoint=1")
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
    assert torch.equal(fitted.outputs(0, torch.ones(2, 1, 8, 8)), there.outputs(0, torch.ones(2, 1, 8, 8)))
    assert stratafl.load(folder, device="cpu").round == there.round


def test_a_run_that_does_not_fit_any_more_is_loaded_and_goes_on_all_the_same(tmp_path, seed, caplog, monkeypatch):
    """An estimate that has grown, or a smaller machine, must not lock a run away."""
    folder = made(tmp_path / "run", seed, "run.checkpoint=1", "run.memory_limit=50GB", rounds=3)
    monkeypatch.setattr("stratafl.execute.executors.device_memory", lambda device: 1000)
    monkeypatch.setattr("stratafl.execute.build.limit_left", lambda limit, device: None if limit is None else 1000)
    assert stratafl.load(folder).accuracy >= 0
    with Run.open(folder) as run:
        assert len(list(run.rounds())) == 3
    assert any("goes on with one client at a time" in message for message in caplog.messages)
    assert_delivers_what_is_reported(folder)
