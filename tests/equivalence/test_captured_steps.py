"""Captured steps give the bits of plain steps; a step that cannot be captured runs as it is."""

import logging
import re
import sys
from dataclasses import replace

import pytest
import torch

from simulations import federation
from stratafl.algorithms import fedavg, fedprox, fedrep, local
from stratafl.algorithms.perfedavg import Meta
from stratafl.core.layers import select
from stratafl.core.objectives import CrossEntropy
from stratafl.core.records import record
from stratafl.errors import RecordError, UnknownNameError
from stratafl.execute import Matrix, simulation
from stratafl.policies import Clamp, Exponential, LocalTraining
from stratafl.runtime import compiling
from stratafl.runtime.captured import CapturedSteps
from stratafl.runtime.compiling import Compiler
from stratafl.runtime.schedule import slots_for
from stratafl.runtime.speed import Speed
from stratafl.testing import SIZES, difference, tiny_federation, tiny_model

KEPT, PLAIN = Speed(graphs="on"), Speed(graphs="off")


def made(method, speed, **options):
    options = {"rounds": 2} | options
    data, model = federation(dtype=torch.float32), tiny_model(options.pop("batchnorm", True))
    return simulation(method, data, model, dtype=torch.float32, speed=speed, **options)


def outcomes(method, **options):
    return [made(method, speed, **options).run(Matrix()).tensors() for speed in (PLAIN, KEPT)]


def test_captured_steps_are_used_and_kept():
    sim = made(fedrep(), KEPT, batchnorm=False)
    progress = sim.start()
    for _ in range(2):
        progress, _ = sim.round(progress, Matrix())
    captured = sim.runtime.captured
    assert isinstance(captured, CapturedSteps)
    assert len(captured._kept) == 2  # the head's descent and the base's
    steps = [-(-size // 10) for size in SIZES]
    assert {step.slots for step in captured._kept.values()} == {slots_for(steps)}


DESCENTS = {
    "a rate that changes": LocalTraining(lr=0.1, schedule=Exponential(0.5), epochs=2, batch=4),
    "momentum": LocalTraining(lr=0.1, momentum=0.9, weight_decay=0.01, clip=0.5, steps=3),
    "nesterov": LocalTraining(lr=0.1, momentum=0.9, nesterov=True, optimizer_state="kept"),
    "adamw": LocalTraining(lr=0.01, optimizer="adamw", weight_decay=0.01, optimizer_state="kept"),
    "repeats": LocalTraining(lr=0.1, repeats=3, share=0.5, project=Clamp(-0.3, 0.3)),
    "three draws": LocalTraining(lr=0.1, gradient=Meta("hf", 0.1, 1e-2)),
}


@pytest.mark.parametrize("name", DESCENTS)
def test_every_kind_of_descent_gives_the_same_bits(name):
    plain, kept = outcomes(fedavg(train=DESCENTS[name]), batchnorm=False)
    assert difference(plain, kept) == 0


def test_a_frozen_row_that_all_clients_share_is_kept_once():
    sim = made(fedprox(), KEPT, batchnorm=False, rounds=1)
    sim.run(Matrix())
    (step,) = sim.runtime.captured._kept.values()
    anchors = [x for name, x in step._constants.items() if "/" in name]
    assert anchors
    assert all(x.stride(0) == 0 for x in anchors)


@record
class Looks(CrossEntropy):
    """An objective that cannot be found again, because it cannot be hashed."""

    words: list[str] = None

    def __hash__(self):
        raise TypeError("unhashable")


def test_a_step_that_cannot_be_named_is_taken_anew():
    plain, kept = outcomes(fedavg(train=LocalTraining(objective=Looks(words=["a"]))), batchnorm=False, rounds=1)
    assert difference(plain, kept) == 0


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """A busy machine may take longer than usual; and nothing here needs torch's compiler but what loads its code."""
    monkeypatch.setattr(compiling, "QUIET_SECONDS", 3600.0)
    monkeypatch.setattr(compiling, "GENERATED_IMPORTS", ("json",))
    monkeypatch.setattr(compiling, "_import_thread", None)


def test_a_step_that_cannot_be_captured_is_logged_and_left(monkeypatch, caplog):
    def refuse(self, captured, name, scan):
        raise RuntimeError("stream is capturing\nmore")

    monkeypatch.setattr(CapturedSteps, "_prepare", refuse)
    with caplog.at_level(logging.WARNING, "stratafl"):
        plain, kept = outcomes(fedavg(), batchnorm=False, rounds=1)
    assert difference(plain, kept) == 0
    (line,) = caplog.messages
    assert line.endswith("RuntimeError: stream is capturing")


def test_without_a_compiler_steps_are_captured_as_they_are(monkeypatch, caplog):
    def missing(self, *given):
        raise FileNotFoundError("no g++")

    monkeypatch.setattr("stratafl.runtime.compiling.Compiler._job", missing)
    plain = made(fedavg(), PLAIN, batchnorm=False).run(Matrix()).tensors()
    sim = made(fedavg(), Speed(compile="on"), batchnorm=False)
    assert difference(plain, sim.run(Matrix()).tensors()) == 0
    (line,) = caplog.messages
    assert line.endswith("FileNotFoundError: no g++")
    assert sim.runtime.tuning["switched"] == {}


@pytest.mark.slow
def test_a_captured_step_serves_only_what_it_was_made_for():
    """Descents that differ in anything but their rate, one after the other in one runtime, as in phases."""
    descents = [
        LocalTraining(lr=0.1),
        LocalTraining(lr=0.1, weight_decay=0.5),
        LocalTraining(lr=0.1, clip=0.01),
        LocalTraining(lr=0.1, momentum=0.9),
        LocalTraining(lr=0.1, batch=4),
        LocalTraining(lr=0.1, objective=Doubled()),
        LocalTraining(lr=0.1, layers=select("fc")),
    ]
    plain, kept = (made(fedavg(), speed, batchnorm=False) for speed in (PLAIN, KEPT))
    for descent in descents:
        after = [round_of(sim, descent) for sim in (plain, kept)]
        assert difference(*after) == 0
    assert len(kept.runtime.captured) == len(descents)


def round_of(sim, descent):
    progress, _ = replace(sim, algorithm=fedavg(train=descent)).round(sim.start(), Matrix())
    return progress.tensors()


@record
class Doubled(CrossEntropy):
    """Another objective on the same fields."""

    def __call__(self, *given):
        loss, carry, metrics = super().__call__(*given)
        return 2 * loss, carry, metrics


def test_rows_that_one_scan_shares_and_another_does_not():
    """The same step for one anchor of all clients, and for one of each."""
    sim = made(fedavg(), KEPT)
    task = sim.task(torch.arange(3), sim.at(0))

    def towards(carry, held, stack):
        return {"x": carry["x"] + held["anchor"]}

    for anchor in (torch.ones(1, 2).expand(3, 2), torch.arange(6.0).reshape(3, 2), torch.arange(6.0).reshape(3, 2)[:2]):
        task = sim.task(torch.arange(len(anchor)), sim.at(0))
        given = {"x": torch.zeros(len(anchor), 2)}
        done = task.scan(towards, given, steps=2, batch=4, constants={"anchor": anchor}, name="towards")
        assert torch.equal(done["x"], 2 * anchor)


def test_a_cohort_without_a_whole_batch_stays_as_it_is():
    """The last client has 4 samples, and batches of 8 that are not whole are dropped."""
    for speed in (PLAIN, KEPT):
        sim = made(fedavg(train=LocalTraining(batch=8, drop_last=True)), speed)
        before = sim.start()
        after, _ = sim.round(before, Matrix(), torch.tensor([5]))
        assert difference(before.server["theta"], after.server["theta"]) == 0


def test_a_client_without_a_whole_batch_keeps_its_model():
    """Two of the six clients have fewer than 8 samples."""
    plain, kept = outcomes(local(train=LocalTraining(batch=8, drop_last=True)), batchnorm=False, rounds=1)
    assert difference(plain, kept) == 0


def test_fields_may_change_places():
    for speed in (PLAIN, KEPT):
        sim = made(fedavg(), speed)
        task = sim.task(torch.arange(3), sim.at(0))

        def swapped(carry, held, stack):
            return {"a": carry["b"], "b": carry["a"]}

        given = {"a": torch.zeros(3), "b": torch.ones(3)}
        done = task.scan(swapped, given, steps=3, batch=4, name="swapped")
        assert (done["a"].tolist(), done["b"].tolist()) == ([1, 1, 1], [0, 0, 0])


def test_a_captured_step_for_one_client_is_not_made_to_serve_many():
    sim = made(fedavg(train=LocalTraining(steps=3)), KEPT, batchnorm=False)
    progress = sim.start()
    for cohort in ([0], [0, 1], [0, 1, 2, 3, 4, 5], [0]):
        progress, _ = sim.round(progress, Matrix(), torch.tensor(cohort))
    by_slots = sorted(step.slots for step in sim.runtime.captured._kept.values())
    assert by_slots[-1] == 6


def test_steps_are_compiled_without_being_captured_where_graphs_are_off():
    assert not CapturedSteps(torch.device("cuda"), "on", captures=False)._graphs
    assert Speed(graphs="off", compile="on").captures(torch.device("cuda"))


def test_bad_words_and_digits_without_a_gpu_are_refused():
    with pytest.raises(UnknownNameError, match="'fp16'"):
        Speed(precision="fp16")
    with pytest.raises(UnknownNameError, match="'yes'"):
        Speed(compile="yes")
    with pytest.raises(RecordError, match=r"'tf32'.*'cpu'"):
        made(fedavg(), Speed(precision="tf32"))


def test_what_was_found_out_is_given_back():
    sim = made(fedavg(), PLAIN)
    assert sim.runtime.tuning == {
        "products": {"conv1": True, "conv2": True},
        "compiled": None,
        "engine": "stacked",
        "switched": {},
    }
    stock = made(fedavg(), replace(PLAIN, convolutions="stock"))
    assert stock.runtime.tuning["products"] == {"conv1": "stock", "conv2": "stock"}
    (first, _), (second, _) = (each.round(each.start(), Matrix()) for each in (sim, stock))
    assert difference(first.tensors(), second.tensors()) < 1e-4


# Compiled steps


def small(speed, rounds=4):
    """Without convolutions, which take long to compile."""
    data, model = tiny_federation(dtype=torch.float32), tiny_model(batchnorm=False)
    return simulation(fedavg(), data, model, dtype=torch.float32, rounds=rounds, speed=speed)


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("STRATAFL_CACHE", str(tmp_path / "cache"))


COMPILERS = {  # what the process does, how long a run waits for it, and a value in the one line about it
    "fails": ("import sys; sys.exit('no g++')", 600.0, ": no g++"),
    "killed": ("import os; os.kill(os.getpid(), 9)", 600.0, " -9"),
    "never ends": ("import time; time.sleep(600)", 0.1, " 0 s"),
}


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("case", COMPILERS)
def test_a_run_goes_on_whatever_becomes_of_the_compiler(case, monkeypatch, caplog):
    script, longest, value = COMPILERS[case]
    monkeypatch.setattr(compiling, "compiler_command", lambda folder: [sys.executable, "-c", script])
    monkeypatch.setattr(compiling, "MAX_WAIT_SECONDS", longest)
    monkeypatch.setattr(compiling, "CLOSING_SECONDS", 0.1)
    sim = small(Speed(compile="on"))
    assert difference(sim.run(Matrix()).tensors(), small(PLAIN).run(Matrix()).tensors()) == 0
    sim.runtime.close()
    assert len(caplog.messages) == 1
    assert value in caplog.messages[0]
    assert sim.runtime.tuning["switched"] == {}


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("late", [0, 2])
def test_a_compiled_step_that_does_not_run_is_left(late, monkeypatch, caplog):
    asked = []

    def broken(*tensors):
        raise torch.OutOfMemoryError("no second graph")

    def wait(self, name):
        asked.append(name)
        return None if self._jobs[name].failed or len(asked) <= late else broken

    monkeypatch.setattr(compiling, "compiler_command", lambda folder: [sys.executable, "-c", ""])
    monkeypatch.setattr(Compiler, "wait", wait)
    sim = small(Speed(compile="on"))
    assert difference(sim.run(Matrix()).tensors(), small(PLAIN).run(Matrix()).tensors()) == 0
    (line,) = caplog.messages
    assert line.endswith("OutOfMemoryError: no second graph")
    assert len(sim.runtime.captured) == 1  # the captured step is used
    assert sim.runtime.tuning["switched"] == {}


def in_place_of_compiled_code(change):
    """The step as it is, on tensors that are changed before."""
    plain = CapturedSteps._checked

    def checked(self, captured, run, scans):
        def compiled(*tensors):
            change(tensors)
            captured.on(tensors).compute(scans[0].step)

        return plain(self, captured, compiled, scans)

    return checked


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("wrong", [False, True])
def test_a_compiled_step_that_computes_something_else_is_left(wrong, monkeypatch, caplog):
    """As torch 2.11 did on a CPU, which took the next batch."""
    monkeypatch.setattr(compiling, "compiler_command", lambda folder: [sys.executable, "-c", ""])
    monkeypatch.setattr(Compiler, "wait", lambda self, name: None if self._jobs[name].failed else print)
    change = (lambda tensors: tensors[0].add_(1)) if wrong else (lambda tensors: None)
    monkeypatch.setattr(CapturedSteps, "_checked", in_place_of_compiled_code(change))
    sim = small(Speed(compile="on"))
    assert difference(sim.run(Matrix()).tensors(), small(PLAIN).run(Matrix()).tensors()) == 0
    assert [bool(re.search(r"\d+ %", line)) for line in caplog.messages] == [True] * wrong
    assert bool(sim.runtime.tuning["switched"]) is not wrong


@pytest.mark.nightly
@pytest.mark.usefixtures("own_cache")
def test_a_run_switches_when_the_compiled_step_is_there_and_a_resumed_one_in_the_same_round(monkeypatch):
    ready, open_from = Compiler.ready, []

    def late(self, name):
        """As if compiling took two rounds."""
        return ready(self, name) if open_from else None

    monkeypatch.setattr(Compiler, "ready", late)

    def rounds(speed, opens=None):
        sim = small(speed)
        steps, progress = sim.runtime.captured, sim.start()
        steps.compiles, steps._at_once = True, False  # as `auto` on a GPU
        for t in range(4):
            if t == opens:
                open_from.append(t)
                for name in list(steps._compiler._jobs):
                    assert steps._compiler.wait(name) is not None
            progress, _ = sim.round(progress, Matrix())
        return progress.tensors(), sim.runtime.tuning["switched"]

    first, switched = rounds(Speed(compile="on"), opens=2)
    assert set(switched.values()) == {2}
    resumed, again = rounds(Speed(compile="on", switched=switched))
    assert again == switched
    assert difference(first, resumed) == 0
    plain = small(PLAIN).run(Matrix()).tensors()
    assert 0 < difference(plain, first) < 1e-4


@pytest.mark.nightly
@pytest.mark.usefixtures("own_cache")
def test_the_second_run_finds_what_the_first_compiled():
    sims = [small(Speed(compile="on"), rounds=2) for _ in range(2)]
    states = [sim.run(Matrix()).tensors() for sim in sims]
    assert difference(*states) == 0
    first, second = (sim.runtime.tuning["switched"] for sim in sims)
    assert first == second != {}
    assert set(first.values()) == {0}
