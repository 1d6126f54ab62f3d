"""`strata tune`, and what uses its result."""

import json
import re

import pytest
import tomli_w
from cli_helpers import SMALL

from stratafl.config.experiment import Experiment
from stratafl.config.migrations import FORMAT
from stratafl.tuning import Tuning, TuningPlan

TUNE = ("tune", "-a", "local", "--grid", "train.lr=0.01,0.3,3", "-t", 3, "-r", 2, *SMALL, "--seeds", 1)


@pytest.mark.slow
def test_a_tuning_is_reported_resumed_and_used(strata, place):
    made = strata(*TUNE, "--out", "tune")
    assert made.code == 0, made.err
    assert "local: 3 trials of train.lr (3 values)" in made.err
    assert "3 for 1 round → 2 for 2" in made.err
    assert "train.lr=0.3" in made.out
    assert "strata report tune" in made.out
    assert "strata compare --tuned tune --seeds 10" in made.out
    assert max(map(len, made.out.splitlines())) <= 80
    assert (place / "tune/report.html").exists()
    before = {path: path.read_bytes() for path in (place / "tune").glob("**/*.jsonl")}
    again = strata("resume", "tune")
    assert again.code == 0, again.err
    assert again.out.splitlines()[:6] == made.out.splitlines()[:6]
    assert {path: path.read_bytes() for path in (place / "tune").glob("**/*.jsonl")} == before
    ranked = strata("report", "tune")
    assert "local" in ranked.out
    assert "train.lr" not in ranked.out  # of each method only what was chosen, no trial
    used = strata("compare", "--tuned", "tune", "-a", "local", "-r", 1, "--out", "used", "--seeds", 1)
    assert used.code == 0, used.err
    assert re.search(r"'tune' .*run\.rounds = 2 .*\b1\b", used.err)
    found = json.loads((place / "used/local/seed-1/environment.json").read_text())["identity"]["config"]
    assert (found["train"]["lr"], found["run"]["rounds"], found["data"]["clients"]) == (0.3, 1, 4)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--set", "data.validation=0"), ("local", "data.validation")),
        (("--only", "train.rl"), ("'train.rl'", "'train.lr'")),
        (("--trials", "2"), ("3", "--trials 2")),
        (("--sampler", "tpe"), "--grid"),
        (("--budget", "step"), ("'step'", "'steps'")),
        (("--set", "nosuch.lr=1"), "'nosuch'"),
    ],
)
def test_what_cannot_be_tuned_is_one_line(refused, arguments, says):
    refused(*TUNE, *arguments, says=says)


def test_the_result_of_a_tuning_that_is_not_there_is_one_line(refused):
    refused("compare", "--tuned", "nowhere", says=("'nowhere'", "tune.toml"))


def test_the_report_of_a_tuning_that_was_stopped_says_how_to_continue(refused, place):
    Tuning.create(place / "tune", Experiment(), ["local"], {"data.clients": 4}, TuningPlan(2))
    refused("report", "tune", says=("'tune'", "'strata resume tune'"))


def test_code_that_a_tuning_names_was_not_typed(refused, place):
    (place / "evil.py").write_text("raise SystemExit('imported')")
    methods = {"evil:build": {"settings": {}}}
    made = Tuning(place / "tune", Experiment(), list(methods), {"evil:build": {}}, TuningPlan(), 1)
    (place / "tune").mkdir()
    (place / "tune/tune.toml").write_text(tomli_w.dumps(made._tables()))
    (place / "tune/tuned.toml").write_text(tomli_w.dumps({"tuned": {"format": FORMAT, "methods": methods}}))
    refused("compare", "--tuned", "tune", says=("'tune/tune.toml'", "'evil:build'"))


@pytest.mark.slow
def test_a_recipe_tunes_its_rows_and_runs_the_ones_asked_for(strata, place):
    (place / "mine.toml").write_text(
        """
        title = "mine"
        protocol = "pfllib"
        tuned = true
        settings = { "data.clients" = 4, "data.partition" = "iid", "train.batch" = 50, "model.hidden" = [8] }
        columns = [{ name = "here, there" }, { name = "elsewhere", settings = { "data.clients" = 3 } }]
        [[rows]]
        name = "FedAvg"
        settings = { "algorithm.name" = "fedavg" }
        [[rows]]
        name = "Local"
        settings = { "algorithm.name" = "local" }
        [scales.smoke]
        settings = { "run.rounds" = 2 }
        trials = 3
        [[claims]]
        says = "Local is better"
        kind = "above"
        row = "Local"
        than = "FedAvg"
        """
    )
    asked = ("reproduce", "mine.toml", "--columns", "here, there", "--out", "out")
    part = strata(*asked, "--rows", "Local")
    assert part.code == 0, part.err
    assert "Local, here, there: 3 trials" in part.err
    assert "row FedAvg, column elsewhere" in " ".join(part.out.split())
    whole = strata(*asked)
    assert whole.code == 0, whole.err
    assert "Local" not in whole.err  # it has been tuned
    text = (place / "out/own-mine-smoke-tuned/result.md").read_text()
    assert "- Local, here, there: train.lr=" in text
    assert "data.validation=0.1" in text
    runs = sorted((place / "out/runs").iterdir())
    assert len(runs) == 2
    assert all("test.received.loss" in (run / "rounds.jsonl").read_text() for run in runs)
    trials = list((place / "out/tuning").glob("*/0*/rounds.jsonl"))
    assert len(trials) >= 6
    assert not any("test." in trial.read_text() for trial in trials)


def test_an_unknown_row_is_refused(refused):
    refused("reproduce", "flayer/table4", "--rows", "nosuch", says="'nosuch'")
