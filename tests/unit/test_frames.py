"""`fit` with one table: columns of labels and clients, with categories, dates and missing values."""

import numpy as np
import pytest
import torch

import stratafl
from stratafl.algorithms import fedper
from stratafl.errors import DataError, StrataError
from stratafl.policies import LocalTraining

METHOD = fedper(train=LocalTraining(batch=40))
SITES = ("Basel", "Bern", "Chur")


def table(pandas, count=60):
    rng = np.random.default_rng(0)
    age, lab = rng.normal(60, 10, count), rng.normal(size=count)
    frame = pandas.DataFrame({"age": age, "sex": rng.choice(["f", "m"], count), "lab": lab})
    frame.loc[::7, "lab"] = np.nan
    frame.loc[::9, "sex"] = None
    return frame.assign(hospital=np.array(SITES)[np.arange(count) % 3], died=np.where(age > 60, "yes", "no"))


def fitted_on(data, **options):
    return stratafl.fit(METHOD, data, "mlp", rounds=1, engine="stacked", **options)


@pytest.mark.budget(2, "imports pandas")
def test_a_data_frame_is_read_as_a_file_of_its_columns(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = table(pandas)
    fitted = fitted_on(frame, label="died", client="hospital")
    assert (fitted.client_names, fitted.classes) == (SITES, ("no", "yes"))
    assert set(fitted.sim.runtime.federation.column_names) > {"age", "sex=f", "lab missing"}
    outputs = fitted.client("Bern").outputs(frame)
    apart = {site: frame[frame.hospital == site].drop(columns="hospital") for site in SITES}
    assert torch.equal(fitted_on(apart, label="died").client("Bern").outputs(frame), outputs)
    loaded = stratafl.load(fitted.save(tmp_path / "saved"))
    assert torch.equal(loaded.client("Bern").outputs(frame), outputs)
    late = [each.add_client("Davos", frame[:20], frame.died[:20]).outputs(frame) for each in (fitted, loaded)]
    assert torch.equal(*late)
    for data, options, value in (
        (frame.head(0), {"label": "died", "client": "hospital"}, "no rows"),
        (frame, {}, "label"),
        (frame, {"label": "died"}, "client"),
        (frame, {"client": "hospital"}, "label"),
        (frame, {"label": "dead", "client": "hospital"}, "'dead'"),
        (frame, {"label": "died", "client": "ward"}, "'ward'"),
        (apart, {"label": "died", "client": "hospital"}, "client"),
        ({**apart, "Bern": apart["Bern"].drop(columns="sex")}, {"label": "died"}, "'sex'"),
        ({**apart, "Bern": (1, 2)}, {"label": "died"}, "'Bern'"),
        ([1, 2], {"label": "died"}, "list"),
        (frame, {"label": "died", "client": "hospital", "normalise": "all"}, "'all'"),
    ):
        with pytest.raises(StrataError, match=value) as error:
            fitted_on(data, **options)
        assert "\n" not in str(error.value)
    with pytest.raises(DataError, match="'age'"):
        fitted.client(0).predict(frame.drop(columns="age"))
    with pytest.raises(DataError, match="'age'"):
        fitted.client(0).predict(dict(frame.iloc[0]))
    numbered = fitted_on(frame.assign(died=(frame.died == "yes") + 3), label="died", client="hospital")
    assert {*numbered.client(0).predict(frame).tolist()} <= {3, 4}


@pytest.mark.budget(2, "imports pandas")
def test_a_few_impossible_dates_are_reported(caplog):
    pandas = pytest.importorskip("pandas")
    dates = [f"2024-0{1 + i % 9}-1{i % 4}" for i in range(60)]
    dates[3] = dates[40] = "2024-02-31"
    columns = {"admitted": np.array(dates, object), "age": np.arange(60.0) / 7, "died": np.arange(60) % 2}
    frame = pandas.DataFrame({**columns, "hospital": np.array(SITES)[np.arange(60) % 3]})
    fitted_on(frame, label="died", client="hospital")
    assert "'admitted'" in caplog.text
    assert "'2024-02-31'" in caplog.text


@pytest.mark.slow
def test_a_dataset_of_hugging_face_has_names_of_classes():
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    frame = table(pandas)
    data = datasets.Dataset.from_pandas(frame).class_encode_column("died")
    fitted = fitted_on(data, label="died", client="hospital")
    expected = fitted_on(frame, label="died", client="hospital")
    assert fitted.classes == ("no", "yes")
    assert torch.equal(fitted.client("Chur").outputs(frame), expected.client("Chur").outputs(frame))


ILL = "fever cough and pain in the ward with acute dyspnea {}"
WELL = "a routine visit with stable and healthy signs and note {}"
TEXTS = {site: [(ILL if i % 3 else WELL).format(f"{site} {i}") for i in range(20)] for site in SITES}
ANSWERS = {site: ["admit" if i % 3 else "home" for i in range(20)] for site in SITES}


@pytest.mark.budget(4, "imports pandas, and fits four times")
def test_lists_of_texts_are_taken_as_a_table_with_a_column_of_texts(tmp_path):
    pandas = pytest.importorskip("pandas")
    clients = {site: (TEXTS[site], ANSWERS[site]) for site in SITES}
    rows = [
        (text, *pair) for site in SITES for text, *pair in zip(TEXTS[site], ANSWERS[site], [site] * 20, strict=True)
    ]
    frame = pandas.DataFrame(rows, columns=["text", "answer", "site"])
    fitted = stratafl.fit(METHOD, clients, "fasttext", rounds=1, engine="stacked")
    expected = stratafl.fit(METHOD, frame, "fasttext", rounds=1, engine="stacked", label="answer", client="site")
    positional = stratafl.fit(METHOD, [*clients.values()], "fasttext", rounds=1, engine="stacked")
    new = ["fever and pain", "healthy", ""]
    outputs = expected.client("Bern").outputs(new)
    assert torch.equal(fitted.client("Bern").outputs(new), outputs)
    assert torch.equal(positional.client(1).outputs(new), outputs)
    assert (fitted.client_names, fitted.classes) == (SITES, ("admit", "home"))
    assert {*fitted.client("Bern").predict(new)} <= {"admit", "home"}
    loaded = stratafl.load(fitted.save(tmp_path / "saved"))
    late = [each.add_client("Davos", TEXTS["Bern"], ANSWERS["Bern"]).outputs(new) for each in (fitted, loaded)]
    assert torch.equal(*late)
    backwards = stratafl.fit(METHOD, dict(reversed(clients.items())), "fasttext", rounds=1)
    assert backwards.client_names == SITES[::-1]


def test_texts_may_have_their_own_splits_and_bad_ones_are_one_line():
    splits = {site: {"train": (TEXTS[site][:12], [0, 1] * 6), "test": (TEXTS[site][12:], [1] * 8)} for site in SITES}
    fitted = stratafl.fit(METHOD, splits, "fasttext", rounds=1)
    assert fitted.sim.runtime.federation.counts("test").tolist() == [8, 8, 8]
    assert fitted.sim.runtime.federation.counts("validation").tolist() == [0, 0, 0]
    assert {*fitted.client(0).predict(["a"]).tolist()} <= {0, 1}
    good = (TEXTS["Bern"], ANSWERS["Bern"])
    for other, value in (
        (([*TEXTS["Bern"][:3], 4], ANSWERS["Bern"][:4]), "4"),
        ((TEXTS["Bern"], ["home"]), "20"),
        (([], []), "'Chur'"),
        ((["", " "], ["home", "admit"]), None),
        ((np.zeros((3, 2)), [0, 1, 1]), "Chur"),
        (3, "Chur"),
    ):
        if value is None:
            continue
        with pytest.raises(StrataError, match=value) as error:
            stratafl.fit(METHOD, {"Basel": good, "Chur": other}, "fasttext", rounds=1)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("label", [0, 1.5, ("a", "b")])
def test_columns_without_a_text_as_name_are_refused_with_the_line_that_renames_them(label):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"h": ["A", "B"] * 10, "y": [0, 1] * 10})
    table[label] = 1.0
    with pytest.raises(DataError, match=r"table\.columns\.map\(str\)"):
        stratafl.fit("fedavg", table, "mlp", rounds=1, label="y", client="h")


def test_a_method_and_a_model_by_name_train_as_the_command_does():
    texts = {"Basel": (["red apple", "green pear"] * 8, ["a", "p"] * 8)}
    of_texts, faster = (stratafl.fit("fedavg", texts, "fasttext", rounds=1, lr=lr) for lr in (None, 0.1))
    of_numbers = stratafl.fit("fedavg", [(torch.randn(16, 4), torch.arange(16) % 2)], "mlp", rounds=1)
    training = [fitted.sim.algorithm.train[0] for fitted in (of_texts, faster, of_numbers)]
    assert [(step.optimizer, step.lr) for step in training] == [("adam", 0.03), ("adam", 0.1), ("sgd", 0.05)]
