"""What host and sites agree on: formats that fit together, tables that are refused, and nothing that says more."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
import torch

from stratafl.data.preprocessing import Preprocessing, Standardisation
from stratafl.data.sample_format import SampleFormat
from stratafl.deploy.agreement import (
    Agreement,
    Introduction,
    Offer,
    agreement,
    check_digests,
    common_format,
    shareable_format,
    with_listed_classes,
)
from stratafl.errors import DamagedError, DataError, WireError


def table_format(*names: str, classes: int | None = None, **changed: Any) -> SampleFormat:
    """Of rows with two numbers; classes by name, or so many."""
    made = Preprocessing("float32", (2,), classes=names)
    return replace(SampleFormat(made, classes or len(names), columns=("p", "q")), **changed)


def test_a_site_says_the_classes_of_the_invitation_whichever_it_holds():
    listed = ("ill", "well", "unknown")
    told = [with_listed_classes(table_format(*own), listed) for own in (("ill",), ("unknown", "well"), listed)]
    assert told == [table_format(*listed)] * 3
    assert with_listed_classes(table_format("ill"), ()) == table_format("ill")  # an invitation of earlier versions
    assert with_listed_classes(table_format(classes=2), ("0", "1", "2")).classes == 3
    numbers = SampleFormat(Preprocessing("float32", (2,)), None)
    for wrong, says in ((table_format("ill", "dead"), "'dead'"), (table_format(classes=2), "ill"), (numbers, "3")):
        with pytest.raises(DataError, match=says):
            with_listed_classes(wrong, listed)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (table_format("a", columns=("p", "r")), "'y'.*'x'"),
        (table_format("a", own_columns=True), "'y'.*True"),
        (table_format(classes=1), "'y'.*'x'"),
        (table_format("b"), "'y'.*'x'"),
        (table_format("a", dtype=torch.float64), r"'y'.*torch\.float64"),
        (SampleFormat(Preprocessing("float32", (3,), classes=("a",)), 1), r"'y'.*\(3,\)"),
        (SampleFormat(Preprocessing("uint8", (2,), classes=("a",)), 1, columns=("p", "q")), "uint8"),
        (SampleFormat(Preprocessing("float32", (2,)), None, columns=("p", "q")), "'y' has .*numbers"),
    ],
)
def test_a_site_whose_samples_do_not_fit_is_named(other, says):
    with pytest.raises(DataError, match=says):
        common_format({"x": table_format("a"), "y": other})


def test_columns_may_come_in_another_order():
    assert common_format({"x": table_format("a"), "y": table_format("a", columns=("q", "p"))}).columns == ("p", "q")


def test_means_and_deviations_stay_with_the_site():
    own = replace(table_format("a"), preprocessing=replace(table_format("a").preprocessing,
                  columns=Standardisation((1.5, 2.5), (3.5, 4.5))))  # fmt: skip
    told = json.dumps(Introduction(shareable_format(own), 7, 1).to_table())
    assert shareable_format(own).own_columns
    assert not any(number in told for number in ("1.5", "2.5", "3.5", "4.5"))
    scaled = replace(table_format("a"), preprocessing=replace(own.preprocessing, targets=Standardisation((0,), (1,))))
    with pytest.raises(DataError, match="'scaled'"):
        shareable_format(scaled)


def agreed() -> Agreement:
    sites = {"x": Introduction(table_format("a", "b"), 12, 3), "y": Introduction(table_format("a", "b"), 5, 0)}
    return agreement(sites, {"x": 1, "y": 0}, 2)


def test_an_agreement_is_written_down_and_read_again(tmp_path):
    made = agreed()
    assert [(each.name, each.client, each.samples) for each in made.roster.entries] == [("y", 0, 5), ("x", 1, 12)]
    made.save(tmp_path / "agreement.json")
    assert Agreement.load(tmp_path / "agreement.json") == made
    assert Agreement.load(tmp_path / "none.json") is None
    data = (tmp_path / "agreement.json").read_bytes()
    (tmp_path / "agreement.json").write_bytes(data[:-9])
    with pytest.raises(DamagedError, match=r"agreement\.json"):
        Agreement.load(tmp_path / "agreement.json")


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["\x1b]0;pwned\x07"], "200"),
        (["é" * 201], "200"),
        ([f"class {number}" for number in range(10_001)], "10,001.*10,000"),
    ],
)
def test_names_that_would_be_shown_at_other_sites_are_short_and_printable(names, says):
    table = Introduction(table_format("a", "b"), 12, 3).to_table()
    table["format"] |= {"classes": len(names)}
    table["format"]["preprocessing"] |= {"classes": names}
    with pytest.raises(WireError, match=says):
        Introduction.from_table(table)


def test_honest_names_are_taken():
    made = table_format(
        "Typ\u00a0A", "\u0646\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", columns=("Age\n(years)", "q")
    )
    assert Introduction.from_table(Introduction(made, 12, 3).to_table()).format == made


def test_an_agreement_that_could_not_be_read_again_is_not_saved(tmp_path):
    names = tuple(f"{number:04}" + "é" * 190 for number in range(3000))
    made = agreed()
    read = replace(made.format.preprocessing, classes=names)
    large = replace(made, format=replace(made.format, classes=len(names), preprocessing=read))
    with pytest.raises(DataError):
        large.save(tmp_path / "agreement.json")
    assert not list(tmp_path.iterdir())


def test_members_that_agree_on_another_method_say_so_and_last_bits_of_weights_do_not_matter():
    mine = {"method": "1", "model": "2", "weights": "3"}
    assert check_digests(mine, {**mine, "weights": "4"}) == ""
    assert "method" in check_digests(mine, {**mine, "method": "4"})
    assert "model" in check_digests(mine, {"method": "1", "weights": "3"})


def mutated(value: Any, draw: random.Random) -> Any:
    """The value with one part of it replaced by something else."""
    odd = [None, True, -1, 0, 1 << 70, 1.5, "", "x" * 50, [], {}, [1], {"x": 1}, "float16", float(10**300)]
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        if draw.random() < 0.1:
            return {k: v for k, v in value.items() if k != key}
        return {**value, key: mutated(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        return [*value[:place], mutated(value[place], draw), *value[place + 1 :]]
    return draw.choice(odd)


@pytest.mark.parametrize(
    "cases",
    [1_000, pytest.param(10_000, marks=pytest.mark.slow), pytest.param(100_000, marks=pytest.mark.nightly)],
    ids=["quick", "more", "whole"],
)
def test_tables_that_were_tampered_with_are_refused_or_mean_something(cases):
    draw = random.Random(cases)
    introduction = Introduction(table_format("a", "b"), 12, 3).to_table()
    sent = {"agreement": agreed().to_table(), "widest": {"train": 10}, "digests": {"method": "1"}}
    refused = 0
    for case in range(cases):
        read, table = ((Introduction.from_table, introduction), (Offer.from_table, sent))[case % 2]
        given = json.loads(json.dumps(mutated(table, draw)))
        try:
            read(given if isinstance(given, dict) else {"format": given})
        except WireError:  # anything else fails the test
            refused += 1
    assert refused > cases / 2
