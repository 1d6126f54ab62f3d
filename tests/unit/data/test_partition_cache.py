"""Long draws are kept by all that they depend on; what is damaged is drawn again."""

from dataclasses import dataclass

import numpy as np
import pytest

from stratafl.data import cache, digits_federation, draw_partition
from stratafl.data.partitions import ClientDirichlet, Dirichlet, Partition, PFLlibDirichlet

LABELS = np.random.default_rng(0).integers(0, 5, 400)
TESTS = np.arange(400) % 4 == 0
OWNER = np.array([f"u{i % 7}" for i in range(400)])
PARTITION = Dirichlet(alpha=0.5)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STRATAFL_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "WORTH_KEEPING", 0.0)
    monkeypatch.setattr(cache, "WRITING", 0.0)
    return tmp_path / "partitions"


def counted(monkeypatch):
    """How often partitions drew."""
    calls, original = [], Partition.__call__

    def call(self, *args, **kwargs):
        calls.append(self)
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Partition, "__call__", call)
    return calls


def flat(division):
    lists = [division.train, division.test or []]
    return [[mine.tolist() for mine in each] for each in lists]


def files(folder):
    return sorted(folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize(
    "partition",
    [PARTITION, PFLlibDirichlet(alpha=0.5, replacement=True), ClientDirichlet(largest=40)],
    ids=lambda partition: type(partition).__name__,
)
def test_what_was_kept_is_what_was_drawn(folder, monkeypatch, partition):
    calls = counted(monkeypatch)
    first, again = (draw_partition(partition, LABELS, 6, 1, tests=TESTS) for _ in range(2))
    assert len(calls) == len(files(folder)) == 1
    assert flat(first) == flat(again)
    assert again.overlap is first.overlap is (partition is not PARTITION)
    assert (again.test is None) == (first.test is None)
    assert all(a.dtype == np.int64 for a in again.train)


def test_everything_that_a_draw_depends_on_makes_another_entry(folder):
    other = LABELS.copy()
    other[0] = (other[0] + 1) % 5
    asked = [
        (PARTITION, LABELS, 6, 1, {}),
        (Dirichlet(alpha=0.6), LABELS, 6, 1, {}),
        (PFLlibDirichlet(alpha=0.5), LABELS, 6, 1, {}),
        (PARTITION, other, 6, 1, {}),
        (PARTITION, LABELS, 7, 1, {}),
        (PARTITION, LABELS, 6, 2, {}),
        (PARTITION, LABELS, 6, 1, {"tests": TESTS}),
        (PARTITION, LABELS, 6, 1, {"tests": ~TESTS}),
        (PARTITION, LABELS, 6, 1, {"owner": OWNER}),
        (PARTITION, LABELS, 6, 1, {"owner": OWNER[::-1]}),
    ]
    for partition, labels, clients, seed, more in asked:
        draw_partition(partition, labels, clients, seed, **more)
    assert len(files(folder)) == len(asked)


def test_another_version_draws_again(folder, monkeypatch):
    draw_partition(PARTITION, LABELS, 6, 1)
    monkeypatch.setattr(cache, "DRAW_VERSION", cache.DRAW_VERSION + 1)
    draw_partition(PARTITION, LABELS, 6, 1)
    assert len(files(folder)) == 2


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_a_damaged_entry_is_noticed_and_drawn_again(folder, monkeypatch, damage):
    expected = flat(draw_partition(PARTITION, LABELS, 6, 1))
    (entry,) = files(folder)
    whole = entry.read_bytes()
    middle = len(whole) // 3
    broken = {
        "cut": whole[:middle],
        "flipped": whole[:middle] + bytes([whole[middle] ^ 0xFF]) + whole[middle + 1 :],
        "empty": b"",
        "other": b"something else altogether",
    }
    entry.write_bytes(broken[damage])
    calls = counted(monkeypatch)
    assert flat(draw_partition(PARTITION, LABELS, 6, 1)) == expected
    assert len(calls) == 1
    assert flat(draw_partition(PARTITION, LABELS, 6, 1)) == expected
    assert len(calls) == 1  # it was written again
    assert files(folder) == [entry]  # and nothing else was left


def test_quick_draws_are_not_kept(folder, monkeypatch):
    monkeypatch.setattr(cache, "WORTH_KEEPING", 60.0)
    draw_partition(PARTITION, LABELS, 6, 1)
    assert not files(folder)


def test_half_a_second_is_worth_keeping():
    assert cache.WORTH_KEEPING == 0.5


def test_without_a_place_to_keep_it_a_draw_is_made_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "WORTH_KEEPING", 0.0)
    monkeypatch.setattr(cache, "WRITING", 0.0)
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("STRATAFL_CACHE", str(tmp_path / "file"))
    calls = counted(monkeypatch)
    assert flat(draw_partition(PARTITION, LABELS, 6, 1)) == flat(draw_partition(PARTITION, LABELS, 6, 1))
    assert len(calls) == 2


def test_the_cache_is_in_the_home_unless_told_otherwise(tmp_path, monkeypatch):
    monkeypatch.delenv("STRATAFL_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(cache, "WORTH_KEEPING", 0.0)
    monkeypatch.setattr(cache, "WRITING", 0.0)
    draw_partition(PARTITION, LABELS, 6, 1)
    assert len(files(tmp_path / ".cache" / "stratafl" / "partitions")) == 1


def test_a_partition_that_is_no_record_is_drawn_each_time(folder):
    @dataclass(frozen=True)
    class Mine(Partition):
        def draw(self, pool, clients, rng):
            return np.array_split(np.arange(len(pool.labels)), clients)

    assert len(draw_partition(Mine(), LABELS, 6, 1).train) == 6
    assert not files(folder)


def test_federations_are_made_of_what_was_kept(folder, monkeypatch):
    once = digits_federation(clients=5, seed=3)
    calls = counted(monkeypatch)
    again = digits_federation(clients=5, seed=3)
    assert not calls
    assert once.split("train").indices.tolist() == again.split("train").indices.tolist()
