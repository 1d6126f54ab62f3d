"""One client that sends what no server can use: named wherever a person looks, and harmless to everybody else."""

import logging
import re
import shutil

import numpy as np
import pytest
from cli_helpers import SMALL, lines

from stratafl.algorithms import fedavg
from stratafl.api import fit
from stratafl.models import build
from stratafl.runs.json_files import Journal
from wording import mentions

NAMES = ("east", "west", "south", "centre")
BROKEN = "zone\x1b[31m-3"  # a name that would turn the terminal red


def write(place, name, factor, broken=True):
    """Four clients who can learn, and a fifth whose numbers are in another unit."""
    rng = np.random.default_rng(0)
    y = np.tile(np.arange(3), 50)
    x = (rng.normal(size=(150, 4)) + y[:, None]).astype(np.float32)
    client = np.repeat([*NAMES, BROKEN], 30)
    x[client == BROKEN] *= np.float32(factor)
    there = slice(None) if broken else client != BROKEN
    np.savez(place / name, x=x[there], y=y[there], client=client[there])


def asked(data, *more):
    """Of samples as they are: standardised by each client, another unit would do no harm."""
    settings = ("data.normalise=none", "model.hidden=[8]", "train.lr=0.1")
    return ("--data", data, "--rounds", 3, *(word for each in settings for word in ("--set", each)), *more)


def notes(result):
    """What a command said on the way, apart from units, which it names before the first round."""
    return [line for line in result.err.splitlines() if not line.endswith("is it in another unit?")]


def deployed(folder):
    return {
        (line["round"], line["client"]): line["test.deployed.accuracy"]
        for line in lines(folder / "clients.jsonl")
        if line["client"] < 4
    }


SHOWN = r"'zone\x1b[31m-3'"  # as a terminal may show it


@pytest.mark.parametrize(
    "method", ["fedavg", *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedper", "pfedla"))]
)
@pytest.mark.budget(0.8, "a run with the client, and one without")
def test_a_client_whose_training_overflows_hurts_nobody_and_is_named(strata, place, method):
    write(place, "with.npz", 1e30)
    write(place, "without.npz", 1e30, broken=False)
    result = strata("run", "--algorithm", method, *asked("with.npz"), "--out", "with")
    assert result.code == 0, result.err
    (note,) = notes(result)
    assert note.startswith(f"note: round 1: client {SHOWN} ")
    assert note.endswith("'theta'")
    words = " ".join(result.out.split())
    assert SHOWN in words
    assert " 3 of 3 rounds" in words
    assert "strata data show --config with/config.toml" in words
    assert "\x1b" not in result.out + result.err
    for line in lines(place / "with" / "rounds.jsonl"):
        (left_out,) = line["left_out"]
        assert (left_out["client"], left_out["name"]) == (4, BROKEN)
        assert "'theta'" in left_out["reason"]
        assert line["train.loss"] < 10
    assert strata("run", "--algorithm", method, *asked("without.npz"), "--out", "without").code == 0
    if method != "pfedla":  # whose hypernetworks have an output for every client there is
        assert deployed(place / "with") == deployed(place / "without")
    assert strata("data", "show", "--config", "with/config.toml").code == 0


def test_a_client_in_another_unit_is_named_and_without_a_limit_takes_part(strata, place):
    write(place, "mine.npz", 1e4)
    limit = ("--set", "server.norm_limit=0")
    result = strata("run", "--algorithm", "fedavg", *asked("mine.npz"), *limit, "--out", "done")
    assert result.code == 0
    first, *_ = lines(place / "done" / "rounds.jsonl")
    assert "left_out" not in first
    ((client, ratio, name),) = (each.values() for each in first["outliers"])
    assert (client, name) == (4, BROKEN)
    assert ratio > 100
    assert notes(result)[0].startswith("note: round 1: ")
    assert all(value in notes(result)[0] for value in (SHOWN, f"{ratio:,.0f}"))
    assert SHOWN in " ".join(result.out.split())


@pytest.mark.slow
def test_a_run_that_is_resumed_does_not_say_it_again(strata, place):
    write(place, "mine.npz", 1e30)
    assert strata("run", "--algorithm", "fedavg", *asked("mine.npz"), "--out", "done").code == 0
    again = strata("resume", "done")
    assert len(notes(again)) == 1
    assert SHOWN not in notes(again)[0]
    assert " 3 of 3 rounds" in " ".join(again.out.split())


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [pytest.param(1, marks=pytest.mark.nightly), 2])
def test_a_comparison_names_it_whoever_computes(strata, place, jobs):
    write(place, "mine.npz", 1e30)
    methods = ("-a", "fedavg,local", "--seeds", 1, "--jobs", jobs)
    result = strata("compare", *methods, *asked("mine.npz"), "--out", "c")
    assert result.code == 0, result.err
    told = [line for line in result.err.splitlines() if line.startswith("note: fedavg, seed 0: round 1: ")]
    assert len(told) == 1
    assert SHOWN in told[0]
    words = " ".join(result.out.split())
    summed = "6 of 6 rounds in 2 of 2 runs"  # who trains alone sends nothing, and has a model all the same
    assert re.search(rf"{re.escape(SHOWN)}[^.]*{summed}", words)
    page = (place / "c" / "report.html").read_text(encoding="utf-8")
    assert '<section id="flagged"' in page
    assert "<td>3 of 3</td>" in page
    assert summed in page


@pytest.mark.slow
def test_a_model_that_diverges_for_all_is_one_line_and_keeps_its_last_finite_state(strata, place):
    result = strata("run", *SMALL, "--algorithm", "fedavg", "--rounds", 2, "--set", "train.lr=1e30", "--out", "done")
    assert result.code == 0
    assert mentions(result.err, "4 of 4 clients", "round 1", "learning rate")
    assert result.err.count("\n") == 1
    words = " ".join(result.out.split())
    assert "fedavg (diverged)" in words
    assert re.search(r"4 of 4 clients.*round 1 .*learning rate", words)
    assert "strata data show" not in words  # it is not the data of one of them
    first, second = lines(place / "done" / "rounds.jsonl")
    assert first["test.deployed.loss"] == second["test.deployed.loss"] < 3  # as it began


def test_a_journal_whose_clients_cannot_be_read_is_refused(strata, finished, place):
    journal, (line, _) = place / "done" / "rounds.jsonl", lines(place / "done" / "rounds.jsonl")
    shutil.rmtree(place / "done" / "checkpoint")  # which knows the checksum of the line that was there
    for bad in ({"left_out": 3}, {"left_out": [{"client": "x", "reason": ""}]}, {"outliers": [{"client": 1}]}):
        journal.unlink()
        Journal(journal).append([{**line, **bad, "seconds.train": 0.0, "seconds.server": 0.0}])
        result = strata("report", "done")
        assert result.code == 2
        assert "rounds.jsonl'" in result.err


def test_in_a_notebook_it_is_a_warning(caplog):
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(80, 4)).astype(np.float32), np.arange(80) % 2) for _ in range(4)]
    clients[2] = (clients[2][0] * np.float32(1e30), clients[2][1])
    with caplog.at_level(logging.WARNING, logger="stratafl"):
        fitted = fit(fedavg(), clients, build("mlp", shape=(4,), classes=2, hidden=(4,)), rounds=2, normalise="none")
    unit, *others = caplog.messages
    assert unit.startswith("client 2: column 0 ")
    assert "7.36e+29" in unit
    (left_out,) = others
    assert left_out.startswith("round 1: client 2 ")
    assert [len(line["left_out"]) for line in fitted.history] == [1, 1]
