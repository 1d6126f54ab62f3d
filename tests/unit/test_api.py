"""A person's own arrays and module in a few lines, every client's model back, and models in files."""

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import stratafl
from stratafl.algorithms import fedavg, fedper
from stratafl.config.experiment import Experiment, with_settings
from stratafl.core.records import record
from stratafl.core.steps import Train
from stratafl.data import from_clients
from stratafl.errors import DataError, ModelError, RecordError, RunError, StrataError, UnknownNameError
from stratafl.evaluation.evaluate import deployed
from stratafl.execute import Matrix, simulation
from stratafl.models import build
from stratafl.policies import LocalTraining
from stratafl.runs import Run


class Own(nn.Module):
    """A person's own module: nothing of the library in it."""

    def __init__(self):
        super().__init__()
        self.base = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.base(x))


def arrays(clients=3, shape=(5,), count=20, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((count, *shape)), rng.integers(0, 3, count)) for _ in range(clients)]


@record
class BreaksFirst(Train):
    """Before use, the model of client 0 diverges."""

    reads = writes = ("theta",)

    def __call__(self, rnd, client, task):
        rows = client["theta"]
        return {
            "theta": {
                n: torch.where((task.ids == 0).view(-1, *[1] * (x.ndim - 1)), torch.nan, x) for n, x in rows.items()
            }
        }


def one_sentence(error):
    return "\n" not in str(error)


@pytest.fixture(scope="module")
def fitted():
    torch.manual_seed(0)
    return stratafl.fit(fedper(train=LocalTraining(lr=0.1)), arrays(), Own(), rounds=2, normalise="none")


X = np.random.default_rng(9).standard_normal((7, 5))


# The few lines


def test_own_arrays_and_an_own_module_in_a_few_lines(fitted):
    assert fitted.clients == 3
    assert [line["round"] for line in fitted.history] == [1, 2]
    assert fitted.accuracy == fitted.selected["test.deployed.accuracy"]
    assert fitted.selected is fitted.history[fitted.round - 1]
    validations = [line["validation.deployed.accuracy"] for line in fitted.history]
    assert fitted.selected["validation.deployed.accuracy"] == max(validations)
    assert isinstance(fitted, stratafl.Fitted)


def test_printed_it_shows_its_scores_and_its_repr_is_one_line(fitted):
    line = next(line for line in str(fitted).splitlines() if line.startswith("test"))
    keys = ("accuracy", "client_accuracy", "worst10")
    expected = [f"{100 * fitted.selected[f'test.deployed.{key}']:.1f}" for key in keys]
    assert [part for part in line.split()[1:] if part != "%"] == expected
    assert "\n" not in repr(fitted)


def test_fit_gives_what_a_simulation_has_after_the_selected_round(fitted):
    torch.manual_seed(0)
    federation = from_clients(arrays(), validation=0.1, test=0.25)
    sim = simulation(fedper(train=LocalTraining(lr=0.1)), federation, Own(), rounds=2)
    progress = sim.start()
    while progress.t < fitted.round:
        progress, _ = sim.round(progress, Matrix())
    given, expected = fitted.progress.tensors(), progress.tensors()
    assert given.keys() == expected.keys()
    assert all(torch.equal(given[name], expected[name]) for name in given)


def test_fit_takes_a_federation_a_function_and_options_of_a_simulation():
    federation = from_clients(arrays(clients=4), test=0.5)
    fitted = stratafl.fit(
        fedavg(), federation, Own, rounds=3, seed=5, evaluate_every=2, participation=0.5, dtype=torch.float64
    )
    assert fitted.sim.runtime.federation.counts("test").tolist() == [10] * 4
    assert fitted.sim.setup.seed == 5
    assert [line["cohort"] for line in fitted.history] == [2, 2, 2]
    assert ["test.deployed.accuracy" in line for line in fitted.history] == [False, True, True]
    assert fitted.selected is fitted.history[-1]  # there is no validation part
    assert fitted.accuracy == fitted.history[-1]["test.deployed.accuracy"]
    assert fitted.client(0).outputs(X).dtype == torch.float64


def test_an_option_that_fit_has_not_is_one_sentence():
    misspelled = {
        "participaton": "participation",
        "validaton": "validation",
        "device_": "device",
        "learning_rate": "lr",
    }
    for option, nearest in misspelled.items():
        with pytest.raises(UnknownNameError, match=f"'{option}'.*mean '{nearest}'"):
            stratafl.fit(fedavg(), arrays(), Own, rounds=1, **{option: 0.5})


def test_an_option_of_training_is_refused_with_its_place():
    with pytest.raises(UnknownNameError, match=r"LocalTraining\(epochs="):
        stratafl.fit(fedavg(), arrays(), Own, rounds=1, epochs=2)
    with pytest.raises(UnknownNameError, match=r"settings=\{'train\.epochs'"):
        stratafl.compare("local,fedavg", arrays(), "mlp", epochs=2)
    with pytest.raises(UnknownNameError, match=r"option of fedper 'lr'.*train"):
        fedper(lr=0.1)


def test_a_method_may_be_a_name_with_a_learning_rate():
    named = stratafl.fit("fedper", arrays(), Own(), rounds=1, lr=0.3, memory_limit="4GB")
    assert named.sim.algorithm == fedper(train=LocalTraining(lr=0.3))
    assert named.sim.memory_limit == 4 * 10**9
    with pytest.raises(RecordError, match="train="):
        stratafl.fit(fedper(), arrays(), Own(), rounds=1, lr=0.3)
    with pytest.raises(UnknownNameError, match="'fedper'"):
        stratafl.fit("fedpr", arrays(), Own(), rounds=1)


def test_shares_and_seed_cut_the_arrays():
    fitted = stratafl.fit(fedavg(), arrays(), Own, rounds=1, validation=0.2, test=0.3, seed=2)
    expected = from_clients(arrays(), validation=0.2, test=0.3, seed=2)
    for split, count in (("train", 10), ("validation", 4), ("test", 6)):
        given = fitted.sim.runtime.federation.split(split)
        assert given.counts.tolist() == [count] * 3
        assert torch.equal(given.indices, expected.split(split).indices)


def test_what_a_person_gave_is_left_as_it_was():
    module, clients = Own(), arrays()
    weights = {name: x.clone() for name, x in module.state_dict().items()}
    stratafl.fit(fedavg(), clients, module, rounds=1)
    assert all(torch.equal(x, weights[name]) for name, x in module.state_dict().items())
    assert all(np.array_equal(a[0], b[0]) for a, b in zip(clients, arrays(), strict=True))


# Models and predictions


def test_a_prediction_is_what_the_clients_own_model_says(fitted):
    samples = torch.from_numpy(X).float()
    for client in range(3):
        model = fitted.client(client).model
        assert not model.training
        with torch.no_grad():
            outputs = model(samples)
        assert torch.equal(fitted.client(client).outputs(X), outputs)
        assert torch.equal(fitted.client(client).predict(X), outputs.argmax(1))
        assert torch.equal(fitted.client(client).predict(samples), outputs.argmax(1))
        assert not outputs.requires_grad


def test_a_model_that_is_not_finite_is_refused_by_name(tmp_path):
    """Its most probable class would be class 0 for every sample."""
    named = from_clients(arrays(), validation=0.2, test=0.25)
    named = replace(named, client_names=("north", "south", "east"))
    broken = stratafl.fit(replace(fedavg(), tune=(BreaksFirst(),)), named, nn.Linear(5, 3), rounds=1)
    x = arrays()[0][0]
    north = broken.client("north")
    for call in (north.predict, north.outputs):
        with pytest.raises(ModelError, match="'north'") as error:
            call(x)
        assert one_sentence(error.value)
    with pytest.raises(ModelError, match="'north'"):
        north.export(tmp_path / "north.safetensors")
    with pytest.raises(ModelError, match="'north'") as error:
        assert broken.accuracy
    assert one_sentence(error.value)
    assert "south" not in str(error.value)
    assert len(broken.client(1).predict(x)) == len(x)
    scores = [broken.metric("accuracy", client=client) for client in range(3)]
    assert scores[0] == pytest.approx(1 / 3)  # of three classes
    assert broken.metric("accuracy") == pytest.approx(sum(scores) / 3)  # of 5 test samples each
    huge = x.copy()
    huge[4] = 1e39
    with pytest.raises(DataError, match=r"'south'.*sample 4"):
        broken.client(1).predict(huge)


def test_a_model_is_the_deployed_one(fitted):
    rows = deployed(fitted.sim, fitted.progress, torch.arange(3))
    for client in range(3):
        model = fitted.client(client).model.state_dict()
        assert {name for name in model if not name.endswith("num_batches_tracked")} == set(rows)
        assert all(torch.equal(model[name], x[client]) for name, x in rows.items())


def test_models_score_what_the_history_says(fitted):
    federation = fitted.sim.runtime.federation
    hits = 0
    for client in range(3):
        mine = federation.split("test").of(client)
        hits += int((fitted.client(client).predict(federation.x[mine]) == federation.y[mine]).sum())
    assert fitted.accuracy == pytest.approx(hits / 15)


def test_a_metric_is_averaged_as_its_kind_is():
    """Over all samples if it is a mean over samples, or else over clients, whatever the round was selected by."""
    clients = [arrays(1, count=count, seed=count)[0] for count in (12, 60)]
    fitted = stratafl.fit(fedper(), clients, Own(), rounds=1, test=0.5)
    for name, usual in (("log_loss", "samples"), ("auroc", "clients")):
        averages = {average: fitted.metric(name, average=average) for average in ("samples", "clients")}
        assert averages["samples"] != averages["clients"]
        assert fitted.metric(name) == averages[usual]


def test_clients_of_fedper_share_the_base_and_differ_in_the_head(fitted):
    first, second = fitted.client(0).model, fitted.client(1).model
    assert all(torch.equal(a, b) for a, b in zip(first.base.parameters(), second.base.parameters(), strict=True))
    assert not torch.equal(first.head.weight, second.head.weight)


def test_a_model_is_a_copy_that_may_be_changed(fitted):
    before = fitted.client(0).outputs(X)
    with torch.no_grad():
        fitted.client(0).model.head.weight.zero_()
    assert torch.equal(fitted.client(0).outputs(X), before)


def test_regression_predicts_numbers():
    rng = np.random.default_rng(0)
    clients = [(x := rng.standard_normal((30, 1)).astype(np.float32), slope * x[:, 0]) for slope in (2.0, -1.0)]
    fitted = stratafl.fit(fedper(train=LocalTraining(lr=0.2)), clients, nn.Linear(1, 1), rounds=10, evaluate_every=5)
    x = np.array([[1.0], [-3.0]], dtype=np.float32)
    for client, slope in enumerate((2.0, -1.0)):
        assert torch.equal(fitted.client(client).predict(x), fitted.client(client).outputs(x))
        np.testing.assert_allclose(fitted.client(client).predict(x), slope * x, atol=0.2)
    losses = [line["validation.deployed.loss"] for line in fitted.history if "validation.deployed.loss" in line]
    assert fitted.selected["validation.deployed.loss"] == min(losses)


def test_images_of_bytes():
    rng = np.random.default_rng(0)
    clients = [(rng.integers(0, 256, (16, 1, 6, 6), dtype=np.uint8), rng.integers(0, 3, 16)) for _ in range(2)]
    model = build("cnn", shape=(1, 6, 6), classes=3)
    fitted = stratafl.fit(fedper(train=LocalTraining(lr=1e-5)), clients, model, rounds=1)
    assert fitted.sim.runtime.federation.x.dtype == torch.uint8
    x = clients[0][0][:4]
    with torch.no_grad():
        expected = fitted.client(1).model(torch.from_numpy(x) / 127.5 - 1)
    torch.testing.assert_close(fitted.client(1).outputs(x), expected)
    assert torch.equal(fitted.client(1).predict(x), expected.argmax(1))
    with pytest.raises(DataError, match="unscaled"):
        fitted.client(1).outputs(x / 127.5 - 1)


def test_whole_numbers_stay_whole():
    rng = np.random.default_rng(0)
    clients = [(rng.integers(0, 9, (16, 4)), rng.integers(0, 2, 16)) for _ in range(2)]
    model = build("embedding", shape=(4,), classes=2, vocabulary=9, width=3)
    fitted = stratafl.fit(fedavg(), clients, model, rounds=1)
    x = rng.integers(0, 9, (3, 4)).astype(np.int32)
    with torch.no_grad():
        assert torch.equal(fitted.client(0).outputs(x), fitted.client(0).model(torch.from_numpy(x).long()))


@pytest.mark.parametrize("client", [3, -1])
def test_a_client_that_is_not_there_is_one_sentence(fitted, client):
    for ask in (
        fitted.client,
        lambda k: fitted.metric("accuracy", client=k),
        fitted.confusion,
    ):
        with pytest.raises(StrataError, match=f" {client}: .*3") as error:
            ask(client)
        assert one_sentence(error.value)


@pytest.mark.parametrize("shape", [(5,), (7, 4), (7, 5, 1), (7,)])
def test_samples_of_another_shape_are_one_sentence(fitted, shape):
    says = rf"\({shape[0]},.*\): .*\[n, 5\]"
    with pytest.raises(DataError, match=says) as error:
        fitted.client(0).predict(np.zeros(shape))
    assert one_sentence(error.value)


def test_samples_in_any_memory_order_are_taken(fitted):
    assert torch.equal(fitted.client(0).predict(np.asfortranarray(X)), fitted.client(0).predict(X))
    assert torch.equal(fitted.client(0).predict(X[::-1]), fitted.client(0).predict(X).flip(0))


def test_samples_that_may_not_be_written_to_are_taken(fitted):
    """Such as those of a memory-mapped file."""
    frozen = X.copy()
    frozen.setflags(write=False)
    assert torch.equal(fitted.client(0).predict(frozen), fitted.client(0).predict(X))


def test_a_regression_has_no_accuracy_and_says_so():
    rng = np.random.default_rng(0)
    clients = [(rng.standard_normal((20, 2)), rng.standard_normal(20)) for _ in range(2)]
    fitted = stratafl.fit(fedavg(), clients, nn.Linear(2, 1), rounds=1)
    with pytest.raises(StrataError, match=r"selected\['test.deployed.loss'\]"):
        _ = fitted.accuracy
    assert fitted.selected["test.deployed.loss"] > 0


# Files


def test_safetensors_load_back_equal(fitted, tmp_path):
    path = fitted.client(1).export(str(tmp_path / "client.safetensors"))
    assert path == tmp_path / "client.safetensors"
    stored, model = load_file(path), fitted.client(1).model.state_dict()
    assert stored.keys() == model.keys()
    assert all(torch.equal(stored[name], x) for name, x in model.items())
    again = Own()
    again.load_state_dict(stored)
    with torch.no_grad():
        assert torch.equal(again.eval()(torch.from_numpy(X).float()), fitted.client(1).outputs(X))
    assert [each.name for each in tmp_path.iterdir()] == ["client.safetensors"]


@pytest.mark.slow
def test_onnx_gives_the_same_for_any_number_of_samples(fitted, tmp_path):
    import onnxruntime

    path = fitted.client(2).export(tmp_path / "client.onnx")
    assert [each.name for each in tmp_path.iterdir()] == ["client.onnx"]
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for count in (1, 7, 300):  # it was exported with 2
        x = np.random.default_rng(count).standard_normal((count, 5)).astype(np.float32)
        logits, probabilities = session.run(["logits", "probabilities"], {"x": x})
        np.testing.assert_allclose(logits, fitted.client(2).outputs(x), atol=1e-5, rtol=0)
        np.testing.assert_allclose(probabilities, fitted.client(2).predict_proba(x), atol=1e-5, rtol=0)
    assert session.get_modelmeta().custom_metadata_map == {"client": "2", "classes": '["0", "1", "2"]'}


class Unexportable(nn.Module):
    """Looks at its values with NumPy."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        return self.fc(x) if x.detach().numpy().sum() < np.inf else x


@pytest.mark.slow
def test_a_module_that_torch_cannot_export_is_one_sentence(tmp_path):
    fitted = stratafl.fit(fedavg(), arrays(), Unexportable(), rounds=1, engine="loop")
    with pytest.raises(ModelError, match=r"Unexportable .*ONNX") as error:
        fitted.client(0).export(tmp_path / "client.onnx")
    assert one_sentence(error.value)
    assert list(tmp_path.iterdir()) == []


def test_onnx_that_is_not_installed_is_one_sentence(fitted, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ModelError, match=r"'stratafl\[onnx\]'") as error:
        fitted.client(0).export(tmp_path / "client.onnx")
    assert one_sentence(error.value)


@pytest.mark.parametrize("name", ["client.safetensors", "client.onnx", "client.txt"])
def test_a_file_that_exists_is_not_touched(fitted, tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"mine")
    with pytest.raises(RunError, match=f"{name}' ") as error:
        fitted.client(0).export(path)
    assert one_sentence(error.value)
    assert path.read_bytes() == b"mine"


@pytest.mark.parametrize("name", ["client.pt", "client", "client.ONNX"])
def test_files_of_another_kind_are_refused(fitted, tmp_path, name):
    with pytest.raises(RunError, match=rf"{name}'.*\.onnx") as error:
        fitted.client(0).export(tmp_path / name)
    assert one_sentence(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_one_sentence(fitted, tmp_path):
    with pytest.raises(StrataError, match=r"none/client\.safetensors'") as error:
        fitted.client(0).export(tmp_path / "none" / "client.safetensors")
    assert one_sentence(error.value)


# A run directory


def settings(*more):
    given = ["data.clients=3", "data.partition=iid", "model.hidden=[4]", "run.rounds=2", "train.batch=100", *more]
    return with_settings(Experiment(), given)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run directory, and the models and lines that the run ended with."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    with Run.create(settings(), folder) as run:
        list(run.rounds())
        return folder, deployed(run.sim, run.progress, torch.arange(3)), run.history


def snapshot(folder):
    return {path: (path.is_file() and path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*")}


def test_a_run_directory_gives_the_models_that_the_run_ended_with(finished):
    folder, rows, history = finished
    fitted = stratafl.load(str(folder), round="newest")
    assert fitted.clients == 3
    assert fitted.progress.t == 2
    assert fitted.history == history
    for client in range(3):
        model = fitted.client(client).model.state_dict()
        assert model.keys() == rows.keys()
        assert all(torch.equal(model[name], x[client]) for name, x in rows.items())
    assert fitted.client(0).predict(fitted.sim.runtime.federation.x[:4]).shape == (4,)


def test_loading_leaves_the_directory_untouched(finished):
    folder, _, _ = finished
    before = snapshot(folder.parent)
    fitted = stratafl.load(folder)
    fitted.client(0).predict(fitted.sim.runtime.federation.x[:4])
    assert snapshot(folder.parent) == before
    assert len(before) > 5


def test_a_run_at_work_can_be_loaded_up_to_its_newest_checkpoint(tmp_path):
    with Run.create(settings("run.rounds=4", "run.checkpoint=2"), tmp_path / "run") as run:
        rounds = run.rounds()
        next(rounds)
        with pytest.raises(RunError, match=f"'{tmp_path}/run'"):
            stratafl.load(tmp_path / "run")
        next(rounds)
        after_two = deployed(run.sim, run.progress, torch.arange(3))
        next(rounds)
        fitted = stratafl.load(tmp_path / "run", round="newest")
        assert [line["round"] for line in fitted.history] == [1, 2]
        assert torch.equal(fitted.client(1).model.fc.weight, after_two["fc.weight"][1])


def test_what_is_not_a_run_directory_is_one_sentence(tmp_path):
    with pytest.raises(RunError, match=f"'{tmp_path}'") as error:
        stratafl.load(tmp_path)
    assert one_sentence(error.value)


def test_the_package_offers_what_it_says():
    assert stratafl.fit is stratafl.api.fit
    assert stratafl.load is stratafl.api.load
    with pytest.raises(AttributeError, match="'train'"):
        _ = stratafl.train


def test_fit_takes_a_gpu_where_there_is_one_as_the_command_does(monkeypatch):
    asked = []

    def see(*given, **options):
        asked.append(options["device"])
        raise RunError("seen")

    monkeypatch.setattr("stratafl.api.fitting.simulation", see)
    for options in ({}, {"device": "cpu"}):
        with pytest.raises(RunError, match="seen"):
            stratafl.fit(fedavg(), arrays(), Own(), **options)
    assert asked == ["auto", "cpu"] == [Experiment().run.device, "cpu"]


def test_the_version_is_that_of_the_package():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert stratafl.__version__ == project["version"]
