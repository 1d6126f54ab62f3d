"""What annotations allow: every value of its type and in its range, refusals one line that begins with the key."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Protocol

import pytest

from stratafl.core.annotations import Named, Range, Size, checked
from stratafl.core.layers import Select, select
from stratafl.core.records import record, validated
from stratafl.errors import RecordError, UnknownNameError
from stratafl.policies import Mean, Pull

Share = Annotated[float, Range(above=0, most=1)]
Count = Annotated[int, Range(least=1, below=5)]
Mode = Literal["fan", "grill"]
Recipe = Annotated[str, Named({"bread": 1, "cake": 2}, paths=True)]
Tool = Annotated[str, Named(("knife", "spoon"))]


class Step(Protocol):
    def __call__(self) -> None: ...


REFUSED = {
    "a text for a number": (float, "hot", "must be a number, not 'hot'"),
    "true for a number": (float, True, "must be a number, not True"),
    "a list for a number": (float, [1.0], "must be a number, not [1.0]"),
    "none for a number": (float, None, "must be a number, not None"),
    "a broken number": (int, 2.0, "must be a whole number, not 2.0"),
    "true for a whole number": (int, False, "must be a whole number, not False"),
    "a number for a text": (str, 3, "must be a text, not 3"),
    "a whole number for true": (bool, 1, "must be true or false, not 1"),
    "a text for true": (bool, "yes", "must be true or false, not 'yes'"),
    "nothing of a union": (str | int, 1.5, "must be a text or a whole number, not 1.5"),
    "nothing of a union with none": (float | None, "long", "must be a number, not 'long'"),
    "true in a union": (float | None, True, "must be a number, not True"),
    "not a number": (float, float("nan"), "must be a finite number, not nan"),
    "endless": (float | None, float("inf"), "must be a finite number, not inf"),
    "too low": (Share, 0, "must be above 0, not 0.0"),
    "too high": (Share, 1.5, "must be at most 1, not 1.5"),
    "too few": (Count, 0, "must be at least 1, not 0"),
    "too many": (Count, 5, "must be below 5, not 5"),
    "too few, or none": (Count | None, 0, "must be at least 1, not 0"),
    "too few, marked outside": (Annotated[int | None, Range(least=1)], 0, "must be at least 1, not 0"),
    "beyond any number": (int, 10**30, f"must be at most {2**63 - 1:,}, not {10**30}"),
    "a number with thousands of digits": (
        float,
        10**9000,
        "must be at most 9,223,372,036,854,775,807, not a number of",
    ),
    "beyond the field's own limit": (Annotated[float, Range(most=1e30)], 10**400, "must be at most 1e+30, not 1000"),
    "a long text": (str, "x" * 5000, "must have at most 4,096 characters, not 5,000: 'xxx"),
    "half a letter": (str, "\ud800", "must be a text in UTF-8, not '\\ud800'"),
    "a number for a word": (Mode, 3, "must be one of fan, grill, not 3"),
    "neither a word nor a number": (Mode | float, True, "must be one of fan, grill or a number, not True"),
    "a number for a name": (Tool, 3, "must be one of knife, spoon, not 3"),
    "a number for a path": (Recipe, 3, "must be a text, not 3"),
    "a word in a list of numbers": (tuple[int, ...], [1, "x"], "must be a whole number, not 'x'"),
    "a text for a list": (tuple[str, ...], "wandb", "must be a list, not 'wandb'"),
    "a list of another length": (tuple[int, int], [1], "must be a list of 2 values, not 1: [1]"),
    "a number for a table": (Mapping[str, int], 3, "must be a table, not 3"),
    "another class": (Mean, Pull(0.5), "must be a Mean, not Pull"),
    "a number for layers": (Select, 3, "must be a text, not 3"),
    "no size": (Annotated[int | None, Size()], "8 apples", "must be a size such as 8GB, 500MB, 1.5GiB or a number of"),
    "a broken size": (Annotated[int, Size()], 1.5, "must be a size such as 8GB, 500MB, 1.5GiB or a number of bytes"),
    "true as a size": (Annotated[int, Size()], True, "must be a size such as 8GB"),
    "no bytes": (Annotated[int, Size()], 0, "must be a size such as 8GB"),
}
UNKNOWN = {
    "a word": (Mode, "gril", "unknown k 'gril'; did you mean 'grill'?"),
    "a word or a number": (Count | Mode, "fann", "unknown k 'fann'; did you mean 'fan'?"),
    "a name": (Tool, "knive", "unknown k 'knive'; did you mean 'knife'?"),
    "a name, not a path": (Tool, "my.tools:fork", "unknown k 'my.tools:fork'"),
    "a name or a path": (Recipe, "caek", "unknown k 'caek'; did you mean 'cake'?"),
    "a name in a list": (tuple[Tool, ...], ["spoon", "forc"], "unknown k 'forc'"),
    "a rule of layers": (Select, "lsat:2", "unknown layer rule 'lsat'; did you mean 'last'?"),
}
TAKEN = {
    "a whole number for a number": (float, 3, 3.0),
    "a whole number, or a number": (int | float, 3, 3),
    "a number, or a whole number": (float | int, 3, 3),
    "a number of both": (int | float, 3.0, 3.0),
    "a limit that is in": (Share, 1, 1.0),
    "none": (Share | None, None, None),
    "none, marked outside": (Annotated[float | None, Range(above=0)], None, None),
    "a name": (Recipe, "cake", "cake"),
    "a path": (Recipe, "my.recipes:pie", "my.recipes:pie"),
    "a list": (tuple[int, ...], [1, 2], (1, 2)),
    "a list that stays one": (list[int], [1, 2], [1, 2]),
    "a pair": (tuple[int, float], [1, 2], (1, 2.0)),
    "a step for a tuple": (tuple[Step, ...], Pull(0.5), (Pull(0.5),)),
    "a text for layers": (Select, "not head", select("not head")),
    "layers": (Select | None, select("head"), select("head")),
    "a size in bytes": (Annotated[int | None, Size()], 12, 12),
    "a size with a unit": (Annotated[int | None, Size()], "1.5 kib", 1536),
    "no size": (Annotated[int | None, Size()], None, None),
    "a table": (Mapping[str, float], {"a": 1}, {"a": 1.0}),
    "a protocol": (Step, 3, 3),
    "a callable": (Callable[[], None], 3, 3),
    "anything": (Any, {1}, {1}),
    "true": (bool | str, True, True),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    hint, value, says = REFUSED[case]
    with pytest.raises(RecordError) as error:
        checked("k", hint, value)
    assert str(error.value).startswith(f"k {says}")


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_names_are_refused_with_the_nearest(case):
    hint, value, says = UNKNOWN[case]
    with pytest.raises(UnknownNameError) as error:
        checked("k", hint, value)
    assert str(error.value).startswith(says)


@pytest.mark.parametrize("case", TAKEN)
def test_taken(case):
    hint, value, expected = TAKEN[case]
    taken = checked("k", hint, value)
    assert taken == expected
    assert type(taken) is type(expected)


@record
class Toaster:
    """A record with several kinds of fields, and a check of its own."""

    heat: Share = 0.5
    trays: Annotated[Count, "how many"] = 2
    door: Select = select("head")
    steps: tuple[Step, ...] = ()

    def __post_init__(self) -> None:
        if self.trays == 3:
            raise RecordError("three trays do not fit")


def test_a_record_checks_its_fields_when_it_is_made():
    made = Toaster(1, door="not head", steps=Pull(0.5))
    assert made == Toaster(1.0, 2, select("not head"), (Pull(0.5),))
    assert type(made.heat) is float
    with pytest.raises(RecordError, match=r"^Toaster\.trays .*1.*0$"):
        Toaster(trays=0)
    with pytest.raises(RecordError, match=r"\btrays\b"):
        Toaster(trays=3)


def test_a_record_that_inherits_checks_all_its_fields():
    @record
    class Stove(Toaster):
        plates: Count = 4

    assert Stove(plates=1).plates == 1
    with pytest.raises(RecordError, match=r"^Stove\.heat must be"):
        Stove(heat=2)
    with pytest.raises(RecordError, match=r"^Stove\.plates must be"):
        Stove(plates=9)


@validated
def bake(trays: Count = 1, *, mode: Mode = "fan", door: str | Select = "head", more=None) -> tuple[Any, ...]:
    """Arguments of several kinds, one without a hint."""
    return trays, mode, door, more


def test_a_function_checks_its_arguments():
    assert bake(2, mode="grill", door="not head", more={1}) == (2, "grill", "not head", {1})
    assert bake() == (1, "fan", "head", None)
    assert list(inspect.signature(bake).parameters) == ["trays", "mode", "door", "more"]
    with pytest.raises(RecordError, match=r"^bake\.trays .*1.*0$"):
        bake(0)
    with pytest.raises(UnknownNameError, match=r"^unknown bake\.mode 'fam'; did you mean 'fan'\?"):
        bake(mode="fam")
