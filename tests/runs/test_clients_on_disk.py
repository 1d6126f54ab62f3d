"""Client states on disk: the same lines and bits as in RAM, whatever is killed, damaged or cut."""

import json
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from kill import outcome
from safetensors.torch import load_file
from stored_runs import TINY, experiment, finished, left
from test_kill import SETTINGS, ended, killed

from stratafl import load
from stratafl.cli import main as strata
from stratafl.errors import RunError
from stratafl.runs import Run, checkpoint, read_run

DISK = ("data.clients=8", "run.participation=0.25", "run.store=disk", "run.rounds=8", "evaluate.every=4")
RECORD = (8 * 10 + 10) * 4  # bytes of a head
MEMORIES = "memories.bin"


def done(folder, *more, rounds=None):
    given = (*DISK, *more)
    return shutil.copytree(finished(*given), folder) if rounds is None else left(folder, rounds, *given)


def resumed(folder):
    """The notes of a resumption, to the end."""
    with Run.open(folder) as run:
        for _ in run.rounds():
            pass
    return run.notes


@pytest.fixture(scope="module")
def undisturbed():
    return outcome(finished(*DISK))


def newest(folder):
    return checkpoint.generations(folder / "checkpoint")


def slots(generation):
    return load_file(generation / "state.safetensors")["memories/slots"]


def flip(folder, slot):
    with (folder / MEMORIES).open("r+b") as file:
        file.seek(slot * RECORD + 17)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


def only_in_the_newest(folder):
    last, before = (set(slots(generation).tolist()) for generation in newest(folder))
    return max(last - before)


def in_both(folder):
    last, before = (set(slots(generation).tolist()) - {-1} for generation in newest(folder))
    return min(last & before)


# As in RAM


@pytest.mark.parametrize(
    "method", ["fedper", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedrep", "flayer", "pfedla"))]
)
def test_a_run_on_disk_has_the_lines_and_bits_of_one_in_ram(method):
    settings = ("data.clients=8", "run.participation=0.25", f"algorithm.name={method}")
    folders = {store: finished(*settings, f"run.store={store}") for store in ("disk", "ram")}
    disk, ram = (outcome(folder) for folder in folders.values())
    for state in ("state", "selected"):
        disk[state].pop("memories/sums", None)
    assert disk == ram
    assert (folders["disk"] / MEMORIES).exists()
    assert not (folders["ram"] / MEMORIES).exists()
    assert json.loads((folders["disk"] / "environment.json").read_text())["store"] == "disk"


def test_a_checkpoint_is_the_server_and_an_index():
    state = load_file(newest(finished(*DISK))[0] / "state.safetensors")
    assert not any(name.startswith("client/") for name in state)
    assert state["memories/slots"].shape == state["memories/sums"].shape == (8,)


@pytest.mark.slow
def test_the_file_does_not_grow_over_fifty_rounds():
    folder = finished(*DISK, "run.rounds=52")
    assert len(read_run(folder)[1].clients) == 8
    newest_and_at_work, selected = (
        8 + 3 * 2,
        2 * 8,
    )  # two generations and the round at work; of each, the selected round
    assert (folder / MEMORIES).stat().st_size <= (newest_and_at_work + selected) * RECORD


def test_a_run_is_loaded_without_being_touched():
    folder = finished(*DISK)
    before = (folder / MEMORIES).stat().st_mtime_ns
    fitted = load(folder)
    assert fitted.client(3).predict(torch.zeros(2, 1, 8, 8)).shape == (2,)
    assert (folder / MEMORIES).stat().st_mtime_ns == before
    own = next(iter(fitted.progress.clients.values()))["theta"]
    with pytest.raises(RunError, match=f"cannot write '.*{MEMORIES}'"):
        fitted.progress.clients.updated([0], {"theta": {name: x[None] for name, x in own.items()}})


# Interrupted


@pytest.mark.parametrize(
    "rounds", [pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow), 6]
)
@pytest.mark.budget(1.2, "a run, and the run that the others read")
def test_a_run_that_was_left_is_resumed(tmp_path, undisturbed, rounds):
    folder = done(tmp_path / "run", rounds=rounds)
    assert resumed(folder) == []
    assert outcome(folder) == undisturbed


@pytest.mark.slow
def test_an_older_generation_is_as_true_as_it_was(tmp_path, undisturbed):
    folder = done(tmp_path / "run", rounds=6)
    with Run.open(folder) as run:  # the slots of both generations must be known to who resumes
        next(run.rounds())
    (newest(folder)[0] / "manifest.json").write_text("{}")
    assert resumed(folder)[-1].endswith(" 6")
    assert outcome(folder) == undisturbed


@pytest.mark.slow
def test_who_resumes_does_not_write_over_the_older_generation(tmp_path, undisturbed):
    folder = done(tmp_path / "run", rounds=5)
    run = Run.open(folder)
    run._due = lambda: False
    for _, _ in zip(range(2), run.rounds(), strict=False):  # two rounds, no checkpoint, no end
        pass
    os.close(run._lock)
    (newest(folder)[0] / "manifest.json").write_text("{}")
    assert resumed(folder)[-1].endswith(" 4")
    assert outcome(folder) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("lost", [0, 1])
def test_rounds_after_a_checkpoint_write_over_nothing_that_it_or_the_one_before_refers_to(tmp_path, undisturbed, lost):
    folder = tmp_path / "run"
    run = Run.create(experiment(*DISK), folder)
    for line in run.rounds():
        if line["round"] == 4:
            run._due = lambda: False
        if line["round"] == 7:
            break
    os.close(run._lock)  # as if it were killed
    for generation in newest(folder)[:lost]:
        (generation / "manifest.json").write_text("{}")
    assert len(resumed(folder)) == 2 * lost
    assert outcome(folder) == undisturbed


def test_records_reach_the_disk_before_the_checkpoint_that_refers_to_them(tmp_path, monkeypatch):
    run = Run.create(experiment(*DISK, "run.checkpoint=100"), tmp_path / "run")
    next(run.rounds())
    events, rename, sync = [], os.replace, os.fsync

    def synced(handle):
        events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        sync(handle)

    def renamed(path, target, **handles):
        events.append(f"→ {Path(target).name}")
        return rename(path, target, **handles)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", renamed)
    run.close()
    assert events.index(MEMORIES) < events.index("→ 000001")


@pytest.mark.nightly
@pytest.mark.parametrize("moments", ["disk", "0"], ids=["disk", "every"])
def test_a_run_killed_at_every_kind_of_moment_ends_like_one_that_was_not(tmp_path, moments):
    settings = [*SETTINGS, "run.store=disk"]
    command = ["run", *(part for setting in settings for part in ("--set", setting)), "--out"]
    ended(*command, tmp_path / "whole")
    said = killed(tmp_path / "run", moments, *settings)
    aimed = Counter(aim.split(",")[0] for aim, _ in said["kills"])
    assert aimed["keeping"] >= 3  # before each record of a cohort
    assert aimed["settling"] >= 1
    assert aimed["half of a record"] == 1
    assert moments == "disk" or aimed["at some call"] >= 10
    assert said["code"] == 0
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


# Damaged


def test_a_damaged_record_of_the_newest_checkpoint_costs_one_generation(tmp_path, undisturbed):
    folder = done(tmp_path / "run", rounds=6)
    flip(folder, only_in_the_newest(folder))
    damaged, goes_on = resumed(folder)
    assert "000006'" in damaged
    assert goes_on.endswith(" 5")
    assert outcome(folder) == undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_what_costs_both_generations_is_put_aside_and_done_again(tmp_path, undisturbed, damage):
    folder = done(tmp_path / "run", rounds=6)
    if damage == "flip":
        flip(folder, in_both(folder))
    elif damage == "cut":
        os.truncate(folder / MEMORIES, RECORD // 2)
    else:
        (folder / MEMORIES).unlink()
    assert len(resumed(folder)) == 4  # two damaged generations, from where it goes on, and what is put aside
    aside = next(folder.glob("aside-*"))
    assert (aside / "rounds.jsonl").exists()
    assert (aside / MEMORIES).exists()
    assert outcome(folder) == undisturbed


def test_damage_is_said_in_one_sentence_by_whoever_reads(tmp_path):
    folder = done(tmp_path / "run", rounds=6)
    os.truncate(folder / MEMORIES, 0)
    with pytest.raises(RunError, match=rf"'{folder}'.*000006'.*{MEMORIES}") as found:
        read_run(folder)
    assert "\n" not in str(found.value)


def test_damage_under_a_run_at_work_stops_it_in_one_sentence(tmp_path):
    folder = done(tmp_path / "run", rounds=6)
    with pytest.raises(RunError, match=MEMORIES), Run.open(folder) as run:  # noqa: PT012
        os.truncate(folder / MEMORIES, 0)
        list(run.rounds())


def test_a_full_disk_stops_it_in_one_sentence_and_nothing_is_lost(tmp_path, monkeypatch, undisturbed):
    folder = done(tmp_path / "run", rounds=6)

    def full(handle, data, place):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunError, match=f"{MEMORIES}': No space left"), Run.open(folder) as run:
        list(run.rounds())
    monkeypatch.undo()
    assert resumed(folder) == []
    assert outcome(folder) == undisturbed


# The command


def test_a_limit_with_its_unit_is_kept_in_bytes(tmp_path, capsys):
    given = [part for setting in [*TINY, *DISK, "run.rounds=1"] for part in ("--set", setting)]
    assert strata(["run", *given, "--memory-limit", "8GB", "--out", str(tmp_path / "run")]) == 0
    assert "memory_limit = 8000000000" in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("given", "says"),
    [("8XB", "run.memory_limit"), ("1MB", " 1MB"), ("", "run.memory_limit")],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_limit_that_cannot_be_is_refused_in_one_line(tmp_path, capsys, command, given, says):
    assert strata([command, "--memory-limit", given, "--out", str(tmp_path / "run")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert says in lines[0]
    assert not (tmp_path / "run").exists()
