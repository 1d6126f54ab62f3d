"""`strata predict` and `strata export` with the model of a client of a run."""

import csv
import io

import numpy as np
import pytest
from cli_helpers import checked_line
from safetensors.torch import load_file

import stratafl
from stratafl.runs.directory import config_of

SITES = ("Basel", "Bern", "Chur")
NEW = "b,note,a\n0.1,x,2.0\n0.3,y,-2.0\n-1.5,z,0.1\n"


@pytest.fixture
def run(strata, place):
    rng = np.random.default_rng(0)
    cells = [(*rng.normal(size=2), SITES[number % 3]) for number in range(90)]
    rows = [f"{a:.3f},{b:.3f},{site},{'yes' if a + b / 3 > 0 else 'no'}" for a, b, site in cells]
    (place / "all.csv").write_text("\n".join(["a,b,site,label", *rows, ""]))
    (place / "new.csv").write_text(NEW)
    settings = ("--set", "data.client=site", "--set", "model.hidden=[4]")
    assert (
        strata("run", "--data", "all.csv", "--algorithm", "fedper", "--rounds", 2, *settings, "--out", "run").code == 0
    )
    return place / "run"


@pytest.mark.budget(1, "a run of three sites")
def test_a_client_predicts_rows_in_any_order_by_name_and_by_number(run, strata, place):
    printed = strata("predict", "run", "--client", "Bern", "--data", "new.csv")
    assert printed.code == 0, printed.err
    rows = list(csv.DictReader(io.StringIO(printed.out)))
    bern = stratafl.load(run).client("Bern")
    x = np.array([[2.0, 0.1], [-2.0, 0.3], [0.1, -1.5]], np.float32)
    assert [row["prediction"] for row in rows] == bern.predict(x).tolist()
    probabilities = [[float(row[f"probability_{name}"]) for name in ("no", "yes")] for row in rows]
    assert np.allclose(probabilities, bern.predict_proba(x).numpy(), atol=1e-6)
    assert strata("predict", "run", "-c", 1, "-d", "new.csv", "-o", "out.csv").code == 0
    assert (place / "out.csv").read_text() == printed.out
    assert printed.out != strata("predict", "run", "-c", "Chur", "-d", "new.csv").out
    assert "out.csv" in checked_line(strata("predict", "run", "-c", 1, "-d", "new.csv", "-o", "out.csv"))


def _files(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.budget(1, "a run of three sites")
def test_a_client_joins_is_exported_and_predicts_where_the_data_is_gone(run, strata, place):
    before = _files(run)
    assert strata("export", "run", "--client", "Chur", "-o", "chur.safetensors").code == 0
    chur = stratafl.load(run).client(2)
    assert all(np.array_equal(x, chur.state[name]) for name, x in load_file(place / "chur.safetensors").items())
    rows = (place / "all.csv").read_text().splitlines()
    (place / "late.csv").write_text(
        "\n".join([rows[0], *(row.replace("Bern", "Egg") for row in rows if "Bern" in row)])
    )
    added = strata("add-client", "run", "--client", "Egg", "--data", "late.csv")
    assert added.code == 0, added.err
    after = _files(run)
    assert {path: after[path] for path in before} == before
    assert [path.name for path in after if path not in before] == ["3.safetensors"]
    printed = strata("predict", "run", "-c", "Egg", "-d", "new.csv").out
    assert printed.count("\n") == 4
    fitted = stratafl.load(run)
    x = np.loadtxt(place / "late.csv", delimiter=",", skiprows=1, usecols=(0, 1))
    y = [row.rsplit(",")[-1] for row in (place / "late.csv").read_text().splitlines()[1:]]
    again = fitted.add_client("again", x, y)
    assert (again.number, fitted.client_names) == (4, (*SITES, "Egg", "again"))
    fitted.save(place / "saved")
    resumed = strata("resume", "run", "--rounds", 3)
    assert (resumed.code, "'Egg'" in resumed.err) == (0, True)  # whose model is that of an earlier round
    assert strata("add-client", "run", "-c", "Fluelen", "-d", "late.csv").code == 0
    assert sorted(path.name for path in (run / "added").iterdir()) == ["3.safetensors", "4.safetensors"]
    assert strata("add-client", "run", "-c", "Egg", "-d", "late.csv").code == 0
    assert {*stratafl.load(run).client_names} == {*SITES, "Egg", "Fluelen"}
    (place / "all.csv").unlink()
    elsewhere = strata("predict", "saved", "-c", "Egg", "-d", "new.csv")
    assert elsewhere.out == printed, elsewhere.err
    assert strata("add-client", "saved", "-c", "Fluelen", "-d", "late.csv").code == 0
    assert stratafl.load(place / "saved").client_names[-1] == "Fluelen"
    for words, value in (
        (("add-client", "saved", "-c", "Egg", "-d", "late.csv"), "'Egg'"),
        (("add-client", "saved", "-c", "Ganterschwil", "-d", "new.csv"), "label"),
        (("add-client", ".", "-c", "Ganterschwil", "-d", "late.csv"), "'run'"),
        (("add-client", "none", "-c", "Ganterschwil", "-d", "late.csv"), "'none'"),
        (("resume", ".", "--rounds", 3), "'.'"),
    ):
        assert value in checked_line(strata(*words)), words
    damaged = bytearray((place / "saved" / "added" / "3.safetensors").read_bytes())
    damaged[-5] ^= 255
    (place / "saved" / "added" / "3.safetensors").write_bytes(damaged)
    assert "3.safetensors" in checked_line(strata("predict", "saved", "-c", "Egg", "-d", "new.csv"))


@pytest.mark.budget(1, "a run of three sites")
def test_what_is_wrong_is_one_line(run, strata, place):
    (place / "lacks.csv").write_text("a,c\n1,2\n")
    for words, value in (
        (("predict", "run", "-d", "new.csv"), "Basel, Bern, Chur"),
        (("predict", "run", "-c", "bern", "-d", "new.csv"), "'Bern'"),
        (("predict", "run", "-c", 3, "-d", "new.csv"), "no client 3"),
        (("predict", "run", "-c", "Bern", "-d", "lacks.csv"), "'b'"),
        (("predict", "run", "-c", "Bern", "-d", "missing.csv"), "'missing.csv'"),
        (("predict", "run", "-c", "Bern", "-d", "new.csv", "-o", "out.txt"), "'out.txt'"),
        (("predict", "elsewhere", "-d", "new.csv"), "'elsewhere'"),
        (("predict", "elsewhere", "-c", "Bern", "-d", "new.csv"), "'elsewhere'"),
        (("predict", ".", "-c", "Bern", "-d", "new.csv"), "'run'"),
        (("export", "run", "-o", "model.onnx"), "--client"),
        (("add-client", "run", "-c", "Egg", "-d", "missing.csv"), "'missing.csv'"),
        (("add-client", "run", "-c", "Egg", "-d", "new.csv"), "label"),
        (("add-client", "run", "-c", "Egg", "-d", "all.csv"), "'Basel'"),
        (("resume", "run", "--rounds", 1), "2"),
    ):
        assert value in checked_line(strata(*words)), words


@pytest.mark.budget(1.5, "a run on texts")
def test_texts_go_from_a_table_to_predictions_in_two_commands(strata, place):
    words = {"admit": "fever cough acute pain", "discharge": "routine stable healthy well"}
    rows = [(n, "admit" if n % 3 else "discharge") for n in range(60)]
    lines = [f"seen on day {n}: {words[label]},{label},{SITES[n % 2]}" for n, label in rows]
    (place / "notes.csv").write_text("\n".join(["note,label,site", *lines, ""]))
    (place / "new.csv").write_text("bed,note\n4,fever and cough\n5,routine and stable\n")
    asked = ("--data", "notes.csv", "--set", "data.client=site", "--set", "data.vocabulary=500")
    assert strata("run", *asked, "--rounds", 4, "--out", "run").code == 0
    printed = strata("predict", "run", "--client", "Bern", "--data", "new.csv")
    assert [row["prediction"] for row in csv.DictReader(io.StringIO(printed.out))] == ["admit", "discharge"]
    fitted = stratafl.load(place / "run")
    texts = ["fever and cough", "routine and stable"]
    assert fitted.client("Bern").predict(texts).tolist() == ["admit", "discharge"]
    model, train = (experiment := config_of(place / "run")).model, experiment.train
    assert (model.name, model.options["vocabulary"], train.optimizer) == ("fasttext", 500, "adam")
    (place / "odd.csv").write_text("bed,notes\n4,fever\n")
    assert "'note'" in checked_line(strata("predict", "run", "--client", "Bern", "--data", "odd.csv"))
