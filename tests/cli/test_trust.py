"""A configuration, run, comparison or recipe that somebody sends runs no code, until it is trusted."""

import json
import shlex
import shutil
import sys

import pytest
from cli_helpers import SMALL, TINY, checked_line, snapshot

import stratafl
from stratafl.config.trust import typed
from stratafl.errors import TrustError
from stratafl.runs import workers

CANARY = """
from pathlib import Path
from torch import nn
from stratafl.algorithms import fedavg

Path(__file__).with_name("it-ran").touch()

class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, classes))

def method(train):
    return fedavg(train=train)
"""
CONFIG = """
[algorithm]
name = "{method}"
[model]
name = "{model}"
[data]
clients = 4
partition = "iid"
[train]
batch = 100
[run]
rounds = 1
"""
RECIPE = """
title = "sent"
settings = {{ "data.clients" = 4, "data.partition" = "iid", "train.batch" = 100, "run.rounds" = 1 }}
[[columns]]
name = "one"
[[rows]]
name = "row"
settings = {{ "algorithm.name" = "{method}" }}
[scales.smoke]
"""


@pytest.fixture
def canary(place):
    """A module in the folder where the command runs, that leaves a mark when it is imported."""
    (place / "canary.py").write_text(CANARY, encoding="utf-8")
    (place / "sent.toml").write_text(CONFIG.format(method="canary:method", model="canary:Net"), encoding="utf-8")
    sys.modules.pop("canary", None)
    yield place / "it-ran"
    sys.modules.pop("canary", None)


@pytest.fixture
def forget(canary):
    """Forgets that the module ran, and that it was imported."""

    def call():
        canary.unlink(missing_ok=True)
        sys.modules.pop("canary", None)

    return call


def refused_line(strata, place, canary, *arguments):
    """The line of a command that must not import anything; it ends with the command that would."""
    before = snapshot(place)
    line = checked_line(strata(*arguments))
    assert snapshot(place) == before
    assert not canary.exists()
    assert "canary" not in sys.modules
    assert "--trust" in line
    return shlex.split(line)


def command_in(words):
    return words[words.index("strata") + 1 :]


def test_a_configuration_imports_nothing(strata, place, canary):
    words = refused_line(strata, place, canary, "run", "--config", "sent.toml", "--out", "mine")
    assert command_in(words) == ["run", "--config", "sent.toml", "--out", "mine", "--trust"]
    result = strata(*command_in(words))
    assert result.code == 0
    algorithm, model = result.err.splitlines()[:2]
    assert all(value in algorithm for value in ("'canary:method'", "canary.py'", "'sent.toml'"))
    assert "'canary:Net'" in model


def test_what_was_typed_is_imported_and_the_rest_of_the_file_is_not(strata, place, canary):
    refused_line(strata, place, canary, "run", "--config", "sent.toml", "--model", "canary:Net")
    given = ("--model", "canary:Net", "--set", 'algorithm.name="canary:method"', "--out", "mine")
    assert strata("run", "--config", "sent.toml", *given).code == 0
    assert canary.exists()


@pytest.mark.budget(0.8, "a run, and its resumption")
def test_a_run_imports_nothing_when_it_is_resumed_or_loaded(strata, place, canary, forget):
    assert strata("run", *TINY, "--rounds", 1, "--model", "canary:Net", "--out", "mine").code == 0
    forget()
    words = refused_line(strata, place, canary, "resume", "mine")
    assert command_in(words) == ["resume", "mine", "--trust"]
    with pytest.raises(TrustError, match=r"'mine/config.toml'.*'canary:Net'"):
        stratafl.load("mine")
    assert not canary.exists()
    assert stratafl.load("mine", trust=True).clients == 4
    forget()
    assert strata(*command_in(words)).code == 0
    assert strata("report", "mine").code == 0


@pytest.mark.slow
def test_a_folder_that_a_run_names_is_not_searched(strata, place, monkeypatch):
    """Neither a module of a catalogue's method, nor one that shadows another, comes from there."""
    assert strata("run", *SMALL, "--rounds", 1, "--out", "mine").code == 0
    told = json.loads((place / "mine" / "environment.json").read_text(encoding="utf-8"))
    told["folder"] = str(place / "elsewhere")
    (place / "mine" / "environment.json").write_text(json.dumps(told), encoding="utf-8")
    for arguments in (("resume", "mine"), ("resume", "mine", "--trust")):
        assert strata(*arguments).code == 0
        assert str(place / "elsewhere") not in sys.path
    assert stratafl.load("mine").clients == 4


@pytest.mark.slow
def test_a_comparison_imports_what_was_typed_and_resumes_with_trust(strata, place, canary, forget):
    given = ("compare", *TINY, "--rounds", 1, "--seeds", 1, "--algorithms", "canary:method")
    assert strata(*given, "--model", "canary:Net", "--out", "two").code == 0
    forget()
    words = refused_line(strata, place, canary, "resume", "two")
    assert command_in(words) == ["resume", "two", "--trust"]
    assert strata(*command_in(words)).code == 0


def test_a_comparison_of_a_configuration_imports_nothing(strata, place, canary):
    refused_line(strata, place, canary, "compare", "--config", "sent.toml", "--algorithms", "local", "--seeds", 1)


def test_the_processes_of_a_comparison_are_trusted_with_what_was_typed_alone(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr("stratafl.runs.workers.subprocess.Popen", lambda command, **_: commands.append(command))
    for trust in (typed(["canary:method"]), typed([], True)):
        workers._worker(workers.Crew(tmp_path, trust, "", 2), tmp_path / "log")
    narrow, wide = commands
    assert "--typed=canary:method" in narrow
    assert "--trust" not in narrow
    assert "--trust" in wide


@pytest.mark.slow
def test_the_processes_of_a_comparison_inherit_what_was_typed(strata, place, canary, forget):
    """And nothing else: a file of this folder does not stand in for a package there, as it does after `python -m`."""
    (place / "tomli_w.py").write_text("raise AssertionError('it was imported')", encoding="utf-8")
    given = ("compare", *TINY, "--rounds", 1, "--seeds", 2, "--algorithms", "canary:method")
    done = strata(*given, "--model", "canary:Net", "--jobs", 2, "--out", "two")
    assert done.code == 0, done.err
    (place / "tomli_w.py").unlink()
    shutil.rmtree(place / "two" / "canary-method" / "seed-1")
    forget()
    assert "--trust" in checked_line(strata("resume", "two", "--jobs", 2))
    done = strata("resume", "two", "--jobs", 2, "--trust")
    assert done.code == 0, done.err
    assert (place / "two" / "canary-method" / "seed-1" / "rounds.jsonl").exists()


@pytest.mark.slow
@pytest.mark.budget(0.8, "a table of one row")
def test_a_recipe_imports_nothing(strata, place, canary):
    (place / "sent.toml").write_text(RECIPE.format(method="canary:method"), encoding="utf-8")
    words = refused_line(strata, place, canary, "reproduce", "sent.toml")
    result = strata(*command_in(words))
    assert result.code == 0
    assert result.err.count("'canary:method'") == 1


@pytest.mark.parametrize("path", ["os:system", "builtins:exit", "subprocess:run"])
@pytest.mark.parametrize("key", ["method", "model"])
def test_nothing_of_python_itself_is_called_even_if_it_is_trusted(strata, refused, place, key, path):
    names = {"method": "fedavg", "model": "mlp", key: path}
    (place / "sent.toml").write_text(CONFIG.format(**names), encoding="utf-8")
    for trust in ((), ("--trust",)):
        refused("run", "--config", "sent.toml", *trust, says=path)
    refused("run", f"--{'algorithm' if key == 'method' else key}", path, says=path)
    if key == "method":
        refused("check", path, says=path)


def test_code_that_exits_does_not_end_the_command_with_success(refused, place, monkeypatch):
    (place / "leaving.py").write_text("def net(classes):\n    raise SystemExit(0)\n", encoding="utf-8")
    refused("run", "--model", "leaving:net", says="SystemExit")
    sys.modules.pop("leaving", None)
