"""Sites with tables as they are: they agree on an encoding from their sums, and end with the simulation's tensors."""

import json

import numpy as np
import pytest

from hosted import Local, deployed, largest, simulated, simulation, with_tables, write_file
from stratafl.config.deployment import new_samples_of
from stratafl.data.tables.column_sums import ColumnSums
from stratafl.data.tables.introduced_columns import IntroducedColumn, common_columns
from stratafl.data.tables.kinds import TableColumn
from stratafl.deploy.agreement import Agreement, Introduction
from stratafl.deploy.hosting import AGREED, Hosting
from stratafl.deploy.member import SiteMember
from stratafl.deploy.secure.session import basis_of
from stratafl.deploy.site_model import predicted
from stratafl.errors import DataError, WireError

SITES = ("a", "b", "c")
CODES = {"c": ("0", "1")}  # instead of F and M


def write_patients(folder):
    """A table for each site, of which one codes otherwise and one has one ward alone; and one of all sites."""
    rng, rows = np.random.default_rng(0), {site: [] for site in SITES}
    for number in range(120):
        site = SITES[number % 3]
        age, sex = rng.normal(60, 12), CODES.get(site, ("F", "M"))[rng.integers(2)]
        ward = "ICU" if site == "b" else ("ICU", "ER")[rng.integers(2)]
        shown = "" if rng.random() < 0.2 else f"{age:.1f}"
        rows[site].append(f"P{number},{shown},{sex},{ward},{'died' if age + rng.normal(0, 5) > 62 else 'left'}")
    head = "id,age,sex,ward,label"
    for site, lines in rows.items():
        (folder / f"{site}.csv").write_text("\n".join([head, *lines]))
    whole = [f"{line},{site}" for site, lines in rows.items() for line in lines]
    (folder / "all.csv").write_text("\n".join([f"{head},client", *whole]))


@pytest.mark.budget(1.2, "a federation of three sites in this process")
@pytest.mark.parametrize("normalise", ["auto", pytest.param("columns", marks=pytest.mark.slow)])
def test_sites_with_raw_tables_end_as_a_simulation_does(tmp_path, normalise):
    write_patients(tmp_path)
    deploy = {"sites": list(SITES), "classes": ["died", "left"]}
    run = {"rounds": 2, "participation": 1.0}
    file = with_tables(data={"normalise": normalise}, deploy=deploy, run=run)
    sites = {name: tmp_path / name for name in SITES}
    for place in (tmp_path / "host", *sites.values()):
        write_file(place, file)
    courier = Local(tmp_path, sites)
    host = Hosting(tmp_path / "host", courier, pause=lambda seconds: None)
    host.run()
    agreed = Agreement.load(tmp_path / "host" / AGREED).format
    encoding = simulation(tmp_path, file).runtime.federation.preprocessing
    assert agreed.preprocessing.table == encoding.table
    assert (agreed.own_columns, agreed.preprocessing.columns) == (normalise == "columns", encoding.columns)
    assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) == 0
    member = SiteMember(sites["b"], "b", str(tmp_path / "b.csv"))
    tables = [each.to_table() for each in (host._agreement.format, agreed, member.agreed_format())]
    assert len({basis_of(table, b"") for table in tables}) == 1  # it has one form, which sums compare
    (tmp_path / "new.csv").write_text("ward,sex,age\nZoo,F,\nICU,1,70\n")
    answers = predicted(member, tmp_path / "new.csv")
    assert answers.values.shape == (2, 2)
    assert new_samples_of(file.experiment, agreed, tmp_path / "new.csv").x[0].tolist()[-1] == -1


def entry(kind, values=None, count=0, **sums):
    column = TableColumn("a", kind)
    return [IntroducedColumn(column, ColumnSums(count, values=values or {}, **sums))]


def test_what_all_sites_take_a_column_for():
    few = entry("number", {"0": 3, "1": 2}, 5)
    (column,), (sums,) = common_columns({"x": few, "y": entry("category", {"F": 4}, 4)})
    assert (column.kind, column.values, sums.values) == ("category", ("0", "1", "F"), {"0": 3, "1": 2, "F": 4})
    (column,), (sums,) = common_columns({"x": entry("constant", {"7": 3}, 3), "y": entry("number", count=2, total=4.0)})
    assert (column.kind, sums.count, sums.total) == ("number", 5, 25.0)
    with pytest.raises(DataError, match=r"'a'.*'x'.*'y'"):
        common_columns({"x": entry("number", count=30, total=1.0), "y": entry("category", {"F": 4}, 4)})
    with pytest.raises(DataError, match="no column"):
        common_columns({"x": entry("identifier"), "y": entry("constant", {"1": 1}, 1)})


def test_an_introduction_with_columns_is_read_again_and_checked(tmp_path):
    write_patients(tmp_path)
    head, first, second, *rest = (tmp_path / "a.csv").read_text().splitlines()
    first, second = f"X1,unknown,{first.split(',', 2)[2]}", second.replace("ICU", "Jane Roe").replace("ER", "Jane Roe")
    (tmp_path / "a.csv").write_text("\n".join([head, first, second, *rest]))
    write_file(tmp_path / "a", with_tables(deploy={"sites": list(SITES), "classes": ["died", "left"]}))
    told = SiteMember(tmp_path / "a", "a", str(tmp_path / "a.csv")).introduce({"federation": "test"})
    told = json.loads(json.dumps(told))
    assert json.loads(json.dumps(Introduction.from_table(told).to_table())) == told
    for text in ("P0", "Jane Roe", "unknown"):  # neither identifiers, nor what few samples have, nor odd cells
        assert text not in json.dumps(told)
    for change in ({"count": -1}, {"count": 10**400}, {"bins": [[10**9, 5]]}, {"bins": [[-(10**9), 5]]}):
        odd = json.loads(json.dumps(told))
        odd["columns"][1]["sums"] |= change
        with pytest.raises(WireError):
            Introduction.from_table(odd)
    assert ColumnSums(1, total=1e200, squares=1e300).deviation == 0  # no error of arithmetic at the host
