"""`strata advise`: prints the answer and the command to type next, writes its files, and refuses in one line."""

import json

import pytest

pytestmark = pytest.mark.usefixtures("own_cache")
SHORT = ("--rounds", 4, "--set", "train.batch=50", "--set", "data.clients=4")


@pytest.mark.slow
def test_it_answers_and_writes_what_to_run(strata, place):
    options = ("--metric", "balanced_accuracy", "--budget", 0.4)
    result = strata("advise", "digits", *SHORT, *options, "--out", place / "advice")
    assert result.code == 0
    assert result.out.startswith(("Federate with", "Train alone"))
    assert "points of balanced accuracy" in result.out
    assert "strata run --config" in result.out
    stored = json.loads((place / "advice" / "advice.json").read_text())
    assert stored["metric"] == "balanced_accuracy"
    assert stored["budget"]["client_steps"] <= stored["budget"]["allowed"]
    again = strata("advise", "digits", *SHORT, *options, "--out", place / "advice")
    assert again.code == 2
    assert "advice" in again.err


@pytest.mark.slow
def test_a_single_client_is_refused_in_one_line(strata):
    result = strata("advise", "digits", "--set", "data.clients=1", "--set", "data.partition=iid")
    assert result.code == 2
    assert "1" in result.err
    assert len(result.err.strip().splitlines()) == 1
