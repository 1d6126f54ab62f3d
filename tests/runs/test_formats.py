"""Files have a version: an older run directory is read, loaded and resumed; a newer one is refused in one line.

`old_run` was written in format 2, by version 0.1.0.dev0 (commit 93ec528), and stopped after round 2 of 3. Its settings
have names of then: `run.memory`, `data.newcomers`.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from stored_runs import TINY, left

import stratafl
from stratafl.config.assemble import simulation_of
from stratafl.config.experiment import Experiment, with_settings
from stratafl.config.migrations import FORMAT
from stratafl.errors import DamagedError, RunError
from stratafl.execute import memory
from stratafl.execute.simulation import SavedForm
from stratafl.report.study import gather
from stratafl.runs import Comparison, Run, environment, environment_of
from stratafl.runs.checkpoint import _body_digest
from stratafl.runs.class_counts import read_class_counts
from stratafl.runs.directory import config_of

OLD = Path(__file__).with_name("old_run")


def edit(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.fixture
def old(tmp_path, monkeypatch):
    """A copy of the old run; the last bits of its initial model may be another processor's."""
    # Its limit is 1 GB, and what this process takes depends on the tests that ran in it before.
    monkeypatch.setattr(memory, "memory_taken", lambda device: 10**8)
    folder = tmp_path / "old"
    shutil.copytree(OLD, folder)
    model = environment.model_digest(simulation_of(config_of(folder)))
    edit(folder / "environment.json", lambda told: told["identity"].update(model=model))
    return folder


def test_settings_of_an_old_run_have_their_names_of_today(old):
    assert environment_of(old)["format"] == 2
    experiment = config_of(old)
    assert (experiment.run.memory_limit, experiment.data.new_clients) == (1_000_000_000, 1)


def test_an_old_run_is_loaded(old):
    fitted = stratafl.load(old)
    assert (fitted.clients, fitted.round, len(fitted.history)) == (2, 1, 2)
    assert stratafl.load(old, round="newest").round == 2


def test_an_old_run_is_reported_with_its_class_counts(old):
    assert len(gather([old]).ranks) == 1
    written = json.loads((old / "holdings.json").read_text())
    assert read_class_counts(old, config_of(old)) == {key: written[key] for key in written if key != "checksum"}


def test_an_old_run_is_resumed_as_if_it_were_new(old, tmp_path):
    experiment = config_of(old)
    with Run.open(old) as run:
        resumed = list(run.rounds())
        assert run.notes[0].startswith("not bit-identical")  # the commit is another
    with Run.create(experiment, tmp_path / "new") as run:
        expected = list(run.rounds())
    assert [line["round"] for line in resumed] == [3]
    numbers = {key: value for key, value in expected[-1].items() if not key.startswith("seconds")}
    assert {key: resumed[0][key] for key in numbers} == pytest.approx(numbers, rel=1e-5)
    assert stratafl.load(old, round="newest").round == 3


def test_fedalp_is_resumed_with_the_four_groups_that_were_its_default(tmp_path):
    """Of a configuration of format 5 that names no number of groups; today its ten clients have seven groups."""
    settings = ("algorithm.name=fedalp", "data.clients=10", "run.rounds=2")
    folder = left(tmp_path / "old", 1, *settings, "algorithm.groups=4")
    edit(folder / "environment.json", lambda told: told.update(format=5))
    edit(folder / "environment.json", lambda told: told["identity"]["config"]["algorithm"].pop("groups"))
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace(f"format = {FORMAT}", "format = 5").replace("groups = 4\n", ""))
    with Run.open(folder) as run:
        assert [line["round"] for line in run.rounds()] == [2]
        assert len(run.progress.server["psi"]) == 4


def test_fedprior_goes_on_from_a_server_that_kept_a_prior_of_its_own():
    """As before format 8, when class frequencies were columns of the global model, all of them 0."""
    sim = simulation_of(with_settings(Experiment(), [*TINY, "algorithm.name=fedprior"]))
    saved = sim.start().tensors() | {"server/theta/fc.prior.value": torch.zeros(10)}
    SavedForm.of(sim).check(0, saved)
    with pytest.raises(DamagedError):
        SavedForm.of(sim).check(0, saved | {"server/theta/fc.other": torch.zeros(10)})


def future_directory(folder):
    edit(folder / "environment.json", lambda told: told.update(format=FORMAT + 1))
    return folder


def future_checkpoint(folder):
    def newer(body):
        body |= {"format": FORMAT + 1}
        body.pop("manifest_sha256")
        body["manifest_sha256"] = _body_digest(body)

    edit(folder / "checkpoint" / "000001" / "manifest.json", newer)
    return folder / "checkpoint" / "000001"


@pytest.mark.parametrize("future", [future_directory, future_checkpoint])
def test_a_newer_format_is_refused_in_one_line(tmp_path, future):
    folder = left(tmp_path / "run", 1)
    place, before = future(folder), sorted(folder.rglob("*"))
    for call in (Run.open, stratafl.load):
        with pytest.raises(RunError, match=rf"'{place}'.*\(format {FORMAT + 1}; .* {FORMAT}\)"):
            call(folder)
    assert sorted(folder.rglob("*")) == before  # a checkpoint of the future is not put aside as damaged


def test_a_comparison_of_a_newer_format_is_refused_in_one_line(tmp_path):
    Comparison.create(tmp_path / "both", with_settings(Experiment(), TINY), ["fedavg", "local"], 1, {})
    file = tmp_path / "both" / "compare.toml"
    file.write_text(file.read_text().replace(f"format = {FORMAT}", "format = 99"))
    with pytest.raises(RunError, match=r"compare\.toml'.*\(format 99; "):
        Comparison.open(tmp_path / "both")


@pytest.mark.parametrize("number", [None, 0, True, "2", 2.0])
def test_what_is_no_format_is_damage(old, number):
    edit(old / "environment.json", lambda told: told.update(format=number))
    with pytest.raises(DamagedError, match=r"'.*old'.* 1 "):
        Run.open(old)
