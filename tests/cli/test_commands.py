"""What the commands do: list, run, resume, compare, report, check, help; and what Ctrl-C does to them."""

import csv
import errno
import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
import shellingham
import torch
from cli_helpers import SMALL, TINY, Result, checked_line, command, journals, lines, snapshot
from safetensors.torch import load_file

from processes import outputs, wait_until
from stratafl.algorithms import ALGORITHMS, algorithm
from stratafl.algorithms.declaration import KINDS, METHODS
from stratafl.cli import main
from stratafl.cli.list_command import catalogue
from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.config.protocols import PROTOCOLS
from stratafl.config.trust import NO_TRUST
from stratafl.data import DATASETS, PARTITIONS
from stratafl.models import MODELS
from stratafl.recipes import recipe_names
from stratafl.report import INCOMPARABLE
from stratafl.runs import Run, workers
from stratafl.runs.json_files import Journal, read_lines
from stratafl.testing import laws

COMMANDS = ("list", "run", "compare", "resume", "report", "check")
COMMANDS += ("host", "join", "audit", "predict", "export")
FILES = {
    "config.toml",
    "environment.json",
    "class_counts.json",
    "preprocessing.json",
    "rounds.jsonl",
    "clients.jsonl",
    "layers.jsonl",
    "predictions.safetensors",
    "checkpoint",
}


def ranking(text):
    """The rows of the first table, from the name of the method on; places are shown where methods tie."""
    rows = cells(text.partition("└")[0])
    return [row[1:] if row[0].isdigit() else row for row in rows]


def cells(text):
    """The rows of the tables in a text."""
    lines = (line for line in text.splitlines() if line.startswith("│") and "majority class" not in line)
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines]


# --- help and list


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_a_screen_and_gives_an_example(strata, name):
    result = strata(name, "--help")
    text = [line.rstrip() for line in result.out.strip("\n").splitlines()]
    assert (result.code, result.err) == (0, "")
    assert next(filter(None, text)).startswith(f" Example: strata {name}")
    assert f"Usage: strata {name}" in result.out
    assert "─ Other options ─" in result.out
    assert len(text) <= 50
    assert max(map(len, text)) <= 80


def test_help_names_every_command(strata):
    result = strata("--help")
    assert result.code == 0
    assert all(f" {name} " in result.out for name in COMMANDS)
    assert len(result.out.strip("\n").splitlines()) <= 44


def test_the_command_alone_is_help_and_no_empty_complaint(strata):
    result = strata()
    steps = [line.split()[1] for line in result.out.splitlines() if line.startswith("  strata ")]
    assert len(steps) == 5
    assert set(steps) < {*COMMANDS, "data", "advise"}
    assert (result.code, result.err) == (0, "")


def test_a_shell_completes_commands_and_options(strata, monkeypatch):
    for typed, completed in (("strata comp", "compare"), ("strata tune --tri", "--trials")):
        monkeypatch.setenv("_STRATA_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", typed)
        monkeypatch.setenv("COMP_CWORD", str(typed.count(" ")))
        assert strata().out.split() == [completed]
    monkeypatch.delenv("_STRATA_COMPLETE")
    monkeypatch.setattr(shellingham, "detect_shell", lambda: ("bash", "/bin/bash"))  # make runs tests below sh
    shown = strata("--show-completion")
    assert (shown.code, shown.err) == (0, "")
    assert "_STRATA_COMPLETE=complete_bash" in shown.out


def test_version_is_said(strata):
    result = strata("--version")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("stratafl 0.")


CATALOGUES = {"algorithms": ALGORITHMS, "models": MODELS, "datasets": DATASETS, "partitions": PARTITIONS}
CATALOGUES |= {"protocols": PROTOCOLS, "recipes": recipe_names()}


def test_the_list_has_everything_with_its_name():
    found = catalogue()
    assert {kind: {entry["name"] for entry in entries} for kind, entries in found.items()} == {
        kind: set(known) for kind, known in CATALOGUES.items()
    }
    assert all(entry["description"] for entries in found.values() for entry in entries)
    assert all(entry["name"].isalnum() and entry["name"].islower() for entry in found["algorithms"])
    assert "personal" in next(entry for entry in found["algorithms"] if entry["name"] == "fedper")["options"]


@pytest.mark.slow
def test_the_list_for_programs_says_what_every_method_sends_and_takes(strata):
    result = strata("list", "--json")
    found = json.loads(result.out)
    assert (result.code, result.err, set(found)) == (0, "", set(catalogue()))
    for entry in found["algorithms"]:
        for direction in ("upload", "download"):
            for field in (field for stage in entry["communication"][direction] for field in stage["fields"]):
                assert field["kind"] != "unknown", entry["name"]
                assert field["bytes"] > 0
        given = {each["setting"]: each["default"] for each in entry["hyperparameters"] if each["default"] is not None}
        experiment = with_values(Experiment(), {"algorithm.name": entry["name"], **given})
        assert algorithm_of(experiment) == algorithm(entry["name"], train=experiment.train)


def test_the_list_for_programs_says_what_a_tuner_needs(strata):
    found = json.loads(strata("list", "fedprox", "--json").out)
    assert list(found) == ["algorithms"]
    (entry,) = found["algorithms"]
    own, sent = entry.pop("hyperparameters"), entry.pop("communication")
    assert entry == {
        "name": "fedprox",
        "label": "FedProx",
        "kind": "global",
        "description": METHODS["fedprox"].idea,
        "reading": METHODS["fedprox"].reading,
        "paper": "Li et al., 2020",
        "year": 2020,
        "title": "Federated Optimization in Heterogeneous Networks",
        "sends": "the whole model",
        "new_client": "the global model",
        "options": ["strength"],
    }
    assert own[0] == {
        "name": "strength",
        "setting": "algorithm.strength",
        "type": "float",
        "default": 0.01,
        "allowed": {"least": 0},
        "sensible": {"low": 0.0001, "high": 1.0, "log": True},
        "fixed": None,
    }
    assert all(each["setting"].startswith("train.") and each["sensible"] for each in own[1:])
    assert (sent["model"], sent["data"], sent["stays"]) == ("mlp", "digits", "")


def test_the_list_says_what_leaves_a_site_with_the_model_and_options_that_are_given(strata):
    given = ("--model", "convnorm", "--set", "model.channels=4", "--set", "algorithm.personal=last:2")
    (entry,) = json.loads(strata("list", "fedper", *given, "--json").out)["algorithms"]
    sent = entry["communication"]
    assert (sent["model"], sent["stays"], sent["blended"], sent["own_model"]) == (
        "convnorm",
        "conv2, bn2, fc",
        "",
        False,
    )
    (stage,), (down,) = sent["upload"], sent["download"]
    assert stage["rounds"] == {"first": 1, "last": None, "finish": False}
    count, theta = stage["fields"]
    assert count == {
        **{"field": "samples", "kind": "count", "meaning": count["meaning"]},
        **{"common": False, "mask": "none", "dtype": "I64", "shape": []},
        **{"values": 1, "running_statistics": 0, "bytes": 8, "exact": True},
    }
    assert theta["tensors"]["conv1.weight"] == {"dtype": "F32", "shape": [4, 1, 3, 3]}
    assert (theta["layers"], theta["running_statistics"]) == ("conv1, bn1", 8)
    assert theta["bytes"] == 4 * theta["values"] == down["bytes"]
    assert stage["bytes"] == theta["bytes"] + 8
    result = strata("list", "fedper", *given)
    assert (result.code, result.err) == (0, "")
    assert f" {stage['bytes']:,} bytes" in result.out
    assert f" {down['bytes']:,} bytes" in result.out
    assert " conv2, bn2, fc" in " ".join(result.out.split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--model", "cnn"), ("--model", "--data", "--set")),
        (("mlp", "--model", "cnn"), ("--model", "--data", "--set", "'mlp'")),
        (("fedper", "--set", "algorithm.personal=fc7"), "'fc7'"),
        (("fedper", "--set", "algorithm.name=fedavg"), ("--set", "algorithm.name", "'fedper'")),
        (("fedper", "--model", "embedding"), ("EmbeddingClassifier", "'vocabulary'")),
    ],
)
def test_wrong_settings_of_the_list_are_refused_in_one_line(strata, arguments, told):
    line = checked_line(strata("list", *arguments))
    assert all(value in line for value in ([told] if isinstance(told, str) else told))


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_option_of_a_method_is_explained_beside_it(method):
    missing = [each.name for each in method.hyperparameters if f"`{each.name}" not in method.reading]
    assert not missing, "say in the docstring of the builder what they do"


def test_the_list_of_a_method_shows_how_it_is_read(strata):
    said = " ".join(strata("list", "fedprox").out.split())
    (entry,) = json.loads(strata("list", "fedprox", "--json").out)["algorithms"]
    assert entry["reading"] == METHODS["fedprox"].reading
    assert " ".join(entry["reading"].split()) in said


def test_the_list_for_people_mentions_everything(strata):
    result = strata("list")
    words = set(result.out.replace("│", " ").split())
    assert (result.code, result.err) == (0, "")
    assert {*CATALOGUES, *ALGORITHMS, *MODELS, *DATASETS, *PARTITIONS} <= words


@pytest.mark.parametrize("width", [80, 120])
def test_methods_are_listed_by_kind_with_idea_and_paper(strata, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    printed = strata("list", "algorithms").out
    assert all(len(line) <= width for line in printed.splitlines())
    assert "alexnet" not in printed
    kinds = [kind for kind in KINDS if any(METHODS[name].kind == kind for name in ALGORITHMS)]
    starts = [printed.index(f"\n{kind}: {KINDS[kind]}\n") for kind in kinds]
    assert starts == sorted(starts)
    for kind, start, end in zip(kinds, starts, [*starts[1:], len(printed)], strict=True):
        listed = [line.split()[0] for line in printed[start:end].splitlines()[2:] if line[:1].isalpha()]
        named = [name for name in ALGORITHMS if METHODS[name].kind == kind]
        assert [name for name in listed if name in ALGORITHMS] == named
    assert re.search(r"\nfedrep +FedPer that trains .* Collins et al\., 2021", printed)


@pytest.mark.parametrize("width", [80, 120])
def test_one_method_is_shown_with_all_that_it_declares(strata, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    result = strata("list", "fedrep")
    assert (result.code, result.err) == (0, "")
    assert all(len(line) <= width for line in result.out.splitlines())
    said = " ".join(result.out.replace("│", " ").split())
    fedrep = METHODS["fedrep"]
    assert f"new client {fedrep.new_client}" in said
    assert f"paper {fedrep.paper}: {fedrep.title}" in said
    assert re.search(r"head_epochs 1 .* 0 1 to 10", said)
    assert 'personal "head" ' in said


def test_a_method_without_options_is_shown_without_a_table(strata):
    printed = strata("list", "local").out
    assert "sends       nothing" in printed
    assert "algorithm.OPTION" not in printed
    assert "paper" not in printed


def test_a_name_that_several_things_have_shows_them_all(strata):
    printed = strata("list", "flayer").out
    assert "preset" in printed
    assert "protocols" in printed


def test_models_alone_and_one_model(strata):
    assert set(json.loads(strata("list", "models", "--json").out)) == {"models"}
    assert [e["name"] for e in json.loads(strata("list", "mlp", "--json").out)["models"]] == ["mlp"]
    printed = strata("list", "mlp").out
    assert "hidden, norm" in printed
    assert "algorithms" not in printed


def test_an_unknown_name_of_the_list_is_refused(strata):
    result = strata("list", "fedrap")
    assert result.code == 2
    assert "'fedrap'" in result.err
    assert "'fedrep'" in result.err


# --- run


def test_a_run_writes_its_directory_and_prints_a_table(strata, place):
    result = strata("run", *SMALL, "--rounds", 2, "--algorithm", "fedrep", "--seed", 5, "--out", "some/where")
    folder = place / "some" / "where"
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    assert (result.code, result.err) == (0, "")
    assert {path.name for path in folder.iterdir()} == FILES
    assert config["algorithm"]["name"] == "fedrep"
    assert config["run"]["seed"] == 5
    assert config["run"]["rounds"] == 2
    assert [line["round"] for line in lines(folder / "rounds.jsonl")] == [1, 2]
    assert "digits, 4 clients" in result.out
    accuracy = max(lines(folder / "rounds.jsonl"), key=lambda line: line["validation.deployed.accuracy"])
    assert f"{accuracy['test.deployed.accuracy']:.1%}" in result.out


@pytest.mark.slow
def test_two_runs_without_a_name_get_two_directories(strata, place):
    for _ in range(2):
        assert strata("run", *SMALL, "--rounds", 1).code == 0
    first, second = sorted((place / "runs").iterdir())
    assert journals(first) == journals(second)
    assert sorted(path.name for path in place.iterdir()) == ["runs"]


def test_a_configuration_is_read_and_settings_come_on_top(strata, place):
    (place / "mine.toml").write_text("[train]\nlr = 0.3\nbatch = 40\n[run]\nrounds = 1\n", encoding="utf-8")
    assert strata("run", "--config", "mine.toml", *SMALL, "--out", "done").code == 0
    config = tomllib.loads((place / "done" / "config.toml").read_text(encoding="utf-8"))
    assert config["train"]["lr"] == 0.3
    assert config["train"]["batch"] == 50
    assert config["run"]["rounds"] == 1


@pytest.mark.slow
def test_the_configuration_of_a_run_makes_the_same_run(strata, finished):
    assert strata("run", "--config", finished / "config.toml", "--out", "two").code == 0
    assert journals(finished) == journals(Path("two"))


def test_nothing_but_plain_text_where_nobody_watches(strata, originals, finished, both):
    reported, listed = strata("report", finished, both, "--target", 0.05), strata("list")
    for result in (*originals.printed.values(), reported, listed):
        assert (result.code, result.err) == (0, "")
        assert "\x1b" not in result.out
        assert max(map(len, result.out.splitlines())) <= 120


@pytest.mark.slow
def test_a_run_that_stops_early_says_why(strata, place):
    result = strata("run", *SMALL, "--rounds", 5, "--set", "stop.target=0.01", "--out", "done")
    assert result.code == 0
    assert "round 1: " in result.err
    assert len(lines(place / "done" / "rounds.jsonl")) == 1
    assert strata("resume", "done").out == result.out


def test_a_run_on_own_data_with_named_clients(strata, place):
    rng = np.random.default_rng(0)
    x, y = rng.random((90, 4), dtype=np.float32), np.arange(90) % 3
    np.savez(place / "mine.npz", x=x, y=y, client=np.repeat(["ann", "bob", "cem"], 30))
    assert strata("run", "--data", "mine.npz", "--rounds", 1, "--out", "done").code == 0
    assert [line["client"] for line in lines(place / "done" / "clients.jsonl")] == [0, 1, 2]


def test_a_regression_that_diverges_is_reported_all_the_same(strata, place):
    rng = np.random.default_rng(0)
    np.savez(place / "mine.npz", x=rng.random((60, 4), dtype=np.float32), y=rng.random(60, dtype=np.float32))
    settings = ("--set", "train.lr=1e30", "--set", "data.normalise=none", "--rounds", 1)
    result = strata("run", *SMALL, "--data", "mine.npz", *settings, "--out", "done")
    assert result.code == 0
    assert "4 of 4" in result.err  # clients diverged
    assert "fedper" in result.out
    assert strata("report", "done", "--csv", "table.csv").code == 0


@pytest.mark.slow
def test_running_out_of_gpu_memory_prints_one_line_and_the_run_can_be_resumed(strata, place, monkeypatch):
    whole = Run.rounds

    def full(run):
        yield next(whole(run))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.75 GiB.")

    with monkeypatch.context() as patched:
        patched.setattr(Run, "rounds", full)
        stopped = strata("run", *SMALL, "--rounds", 2, "--out", "full")
    assert re.search(r"round 1\b.*--memory-limit", checked_line(stopped))
    assert strata("resume", "full").code == 0
    assert len(lines(place / "full" / "rounds.jsonl")) == 2


def test_a_program_without_standard_input_runs(strata, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)  # as with `<&-`
    assert strata("run", *SMALL, "--rounds", 1).code == 0


# --- resume


@pytest.mark.slow
def test_resume_of_a_finished_run_or_comparison_shows_the_table_again_and_changes_nothing(
    strata, originals, finished, both, place
):
    before = snapshot(place)
    again = strata("resume", finished)
    assert (again.code, again.out) == (0, originals.printed["done"].out)
    assert again.err.startswith("note: ")
    assert strata("resume", both) == originals.printed["both"]
    page = "both/report.html"  # written again, with another time
    assert snapshot(place) | {page: None} == before | {page: None}


# --- compare


def members(folder):
    return {str(path.parent.relative_to(folder)): journals(path.parent) for path in folder.rglob("config.toml")}


@pytest.mark.slow
def test_a_comparison_is_the_same_with_one_process_and_with_several(strata, originals, both, monkeypatch):
    assert sorted(row[0] for row in ranking(originals.printed["both"].out)) == ["fedavg", "local"]
    monkeypatch.setattr(sys, "argv", ["strata", "compare", "--jobs", "2"])
    arguments = ("--algorithms", "local,fedavg", "--seeds", 1, "--rounds", 1, "--out", "shared", "--jobs", 2)
    shared = strata("compare", *SMALL, *arguments)
    assert (shared.code, shared.err) == (0, "")
    assert members(Path("shared")) == members(both)
    written = json.loads(Path("shared/local/seed-0/environment.json").read_text())
    assert written["command"] == ["strata", "compare", "--jobs", "2"]  # as typed, not as the process was started


@pytest.mark.slow
def test_a_setting_of_one_method_applies_to_that_method_only(strata, place):
    arguments = ("--algorithms", "fedper,fedrep", "--seeds", 1, "--rounds", 1, "--out", "two")
    assert strata("compare", *SMALL, *arguments, "--set", "fedper.personal=all", "--set", "train.lr=0.3").code == 0
    tables = {
        name: tomllib.loads((place / "two" / name / "seed-0" / "config.toml").read_text(encoding="utf-8"))
        for name in ("fedper", "fedrep")
    }
    personal = {name: table["algorithm"]["personal"] for name, table in tables.items()}
    assert personal == {"fedper": "all", "fedrep": "head"}
    assert [table["train"]["lr"] for table in tables.values()] == [0.3] * 2
    sent = {name: lines(place / "two" / name / "seed-0" / "rounds.jsonl")[0]["bytes.up"] for name in tables}
    assert sent["fedrep"] > sent["fedper"]


@pytest.mark.slow
def test_a_comparison_takes_an_own_method(strata, place):
    method = "own_models:last_one_wins"
    arguments = ("compare", *SMALL, "--algorithms", method, "--seeds", 1, "--rounds", 1, "--out", "two")
    refused = checked_line(strata(*arguments, "--set", f"{method}.nothing=1"))
    assert method in refused
    assert "'nothing'" in refused
    result = strata(*arguments)
    assert result.code == 0
    assert method in result.out


# --- report


def raw(folder):
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()]


def spent(history, last):
    """Bytes and seconds up to a round."""
    until = [line for line in history if line["round"] <= last]
    size = sum(line["bytes.up"] + line["bytes.down"] for line in until)
    return size, sum(line["seconds.train"] + line["seconds.server"] for line in until)


def expected(folder):
    """The numbers of a run, from its lines."""
    history = raw(folder)
    accuracies = [line["test.deployed.accuracy"] for line in history]
    chosen = max(history, key=lambda line: line["validation.deployed.accuracy"])
    near = next(line for line in history if line["test.deployed.accuracy"] >= max(accuracies) - 0.005)["round"]
    return {
        "score": chosen["test.deployed.accuracy"],
        "received": chosen["test.received.accuracy"],
        "trained": chosen["test.trained.accuracy"],
        "deployed": chosen["test.deployed.accuracy"],
        "client_mean": chosen["test.deployed.client_accuracy"],
        "spread": chosen["test.deployed.std"],
        "worst10": chosen["test.deployed.worst10"],
        "best": max(accuracies),
        "last": accuracies[-1],
        "selected_round": chosen["round"],
        "converged_round": near,
        "converged_bytes": spent(history, near)[0],
        "converged_seconds": spent(history, near)[1],
        "bytes": spent(history, len(history))[0],
        "seconds": spent(history, len(history))[1],
        "rounds": len(history),
    }


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Two methods, two seeds, three rounds, the best of which is not always the last; only to be read."""
    folder = tmp_path_factory.mktemp("compared") / "both"
    arguments = ["--algorithms", "local,fedper", "--seeds", "2", "--rounds", "3", "--out", str(folder)]
    with redirect_stdout(StringIO()):
        assert main(["compare", *SMALL, "--set", "train.lr=0.3", *arguments]) == 0
    swap_scores(folder / "local" / "seed-0" / "rounds.jsonl")
    swap_scores(folder / "fedper" / "seed-1" / "rounds.jsonl")
    return folder


def swap_scores(path):
    """Let the last two rounds change places in all but their costs, so that the best one is not the last."""
    first, second, third = read_lines(path)
    for key in [key for key in third if key.startswith(("test.", "validation."))]:
        second[key], third[key] = third[key], second[key]
    assert second["validation.deployed.accuracy"] > third["validation.deployed.accuracy"]
    assert second["test.deployed.accuracy"] > third["test.deployed.accuracy"] + 0.005
    path.unlink()
    Journal(path).append((first, second, third))
    shutil.rmtree(path.parent / "checkpoint")  # which knows what the lines were


@pytest.mark.slow
def test_the_csv_holds_what_the_journals_say(strata, compared, place):
    result = strata("report", compared, "--csv", "table.csv")
    assert (result.code, result.err) == (0, "")
    assert result.out.endswith("table: table.csv\n")
    with (place / "table.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["method"] for row in rows) == ["fedper", "local"]
    for row in rows:
        each = [expected(compared / row["method"] / f"seed-{seed}") for seed in (0, 1)]
        assert row["seeds"] == "2"
        assert {name.removesuffix("_mean") for name in row if name.endswith("_mean")} == set(each[0])
        for name in each[0]:
            values = [float(one[name]) for one in each]
            assert float(row[f"{name}_mean"]) == pytest.approx(fmean(values), rel=1e-9)
            assert float(row[f"{name}_std"]) == pytest.approx(stdev(values), rel=1e-9)
    assert float(rows[0]["deployed_mean"]) >= float(rows[1]["deployed_mean"])
    assert " 2 seeds" in " ".join(result.out.split())


def test_the_table_ranks_by_deployed_accuracy(strata, compared):
    each = {
        method: [expected(compared / method / f"seed-{seed}")["deployed"] for seed in (0, 1)]
        for method in ("local", "fedper")
    }
    printed = strata("report", compared).out
    rows, head = ranking(printed), next(line for line in printed.splitlines() if line.startswith("┃"))
    head = [title.strip() for title in head.split("┃")[1:-1] if title.strip() != "#"]
    assert [row[0] for row in rows] == sorted(each, key=lambda method: -fmean(each[method]))
    for row in rows:
        assert f"{fmean(each[row[0]]):.1%} ± {100 * stdev(each[row[0]]):.1f}" in row
        worst = fmean(expected(compared / row[0] / f"seed-{seed}")["worst10"] for seed in (0, 1))
        assert row[head.index("worst 10%")] == f"{worst:.1%}"


def test_a_drawn_table_is_a_picture_that_needs_nothing_else(strata, compared, place):
    assert strata("report", compared, "--svg", "table.svg").code == 0
    text = (place / "table.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    words = "".join(root.itertext())
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert "local" in words
    assert "fedper" in words
    assert not re.findall(r"@font-face|@import|href=|url\([^#]", text)


def test_the_cost_of_a_target_is_that_of_the_first_round_that_has_it(strata, compared, monkeypatch):
    history = raw(compared / "local" / "seed-0")
    target = max(line["test.deployed.accuracy"] for line in history)
    first = next(line["round"] for line in history if line["test.deployed.accuracy"] >= target)
    size, seconds = spent(history, first)
    monkeypatch.chdir(compared)
    _, title, below = strata("report", "local/seed-0", "--target", target).out.partition(
        f"to {target:.1%} test accuracy"
    )
    assert title
    assert cells(below) == [["local/seed-0", str(first), f"{size / 1e6:,.1f}", f"{seconds:,.1f}"]]


def test_a_target_that_was_not_reached_is_never_reached(strata, compared):
    result = strata("report", compared, "--target", 1)
    assert "to 100.0% test accuracy" in result.out
    assert result.out.count("never") == 4


@pytest.mark.parametrize("target", [-0.5, 90, "nan"])
def test_a_target_is_a_share(refused, compared, target):
    refused("report", compared, "--target", target, says="target")


@pytest.mark.slow
def test_runs_that_differ_in_more_than_the_seed_are_told_apart(strata, place):
    for rate in (0.1, 0.2):
        assert strata("run", *SMALL, "--rounds", 1, "--set", f"train.lr={rate}", "--out", f"rate-{rate}").code == 0
    result = strata("report", "rate-0.1", "rate-0.2")
    assert "fedper train.lr=0.1" in result.out
    assert "fedper train.lr=0.2" in result.out


@pytest.mark.slow
def test_a_method_that_leaks_is_marked_wherever_it_is_written(strata, place):
    official = ("--set", "flayer.preset=official", "--set", "train.drop_last=true")
    batches = ("--set", "train.batch=10")
    methods = ("--algorithms", "fedavg,flayer", "--seeds", 1, "--rounds", 1)
    result = strata("compare", *methods, *SMALL, *batches, *official, "--out", "both")
    assert result.code == 0, result
    footnote = f"† {INCOMPARABLE}"
    assert {row[0] for row in ranking(result.out)} == {"fedavg", "flayer †"}
    assert footnote in result.out
    assert json.loads(Path("both/flayer/seed-0/environment.json").read_text())["leaks"]
    assert json.loads(Path("both/fedavg/seed-0/environment.json").read_text())["leaks"] is None
    again = strata("report", "both", "--csv", "table.csv", "--svg", "table.svg", "--target", 0.01)
    assert [row[0] for row in cells(again.out)].count("both/flayer/seed-0 †") == 1
    assert footnote in again.out
    written = Path("table.csv").read_text(encoding="utf-8").splitlines()
    table = {row["method"]: row["leaks"] for row in csv.DictReader(written)}
    assert table == {"fedavg": "", "flayer †": INCOMPARABLE}
    assert "†" in Path("table.svg").read_text(encoding="utf-8")
    assert footnote not in strata("report", "both/fedavg").out


# --- check


@pytest.mark.slow
def test_a_method_of_the_catalogue_obeys_the_contract(strata, monkeypatch):
    monkeypatch.setattr("stratafl.testing.contract.LAWS", [laws.order])
    result = strata("check", "fedavg", "--quick")
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-1].startswith("'fedavg'")
    assert "✓" in result.out
    assert "✗" not in result.out


@pytest.mark.budget(2, "two laws of the contract")
def test_a_method_that_breaks_a_law_is_refused_with_the_law(strata, place, monkeypatch):
    monkeypatch.setattr("stratafl.testing.contract.LAWS", [laws.order, laws.seeds])
    result = strata("check", "own_models:last_one_wins", "--quick")
    assert "own_models:last_one_wins" in checked_line(result)
    assert "law 'order'" in result.out
    assert [line[:3] for line in result.out.splitlines() if line[1] in "✓✗"] == [" ✗ ", " ✓ "]
    assert snapshot(place) == {}


def test_an_error_that_breaks_every_law_is_printed_once(strata, monkeypatch):
    def fails(case):
        """No law can hold."""
        raise ZeroDivisionError("the method divides by zero")

    monkeypatch.setattr("stratafl.testing.contract.LAWS", [fails] * 3)
    result = strata("check", "local", "--quick")
    assert result.code != 0
    assert result.out.count("divides by zero") == 1


# --- Ctrl-C


ROUNDS = (*TINY, "--set", "train.batch=100", "--rounds", 3, "--set", "run.checkpoint=9")
MODEL = ("--model", "own_models:Held", "--engine", "loop")


def held_in_the_second_round(place, arguments, run):
    """A command that waits in the second round of a run, until the file `hold` is removed."""
    (place / "hold").write_text(str(run / "rounds.jsonl"))
    process = subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_until(lambda: any(place.glob("held-*")), process)
    return process


def final_state(folder):
    return load_file(folder / "checkpoint" / "000003" / "state.safetensors")


def check_same_end(one, other):
    assert journals(one) == journals(other)
    mine, theirs = final_state(one), final_state(other)
    assert mine.keys() == theirs.keys()
    assert all(mine[name].equal(tensor) for name, tensor in theirs.items())


@pytest.mark.parametrize(
    ("signals", "rounds"),
    [
        ([signal.SIGINT], 2),
        ([signal.SIGINT, signal.SIGINT], 1),
        ([signal.SIGTERM], 2),
    ],
    ids=["once", "twice", "terminated"],
)
@pytest.mark.slow
def test_ctrl_c_finishes_the_round_and_twice_stops_at_once_and_nothing_is_lost(strata, place, signals, rounds):
    process = held_in_the_second_round(place, ("run", *ROUNDS, *MODEL, "--out", "stopped"), place / "stopped")
    said = ""
    for number in signals:
        process.send_signal(number)
        said = said or process.stderr.readline()
    if len(signals) == 1:  # a second one does not wait for the end of the round
        (place / "hold").unlink()
    out, err = outputs(process)
    (place / "hold").unlink(missing_ok=True)
    assert said
    assert err.endswith(": strata resume stopped --trust\n")
    assert (process.returncode, out) == (130, "")
    assert [line["round"] for line in lines(place / "stopped" / "rounds.jsonl")] == list(range(1, rounds + 1))
    assert strata("resume", "stopped", "--trust").code == 0
    assert strata("run", *ROUNDS, *MODEL, "--out", "whole").code == 0
    check_same_end(place / "stopped", place / "whole")


@pytest.mark.parametrize(("codes", "finished"), [((0, 0), True), ((0, 130), False), ((-signal.SIGTERM, 130), False)])
def test_a_comparison_is_finished_if_all_its_processes_are(tmp_path, monkeypatch, codes, finished):
    left = list(codes)

    def worker(crew, log):
        log.touch()
        return SimpleNamespace(returncode=(code := left.pop()), poll=lambda: code)

    monkeypatch.setattr(workers, "_worker", worker)
    crew = workers.Crew(tmp_path, NO_TRUST, "strata resume", 2)
    assert workers.share(crew, {}, print, lambda: False) is finished


@pytest.mark.slow
def test_ctrl_c_reaches_all_processes_of_a_comparison(strata, place):
    given = ("compare", *ROUNDS, *MODEL, "--algorithms", "local,fedper", "--seeds", 1)
    arguments = (*given, "--jobs", 2, "--out", "stopped")
    local = place / "stopped" / "local" / "seed-0"
    process = held_in_the_second_round(place, arguments, local)

    def told():
        return all(path.read_text() == "True" for path in place.glob("held-*"))

    process.send_signal(signal.SIGINT)
    said = process.stderr.readline()
    wait_until(told, process)
    (place / "hold").unlink()
    out, err = outputs(process)
    assert (process.returncode, out) == (130, "")
    assert said
    assert err.endswith(": strata resume stopped --trust\n")
    assert 0 < len(lines(local / "rounds.jsonl")) < 3
    resumed = strata("resume", "stopped", "--trust")
    assert resumed.code == 0
    assert strata(*given, "--out", "whole").code == 0
    for method in ("local", "fedper"):
        check_same_end(place / "stopped" / method / "seed-0", place / "whole" / method / "seed-0")


TORN = ("run", *SMALL, "--rounds", "3", "--set", "run.checkpoint=9")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run of `TORN` to its end; only to be read."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    with redirect_stdout(StringIO()):
        assert main([*TORN, "--out", str(folder)]) == 0
    return folder


@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("rounds", "before"),
        *(
            pytest.param(name, when, marks=pytest.mark.slow)
            for name in ("rounds", "clients", "layers")
            for when in ("before", "after")
            if (name, when) != ("rounds", "before")
        ),
    ],
)
@pytest.mark.budget(1, "a run that is stopped and resumed")
def test_ctrl_c_between_the_lines_of_a_round_neither_loses_nor_doubles_one(
    strata, place, monkeypatch, whole, name, when
):
    append, calls = Journal.append, []

    def torn(journal, entries):
        calls.append(journal.path.stem)
        now = calls.count(name) == 2 and journal.path.stem == name
        if now and when == "before":
            raise KeyboardInterrupt
        append(journal, entries)
        if now:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "append", torn)
    result = strata(*TORN, "--out", "torn")
    monkeypatch.setattr(Journal, "append", append)
    assert (result.code, result.out) == (130, "")
    assert result.err.endswith(": strata resume torn\n")
    assert strata("resume", "torn").code == 0
    check_same_end(place / "torn", whole)


# --- the program


BACKGROUND = """
import os, subprocess, sys
terminal = os.open(sys.argv[1], os.O_RDWR)  # now this session's terminal
job = subprocess.Popen(sys.argv[2:], stdin=terminal, process_group=0)
_, status = os.waitpid(job.pid, os.WUNTRACED)
if os.WIFSTOPPED(status):
    job.kill()
    sys.exit(f"it was stopped by {os.WSTOPSIG(status)}")
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.slow
def test_a_run_in_the_background_of_a_terminal_is_not_stopped(place):
    keyboard, terminal = pty.openpty()
    shell = [sys.executable, "-c", BACKGROUND, os.ttyname(terminal)]
    job = command("run", *SMALL, "--rounds", 1)
    done = subprocess.run([*shell, *job], start_new_session=True, capture_output=True, text=True, check=False)
    os.close(keyboard)
    os.close(terminal)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_a_reader_that_has_gone_is_no_error(place, argument):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command(argument), stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_that_cannot_be_written_is_one_line(place):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(command("--version"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert os.strerror(errno.ENOSPC) in checked_line(Result(done.returncode, "", done.stderr))
