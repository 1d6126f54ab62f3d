"""What people are told of clients that were left out, or whose updates are far from the others'."""

from stratafl.evaluation.flags import Flag, Notices, all_left_out, flags, well_formed
from wording import mentions


def line(number, left_out=(), outliers=(), cohort=9):
    made = {"round": number, "cohort": cohort}
    made |= {"left_out": [{"client": i, "reason": "why"} for i in left_out]} if left_out else {}
    return made | ({"outliers": [{"client": i, "ratio": ratio} for i, ratio in outliers]} if outliers else {})


def test_each_client_is_said_once_and_many_are_counted():
    notices = Notices()
    lines = [line(1, left_out=(4, 1)), line(2, left_out=(1,), outliers=((2, 12.0), (3, None)))]
    first, second = notices.of(lines[:1])
    assert mentions(first, "round 1", "client 4", "why")
    assert mentions(second, "round 1", "client 1", "why")
    outlying, far = notices.of(lines)
    assert mentions(outlying, "round 2", "client 2", "12")
    assert mentions(far, "round 2", "client 3", "10")
    assert list(notices.of([*lines, line(3, left_out=(4, 1))])) == []
    many = list(Notices().of([line(1, left_out=range(5)), line(2, left_out=(5, 6, 7, 8))]))
    assert len(many) == 8
    assert mentions(many[3], "round 1", "2 more clients ")
    assert all(mentions(said, "round 2", f"client {i}") for said, i in zip(many[4:7], (5, 6, 7), strict=True))
    assert mentions(many[7], "round 2", "1 more client ")


def test_that_nobody_is_left_is_said_once():
    lines = [line(number, left_out=range(3), cohort=3) for number in (1, 2)]
    assert all(map(all_left_out, lines))
    (said,) = Notices().of(lines)
    assert mentions(said, "round 1", "3 clients", "client 0", "why")
    assert not all_left_out(line(1, left_out=(0,)))
    assert not all_left_out(line(1))


def test_rounds_that_were_there_before_are_not_news():
    lines = [line(1, left_out=(4,)), line(2, left_out=(5,))]
    assert list(Notices(1).of(lines[:1])) == []
    (said,) = Notices(1).of(lines)
    assert mentions(said, "round 2", "client 5", "why")


def test_rounds_are_counted_by_client():
    lines = [line(1, (4,), ((2, 12.0),)), line(2, (4, 1), ((2, 31.0),)), line(3)]
    assert flags(lines) == [
        Flag(4, "client 4", 2, "why"),
        Flag(1, "client 1", 1, "why"),
        Flag(2, "client 2", far=2, ratio=31.0),
    ]
    assert flags([line(1, outliers=((2, None),)), line(2, outliers=((2, 12.0),))])[0].times == "far more than 10"


def test_how_many_times_is_short_enough_to_read():
    assert [Flag(0, "", ratio=r).times for r in (12.3, 2_270_000.0, 1.2e33)] == ["12", "2,270,000", "1e33"]


def test_a_name_is_one_line_without_control_characters():
    named = {"round": 1, "cohort": 3, "left_out": [{"client": 1, "name": "no\rrth", "reason": "w\x07hy"}]}
    (said,) = Notices().of([named])
    assert mentions(said, "round 1", r"'no\x0drth'", r"w\x07hy")


def test_what_cannot_be_read_is_known():
    assert well_formed(line(1, (4,), ((2, None), (3, 10.0))))
    for bad in (3, [3], [{"client": 1}], [{"client": "1", "reason": ""}], [{"client": 1, "reason": 2}]):
        assert not well_formed({"left_out": bad})
    assert not well_formed({"outliers": [{"client": 1, "ratio": "10"}]})
    assert not well_formed({"outliers": [{"client": 1, "ratio": 10.0, "name": 3}]})
