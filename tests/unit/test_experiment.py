"""Configuration: tables ↔ experiment, unknown keys refused with the nearest match, values checked with their key."""

import tomllib
from dataclasses import replace

import pytest
import tomli_w
import torch

from stratafl.algorithms import fedper
from stratafl.config.assemble import algorithm_of, completed, federation_of, simulation_of
from stratafl.config.experiment import Experiment, from_tables, load_experiment, to_tables, with_settings
from stratafl.config.setting_tables import DataTable, partition_of
from stratafl.data import IID, Classes, Dirichlet, PFLlibDirichlet
from stratafl.data.partitions import KClasses, Pathological, PFedLAClasses
from stratafl.errors import RecordError, StrataError
from stratafl.execute import Matrix
from stratafl.policies import LocalTraining


def test_an_empty_configuration_is_the_default():
    empty, default = from_tables({}), Experiment()
    assert replace(empty, train=default.train, data=default.data) == default
    assert from_tables({"data": {"name": "mnist"}}) == with_settings(default, ["data.name=mnist"])


def test_the_complete_configuration_goes_to_toml_and_back():
    experiment = with_settings(Experiment(), ["train.lr=0.1", "algorithm.personal=blocks:2", "run.seed=3"])
    text = tomli_w.dumps(to_tables(experiment))
    assert from_tables(tomllib.loads(text)) == experiment
    assert tomllib.loads(text)["algorithm"] == {"name": "fedper", "personal": "blocks:2"}


def test_an_option_may_be_called_by_its_method():
    by_name = with_settings(Experiment(), ["fedlag.warmup=5", "algorithm.name=fedlag"])
    assert by_name == with_settings(Experiment(), ["algorithm.name=fedlag", "algorithm.warmup=5"])


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("trian.lr=0.1", "'trian'.*'train'"),
        ("fedlag.warmup=1", "fedlag.warmup .*fedper"),
        ("train.learning=0.1", r"\[train\] 'learning'"),
        ("train.batchs=3", "'batchs'.*'batch'"),
        ("train.lr=fast", "train.lr.*'fast'"),
        ("train.lr=-1", "train.lr.*0.*-1"),
        ("train.epochs=1.5", "train.epochs.*1.5"),
        ("train.drop_last=1", "train.drop_last .*1"),
        ("run.graphs=true", "run.graphs.*'true'.*auto, off, on"),
        ("run.rounds=true", "run.rounds .*True"),
        ("run.participation=0", "run.participation.*0.*0.0"),
        ("run.participation=2", "run.participation.*1.*2.0"),
        ("data.clients=0", "data.clients.*1.*0"),
        ("data.partition=dirichle", "data.partition.*'dirichle'.*'dirichlet'"),
        ("model.name=mpl", "model.name.*'mpl'.*'mlp'"),
        ("algorithm.name=fedpre", "algorithm.name.*'fedpre'"),
        ("lr=0.1", "table.key=value"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(setting, says):
    with pytest.raises(StrataError, match=says) as error:
        with_settings(Experiment(), [setting])
    assert "\n" not in str(error.value)


def test_options_of_a_method_are_checked():
    wrong = with_settings(Experiment(), ["algorithm.personl=head"])
    with pytest.raises(StrataError, match=r"'personl'.*'personal'"):
        algorithm_of(wrong)


def test_the_method_gets_its_options_and_the_descent():
    experiment = with_settings(Experiment(), ["algorithm.personal=last:1", "train.lr=0.2", "train.decay=0.9"])
    train = LocalTraining(lr=0.2, decay=0.9)
    assert algorithm_of(experiment) == fedper(personal="last:1", train=train)


PFEDLA = ["data.partition=pfedla1", "data.samples=40"]


def test_further_keys_of_data_are_options_of_the_partition():
    data = with_settings(Experiment(), [*PFEDLA, "data.held_out=0.25", "data.per_client=5"]).data
    assert partition_of(data) == PFedLAClasses(per_client=5, samples=40, held_out=0.25)
    assert partition_of(DataTable(partition="pathological", options={"balanced": True})) == Pathological(2, True)


def test_keys_of_the_table_itself_reach_the_partitions_that_know_them():
    settings = {"alpha": 0.7, "minimum": 3, "per_client": 5}
    assert partition_of(DataTable(**settings)) == Dirichlet(alpha=0.7, minimum=3)
    assert partition_of(DataTable(partition="classes", **settings)) == Classes(per_client=5)
    assert partition_of(DataTable(partition="iid", **settings)) == IID()


def test_what_is_not_given_is_as_the_partition_says():
    assert partition_of(DataTable()) == Dirichlet(alpha=0.1, minimum=10)
    assert partition_of(DataTable(partition="pfllib")) == PFLlibDirichlet(alpha=0.1, minimum=None)
    assert partition_of(DataTable(partition="classes")) == Classes(per_client=2)
    assert partition_of(DataTable(partition="kclasses")) == KClasses(per_client=4)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ([*PFEDLA, "data.held_uot=0.25"], "'held_uot'.*'held_out'"),
        (["data.samples=40"], "'samples'.*clients, new_clients, .*, draws"),
        (["data.clinets=4"], "'clinets'.*'clients'"),
        ([*PFEDLA, "data.held_out=much"], "data.held_out.*'much'"),
        ([*PFEDLA, "data.samples=40.5"], "data.samples.*40.5"),
        ([*PFEDLA, "data.samples=41"], "samples=41.*per_client=4"),
        (["data.partition=kclasses", "data.shuffled=1"], "data.shuffled.*1"),
    ],
)
def test_options_of_a_partition_are_checked(settings, says):
    with pytest.raises(StrataError, match=says) as error:
        with_settings(Experiment(), settings)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "given", [PFEDLA, ["algorithm.name=fedlag", "algorithm.k=3"], ["model.name=lenet", "model.norm=true"]]
)
def test_options_may_come_before_what_they_are_of(given):
    made = with_settings(Experiment(), given)
    assert made == with_settings(Experiment(), given[::-1])
    assert made != with_settings(Experiment(), given[:1])


def test_another_partition_forgets_the_options_of_the_one_before():
    first = with_settings(Experiment(), [*PFEDLA, "data.clients=7"])
    other = with_settings(first, ["data.partition=pathological"])
    assert (other.data.options, other.data.clients) == ({}, 7)
    assert with_settings(first, ["data.partition=pfedla1"]) == first


def test_a_complete_configuration_has_the_options_of_the_partition():
    given = with_settings(Experiment(), PFEDLA)
    whole = completed(given)
    assert to_tables(whole)["data"].items() >= {"per_client": 4, "samples": 40, "held_out": 0.3}.items()
    assert from_tables(tomllib.loads(tomli_w.dumps(to_tables(whole)))) == whole == completed(whole)
    assert partition_of(whole.data) == partition_of(given.data)
    assert to_tables(completed(Experiment()))["data"].items() >= {"minimum": 10, "draws": 1000}.items()


def test_a_partition_decides_who_tests_on_what():
    federation = federation_of(with_settings(Experiment(), [*PFEDLA, "data.clients=10", "data.validation=0.1"]))
    assert federation.counts("test").tolist() == [12] * 10
    assert federation.counts("validation").tolist() == [3] * 10
    assert federation.counts("train").tolist() == [25] * 10


def test_files_are_read_and_refused(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[train]\nlr = 1\n", encoding="utf-8")
    assert load_experiment(path).train.lr == 1.0
    path.write_text("[train\n", encoding="utf-8")
    with pytest.raises(RecordError, match=r"run.toml'"):
        load_experiment(path)
    with pytest.raises(RecordError, match=r"none.toml'"):
        load_experiment(tmp_path / "none.toml")


def test_an_experiment_runs():
    experiment = with_settings(
        Experiment(),
        ["run.rounds=1", "data.clients=5", "data.partition=iid", "model.hidden=[16]", "run.participation=0.4"],
    )
    sim = simulation_of(experiment)
    progress, report = sim.round(sim.start(), Matrix())
    assert len(report.cohort) == 2
    assert progress.server["theta"]["fc1.weight"].shape == torch.Size([16, 64])
