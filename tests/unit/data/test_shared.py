"""Runs of one process that read the same data share one federation, only as long as one of them uses it."""

import gc
import os
import weakref
from collections import OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from stratafl.config.assemble import federation_to_run, simulation_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.data import loading as shared
from stratafl.execute import memory
from stratafl.runs import environment
from stratafl.runtime import build, likeness

WITHOUT_EFFECT = {"run.seed": 5, "algorithm.name": "fedper", "train.lr": 0.5, "model.hidden": [4]}
WITH_EFFECT = {"data.seed": 2, "data.clients": 4, "data.alpha": 0.5, "data.test": 0.4, "run.memory_limit": 2**36}


def experiment(path, **more):
    settings = {"data.name": str(path), "data.seed": 1, "data.clients": 3, "data.partition": "dirichlet"}
    return with_values(Experiment(), {**settings, "model.name": "mlp", "run.device": "cpu", **more})


def save(path, seed=0):
    rng = np.random.default_rng(seed)
    np.savez(path, x=rng.standard_normal((120, 5)).astype(np.float32), y=rng.integers(0, 3, 120))
    return path


@pytest.fixture
def path(tmp_path):
    return save(tmp_path / "data.npz")


def test_the_same_data_is_read_once_whatever_the_method_and_the_seed(path):
    first = federation_to_run(experiment(path))
    for key, value in WITHOUT_EFFECT.items():
        assert federation_to_run(experiment(path, **{key: value})) is first
    one, other = (simulation_of(experiment(path, **{"run.seed": seed})) for seed in (1, 2))
    assert one.runtime.federation is other.runtime.federation is first


@pytest.mark.parametrize("key", WITH_EFFECT)
def test_other_settings_of_the_data_are_other_data(path, key):
    first = federation_to_run(experiment(path))
    assert federation_to_run(experiment(path, **{key: WITH_EFFECT[key]})) is not first


def test_another_folder_of_the_cache_or_type_of_numbers_is_other_data(path, monkeypatch, tmp_path):
    first = federation_to_run(experiment(path))
    monkeypatch.setenv("STRATAFL_CACHE", str(tmp_path / "elsewhere"))
    second = federation_to_run(experiment(path))
    assert second is not first
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.float64)
    assert federation_to_run(experiment(path)) is not second


def test_a_file_that_has_changed_is_read_again(path):
    first = federation_to_run(experiment(path))
    later = path.stat().st_mtime_ns + 1
    save(path, seed=1)
    os.utime(path, ns=(later, later))
    second = federation_to_run(experiment(path))
    assert second is not first
    assert not torch.equal(second.x, first.x)


def test_a_file_that_changes_while_it_is_read_is_not_shared(path, monkeypatch):
    def changing(*given):
        os.utime(path, ns=(1, len(list(path.parent.iterdir()))))
        (path.parent / f"{len(list(path.parent.iterdir()))}").touch()
        return read(*given)

    read = shared.outliers
    monkeypatch.setattr(shared, "outliers", changing)
    assert federation_to_run(experiment(path)) is not federation_to_run(experiment(path))


@pytest.mark.slow
def test_it_is_freed_with_the_last_run_that_uses_it(path):
    gc.collect()
    others = {*shared._shared}  # of runs that fixtures of other tests hold
    gc.disable()
    try:
        one, other = (simulation_of(experiment(path, **{"run.seed": seed})) for seed in (1, 2))
        seen = weakref.ref(one.runtime.federation)
        environment.data_digest(one)
        del one
        assert seen() is other.runtime.federation
        del other
        if seen() is not None:  # a model and its hooks may be a circle
            gc.collect()
        assert seen() is None
        assert {*shared._shared} <= others
    finally:
        gc.enable()


def test_checksums_of_shared_data_are_those_of_data_read_alone(path):
    one, other = (simulation_of(experiment(path, **{"run.seed": seed})) for seed in (1, 2))
    alone = environment._federation_digest(replace(one.runtime.federation))
    assert environment.data_digest(one) == environment.data_digest(other) == alone


def test_what_holds_for_all_runs_with_a_model_is_found_once(path, tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(likeness, "_FOUND", OrderedDict())

    def counted(place, name):
        plain = getattr(place, name)
        monkeypatch.setattr(place, name, lambda *given: calls.append(name) or plain(*given))

    counted(memory, "peak_bytes")
    for name in ("_why_not_stacked", "_check_outputs", "_width"):
        counted(build, name)
    first = simulation_of(experiment(path))
    assert sorted(calls) == ["_check_outputs", "_why_not_stacked", "_width", "peak_bytes", "peak_bytes"]
    second = simulation_of(experiment(path, **{"run.seed": 9, "algorithm.name": "fedper"}))
    assert len(calls) == 5
    assert first.client_bytes == second.client_bytes
    assert first.runtime.features == second.runtime.features
    third = simulation_of(experiment(path, **{"model.hidden": [4]}))
    assert len(calls) == 10
    assert third.runtime.features == 4
    simulation_of(experiment(save(tmp_path / "other.npz", seed=1)))  # of the same form
    assert calls[10:] == ["_check_outputs"]


def test_what_is_found_is_forgotten_when_it_becomes_much(monkeypatch):
    monkeypatch.setattr(likeness, "_FOUND", OrderedDict())
    monkeypatch.setattr(likeness, "MAX_FOUND", 2)
    assert [likeness.found_once(what, lambda what=what: -what) for what in (1, 2, 3, 3)] == [-1, -2, -3, -3]
    assert [*likeness._FOUND] == [2, 3]


class Writing(nn.Module):
    """A model that writes to its input, as one with `ReLU(inplace=True)` in front does."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(x.mul_(0.0) if not torch._C._functorch.is_batchedtensor(x) else x * 0.0)


def test_a_model_that_writes_to_its_input_does_not_change_the_data(path, monkeypatch):
    monkeypatch.setattr("stratafl.config.assemble.maker_of", lambda name, trust: Writing)
    before = federation_to_run(experiment(path))
    values = before.x.clone()
    sim = simulation_of(experiment(path))
    sim.client_bytes, sim.evaluation_bytes  # noqa: B018
    assert sim.runtime.federation is before
    assert torch.equal(before.x, values)
