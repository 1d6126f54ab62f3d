"""`strata reproduce`: offline at scale smoke, resumed by calling again, and what fails is said at the end."""

import json
import shutil
import signal
import sys

import numpy as np
import pytest

from stratafl.recipes.reproduction import Reproduction
from stratafl.runtime.captured import CapturedSteps

NAME = ("reproduce", "flayer/table4", "--seeds", 1, "--out", "out", "--set", "run.rounds=1")


def runs(place):
    return {folder.name: (folder / "rounds.jsonl").stat().st_mtime_ns for folder in (place / "out/runs").iterdir()}


@pytest.mark.slow
def test_a_table_at_scale_smoke_and_again(strata, place):
    first = strata(*NAME)
    assert first.code == 0, first.err
    folder = place / "out/flayer-table4-smoke"
    assert {path.name for path in folder.iterdir()} == {"reproduce.toml", "result.md", "verdicts.json", "report.html"}
    told = json.loads((folder / "verdicts.json").read_text())
    assert all(set(verdict) >= {"claim", "holds", "reason"} for verdict in told)
    assert all(verdict["stand_in"] for verdict in told)
    before = runs(place)
    assert before
    again = strata(*NAME)
    assert (again.code, runs(place)) == (0, before)  # nothing was left to run
    other = strata(*NAME, "--set", "train.lr=0.3")
    assert other.code == 2
    assert "flayer-table4-smoke" in other.err


@pytest.mark.slow
def test_rows_that_cannot_be_run_are_said_at_the_end_and_the_others_are_run(strata, place):
    result = strata(*NAME, "--set", "model.hidden=[8]")
    assert result.code == 2
    assert result.err.startswith("strata: 2 ")
    assert "s = 3 in CNN: " in result.err
    assert len(runs(place)) == 1
    assert "not run: s = 3, CNN, seed 0: 'last:3' " in " ".join(result.out.split())


@pytest.mark.slow
def test_ctrl_c_twice_stops_at_once_and_writes_what_there_is(strata, place, monkeypatch):
    def pressed(*_):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(CapturedSteps, "scan", pressed)
    result = strata(*NAME)
    assert result.code == 130
    assert (place / "out/flayer-table4-smoke/result.md").exists()


def test_mistakes_are_said_in_one_line(strata):
    assert "flayer/table2" in strata("reproduce", "flayer/table22").err
    assert "short" in strata("reproduce", "flayer/table2", "--scale", "shrt").err
    assert "--minutes" in strata("reproduce", "flayer/table2", "--minutes", 0).err
    assert "--seeds" in strata("reproduce", "flayer/table2", "--seeds", 0).err


def without_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)


@pytest.mark.slow
def test_what_a_scale_needs_of_a_machine_is_said_once_and_nothing_is_written(refused, monkeypatch):
    without_gpu(monkeypatch)
    line = refused("reproduce", "flayer/table4", "--scale", "short", says=("flayer/table4", "tf32", "GPU"))
    assert line.endswith("--scale smoke or --set run.precision=fp32")
    line = refused(*NAME, "--set", "run.precision=tf32", says="flayer/table4")
    assert line.endswith("--set run.precision=fp32")


@pytest.mark.slow
def test_what_was_run_on_a_gpu_is_judged_without_one(strata, place, monkeypatch):
    """Runs that were copied from elsewhere: all of them, and all but one, which is said at the end."""
    asked = (*NAME, "--set", "run.precision=tf32")
    monkeypatch.setattr(sys.modules["stratafl.runtime.build"], "check_precision", lambda *_: None)
    monkeypatch.setattr(Reproduction, "able", lambda *_: True)
    assert strata(*asked).code == 0
    monkeypatch.undo()
    monkeypatch.chdir(place)
    without_gpu(monkeypatch)
    whole = strata(*asked)
    assert whole.code == 0, whole.err
    assert "not run: s" not in whole.out
    shutil.rmtree(sorted((place / "out/runs").iterdir())[0])
    part = strata(*asked)
    assert part.code == 2
    assert part.err.count("needs a GPU") == 1
    assert part.out.count("seed 0: tf32 needs a GPU") == 1
    assert len(runs(place)) == 2


def own(place, **settings):
    """A recipe of one row, with these settings."""
    written = ", ".join(f'"{key.replace("__", ".")}" = {json.dumps(value)}' for key, value in settings.items())
    columns, rows = '[{ name = "here" }]', '[{ name = "FedAvg", settings = { "algorithm.name" = "fedavg" } }]'
    text = f'title = "mine"\nsettings = {{ {written} }}\ncolumns = {columns}\nrows = {rows}\n[scales.smoke]\n'
    (place / "mine.toml").write_text(text)
    return ("reproduce", "mine.toml", "--out", "out", "--set", "run.rounds=1")


def test_data_without_classes_is_refused_as_nothing_of_it_is_an_accuracy(strata, place):
    x = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    np.savez(place / "mine.npz", x=x, y=x[:, 0] + 0.5)
    result = strata(*own(place, data__name="mine.npz", data__clients=3))
    assert result.code == 2
    assert "FedAvg in here: '" in result.err
    assert "mine.npz'" in result.err
    assert "not run: FedAvg, here, seed 0: '" in " ".join(result.out.split())


@pytest.mark.slow
def test_what_diverged_is_said_where_its_numbers_stand(strata, place):
    result = strata(*own(place, data__name="digits", data__clients=3, train__lr=1e30))
    assert result.code == 0, result.err
    assert "diverged: FedAvg, here, seed 0" in result.out
    assert "\n- FedAvg, here, seed 0\n" in (place / "out/own-mine-smoke/result.md").read_text(encoding="utf-8")
