"""A comparison keeps the settings of its methods as they are, also those of older versions, which were typed text."""

import tomllib
from types import SimpleNamespace

import numpy as np
import pytest
import tomli_w
import torch

from stratafl.config.assemble import seeds_of
from stratafl.config.experiment import Experiment, to_tables
from stratafl.config.migrations import FORMAT
from stratafl.errors import RecordError, RunError, UnknownNameError
from stratafl.runs import Comparison, joined


def test_settings_of_single_methods_come_back_as_they_were(tmp_path):
    given = {
        "run.rounds": 1,
        "data.clients": 3,
        "fedper.personal": "last:1",
        "fedper.finetune": None,
        "fedprox.strength": 1,
    }
    made = Comparison.create(tmp_path / "c", Experiment(), ["fedper", "fedprox"], 1, given)
    assert made.per_method == {
        "fedper": {"algorithm.personal": "last:1", "algorithm.finetune": None},
        "fedprox": {"algorithm.strength": 1},
    }
    back = Comparison.read(made.folder)
    assert back.per_method == {"fedper": {"algorithm.personal": "last:1"}, "fedprox": {"algorithm.strength": 1}}
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
    assert back.per_method == {"fedper": {"algorithm.personal": "last:1"}}
    (member,) = back.members()
    assert member.experiment.algorithm.options == {"personal": "last:1"}


@pytest.mark.parametrize(
    ("number", "base", "settings", "groups"),
    [
        (5, {}, {}, 4),
        (5, {}, {"algorithm.groups": 3}, 3),
        (5, {"name": "fedalp", "groups": 6}, {}, 6),
        (5, {"name": "fedalp"}, {}, 4),
        (FORMAT, {}, {}, None),
    ],
)
def test_fedalp_has_as_many_groups_as_when_its_comparison_began(tmp_path, number, base, settings, groups):
    head = {"format": number, "methods": ["fedavg", "fedalp"], "seeds": [0]}
    head["settings"] = {"fedavg": {}, "fedalp": settings}
    tables = {**to_tables(Experiment()), **({"algorithm": base} if base else {})}
    (tmp_path / "compare.toml").write_text(tomli_w.dumps({"compare": head, **tables}))
    fedavg, fedalp = (member.experiment.algorithm for member in Comparison.read(tmp_path).members())
    assert (fedavg.options, fedalp.options.get("groups")) == ({}, groups)


def seeds(comparison):
    return [seeds_of(member.experiment).parts for member in comparison.members()]


@pytest.mark.parametrize(
    ("vary", "expected"),
    [
        ("all", [(4, 4, 4), (5, 5, 5)]),
        ("partition", [(4, 4, 4), (5, 4, 4)]),
        ("weights", [(4, 4, 4), (4, 5, 4)]),
        ("batches", [(4, 4, 4), (4, 4, 5)]),
    ],
)
def test_seeds_vary_one_part_and_the_others_keep_the_first(tmp_path, vary, expected):
    given = {"run.rounds": 1, "data.clients": 3, "run.seed": 4}
    made = Comparison.create(tmp_path / "c", Experiment(), ["local"], 2, given, vary=vary)
    assert seeds(made) == expected
    assert [member.folder.name for member in made.members()] == ["seed-4", "seed-5"]
    back = Comparison.read(made.folder)
    assert (back.vary, seeds(back)) == (vary, expected)


def test_members_come_seed_by_seed_and_all_methods_have_the_same_seeds(tmp_path):
    given = {"run.rounds": 1, "data.clients": 3}
    made = Comparison.create(tmp_path / "c", Experiment(), ["local", "fedavg"], 2, given)
    members = [(member.method, member.seed) for member in made.members()]
    assert members == [("local", 0), ("fedavg", 0), ("local", 1), ("fedavg", 1)]
    assert seeds(made)[::2] == seeds(made)[1::2]


def test_a_guard_trains_alone_as_local_training_of_the_comparison_does(tmp_path):
    given = {"run.rounds": 1, "data.clients": 3, "local.train.lr": 0.3}
    made = Comparison.create(tmp_path / "c", Experiment(), ["fedavg", "local"], 1, given)
    assert {member.alone.lr for member in made.members()} == {0.3}


def test_a_part_with_a_seed_of_its_own_keeps_it(tmp_path):
    given = {"run.rounds": 1, "data.clients": 3, "data.seed": 7}
    made = Comparison.create(tmp_path / "c", Experiment(), ["local"], 2, given, vary="weights")
    assert seeds(made) == [(7, 0, 0), (7, 1, 0)]
    with pytest.raises(RecordError, match=r"data\.seed = 7 .*--vary partition"):
        Comparison.create(tmp_path / "d", Experiment(), ["local"], 2, given, vary="partition")
    with pytest.raises(UnknownNameError, match=r"weigths.*weights"):
        Comparison.create(tmp_path / "d", Experiment(), ["local"], 2, {}, vary="weigths")


def test_comparisons_of_older_versions_vary_everything(tmp_path):
    made = Comparison.create(tmp_path / "c", Experiment(), ["local"], 2, {"run.rounds": 1, "data.clients": 3})
    path = made.folder / "compare.toml"
    path.write_text(path.read_text().replace('vary = "all"\n', ""))
    assert Comparison.read(made.folder).vary == "all"
    path.write_text(path.read_text().replace("[compare]\n", '[compare]\nvary = "none"\n'))
    with pytest.raises(RunError, match=r"compare\.toml'.* vary .*none"):
        Comparison.read(made.folder)


def test_data_that_two_runs_share_counts_once(monkeypatch):
    federation = SimpleNamespace(x=torch.zeros(15), y=torch.zeros(5))
    sims = [SimpleNamespace(runtime=SimpleNamespace(federation=federation)) for _ in range(2)]
    monkeypatch.setattr(joined, "run_bytes", lambda sim: 100)
    beside = 2 * 100 + 80  # both runs, and their data of 80 bytes
    assert joined.further(sims, beside + 100 + 80) == 1  # a further run may bring data of its own
    assert joined.further(sims, beside + 100 + 79) == 0
