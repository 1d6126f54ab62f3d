"""`compare`, `tune` and `advise` in Python: what the commands do, for samples and models in memory."""

import sys
import tomllib
from functools import partial
from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

import stratafl
from stratafl.algorithms import fedavg
from stratafl.api import comparing
from stratafl.api.requests import requested
from stratafl.cli import main
from stratafl.config.assemble import federation_of
from stratafl.config.experiment import with_values
from stratafl.data import from_clients, from_splits
from stratafl.errors import DataError, ModelError, RecordError, RunError, StrataError, UnknownNameError
from stratafl.report.chance import MAJORITY
from stratafl.runs.logistic import LOGISTIC_ALONE, LOGISTIC_POOLED

NAMES = ("Basel", "Aarau", "Chur")  # not in the order of the alphabet
QUICK = {"rounds": 2, "seeds": 1, "progress": False}


def pairs(seed=0, count=24):
    rng = np.random.default_rng(seed)
    x = [rng.standard_normal((count, 3)).astype(np.float32) for _ in NAMES]
    return {name: (each, np.where(each[:, 0] > 0, "yes", "no")) for name, each in zip(NAMES, x, strict=True)}


def table(columns):
    import pandas  # takes a second

    return pandas.DataFrame(columns)


class Net(nn.Sequential):
    """A person's own model, with weights that the test draws."""

    def __init__(self, seed=0):
        torch.manual_seed(seed)
        super().__init__(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def result(folder):
    return stratafl.compare(["local", "fedavg"], pairs(), Net(), folder=folder / "compared", cross_site=True, **QUICK)


def again(result, **other):
    asked = {"methods": "local,fedavg", "clients": pairs(), "model": Net(), "folder": result.folder, **QUICK}
    asked |= {"cross_site": True, **other}
    return stratafl.compare(asked.pop("methods"), asked.pop("clients"), asked.pop("model"), **asked)


@pytest.mark.slow
def test_a_run_of_a_comparison_is_what_fit_gives(result):
    fitted, run = stratafl.fit(fedavg(), pairs(), Net(), rounds=2), result.fitted("fedavg")
    assert run.client_names == fitted.client_names == NAMES
    assert run.classes == fitted.classes == ("no", "yes")
    for name in NAMES:
        ours, theirs = run.client(name).model.state_dict(), fitted.client(name).model.state_dict()
        assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_a_result_has_tables_a_report_and_a_picture(result, tmp_path):
    scores = {rank.label: rank.mean("score") for rank in result.study.ranks}
    table = result.to_pandas()
    shown = dict(zip(table["method"], table["score_mean"], strict=True))
    assert {method: shown.pop(method) for method in scores} == pytest.approx(scores)
    assert {*shown} == {LOGISTIC_ALONE, LOGISTIC_POOLED, MAJORITY}
    assert shown[LOGISTIC_POOLED] > 0.8  # the label is the sign of a column
    assert result.best.method in scores
    assert result.best.score == scores[result.best.method]
    assert {"client"} <= {*result.to_pandas("clients").columns}
    page = result.report(tmp_path / "report.html").read_text()
    assert "plotly" in page
    assert 'id="chart-cross-site"' in page
    stored = next(rank for rank in result.study.ranks if rank.label == "local").members[0].cross_site
    assert torch.equal(stored.values, result.fitted("local").cross_site().values)
    assert "<svg" in result._repr_html_()
    assert all(name in result._repr_html_() for name in scores)


def test_printed_it_is_a_table_with_sentences_and_its_repr_is_one_line(result):
    head, *lines = str(result).splitlines()
    rows = {rank.label: next(line for line in lines if line.startswith(rank.label)) for rank in result.study.ranks}
    assert head.split()[:2] == ["method", "accuracy"]
    assert all(f"{100 * rank.mean('score'):.1f} %" in rows[rank.label] for rank in result.study.ranks)
    assert len({line.index("%") for line in rows.values()}) == 1  # columns are aligned
    assert lines[lines.index("") + 1 :] == result._sentences()
    assert result.best.method in repr(result)
    assert "\n" not in repr(result)


def test_the_same_call_reads_what_is_finished_and_writes_data_that_is_gone(result, monkeypatch):
    monkeypatch.setattr(comparing, "advance_comparison", lambda *_: True)
    data = next(result.folder.parent.glob("arrays-*"))
    for file in data.iterdir():
        file.unlink()
    data.rmdir()
    assert again(result).best == result.best
    assert data.is_dir()


@pytest.mark.parametrize(
    "other",
    [
        {"clients": pairs(seed=1)},
        {"rounds": 3},
        {"seeds": 2},
        {"methods": "fedavg"},
        {"settings": {"fedavg.train.lr": 0.1}},
        {"validation": 0.2},
    ],
)
def test_another_question_in_the_same_folder_is_refused(result, other):
    with pytest.raises(RunError):
        again(result, **other)
    assert len(list(result.folder.parent.glob("arrays-*"))) == 1  # samples that nothing uses are not written


def test_an_interrupted_comparison_goes_on_to_the_same_numbers(result, tmp_path, monkeypatch):
    def interrupted_at(self, run):
        def watch(rounds, history):
            if rounds == 1:
                raise KeyboardInterrupt

        return watch

    asked = ("fedavg", pairs(), Net())
    with monkeypatch.context() as patch:
        patch.setattr(comparing.ProgressLine, "watch", interrupted_at)
        with pytest.raises(KeyboardInterrupt):
            stratafl.compare(*asked, folder=tmp_path / "again", **QUICK)
    resumed = stratafl.compare(*asked, folder=tmp_path / "again", **QUICK)
    ours, theirs = (each.fitted("fedavg").client("Chur").model.state_dict() for each in (resumed, result))
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def test_another_model_is_refused_and_a_command_cannot_have_it(result, monkeypatch, capsys):
    with pytest.raises(RunError):
        again(result, model=Net(seed=1))
    monkeypatch.setattr("stratafl.config.trust._objects", {})
    monkeypatch.setattr(sys, "argv", ["strata", "resume", str(result.folder), "--trust"])
    assert main() == 2
    assert "python:Net" in capsys.readouterr().err


@pytest.mark.slow
def test_a_command_continues_what_python_began(folder, monkeypatch):
    asked = {"settings": {"model.hidden": [4]}, "folder": folder / "named", **QUICK}
    with monkeypatch.context() as patch:
        patch.setattr(comparing, "advance_comparison", lambda *_: False)
        with pytest.raises(KeyboardInterrupt):
            stratafl.compare("local,fedavg", pairs(), **asked)
    monkeypatch.setattr(sys, "argv", ["strata", "resume", str(folder / "named")])
    assert main() == 0
    assert stratafl.compare("local,fedavg", pairs(), **asked).fitted("local").client_names == NAMES
    tables = tomllib.loads((folder / "named" / "compare.toml").read_text())
    assert tables["model"]["hidden"] == [4]
    assert tables["compare"]["methods"] == ["local", "fedavg"]


@pytest.mark.parametrize("made", ["splits", "federation"])
def test_own_splits_are_the_same_with_every_seed(tmp_path, made):
    clients = {
        name: {"train": (x[:12], y[:12]), "validation": (x[12:16], y[12:16]), "test": (x[16:], y[16:])}
        for name, (x, y) in pairs().items()
    }
    given = from_splits(clients) if made == "federation" else clients
    asked = requested("compare", given, Net(), tmp_path / "x", None, {"normalise": "none"})
    asked.store()
    for seed in (0, 1):
        federation = federation_of(with_values(asked.base, {**asked.settings, "run.seed": seed}))
        assert federation.client_names == NAMES
        for split, rows in (("train", slice(12)), ("validation", slice(12, 16)), ("test", slice(16, None))):
            samples = federation.x[federation.split(split).of(1)]
            assert torch.equal(samples, torch.from_numpy(pairs()["Aarau"][0][rows]))


def test_tables_with_categories_and_gaps_are_written_as_fit_takes_them(tmp_path):
    tables = {}
    for name, (x, y) in pairs().items():
        columns = {"age": [None, *x[1:, 0].tolist()], "ward": np.where(x[:, 1] > 0, "ICU", "ER").tolist()}
        tables[name] = (table(columns), y)
    asked = requested("compare", tables, "mlp", tmp_path / "x", None, {})
    asked.store()
    ours = federation_of(with_values(asked.base, asked.settings))
    model = nn.Linear(ours.x.shape[1], 2)
    theirs = stratafl.fit(fedavg(), tables, model, rounds=1).sim.runtime.federation
    assert ours.preprocessing.to_table() == theirs.preprocessing.to_table()
    for client, split in product(range(3), ("train", "validation", "test")):
        rows = [each.x[each.split(split).of(client)] for each in (ours, theirs)]
        assert torch.equal(*rows)


def test_one_table_with_columns_of_labels_and_clients(tmp_path):
    columns = [{"age": x[:, 0].tolist(), "y": y.tolist(), "site": [name] * len(y)} for name, (x, y) in pairs().items()]
    whole = table({key: [value for part in columns for value in part[key]] for key in columns[0]})
    whole.to_csv(tmp_path / "table.csv", index=False)
    federations = []
    for clients in (whole, tmp_path / "table.csv"):
        asked = requested("compare", clients, "mlp", tmp_path / "x", None, {"label": "y", "client": "site"})
        asked.store()
        federations.append(federation_of(with_values(asked.base, asked.settings)))
    in_memory, file = federations
    assert in_memory.client_names == file.client_names == tuple(sorted(NAMES))
    assert in_memory.class_names == file.class_names == ("no", "yes")
    assert torch.allclose(in_memory.x, file.x, atol=1e-5)


@pytest.mark.slow
def test_tuning_returns_what_was_chosen_and_a_comparison_takes_it(tmp_path):
    asked = {"grid": {"train.lr": [0.01, 0.5]}, "widen": False, "folder": tmp_path / "tuned", **QUICK}
    tuned = stratafl.tune("fedavg", pairs(), Net(), trials=2, **asked)
    assert tuned.best.method == "fedavg"
    assert tuned.best.settings["train.lr"] in (0.01, 0.5)
    assert len(tuned.to_pandas("trials")) == 2
    assert "<svg" in tuned._repr_html_()
    assert f"{100 * tuned.best.score:.1f} %" in str(tuned).splitlines()[1]
    assert "\n" not in repr(tuned)
    compared = stratafl.compare("fedavg", pairs(), Net(), tuned=tuned, seeds=1, folder=tmp_path / "c", progress=False)
    assert compared.best.settings["train.lr"] == tuned.best.settings["train.lr"]
    assert compared.best.score == tuned.best.score  # the first fresh seed is the same run
    assert stratafl.tune("fedavg", pairs(), Net(), trials=2, **asked).best == tuned.best
    with pytest.raises(RunError):
        stratafl.tune("fedavg", pairs(), Net(), trials=3, **asked)


@pytest.mark.slow
def test_advice_in_python(tmp_path):
    advised = stratafl.advise(pairs(count=40), Net(), rounds=4, budget=0.6, folder=tmp_path / "a", progress=False)
    assert advised.best.method == (advised.advice.candidate.method if advised.federate else "local")
    assert list(advised.to_pandas("clients")["name"]) == list(NAMES)
    assert {"local", "fedavg", LOGISTIC_ALONE, LOGISTIC_POOLED} <= {*advised.to_pandas()["method"]}
    assert "<svg" in advised.report(tmp_path / "advice.html").read_text()
    assert advised.report(tmp_path / "advice.md").read_text().startswith("#")


X, Y = pairs()["Basel"]


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"methods": "fedxx"}, UnknownNameError),
        ({"methods": []}, RecordError),
        ({"methods": [fedavg()]}, RecordError),
        ({"methods": "fedavg,fedavg"}, RecordError),
        ({"clients": {}}, DataError),
        ({"clients": None}, DataError),
        ({"clients": 3}, DataError),
        ({"clients": [(X, Y[:5])]}, DataError),
        ({"clients": {"a": (X, Y), "b": (X[:, :2], Y)}}, DataError),
        ({"clients": "nowhere.csv"}, DataError),
        ({"clients": "digts"}, UnknownNameError),
        ({"clients": from_clients(pairs(), validation=0.1).standardised(("x",))}, DataError),
        ({"model": 3}, ModelError),
        ({"model": "mpl"}, UnknownNameError),
        ({"model": nn.Linear(7, 2)}, StrataError),
        ({"seeds": 0}, RecordError),
        ({"jobs": 0}, RecordError),
        ({"jobs": 2}, RecordError),  # the model is an object
        ({"vary": "nothing"}, UnknownNameError),
        ({"round": 3}, UnknownNameError),
        ({"metric": print}, RecordError),
        ({"metric": "acuracy"}, UnknownNameError),
        ({"settings": {"train.lr": 0.1}, "lr": 0.2}, RecordError),
        ({"settings": {"model.name": "mlp"}}, RecordError),
        ({"settings": {"train.rate": 0.1}}, StrataError),
        ({"tuned": "nowhere"}, RunError),
        ({"label": "y"}, DataError),  # of arrays
        ({"clients": partial(table, {"a": [1.0], "y": [1]})}, DataError),  # without a label
        ({"clients": partial(table, {"a": [1.0], "y": [1]}), "label": "y"}, DataError),  # … or clients
        ({"clients": partial(table, {"a": [1.0], "y": [1]}), "label": "z", "client": "a"}, DataError),
    ],
)
def test_what_cannot_be_compared_is_refused_and_leaves_no_comparison(tmp_path, asked, error):
    arguments = {"methods": "fedavg", "clients": pairs(), "model": Net(), "folder": tmp_path / "x", **QUICK, **asked}
    methods, clients, model = (arguments.pop(name) for name in ("methods", "clients", "model"))
    clients = clients() if isinstance(clients, partial) else clients
    with pytest.raises(error) as raised:
        stratafl.compare(methods, clients, model, **arguments)
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "x").exists()


def test_what_a_result_lacks_is_refused(result, tmp_path):
    with pytest.raises(UnknownNameError):
        result.to_pandas("rankin")
    with pytest.raises(UnknownNameError):
        result.fitted("fedper")
    with pytest.raises(RunError):
        result.fitted("fedavg", seed=7)
    (tmp_path / "own.html").write_text("mine")
    with pytest.raises(RunError):
        result.report(tmp_path / "own.html")
