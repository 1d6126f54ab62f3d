"""Processes killed for real, again and again: the run ends with the bits of one that nobody disturbed."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from kill import EACH, outcome
from stored_runs import TINY, finished

import stratafl
from processes import Command, end, outputs, wait_until

pytestmark = pytest.mark.long
SETTINGS = [
    "model.name=mlp",
    "model.hidden=[8]",
    "model.norm=true",
    "data.clients=6",
    "data.partition=iid",
    "train.batch=40",
    "run.rounds=60",
    "run.participation=0.5",
    "run.checkpoint=1",
]
RUN = ["run", *(part for setting in SETTINGS for part in ("--set", setting)), "--out"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(stratafl.__file__).parents[1]), "OMP_NUM_THREADS": "1"}


def ended(*arguments):
    process = Command(*arguments, environment=ENVIRONMENT)
    printed, _ = outputs(process)
    assert process.returncode == 0, printed


def killed(*arguments):
    """What the driver that kills says."""
    command = [sys.executable, str(Path(__file__).with_name("kill.py")), *map(str, arguments)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    said, _ = outputs(process)
    assert process.returncode == 0
    return json.loads(said)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    ended(*RUN, folder)
    return outcome(folder)


def assert_same(folder, undisturbed):
    assert len(undisturbed["rounds"]) == 60
    disturbed = outcome(folder)
    for name, expected in undisturbed.items():
        assert disturbed[name] == expected, name
    begun = [entry["round"] for entry in json.loads((folder / "environment.json").read_text())["resumed"]]
    assert begun == sorted(begun)  # a round that was saved is never done again
    assert sorted(os.listdir(folder / "checkpoint")) == ["000059", "000060"]  # nothing damaged, nothing left over


@pytest.mark.slow
def test_a_run_killed_while_it_writes_a_line_and_while_it_saves_ends_like_one_that_was_not(tmp_path):
    given = [*TINY, "run.checkpoint=1"]
    said = killed(tmp_path / "run", "few", *given)
    assert [aim for aim, _ in said["kills"]] == ["half of clients", "in round 3", "saving, operation 5"]
    assert (said["code"], said["rounds"]) == (0, 2)
    assert outcome(tmp_path / "run") == outcome(finished())
    begun = [entry["round"] for entry in json.loads((tmp_path / "run" / "environment.json").read_text())["resumed"]]
    assert begun == [0, 2, 2]


@pytest.mark.slow
def test_a_run_killed_at_every_kind_of_moment_ends_like_one_that_was_not(tmp_path, undisturbed):
    said = killed(tmp_path / "run", "0", *SETTINGS)
    inside = Counter(during for aim, during in said["kills"] if aim == "at some call")
    for moment in ("training", "evaluation", "saving"):
        assert inside[moment] >= EACH
    aimed = Counter(aim.split(",")[0] for aim, _ in said["kills"])
    assert [aimed[f"half of {name}"] for name in ("rounds", "clients", "layers")] == [1, 1, 1]
    for moment in ("creating", "opening", "saving"):
        assert aimed[moment] >= 4
    assert said["code"] == 0
    assert said["rounds"] > 0
    assert_same(tmp_path / "run", undisturbed)


@pytest.mark.slow
def test_a_command_killed_while_it_runs_is_resumed_by_another(tmp_path, undisturbed):
    for attempt in range(5):  # a process that is done before it is killed shows nothing
        folder = tmp_path / f"run{attempt}"
        journal, process = folder / "rounds.jsonl", Command(*RUN, folder, environment=ENVIRONMENT)
        wait_until(lambda journal=journal: journal.exists() and journal.stat().st_size > 1_000, process)  # some rounds
        end(process)
        if process.returncode == -signal.SIGKILL:
            break
    assert process.returncode == -signal.SIGKILL
    ended("resume", folder)
    resumed = json.loads((folder / "environment.json").read_text())["resumed"]
    assert [0 <= entry["round"] < 60 for entry in resumed] == [True]
    assert_same(folder, undisturbed)
