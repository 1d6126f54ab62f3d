"""Damaged run directories: resumed, loaded and reported, each gives what the undamaged one gives, or one line.

900 damaged directories (seed 13): 100 of each of nine kinds (bytes, JSON values, lines, links, other kinds of files,
exchanged files, forged manifests, forged states, forged lines), of two runs, one with its clients' states on disk.
Nothing outside changes, no exception but ours gets out, nothing waits, and a file of 10 GB is not read. The quick
version takes 108 of them. Where lines are forged together with all checksums, their
values may differ.
"""

import json
import os
import shutil
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random

import damage
import pytest
import torch

from stratafl.config.experiment import Experiment, to_tables, with_settings
from stratafl.errors import StrataError
from stratafl.execute.simulation import SavedForm, is_trained
from stratafl.report.study import gather
from stratafl.runs import Run, directory, environment, read_run, run
from stratafl.runs.json_files import read_lines
from stratafl.runs.summary import DEFAULTS, counting

pytestmark = pytest.mark.slow

SEED = 13
TINY = ["run.rounds=6", "data.clients=3", "data.partition=iid", "model.hidden=[2]", "train.batch=200", "train.lr=2.0"]
DONE, SAVED = 5, (2, 4)  # rounds that are done, and those after which a checkpoint was saved


@dataclass
class Undamaged:
    """A run that was left without a word, and its states after each round."""

    folder: Path
    states: list[dict[str, torch.Tensor]]
    lines: list[dict[str, object]]


def tensors_of(progress):
    """All of a state, also what is on disk."""
    flat = {name: x for name, x in progress.tensors().items() if not name.startswith("memories/")}
    for client, state in progress.clients.items():
        flat |= {f"client/{client}/{name}": x for name, x in damage_free(state).items()}
    return flat


def damage_free(state):
    return {f"{field}/{name}": x.clone() for field, rows in state.items() for name, x in rows.items()}


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory):
    made = []
    for store in ("ram", "disk"):
        folder = tmp_path_factory.mktemp("undamaged") / "run"
        begun = Run.create(with_settings(Experiment(), [*TINY, "run.checkpoint=2", f"run.store={store}"]), folder)
        states = [tensors_of(begun.progress)]
        states += [tensors_of(begun.progress) for _ in islice(begun.rounds(), DONE)]
        os.close(begun._lock)
        made.append(Undamaged(folder, states, read_lines(folder / "rounds.jsonl")))
    return made


@pytest.fixture
def _quick(monkeypatch):
    """What does not depend on the directory is computed once: the simulation, the commit; nothing waits for a disk."""
    simulations, describe, of = {}, environment.describe_environment, run.simulation_of
    forms, form_of, kept = {}, SavedForm.of, {}

    def simulation_of(experiment, tuning=None, trust=False, begun=False):
        key = json.dumps([to_tables(experiment), tuning], sort_keys=True)
        if key not in simulations:
            simulations[key] = of(experiment, tuning, trust, begun)
        return simulations[key]

    identity = environment.identity
    for module in (run, directory):
        monkeypatch.setattr(module, "simulation_of", simulation_of)
    monkeypatch.setattr(SavedForm, "of", lambda sim: forms.setdefault(id(sim), form_of(sim)))
    monkeypatch.setattr(environment, "identity", lambda sim: kept.setdefault(id(sim), identity(sim)))
    monkeypatch.setattr(environment, "describe_environment", lambda sim: kept.setdefault("about", describe(sim)))
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(sys, "path", list(sys.path))


def same(found, expected):
    return found.keys() == expected.keys() and all(torch.equal(x, expected[name]) for name, x in found.items())


def same_models(progress, expected):
    """A selected state is kept without the scores right after training."""
    return same(*({n: x for n, x in state.items() if not is_trained(n)} for state in (tensors_of(progress), expected)))


def snapshot(folder):
    return {
        path: (path.lstat().st_mtime_ns, path.lstat().st_size, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def loaded(folder, whole, values):
    for kept in ("newest", "selected"):
        _, progress, lines = read_run(folder, kept)
        assert len(lines) in SAVED
        assert same_models(progress, whole.states[progress.t])
        if values:
            assert lines == whole.lines[: len(lines)]
            assert progress.t in (len(lines), counting(lines, DEFAULTS)["round"])


def reported(folder, whole, values):
    study = gather([folder])
    for one in study.outcomes if values else []:
        assert one.lines == whole.lines[: len(one.lines)]
        assert all(line["round"] == one.numbers()["selected_round"] for line in one.client_lines)


def resumed_further(folder, whole, values):
    resumed(folder, whole, values, further=2)


def resumed(folder, whole, values, further=0):
    opened = Run.open(folder)
    try:
        t = opened.progress.t
        assert t in (0, *SAVED)
        assert same(tensors_of(opened.progress), whole.states[t])
        assert not values or opened.history == whole.lines[:t]
        kept = opened._done.selection.progress
        assert kept is None or same_models(kept, whole.states[kept.t])
        for _ in islice(opened.rounds(), further):
            assert opened.progress.t > DONE or same(tensors_of(opened.progress), whole.states[opened.progress.t])
    finally:
        os.close(opened._lock)


def attempt(call, folder, whole, values, said):
    """What a call raises, which must be of ours and one line; nothing where it gave what it should."""
    try:
        call(folder, whole, values)
    except StrataError as error:
        refusal = str(error)
    except Exception as error:
        raise AssertionError(f"{said}: {type(error).__name__}: {error}") from error
    else:
        return None
    assert "\n" not in refusal, said
    assert len(refusal) < 2000, said
    return refusal


def damaged(undamaged, place, count):
    """So many cases of each kind; how often a call was refused, by kind."""
    refused = Counter()
    for number, way in enumerate(damage.DAMAGES):
        for case in range(count):
            draw = Random(f"{SEED} {number} {case}")
            whole, folder, canary = undamaged[case % 2], place / "run", place / "canary"
            shutil.copytree(whole.folder, folder)
            canary.mkdir()
            said = f"{way.__name__}, case {case}: {way(folder, canary, draw)}"
            before, values = snapshot(canary), way not in damage.VALUES_DIFFER
            for call in (loaded, reported, resumed if case % 10 else resumed_further):
                refused[way] += attempt(call, folder, whole, values, said) is not None
            assert snapshot(canary) == before, said
            shutil.rmtree(folder)
            shutil.rmtree(canary)
    return refused


@pytest.mark.usefixtures("_quick")
def test_damaged_run_directories(tmp_path, undamaged):
    refused = damaged(undamaged, tmp_path, 12)
    assert all(0 < refused[way] < 3 * 12 for way in damage.DAMAGES)


@pytest.mark.nightly
@pytest.mark.usefixtures("_quick")
def test_hundreds_of_damaged_run_directories(tmp_path, undamaged):
    refused = damaged(undamaged, tmp_path, 100)
    assert all(0 < refused[way] < 3 * 100 for way in damage.DAMAGES)
