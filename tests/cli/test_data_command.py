"""`strata data`, and runs on data sets with a name and on a person's own folders."""

import json

import numpy as np
import pytest

from stratafl.config.experiment import load_experiment, with_settings
from stratafl.data import DATASETS, load_samples
from stratafl.runs import Run

SHORT = ("--rounds", 1, "--set", "train.batch=5")
SMALL = (*SHORT, "--set", "data.clients=2", "--set", "data.minimum=1")


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def cifar(place):
    """A small CIFAR-10 in a folder."""
    rng = np.random.default_rng(0)
    (place / "cifar").mkdir()
    for stem, count in (("train", 60), ("test", 20)):
        images = rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
        np.savez(place / "cifar" / f"{stem}.npz", img=images, label=np.arange(count) % 10)
    return place / "cifar"


def test_the_list_says_what_there_is_and_what_is_here(strata, cifar):
    result = strata("data", "list", "--json")
    found = {entry["name"]: entry for entry in json.loads(result.out)}
    assert list(found) == list(DATASETS)
    assert (found["digits"]["here"], found["cifar10"]["here"]) == ("yes", "no")
    assert found["cifar100"] == {
        "name": "cifar100",
        "samples": 60_000,
        "classes": 100,
        "shape": [3, 32, 32],
        "from": "uoft-cs/cifar100",
        "here": "no",
    }
    assert strata("data", "export", "cifar10", "out/", "--path", cifar).code == 0
    words = strata("data", "list").out.split()
    assert {*DATASETS, "814,255", "62", "193,208", "data.path"} <= {word.strip("│") for word in words}
    found = {entry["name"]: entry for entry in json.loads(strata("data", "list", "--json").out)}
    assert found["cifar10"]["here"] == "from data.path"


def test_an_export_is_read_instead_of_the_data_set(strata, place, cifar):
    result = strata("data", "export", "cifar10", "out/", "--path", cifar, "--set", "data.size=8")
    assert result.code == 0
    assert "80 samples of cifar10 in 1 file, " in result.out
    found = load_samples(f"{place}/out/")
    assert (found.x.shape, found.classes, int(found.tests.sum())) == ((80, 3, 8, 8), 10, 20)


@pytest.mark.slow
def test_a_run_is_the_same_from_the_data_set_and_from_its_export(strata, place, cifar):
    strata("data", "export", "cifar10", "out/", "--path", cifar)
    assert strata("run", *SMALL, "--data", "cifar10", "--set", "data.path=cifar", "--out", "one").code == 0
    assert strata("run", *SMALL, "--data", "out/", "--out", "two", "--set", "data.seed=0").code == 0
    told = [json.loads((place / name / "environment.json").read_text()) for name in ("one", "two")]
    digests = [each["identity"]["data"] for each in told]
    assert digests[0] == digests[1]


def test_a_run_on_a_folder_per_client_goes_on_from_anywhere(strata, place, monkeypatch):
    rng = np.random.default_rng(0)
    for name in ("ann", "bob", "cem"):
        (place / "mine" / name).mkdir(parents=True)
        lines = [f"{a:.3f},{b:.3f},{int(a > b)}" for a, b in rng.random((20, 2))]
        (place / "mine" / name / "data.csv").write_text("\n".join(["a,b,label", *lines]))
    assert strata("run", *SHORT, "--data", "mine/", "--out", "done").code == 0
    (place / "elsewhere").mkdir()
    monkeypatch.chdir(place / "elsewhere")
    run = Run.open(place / "done")
    assert run.trial.sim.runtime.federation.clients == 3
    run.close()


@pytest.fixture
def clients(place):
    """A table whose samples are of two clients."""
    lines = [f"{who},{i / 10},{i % 2}" for who in ("ann", "bob") for i in range(12)]
    (place / "mine.csv").write_text("\n".join(["client,a,label", *lines]))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("data.clients=5", "data.clients = 5"),
        ("data.alpha=0.5", "data.alpha = 0.5"),
        ("data.minimum=3", "data.minimum = 3"),
        ("data.per_client=3", "data.per_client = 3"),
        ("data.draws=7", "data.draws = 7"),
    ],
)
@pytest.mark.usefixtures("clients")
def test_how_to_divide_means_nothing_where_the_data_names_its_clients(refused, strata, setting, said):
    refused("data", "show", "--data", "mine.csv", "--set", setting, says=(said, "'mine'", "2", "data.partition"))
    assert strata("data", "show", "--data", "mine.csv").code == 0
    if setting == "data.clients=5":
        assert strata("data", "show", "--data", "mine.csv", "--set", "data.clients=2").code == 0  # as there are
        assert strata("data", "show", "-d", "mine.csv", "-s", setting, "-s", "data.partition=iid").code == 0


@pytest.mark.parametrize(
    ("partition", "setting", "says"),
    [
        (
            "iid",
            "alpha=0.5",
            ("data.alpha", "0.5", "'iid'", "data.clients"),
        ),
        (
            "dirichlet",
            "per_client=5",
            ("'dirichlet'", "data.clients", "data.alpha", "data.min"),
        ),
        ("pathological", "alpha=0.5", ("data.clients", "data.per_client", "data.balanced")),
        ("auto", "per_client=5", ("data.per_client", "5", "'dirichlet'")),
        ("classes", "minimum=3", ("data.minimum", "3", "'classes'")),
    ],
)
def test_what_the_partition_does_not_listen_to_is_refused(refused, strata, partition, setting, says):
    given = ("data", "show", "--set", f"data.partition={partition}", "--set")
    refused(*given, f"data.{setting}", says=says)
    assert strata(*given, "data.alpha=0.1").code == 0  # as everybody has it


def test_another_partition_leaves_behind_what_it_does_not_listen_to(strata, place):
    (place / "own.toml").write_text('[data]\npartition = "dirichlet"\nalpha = 0.5\nminimum = 3\ndraws = 50\n')
    assert strata("data", "show", "--config", "own.toml", "--set", "data.partition=classes").code == 0
    kept = with_settings(load_experiment(place / "own.toml"), ["data.partition=pfllib"]).data
    assert (kept.alpha, kept.minimum, kept.options) == (0.5, 3, {})


@pytest.mark.usefixtures("clients")
def test_the_share_of_tests_is_said_to_mean_nothing_where_the_data_has_tests(strata, place):
    (place / "own").mkdir()
    for name in ("train.csv", "test.csv"):
        (place / "own" / name).write_text((place / "mine.csv").read_text())
    note = strata("data", "show", "--data", "own/", "--set", "run.protocol=pfedla").err
    assert "data.test" in note
    assert "'own'" in note
    assert strata("data", "show", "--data", "own/").err == ""
    assert strata("data", "show", "--data", "mine.csv", "--set", "data.test=0.3").err == ""  # which has none


def test_a_regression_of_nobody_is_divided_evenly(strata, refused, place):
    (place / "mine.csv").write_text("\n".join(["a,label", *(f"{i},{i / 7:.3f}" for i in range(20))]))
    given = ("data", "show", "--data", "mine.csv", "--set", "data.clients=4")
    result = strata(*given)
    assert result.code == 0
    assert "'mine'" in result.err
    assert "data.partition = 'iid'" in result.err
    assert result.out.count("│       5 │") == 4
    refused(*given, "--set", "data.alpha=1", says=("data.alpha", "1.0", "'mine'"))
    refused(*given, "--set", "data.partition=classes", says=("data.partition", "'iid'"))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("data", "export", "minst", "out/"), ("data.name", "'minst'", "'mnist'")),
        (("data", "export", "cifar10", "out/", "--path", "none"), ("cifar10", "data.path", "'none'")),
        (("data", "export", "cifar10", "cifar", "--path", "cifar"), "'cifar'"),
        (("data", "export", "cifar10", "out/", "--set", "data.sise=1"), "'sise'"),
        (("run", "--data", "cifar10"), ("cifar10", "strata data export cifar10 OUT/")),
        (("run", "--data", "cifar10"), "ConnectionError"),
        (("run", "--data", "nowhere/"), "nowhere"),
        (("run", "--data", "digits", "--set", "data.size=4"), ("data.size", "'digits'")),
        (("run", "--set", "data.normalise=hlaf"), ("data.normalise", "'hlaf'", "'half'")),
    ],
)
def test_mistakes_are_one_line(refused, cifar, arguments, says):
    refused(*arguments, says=says)
