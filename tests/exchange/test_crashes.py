"""A crash at every file operation and every arrow of the protocol: nothing is lost, and nothing happens twice."""

import random
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from crashes import Disk, run_with_crashes, ways
from small_federation import SITES, Federation, Outcome


def after_crashes(folder: Path, disk: Disk, *, again: bool, rounds: int = 3) -> tuple[Outcome, Federation]:
    federation = Federation(folder, rounds, arrow=disk.arrow)
    run_with_crashes(federation, disk, again=again)
    return federation.outcome(), federation


@cache
def without_crashes(absorbed: tuple[tuple[str, ...], ...]) -> Outcome:
    """What a federation comes to in which exactly these uploads are absorbed."""
    with TemporaryDirectory() as folder:
        federation = Federation(Path(folder), rounds=len(absorbed), cohort=lambda round: absorbed[round])
        outcome = federation.run()
        assert federation.absorbed() == absorbed
        return outcome


@cache
def operations(rounds: int = 3) -> tuple[str, ...]:
    """The file operations and arrows of a federation that nothing happens to."""
    with TemporaryDirectory() as folder:
        disk = Disk()
        outcome, federation = after_crashes(Path(folder), disk, again=True, rounds=rounds)
        assert outcome == without_crashes(federation.absorbed())
        return tuple(disk.seen)


def check(folder: Path, plan: dict[int, str], *, again: bool, rounds: int = 3) -> None:
    folder.mkdir()
    outcome, federation = after_crashes(folder, Disk(dict(plan)), again=again, rounds=rounds)
    absorbed = federation.absorbed()
    assert outcome == without_crashes(absorbed), plan
    if again:
        assert absorbed == (SITES, SITES[:2], SITES)[:rounds], plan
    trained = federation.trained
    assert not again or len(set(trained)) == sum(len(federation.cohort(round)) for round in range(rounds)), plan
    assert len(trained) <= len(set(trained)) + len(plan), plan  # only a crash before pending was written repeats it


def test_there_are_many_places_to_crash():
    seen = operations()
    assert {"arrow", "open", "mkdir", "fsync", "replace", "pwrite", "ftruncate", "utime"} <= set(seen)
    assert len(seen) > 300


@pytest.mark.budget(1.2, "some twenty federations of one round")
def test_a_power_cut_at_every_arrow(tmp_path):
    """Of one round and its commits; those of further rounds are among all places below."""
    for place, name in enumerate(operations(rounds=1)):
        if name == "arrow":
            check(tmp_path / str(place), {place: "power"}, again=True, rounds=1)


PARTS = 40  # of the places: a quarter of the first one is fast, six of them are slow, all are nightly


@pytest.mark.parametrize(
    ("part", "parts"),
    [
        pytest.param(0, 4 * PARTS, id="few"),
        *(
            pytest.param(part, PARTS, marks=pytest.mark.nightly if part % 7 else pytest.mark.slow, id=f"{part}")
            for part in range(PARTS)
        ),
    ],
)
@pytest.mark.parametrize("again", [True, False], ids=["asked again", "left alone"])
@pytest.mark.budget(0.8, "several federations of three rounds")
def test_one_crash_at_every_place(tmp_path, part, parts, again):
    places = [(n, how) for n, name in enumerate(operations()) for how in ways(name)]
    for place, how in places[part::parts]:
        check(tmp_path / f"{place}-{how}", {place: how}, again=again)


@pytest.mark.parametrize(
    ("seed", "count"),
    [
        (0, 4),
        pytest.param(1, 50, marks=pytest.mark.slow),
        *(pytest.param(seed, 100, marks=pytest.mark.nightly) for seed in (2, 3, 4, 5)),
    ],
)
def test_two_crashes_at_random_places(tmp_path, seed, count):
    draw, seen = random.Random(seed), operations()
    for case in range(count):
        plan = {place: draw.choice(ways(seen[place])) for place in draw.sample(range(len(seen)), 2)}
        check(tmp_path / str(case), plan, again=case % 2 == 0)
