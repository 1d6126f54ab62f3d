"""A crash at every file operation and every arrow of the protocol: nothing is lost, and nothing happens twice."""

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from crashes import Crash, Disk, ways
from small_federation import SITES, ArithmeticSite, Federation, Outcome

from stratafl.execute.exchange.site_store import PENDING
from stratafl.execute.exchange.state_file import read_state

PATIENCE = 60  # crashes and lost messages until a federation that makes no progress is given up


def after_crashes(folder: Path, disk: Disk, *, again: bool, rounds: int = 3) -> tuple[Outcome, Federation]:
    """A federation whose processes crash as planned, and are started again; a site that crashed is asked again or not."""
    federation = Federation(folder, rounds=rounds, arrow=disk.arrow)

    def never_twice(site: str, round: int) -> None:
        path = folder / "sites" / "digits-2026" / site / PENDING
        assert not path.exists() or read_state(path, 1 << 30)[0]["round"] != round, f"{site} trains round {round} again"

    federation.site_works = {site: ArithmeticSite(site, never_twice) for site in SITES}

    def answer(site: str, data: bytes) -> bytes | None:
        try:
            return federation.answer(site, data)
        except Crash:
            disk.restarted()
            return None

    def asked_until_it_answers(server) -> Callable[[str, bytes], bytes | None]:
        def asking(site: str, data: bytes) -> bytes | None:
            reply = answer(site, data)
            while reply is None and again:
                committing = server.round >= federation.rounds
                reply = answer(site, server.commit(site) if committing else server.ask(site))
            return reply

        return asking

    with disk():
        for _ in range(PATIENCE):
            try:
                with federation.server() as server:
                    federation.all_rounds(server, asked_until_it_answers(server))
                break
            except Crash:
                disk.restarted()
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
def operations() -> tuple[str, ...]:
    """The file operations and arrows of a federation that nothing happens to."""
    with TemporaryDirectory() as folder:
        disk = Disk()
        outcome, federation = after_crashes(Path(folder), disk, again=True)
        assert outcome == without_crashes(federation.absorbed())
        return tuple(disk.seen)


def check(folder: Path, plan: dict[int, str], *, again: bool) -> None:
    folder.mkdir()
    outcome, federation = after_crashes(folder, Disk(dict(plan)), again=again)
    absorbed = federation.absorbed()
    assert outcome == without_crashes(absorbed), plan
    if again:
        assert absorbed == (SITES, SITES[:2], SITES), plan
    trained = sorted(each for work in federation.site_works.values() for each in work.trained)
    assert not again or len(set(trained)) == sum(len(federation.cohort(round)) for round in range(3)), plan
    assert len(trained) <= len(set(trained)) + len(plan), plan  # only a crash before pending was written repeats it


def test_there_are_many_places_to_crash():
    seen = operations()
    assert {"arrow", "open", "mkdir", "fsync", "replace", "pwrite", "ftruncate", "utime"} <= set(seen)
    assert len(seen) > 300


PARTS = 12  # of the places; `make test` takes the first


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS))])
@pytest.mark.parametrize("again", [True, False], ids=["asked again", "left alone"])
def test_one_crash_at_every_place(tmp_path, part, again):
    places = [(n, how) for n, name in enumerate(operations()) for how in ways(name)]
    for place, how in places[part::PARTS]:
        check(tmp_path / f"{place}-{how}", {place: how}, again=again)


@pytest.mark.parametrize("count", [40, pytest.param(1500, marks=pytest.mark.slow)], ids=["quick", "whole"])
def test_two_crashes_at_random_places(tmp_path, count):
    draw, seen = random.Random(count), operations()
    for case in range(count):
        plan = {place: draw.choice(ways(seen[place])) for place in draw.sample(range(len(seen)), 2)}
        check(tmp_path / str(case), plan, again=case % 2 == 0)
