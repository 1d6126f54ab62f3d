"""Checkpoints: exact, two generations, damage found and put aside, never written in place."""

import json
import os
import stat
from pathlib import Path

import pytest
import torch

from stratafl.errors import RunError
from stratafl.runs import checkpoint
from stratafl.runs.checkpoint import MANIFEST, STATE, Checkpoint, find, generations, save, tidy
from stratafl.runs.json_files import JournalMark

STATES = {
    "server/theta/fc.weight": torch.tensor([[0.1, -0.0], [float("nan"), float("inf")]]),
    "server/theta/fc.bias": torch.tensor([1 / 3, 5e-324], dtype=torch.float64),
    "server/count": torch.tensor([2**62 + 1, -1]),
    "client/3/mask": torch.tensor([True, False, True]),
    "client/3/half": torch.tensor([0.1, 3e-38]).bfloat16(),
    "client/3/nothing": torch.empty(0, 4),
    "t": torch.tensor(7),
}


MARKS = {"rounds": JournalMark(12, "0123abcd"), "clients": JournalMark(0, "00000000")}


def of_round(number, **journals):
    marks = {name: JournalMark(size, "00c0ffee") for name, size in journals.items()}
    return Checkpoint(number, {"t": torch.tensor(number), "x": torch.arange(200) * number}, marks)


def saved(folder, *numbers):
    for number in numbers:
        save(folder, of_round(number, rounds=100 * number))


def names(folder):
    return sorted(os.listdir(folder))


def bits(tensor):
    return tensor.dtype, tensor.shape, tensor.contiguous().view(-1).view(torch.uint8).tolist()


def truncate(generation):
    os.truncate(generation / STATE, (generation / STATE).stat().st_size - 1)


def empty(generation):
    os.truncate(generation / STATE, 0)


def flip(generation):
    data = bytearray((generation / STATE).read_bytes())
    data[-5] ^= 1  # inside the last tensor: only the checksum can tell
    (generation / STATE).write_bytes(data)


def edit_manifest(generation):
    manifest = json.loads((generation / MANIFEST).read_text())
    manifest["journals"]["rounds"] -= 1
    (generation / MANIFEST).write_text(json.dumps(manifest))


def tear_manifest(generation):
    os.truncate(generation / MANIFEST, (generation / MANIFEST).stat().st_size // 2)


def lose_manifest(generation):
    (generation / MANIFEST).unlink()


def lose_state(generation):
    (generation / STATE).unlink()


def lose_both(generation):
    lose_state(generation)
    lose_manifest(generation)


DAMAGES = [truncate, empty, flip, edit_manifest, tear_manifest, lose_manifest, lose_state, lose_both]
each_damage = pytest.mark.parametrize("damage", DAMAGES)


def test_tensors_come_back_bit_by_bit(tmp_path):
    save(tmp_path, Checkpoint(7, STATES, MARKS))
    found = find(tmp_path)
    assert found.complaints == []
    assert found.checkpoint.round == 7
    assert found.checkpoint.journals == MARKS
    assert {name: bits(x) for name, x in found.checkpoint.tensors.items()} == {n: bits(x) for n, x in STATES.items()}


def test_views_and_tensors_that_learn_are_saved_as_they_look(tmp_path):
    whole = torch.arange(12.0).view(3, 4)
    save(tmp_path, Checkpoint(1, {"turned": whole.T, "row": torch.ones(3, requires_grad=True)}, {}))
    tensors = find(tmp_path).checkpoint.tensors
    assert torch.equal(tensors["turned"], whole.T)
    assert not tensors["row"].requires_grad


def test_nothing_saved_is_nothing_found(tmp_path):
    for folder in (tmp_path, tmp_path / "checkpoint"):
        found = find(folder)
        assert (found.checkpoint, found.complaints) == (None, [])
        tidy(folder, found)


def test_two_generations_are_kept_and_the_third_is_gone(tmp_path):
    saved(tmp_path, 1)
    assert names(tmp_path) == ["000001"]
    saved(tmp_path, 2)
    assert names(tmp_path) == ["000001", "000002"]
    saved(tmp_path, 10)
    assert names(tmp_path) == ["000002", "000010"]
    assert find(tmp_path).checkpoint.round == 10


def test_rounds_are_ordered_as_numbers(tmp_path):
    saved(tmp_path, 999_999, 1_000_000)
    assert find(tmp_path).checkpoint.round == 1_000_000
    assert [path.name for path in generations(tmp_path)] == ["1000000", "999999"]


@each_damage
def test_damage_is_found_and_the_previous_generation_taken(tmp_path, damage):
    saved(tmp_path, 1, 2)
    damage(tmp_path / "000002")
    found = find(tmp_path)
    assert found.checkpoint.round == 1
    assert found.checkpoint.journals == {"rounds": JournalMark(100, "00c0ffee")}
    assert torch.equal(found.checkpoint.tensors["x"], torch.arange(200))
    assert len(found.complaints) == 1
    assert "000002" in found.complaints[0]
    assert "\n" not in found.complaints[0]


@each_damage
def test_damage_of_both_generations_leaves_nothing_to_go_on_from(tmp_path, damage):
    saved(tmp_path, 1, 2)
    damage(tmp_path / "000002")
    damage(tmp_path / "000001")
    found = find(tmp_path)
    assert found.checkpoint is None
    assert [f"00000{n}" in complaint for n, complaint in zip((2, 1), found.complaints, strict=True)] == [True, True]


def test_damage_of_the_older_generation_does_not_matter(tmp_path):
    saved(tmp_path, 1, 2)
    flip(tmp_path / "000001")
    found = find(tmp_path)
    assert (found.checkpoint.round, found.complaints) == (2, [])


@each_damage
def test_damaged_generations_are_put_aside_and_never_deleted(tmp_path, damage):
    saved(tmp_path, 1, 2)
    damage(tmp_path / "000002")
    remains = {path.name: path.read_bytes() for path in (tmp_path / "000002").iterdir()}
    tidy(tmp_path, find(tmp_path))
    assert find(tmp_path).complaints == []
    saved(tmp_path, 2, 3, 4)
    aside = list(tmp_path.glob("damaged-000002-*"))
    assert len(aside) == 1
    assert {path.name: path.read_bytes() for path in aside[0].iterdir()} == remains
    assert [path.name for path in generations(tmp_path)] == ["000004", "000003"]


def test_the_same_round_damaged_twice_is_put_aside_twice(tmp_path):
    for _ in range(2):
        saved(tmp_path, 2)
        flip(tmp_path / "000002")
        tidy(tmp_path, find(tmp_path))
    assert len(list(tmp_path.glob("damaged-000002-*"))) == 2
    assert generations(tmp_path) == []


def test_remains_of_an_interrupted_save_are_never_read_and_removed_by_tidy(tmp_path):
    saved(tmp_path, 1)
    (tmp_path / "000001").rename(tmp_path / ".partial-abc")
    saved(tmp_path, 2)
    found = find(tmp_path)
    assert (found.checkpoint.round, found.complaints) == (2, [])
    tidy(tmp_path, found)
    assert names(tmp_path) == ["000002"]


@pytest.mark.parametrize("step", ["save_file", "fsync", "_file_digest", "write_json", "atomically"])
def test_a_save_that_fails_at_any_step_leaves_the_old_generations(tmp_path, monkeypatch, step):
    saved(tmp_path, 1, 2)

    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if step == "fsync" else checkpoint, step, fail)
    with pytest.raises(RunError, match=r"000003': No space left"):
        saved(tmp_path, 3)
    monkeypatch.undo()
    assert names(tmp_path) == ["000001", "000002"]
    assert find(tmp_path).checkpoint.round == 2


def test_a_generation_appears_only_when_all_of_it_is_on_the_disk(tmp_path, monkeypatch):
    saved(tmp_path, 1)
    events, rename, sync = [], os.replace, os.fsync

    def renamed(path, target, **handles):
        events.append(f"rename to {Path(target).name}")
        return rename(path, target, **handles)

    def synced(handle):
        events.append("sync folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "sync file")
        sync(handle)

    monkeypatch.setattr(os, "replace", renamed)
    monkeypatch.setattr(os, "fsync", synced)
    saved(tmp_path, 2)
    synced = ["sync file", "sync file", "rename to manifest.json", "sync folder"]
    assert events == [*synced, "rename to 000002", *["sync folder"] * 2]


def test_the_older_generation_is_not_touched_by_a_save(tmp_path):
    def look(generation):
        files = sorted(generation.iterdir())
        return [(f.name, f.stat().st_ino, f.stat().st_mtime_ns, f.stat().st_ctime_ns, f.read_bytes()) for f in files]

    saved(tmp_path, 1, 2)
    before = look(tmp_path / "000002")
    saved(tmp_path, 3)
    assert look(tmp_path / "000002") == before
    assert names(tmp_path) == ["000002", "000003"]


def test_what_was_loaded_outlives_the_file(tmp_path):
    saved(tmp_path, 1)
    tensors = find(tmp_path).checkpoint.tensors
    saved(tmp_path, 2, 3)
    assert not (tmp_path / "000001").exists()
    assert torch.equal(tensors["x"], torch.arange(200))
