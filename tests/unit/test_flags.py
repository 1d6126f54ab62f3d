"""What people are told of clients that were left out, or whose updates are far from the others'."""

from stratafl.evaluation.flags import Flag, Notices, all_left_out, flags, well_formed


def line(number, left_out=(), outliers=(), cohort=9):
    made = {"round": number, "cohort": cohort}
    made |= {"left_out": [{"client": i, "reason": "why"} for i in left_out]} if left_out else {}
    return made | ({"outliers": [{"client": i, "ratio": ratio} for i, ratio in outliers]} if outliers else {})


def test_each_client_is_said_once_and_many_are_counted():
    notices = Notices()
    lines = [line(1, left_out=(4, 1)), line(2, left_out=(1,), outliers=((2, 12.0), (3, None)))]
    assert list(notices.of(lines[:1])) == [
        "round 1: client 4 is left out: why",
        "round 1: client 1 is left out: why",
    ]
    assert list(notices.of(lines)) == [
        "round 2: the update of client 2 is 12 times as long as the cohort's median",
        "round 2: the update of client 3 is far more than 10 times as long as the cohort's median",
    ]
    assert list(notices.of([*lines, line(3, left_out=(4, 1))])) == []
    many = list(Notices().of([line(1, left_out=range(5)), line(2, left_out=(5, 6, 7, 8))]))
    assert many[3:] == [
        "round 1: 2 more clients are left out",
        *(f"round 2: client {i} is left out: why" for i in (5, 6, 7)),
        "round 2: 1 more client is left out",
    ]


def test_that_nobody_is_left_is_said_once():
    lines = [line(number, left_out=range(3), cohort=3) for number in (1, 2)]
    assert all(map(all_left_out, lines))
    assert list(Notices().of(lines)) == ["round 1: all 3 clients are left out, so no model changes (client 0: why)"]
    assert not all_left_out(line(1, left_out=(0,)))
    assert not all_left_out(line(1))


def test_rounds_that_were_there_before_are_not_news():
    lines = [line(1, left_out=(4,)), line(2, left_out=(5,))]
    assert list(Notices(1).of(lines[:1])) == []
    assert list(Notices(1).of(lines)) == ["round 2: client 5 is left out: why"]


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
    assert list(Notices().of([named])) == [r"round 1: client 'no\x0drth' is left out: w\x07hy"]


def test_what_cannot_be_read_is_known():
    assert well_formed(line(1, (4,), ((2, None), (3, 10.0))))
    for bad in (3, [3], [{"client": 1}], [{"client": "1", "reason": ""}], [{"client": 1, "reason": 2}]):
        assert not well_formed({"left_out": bad})
    assert not well_formed({"outliers": [{"client": 1, "ratio": "10"}]})
    assert not well_formed({"outliers": [{"client": 1, "ratio": 10.0, "name": 3}]})
