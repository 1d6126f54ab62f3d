"""Clients' memories on disk: the same lines and bits as in RAM, whatever is killed, damaged or cut."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest
import torch
from kill import outcome
from safetensors.torch import load_file
from test_kill import SETTINGS, finished

from stratafl import load
from stratafl.cli import main as strata
from stratafl.config.experiment import Experiment, with_settings
from stratafl.errors import RunError
from stratafl.runs import Run, checkpoint, read_run

SMALL = ["model.hidden=[8]", "data.clients=8", "data.partition=iid", "train.batch=40", "run.participation=0.25"]
DISK = ["run.store=disk", "run.checkpoint=1", "run.rounds=12"]
RECORD = (8 * 10 + 10) * 4  # bytes of a head
MEMORIES = "memories.bin"


def experiment(*more):
    return with_settings(Experiment(), [*SMALL, *DISK, *more])


def done(folder, *more, rounds=None):
    with Run.create(experiment(*more), folder) as run:
        for line in run.rounds():
            if line["round"] == rounds:
                break
    return folder


def resumed(folder):
    """The notes of a resumption, to the end."""
    with Run.open(folder) as run:
        for _ in run.rounds():
            pass
    return run.notes


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return outcome(done(tmp_path_factory.mktemp("undisturbed") / "run"))


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


@pytest.mark.parametrize("method", ["fedper", "fedrep", "flayer", "pfedla"])
def test_a_run_on_disk_has_the_lines_and_bits_of_one_in_ram(tmp_path, method):
    disk, ram = (
        outcome(done(tmp_path / store, f"algorithm.name={method}", f"run.store={store}", "run.rounds=4"))
        for store in ("disk", "ram")
    )
    for state in ("state", "selected"):
        disk[state].pop("memories/sums", None)
    assert disk == ram
    assert (tmp_path / "disk" / MEMORIES).exists()
    assert not (tmp_path / "ram" / MEMORIES).exists()


def test_what_is_chosen_is_in_the_record(tmp_path):
    done(tmp_path / "run", rounds=1)
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["store"] == "disk"


def test_a_checkpoint_is_the_server_and_an_index(tmp_path):
    state = load_file(newest(done(tmp_path / "run", rounds=2))[0] / "state.safetensors")
    assert not any(name.startswith("client/") for name in state)
    assert state["memories/slots"].shape == state["memories/sums"].shape == (8,)


def test_the_file_does_not_grow_over_fifty_rounds(tmp_path):
    folder = done(tmp_path / "run", "run.rounds=52")
    assert len(read_run(folder)[1].clients) == 8
    newest_and_at_work, selected = (
        8 + 3 * 2,
        2 * 8,
    )  # two generations and the round at work; of each, the selected round
    assert (folder / MEMORIES).stat().st_size <= (newest_and_at_work + selected) * RECORD


def test_a_run_is_loaded_without_being_touched(tmp_path):
    folder = done(tmp_path / "run")
    before = (folder / MEMORIES).stat().st_mtime_ns
    fitted = load(folder)
    assert fitted.predict(3, torch.zeros(2, 1, 8, 8)).shape == (2,)
    assert (folder / MEMORIES).stat().st_mtime_ns == before
    own = next(iter(fitted.progress.clients.values()))["theta"]
    with pytest.raises(RunError, match=f"cannot write '.*{MEMORIES}'"):
        fitted.progress.clients.updated([0], {"theta": {name: x[None] for name, x in own.items()}})


# Interrupted


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_a_run_that_was_left_is_resumed(tmp_path, undisturbed, rounds):
    folder = done(tmp_path / "run", rounds=rounds)
    assert resumed(folder) == []
    assert outcome(folder) == undisturbed


def test_an_older_generation_is_as_true_as_it_was(tmp_path, undisturbed):
    folder = done(tmp_path / "run", rounds=9)
    with Run.open(folder) as run:  # the slots of both generations must be known to who resumes
        next(run.rounds())
    (newest(folder)[0] / "manifest.json").write_text("{}")
    assert "continuing from the previous checkpoint, after round 9" in resumed(folder)
    assert outcome(folder) == undisturbed


def test_who_resumes_does_not_write_over_the_older_generation(tmp_path, undisturbed):
    folder = done(tmp_path / "run", rounds=9)
    run = Run.open(folder)
    run._due = lambda: False
    for _, _ in zip(range(3), run.rounds(), strict=False):  # three rounds, no checkpoint, no end
        pass
    os.close(run._lock)
    (newest(folder)[0] / "manifest.json").write_text("{}")
    assert "continuing from the previous checkpoint, after round 8" in resumed(folder)
    assert outcome(folder) == undisturbed


@pytest.mark.parametrize("lost", [0, 1])
def test_rounds_after_a_checkpoint_write_over_nothing_that_it_or_the_one_before_refers_to(tmp_path, undisturbed, lost):
    folder = tmp_path / "run"
    run = Run.create(experiment(), folder)
    for line in run.rounds():
        if line["round"] == 6:
            run._due = lambda: False
        if line["round"] == 10:
            break
    os.close(run._lock)  # as if it were killed
    for generation in newest(folder)[:lost]:
        (generation / "manifest.json").write_text("{}")
    assert len(resumed(folder)) == 2 * lost
    assert outcome(folder) == undisturbed


def test_records_reach_the_disk_before_the_checkpoint_that_refers_to_them(tmp_path, monkeypatch):
    run = Run.create(experiment("run.checkpoint=100"), tmp_path / "run")
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


@pytest.mark.slow
def test_a_run_killed_at_every_kind_of_moment_ends_like_one_that_was_not(tmp_path):
    settings = [*SETTINGS, "run.store=disk"]
    command = ["-m", "stratafl", "run", *(part for setting in settings for part in ("--set", setting)), "--out"]
    finished(*command, tmp_path / "whole")
    said = json.loads(finished(Path(__file__).with_name("kill.py"), tmp_path / "run", "0", *settings))
    aimed = Counter(aim.split(",")[0] for aim, _ in said["kills"])
    assert aimed["keeping"] >= 3  # before each record of a cohort
    assert aimed["settling"] >= 1
    assert aimed["half of a record"] == 1
    assert aimed["at some call"] >= 10
    assert said["code"] == 0
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")


# Damaged


def test_a_damaged_record_of_the_newest_checkpoint_costs_one_generation(tmp_path, undisturbed):
    folder = done(tmp_path / "run", rounds=9)
    flip(folder, only_in_the_newest(folder))
    notes = resumed(folder)
    assert "is damaged or written over" in notes[0]
    assert notes[1:] == ["continuing from the previous checkpoint, after round 8"]
    assert outcome(folder) == undisturbed


@pytest.mark.parametrize("damage", ["flip", "cut", "remove"])
def test_what_costs_both_generations_is_put_aside_and_done_again(tmp_path, undisturbed, damage):
    folder = done(tmp_path / "run", rounds=9)
    if damage == "flip":
        flip(folder, in_both(folder))
    elif damage == "cut":
        os.truncate(folder / MEMORIES, RECORD // 2)
    else:
        (folder / MEMORIES).unlink()
    notes = resumed(folder)
    assert "was cut" in notes[0] or "is damaged" in notes[0]
    assert "continuing from the beginning" in notes
    aside = next(folder.glob("aside-*"))
    assert (aside / "rounds.jsonl").exists()
    assert (aside / MEMORIES).exists()
    assert outcome(folder) == undisturbed


def test_damage_is_said_in_one_sentence_by_whoever_reads(tmp_path):
    folder = done(tmp_path / "run", rounds=3)
    os.truncate(folder / MEMORIES, 0)
    with pytest.raises(RunError, match=r"has no checkpoint to read: .* was cut: the state of client") as found:
        read_run(folder)
    assert "\n" not in str(found.value)


def test_damage_under_a_run_at_work_stops_it_in_one_sentence(tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(RunError, match="was cut"), Run.create(experiment(), folder) as run:  # noqa: PT012
        for line in run.rounds():
            if line["round"] == 3:
                os.truncate(folder / MEMORIES, 0)


def test_a_full_disk_stops_it_in_one_sentence_and_nothing_is_lost(tmp_path, monkeypatch, undisturbed):
    folder, write = tmp_path / "run", os.pwrite

    def full(handle, data, place):
        if len(run.history) == 5:
            raise OSError(28, "No space left on device")
        return write(handle, data, place)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RunError, match=f"{MEMORIES}': No space left"), Run.create(experiment(), folder) as run:
        for _ in run.rounds():
            pass
    monkeypatch.undo()
    assert resumed(folder) == []
    assert outcome(folder) == undisturbed


# The command


def test_a_limit_with_its_unit_is_kept_in_bytes(tmp_path, capsys):
    given = [part for setting in [*SMALL, *DISK, "run.rounds=1"] for part in ("--set", setting)]
    assert strata(["run", *given, "--memory-limit", "8GB", "--out", str(tmp_path / "run")]) == 0
    assert "memory_limit = 8000000000" in (tmp_path / "run" / "config.toml").read_text()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("8XB", "run.memory_limit must be a size such as 8GB, 500MB"),
        ("1MB", "data, model and libraries take"),
        ("", "run.memory_limit must be"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_limit_that_cannot_be_is_refused_in_one_line(tmp_path, capsys, command, given, says):
    assert strata([command, "--memory-limit", given, "--out", str(tmp_path / "run")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert says in lines[0]
    assert not (tmp_path / "run").exists()
