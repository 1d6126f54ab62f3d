"""A tuning on real runs: it never sees test data, loses nothing when it is stopped, and survives trials that fail."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kill import lines
from stored_runs import TUNED, TUNING, created, finished_tuning
from test_kill import ENVIRONMENT

from processes import Command, end, outputs
from stratafl.config import assemble
from stratafl.config.experiment import Experiment, with_values
from stratafl.errors import DataError, RecordError, RunError
from stratafl.report.study import comparisons, not_started
from stratafl.runs import is_run
from stratafl.runs.directory import config_of
from stratafl.tuning import Tuning, TuningPlan, advance
from stratafl.tuning.reuse import reused, tuned_settings, untyped_named
from stratafl.tuning.tuning_result import results

METHODS = list(TUNED)


def tuned(folder):
    return tomllib.loads((folder / "tuned.toml").read_text())


def trials(folder):
    """The journals of all trials."""
    found = sorted(path.parent for path in (folder / "trials").glob("*/*/rounds.jsonl"))
    return {str(run.relative_to(folder)): [lines(run, name) for name in ("rounds", "clients")] for run in found}


def count_files(folder):
    return sum(len(files) for _, _, files in os.walk(folder))


@pytest.fixture(scope="module")
def undisturbed():
    return finished_tuning()


@pytest.mark.budget(2, "the tuning that the others read")
def test_the_winners_run_on_fresh_seeds_and_are_reported(undisturbed):
    tuning = Tuning.open(undisturbed)
    assert tuning.work() == []
    found = {each.method: each for each in results(tuning)}
    assert list(found) == METHODS
    for method, each in found.items():
        assert list(each.tuned) == list(each.untuned) == ["1"]  # the trials have seed 0
        assert each.settings["train.lr"] in {trial.settings["train.lr"] for trial in each.trials}
        assert is_run(undisturbed / "winners" / method / "seed-1")
        assert config_of(undisturbed / "winners" / method / "seed-1").train.lr == each.settings["train.lr"]
        rounds = [trial.rounds for trial in each.trials]
        assert sorted(rounds) == [1, 2, 2]
        assert [rate for rate, _, _ in each.curve()] == sorted({trial.settings["train.lr"] for trial in each.trials})
    assert len((undisturbed / "tuned.csv").read_text().splitlines()) == 3
    assert json.loads((undisturbed / "tuning.json").read_text())["methods"][0]["method"] == "fedavg"
    assert tuned_settings(undisturbed, ["fedprox"]) == {"fedprox.train.lr": found["fedprox"].settings["train.lr"]}
    with pytest.raises(RunError, match=r"fedper\b.* fedavg, fedprox\b"):
        tuned_settings(undisturbed, ["fedper"])


@pytest.mark.slow
def test_a_winner_that_was_killed_before_it_wrote_its_predictions_writes_them(tmp_path, undisturbed):
    shutil.copytree(undisturbed, tmp_path / "tune")
    (tmp_path / "tune/tuning.json").unlink(missing_ok=True)
    there = sorted((tmp_path / "tune").glob("*ne*/*/*/predictions.safetensors"))  # winners and untuned
    before = {path: path.read_bytes() for path in there}
    assert len(there) == 4
    for path in there[1:]:
        path.unlink()
    assert len(Tuning.open(tmp_path / "tune").work()) == 3
    assert advance(Tuning.open(tmp_path / "tune"))
    assert {path: path.read_bytes() for path in there} == before


def test_a_report_on_winners_that_have_not_started_names_the_tuning(tmp_path, undisturbed):
    shutil.copytree(undisturbed, tmp_path / "tune")
    shutil.rmtree(tmp_path / "tune/winners/fedprox/seed-1")
    (said,) = not_started(comparisons([tmp_path / "tune"]))
    assert said.startswith("1 of the 2 ")
    assert said.endswith(f"strata resume {tmp_path / 'tune'}")


@pytest.mark.slow
def test_models_right_after_training_have_no_predictions_to_wait_for(tmp_path):
    made = created(
        tmp_path / "tune", ["local"], TuningPlan(1, grids={"train.lr": [0.3]}), **{"evaluate.stage": "trained"}
    )
    assert advance(made, interrupted=iter([False] * 9 + [True]).__next__)
    assert made.work() == []


def test_what_is_typed_counts_more_than_what_was_tuned_and_differences_are_said(undisturbed, caplog):
    def used(**typed):
        caplog.clear()
        base, settings = reused(undisturbed, METHODS, {path.replace("__", "."): value for path, value in typed.items()})
        return base, settings, caplog.messages

    base, settings, said = used()
    chosen = tuned_settings(undisturbed, METHODS)
    assert (base.run.seed, settings, said) == (1, chosen, [])
    _, settings, said = used(train__lr=0.5)
    rates = [f"{method} {chosen[f'{method}.train.lr']:g}" for method in METHODS]
    assert settings == {"train.lr": 0.5}
    assert [words.partition(": ")[2] for words in said] == [", ".join(rates)]
    _, settings, said = used(fedprox__train__lr=0.5)
    assert settings == {**chosen, "fedprox.train.lr": 0.5}
    assert said[0].startswith("fedprox.train.lr is 0.5 ")
    assert said[0].endswith(f": {chosen['fedprox.train.lr']:g}")
    base, _, said = used(run__rounds=1, evaluate__metric="log_loss")
    assert (base.evaluate.average, base.evaluate.better) == ("auto", "auto")  # and not as accuracy had it
    differ = "run.rounds = 2 (here 1), evaluate.metric = accuracy (here log_loss)"
    assert f"'{undisturbed}'" in said[0]
    assert differ in said[0]
    base, _, said = used(data__name="other.csv")
    assert (base.data.clients, base.evaluate.metric, base.train.batch) == (20, "auto", 400)
    other = Path("other.csv").absolute()
    assert f"data.name = digits (here {other})" in said[0]
    from_it = rf"data\.clients = 4 .*data\.clients .*'{undisturbed}'"
    with pytest.raises(RecordError, match=from_it), untyped_named(undisturbed, {"run.rounds": 1}):
        raise RecordError("data.clients = 4 has no effect")


def test_trials_score_no_test_sample(undisturbed):
    for rounds, clients in trials(undisturbed).values():
        assert any("validation.deployed.loss" in line for line in rounds)
        assert not [key for line in [*rounds, *clients] for key in line if "test." in key]
    winner = lines(undisturbed / "winners" / "fedprox" / "seed-1", "rounds")
    assert all("test.deployed.loss" in line for line in winner)


@pytest.mark.slow
def test_test_data_has_no_influence_on_choices_and_trials(tmp_path, undisturbed, monkeypatch, divided_anew):
    divided = assemble.from_samples

    def poisoned(*given, **named):
        federation = divided(*given, **named)
        x, y, test = federation.x.clone(), federation.y.clone(), federation.split("test").indices
        assert len(test) > 100
        x[test] = float("nan") if x.is_floating_point() else 255 - x[test]
        y[test] = (y[test] + 1 + torch.arange(len(test)) % 5) % federation.classes
        return replace(federation, x=x, y=y)

    monkeypatch.setattr(assemble, "from_samples", poisoned)
    assert advance(created(tmp_path / "tune"))
    assert tuned(tmp_path / "tune") == tuned(undisturbed)
    assert trials(tmp_path / "tune") == trials(undisturbed)
    clean, spoilt = (lines(f / "winners" / "fedprox" / "seed-1", "rounds") for f in (undisturbed, tmp_path / "tune"))
    assert clean != spoilt  # so the poison was there


def test_what_single_methods_are_set_to_stays_with_what_was_chosen(tmp_path):
    made = created(
        tmp_path / "tune", ["fedper"], TuningPlan(1, grids={"train.lr": [0.3]}), **{"fedper.personal": "last:1"}
    )
    assert advance(made)
    assert tuned_settings(tmp_path / "tune", ["fedper"]) == {"fedper.personal": "last:1", "fedper.train.lr": 0.3}
    assert config_of(tmp_path / "tune/winners/fedper/seed-1").algorithm.options["personal"] == "last:1"


@pytest.mark.slow
def test_a_tuning_by_steps_is_continued(tmp_path):
    made = created(tmp_path / "tune", ["fedavg", "fedrep"], TuningPlan(6, only=("train.lr",), budget="steps"))
    assert not advance(made, interrupted=iter([False] * 20 + [True] * 99).__next__)
    assert Tuning.open(tmp_path / "tune").work()


def test_a_tuning_has_no_guard(tmp_path):
    with pytest.raises(RecordError, match="--guard"):
        created(tmp_path / "tune", **{"evaluate.guard": True})


@pytest.mark.slow
def test_stopped_after_any_round_it_continues_to_the_same_choices(tmp_path, undisturbed):
    made, stops = created(tmp_path / "tune"), 0
    while not advance(made, interrupted=iter([False] + [True] * 9).__next__):
        made, stops = Tuning.open(tmp_path / "tune"), stops + 1
    assert stops > 5
    assert tuned(tmp_path / "tune") == tuned(undisturbed)
    assert trials(tmp_path / "tune") == trials(undisturbed)


@pytest.mark.slow
def test_trials_that_fail_or_diverge_count_as_the_worst_and_are_said(tmp_path):
    grids = {"train.lr": [0.1, 1e30], "fedper.personal": ["head", "nosuch"]}
    tuning, said = created(tmp_path / "tune", ["fedper"], TuningPlan(4, eta=1, grids=grids, widen=False)), []
    assert advance(tuning, note=lambda work, text: said.append(text))
    assert len([text for text in said if "nosuch" in text]) == 2
    (found,) = results(tuning)
    assert found.settings == {"train.lr": 0.1, "algorithm.personal": "head"}
    assert sorted(trial.failed[:8] for trial in found.failed) == ["4 of 4 c", "unknown ", "unknown "]
    assert "3 of 4 trials" in found.remark()


@pytest.mark.slow
def test_the_metric_is_that_of_the_data_also_if_the_first_trial_failed(tmp_path):
    table = tmp_path / "table.csv"
    table.write_text("a,b,label\n" + "".join(f"{n % 7},{n % 5},{n % 7 + n % 5 + 0.5}\n" for n in range(200)))
    plan = TuningPlan(2, eta=1, grids={"train.lr": [0.01], "fedper.personal": ["nosuch", "last:1"]})
    settings = {"data.name": str(table), "data.partition": "auto", "evaluate.metric": "plain"}
    tuning = created(tmp_path / "tune", ["fedper"], plan, **settings)
    assert advance(tuning)
    (found,) = results(tuning)
    assert [trial.failed is None for trial in found.trials] == [False, True]
    assert (found.metric, found.larger, found.percent) == ("mse", False, False)
    assert found.validation > 0


MINE = """
from stratafl.algorithms import local

def mine():
    return local()

def cost(y_true, y_score):
    return float((y_score.argmax(1) != y_true).mean())
"""


@pytest.mark.slow
def test_code_that_was_typed_is_trusted_by_every_process(tmp_path):
    (tmp_path / "own_code.py").write_text(MINE)
    command = [sys.executable, "-m", "stratafl", "tune", "--out=tune", "--jobs=2", "--trials=1", "--seeds=1"]
    command += ["--algorithms", "own_code:mine", "--set", "evaluate.metric=own_code:cost", "--only", "train.lr"]
    command += [f"--set={path}={json.dumps(value)}" for path, value in TUNING.items()]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "own_code:mine" in done.stdout


def test_what_cannot_be_tuned_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(DataError, match=r"fedavg .*data\.validation"):
        created(tmp_path / "a", **{"data.validation": 0.0})
    with pytest.raises(RecordError, match="flayer "):
        created(tmp_path / "a", ["flayer"], **{"flayer.preset": "official", "train.drop_last": True, "train.batch": 40})
    with pytest.raises(RecordError, match=r"evaluate\.\w+"):
        with_values(Experiment(), {"evaluate.select": "best", "evaluate.test": False})
    assert not (tmp_path / "a").exists()


def test_a_tuning_that_was_changed_is_not_continued(tmp_path):
    created(tmp_path / "tune", ["local"], TuningPlan(2, grids={"train.lr": [0.1, 0.2]}))
    advance(Tuning.open(tmp_path / "tune"), interrupted=iter([False] + [True] * 9).__next__)
    path = tmp_path / "tune" / "tune.toml"
    path.write_text(path.read_text().replace("batch = 400", "batch = 200"))
    with pytest.raises(RunError, match=r"train\.batch .*400 .*200"):
        Tuning.open(tmp_path / "tune")


def resumed(folder, *options):
    process = Command("resume", folder, *options, environment=ENVIRONMENT)
    printed, _ = outputs(process)
    assert process.returncode == 0, printed


@pytest.mark.slow
def test_killed_at_random_moments_it_makes_the_same_choices(tmp_path, undisturbed):
    folder, chance, kills = tmp_path / "tune", random.Random(0), 0
    created(folder)
    resumed(folder, "--jobs", 2)
    assert tuned(folder) == tuned(undisturbed)
    again = tmp_path / "killed"
    created(again)
    for _ in range(4):
        # A pair writes one to fifteen of more than a hundred files: so it is killed at work, however fast it is.
        files, more = count_files(again), chance.randint(1, 15)
        processes = [Command("resume", again, environment=ENVIRONMENT) for _ in range(2)]
        latest = time.monotonic() + 600
        while count_files(again) < files + more and all(each.poll() is None for each in processes):
            assert time.monotonic() < latest, "two processes wait for each other"
            time.sleep(0.001)
        for process in processes:
            end(process)
            kills += process.returncode == -signal.SIGKILL
    resumed(again)
    assert kills > 3
    assert tuned(again) == tuned(undisturbed)
    assert trials(again) == trials(undisturbed)
    assert len(list(again.glob("*/*/seed-1/predictions.safetensors"))) == 4  # of winners and untuned
    for journal in again.glob("**/aside-*/rounds.jsonl"):  # killed between its first line and the checkpoint
        before = lines(journal.parent, "rounds")
        assert before == lines(journal.parents[1], "rounds")[: len(before)]
