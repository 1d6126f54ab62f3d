"""What looks wrong with a table, with the sites that it is about."""

import numpy as np
import pytest

from stratafl.data import load_samples
from stratafl.data.builders import from_samples
from stratafl.data.outliers import outlier_warnings
from stratafl.data.partitions import IID
from stratafl.data.reading import Reading
from stratafl.data.splitting import SplitPlan
from stratafl.data.suspects import suspect_warnings
from stratafl.data.table_warnings import table_warnings
from stratafl.data.tables.kinds import decided, doubt_about_dates
from stratafl.errors import DataError

SITES = ("Aarau", "Bern", "Chur", "Davos")
CODINGS = {"Chur": ("0", "1")}


def looked_at(tmp_path, change=lambda number, row: row, sites=SITES, rows=120):
    """The raw federation of a table; `change` spoils its rows."""
    rng = np.random.default_rng(0)
    lines = ["site,age,weight,sex,label"]
    for number in range(rows):
        site = sites[number % len(sites)]
        sex = CODINGS.get(site, ("F", "M"))[rng.integers(2)] if change is other_coding else "FM"[rng.integers(2)]
        label = int(rng.integers(2))
        row = [site, f"{rng.normal(50, 10):.2f}", f"{rng.normal(70, 9):.2f}", sex, str(label)]
        lines.append(",".join(change(number, row)))
    path = tmp_path / "own.csv"
    path.write_text("\n".join(lines))
    samples = load_samples(str(path), Reading(client="site"))
    return from_samples(samples, SplitPlan(0.1, 0.25, 1, 0), clients=4, partition=None, fallback=IID(), raw=True)


def other_coding(number, row):
    return row


def sentinel(number, row):
    return [row[0], "-999", *row[2:]] if number in (7, 11, 15) else row


def grams(number, row):
    return [*row[:2], f"{1000 * float(row[2]):.0f}", *row[3:]] if row[0] == "Bern" else row


def leak(number, row):
    return [*row[:2], "1" if row[4] == "1" else "0", *row[3:]]


@pytest.mark.parametrize(
    ("change", "column", "sites", "find"),
    [
        (other_coding, "sex", ["Chur"], table_warnings),
        (sentinel, "age", ["Davos"], table_warnings),
        (grams, "weight", ["Bern"], outlier_warnings),
        (leak, "weight", [], suspect_warnings),
    ],
)
def test_a_spoiled_column_and_its_sites_are_named(tmp_path, change, column, sites, find):
    (line,) = find(looked_at(tmp_path, change))
    assert f"'{column}'" in line
    assert [site for site in SITES if f"'{site}'" in line] == sites


def test_a_clean_table_has_no_warnings(tmp_path):
    federation = looked_at(tmp_path)
    assert [*table_warnings(federation), *outlier_warnings(federation), *suspect_warnings(federation)] == []


def test_samples_that_two_sites_have(tmp_path):
    rows = {}

    def twice(number, row):
        rows[number] = row[1:]
        return [row[0], *rows[number - 1]] if number in (5, 21, 37) else row  # Bern has three of Aarau's

    (line,) = table_warnings(looked_at(tmp_path, twice))
    assert "3 samples" in line
    assert "'Aarau', 'Bern'" in line


def test_names_of_sites_that_differ_in_capitals_or_spaces(tmp_path):
    (line,) = table_warnings(looked_at(tmp_path, sites=("St Gallen", "Bern", "st. gallen", "Chur")))
    assert "'St Gallen', 'st. gallen'" in line


def column_of_days(odd, each=1):
    """Days, each in several rows, of which some are impossible."""
    days = [f"2024-{1 + i % 12:02d}-{1 + i % 27:02d}" for i in range(60 // each)] * each
    return [*odd, *days[len(odd) :]]


@pytest.mark.parametrize("each", [1, 6], ids=["identifier", "category"])
@pytest.mark.parametrize("odd", [["2024-02-31"], ["31.31.2024", "soon"]])
def test_a_column_that_would_be_dates_names_what_is_none(odd, each):
    cells = column_of_days(odd, each)
    line = doubt_about_dates(decided("admitted", cells), cells)
    assert "'admitted'" in line
    assert all(f"'{text}'" in line for text in odd)


@pytest.mark.parametrize("cells", [column_of_days([]), column_of_days(["a", "b", "c", "d"]), list("abc") * 20])
def test_other_columns_are_not_taken_for_spoiled_dates(cells):
    assert doubt_about_dates(decided("admitted", cells), cells) == ""


def test_doubts_are_said_when_a_table_is_read_and_shown(tmp_path, caplog):
    days = column_of_days(["2024-02-31"], 6)
    rows = [f"{day},w{i // 2},{i % 7},{i % 2}" for i, day in enumerate(days)]
    (tmp_path / "t.csv").write_text("\n".join(["admitted,ward,age,label", *rows]))
    samples = load_samples(str(tmp_path / "t.csv"), Reading(columns="admitted,ward:category,age"))
    assert "'2024-02-31'" in caplog.text
    federation = from_samples(samples, SplitPlan(0.1, 0.25, 1, 0), clients=2, partition=None, fallback=IID())
    assert "'ward'" in federation.standardisation_note()
    assert "'admitted'" not in federation.standardisation_note()


def test_one_column_cannot_be_label_and_client(tmp_path):
    (tmp_path / "t.csv").write_text("\n".join(["a,site", *(f"{i},{i % 2}" for i in range(20))]))
    np.savez(tmp_path / "t.npz", x=np.zeros((20, 2)), y=np.arange(20) % 2)
    for name, column in (("t.csv", "site"), ("t.npz", "y")):
        with pytest.raises(DataError, match=f"'{column}'") as error:
            load_samples(str(tmp_path / name), Reading(label=column, client=column))
        assert "\n" not in str(error.value)
