"""What makes rounds fast, as counts that are the same on every machine: operations launched, calls of Python, captures.

`test_speed_guard.py` compares times, in which a lost trace is no more than noise.
"""

import argparse
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

import worker
from bench_models import Workload, bench_model
from engine_rounds import EngineRun
from plain_loops import Loop
from stratafl.runtime.captured_step import CapturedStep
from stratafl.runtime.joining import JoinedRun
from stratafl.runtime.speed import DEFAULT_SPEED, Speed

pytestmark = pytest.mark.slow

# A plain loop's over the engine's, for a round of 20 clients: measured 9.9 and 8.1, with captured steps 7.1 and 6.5
# (torch 2.13, Python 3.11). Without traces calls are 0.7, client by client operations are 0.6.
FEWER_OPERATIONS, FEWER_CALLS = 5, 4
JOINED = 0.85  # of the operations of runs one after the other: measured 0.65, and 1.4 if scans are not joined
BESIDE = 800  # operations of a round of 20 clients beside its steps, for most of which a GPU would wait: measured 593,
# and 1,009 if rows and timetables are made one by one
ROUNDS = 3
DIGITS = ["data.name=digits", "data.clients=6", "run.rounds=2", "run.device=cpu"]


class Operations(TorchDispatchMode):
    """Counts what torch is asked to compute, in the thread that entered it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        self.count += 1
        return function(*given, **(named or {}))


@pytest.fixture(autouse=True)
def _one_thread(torch_threads: Callable[[int], None]) -> None:
    """Lanes are threads, which are counted only while there is none."""
    torch_threads(1)


def operations(work: Callable[[], object]) -> int:
    with Operations() as counted:
        work()
    return counted.count


def calls(work: Callable[[], object]) -> int:
    """Calls of Python's and C's functions: what a step costs before it computes anything."""
    counter, found = count(1), [0]

    def note(frame: object, event: str, value: object) -> None:
        if event in ("call", "c_call"):
            found[0] = next(counter)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found[0]


def engine_and_loop(speed: Speed = DEFAULT_SPEED) -> tuple[EngineRun, Loop]:
    model, load = bench_model("mlp"), Workload(clients=20, cohort=20, batch=10, samples=200)
    federation = load.federation(model)
    run = EngineRun("fedavg", model, load, federation, "cpu", speed)
    return run, Loop(run.sim.template, federation, range(20), 10, run.sim.runtime.smallest_batch, "cpu")


def check_counts(run: EngineRun, loop: Loop) -> None:
    assert FEWER_OPERATIONS * operations(run.once) < operations(loop.once), "clients are not stacked"
    assert FEWER_CALLS * calls(run.once) < calls(loop.once), "steps are not replayed from a trace"


def test_stacked_and_traced_steps_launch_few_operations_with_little_python():
    run, loop = engine_and_loop()
    for _ in range(ROUNDS):  # a step is traced after it has come back often enough
        run.once()
    check_counts(run, loop)


def test_captured_steps_are_made_once_and_kept(monkeypatch):
    made, make = [], CapturedStep.__init__
    monkeypatch.setattr(CapturedStep, "__init__", lambda *given, **named: (made.append(1), make(*given, **named))[1])
    run, loop = engine_and_loop(Speed(graphs="on", compile="off"))
    for _ in range(ROUNDS):
        run.once()
    assert len(made) == len(run.sim.runtime.captured) == 2  # of training and of scoring
    check_counts(run, loop)


def test_little_is_launched_beside_captured_steps(monkeypatch):
    run, _ = engine_and_loop(Speed(graphs="on", compile="off"))
    for _ in range(ROUNDS):
        run.once()
    monkeypatch.setattr(CapturedStep, "once", lambda *given: None)
    assert operations(run.once) < BESIDE


def test_joined_runs_launch_fewer_operations_than_one_after_the_other(tmp_path, monkeypatch):
    in_threads, work = [], JoinedRun.run
    monkeypatch.setattr(JoinedRun, "run", lambda run: in_threads.append(operations(lambda: work(run))))

    def launched(how: Callable[..., None], folder: Path) -> int:
        given = argparse.Namespace(methods="local,fedavg", seeds=2, vary=None, set=DIGITS)
        members = worker.members_of(given, folder)
        return operations(lambda: how(members, lambda member, number: None))

    together = launched(worker.joined, tmp_path / "joined") + sum(in_threads)
    assert len(in_threads) == 4
    assert together < JOINED * launched(worker.one_after_the_other, tmp_path / "apart")
