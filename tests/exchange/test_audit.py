"""The audit log: a line that is changed, cut or put in is noticed, whichever; a torn end is cut and said."""

import errno
import json
import logging
import os
import random
from datetime import UTC, datetime, timedelta

import pytest
from crashes import Disk
from small_federation import lines

from stratafl.errors import DamagedError, RunError
from stratafl.execute.exchange.audit import MAX_LINE_BYTES, START, AuditLog, LogMark, verify
from stratafl.execute.exchange.state_file import DiskFullError

EVENTS = 12


def clock():
    start, count = datetime(2026, 11, 16, tzinfo=UTC), iter(range(1000))
    return lambda: start + timedelta(seconds=next(count))


def opened(path, known=None):
    return AuditLog(path, known or LogMark(), lambda line: None, clock())


@pytest.fixture
def log(tmp_path):
    made = opened(tmp_path / "audit.jsonl")
    for number in range(EVENTS):
        made.append("accepted", site=f"site-{number % 3}", round=number // 3, bytes=100 + number, reason="")
    return made


def texts(log):
    return log.path.read_bytes().splitlines(keepends=True)


def noticed(log, found):
    """Whether the verification notices that these lines are not what was written."""
    log.path.write_bytes(b"".join(found))
    with pytest.raises(DamagedError, match=r"^'.*audit.jsonl' was (changed|truncated): ") as raised:
        verify(log.path, log.mark)
    assert "\n" not in str(raised.value)


def test_lines_are_chained(log):
    found = lines(log.path)
    assert [line["line"] for line in found] == list(range(1, EVENTS + 1))
    assert [line["before"] for line in found] == [START, *(line["digest"] for line in found[:-1])]
    assert found[0]["time"] == "2026-11-16T00:00:00.000+00:00"
    assert verify(log.path, log.mark).mark == log.mark == LogMark(EVENTS, found[-1]["digest"])
    assert opened(log.path, log.mark).mark == log.mark


@pytest.mark.parametrize("at", range(EVENTS))
def test_any_line_cut_out_doubled_or_exchanged_is_noticed(log, at):
    whole = texts(log)
    noticed(log, [*whole[:at], *whole[at + 1 :]])
    noticed(log, [*whole[: at + 1], *whole[at:]])
    other = (at + 5) % EVENTS
    swapped = list(whole)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    noticed(log, swapped)
    noticed(log, whole[:at])


@pytest.mark.parametrize("at", range(EVENTS))
def test_any_changed_line_is_noticed(log, at):
    whole, draw = texts(log), random.Random(at)
    line = whole[at]
    for place in range(len(line)):
        noticed(
            log,
            [
                *whole[:at],
                line[:place] + bytes([line[place] ^ (1 << draw.randrange(8))]) + line[place + 1 :],
                *whole[at + 1 :],
            ],
        )
    for value in ("mallory", 7, None):
        noticed(log, [*whole[:at], anew({**json.loads(line), "site": value}), *whole[at + 1 :]])
    noticed(log, [*whole[:at], line[:-1] + b" \n", *whole[at + 1 :]])


@pytest.mark.parametrize("at", range(EVENTS + 1))
def test_any_inserted_line_is_noticed(log, at):
    whole = texts(log)
    before = json.loads(whole[at - 1])["digest"] if at else START
    real = json.loads(whole[min(at, EVENTS - 1)])
    for line in (b"\n", b"{}\n", anew({**real, "line": at + 1, "before": before, "site": "mallory"})):
        if at < EVENTS:
            noticed(log, [*whole[:at], line, *whole[at:]])
    if at == EVENTS:  # a line that somebody appends with all its digests is a line
        log.path.write_bytes(b"".join([*whole, anew({**real, "line": at + 1, "before": before})]))
        assert verify(log.path, log.mark).mark.lines == EVENTS + 1


def anew(line):
    """A line with its digest computed anew, as by somebody who wants to deceive."""
    from stratafl.execute.exchange.audit import _digest

    body = json.dumps({k: v for k, v in line.items() if k != "digest"}, separators=(",", ":")).encode()[:-1]
    return body + f',"digest":"{_digest(body)}"}}\n'.encode()


@pytest.mark.parametrize("body", [b"[1", b"7", b'{"line":13', b"\xff", b'{"line":NaN'])
def test_whole_lines_that_are_not_lines_of_a_log_are_refused(log, body):
    from stratafl.execute.exchange.audit import _digest

    text = body + f',"digest":"{_digest(body)}"}}\n'.encode()
    noticed(log, [text, *texts(log)])


def test_a_whole_history_made_anew_does_not_fit_the_mark(log):
    made, before = [], START
    for text in texts(log):
        line = anew({**json.loads(text), "before": before, "site": "mallory"})
        made, before = [*made, line], json.loads(line)["digest"]
    log.path.write_bytes(b"".join(made))
    assert verify(log.path).mark.lines == EVENTS  # nothing can tell without the mark
    noticed(log, made)


def test_a_torn_last_line_is_cut_and_said(log, caplog):
    whole = log.path.read_bytes()
    mark = log.mark
    log.append("accepted", site="last")
    torn = log.path.read_bytes()
    for end in (len(whole) + 1, *range(len(whole) + 2, len(torn) - 1, 11), len(torn) - 1):
        for tail in (torn[:end], torn[:end] + b"\0" * (len(torn) - end)):
            log.path.write_bytes(tail)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                again = opened(log.path, mark)
            assert f"'{log.path}'" in caplog.text
            assert log.path.read_bytes().startswith(whole)
            assert lines(log.path)[-1] | {"event": "cut", "bytes": len(tail) - len(whole)} == lines(log.path)[-1]
            assert again.mark.lines == mark.lines + 1
    log.path.write_bytes(torn[:-5])
    with pytest.raises(DamagedError, match=r"line 13\b"):
        opened(log.path, log.mark)  # a line that the server's state knows is not cut


def test_a_failed_line_is_not_there_and_the_next_one_is(log):
    before, mark = log.path.read_bytes(), log.mark
    for number in range(3):
        with Disk(full=number)(), pytest.raises(DiskFullError, match=os.strerror(errno.ENOSPC)):
            log.append("accepted", site="x")
    assert log.mark == mark
    assert log.path.read_bytes().startswith(before)
    log.append("accepted", site="y")
    assert verify(log.path, log.mark).mark == log.mark


def test_lines_are_bounded(log):
    with pytest.raises(RunError, match=f"{MAX_LINE_BYTES:,}"):
        log.append("refused", reason="x" * MAX_LINE_BYTES)
    log.path.write_bytes(log.path.read_bytes() + b"x" * (MAX_LINE_BYTES + 10))
    with pytest.raises(DamagedError, match=f"{MAX_LINE_BYTES:,}"):
        verify(log.path)


def test_a_missing_log_is_an_error(tmp_path):
    with pytest.raises(RunError, match=r"audit\.jsonl"):
        verify(tmp_path / "audit.jsonl")
