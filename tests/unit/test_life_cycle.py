"""A fitted federation goes on: more rounds, clients that join later, a folder that another machine loads."""

import json
import shutil
import subprocess

import numpy as np
import pytest
import torch
from torch import nn

import stratafl
from stratafl.algorithms import algorithm, apple, fedalp, fedavg, fedper, fedrep
from stratafl.child_processes import python_command, safe_environment
from stratafl.core.pace import check_goes_on, check_more_clients
from stratafl.core.phased import Phase, Phased
from stratafl.data.preprocessing import Preprocessing
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import CallbackError, DataError, ModelError, RecordError, RunError, StrataError, UnknownNameError
from stratafl.evaluation.evaluate import client_models
from stratafl.execute.blueprint import Blueprint
from stratafl.models import build
from stratafl.policies import Cosine, Exponential, LocalTraining
from stratafl.testing import difference

NAMES = ("Basel", "Bern", "Chur", "Davos", "Egg")
KINDS = {  # one method of each kind
    "global": "scaffold",
    "fine-tuned": "fedavgft",
    "personal parts": "fedper",
    "mixtures": "fedala",
    "regularised and meta": "ditto",
    "hypernetwork": "pfedla",
    "clustered": "ifca",
    "smallest personal part": "fedbias",
    "controls": "simmix",
}


def samples(client):
    rng = np.random.default_rng(client)
    y = rng.permutation(np.arange(28 - client) % 3)  # the last client is the smallest: a larger one widens all batches
    return (rng.standard_normal((len(y), 4)) + y[:, None]).astype(np.float32), np.array(["no", "maybe", "yes"])[y]


FEW_STEPS = LocalTraining(batch=40)
CLIENTS = {name: samples(number) for number, name in enumerate(NAMES)}
FOUR = {name: CLIENTS[name] for name in NAMES[:4]}
LATE = CLIENTS["Egg"]
X = samples(9)[0]


def model():
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def fitted_on(clients=FOUR, method=None, rounds=2, **options):
    return stratafl.fit(method or fedper(train=FEW_STEPS), clients, model, rounds=rounds, engine="stacked", **options)


@pytest.fixture(scope="module")
def fitted():
    return fitted_on()


@pytest.fixture(scope="module")
def saved(fitted, tmp_path_factory):
    return fitted.save(tmp_path_factory.mktemp("saved") / "federation")


def without_seconds(history):
    return [{key: value for key, value in line.items() if not key.startswith("seconds")} for line in history]


def check_same(longer, whole):
    assert difference(longer.training.progress.tensors(), whole.training.progress.tensors()) == 0
    assert without_seconds(longer.history) == without_seconds(whole.history)
    assert (longer.round, longer.sim.setup.rounds) == (whole.round, whole.sim.setup.rounds)
    for name in whole.client_names:
        assert difference(longer.client(name).state, whole.client(name).state) == 0


def check_as_a_new_client(method):
    """A client that is added has the model that a simulation gives the last client, which never trains."""
    simulated = fitted_on(CLIENTS, method, new_clients=1)
    with simulated.sim.arithmetic():
        (late,) = client_models(simulated.sim, simulated.progress, simulated.sim.new_clients, new=True)
        expected = late.rows("deployed")
    fitted = fitted_on(FOUR, method)
    before = {name: tensor.clone() for name, tensor in fitted.progress.tensors().items()}
    others = {name: dict(fitted.client(name).state) for name in FOUR}
    egg = fitted.add_client("Egg", *LATE)
    assert difference(egg.state, {name: rows[0] for name, rows in expected.items()}) == 0
    assert difference(fitted.progress.tensors(), before) == 0
    assert all(difference(fitted.client(name).state, state) == 0 for name, state in others.items())
    return fitted


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS.values(), ids=KINDS)
def test_every_kind_of_method_has_a_whole_life(name, tmp_path):
    method = algorithm(name, train=FEW_STEPS)
    fitted = check_as_a_new_client(method)
    check_same(fitted_on(FOUR, method).train(1), fitted_on(FOUR, method, rounds=3))
    loaded = stratafl.load(fitted.save(tmp_path / "saved"))
    assert loaded.client_names == NAMES
    assert all(torch.equal(loaded.client(name).outputs(X), fitted.client(name).outputs(X)) for name in NAMES)
    again = [each.add_client("again", *LATE) for each in (fitted, loaded)]
    assert difference(again[0].state, again[1].state) == 0


# Rounds


def test_training_on_is_training_with_all_rounds_at_once(fitted):
    lines = []
    longer = fitted_on(rounds=1, participation=0.5).train(1, callbacks=[lines.append]).train(2)
    check_same(longer, fitted_on(rounds=4, participation=0.5))
    assert [line["round"] for line in lines] == [2]


@pytest.mark.parametrize(
    ("method", "done"),
    [
        (fedper(train=LocalTraining(schedule=Cosine())), 2),
        (fedrep(train=LocalTraining(schedule=Cosine())), 2),
        (fedalp(groups=2, warmup_share=0.5), 4),
        (apple(until=0.5), 1),
        (Phased((Phase(fedavg()),), finish=Phase(fedper(), participation="all")), 5),
    ],
    ids=["cosine", "cosine of a part", "share of the rounds", "apple", "finish"],
)
def test_a_method_that_depends_on_the_number_of_rounds_does_not_go_on(method, done):
    with pytest.raises(RunError, match=r"\b4\b.*\b8\b"):
        check_goes_on(method, done, 4, 8)


def test_schedules_that_only_count_rounds_go_on():
    falling = fedper(train=LocalTraining(schedule=Exponential(0.5), decay=0.9))
    check_goes_on(falling, 4, 4, 8)
    with pytest.raises(RunError, match="round 5"):  # new clients train at the rate of round 5, which round 4 had
        check_goes_on(falling, 4, 4, 8, new_clients=True)
    check_goes_on(fedalp(groups=2, warmup=2), 4, 4, 8)


@pytest.mark.parametrize(
    ("method", "done", "says"),
    [
        (fedper(), 3, ""),
        (fedavg(), 3, ""),
        (algorithm("pfedla"), 0, "rows"),
        (apple(), 0, "cores"),
        (algorithm("scaffold"), 0, "divides"),
        (algorithm("fedavg+private"), 0, "privacy"),
        (Phased((Phase(fedavg(), rounds=2), Phase(fedper()))), 1, ""),
        (Phased((Phase(fedavg(), rounds=2), Phase(fedper()))), 2, "phase"),
    ],
)
def test_clients_join_later_where_nothing_belongs_to_their_number(method, done, says):
    model = build("mlp", shape=(4,), classes=3, hidden=[5])
    samples = SampleFormat(Preprocessing("float32", (4,)), 3)
    before, after = (Blueprint(method, model, samples, clients, rounds=9).setup() for clients in (3, 4))
    if not says:
        check_more_clients(method, done, before, after)
        return
    with pytest.raises(RunError, match=says):
        check_more_clients(method, done, before, after)


@pytest.mark.parametrize("rounds", [0, -1, 2.0, True, "3", None])
def test_a_number_of_rounds_that_is_none_is_refused(fitted, rounds):
    with pytest.raises(RecordError, match="rounds"):
        fitted.train(rounds)


# Callbacks and patience


def test_callbacks_see_every_round_end_training_and_lose_nothing(capsys):
    lines = []
    ended = fitted_on(rounds=5, progress=True, callbacks=[lines.append, lambda line: line["round"] == 2])
    assert [line["round"] for line in lines] == [1, 2] == [line["round"] for line in ended.history]
    assert capsys.readouterr().err.count("of 5") == 2

    def failing(line):
        if line["round"] == 3:
            raise ValueError("boom")

    with pytest.raises(CallbackError, match=r"'failing'.*boom.*3") as error:
        ended.train(2, callbacks=[failing])
    check_same(error.value.fitted.train(1), ended.train(2))


def test_patience_ends_training_and_training_on_says_so():
    still = fedper(train=LocalTraining(lr=1e-9))
    stopped = fitted_on(method=still, rounds=9, patience=2)
    rounds = len(stopped.history)
    assert rounds < 9
    with pytest.raises(RunError, match="patience"):
        stopped.train(2)
    assert len(stopped.train(1, patience=None).history) == rounds + 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"patience": 0}, RecordError),
        ({"patience": "5"}, RecordError),
        ({"patience": 2, "validation": 0.0}, DataError),
        ({"callbacks": print}, RecordError),
        ({"callbacks": [print, "print"]}, RecordError),
        ({"callbacks": 3}, RecordError),
    ],
    ids=str,
)
def test_what_cannot_be_watched_is_refused_before_the_first_round(options, error):
    with pytest.raises(error, match=next(iter(options))):
        fitted_on(rounds=1, **options)


# Clients that join later


def test_a_client_that_joins_has_the_simulations_model_and_all_that_clients_have(tmp_path):
    fitted = check_as_a_new_client(fedper(train=FEW_STEPS))
    egg = fitted.client("Egg")
    assert (egg.number, fitted.client_names[-1], fitted.clients) == (4, "Egg", 4)
    assert set(egg.predict(X)) <= {"no", "maybe", "yes"}
    assert 0 <= egg.metric("accuracy") <= 1
    assert int(egg.confusion().sum()) == int(egg.fitted.added[4].sim.runtime.federation.counts("test"))
    assert egg.export(tmp_path / "egg.safetensors").exists()
    longer = fitted.train(1)  # it joins again
    assert difference(longer.client("Egg").state, fitted_on(rounds=3).add_client("Egg", *LATE).state) == 0


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("Bern", LATE, "'Bern'"),
        ("", LATE, "''"),
        ("a\nb", LATE, "name"),
        (7, LATE, "7"),
        ("Egg", (LATE[0][:, :3], LATE[1]), "4"),
        ("Egg", (LATE[0][:5], LATE[1]), "5"),
        ("Egg", (LATE[0], np.full(24, "perhaps")), "'perhaps'"),
        ("Egg", (LATE[0], np.arange(24) % 3), "'0'"),
        ("Egg", (LATE[0][:0], LATE[1][:0]), "'Egg'"),
        ("Egg", (LATE[0][:1], LATE[1][:1]), "'Egg'"),
        ("Egg", (LATE[0] * np.nan, LATE[1]), "NaN"),
        ("Egg", ({"test": LATE},), "'Egg'"),
        ("Egg", ({"train": LATE, "later": LATE},), "'later'"),
        ("Egg", (LATE[0],), "'Egg'"),
    ],
)
def test_a_client_that_cannot_join_is_one_line_and_changes_nothing(fitted, name, given, value):
    with pytest.raises(StrataError, match=value) as error:
        fitted.add_client(name, *given)
    assert "\n" not in str(error.value)
    assert fitted.client_names == NAMES[:4]


# A saved folder


def test_a_saved_folder_predicts_the_same_bits(fitted, saved):
    loaded = stratafl.load(saved)
    assert (loaded.client_names, loaded.classes, loaded.round) == (fitted.client_names, fitted.classes, fitted.round)
    assert (loaded.history, loaded.selected, loaded.accuracy) == (fitted.history, fitted.selected, fitted.accuracy)
    for name in FOUR:
        assert torch.equal(loaded.client(name).outputs(X), fitted.client(name).outputs(X))
        assert np.array_equal(loaded.client(name).predict(X), fitted.client(name).predict(X))
    for refused in (lambda: loaded.metric("auroc"), lambda: loaded.train(1), loaded.predictions):
        with pytest.raises(StrataError, match="samples"):
            refused()
    shared = json.loads((saved / "federation.json").read_text())["models"]
    assert shared["0"]["0.weight"] == shared["3"]["0.weight"]  # stored once
    assert shared["0"]["3.weight"] != shared["3"]["3.weight"]


@pytest.mark.slow
def test_a_saved_folder_is_loaded_by_another_process_with_the_data_gone(fitted, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for name, (x, y) in FOUR.items():
        np.savez(data / f"{name}.npz", x=x, y=y)
    clients = {path.stem: tuple(np.load(path).values()) for path in sorted(data.iterdir())}
    fitted_on(clients).save(tmp_path / "saved")
    shutil.rmtree(data)
    np.save(tmp_path / "x.npy", X)
    code = (
        "import numpy, stratafl; loaded = stratafl.load('saved'); x = numpy.load('x.npy')\n"
        "numpy.save('y.npy', numpy.stack([loaded.client(name).outputs(x) for name in loaded.client_names]))"
    )
    subprocess.run(python_command("-c", code), cwd=tmp_path, env=safe_environment(), check=True)
    expected = np.stack([fitted.client(name).outputs(X) for name in FOUR])
    assert np.array_equal(np.load(tmp_path / "y.npy"), expected)


class Own(nn.Module):
    """A person's own class, which no folder can describe."""

    def __init__(self, width=5):
        super().__init__()
        self.base, self.head = nn.Linear(4, width), nn.Linear(width, 3)

    def forward(self, x):
        return self.head(self.base(x).relu())


def test_a_model_of_ones_own_is_given_again(tmp_path):
    own = stratafl.fit(fedper(), FOUR, Own(), rounds=1)
    folder = own.save(tmp_path / "own")
    with pytest.raises(ModelError, match="Own"):
        stratafl.load(folder)
    with pytest.raises(ModelError, match=r"\(7,\)"):
        stratafl.load(folder, model=Own(7))
    again = stratafl.load(folder, model=Own())
    assert torch.equal(again.client(0).outputs(X), own.client(0).outputs(X))
    built = stratafl.fit(fedavg(), FOUR, build("mlp", shape=(4,), classes=3, hidden=(6,)), rounds=1)
    again = stratafl.load(built.save(tmp_path / "built"))
    assert torch.equal(again.client(0).outputs(X), built.client(0).outputs(X))


def _remove(name):
    return lambda folder: (folder / name).unlink()


def _cut(name):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-7])


def _flip(name):
    def flip(folder):
        data = bytearray((folder / name).read_bytes())
        data[-5] ^= 255
        (folder / name).write_bytes(data)

    return flip


def _change(**values):
    def change(folder):
        table = json.loads((folder / "federation.json").read_text())
        (folder / "federation.json").write_text(json.dumps(table | values))

    return change


HALF = {
    "no models": _remove("models.safetensors"),
    "no server": _remove("server.safetensors"),
    "no start": _remove("start.safetensors"),
    "half a file of models": _cut("models.safetensors"),
    **{f"a bit of {name}": _flip(f"{name}.safetensors") for name in ("models", "server", "start")},
    "half a table": _cut("federation.json"),
    "of a later version": _change(format=99),
    "without a method": _change(method={"class": "Mine", "record": None}),
    "another method": _change(method={"class": "x", "record": {"type": "os.system"}}),
    "another layer": _change(model={"architecture": {"layer": "Popen"}, "class": "x", "drawn": True}),
    "another round": _change(round="2"),
    "fewer models": _change(models={}),
    "another type": _change(dtype="load"),
}


@pytest.mark.parametrize("change", HALF.values(), ids=HALF)
def test_half_a_folder_is_one_line(saved, change, tmp_path):
    folder = shutil.copytree(saved, tmp_path / "copy")
    change(folder)
    with pytest.raises(StrataError, match="copy") as error:
        stratafl.load(folder)
    assert "\n" not in str(error.value)


def test_a_folder_that_exists_or_is_none_is_refused(fitted, saved, tmp_path):
    before = {path: path.read_bytes() for path in saved.iterdir() if path.is_file()}
    with pytest.raises(RunError, match="federation"):
        fitted.save(saved)
    assert {path: path.read_bytes() for path in saved.iterdir() if path.is_file()} == before
    for wrong in (tmp_path, tmp_path / "none"):
        with pytest.raises(RunError, match="run directory"):
            stratafl.load(wrong)
    with pytest.raises(UnknownNameError, match="'Bern'"):
        stratafl.load(saved).client("bern")


def test_a_state_that_is_changed_changes_no_other_client(saved, fitted):
    """Clients of a saved folder share the tensors that are equal."""
    loaded = stratafl.load(saved)
    for x in loaded.client(NAMES[0]).state.values():
        x.zero_()
    for name in NAMES[:2]:
        assert torch.equal(loaded.client(name).outputs(X), fitted.client(name).outputs(X))


def test_a_saved_folder_has_the_models_of_one_round_and_no_device_is_guessed(saved):
    with pytest.raises(RunError, match="newest"):
        stratafl.load(saved, round="newest")
    with pytest.raises(UnknownNameError, match="nearest"):
        stratafl.load(saved, round="nearest")
    with pytest.raises(RecordError, match="cdua"):
        stratafl.load(saved, device="cdua")
