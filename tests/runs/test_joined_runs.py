"""Runs of a comparison, joined: their directories are those of runs alone, also after kills and Ctrl-C."""

import random
import signal
from contextlib import suppress

import pytest
from kill import outcome
from test_kill import ENVIRONMENT

from processes import Command, end, outputs, wait_until
from stratafl.runs import Comparison, Run

pytestmark = pytest.mark.slow
METHODS, SEEDS, ROUNDS = ("local", "fedavg", "fedrep"), 2, 6
SETTINGS = {
    **{"model.name": "mlp", "model.hidden": [8], "model.norm": True, "data.clients": 6, "data.partition": "iid"},
    **{"train.batch": 40, "run.rounds": ROUNDS, "run.participation": 0.5, "run.checkpoint": 2},
}
GIVEN = [part for key, value in SETTINGS.items() for part in ("--set", f"{key}={str(value).lower()}")]
COMPARE = ["compare", "--algorithms", ",".join(METHODS), "--seeds", str(SEEDS), *GIVEN, "--out"]


def finished(*arguments):
    process = Command(*arguments, environment=ENVIRONMENT)
    said, _ = outputs(process)
    assert process.returncode == 0, said
    return said


def outcomes(folder):
    return {f"{m}/{s}": outcome(folder / m / f"seed-{s}") for m in METHODS for s in range(SEEDS)}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The runs of the comparison, one after the other."""
    folder, found = tmp_path_factory.mktemp("alone"), {}
    finished(*COMPARE, folder / "c")
    for member in Comparison.read(folder / "c").members():
        with Run.create(member.experiment, folder / f"{member.method}-{member.seed}") as run:
            assert len(list(run.rounds())) == ROUNDS
        found[f"{member.method}/{member.seed}"] = outcome(run.folder)
    assert outcomes(folder / "c") == found
    return found


def test_joined_runs_write_what_runs_alone_write(alone):
    assert len(alone) == len(METHODS) * SEEDS  # the fixture has compared them


def test_after_one_ctrl_c_all_are_saved_and_continued(tmp_path, alone):
    folder = tmp_path / "c"
    process = Command(*COMPARE, folder, environment=ENVIRONMENT)
    journals = [folder / m / f"seed-{s}" / "rounds.jsonl" for m in METHODS for s in range(SEEDS)]
    wait_until(lambda: all(path.exists() and path.stat().st_size for path in journals), process)
    process.send_signal(signal.SIGINT)
    said, _ = outputs(process)
    if process.returncode != 0:  # else it was done before
        assert process.returncode == 130, said
        assert f"strata resume {folder}" in said.replace("\n", " ")
        finished("resume", folder)
    assert outcomes(folder) == alone


def test_killed_again_and_again_they_end_as_if_nothing_had_been(tmp_path, alone):
    folder, command = tmp_path / "c", [*COMPARE, tmp_path / "c"]
    for lines in sorted(random.Random(0).sample(range(1, len(METHODS) * SEEDS * ROUNDS), 5)):
        process = Command(*command, environment=ENVIRONMENT)
        wait_until(lambda lines=lines: written(folder) >= lines, process)
        end(process)
        command = ["resume", folder]
    finished(*command)
    assert outcomes(folder) == alone


def written(folder):
    """Lines that all runs have written; a run that begins again without a checkpoint moves its file aside."""
    lines = 0
    for path in folder.glob("*/seed-*/rounds.jsonl"):
        with suppress(FileNotFoundError):
            lines += path.read_bytes().count(b"\n")
    return lines


def test_two_processes_share_the_runs(tmp_path, alone):
    finished(*COMPARE, tmp_path / "c", "--jobs", "2")
    assert outcomes(tmp_path / "c") == alone
