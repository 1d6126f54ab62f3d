"""Tables as they are, from the file to predictions of a site: by the command, in Python and as ONNX."""

import csv
import io
import json

import numpy as np
import pytest
from cli_helpers import checked_line

import stratafl

SITES = ("Basel", "Bern", "Chur")
WARDS, SMOKERS = ("ER", "ICU", "Surgery"), ("yes", "no", "")
NEW = (
    "ward;age;smoker;admitted;note\n"
    "ICU;71,5;ja;2024-02-03;x\n"
    "Zoo;NA;;2031-01-01;y\n"  # a ward that nobody has seen, and missing cells
    "ER;40;no;;z\n"
)
CELLS = {
    "smoker": ["ja", None, "no"],
    "age": [71.5, np.nan, 40.0],
    "admitted": ["2024-02-03", "2031-01-01", None],
    "ward": ["ICU", "Zoo", "ER"],
}


@pytest.fixture
def run(strata, place):
    """A run on a table of identifiers, dates, categories, booleans and missing cells."""
    rng = np.random.default_rng(0)
    lines = ["patient;site;admitted;age;ward;smoker;label"]
    for number in range(90):
        age, ward, smoker = rng.normal(60, 12), WARDS[rng.integers(3)], SMOKERS[rng.integers(3)]
        risk = (age - 60) / 12 + 2 * (ward == "ICU") - 1 + rng.normal(0, 0.5)
        day = f"2024-{1 + number % 12:02d}-{1 + number % 28:02d}"
        shown = "" if rng.random() < 0.2 else f"{age:.1f}".replace(".", ",")
        lines.append(
            f"P{number:03d};{SITES[number % 3]};{day};{shown};{ward};{smoker};{'died' if risk > 0 else 'left'}"
        )
    (place / "all.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    (place / "new.csv").write_text(NEW)
    settings = ("--set", "data.client=site", "--set", "model.hidden=[4]", "--set", "train.lr=0.2")
    result = strata("run", "--data", "all.csv", "--algorithm", "fedper", "--rounds", 2, *settings, "--out", "run")
    assert result.code == 0, result.err
    return place / "run"


def probabilities(text):
    names = ("probability_died", "probability_left")
    return np.array([[float(row[name]) for name in names] for row in csv.DictReader(io.StringIO(text))])


@pytest.mark.budget(1, "a run of three sites")
def test_two_commands_from_a_raw_file_to_predictions_and_rows_that_do_not_fit(run, strata, place):
    printed = strata("predict", "run", "--client", "Bern", "--data", "new.csv")
    assert printed.code == 0, printed.err
    fitted = stratafl.load(run)
    bern = fitted.client("Bern")
    np.testing.assert_allclose(probabilities(printed.out), bern.predict_proba(CELLS).numpy(), atol=1e-6)
    rows = np.array(list(CELLS.values()), object).T[:, [2, 1, 3, 0]]  # in the order of the table
    assert bern.predict(rows).tolist() == bern.predict(CELLS).tolist()
    stored = json.loads((run / "preprocessing.json").read_text())["table"]
    assert [column["name"] for column in stored["columns"]] == ["admitted", "age", "ward", "smoker"]
    header, row, *_ = NEW.splitlines()
    for text, words in (
        ("ward;smoker\nER;no\n", ("'admitted', 'age'",)),
        (f"{header}\n{row.replace('71,5', 'old')}\n", ("'age'", "'old' in row 1")),
        (f"{header}\n{row.replace('2024-02-03', 'May')}\n", ("'admitted'", "'May'")),
        (f"{header}\n{row.replace('71,5', 'old').replace('2024-02-03', '31.2.2024')}\n", ("'old'", "'31.2.2024'")),
        (f"{header}\n{row};extra\n", ("line 2", "6 values")),
        (header, ("no values",)),
        ("", ("no values",)),
        ("\0\1\2", ("not a csv file",)),
        (f"{header};age\n{row};1\n", ("same name",)),
    ):
        (place / "wrong.csv").write_text(text)
        line = checked_line(strata("predict", "run", "-c", "Bern", "-d", "wrong.csv"))
        assert all(word in line for word in words), line


@pytest.mark.slow
def test_onnx_takes_columns_by_name_and_gives_what_predict_gives(run, strata, place):
    import onnxruntime

    assert strata("export", "run", "--client", "Bern", "-o", "bern.onnx").code == 0
    session = onnxruntime.InferenceSession(str(place / "bern.onnx"), providers=["CPUExecutionProvider"])
    kinds = {entry.name: entry.type for entry in session.get_inputs()}
    assert kinds == {
        "admitted": "tensor(float)",
        "age": "tensor(float)",
        "ward": "tensor(string)",
        "smoker": "tensor(string)",
    }
    bern = stratafl.load(run).client("Bern")
    days = [19756.0, 22280.0, np.nan]  # since 1970
    feed = {
        "admitted": np.array(days, np.float32),
        "age": np.array(CELLS["age"], np.float32),
        "ward": np.array(CELLS["ward"], object),
        "smoker": np.array(["ja", "", "no"], object),
    }
    logits = session.run(None, feed)[0]
    np.testing.assert_allclose(logits, bern.outputs(CELLS).numpy(), atol=1e-5)
    stored = session.get_modelmeta().custom_metadata_map
    assert json.loads(stored["kinds"])["ward"] == "category"
