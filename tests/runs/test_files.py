"""Files that are whole or not there, and journals: what survives a failure while writing."""

import os

import pytest

from stratafl.errors import RunError
from stratafl.files import write_atomically
from stratafl.runs.directory import new_folder
from stratafl.runs.json_files import Journal, read_json, read_lines, write_json


def fail_when_syncing(monkeypatch):
    def refuse(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)


def lines(count, first=0):
    return [{"round": number, "loss": number / 3} for number in range(first, first + count)]


# Whole files


def test_a_file_is_written_and_written_again(tmp_path):
    path = tmp_path / "table.csv"
    for data in (b"first, and longer than the second", b"second"):
        write_atomically(path, data)
        assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["table.csv"]


@pytest.mark.parametrize("step", ["sync", "rename"])
def test_a_failing_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, step):
    path = tmp_path / "environment.json"
    write_atomically(path, b"old")
    if step == "sync":
        fail_when_syncing(monkeypatch)
    else:
        full = OSError(28, "No space left on device")
        monkeypatch.setattr(os, "replace", lambda *_, **__: (_ for _ in ()).throw(full))
    with pytest.raises(RunError, match=r"environment\.json': No space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["environment.json"]


def test_whoever_reads_while_a_file_is_written_sees_the_old_one(tmp_path, monkeypatch):
    path, seen = tmp_path / "environment.json", []
    write_atomically(path, b"old")
    sync = os.fsync

    def look(handle):
        seen.append(path.read_bytes())
        sync(handle)

    monkeypatch.setattr(os, "fsync", look)
    write_atomically(path, b"new")
    assert seen == [b"old", b"new"]  # the file, then, under its name, its folder


def test_a_folder_that_is_not_there_is_said_in_one_sentence(tmp_path):
    with pytest.raises(RunError, match=r"nowhere/x': No such file"):
        write_atomically(tmp_path / "nowhere" / "x", b"")


def test_json_comes_back_and_numbers_that_json_does_not_know_are_refused(tmp_path):
    path = tmp_path / "x.json"
    value = {"b": [1, 0.1, None], "a": {"ä": True}}
    write_json(path, value)
    assert read_json(path) == value
    with pytest.raises(ValueError, match="JSON"):
        write_json(path, {"loss": float("nan")})
    assert read_json(path) == value


@pytest.mark.parametrize("data", [b"", b'{"a": 1', b"[1]", b"\xff\xfe"])
def test_damaged_json_is_refused(tmp_path, data):
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(RunError, match="is damaged"):
        read_json(path)


# Folders that appear


def test_a_folder_appears_when_it_is_complete(tmp_path):
    folder = tmp_path / "runs" / "first"
    with new_folder(folder) as partial:
        (partial / "config.toml").write_text("x = 1")
        assert not folder.exists()
    assert (folder / "config.toml").read_text() == "x = 1"
    assert os.listdir(folder.parent) == ["first"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_folder_that_fails_leaves_nothing(tmp_path, error):
    def fill():
        with new_folder(tmp_path / "first") as partial:
            (partial / "config.toml").write_text("x = 1")
            raise error

    with pytest.raises(error):
        fill()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_somebody_else_made_meanwhile_is_left_alone(tmp_path):
    folder = tmp_path / "first"

    def fill():
        with new_folder(folder):
            folder.mkdir()
            (folder / "config.toml").write_text("theirs")

    with pytest.raises(RunError, match="cannot create"):
        fill()
    assert (folder / "config.toml").read_text() == "theirs"
    assert os.listdir(tmp_path) == ["first"]


# Journals


def test_a_journal_grows_and_knows_its_length(tmp_path):
    path = tmp_path / "rounds.jsonl"
    journal = Journal(path)
    assert journal.size == 0
    journal.append(lines(2))
    journal.append([])
    journal.append(lines(1, 2))
    assert journal.size == path.stat().st_size
    assert read_lines(path) == lines(3)
    assert Journal(path).size == journal.size


def test_a_journal_is_cut_to_what_was_committed(tmp_path):
    path = tmp_path / "rounds.jsonl"
    journal = Journal(path)
    journal.append(lines(2))
    committed = journal.size
    journal.append(lines(2, 2))
    journal.cut(committed)
    assert journal.size == committed == path.stat().st_size
    journal.append(lines(1, 7))
    assert read_lines(path) == [*lines(2), *lines(1, 7)]


def test_cutting_drops_what_a_failed_write_left_and_reaches_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "rounds.jsonl"
    journal = Journal(path)
    journal.append(lines(2))
    path.write_bytes(path.read_bytes() + b'{"round": 2, "lo')
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_size), sync(handle)))
    journal.cut(journal.size)
    assert synced == [journal.size] == [path.stat().st_size]
    assert read_lines(path) == lines(2)


def test_a_line_that_json_does_not_know_writes_nothing(tmp_path):
    path = tmp_path / "rounds.jsonl"
    journal = Journal(path)
    journal.append(lines(1))
    with pytest.raises(ValueError, match="JSON"):
        journal.append([{"round": 1}, {"loss": float("inf")}])
    assert read_lines(path) == lines(1)
    assert journal.size == path.stat().st_size


def test_a_journal_shorter_than_committed_is_refused(tmp_path):
    path = tmp_path / "rounds.jsonl"
    journal = Journal(path)
    journal.append(lines(2))
    size = journal.size
    os.truncate(path, size - 1)
    with pytest.raises(RunError, match=rf"was cut: it holds {size - 1} bytes, {size} were committed$"):
        journal.cut(size)
    assert path.stat().st_size == size - 1


@pytest.mark.parametrize("torn", [b"{", b'{"round": 2, "loss": 0.3', b'{"round": 2}'])
def test_a_torn_last_line_is_left_out(tmp_path, torn):
    path = tmp_path / "rounds.jsonl"
    Journal(path).append(lines(2))
    path.write_bytes(path.read_bytes() + torn)
    assert read_lines(path) == lines(2)


def test_a_journal_that_is_not_there_has_no_lines(tmp_path):
    assert read_lines(tmp_path / "rounds.jsonl") == []


@pytest.mark.parametrize("data", [b'{"round": 0}\n{"round\n{"round": 2}\n', b'{"round": 0}\n\xff\n'])
def test_damage_in_the_middle_of_a_journal_is_said(tmp_path, data):
    path = tmp_path / "rounds.jsonl"
    path.write_bytes(data)
    with pytest.raises(RunError, match=r"rounds.jsonl'"):
        read_lines(path)
