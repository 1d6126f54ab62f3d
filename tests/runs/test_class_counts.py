"""Who holds what, as a run writes it down and as it is found out later."""

import json
from dataclasses import replace

import numpy as np
import pytest

from stratafl.config.experiment import Experiment, with_settings
from stratafl.data import federate
from stratafl.errors import DamagedError, RunError
from stratafl.runs import Run
from stratafl.runs import class_counts as module
from stratafl.runs.class_counts import CLASS_COUNTS, class_counts, read_class_counts

SMALL = ("data.clients=3", "model.hidden=[4]", "run.rounds=1")


def federation(y=(0, 1, 1, 2, 2, 2, 0, 0)):
    x = np.zeros((8, 2), dtype=np.float32)
    return federate(x, np.array(y), [[0, 1, 2, 3], [4, 5, 6, 7]], test=0.25, seed=0)


def test_counts_are_those_of_the_samples():
    told = class_counts(federation())
    assert (told["classes"], told["clients"]) == (3, 2)
    total = np.array(told["counts"]["train"]) + np.array(told["counts"]["test"])
    assert total.tolist() == [[1, 2, 1], [2, 0, 2]]
    assert np.array(told["counts"]["test"]).sum(axis=1).tolist() == [1, 1]


def test_without_classes_or_with_too_many_there_are_totals(monkeypatch):
    assert class_counts(federation(np.linspace(0, 1, 8, dtype=np.float32)))["counts"]["train"] == [[3], [3]]
    monkeypatch.setattr(module, "MAX_CELLS", 5)
    told = class_counts(federation())
    assert (told["classes"], told["counts"]["test"]) == (None, [[1], [1]])


def test_a_run_writes_it_down_and_it_can_be_found_out_again(tmp_path):
    experiment = with_settings(Experiment(), SMALL)
    with Run.create(experiment, tmp_path / "run") as run:
        expected = run.sim.runtime.federation.class_counts("train").tolist()
    path = tmp_path / "run" / CLASS_COUNTS
    written = read_class_counts(tmp_path / "run", experiment)
    stored = json.loads(path.read_text(encoding="utf-8"))
    assert written == {key: value for key, value in stored.items() if key != "checksum"}
    path.write_text(json.dumps({**stored, "clients": 999}), encoding="utf-8")
    with pytest.raises(DamagedError, match=r"class_counts\.json'"):
        read_class_counts(tmp_path / "run", experiment)
    assert written["counts"]["train"] == expected
    path.unlink()  # a run of an older version
    assert read_class_counts(tmp_path / "run", experiment) == written


def test_what_is_gone_or_not_sound_is_not_known(tmp_path):
    experiment = with_settings(Experiment(), SMALL)
    elsewhere = replace(experiment, data=replace(experiment.data, name=str(tmp_path / "gone.npz")))
    assert read_class_counts(tmp_path, elsewhere) is None
    (tmp_path / "gone.npz").write_bytes(b"no arrays")
    assert read_class_counts(tmp_path, elsewhere) is None
    numbers = {"counts": {"train": 3, "test": [[1]]}}
    for wrong in ({}, {"classes": 2, "counts": {"train": [[1]], "test": [[1]]}}, {"counts": {"train": []}}, numbers):
        (tmp_path / CLASS_COUNTS).write_text(json.dumps(wrong), encoding="utf-8")
        assert read_class_counts(tmp_path, experiment) is None
    (tmp_path / CLASS_COUNTS).write_text("{", encoding="utf-8")
    with pytest.raises(RunError, match="damaged"):
        read_class_counts(tmp_path, experiment)


def test_names_are_written_where_the_data_has_them(tmp_path):
    named = replace(federation(), client_names=("ann", "bob"), class_names=("cat", "dog", "emu"))
    told = class_counts(named)
    assert (told["client_names"], told["class_names"]) == (["ann", "bob"], ["cat", "dog", "emu"])
    assert not {"client_names", "class_names"} & set(class_counts(federation()))
    for wrong in ({"client_names": ["ann"]}, {"class_names": ["cat", "dog", 3]}, {"class_names": "cat"}):
        (tmp_path / CLASS_COUNTS).write_text(json.dumps(told | wrong), encoding="utf-8")
        assert read_class_counts(tmp_path, Experiment()) is None
    (tmp_path / CLASS_COUNTS).write_text(json.dumps(told), encoding="utf-8")
    assert read_class_counts(tmp_path, Experiment()) == told


def test_names_of_classes_go_with_the_counts_of_classes(monkeypatch):
    named = replace(federation(), client_names=("ann", "bob"), class_names=("cat", "dog", "emu"))
    monkeypatch.setattr(module, "MAX_CELLS", 5)
    assert "class_names" not in class_counts(named)
    assert class_counts(named)["client_names"] == ["ann", "bob"]
