"""Claims as predicates: worked out by hand, with what was not run named as that."""

import pytest

from stratafl.errors import RecordError, UnknownNameError
from stratafl.recipes.claims import Claim
from stratafl.recipes.verdicts import PairedDifference, verdicts
from stratafl.recipes.verdicts import leads as leads_by_seed

A, B, C = "A", "B", "C"
NUMBERS = {
    (A, "x"): {0: 60.0, 1: 64.0},
    (B, "x"): {0: 57.0, 1: 63.0},
    (C, "x"): {0: 50.0},
    (A, "y"): {0: 70.0, 1: 72.0},
    (B, "y"): {0: 71.5},
}
PRINTED = {(A, "x"): 61.0, (B, "x"): 58.5, (A, "y"): 90.0}


def _between(claim, numbers, a, b):
    return PairedDifference.of(list(leads_by_seed(claim, numbers, a, b).values()))


def judged(kind, where=("x",), **keys):
    claim = Claim("it is so", kind, **keys)
    claim.check()
    return verdicts(claim, NUMBERS, PRINTED, list(where))


def test_a_paired_difference_by_hand():
    """3 and 1: mean 2, deviation √2, so that the interval is 12.7062·√2/√2."""
    found = _between(Claim("", "above"), NUMBERS, (A, "x"), (B, "x"))
    assert (found.mean, found.seeds) == (2.0, 2)
    assert found.margin == pytest.approx(12.70620474)
    assert found.text(Claim("", "above"), noise=True) == "+2.0 (± 12.7 over 2 seeds, within noise)"
    alone = _between(Claim("", "above"), NUMBERS, (A, "x"), (C, "x"))
    assert alone.text(Claim("", "above"), noise=False) == "+10.0 (one seed, no interval)"  # of the seed that both have


def test_less_is_better_for_seconds():
    assert _between(Claim("", "above", measure="seconds"), NUMBERS, (A, "x"), (B, "x")).mean == -2.0


@pytest.mark.parametrize(("by", "holds"), [(0.0, True), (1.9, True), (2.0, False)])
def test_above(by, holds):
    (found,) = judged("above", row=A, than=B, by=by)
    assert found.holds is holds
    assert found.paper_value == "+2.50"


def test_best_is_against_the_best_rival_and_not_against_itself():
    (found,) = judged("best", row=A)
    assert found.holds is True
    assert "A against B: +2.0" in found.reason
    (found,) = judged("best", row=B)
    assert found.holds is False
    (found,) = judged("best", ("y",), row=A)  # B has seed 0 only, where it is 1.5 ahead
    assert found.holds is False


def test_best_is_against_the_rival_that_is_nearest_with_common_seeds():
    """C has a lower mean than B, but only because of its seed, with which it is ahead of A."""
    numbers = {(A, "x"): {0: 50.0, 1: 60.0}, (B, "x"): {0: 45.0, 1: 58.0}, (C, "x"): {0: 51.0}}
    (found,) = verdicts(Claim("it is so", "best", row=A), numbers, {}, ["x"])
    assert (found.holds, found.reason.partition(";")[0]) == (False, "A against C: -1.0 (one seed, no interval)")
    (found,) = verdicts(Claim("it is so", "best", row=A), {(A, "x"): {0: 1.0}, (B, "x"): {1: 2.0}}, {}, ["x"])
    assert found.holds is None


def test_order_needs_every_step():
    assert judged("order", rows=[A, B, C])[0].holds is True
    assert judged("order", rows=[B, A, C])[0].holds is False
    assert judged("order", ("y",), rows=[A, C])[0].holds is None


@pytest.mark.parametrize(("within", "holds"), [(2.0, True), (1.9, False)])
def test_close(within, holds):
    assert judged("close", row=B, than=A, within=within)[0].holds is holds


def test_printed():
    assert judged("printed", row=A, within=1.0)[0].holds is True  # 62 against 61
    assert judged("printed", row=A, within=0.9)[0].holds is False
    assert judged("printed", row=C, within=1.0)[0].holds is None
    assert judged("printed", ("z",), row=A, within=1.0)[0].holds is None


def over(kind, **keys):
    (found,) = judged(kind, ("x", "y", "z"), **keys)
    return found


def test_rises_and_flat_go_over_columns():
    found = over("rises", row=A, columns=["x", "y"])
    assert (found.holds, found.column, found.measured) == (True, "x → y", "62.00 → 71.00")
    assert over("rises", row=A, columns=["y", "x"]).holds is False
    assert over("rises", row=A, columns=["x", "y"], by=9.0).holds is False
    assert over("flat", row=A, columns=["x", "y"], within=9.0).holds is True
    assert over("flat", row=A, columns=["x", "y"], within=8.9).holds is False
    assert over("flat", row=A, columns=["x", "z"], within=8.9).holds is None


def test_what_rises_is_the_number_also_where_less_is_better():
    assert over("rises", row=A, columns=["x", "y"], measure="spread").holds is True
    assert over("rises", row=A, columns=["x", "y"], measure="spread").reason.startswith("+9.0")


def test_widens_compares_two_leads_with_the_same_seed():
    """A is 3 ahead of B in x and 1.5 behind in y with seed 0, the only one that all four have."""
    found = over("widens", row=A, than=B, columns=["y", "x"])
    assert (found.holds, found.measured) == (True, "-1.50 → +2.00")
    assert found.reason.endswith(" +4.5 (one seed, no interval)")
    assert over("widens", row=A, than=B, columns=["y", "x"], by=4.5).holds is False
    assert over("widens", row=A, than=B, columns=["x", "y"]).holds is False
    assert over("widens", row=A, than=B, columns=["y", "x"], measure="rounds").holds is False
    assert over("widens", row=A, than=C, columns=["x", "y"]).holds is None


def test_where_less_is_better_the_number_is_shown_as_it_is():
    (found,) = judged("above", row=B, than=A, measure="rounds")
    assert found.holds is True
    assert found.reason.startswith("B against A: -2.0 (±")


def test_relative_seconds_have_two_digits_and_less_is_better():
    (found,) = judged("above", row=B, than=A, measure="relative")
    assert (found.holds, found.reason.partition(" (")[0]) == (True, "B against A: -2.00")


def test_what_has_no_round_of_convergence_may_still_improve():
    (found,) = judged("above", row=A, than="nobody", measure="rounds")
    assert (found.holds, found.measured) == (None, "")
    (other,) = judged("above", row=A, than="nobody")
    assert found.reason.startswith(other.reason)  # and says that it may still improve
    assert found.reason != other.reason


def test_columns_that_a_scale_leaves_out():
    """Claims are judged in the columns that are left; from a first to a last only if both are."""
    assert [v.column for v in judged("above", ("x",), row=A, than=B, columns=["x", "y"])] == ["x"]
    (found,) = judged("above", ("x",), row=A, than=B, columns=["y", "z"])
    assert (found.column, found.holds) == ("y; z", None)
    assert judged("rises", ("x", "y"), row=A, columns=["x", "y", "z"])[0].holds is None
    assert judged("rises", ("x", "y"), row=A, columns=["x", "z", "y"])[0].column == "x → y"
    assert judged("flat", ("x", "y"), row=A, columns=["x", "y", "z"], within=9.0)[0].holds is True


def test_a_verdict_for_every_column_that_was_asked_for():
    assert [(v.column, v.holds) for v in judged("above", ("x", "y", "z"), row=A, than=B)] == [
        ("x", True),
        ("y", False),
        ("z", None),
    ]


def test_a_verdict_after_fewer_rounds_than_the_paper_has_says_so():
    shorter = {"x": "40 rounds in place of 200", "y": "40 rounds in place of 100"}

    def reasons(kind, **keys):
        return [v.reason for v in verdicts(Claim("it is so", kind, **keys), NUMBERS, PRINTED, ["x", "y", "z"], shorter)]

    first, second, third = (reason.split("; ") for reason in reasons("printed", row=A, within=1.0))
    assert first[0].endswith(" +1.0 (± 25.4 over 2 seeds, within noise)")
    assert second[0].endswith(" -19.0 (± 12.7 over 2 seeds)")
    assert (first[1:], second[1:], third[1:]) == ([shorter["x"]], [shorter["y"]], [])
    (over,) = reasons("rises", row=A, columns=["x", "y"])
    assert over.endswith("; 40 rounds in place of 200; 40 rounds in place of 100")
    assert reasons("above", row=A, than=B, by=20.0)[0].endswith("; 40 rounds in place of 200")
    for measure in ("seconds", "relative", "bytes"):  # the same in every round
        assert "in place" not in " ".join(reasons("above", row=A, than=B, measure=measure))
    assert "in place" not in reasons("above", row=A, than="D")[0]  # not run


def noise(kind, leads, **keys):
    """Whether a verdict on these leads of A over B, one for each seed, is within noise."""
    numbers = {
        (A, "x"): {i: 50.0 + lead for i, lead in enumerate(leads)},
        (B, "x"): dict.fromkeys(range(len(leads)), 50.0),
    }
    (found,) = verdicts(Claim("it is so", kind, row=A, than=B, **keys), numbers, {}, ["x"])
    assert ("within noise" in found.reason) == found.noise == found.words.endswith(", within noise")
    return found.noise


def test_within_noise_is_what_decides_and_not_always_zero():
    """9, 10 and 11: mean 10, deviation 1, t = 4.303, so that the interval is 10 ± 2.48."""
    leads = (9.0, 10.0, 11.0)
    assert not noise("above", leads)
    assert noise("above", leads, by=8.0)
    assert noise("above", leads, by=12.0)
    assert not noise("above", leads, by=7.0)
    assert noise("close", leads, within=8.0)
    assert not noise("close", leads, within=13.0)
    assert noise("close", (-9.0, -10.0, -11.0), within=8.0)
    assert not noise("above", (10.0,), by=9.0)  # one seed: nothing is known


def test_within_noise_over_columns():
    columns = ["x", "y"]
    numbers = {(A, "x"): {0: 50.0, 1: 50.0, 2: 50.0}, (A, "y"): {0: 59.0, 1: 60.0, 2: 61.0}}
    numbers |= {(B, column): dict.fromkeys(range(3), 50.0) for column in columns}
    for kind, more in (("rises", {}), ("rises", {"measure": "spread"}), ("widens", {"than": B})):
        for by, noisy in ((0.0, False), (8.0, True)):
            (found,) = verdicts(Claim("", kind, row=A, columns=columns, by=by, **more), numbers, {}, columns)
            assert (found.holds, found.noise) == (True, noisy)


def leads(*rows):
    """A ahead of B by the first, of C by the second, with three seeds."""
    ahead = zip((B, C), rows, strict=True)
    return {(A, "x"): dict.fromkeys(range(3), 50.0)} | {
        (name, "x"): {seed: 50.0 - lead for seed, lead in enumerate(each)} for name, each in ahead
    }


def test_the_best_is_within_noise_where_any_rival_may_come_before_it():
    """B is nearest and surely behind; C is further behind, but by 4 ± 9.9."""
    (found,) = verdicts(Claim("", "best", row=A), leads((1.9, 2.0, 2.1), (0.0, 4.0, 8.0)), {}, ["x"])
    assert (found.holds, found.noise) == (True, True)
    assert (
        found.reason == "A against B: +2.0 (± 0.2 over 3 seeds); A against C: +4.0 (± 9.9 over 3 seeds, within noise)"
    )
    (found,) = verdicts(Claim("", "best", row=A), leads((1.9, 2.0, 2.1), (3.9, 4.0, 4.1)), {}, ["x"])
    assert (found.holds, found.noise, "C" in found.reason) == (True, False, False)


def test_a_rival_that_is_surely_ahead_decides_though_the_nearest_is_not():
    """B is ahead by 3 ± 12, C by 2 ± 0.2: other seeds may turn the first, not the second."""
    (found,) = verdicts(Claim("", "best", row=A), leads((2.0, -5.0, -6.0), (-1.9, -2.0, -2.1)), {}, ["x"])
    assert (found.holds, found.noise) == (False, False)
    assert "A against C: -2.0" in found.reason


def test_one_step_that_surely_fails_decides():
    """Whatever other seeds bring for A against B, C is before A."""
    numbers = leads((0.0, 4.0, 8.0), (-2.1, -2.0, -1.9))
    for claim in (Claim("", "best", row=A), Claim("", "order", rows=[C, B, A]), Claim("", "order", rows=[B, A, C])):
        (found,) = verdicts(claim, numbers, {}, ["x"])
        assert found.holds is False
        assert found.noise == (claim.rows == [C, B, A])  # where both steps may turn
        assert claim.kind != "best" or found.reason == "A against C: -2.0 (± 0.2 over 3 seeds)"
    alone = numbers | {(C, "x"): {0: 52.0}}  # one seed decides nothing
    (found,) = verdicts(Claim("", "best", row=A), alone, {}, ["x"])
    assert (found.holds, found.noise) == (False, True)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("above", {"row": A, "than": C}),
        ("order", {"rows": [A, C]}),
        ("best", {"row": A}),  # C is not the nearest rival, but has one seed
        ("best", {"row": C}),
        ("close", {"row": A, "than": C, "within": 3.0}),
        ("printed", {"row": C, "within": 3.0}),
        ("rises", {"row": B, "columns": ["x", "y"]}),
        ("widens", {"row": A, "than": B, "columns": ["x", "y"]}),
        ("flat", {"row": B, "columns": ["x", "y"], "within": 1.0}),
    ],
)
def test_one_seed_has_no_interval_and_is_not_sure(kind, keys):
    claim = Claim("", kind, **keys)
    numbers = {
        place: {seed: 60.0 + value % 1 / 9 for seed, value in values.items()} for place, values in NUMBERS.items()
    }
    numbers |= {(A, "x"): {0: 70.0, 1: 70.1}, (C, "x"): {0: 50.0}}
    (told,) = verdicts(
        claim, numbers, PRINTED | {(C, "x"): 50.0}, ["x", "y"][: 1 + (kind in ("rises", "widens", "flat"))]
    )
    assert told.holds is not None
    assert (told.one_seed, told.sure) == (True, False)
    both = {place: {0: 60.0, 1: 60.0 + (place == (A, "x")) + 9 * (place[0] == A)} for place in numbers}
    (told,) = verdicts(claim, both, PRINTED, ["x", "y"][: 1 + (kind in ("rises", "widens", "flat"))])
    assert told.one_seed is False


def test_within_noise_of_the_paper_and_of_a_flat_line():
    """9, 10 and 11: 10 ± 2.48, as above."""
    numbers = {(A, "x"): {0: 59.0, 1: 60.0, 2: 61.0}, (A, "y"): dict.fromkeys(range(3), 50.0)}
    for kind, keys in (("printed", {}), ("flat", {"columns": ["x", "y"]})):
        for within, holds, noisy in ((13.0, True, False), (12.0, True, True), (8.0, False, True), (7.0, False, False)):
            (found, *_) = verdicts(
                Claim("", kind, row=A, within=within, **keys), numbers, {(A, "x"): 50.0, (A, "y"): 50.0}, ["x", "y"]
            )
            assert (found.holds, found.noise) == (holds, noisy)
            assert "+10.0 (± 2.5 over 3 seeds" in found.reason


def test_a_line_is_flat_with_the_seeds_that_all_columns_have():
    """Seed 1 is an easy one, which y does not have yet."""
    numbers = {(A, "x"): {0: 50.0, 1: 90.0}, (A, "y"): {0: 51.0}}
    (found,) = verdicts(Claim("", "flat", row=A, columns=["x", "y"], within=2.0), numbers, {}, ["x", "y"])
    assert (found.holds, found.measured) == (True, "50.00 → 51.00")
    assert found.reason.endswith(" +1.0 (one seed, no interval)")
    numbers = {(A, column): {0: value} for column, value in (("x", 50.0), ("y", 60.0), ("z", 51.0))}
    (peak,) = verdicts(Claim("", "flat", row=A, columns=["x", "y", "z"], within=2.0), numbers, {}, ["x", "y", "z"])
    assert peak.holds is False


SAVED = {  # seconds: A takes 40 % and 20 % less than B, 50 % less and 100 % more than C
    (A, "x"): {0: 60.0, 1: 60.0},
    (A, "y"): {0: 80.0, 1: 80.0},
    (B, "x"): {0: 100.0, 1: 100.0},
    (B, "y"): {0: 100.0, 1: 100.0},
    (C, "x"): {0: 120.0},
    (C, "y"): {0: 40.0},
}


def average(numbers=SAVED, printed=PRINTED, where=("x", "y"), **keys):
    claim = Claim("it is so", "average", row=A, columns=["x", "y"], **keys)
    claim.check()
    (found,) = verdicts(claim, numbers, printed, list(where))
    return found


def test_an_average_over_columns_by_hand():
    """A is 40 and 20 seconds faster than B: 30 on average, 40 at most, and of B's seconds the same shares."""
    printed = {(A, "x"): 50.0, (B, "x"): 100.0, (A, "y"): 90.0, (B, "y"): 100.0}
    found = average(printed=printed, than=B, measure="time")
    assert (found.holds, found.measured, found.paper_value) == (True, "-30.00, up to -40.00", "-30.00, up to -50.00")
    assert found.reason.endswith(" -30.00 (with each of 2 seeds)")
    assert found.column == "x; y"
    assert average(than=B, measure="time", by=29.9).holds is True
    assert average(than=B, measure="time", by=30.0).holds is False
    assert average(than=B).holds is False  # more seconds would be better
    assert average(than=B).measured == "-30.00, up to -20.00"


def test_an_average_of_shares_over_columns_and_rivals():
    """40, 20 and 50 % less and 100 % more: 2.5 % less on average, with the seed that all four have."""
    found = average(rows=[B, C], measure="time", share=True)
    assert (found.holds, found.measured) == (True, "-2.50 %, up to -50.00 %")
    assert found.reason.endswith(": -2.5 % (one seed, no interval)")
    found = average(numbers={place: SAVED[place] for place in SAVED if place != (C, "y")}, rows=[B, C], measure="time")
    assert found.measured == "-40.00, up to -60.00"  # −40, −20 and −60
    assert found.reason.endswith("; 3 of 4 cells")


def test_an_average_over_fewer_columns_says_so():
    found = average(where=("x",), than=B, measure="time")
    assert (found.holds, found.measured, found.column) == (True, "-40.00", "x")
    assert found.reason.endswith("; 1 of 2 columns")
    assert average(where=(), than=B).holds is None
    assert average(numbers={}, than=B).holds is None


def test_an_average_within_noise():
    """Means over the columns of 9, 10 and 11: 10 ± 2.48, as above."""
    numbers = {(B, column): dict.fromkeys(range(3), 50.0) for column in ("x", "y")}
    numbers |= {(A, "x"): {0: 55.0, 1: 57.0, 2: 53.0}, (A, "y"): {0: 63.0, 1: 63.0, 2: 69.0}}
    for by, holds, noisy in ((7.0, True, False), (8.0, True, True), (12.0, False, True), (13.0, False, False)):
        found = average(numbers, than=B, by=by)
        assert (found.holds, found.noise) == (holds, noisy)


def test_shares_are_of_the_rival_s_number():
    """60 is 20 % above 50 and 6 of its 30 seconds are 20 %; one of the seeds has no number to divide by."""
    numbers = {(A, "x"): {0: 60.0, 1: 1.0}, (B, "x"): {0: 50.0, 1: 0.0}}
    claim = Claim("it is so", "above", row=A, than=B, by=19.9, share=True)
    (found,) = verdicts(claim, numbers, {(A, "x"): 3.0, (B, "x"): 4.0}, ["x"])
    assert (found.holds, found.paper_value) == (True, "-25.00")
    assert found.reason == "A against B: +20.0 % (one seed, no interval)"
    slower = Claim("it is so", "close", row=A, than=B, within=19.9, share=True, measure="time")
    (found,) = verdicts(slower, numbers, {}, ["x"])
    assert (found.holds, found.reason) == (False, "A against B: +20.0 % (one seed, no interval)")


def test_a_lead_over_several_rivals_widens():
    """A is 3 and 10 ahead in x (6.5), and −1.5 and 4 in y (1.25): with seed 0, which all have."""
    numbers = {**NUMBERS, (C, "y"): {0: 66.0}}
    printed = {(A, "x"): 10.0, (B, "x"): 7.0, (C, "x"): 5.0, (A, "y"): 10.0, (B, "y"): 9.0, (C, "y"): 9.5}
    claim = Claim("it is so", "widens", row=A, rows=[B, C], columns=["y", "x"])
    claim.check()
    (found,) = verdicts(claim, numbers, printed, ["x", "y"])
    assert (found.holds, found.measured, found.paper_value) == (True, "+1.25 → +6.50", "+0.75 → +4.00")
    assert found.reason.endswith(" +5.2 (one seed, no interval)")
    (found,) = verdicts(claim, NUMBERS, printed, ["x", "y"])  # C was not run in y
    assert found.reason.endswith(" +4.5 (one seed, no interval)")


@pytest.mark.parametrize("measure", ["score", "rounds"])
def test_over_and_under_a_limit(measure):
    """60 and 64: 62 ± 25.4, which decides at no limit near it."""
    for kind, limit, holds in (
        ("over", 61.9, True),
        ("over", 62.0, False),
        ("under", 62.1, True),
        ("under", 62.0, False),
    ):
        (found,) = judged(kind, row=A, limit=limit, measure=measure)
        assert (found.holds, found.noise, found.measured, found.paper_value) == (holds, True, "62.00", "61.00")
    (found,) = judged("under", row=A, limit=87.5, measure=measure)
    assert (found.holds, found.noise) == (True, False)
    assert found.reason == "A against 87.5: -25.5 (± 25.4 over 2 seeds)"
    assert judged("under", ("z",), row=A, limit=1.0)[0].holds is None


@pytest.mark.parametrize(
    ("claim", "error", "says"),
    [
        (Claim("it is so", "order", rows=[A]), RecordError, "'rows'"),
        (Claim("it is so", "above", row=A), RecordError, "'it is so' .*above .*'than'"),
        (Claim("it is so", "average", row=A, columns=["x", "y"]), RecordError, "'than or rows'"),
        (Claim("it is so", "average", row=A, than=B, columns=["x"]), RecordError, "'columns'"),
        (Claim("it is so", "under", row=A), RecordError, "'limit'"),
        (Claim("it is so", "abve", row=A), UnknownNameError, "above"),
        (Claim("it is so", "best", row=A, measure="second"), UnknownNameError, "seconds"),
    ],
)
def test_a_claim_that_lacks_something_is_refused(claim, error, says):
    with pytest.raises(error, match=says):
        claim.check()


def test_the_same_difference_with_every_seed_is_no_interval():
    claim = Claim("a beats b", "above", row="a", than="b")
    numbers = {("a", "x"): {0: 52.6, 1: 62.6}, ("b", "x"): {0: 50.0, 1: 60.0}}
    (found,) = verdicts(claim, numbers, {}, ["x"])
    assert (found.holds, found.reason) == (True, "a against b: +2.6 (with each of 2 seeds)")
