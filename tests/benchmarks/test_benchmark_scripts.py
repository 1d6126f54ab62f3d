"""The scripts in benchmarks/: their arithmetic, what they write, and that both sides of a comparison work the same."""

import gc
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from argparse import Namespace
from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import against_loops
import against_pfllib
import encoders
import first_round
import joined
import many_clients
import memory
import models_on_cpu
import pfllib_side
import recording
import same_models
import secure_sums
import slow_link
import summarise
import where_time_goes
import worker
import workload
from processes import outputs
from recording import bar, row

BENCHMARKS = Path(recording.__file__).parent
ROOT = BENCHMARKS.parent
SCRIPTS = (
    *(against_loops, against_pfllib, encoders, first_round, joined, many_clients, memory, models_on_cpu, secure_sums),
    *(slow_link, summarise, where_time_goes, worker),
    SimpleNamespace(**run_path(str(BENCHMARKS / "deployed.py"), run_name="deployed")),  # the tests have another one
)
MIB = 2**20


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_every_script_explains_itself(script, capsys):
    with pytest.raises(SystemExit) as ended:
        script.main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) > 8
    assert all(option in shown for option in options_on_pages()[script.__name__])


@cache
def options_on_pages():
    """By script, the options that documents name in commands."""
    options = defaultdict(set)
    for page in (*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("docs/*/*.md")):
        for script, rest in re.findall(r"python benchmarks/(\w+)\.py\b([^`\n|#]*)", page.read_text()):
            options[script].update(re.findall(r"(?<!\S)--[\w-]+", rest))
    return options


def test_every_script_that_a_page_names_exists():
    assert [name for name in options_on_pages() if not (BENCHMARKS / f"{name}.py").exists()] == []


# The workload


def test_images_are_drawn_by_the_seed_and_show_their_class():
    x, y = workload.images(400, seed=3)
    again, labels = workload.images(400, seed=3)
    assert (x == again).all()
    assert (y == labels).all()
    assert (x != workload.images(400, seed=4)[0]).any()
    means = np.stack([x[:200][y[:200] == c].mean(0) for c in range(10)]).reshape(10, -1)
    nearest = ((means**2).sum(1) - 2 * (x[200:].reshape(200, -1) @ means.T)).argmin(1)  # ‖x − m‖² without ‖x‖²
    assert (nearest == y[200:]).mean() > 0.9


def test_all_seeds_share_one_partition(tmp_path):
    given = Namespace(clients=3, alpha=0.5, seed=2, lr=0.1, batch=4)
    typed = dict(each.split("=") for each in workload.settings(given, tmp_path / "x.npz", "cnn", "cpu", 7))
    assert typed["data.seed"] == "2"
    assert typed["run.protocol"] == "pfllib"
    assert typed["run.precision"] == "fp32"


# Where the time goes


def test_time_in_which_nothing_is_under_way_is_a_gap():
    spans = [(0.0, 10.0), (5.0, 20.0), (50.0, 60.0), (52.0, 55.0), (61.0, 70.0)]
    assert where_time_goes.busy(spans) == 20 + 10 + 9
    assert where_time_goes.gaps(spans, 1.0) == [30.0, 1.0]
    assert where_time_goes.gaps(spans, 20.0) == [30.0]
    assert where_time_goes.gaps([], 1.0) == []


def test_kernels_are_counted_per_round():
    lines = where_time_goes.by_name([("a", 1.0), ("b", 5.0), ("a", 3.0)], rounds=2)
    assert lines == [{"name": "b", "times": 0.5, "us": 2.5}, {"name": "a", "times": 1.0, "us": 2.0}]


@pytest.mark.slow
def test_a_round_is_looked_at(tmp_path, capfd):
    sizes = ["--images", "400", "--clients", "4", "--warm", "1", "--timed", "2", "--looked", "1", "--lines", "3"]
    assert where_time_goes.main(["--results", str(tmp_path), "--model", "mlp", "--device", "cpu", *sizes]) == 0
    (path,) = tmp_path.glob("*.json")
    details = json.loads(path.read_text())["details"]
    assert len(details["rounds"]) == 2
    assert details["device"]["busy"] > 0
    assert any("bmm" in each["name"] for each in details["device"]["kernels"])
    assert "functions of Python" in capfd.readouterr().out


# Many clients


@pytest.mark.slow
def test_a_run_of_many_clients_is_measured(tmp_path):
    assert many_clients.main(["--clients", "150", "--results", str(tmp_path)]) == 0
    table = json.loads((tmp_path / "many-clients.json").read_text())
    assert 0.1 < table["details"]["150 fedavg"]["accuracy"] < 1  # of ten classes, which a linear model partly explains
    values = {each["what"].partition(" with 150 clients")[0]: each["value"] for each in table["rows"]}
    assert set(values) == {"CPU time", "memory", "accuracy"}
    assert min(values.values()) > 0


# PFLlib


def test_stand_ins_compute_what_scikit_learn_does():
    from sklearn.metrics import roc_auc_score  # takes a second, which only this test needs
    from sklearn.preprocessing import label_binarize

    rng = np.random.default_rng(0)
    y = rng.integers(0, 5, 60)
    score = rng.integers(0, 8, (60, 5)) / 8  # with ties
    truth = pfllib_side.label_binarize(y, classes=np.arange(5))
    assert (truth == label_binarize(y, classes=np.arange(5))).all()
    expected = roc_auc_score(truth, score, average="micro")
    assert pfllib_side.roc_auc_score(truth, score, average="micro") == pytest.approx(expected, abs=1e-12)


def test_torch_can_look_for_a_stand_in(monkeypatch):
    monkeypatch.setattr(pfllib_side, "stand_ins", lambda: {"no_such_package": {"x": 1}})
    try:
        assert pfllib_side.replace_missing() == ["no_such_package"]
        assert find_spec("no_such_package").origin is None  # it raises if a module has no spec
    finally:
        sys.modules.pop("no_such_package", None)


def figures(alpha=5.0, **changed):
    ours = {"rounds": [9.0, 2.0, 2.0], "steps": 5, "samples": 50, "accuracy": [0.1, 0.2, 0.5, 0.9]}
    ours |= {"train_loss": [2, 1], "test_samples": 10_000}
    theirs = {
        **{"rounds": [50.0, 20.0, 22.0], "train_loss": [1, 6.0, 8.0], "reading": [9, 3.0, 5.0]},
        **{"train_loss_reading": [3, 1.0, 1.0], "steps": 5, "samples": 50, "accuracy": [0.1, 0.12, 0.52]},
        "train_loss_of_global_model": [2.0, 1.5, 1.0],
    }
    return against_pfllib.compare({**ours, **changed}, theirs, alpha)


def test_ratios_leave_out_the_first_round_and_what_only_pfllib_does():
    found = figures()
    assert found["ratio"] == 10.5
    assert found["ratio_without_train_loss"] == 7.0
    assert found["ratio_without_train_loss_and_reading"] == 5.5
    assert found["accuracies"] == {"pfllib": 0.52, "ours": 0.5}  # both after two rounds
    assert all(found[key] for key in against_pfllib.SAME_WORK)


@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("same_steps", {"steps": 4}),
        ("same_samples", {"samples": 49}),
        ("same_start", {"accuracy": [0.11, 0.2, 0.5]}),
        ("accuracies_alike", {"accuracy": [0.1, 0.2, 0.4]}),
        ("losses_fall", {"train_loss": [1, 1]}),
    ],
)
def test_other_work_is_noticed(key, changed):
    assert figures(**changed)[key] is False


def test_accuracies_of_uneven_shares_are_not_compared():
    assert figures(alpha=0.1, accuracy=[0.1, 0.2, 0.4])["accuracies_alike"] is None


FAKE = {
    "flcore/clients/clientbase.py": """
import numpy as np, torch
from sklearn.preprocessing import label_binarize
from torch.utils.data import DataLoader

def read_client_data(name, client, is_train=True, few_shot=0):
    place = f"../dataset/{name}/{'train' if is_train else 'test'}/{client}.npz"
    held = np.load(place, allow_pickle=True)["data"].tolist()
    return list(zip(torch.Tensor(held["x"]), torch.Tensor(held["y"]).long()))
""",
    "flcore/servers/serveravg.py": """
import copy, time, h5py, torch
from flcore.clients import clientbase
from torch.utils.data import DataLoader

class clientAVG:
    def __init__(self, args, client):
        self.model, self.id, self.args, self.loss = copy.deepcopy(args.model), client, args, torch.nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.local_learning_rate)
        self.batch_size = args.batch_size

    def load_train_data(self, batch_size=None):
        held = clientbase.read_client_data(self.args.dataset, self.id, is_train=True)
        return DataLoader(held, self.batch_size, shuffle=True, drop_last=True)

    def load_test_data(self):
        return DataLoader(clientbase.read_client_data(self.args.dataset, self.id, is_train=False), self.batch_size)

    def train(self):
        for x, y in self.load_train_data():
            loss = self.loss(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

class FedAvg:
    def __init__(self, args, times):
        self.args, self.global_model = args, copy.deepcopy(args.model)
        self.clients = [clientAVG(args, i) for i in range(args.num_clients)]
        self.Budget, self.rs_test_acc, self.rs_train_loss = [], [], []

    def select_clients(self):
        return self.clients

    def test_metrics(self):
        pairs = [(c.model(x).argmax(1) == y) for c in self.clients for x, y in c.load_test_data()]
        return float(torch.cat(pairs).float().mean())

    def train_metrics(self):
        with torch.no_grad():
            losses = [c.loss(c.model(x), y) for c in self.clients for x, y in c.load_train_data()]
        return float(torch.stack(losses).mean())

    def evaluate(self):
        self.rs_test_acc.append(self.test_metrics())
        self.rs_train_loss.append(self.train_metrics())

    def aggregate_parameters(self):
        sizes = [len(clientbase.read_client_data(self.args.dataset, c.id)) for c in self.clients]
        for mean, *each in zip(self.global_model.parameters(), *(c.model.parameters() for c in self.clients)):
            mean.data = sum(n / sum(sizes) * x.data for n, x in zip(sizes, each))

    def train(self):
        for _ in range(self.args.global_rounds + 1):
            begin = time.time()
            for client in self.select_clients():
                for own, given in zip(client.model.parameters(), self.global_model.parameters()):
                    own.data = given.data.clone()
            self.evaluate()
            for client in self.clients:
                client.train()
            self.aggregate_parameters()
            self.Budget.append(time.time() - begin)
""",
    "flcore/trainmodel/models.py": """
from torch import nn

def FedAvgCNN(channels, classes, dim):
    def conv(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 5), nn.ReLU(), nn.MaxPool2d(2))
    head = nn.Sequential(nn.Flatten(), nn.Linear(dim, 512), nn.ReLU(), nn.Linear(512, classes))
    return nn.Sequential(conv(3, 32), conv(32, 64), head)
""",
}


def raced(folder, changed=("", "")):
    """The script's exit code, output and result, with a small library of PFLlib's form, since PFLlib is not here."""
    for name, text in FAKE.items():
        path = folder / "fake" / "system" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(*changed) if changed[0] else text)
    words = [sys.executable, against_pfllib.__file__, "--pfllib", str(folder / "fake"), "--results", str(folder)]
    words += ["--images=150", "--clients=3", "--rounds=3", "--pfllib-rounds=2", "--lr=0.05", "--alpha=5", "--threads=1"]
    process = subprocess.Popen([*words, "--device=cpu"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = outputs(process)
    (path,) = folder.glob("*.json")
    return process.returncode, out, err, json.loads(path.read_text())


@pytest.mark.nightly
def test_both_sides_do_the_same_work(tmp_path):
    code, out, err, found = raced(tmp_path)
    assert code == 0, err
    summary = found["details"]["summary"]
    assert summary["same_steps"], out
    assert summary["same_samples"]
    assert summary["losses_fall"]
    assert summary["same_start"]
    assert found["details"]["ours"]["steps"] > 5
    assert 0 < found["details"]["one step"]["largest"] < 0.05
    assert 0 < found["details"]["one round"]["largest"] < 1e-10
    assert sorted(found["details"]["one round"]["each"]) == ["0", "1", "2", "merged"]
    assert found["environment"]["command"][1].endswith("against_pfllib.py")


@pytest.mark.nightly
def test_a_race_between_unlike_computations_is_refused(tmp_path):
    """Averaging without the clients' sizes shows in no accuracy."""
    code, _, err, found = raced(tmp_path, ("n / sum(sizes)", "1 / len(sizes)"))
    assert code == 1
    assert "float64" in err.splitlines()[-1]
    assert found["details"]["one round"]["each"]["0"] < 1e-10
    assert found["details"]["one round"]["each"]["merged"] > 1e-4
    assert "ours" not in found["details"]


def test_a_difference_is_a_share_of_what_training_changed():
    start = [torch.zeros(2, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    theirs = [torch.tensor([3.0, 4.0], dtype=torch.float64), torch.tensor([1.0, 1.0, 1.5], dtype=torch.float64)]
    ours = [torch.tensor([3.0, 4.5], dtype=torch.float64), theirs[1]]
    assert same_models.difference(ours, theirs, start) == pytest.approx((0.1, 0.1))
    assert same_models.difference(start, theirs, start)[1] == pytest.approx(1)  # a side that did not train
    assert same_models.difference(theirs, theirs, start) == (0, 0)
    assert same_models.difference(start, start, start) == (0, 0)
    assert same_models.difference([ours[0] * float("nan"), ours[1]], theirs, start)[1] == float("inf")


def test_storing_weights_costs_rounding_whatever_training_changed():
    start, unit = [torch.full((4,), 1.0)], torch.finfo(torch.float32).eps
    theirs = [start[0] + 16 * unit]
    assert same_models.difference([theirs[0] + 2 * unit], theirs, start) == (pytest.approx(1 / 8), 0)
    assert same_models.difference([theirs[0] + 12 * unit], theirs, start)[1] == pytest.approx(0.5)


# Joined runs


def test_warm_runs_count_every_round_as_the_later_ones():
    assert joined.warm_seconds([30.0, 31.0, 50.0, 52.0, 54.0, 56.0]) == 12.0
    assert joined.lengths([3.0, 5.0, 9.0]) == [2.0, 4.0]


def test_runs_that_are_not_measured_count_as_second_ones():
    sample = joined.Sample([["a"], ["b"]], {0: ["a again"]}, 6)
    assert sample.total([10.0, 20.0], [5.0]) == 30 + 4 * 15 * 0.5
    rates = joined.Sample([["a"]], {0: ["b"]}, 8)
    assert rates.total([30.0], [12.0]) == 30 + 7 * 12


def test_members_are_methods_times_seeds_or_values_of_a_setting(tmp_path):
    given = Namespace(methods="fedavg,local", seeds=2, vary=None, set=["run.rounds=1"])
    found = worker.members_of(given, tmp_path)
    assert [(each.method, each.seed) for each in found] == [(m, s) for s in (0, 1) for m in ("fedavg", "local")]
    given = Namespace(methods="fedper", seeds=1, vary="train.lr=0.1,0.3", set=["run.rounds=1"])
    found = worker.members_of(given, tmp_path)
    assert [(each.method, each.experiment.train.lr) for each in found] == [("fedper", 0.1), ("fedper", 0.3)]
    assert len({each.folder for each in found}) == 2


# Memory


def test_growth_is_what_is_added_and_not_what_comes_and_goes():
    noise = [0, 5, -5, 3, -2, 4, -4] * 4
    assert memory.growth([100 + n for n in noise]) == pytest.approx(0, abs=5)
    assert memory.growth([100 + n + 10 * i for i, n in enumerate(noise)]) == pytest.approx(180, rel=0.1)
    assert memory.growth([50.0, *[100.0] * 20]) == 0


@pytest.mark.parametrize(("leak", "flat"), [(0, True), (1, False)])
def test_a_leak_is_not_flat(leak, flat):
    points = [{"resident": (300 + leak * i) * MIB, "tensors": 7 * MIB} for i in range(30)]
    found = memory.verdicts(points)
    assert found["resident"]["flat"] is flat
    assert found["tensors"]["flat"]


def test_models_that_take_turns_are_no_growth():
    points = [{"resident": size * MIB, "tensors": 0} for size in (100, 400) * 6]
    given = Namespace(model="mlp,cnn", what="runs", joined=1)
    assert {each["resident"] for each in memory.same_kind(points, given)} == {250 * MIB}


@pytest.mark.slow
def test_living_tensors_are_counted_once():
    gc.collect()
    count, before = memory.tensor_bytes()
    kept = torch.zeros(1000)
    view = kept[:10]
    with FakeTensorMode():  # as torch's compiler does
        fake = torch.zeros(1000)
    assert memory.tensor_bytes() == (count + 1, before + 4000)
    del kept, view, fake
    assert memory.tensor_bytes() == (count, before)


# Results


def test_a_table_and_a_plot_are_made_of_results(tmp_path, capsys):
    given = Namespace(results=tmp_path, name=None, pfllib=Path("x"))
    for _ in range(2):
        result = recording.Result("pfllib", given, "cpu", "mine")
        lines = [row("fast <enough>", 12.34, "×", 10, "more"), row("slow", 0.5, "s", 0.4, "less"), row("so", None, "s")]
        result.show(lines, [bar("a & b", "PFLlib", 12.0, "s"), bar("a & b", "ours", 0.25, "s")])
        result.save()
    (tmp_path / "other.json").write_text("[1]")
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["mine-2.json", "mine.json", "other.json"]
    assert "fast <enough>: 12.3× (aim ≥ 10×, reached)" in capsys.readouterr().out
    assert summarise.main([str(tmp_path)]) == 0
    table = (tmp_path / "table.md").read_text()
    assert "| slow | 0.500 s | ≤ 0.400 s | **missed** |" in table
    assert "| so | not measured |  |  |" in table
    assert result.table["environment"]["source"] in table
    drawn = ET.fromstring((tmp_path / "plot.svg").read_text())
    widths = [float(each.get("width")) for each in drawn.iter() if each.get("fill") == summarise.COLOUR]
    assert widths[1] == pytest.approx(widths[0] / 48, rel=0.01)


def test_a_table_says_where_and_how_it_was_measured(tmp_path):
    result = recording.Result("joined", Namespace(results=tmp_path, name="gpu"), "cpu", "gpu")
    about = result.table["environment"]
    about |= {
        "gpu": "H200",
        "cores": 16,
        "load": 0.5,
        "command": ["python", "/a/benchmarks/joined.py", "/b/c"],
    }
    result.show([row("apart", 3e-12, "")])
    result.save()
    table = summarise.markdown(summarise.results(tmp_path))
    assert f"H200, host {about['processor']}, 16 cores" in table
    assert f"torch {about['torch']}" in table
    assert "load 0.5" in table
    assert str(about["commit"]) in table
    assert "python benchmarks/joined.py c\n" in table
    assert "| apart | 3e-12 |" in table


def test_models_on_a_cpu_are_summarised_with_the_others(tmp_path):
    result = recording.Result("models_on_cpu", Namespace(results=tmp_path, name=None), "cpu", "all")
    result.details["mlp-0"] = {"model": "mlp", "least_ratio": 7.5}
    models_on_cpu.summarised(result, [models_on_cpu.Job("mlp", 0), models_on_cpu.Job("cnn", 1)], usual=True)
    ((name, table),) = summarise.results(tmp_path)
    assert name == "all.json"
    assert [(each["value"], each["aim"]) for each in table["rows"]] == [(7.5, 1.3), (None, 1.0)]
    assert [each["label"] for each in table["bars"]] == ["mlp"]


def test_the_code_that_was_measured_is_known(tmp_path):
    package = tmp_path / "stratafl"
    package.mkdir()
    (package / "a.py").write_text("x = 1")
    one = recording.source_digest(package)
    (package / "a.py").write_text("x = 2")
    assert recording.source_digest(package) != one
    assert recording.commit(tmp_path) is None
    (tmp_path / "COMMIT").write_text("abc\n")
    assert recording.commit(tmp_path) == "abc"


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="has no results"):
        summarise.main([str(tmp_path)])


@pytest.mark.slow
def test_a_model_on_a_cpu_is_measured_in_a_process_of_its_own(tmp_path):
    sizes = ["--models", "mlp", "--busy", "0", "--clients", "2", "--steps", "1", "--repeats", "1"]
    assert models_on_cpu.main([str(tmp_path), *sizes]) == 0
    details = json.loads((tmp_path / "models-on-cpu.json").read_text())["details"]
    assert details["mlp-0"]["least_ratio"] > 0
    assert f"{details['mlp-0']['least_ratio']:.2f}" in (tmp_path / "table.md").read_text()
