"""`strata resume --rounds`: a run goes on beyond its end, as if it had been started with that many rounds."""

import json
import shutil

import pytest
from stored_runs import finish, finished, left, whole

from stratafl.errors import RunError
from stratafl.report.outcome import read_outcome
from stratafl.runs import Run
from stratafl.runs.directory import COMPARISON, CONFIG, ENVIRONMENT, EXTENDED
from stratafl.runs.extension import extend_run
from stratafl.runs.guard_files import read_guard
from stratafl.runs.json_files import read_lines


def lasting(folder):
    """What a run promises byte for byte: all but the environment and seconds, and the marks that follow from these."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    plain = [path for path in files if path.suffix in (".toml", ".safetensors", ".bin")]
    plain += [folder / "class_counts.json", folder / "preprocessing.json"]
    lines = [
        {key: value for key, value in line.items() if not key.startswith("seconds")}
        for name in ("rounds", "clients", "layers")
        for line in read_lines(folder / f"{name}.jsonl")
    ]
    return (
        {path.relative_to(folder): path.read_bytes() for path in plain},
        lines,
        [p.relative_to(folder) for p in files],
    )


def extended(folder, rounds):
    extend_run(folder, rounds)
    return finish(Run.open(folder)).folder


@pytest.mark.parametrize("method", ["fedper", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_a_run_that_is_extended_is_the_run_that_was_asked_for_at_once(method, tmp_path):
    run = shutil.copytree(finished(f"algorithm.name={method}"), tmp_path / "run")
    assert lasting(extended(run, 6)) == lasting(finished(f"algorithm.name={method}", "run.rounds=6"))
    assert read_outcome(run).rounds == 6
    (entry,) = json.loads((run / ENVIRONMENT).read_text())[EXTENDED]
    assert (entry["from"], entry["to"], entry["round"]) == (4, 6, 4)


@pytest.mark.slow
def test_guarded_and_on_disk_and_twice_and_after_an_interruption(tmp_path):
    settings = ("evaluate.guard=true", "run.store=disk", "run.participation=0.5")
    run = extended(left(tmp_path / "run", 2, *settings), 5)
    whole(tmp_path / "six", *settings, "run.rounds=6")
    assert lasting(extended(run, 6))[1] == lasting(tmp_path / "six")[1]
    assert read_guard(run).choices == read_guard(tmp_path / "six").choices


def test_a_kill_between_the_two_files_leaves_the_run_as_it_was(tmp_path):
    run = left(tmp_path / "run", 2)
    before = (run / CONFIG).read_bytes()
    extend_run(run, 6)
    (run / CONFIG).write_bytes(before)
    assert finish(Run.open(run)).progress.t == 4
    (run / CONFIG).write_bytes(before.replace(b"rounds = 4", b"rounds = 5"))
    with pytest.raises(RunError, match=r"run\.rounds"):
        Run.open(run)


def _in_comparison(run):
    (run.parent / COMPARISON).write_text("")


@pytest.mark.parametrize(
    ("settings", "rounds", "change", "value"),
    [
        ((), 3, None, "4"),
        ((), 0, None, "4"),
        (("train.schedule=cosine",), 6, None, "6"),
        ((), 6, _in_comparison, "comparison"),
        (("stop.patience=1", "train.lr=1e-9", "run.rounds=9"), 12, None, "stopped"),
    ],
    ids=["fewer", "none", "cosine", "of a comparison", "stopped"],
)
def test_what_cannot_be_extended_is_one_line_and_stays_as_it_is(settings, rounds, change, value, tmp_path):
    run = shutil.copytree(finished(*settings), tmp_path / "run")
    if change:
        change(run)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match=value) as error:
        extend_run(run, rounds)
    assert "\n" not in str(error.value)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
