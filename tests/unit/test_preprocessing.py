"""Raw samples: `predict`, a loaded run and an exported model do to them what was done before training."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import stratafl
from stratafl.config.experiment import Experiment, with_settings
from stratafl.data.preprocessing import Preprocessing, Scaling, Standardisation, preprocessing_from
from stratafl.data.tables.table_encoding import EncodedColumn, TableEncoding
from stratafl.errors import DataError, RunError
from stratafl.export import ModelFacts, Predictor, export_model
from stratafl.runs import Run

CLIENTS, EACH = 3, 20


def rows(kind="classes", seed=0):
    """A table in which columns differ much in size, so that nothing but standardised ones can be told apart."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((CLIENTS * EACH, 3)) * [1e-2, 1.0, 1e4] + [5.0, -300.0, 7e4]
    standard = (x - x.mean(0)) / x.std(0)
    score = standard @ [1.0, -1.0, 0.5]
    return x, np.where(score > 0, "sick", "healthy") if kind == "classes" else 2000 + 300 * score


def written(path, x, y):
    client = np.repeat([f"c{at}" for at in range(CLIENTS)], EACH)
    lines = ["a,b,c,client,label"]
    lines += [
        ",".join([*map(repr, map(float, row)), who, str(label)]) for row, who, label in zip(x, client, y, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def run_of(folder, data, *settings):
    given = [f"data.name={data}", "model.hidden=[8]", "run.rounds=3", "train.lr=0.2", *settings]
    with Run.create(with_settings(Experiment(), given), folder) as run:
        list(run.rounds())
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A run on a table with standardised columns, and its raw rows."""
    place = tmp_path_factory.mktemp("table")
    x, y = rows()
    return run_of(place / "run", written(place / "my.csv", x, y), "data.normalise=pooled"), x, y


@pytest.fixture(scope="module")
def own_table(tmp_path_factory):
    """A run on a table with default settings: each client's columns are standardised by its own training samples."""
    place = tmp_path_factory.mktemp("own")
    x, y = rows()
    return run_of(place / "run", written(place / "my.csv", x, y), "run.rounds=8", "evaluate.select=last"), x, y


@pytest.fixture(scope="module")
def regression(tmp_path_factory):
    """The same with targets that are scaled."""
    place = tmp_path_factory.mktemp("regression")
    x, y = rows("numbers")
    settings = ("data.normalise=columns", "data.targets=scaled", "train.lr=0.05")
    return run_of(place / "run", written(place / "my.csv", x, y), *settings), x, y


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Bytes that are scaled by each channel's mean and deviation."""
    place = tmp_path_factory.mktemp("images")
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, CLIENTS * EACH)
    x = (rng.integers(0, 60, (len(y), 2, 4, 4)) + 90 * y[:, None, None, None]).astype(np.uint8)
    np.savez(place / "my.npz", x=x, y=y, client=np.repeat(np.arange(CLIENTS), EACH))
    return run_of(place / "run", place / "my.npz", "data.normalise=channel"), x, y


def held_out(fitted, client):
    return fitted.sim.runtime.federation.split("test").of(client).numpy()


def hits(fitted, x, y):
    """How many raw test samples of all clients `predict` gets right, and how many there are."""
    found = [
        [str(label) == str(name) for label, name in zip(fitted.client(k).predict(x[mine]), y[mine], strict=True)]
        for k, mine in ((k, held_out(fitted, k)) for k in range(CLIENTS))
    ]
    return sum(map(sum, found)), sum(map(len, found))


def last_clients(folder, rounds):
    lines = [json.loads(line) for line in (folder / "clients.jsonl").read_text().splitlines()]
    return [line for line in lines if line["round"] == rounds]


@pytest.mark.parametrize("data", ["table", "own_table", "images"])
def test_predictions_on_raw_test_samples_are_the_runs_own_test_accuracy(data, request):
    folder, x, y = request.getfixturevalue(data)
    fitted = stratafl.load(folder)
    right, count = hits(fitted, x, y)
    assert right == round(fitted.history[fitted.progress.t - 1]["test.deployed.accuracy"] * count)
    assert right / count > 0.75  # it learns: the mistake was to say the same of everybody
    for line in last_clients(folder, fitted.progress.t):
        mine = held_out(fitted, line["client"])
        given = list(fitted.client(line["client"]).predict(x[mine]))
        assert np.mean(np.array(given).astype(str) == y[mine].astype(str)) == pytest.approx(
            line["test.deployed.accuracy"]
        )


def test_outputs_are_those_of_training_to_the_bit(table):
    fitted = stratafl.load(table[0])
    federation = fitted.sim.runtime.federation
    with torch.no_grad():
        expected = fitted.client(1).model(federation.x)
    assert torch.equal(fitted.client(1).outputs(table[1]), expected)
    assert torch.equal(fitted.client(1).outputs(table[1].astype(np.float32)), expected)


def test_each_client_standardises_by_its_own_training_samples(own_table):
    folder, x, _ = own_table
    fitted = stratafl.load(folder)
    federation = fitted.sim.runtime.federation
    told = preprocessing_from(json.loads((folder / "preprocessing.json").read_text()))
    assert told == federation.preprocessing
    for client in range(CLIENTS):
        training = federation.split("train").of(client).numpy()
        np.testing.assert_allclose(told.of(client).columns.mean, x[training].mean(0), rtol=1e-6)
        with torch.no_grad():
            expected = fitted.client(client).model(federation.x[held_out(fitted, client)])
        assert torch.equal(fitted.client(client).outputs(x[held_out(fitted, client)]), expected)


def test_a_regression_answers_in_the_units_of_its_targets(regression):
    folder, x, y = regression
    fitted = stratafl.load(folder)
    deviation = fitted.sim.runtime.federation.targets.deviation[0]
    squared = [
        (fitted.client(k).predict(x[mine])[:, 0].double().numpy() - y[mine]) ** 2
        for k in range(CLIENTS)
        for mine in [held_out(fitted, k)]
    ]
    loss = fitted.history[fitted.progress.t - 1]["test.deployed.loss"]
    assert np.concatenate(squared).mean() / deviation**2 == pytest.approx(loss, rel=1e-4)
    assert 1000 < float(fitted.client(0).predict(x).mean()) < 3000


def test_what_was_done_by_hand():
    standard = Standardisation((10.0, 0.5), (2.0, 0.0))
    given = standard.applied(torch.tensor([[14.0, 0.5], [9.0, 7.0]]), torch.float32)
    assert given.tolist() == [[2.0, 0.0], [-0.5, 0.0]]
    module = nn.Linear(2, 1)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[3.0, 5.0]]))
        module.bias.fill_(1.0)
    made = Preprocessing("float32", (2,), columns=standard, targets=Standardisation((100.0,), (20.0,)))
    predictor = stratafl.export.Predictor(module, made, torch.float32)
    assert predictor(torch.tensor([[14.0, 0.5]])).tolist() == [[240.0]]  # 100 + 20 · (3 · 2 + 1)
    assert list(predictor.state_dict()) == ["module.weight", "module.bias"]


# Exports


@pytest.mark.slow
@pytest.mark.parametrize("data", ["table", "regression", "images"])
def test_onnx_takes_raw_samples(data, request, tmp_path):
    import onnxruntime

    folder, x, _ = request.getfixturevalue(data)
    fitted = stratafl.load(folder)
    session = onnxruntime.InferenceSession(
        str(fitted.client(2).export(tmp_path / "c.onnx")), providers=["CPUExecutionProvider"]
    )
    raw = x if x.dtype == np.uint8 else x.astype(np.float32)
    names = [each.name for each in session.get_outputs()]
    assert names == (["values"] if data == "regression" else ["logits", "probabilities"])
    given = session.run(None, {"x": raw})[0]
    assert json.loads(session.get_modelmeta().custom_metadata_map.get("classes", "[]")) == list(fitted.classes)
    np.testing.assert_allclose(given, fitted.client(2).outputs(x), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_a_column_may_be_called_as_a_part_of_the_onnx_graph(tmp_path):
    import onnxruntime

    table = TableEncoding((EncodedColumn("axis", "number", fill=2.0), EncodedColumn("logits", "number")))
    made = Preprocessing("float64", (2,), table=table)
    predictor = Predictor(nn.Linear(2, 2).eval(), made, torch.float32)
    path = tmp_path / "c.onnx"
    export_model(predictor, path, ModelFacts("a", ("x", "y")))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    cells = {"axis": np.array([1, np.nan], np.float32), "logits_": np.array([3, 4], np.float32)}
    wanted = predictor(torch.tensor([[1.0, 3.0], [2.0, 4.0]], dtype=torch.float64))
    np.testing.assert_allclose(session.run(None, cells)[0], wanted.detach().numpy(), rtol=1e-5)


def test_safetensors_has_the_weights_and_says_what_is_done_to_samples(regression, tmp_path):
    fitted = stratafl.load(regression[0])
    with safe_open(fitted.client(0).export(tmp_path / "c.safetensors"), "pt") as file:
        told = preprocessing_from(json.loads(file.metadata()["preprocessing"]))
        assert set(file.keys()) == set(fitted.client(0).model.state_dict())
    assert told == fitted.sim.runtime.federation.preprocessing.of(0)
    assert told.columns is not None
    assert told.targets is not None


# What is given


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x: x / 255, "float64.*0 to 255"),
        (lambda x: x.astype(np.float32), "float32"),  # scaled or not, which nobody can tell
        (lambda x: x.astype(np.int64) + 200, "200 to"),
    ],
)
def test_bytes_are_given_as_bytes(images, change, says):
    folder, x, _ = images
    fitted = stratafl.load(folder)
    with pytest.raises(DataError, match=says) as error:
        fitted.client(0).predict(change(x))
    assert "\n" not in str(error.value)
    assert torch.equal(fitted.client(0).outputs(x.astype(np.int32)), fitted.client(0).outputs(x))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_with_gaps_are_refused(table, value):
    folder, x = table[0], np.array(table[1][:3], dtype=np.float64)
    x[1, 2] = value
    with pytest.raises(DataError, match=r"sample 1 .*NaN"):
        stratafl.load(folder).client(0).predict(x)


def test_tokens_are_no_fractions():
    raw = Preprocessing("int64", (2,)).raw
    assert raw(torch.tensor([[1.0, 2.0]])).dtype == torch.int64
    with pytest.raises(DataError, match="int64"):
        raw(torch.tensor([[1.0, 2.5]]))


def test_classes_have_their_names(table, images):
    assert stratafl.load(table[0]).classes == ("healthy", "sick")
    assert stratafl.load(images[0]).classes == ("0", "1")


# What is stored

FULL = Preprocessing(
    "uint8",
    (2, 4, 4),
    Scaling((0.1, 1 / 3), (0.2, 0.7)),
    Standardisation((1e300, 0.1), (5e-324, 0.0)),
    None,
    ("a", "ü"),
)


def test_numbers_are_stored_exactly():
    assert preprocessing_from(json.loads(json.dumps(FULL.to_table()))) == FULL


def test_the_run_stores_what_was_done(table):
    folder, x, _ = table
    told = preprocessing_from(json.loads((folder / "preprocessing.json").read_text()))
    fitted = stratafl.load(folder)
    assert told == fitted.sim.runtime.federation.preprocessing
    training = fitted.sim.runtime.federation.split("train").indices.numpy()
    np.testing.assert_allclose(told.columns.mean, x[training].mean(0), rtol=1e-6)
    np.testing.assert_allclose(told.columns.deviation, x[training].std(0), rtol=1e-3)
    assert told.classes == ("healthy", "sick")


def test_a_run_of_before_is_read_without_the_file(table, tmp_path):
    folder, x, _ = table
    file = folder / "preprocessing.json"
    before, expected = file.read_bytes(), stratafl.load(folder).client(0).outputs(x)
    file.unlink()
    try:
        assert torch.equal(stratafl.load(folder).client(0).outputs(x), expected)
    finally:
        file.write_bytes(before)


def changed(**values):
    return lambda told: {**told, **values}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda told: {**told, "columns": {**told["columns"], "mean": [0.0, 0.0, 0.0]}}, "was changed"),
        (changed(columns=None), "was changed"),
        (changed(classes=["sick", "healthy"]), "was changed"),
        (
            lambda told: {**told, "columns": {"mean": [1.0], "deviation": [1.0, 2.0]}},
            "preprocessing.json'.*1 .*2 ",
        ),
        (
            lambda told: {**told, "columns": {"mean": ["1"] * 3, "deviation": [1.0] * 3}},
            "columns.mean ",
        ),
        (
            lambda told: {**told, "columns": {"mean": [1e999] * 3, "deviation": [1.0] * 3}},
            "Infinity",
        ),
        (lambda told: {**told, "columns": {"mean": [1.0] * 3}}, "columns .*deviation, mean"),
        (changed(columns=[1]), "columns "),
        (changed(shape=[3.0]), "shape "),
        (changed(shape=7), "shape "),
        (changed(dtype="nn"), "dtype "),
        (changed(dtype=3), "dtype "),
        (changed(classes=[1]), "classes "),
        (changed(format=2), "format 1"),
        (changed(more=1), "format, dtype, shape"),
        (lambda told: {}, "format, dtype, shape"),
        (lambda told: [told], "list"),
    ],
)
def test_a_file_that_says_something_else_is_refused(table, change, says):
    folder = table[0]
    file = folder / "preprocessing.json"
    before = file.read_bytes()
    file.write_text(json.dumps(change(json.loads(before))))
    try:
        with pytest.raises(RunError, match=says) as error:
            stratafl.load(folder)
        assert "\n" not in str(error.value)
    finally:
        file.write_bytes(before)


def test_a_standardisation_is_of_finite_numbers():
    for mean, deviation in (((), ()), ((0.0,), (-1.0,)), ((float("nan"),), (1.0,)), ((0.0,), (1.0, 1.0))):
        with pytest.raises(DataError):
            Standardisation(mean, deviation)
    with pytest.raises(DataError):
        replace(FULL.columns, mean=(1.0,))
