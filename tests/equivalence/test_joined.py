"""Joined runs compute what each of them computes alone, and leave nothing behind."""

import gc
import weakref
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import nn

from methods import PARTICIPATION, every_method
from stratafl.algorithms import algorithm, fedavg, fedper, fedprox, fedrep, local
from stratafl.core.objectives import CrossEntropy
from stratafl.errors import RunError
from stratafl.evaluation.trial import Trial
from stratafl.execute import Matrix, simulation
from stratafl.policies import SGD
from stratafl.runs.joined import JoinedRuns, needed
from stratafl.runtime import captured, inputs
from stratafl.runtime.captured import CapturedStep
from stratafl.runtime.joining import Joining, this_run
from stratafl.runtime.likeness import likeness
from stratafl.runtime.schedule import joined_slots
from stratafl.runtime.speed import Speed
from stratafl.testing import difference, tiny_federation, tiny_model, within_reach


def made(method, seed=0, batchnorm=True, rounds=2, **options):
    given = {"dtype": torch.float32, "rounds": rounds, "seed": seed} | options
    data = tiny_federation(seed=given.pop("data", seed), dtype=torch.float32)
    return simulation(method, data, tiny_model(batchnorm), **given)


def run(make, kept, name):
    """All rounds of a simulation that is made in the thread of its run; its state and its lines without times."""
    sim = make()
    trial, progress, lines = Trial(sim), sim.start(), []
    while progress.t < sim.rounds:
        progress, entry = trial.round(progress)
        lines.append({key: x for key, x in entry.round.items() if not key.startswith("seconds")})
    kept[name] = progress.tensors(), lines


def alone_and_joined(makes):
    alone, joined = {}, {}
    for name, make in enumerate(makes):
        run(make, alone, name)
    Joining(lambda: len(makes)).drive(partial(run, make, joined, name) for name, make in enumerate(makes))
    return alone, joined


def check(makes):
    alone, joined = alone_and_joined(makes)
    assert joined.keys() == alone.keys()
    for name, (tensors, lines) in alone.items():
        assert difference(tensors, joined[name][0]) == 0
        assert lines == joined[name][1]


@pytest.mark.parametrize("participation", PARTICIPATION)
@pytest.mark.parametrize("name", every_method())
def test_every_method_beside_others_with_other_seeds_and_rates(name, participation):
    """Beside FedAvg, whose step most methods share, and beside itself with another seed."""
    method, rounds = within_reach(algorithm(name), 2)
    options = {"participation": participation, "rounds": rounds}
    makes = [
        partial(made, method, **options),
        partial(made, method, seed=1, **options),
        partial(made, fedavg(train=SGD(lr=0.2)), seed=2, **options | {"rounds": 3}),
    ]
    check(makes)


@pytest.mark.parametrize(
    "train",
    [
        SGD(lr=0.1, momentum=0.9, weight_decay=0.01, clip=0.5),
        SGD(lr=0.1, epochs=2, batch=4),
        SGD(lr=0.01, optimizer="adam", optimizer_state="kept"),
    ],
)
def test_every_descent(train):
    check([partial(made, fedper(train=replace(train, lr=train.lr * k)), seed=k) for k in (1, 2, 3)])


def test_rates_of_one_method_take_one_step(monkeypatch):
    seen = []
    plain = CapturedStep.run
    monkeypatch.setattr(CapturedStep, "run", lambda self, scans: seen.append(len(scans)) or plain(self, scans))
    check([partial(made, fedavg(train=SGD(lr=lr)), batchnorm=False, rounds=1) for lr in (0.01, 0.1, 0.2, 0.4)])
    assert set(seen) == {4}


def test_methods_with_the_same_local_step_are_joined_and_others_are_not(monkeypatch):
    seen = []
    plain = CapturedStep.run
    monkeypatch.setattr(CapturedStep, "run", lambda self, scans: seen.append(len(scans)) or plain(self, scans))
    check([partial(made, each, batchnorm=False, rounds=1) for each in (fedavg(), fedper(), local(), fedrep())])
    assert seen[:2] == [3, 1]  # FedRep begins with its head


def test_constants_that_the_clients_of_a_run_share_stay_those_of_the_run():
    """FedProx pulls to the server's model, which is another one for each seed."""
    check([partial(made, fedprox(strength=0.5), seed=seed, batchnorm=False) for seed in range(3)])


def test_windows_shorter_than_a_scan(monkeypatch):
    monkeypatch.setattr(inputs, "LEAST", 2)
    monkeypatch.setattr(inputs, "LONGEST", 2)
    check([partial(made, fedavg(), seed=seed) for seed in range(2)])


def test_runs_on_the_same_data_read_it_once(monkeypatch):
    data = tiny_federation(dtype=torch.float32)
    makes = [
        partial(simulation, fedavg(), data, tiny_model(), dtype=torch.float32, rounds=2, seed=seed) for seed in (0, 1)
    ]
    asked = []
    plain = inputs.Plan.sources
    monkeypatch.setattr(inputs.Plan, "sources", lambda *given: asked.append(list(plain(*given))) or iter(asked[-1]))
    check(makes)
    assert all(len(found) == 1 for found in asked)


def test_a_step_that_cannot_be_captured_runs_as_it_is(monkeypatch):
    monkeypatch.setattr(captured.CapturedSteps, "scan", lambda self, scans: None)
    check([partial(made, fedavg(), seed=seed) for seed in range(2)])


def test_an_objective_without_a_name_is_not_joined():
    class Own(CrossEntropy):
        __hash__ = None

    check([partial(made, fedavg(train=SGD(objective=Own())), seed=seed) for seed in range(2)])


def test_models_of_the_same_shapes_that_compute_something_else_are_not_joined(monkeypatch):
    def with_dropout(p, seed):
        model = tiny_model()
        next(each for each in model.modules() if isinstance(each, nn.Dropout)).p = p
        data = tiny_federation(seed=seed, dtype=torch.float32)
        return simulation(fedavg(), data, model, dtype=torch.float32, rounds=2, seed=seed)

    seen = []
    plain = CapturedStep.run
    monkeypatch.setattr(CapturedStep, "run", lambda self, scans: seen.append(id(self)) or plain(self, scans))
    check([partial(with_dropout, p, seed) for seed, p in enumerate((0.1, 0.5, 0.5))])
    assert len(set(seen)) == 4  # training and scoring, of each model


# Company that changes


def test_runs_of_different_length_and_later_ones():
    """Three at a time: two of five begin when others have ended."""
    makes = [partial(made, fedavg(), seed=k, batchnorm=False, rounds=1 + k % 3) for k in range(5)]
    alone, joined = {}, {}
    for name, make in enumerate(makes):
        run(make, alone, name)
    Joining(lambda: 3).drive(partial(run, make, joined, name) for name, make in enumerate(makes))
    assert all(difference(tensors, joined[name][0]) == 0 for name, (tensors, _) in alone.items())


def test_nothing_of_a_run_that_has_ended_stays_while_others_go_on():
    gone, seen = [], []

    def short():
        sim = made(fedavg(), batchnorm=False, rounds=1)
        gone.extend(weakref.ref(x) for x in (sim, sim.runtime, sim.runtime.federation, sim.runtime.engine))
        sim.run(Matrix())
        sim.runtime.close()

    def long():
        sim = made(fedavg(), seed=1, batchnorm=False, rounds=4)
        progress = sim.start()
        while progress.t < 4:
            progress, _ = sim.round(progress, Matrix())
            gc.collect()
            seen.append([ref() is not None for ref in gone])

    Joining(lambda: 2).drive(iter([short, long]))
    assert not any(seen[-1])


def test_all_steps_are_freed_at_the_end():
    before = sum(type(each) is CapturedStep for each in gc.get_objects())
    check([partial(made, fedavg(), seed=seed) for seed in range(2)])
    gc.collect()
    assert sum(type(each) is CapturedStep for each in gc.get_objects()) == before


def test_an_error_in_one_run_stops_the_others_where_they_are():
    ended = []

    def failing():
        progress = made(fedavg(), batchnorm=False).start()
        made(fedavg(), batchnorm=False).round(progress, Matrix())
        raise RunError("the disk is full")

    def going():
        try:
            made(fedavg(), seed=1, batchnorm=False, rounds=50).run(Matrix())
        except KeyboardInterrupt:
            ended.append("stopped")
            raise

    with pytest.raises(RunError, match="the disk is full"):
        Joining(lambda: 2).drive(iter([failing, going]))
    assert ended == ["stopped"]


def test_a_run_waits_for_another():
    order = []
    joined = JoinedRuns(2)

    def first(tmp):
        sim = made(fedavg(), batchnorm=False, rounds=3)
        with joined.declared(tmp, sim):
            sim.run(Matrix())
            order.append("first")

    def second(tmp):
        sim = made(fedavg(), seed=1, batchnorm=False, rounds=1)
        with joined.declared("second", sim):
            sim.run(Matrix())
            joined.wait_for(tmp)
            order.append("second")

    joined.drive(iter([partial(first, "first"), partial(second, "first")]))
    assert order == ["first", "second"]


def test_time_stands_still_for_runs_that_wait():
    seconds = {}

    def timed(name, rounds):
        sim = made(fedavg(), seed=rounds, batchnorm=False, rounds=rounds)
        begin = sim.runtime.now()
        sim.run(Matrix())
        seconds[name] = sim.runtime.now() - begin
        seconds[f"{name} waited"] = this_run().others_seconds

    Joining(lambda: 2).drive(iter([partial(timed, "a", 3), partial(timed, "b", 3)]))
    assert all(each > 0 for each in seconds.values())


# How many at a time


def test_as_many_runs_as_fit_into_the_memory_limit():
    sim = made(fedavg(), batchnorm=False)
    joined = JoinedRuns(18)
    assert joined._most() == 1  # nothing is known yet
    with joined.declared("a", sim):
        assert joined._most() == 18
        joined._room[None] = 3 * needed(sim)
        assert joined._most() == 3
        joined._room[None] = 0
        assert joined._most() == 1
    assert JoinedRuns(18, jobs=4)._part == 5


def test_a_model_that_gains_nothing_by_company_runs_alone(monkeypatch):
    sim = made(fedavg(), batchnorm=False)
    assert sim.runtime.joins
    monkeypatch.setattr("stratafl.runtime.runtime.SMALL", 1)
    assert not sim.runtime.joins
    joined = JoinedRuns(18)
    with joined.declared("a", sim):
        assert joined._most() == 1
    assert not made(fedavg(), batchnorm=False, engine="loop").runtime.joins


def test_slots_of_joined_scans_never_wait():
    assert joined_slots([4, 4, 4, 1]) == 2  # 13 steps, of which the longest client takes 4: 3 slots would be busy
    assert joined_slots([10] * 1000) == 128
    assert joined_slots([0, 0]) == joined_slots([]) == 1


# Which models are the same


class Scaled(nn.Linear):
    def __init__(self, scale):
        super().__init__(4, 3)
        self._scale = scale

    def forward(self, x):
        return super().forward(x) * self._scale


def test_models_are_alike_if_classes_and_attributes_are():
    assert likeness(tiny_model()) == likeness(tiny_model())
    assert likeness(tiny_model()) != likeness(tiny_model(batchnorm=False))
    assert likeness(Scaled(1.0)) == likeness(Scaled(1.0)) != likeness(Scaled(2.0))
    assert likeness(Scaled(1.0)) != likeness(Scaled(1))
    assert likeness(nn.Sequential(nn.Dropout(0.1))) != likeness(nn.Sequential(nn.Dropout(0.2)))
    assert likeness(Scaled(torch.ones(3))) is None  # what a tensor holds may change


def test_a_model_with_hooks_is_like_no_other():
    model = tiny_model()
    model.register_forward_hook(lambda *given: None)
    assert likeness(model) is None


def test_runs_of_other_precision_share_no_steps():
    assert Speed().key != Speed(compile="off").key != Speed(products={"conv": True}).key
