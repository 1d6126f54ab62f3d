"""Tables as they are: kinds of columns, sums of clients, and the encoding that is fitted on them."""

from datetime import date

import numpy as np
import pytest
import torch

from stratafl.data import load_samples
from stratafl.data.builders import from_samples
from stratafl.data.partitions import IID
from stratafl.data.preprocessing import preprocessing_from
from stratafl.data.reading import Reading
from stratafl.data.splitting import SplitPlan
from stratafl.data.tables.column_sums import ColumnSums, added, table_sums
from stratafl.data.tables.kinds import codes_of, decided, plain_cells
from stratafl.data.tables.table_encoding import EncodedColumn, TableEncoding
from stratafl.errors import DataError

DAYS = [f"2024-01-{day:02d}" for day in range(1, 31)]
SITES = ["north", "south", "east"]


@pytest.mark.parametrize(
    ("cells", "kind", "codes"),
    [
        (["1", "2,5", "3"], "number", [1, 2.5, 3]),
        (np.array([1.5, np.nan, 3]), "number", [1.5, np.nan, 3]),
        ([*["1"] * 20, "unknown", "?"], "number", [*[1] * 20, np.nan, np.nan]),
        (["yes", None, "J", "no"], "boolean", [2, np.nan, 0, 1]),
        ([True, False, None], "boolean", [1, 0, np.nan]),
        (["b", "a", "b", "10", "9", "b"], "category", [3, 2, 3, 1, 0, 3]),
        (["1970-01-02", "3.1.1970", "1970-01-01 12:00"], "date", [1, 2, 0.5]),
        ([date(1970, 1, 3), None, date(1970, 1, 2)], "date", [2, np.nan, 1]),
        (["1/31/1970", "1/1/1970", "2/1/1970"], "date", [30, 0, 31]),  # the month can only be first
        (["1/2/1970", "1/1/1970", "2/1/1970"], "date", [31, 0, 1]),
        ([f"p-{number}" for number in range(30)], "identifier", None),
        (np.arange(100, 130), "identifier", None),
        (np.array([3, 3, 3]), "constant", None),
        ([None, None], "constant", None),
        ([f"the patient number {number} was seen" for number in range(30)], "text", None),
        (["yes", None, None], "category", [0, np.nan, np.nan]),
    ],
)
def test_kinds_and_codes_of_columns(cells, kind, codes):
    plain = plain_cells(cells)
    column = decided("a", plain)
    assert column.kind == kind
    if codes is not None:
        np.testing.assert_array_equal(codes_of(column, plain), codes)


def test_a_kind_that_is_asked_for():
    numbers = plain_cells(np.array([0, 1, 1]))
    assert decided("sex", numbers, kind="category").values == ("0", "1")
    assert decided("ill", ["ja", None, "nein"], kind="boolean").values == ("ja", "nein")
    with pytest.raises(DataError, match=r"'sex'.*'M'"):  # all its cells would be missing
        decided("sex", ["F", "M"], kind="boolean")
    with pytest.raises(DataError, match="'x' in row 2"):
        codes_of(decided("a", ["1", "x"], kind="number"), ["1", "x"])
    owner = ["a"] * 20 + ["b"] * 20
    restarts = np.tile(np.arange(20), 2)
    assert decided("id", plain_cells(restarts), owner).kind == "identifier"
    assert decided("id", plain_cells(restarts)).kind == "number"


@pytest.fixture
def mixed(tmp_path):
    """A table of three sites with a column of every kind, separated by semicolons, in Latin-1 with decimal commas."""
    rng = np.random.default_rng(0)
    lines = ["id;site;admitted;age;ward;smoker;unit;label"]
    for number in range(60):
        age = "" if number % 7 == 3 else f"{rng.normal(50, 9):.1f}".replace(".", ",")
        ward = ["Innere", "Geburt", "Chirurgie"][number % 3] if number != 50 else "Pädiatrie"
        smoker = ["ja", "nein", "NA"][number % 3]
        lines.append(f"{number:03d}x;{SITES[number % 3]};{DAYS[number % 30]};{age};{ward};{smoker};mg;{number % 2}")
    path = tmp_path / "mixed.csv"
    path.write_bytes("\n".join(lines).encode("latin-1"))
    return path


def federation_from(path, normalise="auto", **settings):
    samples = load_samples(str(path), Reading(client="site", normalise=normalise, **settings))
    return samples, from_samples(samples, SplitPlan(0.1, 0.25, 1, 0), clients=3, partition=None, fallback=IID())


def test_a_table_of_every_kind_is_encoded_by_training_samples(mixed):
    samples, federation = federation_from(mixed, normalise="pooled")
    kinds = {column.name: column.kind for column in samples.codes}
    assert kinds == {
        "id": "identifier",
        "admitted": "date",
        "age": "number",
        "ward": "category",
        "smoker": "boolean",
        "unit": "constant",
    }
    wards = ["ward=Chirurgie", "ward=Geburt", "ward=Innere", "ward=other"]
    assert federation.column_names == ("admitted", "age", "age missing", *wards, "smoker", "smoker missing")
    train = federation.splits["train"].indices
    ages = samples.x[:, samples.columns.index("age")][train]
    present = ages[~np.isnan(ages)]
    column = federation.table.columns[1]
    assert column.fill == pytest.approx(np.median(present), rel=0.02)  # between two samples, and bins of 0.3 %
    known = train[~np.isnan(ages)]
    assert federation.x[known, 1].mean() == pytest.approx(0, abs=1e-5)
    assert federation.x[known, 1].std(correction=0) == pytest.approx(1, abs=1e-5)
    rare = samples.x[:, 2] == samples.codes[3].values.index("Pädiatrie")
    assert (federation.x[torch.from_numpy(rare)][:, 3:7] == torch.tensor([0, 0, 0, float(rare[train].any())])).all()
    again = preprocessing_from(federation.preprocessing.to_table())
    assert again == federation.preprocessing
    assert (again.shape, again.input_shape) == ((4,), (9,))


def test_sums_of_clients_add_up_and_are_all_that_an_encoding_needs(mixed):
    samples, federation = federation_from(mixed)
    columns = [column for column in samples.codes if column.is_coded]
    train = federation.splits["train"]
    sums = added([table_sums(columns, samples.x[train.of(client)]) for client in range(3)])
    whole = table_sums(columns, samples.x[train.indices])
    for by_client, at_once in zip(sums, whole, strict=True):
        assert (by_client.count, by_client.missing) == (at_once.count, at_once.missing)
        assert (dict(by_client.bins), dict(by_client.values)) == (dict(at_once.bins), dict(at_once.values))
        assert (by_client.total, by_client.squares) == pytest.approx((at_once.total, at_once.squares))
    assert TableEncoding.fitted(columns, sums) == federation.table


def test_a_median_is_read_off_the_bins():
    values = np.array([-3.0, 0, 1, 2, 2, 700, 800])
    sums = table_sums([decided("a", plain_cells(values))], values[:, None])[0]
    assert sums.median == pytest.approx(2, rel=0.01)
    assert (sums.mean, sums.deviation) == pytest.approx((values.mean(), values.std()))
    assert (ColumnSums().median, ColumnSums().deviation) == (0.0, 0.0)


def test_raw_cells_at_prediction_have_the_places_of_training():
    table = TableEncoding(
        (
            EncodedColumn("ward", "category", ("ER", "ICU"), flag=True, rest=True),
            EncodedColumn("age", "number", ("unknown",), fill=40.0),
            EncodedColumn("smoker", "boolean", fill=1.0),
        )
    )
    cells = {"smoker": ["J", None, "no"], "age": ["1,5", "unknown", 7], "ward": ["ICU", None, "Zoo"], "x": [1, 2, 3]}
    inputs = table.applied(torch.from_numpy(table.coded(cells, "x")))
    assert inputs.tolist() == [[0, 1, 0, 0, 1.5, 1], [0, 0, 0, 1, 40, 1], [0, 0, 1, 0, 7, 0]]
    with pytest.raises(DataError, match=r"lacks 'ward'.*'many' in row 1"):
        table.coded({"age": ["many"], "smoker": ["no"]}, "new.csv")


def test_columns_that_are_chosen_or_ignored(mixed):
    samples, _ = federation_from(mixed, columns="age,unit:category,ward")
    assert [(column.name, column.kind) for column in samples.codes] == [
        ("age", "number"),
        ("unit", "category"),
        ("ward", "category"),
    ]
    samples, _ = federation_from(mixed, ignore="*i*,ward")
    assert [column.name for column in samples.codes] == ["age", "smoker"]
    with pytest.raises(DataError, match=r"'agge'.*'age'.*'ward:sort'.*'z\*'"):
        federation_from(mixed, columns="agge,ward:sort", ignore="z*")
