"""A comparison keeps the settings of its methods as they are, also those of older versions, which were typed text."""

import tomllib

import numpy as np
import tomli_w

from stratafl.config.experiment import Experiment, to_tables
from stratafl.runs import Comparison


def test_settings_of_single_methods_come_back_as_they_were(tmp_path):
    given = {
        "run.rounds": 1,
        "data.clients": 3,
        "fedper.personal": "last:1",
        "fedper.finetune": None,
        "fedprox.strength": 1,
    }
    made = Comparison.create(tmp_path / "c", Experiment(), ["fedper", "fedprox"], 1, given)
    assert made.own == {
        "fedper": {"algorithm.personal": "last:1", "algorithm.finetune": None},
        "fedprox": {"algorithm.strength": 1},
    }
    back = Comparison.read(made.folder)
    assert back.own == {"fedper": {"algorithm.personal": "last:1"}, "fedprox": {"algorithm.strength": 1}}
    assert [member.experiment for member in back.members()] == [member.experiment for member in made.members()]
    assert back.base == made.base


def test_a_path_with_quotes_comes_back(tmp_path):
    folder = tmp_path / 'we"ird'
    folder.mkdir()
    x = np.random.default_rng(0).normal(size=(60, 4)).astype("float32")
    np.savez(folder / "samples.npz", x=x, y=np.arange(60) % 2)
    name = str(folder / "samples.npz")
    made = Comparison.create(folder / "c", Experiment(), ["local"], 1, {"data.name": name, "data.clients": 2})
    assert made.base.data.name == name == Comparison.read(made.folder).base.data.name


def test_settings_of_older_versions_are_read(tmp_path):
    head = {"format": 2, "methods": ["fedper"], "seeds": [0], "settings": {"fedper": ['algorithm.personal="last:1"']}}
    tables = to_tables(Experiment())
    tables["data"]["newcomers"] = tables["data"].pop("new_clients")
    (tmp_path / "compare.toml").write_text(tomli_w.dumps({"compare": head, **tables}))
    assert tomllib.loads((tmp_path / "compare.toml").read_text())["data"]["newcomers"] == 0
    back = Comparison.read(tmp_path)
    assert back.own == {"fedper": {"algorithm.personal": "last:1"}}
    (member,) = back.members()
    assert member.experiment.algorithm.options == {"personal": "last:1"}
