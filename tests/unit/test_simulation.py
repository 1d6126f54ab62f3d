"""Putting a simulation together: what is refused early, and what a person gets."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from stratafl.algorithms import algorithm, fedavg, fedper, fedprox
from stratafl.core.fields import Start
from stratafl.core.layers import select
from stratafl.core.parcel import Field, LayerMask
from stratafl.core.records import record
from stratafl.core.state import rows_of
from stratafl.core.steps import MergeSums, Mix, Serve, Train
from stratafl.data import digits_federation, federate, from_clients
from stratafl.errors import (
    DataError,
    MemoryLimitError,
    ModelError,
    RecordError,
    StageError,
    StrataError,
    UnknownNameError,
)
from stratafl.evaluation.evaluate import accuracy, received_models, score
from stratafl.execute import Debug, Matrix, simulation
from stratafl.execute.executors import chunk_size
from stratafl.execute.memory import client_bytes
from stratafl.models import build, save_weights
from stratafl.policies import LocalTraining, Mean, Upload
from stratafl.testing import SIZES, difference, everything, tiny_federation, tiny_model


def tiny(alg=None, **options):
    options = {"rounds": 2, "dtype": torch.float64} | options
    return simulation(alg or fedavg(), tiny_federation(), tiny_model(), **options)


def one_sentence(error):
    return "\n" not in str(error)


# Refused early


@pytest.mark.parametrize("place", ["personal", "train", "send"])
def test_wrong_layer_name_is_refused_before_the_first_round(place):
    wrong = {
        "personal": lambda: fedper(personal="conv3"),
        "train": lambda: fedavg(train=LocalTraining(layers=select("conv3"))),
        "send": lambda: replace(fedavg(), send=(Upload(select("conv3")),)),
    }[place]()
    with pytest.raises(
        UnknownNameError, match=r"unknown layer 'conv3'; did you mean 'conv[12]'.*conv1, bn1, conv2"
    ) as e:
        tiny(wrong)
    assert one_sentence(e.value)


def test_merge_that_reads_what_nobody_sends_is_refused_when_it_is_made():
    with pytest.raises(RecordError, match=r"merge: Mean .*'up\.theta'") as e:
        replace(fedavg(), send=())
    assert one_sentence(e.value)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"owners": [[0, 1, 2, 3], []]}, "client 1"),
        ({"y": [0, 1, 2, 9, 0, 1]}, "9"),
        ({"y": [0, 1, 2, -1, 0, 1]}, "-1"),
        ({"x": np.full((6, 2), np.nan)}, "NaN"),
        ({"owners": []}, "client"),
    ],
)
def test_bad_data_is_refused_in_one_sentence(change, says):
    given = {"x": np.zeros((6, 2)), "y": [0, 1, 2, 0, 1, 2], "owners": [[0, 1, 2], [3, 4, 5]]} | change
    with pytest.raises(DataError, match=says) as e:
        federate(given["x"], np.array(given["y"]), given["owners"], classes=3, test=0.0)
    assert one_sentence(e.value)


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5])
def test_participation_outside_its_range_is_refused(share):
    with pytest.raises(DataError, match=rf"\b{share}\b" if share > 0 else str(share)):
        tiny(participation=share)


def test_model_whose_output_does_not_fit_the_classes_is_refused():
    with pytest.raises(ModelError, match=r"\(2,\).* 3 "):
        simulation(fedavg(), tiny_federation(), nn.Sequential(nn.Flatten(), nn.Linear(36, 2)), rounds=1)


def test_model_that_does_not_take_the_samples_is_refused():
    with pytest.raises(ModelError, match=r"\(1, 6, 6\)"):
        simulation(fedavg(), tiny_federation(), nn.Linear(5, 3), rounds=1)


@pytest.mark.parametrize("bad", [{"lr": -0.1}, {"batch": 0}, {"epochs": -1}, {"clip": 0.0}, {"momentum": -1.0}])
def test_impossible_rates_are_refused(bad):
    with pytest.raises(RecordError, match=next(iter(bad))):
        LocalTraining(**bad)


def test_unknown_algorithm_answers_with_the_nearest():
    with pytest.raises(UnknownNameError, match=r"'fedpr'.*'fed"):
        algorithm("fedpr")
    with pytest.raises(RecordError, match=r"strength.*\b0\b"):
        fedprox(strength=-1.0)


@record
class AskForTest(Train):
    """A step that declares the test split."""

    splits = ("test",)
    reads = writes = ("theta",)

    def __call__(self, rnd, client, task):
        return {}


def test_the_test_split_is_never_given_to_an_algorithm():
    with pytest.raises(DataError, match="test"):
        tiny(replace(fedavg(), train=(AskForTest(),)))
    sim = tiny()
    task = sim.task(torch.tensor([0]), sim.at(0))
    with pytest.raises(DataError, match="'test'"):
        task.scores(received_models(sim, sim.start(), torch.tensor([0])), "test")


def test_a_declared_split_must_exist():
    @record
    class AskForValidation(Train):
        splits = ("validation",)
        reads = writes = ("theta",)

        def __call__(self, rnd, client, task):
            task.note("score", task.scores(rows_of(client, "theta"), "validation").accuracy)
            return {}

    asks = replace(fedavg(), train=(AskForValidation(),))
    with pytest.raises(DataError, match="needs the split 'validation'"):
        simulation(asks, digits_federation(), lambda: build("mlp", shape=(1, 8, 8), classes=10), rounds=1)
    _, report = tiny(asks).round(tiny(asks).start(), Matrix())
    assert report.notes["score"].shape == (len(SIZES),)


# What a person gets


@pytest.mark.slow
def test_fedper_beats_fedavg_on_digits():
    accuracies = {}
    for name in ("fedavg", "fedper"):
        alg = algorithm(name, train=LocalTraining(lr=0.05, epochs=1, batch=10))
        sim = simulation(
            alg, digits_federation(seed=1), lambda: build("mlp", shape=(1, 8, 8), classes=10), rounds=6, seed=1
        )
        accuracies[name] = accuracy(sim, sim.run(Matrix()))
    assert accuracies["fedper"] > accuracies["fedavg"] + 0.05
    assert accuracies["fedper"] > 0.85


def test_own_arrays_and_an_own_module():
    rng = np.random.default_rng(0)
    clients = [(rng.standard_normal((12, 5)), rng.integers(0, 2, 12)) for _ in range(3)]
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    sim = simulation(fedper(), from_clients(clients), model, rounds=2)
    progress = sim.run(Matrix())
    assert sim.setup.layout.names == ("0", "2")
    assert set(progress.clients[0]["theta"]) == {"2.weight", "2.bias"}


def test_regression_runs_with_squared_error():
    rng = np.random.default_rng(0)
    clients = []
    for slope in (1.0, -1.0):
        x = rng.standard_normal((40, 1)).astype(np.float32)
        clients.append((x, slope * x[:, 0]))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))
    sim = simulation(fedper(train=LocalTraining(lr=0.1, epochs=3)), from_clients(clients), model, rounds=8)
    progress = sim.run(Matrix())
    ids = torch.arange(2)
    scores = score(sim, progress, received_models(sim, progress, ids), ids, "test")
    assert (scores.loss / scores.count).max() < 0.1


def test_initial_weights_from_a_file(tmp_path):
    other = build("convnorm", shape=(1, 6, 6), classes=3, channels=4)
    save_weights(other, tmp_path / "start.safetensors")
    sim = tiny(weights=tmp_path / "start.safetensors")
    for name, tensor in other.state_dict().items():
        if tensor.is_floating_point():
            assert torch.equal(sim.setup.start[name], tensor.double())


def test_clients_draw_their_own_heads_when_asked():
    sim = simulation(
        fedper(initial="own"), tiny_federation(), lambda: build("mlp", shape=(1, 6, 6), classes=3), rounds=1
    )
    rows = received_models(sim, sim.start(), torch.arange(3))
    assert torch.equal(rows["fc1.weight"][0], rows["fc1.weight"][1])
    assert not torch.equal(rows["fc.weight"][0], rows["fc.weight"][1])
    alone = received_models(sim, sim.start(), torch.tensor([1]))
    assert torch.equal(alone["fc.weight"][0], rows["fc.weight"][1])


def test_setting_up_leaves_the_ambient_generator_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    tiny(fedper(initial="own")).run(Matrix())
    assert torch.equal(before, torch.get_rng_state())


def test_report_counts_bytes_per_client_and_layer():
    sim = tiny(fedper())
    _, report = sim.round(sim.start(), Matrix())
    layout = sim.setup.layout
    base = sum(layout.specs[n].size for n in layout.travelling("base")) * 8
    assert report.down.clients.tolist() == [base] * len(SIZES)
    assert report.up.clients.tolist() == [base + 8] * len(SIZES)
    assert report.up.layers[layout.index["fc"]] == 0
    assert report.notes["train/steps"].tolist() == [-(-size // 10) for size in SIZES]


# Memory


def test_cohorts_are_cut_to_fit_the_memory_limit():
    sim = tiny()
    one = sim.client_bytes
    assert one == client_bytes(sim.runtime, 10)
    fixed = sim.needs(6).working(0)  # the server's model and the sums
    assert chunk_size(replace(sim, round_limit=fixed + one * 4), 6) == 4
    assert chunk_size(replace(sim, round_limit=fixed + one * 100), 6) == 6
    limited = replace(sim, round_limit=fixed + one * 4)
    assert difference(everything(sim, sim.run(Matrix())), everything(limited, limited.run(Matrix()))) <= 1e-12
    with pytest.raises(MemoryLimitError, match=r"a round needs about .* \(the server's state .*, one client .*\)"):
        chunk_size(replace(sim, round_limit=sim.needs(6).least - 1), 6)


def test_memory_of_a_client_grows_with_model_and_batch():
    sim = tiny()
    assert client_bytes(sim.runtime, 20) > client_bytes(sim.runtime, 10)
    columns = sum(spec.size for spec in sim.setup.layout.specs.values())
    assert client_bytes(sim.runtime, 10) > 4 * 8 * columns


# The debug executor


@pytest.mark.slow
def test_a_limit_leaves_what_data_and_memories_do_not_take(monkeypatch):
    """FedPer's memories stay in RAM, FedAvg has none; libraries and data were there before."""
    monkeypatch.setattr("stratafl.execute.memory.resident", lambda: 300)
    limit = 300 + 10**6
    assert tiny(fedavg(), memory_limit=limit).round_limit == 10**6
    kept = tiny(fedper(), memory_limit=limit)
    assert kept.store == "ram"
    assert kept.round_limit == 10**6 - kept.state_format.size * len(SIZES) < 10**6
    assert tiny(fedper(), memory_limit=limit, store="disk").round_limit == 10**6


def test_a_batch_wider_than_all_data_takes_what_the_data_take():
    wide, whole = (tiny(fedavg(train=LocalTraining(batch=batch))) for batch in (10**6, max(SIZES)))
    assert wide.client_bytes == whole.client_bytes


def test_debug_names_stage_client_and_layer():
    @record
    class Explode(Train):
        reads = writes = ("theta",)

        def __call__(self, rnd, client, task):
            rows = dict(rows_of(client, "theta"))
            if 2 in task.ids.tolist():
                rows["conv2.weight"] = rows["conv2.weight"] * torch.inf
            return {"theta": rows}

    sim = tiny(replace(fedper(personal="conv2"), train=(Explode(),)))
    with pytest.raises(StrataError, match="stage 'work', client 2, layer 'conv2' of field 'theta'"):
        sim.run(Debug())


@record
class Dense(Serve):
    """Sends the base and puts the head into the parcel all the same."""

    reads = ("theta",)
    writes = ("down.theta",)

    def __call__(self, rnd, server, ids):
        return {"theta": Field(rows_of(server, "theta"), True, LayerMask(rnd.layout.layer_mask("base")))}


@record
class TakeWhatIsUnsent(Mix):
    """Reads the head, which was not sent."""

    reads = ("down.theta",)
    writes = ("theta",)

    def __call__(self, rnd, client, down, task):
        return {"theta": {n: x.expand(len(task), *x.shape) for n, x in down["theta"].rows.items()}}


def test_debug_notices_what_is_read_although_it_was_not_sent():
    method = replace(fedper(), serve=(Dense(),), mix=(TakeWhatIsUnsent(),), server=fedavg().server)
    sim = tiny(replace(method, client={"theta": Start()}))
    assert sim.run(Matrix()).t > 0
    with pytest.raises(StageError, match=r"'receive'.*'fc'"):
        sim.run(Debug())


def test_debug_names_the_stage_of_any_error():
    @record
    class Fail(MergeSums):
        reads = writes = ("theta",)

        def fold(self, rnd, server, sums, up, ids):
            raise ValueError("seven")

        def finish(self, rnd, server, sums):
            return {}

    sim = tiny(replace(fedavg(), merge=(Fail(), Mean())))
    with pytest.raises(StrataError, match="stage 'fold', client 0: ValueError: seven"):
        sim.run(Debug())


# Engines


class Branches(nn.Module):
    """A module that looks at values."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(36, 3)

    def forward(self, x):
        z = self.fc(x.flatten(1))
        return z if z.sum() > 0 else 2 * z


def test_a_module_that_branches_on_values_runs_client_by_client_and_says_so(caplog):
    with caplog.at_level(logging.WARNING, logger="stratafl"):
        sim = simulation(fedavg(), tiny_federation(), Branches(), rounds=1)
    assert "Branches" in caplog.text
    assert sim.run(Matrix()).t == 1
    with pytest.raises(ModelError, match="Branches"):
        simulation(fedavg(), tiny_federation(), Branches(), rounds=1, engine="stacked")


def test_float_targets_that_the_model_does_not_give_are_refused():
    x, y = np.zeros((8, 4), np.float32), np.eye(3, dtype=np.float32)[np.arange(8) % 3]
    with pytest.raises(ModelError, match=r"\b2\b.*\b3\b"):
        simulation(fedavg(), from_clients([(x, y)] * 2), nn.Linear(4, 2), rounds=1)
