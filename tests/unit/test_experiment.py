"""Configuration: tables ↔ experiment, unknown keys refused with the nearest match, values checked with their key."""

import tomllib

import pytest
import tomli_w
import torch

from stratafl.algorithms import fedper
from stratafl.assemble import algorithm_of, simulation_of
from stratafl.errors import RecordError, StrataError
from stratafl.execute import Matrix
from stratafl.experiment import Experiment, from_tables, load, to_tables, with_settings
from stratafl.policies import SGD, Exponential


def test_an_empty_configuration_is_the_default():
    assert from_tables({}) == Experiment()


def test_the_complete_configuration_goes_to_toml_and_back():
    experiment = with_settings(Experiment(), ["train.lr=0.1", "algorithm.personal=blocks:2", "run.seed=3"])
    text = tomli_w.dumps(to_tables(experiment))
    assert from_tables(tomllib.loads(text)) == experiment
    assert tomllib.loads(text)["algorithm"] == {"name": "fedper", "personal": "blocks:2"}


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("trian.lr=0.1", "unknown table 'trian'; did you mean 'train'"),
        ("fedlag.warmup=1", "unknown table 'fedlag': an option of the method is set by algorithm.warmup=…"),
        ("train.learning=0.1", r"unknown key of \[train\] 'learning'"),
        ("train.batchs=3", "unknown key of .train. 'batchs'; did you mean 'batch'"),
        ("train.lr=fast", "train.lr is a number, not 'fast'"),
        ("train.lr=-1", "train.lr must be at least 0, not -1"),
        ("train.epochs=1.5", "train.epochs is a whole number, not 1.5"),
        ("train.drop_last=1", "train.drop_last is true or false, not 1"),
        ("run.graphs=true", "run.graphs is one of auto, off, on, not True"),
        ("run.rounds=true", "run.rounds is a whole number, not True"),
        ("run.participation=0", "run.participation must be above 0, not 0.0"),
        ("run.participation=2", "run.participation must be at most 1, not 2.0"),
        ("data.clients=0", "data.clients must be at least 1, not 0"),
        ("data.partition=dirichle", "unknown data.partition 'dirichle'; did you mean 'dirichlet'"),
        ("model.name=mpl", "unknown model.name 'mpl'; did you mean 'mlp'"),
        ("algorithm.name=fedpre", "unknown algorithm.name 'fedpre'; did you mean 'fed"),
        ("lr=0.1", "a setting is written table.key=value"),
    ],
)
def test_what_is_wrong_is_said_with_its_key(setting, says):
    with pytest.raises(StrataError, match=says) as error:
        with_settings(Experiment(), [setting])
    assert "\n" not in str(error.value)


def test_options_of_a_method_are_checked():
    wrong = with_settings(Experiment(), ["algorithm.personl=head"])
    with pytest.raises(StrataError, match="unknown option of fedper 'personl'; did you mean 'personal'"):
        algorithm_of(wrong)


def test_the_method_gets_its_options_and_the_descent():
    experiment = with_settings(Experiment(), ["algorithm.personal=last:1", "train.lr=0.2", "train.decay=0.9"])
    train = SGD(lr=0.2, schedule=Exponential(0.9))
    assert algorithm_of(experiment) == fedper(personal="last:1", train=train)


def test_files_are_read_and_refused(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[train]\nlr = 1\n", encoding="utf-8")
    assert load(path).train.lr == 1.0
    path.write_text("[train\n", encoding="utf-8")
    with pytest.raises(RecordError, match=r"run.toml' is not TOML"):
        load(path)
    with pytest.raises(RecordError, match=r"cannot read .*none.toml': No such file"):
        load(tmp_path / "none.toml")


def test_an_experiment_runs():
    experiment = with_settings(
        Experiment(),
        ["run.rounds=1", "data.clients=5", "data.partition=iid", "model.hidden=[16]", "run.participation=0.4"],
    )
    sim = simulation_of(experiment)
    progress, report = sim.round(sim.start(), Matrix())
    assert len(report.cohort) == 2
    assert progress.server["theta"]["fc1.weight"].shape == torch.Size([16, 64])
