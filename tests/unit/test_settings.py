"""Tables of settings: every key known, every value of its type and in its range, refusals one line with their key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from stratafl.config.settings import checked, documented, from_table, setting, to_table
from stratafl.errors import RecordError, UnknownNameError


@dataclass(frozen=True)
class Oven:
    """A table with every kind of key."""

    heat: float = setting(180.0, "how hot", above=0, most=250)
    trays: int = setting(2, "how many", least=1, below=5)
    mode: str = setting("fan", "from where", among=("fan", "grill"))
    recipe: str = setting("bread", "what", named={"bread": 1, "cake": 2})
    timer: float | None = setting(None, "how long", least=0)
    light: bool = setting(False, "whether one sees it")
    note: str | None = setting(None, "what to remember")


@dataclass(frozen=True)
class Cook:
    """A table that takes further keys."""

    name: str = setting("anna", "who")
    options: Mapping[str, Any] = field(default_factory=dict)


def refusal(kind, function, *arguments):
    with pytest.raises(kind) as error:
        function(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


def oven(**table):
    return from_table("oven", Oven, table)


# Tables


def test_an_empty_table_is_the_default():
    assert oven() == Oven()


def test_keys_are_set_and_the_others_stay():
    made = oven(heat=200.5, trays=1, mode="grill", recipe="cake", timer=0.5, light=True, note="hot")
    assert made == Oven(200.5, 1, "grill", "cake", 0.5, True, "hot")
    assert oven(trays=4) == Oven(trays=4)


def test_a_table_goes_there_and_back():
    made = oven(heat=200, note="hot")
    table = to_table(made)
    assert table == {"heat": 200.0, "trays": 2, "mode": "fan", "recipe": "bread", "light": False, "note": "hot"}
    assert from_table("oven", Oven, table) == made
    assert "timer" not in table  # at None, which TOML cannot write


def test_unknown_keys_are_refused_with_the_nearest():
    says = refusal(UnknownNameError, from_table, "oven", Oven, {"trais": 3, "lihgt": True})
    assert says.startswith("unknown key of [oven] 'trais'; did you mean 'trays'? Choose one of: heat, trays, mode,")


def test_further_keys_are_options_where_there_are_some():
    made = from_table("cook", Cook, {"name": "bob", "knife": 3, "hat": [1, 2]})
    assert made == Cook("bob", {"knife": 3, "hat": [1, 2]})
    assert to_table(made) == {"name": "bob", "knife": 3, "hat": [1, 2]}
    assert from_table("cook", Cook, {}) == Cook()


def test_options_cannot_be_set_as_a_whole():
    assert from_table("cook", Cook, {"options": {"a": 1}}).options == {"options": {"a": 1}}


# Types


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"heat": "hot"}, "oven.heat is a number, not 'hot'"),
        ({"heat": True}, "oven.heat is a number, not True"),
        ({"heat": [1.0]}, "oven.heat is a number, not [1.0]"),
        ({"heat": None}, "oven.heat is a number, not None"),
        ({"trays": 2.0}, "oven.trays is a whole number, not 2.0"),
        ({"trays": False}, "oven.trays is a whole number, not False"),
        ({"mode": 3}, "oven.mode is one of fan, grill, not 3"),
        ({"light": 1}, "oven.light is true or false, not 1"),
        ({"light": "yes"}, "oven.light is true or false, not 'yes'"),
        ({"timer": "long"}, "oven.timer is a number, not 'long'"),
        ({"timer": True}, "oven.timer is a number, not True"),
        ({"note": 3}, "oven.note is a text, not 3"),
    ],
)
def test_values_of_another_type_are_refused(table, says):
    assert refusal(RecordError, from_table, "oven", Oven, table) == says


def test_whole_numbers_pass_for_numbers_and_become_numbers():
    for table in ({"heat": 200}, {"timer": 3}):
        (value,) = (getattr(oven(**table), key) for key in table)
        assert type(value) is float
        assert value in table.values()


def test_whole_numbers_stay_whole_where_both_are_allowed():
    assert type(checked("k", int | float, 3)) is int
    assert type(checked("k", int | float, 3.0)) is float


def test_the_first_of_several_types_is_named():
    assert refusal(RecordError, checked, "k", str | int, 1.5) == "k is a text, not 1.5"
    assert checked("k", str | int, 1) == 1
    assert checked("k", str | None, None) is None


# Limits


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"heat": 0}, "oven.heat must be above 0, not 0.0"),
        ({"heat": 250.5}, "oven.heat must be at most 250, not 250.5"),
        ({"heat": float("nan")}, "oven.heat must be a finite number, not nan"),
        ({"timer": float("inf")}, "oven.timer must be a finite number, not inf"),
        ({"trays": 0}, "oven.trays must be at least 1, not 0"),
        ({"trays": 5}, "oven.trays must be below 5, not 5"),
        ({"timer": -1}, "oven.timer must be at least 0, not -1.0"),
    ],
)
def test_values_out_of_range_are_refused(table, says):
    assert refusal(RecordError, from_table, "oven", Oven, table) == says


def test_limits_themselves_are_in_or_out():
    assert oven(heat=250).heat == 250.0
    assert oven(heat=1e-300).heat > 0
    assert (oven(trays=1).trays, oven(trays=4).trays) == (1, 4)
    assert oven(timer=0).timer == 0.0


def test_values_among_others():
    says = refusal(UnknownNameError, from_table, "oven", Oven, {"mode": "gril"})
    assert says == "unknown oven.mode 'gril'; did you mean 'grill'? Choose one of: fan, grill"


def test_names_of_a_catalogue_or_a_path():
    assert oven(recipe="cake").recipe == "cake"
    assert oven(recipe="my.recipes:pie").recipe == "my.recipes:pie"
    says = refusal(UnknownNameError, from_table, "oven", Oven, {"recipe": "caek"})
    assert says == "unknown oven.recipe 'caek'; did you mean 'cake'? Choose one of: bread, cake"


def test_none_is_within_any_limit_where_it_is_allowed():
    assert oven(timer=None).timer is None


def test_lists_are_taken_where_they_are_hinted():
    assert checked("algorithm.widths", list[int], [1, 2]) == [1, 2]


def test_without_limits_only_the_type_is_looked_at():
    assert checked("k", int, -5) == -5
    assert checked("k", str, "") == ""


# The document


DOCUMENT = """\
## [oven]

| key | default | meaning |
|---|---|---|
| `heat` | `180.0` | how hot (at most 250, above 0) |
| `trays` | `2` | how many (at least 1, below 5) |
| `mode` | `fan` | from where (one of `fan`, `grill`) |
| `recipe` | `bread` | what |
| `timer` | none | how long (at least 0) |
| `light` | `false` | whether one sees it |
| `note` | none | what to remember |

## [cook]

| key | default | meaning |
|---|---|---|
| `name` | `anna` | who |
"""


def test_tables_document_themselves():
    assert documented({"oven": Oven, "cook": Cook}) == DOCUMENT
