"""Hints between gate and ServerApp: each is later than the one before, and none is an error."""

from pathlib import Path

from stratafl.deploy.signals import FOLDER, Signals


def test_a_signal_is_of_one_site_and_one_event_and_later_than_the_last(tmp_path: Path) -> None:
    signals, other = Signals(tmp_path), Signals(tmp_path)
    assert signals.last("north", "posted") == 0
    times = list[int]()
    for _ in range(20):  # within one tick of a file system's clock
        signals.tell("north", "posted")
        times.append(other.last("north", "posted"))
    assert times == sorted(set(times))
    assert (other.last("north", "asked"), other.last("south", "posted")) == (0, 0)
    assert (tmp_path / FOLDER).stat().st_mode & 0o077 == 0


def test_a_signal_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    signals = Signals(tmp_path)
    (tmp_path / FOLDER).rmdir()
    signals.tell("north", "posted")
    assert signals.last("north", "posted") == 0


def test_a_limit_is_known_when_it_was_said(tmp_path: Path) -> None:
    signals = Signals(tmp_path)
    assert signals.most_reply_bytes() is None
    for most in (5, 10**10):
        signals.limit_replies(most)
        assert Signals(tmp_path).most_reply_bytes() == most
