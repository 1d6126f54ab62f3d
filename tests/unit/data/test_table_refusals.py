"""Tables that cannot be used, and cells at prediction that do not fit: one line each that says where and what."""

import numpy as np
import pytest

from stratafl.data import load_samples
from stratafl.data.reading import Reading
from stratafl.data.tables.table_encoding import EncodedColumn, TableEncoding, encoding_from
from stratafl.errors import StrataError

# A file (with | for a new line), settings, and a word of the refusal.
FILES = (
    ("", {}, "no values"),
    ("|||", {}, "no values"),
    ("a,b,label", {}, "no values"),
    ("a;b;label", {}, "no values"),
    ("a,a,label|1,2,0", {}, "same name"),
    ("a,,label|1,2,0", {}, "no name"),
    ("1,2,3|4,5,6", {}, "numbers"),
    ("a,label|1", {}, "line 2"),
    ("a,label|1,0,5", {}, "line 2"),
    ("a,label|1,0|2,1,x|3,0,x|4,1,x", {}, "2 more lines"),
    ("a;label|1;0|2;1;x", {}, "line 3"),
    ("a\tlabel|1\t0|2", {}, "line 3"),
    ("a|label|x", {}, "no values"),
    ("sep=;|a;label", {}, "no values"),
    ("a,b|1,2", {}, "data.label"),
    ("a,Label|1,2", {}, "'Label'"),
    ("a,LABEL|1,2", {}, "'LABEL'"),
    ("a,hospital,died|1,x,0", {}, "data.client"),
    ("a,died,Client|1,0,x", {}, "data.label"),
    ("a,label,Client|1,0,x", {}, "'Client'"),
    ("a,label|1,0", {"label": "died"}, "'died'"),
    ("a,label|1,0", {"client": "hospitl"}, "'hospitl'"),
    ("a,hospital,label|1,x,0", {"client": "hospitl"}, "'hospital'"),
    ("a,label|1,0", {"group": "patient"}, "'patient'"),
    ("a,label|1,0", {"client": "x", "group": "y"}, "data.group"),
    ("a,label|1,0", {"label": "x", "client": "y"}, "data.client"),
    ("a,label|1,0", {"group": "label"}, "data.group"),
    ("a,client,label|1,x,0", {"group": "client"}, "data.group"),
    ("a,label|1,|2,0", {}, "line 2"),
    ("a,label|1,0|2,NA|3,null|4,N/A", {}, "2 more"),
    ("a,label|1,0|2,nan", {}, "line 3"),
    ("a,label|1,0|2,-inf", {}, "line 3"),
    ("a,client,label|1,x,0|2,,1", {}, "line 3"),
    ("a,client,label|1,x,|2,,1", {}, "no client"),
    ("a,p,label|1,x,0|2,,1", {"group": "p"}, "no p"),
    ("label|1|0", {}, "no column of features"),
    ("client,label|x,1|y,0", {}, "no column of features"),
    ("a,label|1,0|2,1", {"ignore": "a"}, "no column of features"),
    ("a,label|1,0", {"ignore": "b"}, "'b'"),
    ("a,label|1,0", {"ignore": "*_id,z?"}, "'z?'"),
    ("a,label|1,0", {"columns": "b"}, "'b'"),
    ("age,label|1,0", {"columns": "agee"}, "'age'"),
    ("a,label|1,0", {"columns": "a:sort"}, "'a:sort'"),
    ("a,label|1,0", {"columns": "b,a:sort", "ignore": "c"}, "'c'"),
    ("a,label|x,0|y,1|x,1", {"columns": "a:number"}, "'x' in row 1"),
    ("a,label|x,0|y,1|x,1", {"columns": "a:date"}, "'x' in row 1"),
    ("a,b,label|x,u,0|y,v,1", {"columns": "a:number,b:date"}, "'b'"),
    ("a,label|2024-02-30,0|2024-01-01,1", {"columns": "a:date"}, "'2024-02-30'"),
    ("a,label|x,0|y,1", {"columns": "a:identifier"}, "no column can be used"),
    ("a,label|5,0|5,1", {"columns": "a:constant"}, "no column can be used"),
    ("a,b,label|p1,7,0|p2,7,1|p3,7,0", {}, "no column can be used"),
    ("a,b,label|,7,0|,7,1", {}, "no column can be used"),
    ("a,label|inf,0|1,1", {}, "row 1"),
    ("a,b,label|inf,x,0|1,y,1|2,x,1", {}, "'a'"),
    ('a,label|"1,234",0|"5,678",1', {}, "1234"),
    ('a,b,label|"1,234","2,000",0|"5,678","1,111",1', {}, "'b'"),
    ("a,label|1,0|2,1", {"normalise": "half"}, "data.normalise"),
    ("a,b,label|1,x,0|,y,1|2,x,0", {"normalise": "channel"}, "data.normalise"),
    ("a,b,label|1,x,low|,y,high|2,x,low", {"targets": "numbers"}, "'low'"),
    ("a,b,label|1,x,0.5|,y,inf|2,x,1", {"targets": "classes"}, "line 3"),
    ("a,b,label|1,x,0|,y,1", {"owners": 2}, "owners"),
    ("a,b,label|1,x,0|,y,1|2,x,1", {"classes": "7"}, "'7'"),
)


@pytest.mark.parametrize("number", range(0, len(FILES), 16))
def test_a_file_that_cannot_be_used_is_one_line(tmp_path, number):
    path = tmp_path / "own.csv"
    for text, settings, word in FILES[number : number + 16]:
        path.write_text(text if text == "a|label|x" else text.replace("|", "\n"))
        with pytest.raises(StrataError) as refusal:
            load_samples(str(path), Reading(**settings))
        assert word in str(refusal.value), (text, settings)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("data", "word"),
    [(b"PK\x03\x04\x00\x00 a zip", "not a csv"), (b"\xff\xfea", "not a csv"), (b"\x00" * 40, "not a csv")],
)
def test_bytes_that_are_no_table(tmp_path, data, word):
    (tmp_path / "own.csv").write_bytes(data)
    with pytest.raises(StrataError, match=word):
        load_samples(str(tmp_path / "own.csv"))


TABLE = TableEncoding(
    (EncodedColumn("age", "number"), EncodedColumn("day", "date"), EncodedColumn("ward", "category", ("ER",)))
)


@pytest.mark.parametrize(
    ("cells", "word"),
    [
        ({}, "'age', 'day', 'ward'"),
        ({"age": [1], "day": ["2024-01-01"]}, "'ward'"),
        ({"Age": [1], "day": ["2024-01-01"], "ward": ["ER"]}, "'age'"),
        ({"age": ["x"], "day": ["2024-01-01"], "ward": ["ER"]}, "'x' in row 1"),
        ({"age": ["1", "2", "x"], "day": [None] * 3, "ward": ["ER"] * 3}, "'x' in row 3"),
        ({"age": ["a", "b", "c", "d", "e"], "day": [None] * 5, "ward": [None] * 5}, "2 more"),
        ({"age": [np.inf], "day": [None], "ward": ["ER"]}, "'age' has infinity"),
        ({"age": [1, 1e200], "day": [None] * 2, "ward": ["ER"] * 2}, "1e+200, a number too large to use, in row 2"),
        ({"age": ["1", "x", "1e39"], "day": [None] * 3, "ward": ["ER"] * 3}, "'x' in row 2"),
        ({"age": ["1", None, "-1e39"], "day": [None] * 3, "ward": ["ER"] * 3}, "-1e+39"),
        ({"age": [1], "day": ["soon"], "ward": ["ER"]}, "'soon'"),
        ({"age": [1], "day": ["2024-13-01"], "ward": ["ER"]}, "'2024-13-01'"),
        ({"age": ["x"], "day": ["y"], "ward": ["ER"]}, "'y'"),
        ({"age": ["x"], "day": ["y"]}, "'ward'"),
        ({"age": [1, 2], "day": [None], "ward": ["ER"]}, "2"),
        ({"age": [1], "day": [None, None], "ward": ["ER"]}, "2"),
        ({"age": [], "day": [], "ward": []}, "no rows"),
    ],
)
def test_cells_at_prediction_that_do_not_fit(cells, word):
    with pytest.raises(StrataError) as refusal:
        TABLE.coded(cells, "new.csv")
    assert word in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "text"},
        {"kind": 3},
        {"name": None},
        {"values": [1]},
        {"fill": float("nan")},
        {"fill": "1"},
        {"flag": 1},
        {"rest": "yes"},
        {"more": 1},
    ],
)
def test_a_stored_encoding_that_was_changed_is_refused(change):
    table = TABLE.to_table()
    table["columns"][0] |= change
    with pytest.raises(ValueError, match="table"):
        encoding_from(table)
