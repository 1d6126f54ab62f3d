"""Claims as predicates: worked out by hand, with what was not run named as that."""

import pytest

from stratafl.errors import RecordError, UnknownNameError
from stratafl.recipes.claims import Claim, gap, verdicts

A, B, C = "A", "B", "C"
NUMBERS = {
    (A, "x"): {0: 60.0, 1: 64.0},
    (B, "x"): {0: 57.0, 1: 63.0},
    (C, "x"): {0: 50.0},
    (A, "y"): {0: 70.0, 1: 72.0},
    (B, "y"): {0: 71.5},
}
PRINTED = {(A, "x"): 61.0, (B, "x"): 58.5, (A, "y"): 90.0}


def judged(kind, where=("x",), **keys):
    claim = Claim("it is so", kind, **keys)
    claim.check()
    return verdicts(claim, NUMBERS, PRINTED, list(where))


def test_a_gap_by_hand():
    """3 and 1: mean 2, deviation √2, so that the interval is 12.706·√2/√2."""
    found = gap(Claim("", "above"), NUMBERS, (A, "x"), (B, "x"))
    assert (found.mean, found.seeds) == (2.0, 2)
    assert found.margin == pytest.approx(12.706)
    assert "within noise" in found.noise
    alone = gap(Claim("", "above"), NUMBERS, (A, "x"), (C, "x"))
    assert (alone.mean, alone.margin, alone.noise) == (10.0, None, "one seed")  # of the seed that both have


def test_less_is_better_for_costs():
    assert gap(Claim("", "above", measure="seconds"), NUMBERS, (A, "x"), (B, "x")).mean == -2.0


@pytest.mark.parametrize(("by", "holds"), [(0.0, True), (1.9, True), (2.0, False)])
def test_above(by, holds):
    (found,) = judged("above", row=A, than=B, by=by)
    assert found.holds is holds
    assert found.paper == "+2.50"


def test_best_is_against_the_best_rival_and_not_against_itself():
    (found,) = judged("best", row=A)
    assert found.holds is True
    assert "A +2.0 against B" in found.reason
    (found,) = judged("best", row=B)
    assert found.holds is False
    (found,) = judged("best", ("y",), row=A)  # B has seed 0 only, where it is 1.5 ahead
    assert found.holds is False


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


def test_rises_and_flat_go_over_columns():
    (found,) = judged("rises", row=A, columns=["x", "y"])
    assert (found.holds, found.column, found.measured) == (True, "x → y", "62.00 → 71.00")
    assert judged("rises", row=A, columns=["y", "x"])[0].holds is False
    assert judged("rises", row=A, columns=["x", "y"], by=9.0)[0].holds is False
    assert judged("flat", row=A, columns=["x", "y"], within=9.0)[0].holds is True
    assert judged("flat", row=A, columns=["x", "y"], within=8.9)[0].holds is False
    assert judged("flat", row=A, columns=["x", "z"], within=8.9)[0].holds is None


def test_a_verdict_for_every_column_that_was_asked_for():
    assert [(v.column, v.holds) for v in judged("above", ("x", "y", "z"), row=A, than=B)] == [
        ("x", True),
        ("y", False),
        ("z", None),
    ]


def test_a_claim_that_lacks_something_is_refused():
    with pytest.raises(RecordError, match="needs 'than'"):
        Claim("it is so", "above", row=A).check()
    with pytest.raises(UnknownNameError, match="above"):
        Claim("it is so", "abve", row=A).check()
    with pytest.raises(UnknownNameError, match="seconds"):
        Claim("it is so", "best", row=A, measure="second").check()
