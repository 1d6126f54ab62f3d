"""The races against plain loops: both sides do the same work, and a row says everything."""

import json
import os
from argparse import Namespace
from dataclasses import replace
from mmap import mmap
from pathlib import Path

import numpy as np
import pytest
import torch

import against_loops
import engine_rounds
from against_loops import MAX_BASELINE_CLIENTS, Ways, cells_of, described, measured_rows
from bench_models import BENCH_MODELS, BenchModel, Workload, bench_model
from engine_rounds import EngineRun
from plain_loops import BASELINES
from stratafl.data import federate
from stratafl.errors import UnknownNameError
from stratafl.runtime.speed import DEFAULT_SPEED
from timing import Seconds, busy, fastest, median, peak, reset_peak

CPU = torch.device("cpu")
SMALL = BenchModel("mlp", (1, 2, 2), 3, 2, {"hidden": (4,)})


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(engine_rounds, "PATIENT", 0.0)


def test_equal_shares_hold_what_was_asked_for():
    federation = Workload(clients=5, cohort=5, batch=4, samples=12).federation(SMALL)
    assert federation.counts("train").tolist() == [12] * 5
    assert federation.counts("test").tolist() == [4] * 5
    assert tuple(federation.x.shape[1:]) == SMALL.shape


def test_beyond_the_pool_clients_share_samples(monkeypatch):
    monkeypatch.setattr("bench_models.POOL", 40)
    federation = Workload(clients=50, cohort=5, batch=4, samples=12).federation(SMALL)
    assert len(federation.x) == 40
    assert federation.counts("train").tolist() == [12] * 50


def test_the_paper_has_20_clients_and_45_000_training_samples():
    federation = Workload(clients=20, cohort=20, batch=10, samples=1, paper=True).federation(SMALL)
    assert 44_600 <= int(federation.counts("train").sum()) <= 45_000
    assert len(set(federation.counts("train").tolist())) > 10


def test_a_model_with_a_vocabulary_gets_tokens():
    federation = Workload(clients=2, cohort=2, batch=4, samples=8).federation(bench_model("embedding"))
    assert federation.x.dtype == torch.int64
    assert int(federation.x.min()) > 0
    assert int(federation.x.max()) < 98_635


@pytest.mark.slow
@pytest.mark.parametrize("kind", BASELINES)
@pytest.mark.parametrize(
    ("given", "samples"), [(SMALL, 10), (replace(SMALL, options={"norm": True}), 9)], ids=["mlp", "statistics"]
)
def test_engine_and_baselines_take_the_same_steps(kind, given, samples):
    """The last batch is a short one; a BatchNorm refuses a last one of a single sample."""
    work = Workload(clients=3, cohort=3, batch=4, samples=samples)
    federation = work.federation(given)
    run = EngineRun("fedavg", given, work, federation, "cpu", DEFAULT_SPEED)
    loop = kind(run.sim.template, federation, run.cohort.tolist(), 4, run.sim.runtime.smallest_batch, "cpu")
    loop.once()
    theirs, ours = loop.models[0].state_dict(), run._progress.server["theta"]
    start = run.sim.setup.start
    for name, row in ours.items():
        torch.testing.assert_close(theirs[name], row.reshape(theirs[name].shape), rtol=1e-4, atol=1e-5)
        assert not torch.equal(start[name], theirs[name])
    run.once()
    loop.once()
    assert loop.hits == int(run.board["test.deployed"].hits.sum())


@pytest.mark.parametrize("kind", BASELINES)
def test_a_baseline_weights_clients_by_their_samples(kind):
    x, y = np.zeros((40, 4), np.float32), np.arange(40) % 3
    federation = federate(x, y, [np.arange(8), np.arange(8, 40)], test=0.25)
    loop = kind(torch.nn.Linear(4, 3), federation, range(2), 4, 1, "cpu")
    with torch.no_grad():
        for value, model in enumerate(loop.models):
            model.bias.fill_(value)
    loop._average()
    counts = federation.counts("train").tolist()
    assert counts[0] != counts[1]
    assert loop.models[0].bias.tolist() == pytest.approx([counts[1] / sum(counts)] * 3)


def test_only_a_cohort_is_trained_and_everybody_evaluated():
    work = Workload(clients=6, cohort=2, batch=4, samples=8)
    run = EngineRun("fedper", SMALL, work, work.federation(SMALL), "cpu", DEFAULT_SPEED)
    first = run.cohort.tolist()
    run.once()
    assert set(run._progress.clients) == set(first)
    assert len(run.board["test.deployed"].hits) == 6


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "fedalp" else pytest.mark.slow)
        for name in ("fedavg", "fedper", "flayer", "pfedla", "fedlag", "fedalp")
    ],
)
def test_methods_are_timed_in_their_main_phase(name):
    work = Workload(clients=5, cohort=5, batch=4, samples=8)
    run = EngineRun(name, SMALL, work, work.federation(SMALL), "cpu", DEFAULT_SPEED)
    rounds = run.warm_up()
    assert rounds >= engine_rounds.STEADY
    assert run._in_main_phase
    took = run.once()
    assert min(took.train, took.server, took.evaluate) > 0


def test_warming_up_ends_when_steps_are_traced(monkeypatch):
    monkeypatch.setattr(engine_rounds, "PATIENT", 60.0)
    work = Workload(clients=2, cohort=2, batch=4, samples=64)
    run = EngineRun("fedavg", SMALL, work, work.federation(SMALL), "cpu", DEFAULT_SPEED)
    assert run.kept == 0
    run.warm_up()
    assert run.kept == 1


def test_best_and_median_of_rounds():
    rounds = [Seconds(3, 1, 5), Seconds(1, 2, 9), Seconds(2, 9, 7)]
    assert fastest(rounds) == Seconds(1, 2, 5)
    assert median(rounds) == Seconds(2, 2, 7)
    assert fastest(rounds).table() == {"train": 1, "server": 2, "evaluate": 5, "cpu": 0, "round": 3}
    assert fastest([Seconds(1, cpu=3), Seconds(2, cpu=2)]).cpu == 2


@pytest.mark.slow
def test_the_peak_is_of_what_came_since():
    reset_peak(CPU)
    before = peak(CPU)
    with mmap(-1, 64 * 2**20) as block:  # new pages: a tensor may get memory that an earlier test has freed
        block.write(b"1" * len(block))
        assert peak(CPU) >= before + 50 * 2**20


def cells(**changed):
    given = {"models": "mlp", "methods": "fedavg", "clients": [20], "cohort": None, "batch": [10], "steps": None}
    return cells_of(Namespace(**{**given, "paper": False, **changed}))


@pytest.mark.slow
def test_a_row_says_everything(monkeypatch):
    monkeypatch.setattr(against_loops, "MAX_BASELINE_CLIENTS", 2)
    both = cells(methods="fedavg,fedper", clients=[3], steps=1)
    first, second = measured_rows(both, Ways("cpu", repeats=1))
    for row in (first, second):
        assert set(row["engine"]["best"]) == {"train", "server", "evaluate", "cpu", "round"}
        assert row["engine"]["first_round"] > 0
        assert row["engine"]["peak_memory"] > 2**20
        assert set(row["ratios"]) == {"loop", "loader"}
        assert row["least_ratio"] == min(ratio["round"] for ratio in row["ratios"].values())
        assert row["client_steps"] == 3
    assert (first["baselines_beside"], second["baselines_beside"]) == (True, False)
    assert first["baselines"] == second["baselines"]
    assert all(word in described(first) for word in ("mlp", "fedavg", "first", "train", "server", "evaluate", "loop"))
    json.dumps([first, second])
    loop = first["baselines"]["loop"]
    assert loop["clients_timed"] == 2 < MAX_BASELINE_CLIENTS
    assert loop["ms_per_client_step"] == pytest.approx(1e3 * loop["best"]["round"] / 3)


@pytest.mark.slow
def test_without_baselines_there_is_nothing_to_compare_with_and_the_engine_can_be_asked_for():
    ways = Ways("cpu", repeats=1, baselines=False, engine="loop")
    (row,) = measured_rows(cells(clients=[2], steps=1), ways)
    assert row["ratios"] == row["baselines"] == {}
    assert row["engine"]["engine"] == "LoopEngine"


@pytest.mark.slow
def test_what_does_not_fit_into_memory_is_said_and_the_rest_goes_on(monkeypatch, tmp_path, capsys):
    memory, small = engine_rounds.device_memory, iter([2])
    monkeypatch.setattr(engine_rounds, "device_memory", lambda device: next(small, memory(device)))
    words = ["--models", "mlp", "--methods", "fedavg,local", "--clients", "2", "--steps", "1", "--repeats", "1"]
    assert against_loops.main([*words, "--device", "cpu", "--no-baselines", "--results", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*.json")
    table = json.loads(path.read_text())
    refused, measured = table["details"]["rows"]
    assert refused["refused"] in capsys.readouterr().out
    assert [line["value"] for line in table["rows"]] == [None, measured["engine"]["ms_per_client_step"]]
    assert len(table["bars"]) == 1


def sizes(**changed):
    return [(c.workload.clients, c.workload.cohort, c.workload.batch) for c in cells(**changed)]


def test_several_sizes_follow_each_other():
    assert sizes(clients=[20, 100], cohort=[50]) == [(20, 20, 10), (100, 50, 10)]
    assert sizes(clients=[100], cohort=[1, 5]) == [(100, 1, 10), (100, 5, 10)]
    assert sizes(batch=[5, 20]) == [(20, 20, 5), (20, 20, 20)]
    assert [(c.workload.batch, c.method) for c in cells(batch=[5, 20], methods="local,fedavg")] == [
        *((5, "local"), (5, "fedavg"), (20, "local"), (20, "fedavg"))
    ]


@pytest.mark.parametrize("changed", [{"models": "mpl"}, {"models": ""}, {"methods": "fedavgg"}])
def test_unknown_names_are_refused_before_anything_is_measured(changed):
    with pytest.raises(UnknownNameError):
        cells(**changed)


@pytest.mark.parametrize("words", [["--clients", "0"], ["--engine", "lop"], ["--steps", "0"], ["--nosuch"]])
def test_a_command_line_that_cannot_be_read_is_refused(words, capsys):
    with pytest.raises(SystemExit) as ended:
        against_loops.main(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err


def test_what_a_device_cannot_compute_is_refused_in_one_line(capsys):
    assert against_loops.main(["--device", "cpu", "--precision", "tf32"]) == 2
    assert "'tf32'" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.slow
def test_all_models_can_be_asked_for_and_made():
    names = [cell.model for cell in cells(models="all")]
    assert names == list(BENCH_MODELS)
    with torch.device("meta"):
        assert all(next(bench_model(name).module().parameters()).numel() for name in names)


def test_other_processes_are_at_work_until_the_block_ends():
    children = Path("/proc/self/task") / str(os.getpid()) / "children"
    if not children.exists():
        pytest.skip("this system does not list children")
    before = children.read_text().split()
    with busy(2):
        assert len(children.read_text().split()) == len(before) + 2
    assert children.read_text().split() == before
