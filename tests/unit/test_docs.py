"""What the documents show runs as it is printed, and what they list is what there is."""

import importlib
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from stratafl.algorithms import fedavg
from stratafl.algorithms.laws import Law
from stratafl.cli import run as strata
from stratafl.data import digits
from stratafl.experiment import TABLES
from stratafl.settings import documented
from stratafl.testing import check_algorithm, check_law

ROOT = Path(__file__).parents[2]


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name, kind="python"):
    return re.findall(rf"```{kind}\n(.*?)```", text(name), re.DOTALL)


def run(block, **space):
    exec(compile(block, "document", "exec"), space)  # our own text
    return space


def test_the_five_lines_run(capsys):
    federation = digits()
    clients = [(federation.x[held], federation.y[held]) for held in map(federation.splits["train"].of, range(5))]
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.ReLU(), nn.Linear(20, 10))
    space = run(blocks("README.md")[0], clients=clients, model=model, x_new=clients[3][0][:4])
    assert 50 < float(capsys.readouterr().out.split("%")[0]) <= 100
    assert space["labels"].shape == torch.Size([4])


def test_the_record_of_the_readme_is_fedavg():
    assert run(blocks("README.md")[1])["fedavg"]() == fedavg()


def test_the_example_method_is_the_file_and_keeps_the_contract(monkeypatch, capsys):
    assert blocks("CONTRIBUTING.md")[0] == text("examples/halfway.py")
    monkeypatch.chdir(ROOT)
    assert strata(["check", "examples.halfway:halfway"]) == 0
    assert "keeps the contract" in capsys.readouterr().out


def test_without_a_share_the_example_is_fedavg(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    halfway = importlib.import_module("examples.halfway").halfway
    check_law(Law("Halfway that keeps nothing is FedAvg", halfway(share=0.0), fedavg()))


def test_the_step_of_contributing_keeps_the_contract():
    step = run(blocks("CONTRIBUTING.md")[1], __name__="docs_step")["SignDescent"]()
    check_algorithm(replace(fedavg(), train=(step,)), settings=[("follow", 0.5)])


def test_the_settings_are_documented():
    assert documented(TABLES) in text("docs/settings.md"), "write stratafl.settings.documented into docs/settings.md"


@pytest.mark.parametrize("line", [line for line in blocks("README.md", "")[1].splitlines() if line])
def test_the_commands_of_the_readme_exist(line, capsys):
    words = shlex.split(line.partition("   ")[0])
    assert words[0] == "strata"
    assert strata([words[1], "--help"]) == 0
    printed = capsys.readouterr().out
    assert all(option in printed for option in words if option.startswith("--"))
