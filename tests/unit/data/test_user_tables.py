"""Tables with something missing or written otherwise: the sentence says where, and what to do."""

import re

import numpy as np
import pytest
from data_files import table

from stratafl.data import load_samples
from stratafl.data.user_files import perhaps_clients
from stratafl.errors import DataError


def refusal(folder, text):
    path = folder / "mine.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as error:
        load_samples(str(path))
    assert "\n" not in str(error.value)
    assert f"'{path}'" in str(error.value)
    return str(error.value).replace(f"'{path}'", "FILE")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a,label\n\n1,0\n2, \n3,NA\n", "line 4 .* no label.* 1 more"),
        ('client,a,label\n"an\nn",1,0\n,1,0\n', "line 4.* no client"),
        ("a,label\n1.5,0\n2,inf\n", "line 3.*label"),
        ("a,label\n1.5,0\ninf,1\n", "'a'.*row 2"),
        ("a,Label\n1,0\n", r"'label'.*data\.label.*'Label'"),
        ("a,Y\n1,0\n", r"'label'.*data\.label.*'Y'"),
        ("a,b\n1,0\n", r"'label'.*data\.label"),
        ("a,Client,label\n1,0,1\n", r"'Client'.*data\.client.*'Client'"),
        ("a;label\n", "no values"),
        ('a,label\n"1,234",0\n"2,500",1\n', "'a'.*1234.*1.234"),
        ("age,hospital,died\n1,x,0\n", r"data\.label.*data\.client"),
        ("1,2,0\n3,4,1\n", "line 1 "),
        (",a,label\n0,1,0\n", r"column 1 .*\(''\).*index=False"),
        ("a,Unnamed: 0,label\n0,1,0\n", "column 2 .*'Unnamed: 0'"),
        ("a,label\n1,0\n\n1,2,3\n", "line 4.*3.*2"),
    ],
)
def test_a_csv_file_with_a_mistake(tmp_path, text, says):
    assert re.search(says, refusal(tmp_path, text))


def test_an_index_of_pandas_in_a_parquet_file(tmp_path):
    import pyarrow
    import pyarrow.parquet

    columns = {"a": [1, 2], "label": [0, 1], "__index_level_0__": [0, 1]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "mine.parquet")
    with pytest.raises(DataError, match=r"column 3 .*'.*mine.parquet'.*'__index_level_0__'"):
        load_samples(str(tmp_path / "mine.parquet"))


@pytest.mark.parametrize("clients", [["ann", None], [1, None]])
def test_a_sample_of_nobody(tmp_path, clients):
    import pyarrow
    import pyarrow.parquet

    columns = {"a": [1, 2], "label": [0, 1], "client": clients}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "mine.parquet")
    with pytest.raises(DataError, match=r"row 2 of .* has no client"):
        load_samples(str(tmp_path / "mine.parquet"))


def test_columns_that_nobody_asked_for_may_be_empty(tmp_path):
    path = table(tmp_path / "mine.csv", ["image", "label", ""], [["a.png", 0, ""]])
    from stratafl.data.formats.columns import Request
    from stratafl.data.formats.csv_files import read_csv

    (tmp_path / "a.png").write_bytes(b"")
    found = read_csv([path], Request(only=True))
    assert (found["image"], np.asarray(found["label"]).tolist()) == ([tmp_path / "a.png"], [0])


@pytest.mark.parametrize(
    ("lines", "hinted"),
    [
        ("city,label|bonn,0|ulm,1|bonn,1|ulm,0", True),
        ("city,site,label|bonn,a,0|ulm,a,1|bonn,b,1|ulm,b,0", True),  # by its name
        ("city,ward,label|bonn,a,0|ulm,a,1|bonn,b,1|ulm,b,0", False),
        ("city,label|1,0|NA,1|1,0|NA,1|2,0", False),  # numbers that are missing
        ("city,client,label|bonn,1,0|ulm,1,1|bonn,2,1|ulm,2,0", False),  # there are clients
    ],
)
def test_texts_that_come_again_and_again_may_be_clients(tmp_path, lines, hinted):
    (tmp_path / "own.csv").write_text(lines.replace("|", "\n"))
    samples = load_samples(str(tmp_path / "own.csv"))
    assert (samples.owner is None and "data.client" in perhaps_clients(samples.codes)) is hinted


def test_endings_that_are_not_read_say_which_are():
    for name, hint in (("my.cvs", "'my.csv'"), ("my.xlsx", "")):
        suffix = name.removeprefix("my")
        with pytest.raises(DataError) as caught:
            load_samples(name)
        assert re.search(rf"'{name}' .*\{suffix}.*{hint}.*\.npz, \.csv, \.parquet", str(caught.value))
