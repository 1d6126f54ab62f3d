"""A person's own modules run as they are: recurrent, with attention, with branches on values, made by a function."""

import json
import sys
import tomllib

import pytest
from cli_helpers import TINY, journals, lines
from safetensors.torch import load_file

RUN = ("run", *TINY, "--rounds", 2, "--algorithm", "fedavg", "--set", "run.checkpoint=1", "--set", "train.lr=0.2")


def engine_of(folder):
    return json.loads((folder / "environment.json").read_text(encoding="utf-8"))["engine"]


def columns_of(folder):
    return json.loads((folder / "environment.json").read_text(encoding="utf-8"))["columns"]


def server_after(folder, rounds):
    tensors = load_file(folder / "checkpoint" / f"{rounds:06d}" / "state.safetensors")
    return {name: tensor for name, tensor in tensors.items() if name.startswith("server/theta/")}


@pytest.mark.parametrize(
    ("model", "columns"),
    [
        ("Perceptron", 64 * 8 + 8 + 8 * 10 + 10),
        ("Branching", 64 * 8 + 8 + 8 * 10 + 10),
        pytest.param("Attentive", 8 * 16 + 16 + 4 * (16 * 16 + 16) + 2 * 16 + 16 * 10 + 10, marks=pytest.mark.slow),
        pytest.param("Recurrent", 4 * 12 * (8 + 12 + 2) + 12 * 10 + 10, marks=pytest.mark.slow),
    ],
)
@pytest.mark.budget(0.8, "a run of two rounds, and for some models its resumption")
def test_an_own_model_is_trained_in_all_its_parts(strata, place, model, columns):
    """Stacked without a word, or client by client with a note that names the reason."""
    result = strata(*RUN, "--model", f"own_models:{model}", "--out", "mine")
    assert result.code == 0
    reason = {"Branching": "data-dependent", "Recurrent": "lstm"}.get(model)
    assert engine_of(place / "mine") == ("StackedEngine" if reason is None else "LoopEngine")
    if reason is None:
        assert result.err == ""
    else:
        check_said_once(result.err, model, reason)
        imported, said, _ = strata("resume", "mine", "--trust").err.splitlines(keepends=True)
        assert f"'own_models:{model}'" in imported
        check_said_once(said, model, reason)
    assert f"own_models:{model}" in result.out
    first, second = lines(place / "mine" / "rounds.jsonl")
    assert second["train.loss"] < first["train.loss"]
    assert columns_of(place / "mine") == columns
    before, after = server_after(place / "mine", 1), server_after(place / "mine", 2)
    assert sum(tensor.numel() for tensor in after.values()) == columns
    assert all((before[name] != tensor).any() for name, tensor in after.items())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["Perceptron", "Attentive"])
def test_client_by_client_gives_the_same(strata, place, model):
    for engine in ("stacked", "loop"):
        arguments = ("--model", f"own_models:{model}", "--engine", engine, "--out", engine)
        assert strata(*RUN, *arguments).code == 0
    stacked, loop = (lines(place / engine / "rounds.jsonl")[-1] for engine in ("stacked", "loop"))
    assert stacked == pytest.approx(loop, rel=1e-3)


def check_said_once(text, model, reason):
    assert text.count("\n") == 1
    assert text.startswith(f"note: {model} ")
    assert reason in text


@pytest.mark.slow
def test_a_branch_is_also_announced_once_by_a_comparison(strata, place):
    arguments = ("--algorithms", "local,fedavg", "--seeds", 1, "--rounds", 1, "--model", "own_models:Branching")
    result = strata("compare", *TINY, *arguments)
    assert result.code == 0
    check_said_once(result.err, "Branching", "data-dependent")


def test_a_branch_cannot_be_forced_into_one_call(refused):
    arguments = ("--model", "own_models:Branching", "--engine", "stacked")
    refused("run", *TINY, *arguments, says=("Branching", "data-dependent"))


@pytest.mark.slow
def test_a_function_makes_a_model_with_its_options(strata, place):
    arguments = ("--model", "own_models:factory", "--set", "model.widths=[7, 5]", "--out", "mine")
    assert strata(*RUN, *arguments).code == 0
    assert columns_of(place / "mine") == 64 * 7 + 7 + 7 * 5 + 5 + 5 * 10 + 10
    assert {line["layer"] for line in lines(place / "mine" / "layers.jsonl")} == {"1", "3", "5"}


@pytest.mark.slow
def test_an_option_reaches_the_model_and_the_configuration(strata, place):
    arguments = ("--model", "own_models:Perceptron", "--set", "model.width=5", "--out", "mine")
    assert strata(*RUN, *arguments).code == 0
    assert columns_of(place / "mine") == 64 * 5 + 5 + 5 * 10 + 10
    config = tomllib.loads((place / "mine" / "config.toml").read_text(encoding="utf-8"))
    assert config["model"] == {"name": "own_models:Perceptron", "frozen": "none", "width": 5}


def test_personal_layers_of_an_own_model_go_by_its_names(strata, place):
    arguments = ("--algorithm", "fedper", "--set", "algorithm.personal=lstm", "--model", "own_models:Recurrent")
    assert strata("run", *TINY, "--rounds", 1, *arguments, "--out", "mine").code == 0
    sent = {line["layer"]: line["bytes.up"] for line in lines(place / "mine" / "layers.jsonl")}
    assert sent == {"lstm": 0, "out": 4 * 4 * (12 * 10 + 10)}


NEARBY = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, 5), nn.Linear(5, classes))
"""


@pytest.mark.slow
def test_a_file_in_the_current_folder_is_found_and_found_again_from_elsewhere(strata, place, monkeypatch):
    (place / "work").mkdir()
    (place / "work" / "nearby_net.py").write_text(NEARBY, encoding="utf-8")
    path = list(sys.path)
    monkeypatch.chdir(place / "work")
    assert strata("run", *TINY, "--model", "nearby_net:Net", "--rounds", 1, "--out", "mine").code == 0
    done = journals(place / "work" / "mine")
    del sys.modules["nearby_net"]
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.chdir(place)
    assert strata("resume", "work/mine", "--trust").code == 0
    assert journals(place / "work" / "mine") == done
    del sys.modules["nearby_net"]
