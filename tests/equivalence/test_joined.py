"""Joined runs compute what each of them computes alone, and leave nothing behind."""

import gc
import signal
import threading
import time
import weakref
from contextvars import ContextVar
from dataclasses import InitVar, dataclass, replace
from functools import partial

import pytest
import torch
from torch import nn

from bench_models import BENCH_MODELS
from stratafl.algorithms import fedavg, fedper, fedprox, fedrep, local
from stratafl.core.lanes import in_lanes
from stratafl.core.objectives import CrossEntropy
from stratafl.errors import MemoryLimitError, RunError
from stratafl.evaluation.trial import Trial
from stratafl.execute import Matrix, simulation
from stratafl.policies import LocalTraining
from stratafl.runs.joined import JoinedRuns, data_bytes, room, run_bytes, usual_jobs
from stratafl.runtime import captured, captured_step, inputs, joining
from stratafl.runtime.captured_step import CapturedStep
from stratafl.runtime.joining import JoinedRun, Joining, this_run
from stratafl.runtime.likeness import enclosed, likeness
from stratafl.runtime.schedule import joined_slots
from stratafl.runtime.speed import Speed
from stratafl.testing import difference, tiny_federation, tiny_model


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


ALONE = {}  # what runs of `made` end with alone, by its arguments


def alone(make):
    key = repr((make.args, make.keywords))
    ends = ALONE if make.func is made else {}
    if key not in ends:
        run(make, ends, key)
    return ends[key]


def check(makes, at_a_time=None):
    joined = {}
    works = (partial(run, make, joined, place) for place, make in enumerate(makes))
    Joining(lambda: at_a_time or len(makes)).drive(works)
    assert len(joined) == len(makes)
    for place, make in enumerate(makes):
        (tensors, lines), (joined_tensors, joined_lines) = alone(make), joined[place]
        assert difference(tensors, joined_tensors) == 0
        assert lines == joined_lines


@pytest.mark.budget(1, "runs alone and joined")
@pytest.mark.parametrize(
    "train",
    [
        pytest.param(
            LocalTraining(lr=0.1, momentum=0.9, weight_decay=0.01, clip=0.5, epochs=2, batch=4), marks=pytest.mark.slow
        ),
        LocalTraining(lr=0.01, optimizer="adam", optimizer_state="kept"),
    ],
)
def test_every_descent(train):
    check([partial(made, fedper(train=replace(train, lr=train.lr * k)), seed=k, batchnorm=False) for k in (1, 2)])


@pytest.mark.slow
def test_rates_of_one_method_take_one_step(monkeypatch):
    seen = []
    plain = CapturedStep.run
    monkeypatch.setattr(CapturedStep, "run", lambda self, scans: seen.append(len(scans)) or plain(self, scans))
    check([partial(made, fedavg(train=LocalTraining(lr=lr)), batchnorm=False, rounds=1) for lr in (0.01, 0.1, 0.2)])
    assert set(seen) == {3}


@pytest.mark.slow
def test_methods_with_the_same_local_step_are_joined_and_others_are_not(monkeypatch):
    seen = []
    plain = CapturedStep.run
    monkeypatch.setattr(CapturedStep, "run", lambda self, scans: seen.append(len(scans)) or plain(self, scans))
    check([partial(made, each, batchnorm=False, rounds=1) for each in (fedavg(), fedper(), local(), fedrep())])
    assert seen[:2] == [3, 1]  # FedRep begins with its head


def test_constants_that_the_clients_of_a_run_share_stay_those_of_the_run():
    """FedProx pulls to the server's model, which is another one for each seed."""
    check([partial(made, fedprox(strength=0.5), seed=seed, batchnorm=False) for seed in range(2)])


def test_windows_shorter_than_a_scan(monkeypatch):
    monkeypatch.setattr(inputs, "MIN_WINDOW_STEPS", 2)
    monkeypatch.setattr(inputs, "MAX_WINDOW_STEPS", 2)
    check([partial(made, fedavg(), seed=seed, batchnorm=False) for seed in range(2)])


def test_runs_on_the_same_data_read_it_once(monkeypatch):
    data, model = tiny_federation(dtype=torch.float32), tiny_model(batchnorm=False)
    makes = [partial(simulation, fedavg(), data, model, dtype=torch.float32, rounds=1, seed=seed) for seed in (0, 1)]
    asked = []
    plain = inputs.SlotPlan.sources
    monkeypatch.setattr(inputs.SlotPlan, "sources", lambda *given: asked.append(list(plain(*given))) or iter(asked[-1]))
    check(makes)
    assert all(len(found) == 1 for found in asked)


def test_a_step_that_cannot_be_captured_runs_as_it_is(monkeypatch):
    monkeypatch.setattr(captured.CapturedSteps, "scan", lambda self, scans: None)
    check([partial(made, fedavg(), seed=seed, batchnorm=False) for seed in range(2)])


@pytest.mark.slow
def test_a_step_for_which_memory_is_short_runs_as_it_is(monkeypatch, caplog):
    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(captured_step, "_blank", full)
    check([partial(made, fedavg(), seed=seed, batchnorm=False) for seed in range(2)])
    assert "OutOfMemoryError" in caplog.text


def test_a_step_that_changes_the_type_of_its_carry_is_not_joined():
    """Alone, the sum goes on in the wider type; tensors that stay where they are would round it after every step."""

    def own(seed):
        sim = made(fedavg(), seed=seed, batchnorm=False)
        ids = torch.arange(sim.setup.clients)
        task = sim.task(ids, sim.at(0))
        start = torch.zeros(len(ids))

        def step(carry, held, stack):
            return {"sum": carry["sum"].double() + 1 / 3}

        return task.scan(step, {"sum": start}, batch=2, epochs=2, name="widening")["sum"]

    kept = {}
    alone = [own(seed) for seed in (0, 1)]
    Joining(lambda: 2).drive((lambda seed=seed: kept.update({seed: own(seed)})) for seed in (0, 1))
    for seed, expected in enumerate(alone):
        assert kept[seed].dtype == expected.dtype == torch.float64
        assert torch.equal(kept[seed], expected)


def test_methods_that_chose_the_same_name_for_their_steps_keep_them_apart():
    steps = [
        lambda carry, held, stack: {"sum": carry["sum"] + stack.weight.sum(1)},
        lambda carry, held, stack: {"sum": carry["sum"] - stack.weight.sum(1)},
    ]
    kept = {}

    def own(number):
        sim = made(fedavg(), batchnorm=False)
        task = sim.task(torch.arange(sim.setup.clients), sim.at(0))
        start = torch.zeros(len(task))
        kept[number] = task.scan(steps[number], {"sum": start}, batch=2, name="mine")["sum"], task.sizes().float()

    Joining(lambda: 2).drive(partial(own, number) for number in range(2))
    for number, sign in enumerate((1, -1)):
        assert torch.equal(kept[number][0], sign * kept[number][1])


@pytest.mark.slow
def test_an_objective_without_a_name_is_not_joined():
    class Own(CrossEntropy):
        __hash__ = None

    method = fedavg(train=LocalTraining(objective=Own()))
    check([partial(made, method, seed=seed, batchnorm=False, rounds=1) for seed in range(2)])


@pytest.mark.slow
def test_models_of_the_same_shapes_that_compute_something_else_are_not_joined(monkeypatch):
    def with_dropout(p, seed):
        data = tiny_federation(seed=seed, dtype=torch.float32)
        linear = nn.Linear(data.x[0].numel(), 3)
        nn.init.constant_(linear.weight, 0.01)
        nn.init.zeros_(linear.bias)
        model = nn.Sequential(nn.Flatten(), nn.Dropout(p), linear)
        return simulation(fedavg(), data, model, dtype=torch.float32, rounds=1, seed=seed)

    seen = []
    plain = CapturedStep.run
    monkeypatch.setattr(CapturedStep, "run", lambda self, scans: seen.append(id(self)) or plain(self, scans))
    check([partial(with_dropout, p, seed) for seed, p in enumerate((0.1, 0.5, 0.5))])
    assert len(set(seen)) == 4  # training and scoring, of each model


# Company that changes


@pytest.mark.slow
def test_runs_of_different_length_and_later_ones():
    """Two at a time: two of four begin when others have ended."""
    check([partial(made, fedavg(), seed=k % 2, batchnorm=False, rounds=1 + k % 3) for k in range(4)], at_a_time=2)


@pytest.mark.slow
def test_nothing_of_a_run_that_has_ended_stays_while_others_go_on():
    gone, seen = [], []

    def short():
        data = replace(tiny_federation(dtype=torch.float32))  # other tests keep the one that is drawn once
        sim = simulation(fedavg(), data, tiny_model(batchnorm=False), dtype=torch.float32, rounds=1)
        gone.extend(weakref.ref(x) for x in (sim, sim.runtime, sim.runtime.federation, sim.runtime.engine))
        sim.run(Matrix())
        sim.runtime.close()

    def long():
        sim = made(fedavg(), seed=1, batchnorm=False, rounds=3)
        progress = sim.start()
        while progress.t < 3:
            progress, _ = sim.round(progress, Matrix())
            gc.collect()
            seen.append([ref() is not None for ref in gone])

    Joining(lambda: 2).drive(iter([short, long]))
    assert not any(seen[-1])


@pytest.mark.slow
def test_steps_of_runs_that_have_ended_do_not_pile_up():
    """Each momentum is a step of its own, with its tensors and on a GPU its graph."""
    most, plain = [], captured.CapturedSteps.scan

    def counted(self, scans):
        done = plain(self, scans)
        most.append(len(self))
        return done

    makes = [partial(made, fedavg(train=LocalTraining(momentum=k / 10)), batchnorm=False, rounds=1) for k in range(5)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captured.CapturedSteps, "scan", counted)
        patch.setattr(captured, "UNUSED", 2)
        Joining(lambda: 1).drive(partial(run, make, {}, name) for name, make in enumerate(makes))
    assert 2 < max(most) <= 2 + 2  # those of the run under way are training and scoring


@pytest.mark.slow
def test_all_steps_are_freed_at_the_end():
    before = sum(type(each) is CapturedStep for each in gc.get_objects())
    check([partial(made, fedavg(), seed=seed, batchnorm=False) for seed in range(2)])
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


def test_a_run_has_the_threads_and_the_context_of_whoever_drives_it(torch_threads):
    """Lanes have one thread each, and torch gives a new thread as many as were last set anywhere."""
    setting, found = ContextVar("setting", default=0), []
    token = setting.set(1)
    try:
        torch_threads(3)
        in_lanes(lambda _: None, [None], threads=1)
        Joining(lambda: 1).drive(iter([lambda: found.append((torch.get_num_threads(), setting.get()))]))
    finally:
        setting.reset(token)
    assert found == [(3, 1)]


@pytest.fixture
def ctrl_c():
    """Ctrl-C raises KeyboardInterrupt: a shell lets what it starts in the background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="signals go to no thread on this system")
@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_stops_a_run_that_never_asks_between_two_steps():
    seen = []

    def step(carry, held, stack):
        if not seen:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.3)
            seen.append("the step is done")
        return carry

    def work():
        sim = made(fedavg(), batchnorm=False)
        task = sim.task(torch.arange(6), sim.at(0))
        try:
            task.scan(step, {"x": torch.zeros(6)}, batch=2, steps=500)  # without a name it is not joined
            seen.append("in vain")
        except KeyboardInterrupt:
            seen.append("interrupted")

    with pytest.raises(KeyboardInterrupt):
        Joining(lambda: 1).drive(iter([work]))
    assert seen == ["the step is done", "interrupted"]


@pytest.mark.parametrize("granted", [False, True])
def test_ctrl_c_may_come_before_the_driver_waits_for_the_run(monkeypatch, granted):
    begun, seen = threading.Event(), []

    def work():
        until = time.monotonic() + 60
        try:
            begun.set()
            while time.monotonic() < until:
                this_run().stop_point()
                time.sleep(0.01)
            seen.append("in vain")
        except KeyboardInterrupt:
            seen.append("interrupted")
            raise

    def interrupted(run):
        monkeypatch.undo()
        if granted:
            with monkeypatch.context() as patch:
                patch.setattr(joining, "POLL_SECONDS", 0)
                run._grant(1)
            begun.wait()
        raise KeyboardInterrupt

    monkeypatch.setattr(JoinedRun, "advance", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Joining(lambda: 1).drive(iter([work]))
    assert seen == (["interrupted"] if granted else [])


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
        joined._room[None] = 3 * (run_bytes(sim) + data_bytes(sim))
        assert joined._most() == 3
        joined._room[None] -= 1
        assert joined._most() == 2
        joined._room[None] = 0
        assert joined._most() == 1
    assert JoinedRuns(18, jobs=4)._part == 5
    batches = 2 * inputs.MAX_WINDOW_BYTES["cpu"]
    assert room(sim, jobs=4) + batches == (room(sim) + batches) // 4  # processes share what there is


def test_a_run_that_finds_no_memory_is_opened_when_the_others_have_ended():
    order, tried = [], []
    joined = JoinedRuns(2)

    def first():
        sim = made(fedavg(), batchnorm=False, rounds=2)
        with joined.declared("first", sim):
            sim.run(Matrix())
            order.append("first")

    def scarce():
        tried.append(len(order))
        if not order:
            raise MemoryLimitError("data, model and libraries take more than the limit")
        return made(fedavg(), seed=1, batchnorm=False, rounds=1)

    def second():
        with joined.declared("second", joined.opened(scarce)):
            order.append("second")

    joined.drive(iter([first, second]))
    assert (order, tried) == (["first", "second"], [0, 1])
    order.clear()
    with pytest.raises(MemoryLimitError):  # alone: nobody will give any back
        JoinedRuns(1).drive(iter([second]))


def test_data_that_runs_share_counts_once():
    sim, other = made(fedavg(), batchnorm=False), made(fedavg(), data=1, batchnorm=False)
    data, each = data_bytes(sim), run_bytes(sim)
    joined = JoinedRuns(18)
    with joined.declared("a", sim), joined.declared("b", sim):
        joined._room[None] = 2 * data + 3 * each  # theirs, and that of a third one
        assert joined._most() == 3
        joined._room[None] -= 1
        assert joined._most() == 2
    with joined.declared("a", sim), joined.declared("b", other):
        joined._room[None] = 3 * data + 3 * each
        assert joined._most() == 3
        joined._room[None] -= 1
        assert joined._most() == 2


def test_a_model_that_gains_nothing_by_company_runs_alone(monkeypatch):
    sim = made(fedavg(), batchnorm=False)
    assert sim.runtime.joins
    monkeypatch.setattr("stratafl.runtime.runtime.MAX_JOINED_COLUMNS", 1)
    assert not sim.runtime.joins
    joined = JoinedRuns(18)
    with joined.declared("a", sim):
        assert joined._most() == 1
    assert not made(fedavg(), batchnorm=False, engine="loop").runtime.joins


def test_slots_of_joined_scans_hardly_ever_wait():
    assert joined_slots([4, 4, 4, 1], 10, "cpu") == 2  # 13 steps, of which the longest client takes 4: 3 would be busy
    assert joined_slots([10] * 1000, 10, "cpu") == 128
    assert joined_slots([10] * 63, 10, "cpu") == 64  # one of 64 waits
    assert joined_slots([10] * 60, 10, "cpu") == 64
    assert joined_slots([10] * 58, 10, "cpu") == 32  # 6 of 64 would wait
    assert joined_slots([10] * 63, 64, "cpu") == 32  # 2,048 samples
    assert joined_slots([0, 0], 10, "cpu") == joined_slots([], 10, "cpu") == 1


def test_steps_with_large_batches_have_fewer_slots():
    """An evaluation of all slots with 256 samples each would take gigabytes, which no limit counts."""
    assert joined_slots([10] * 1000, 256, "cpu") == 8
    assert joined_slots([10] * 1000, 256, "cuda") == 16
    assert joined_slots([10] * 1000, 100_000, "cpu") == 1


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


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BENCH_MODELS))
def test_runs_of_every_model_of_the_catalogue_can_be_joined(name):
    one, other = BENCH_MODELS[name].module(), BENCH_MODELS[name].module()
    assert likeness(one) is not None
    assert likeness(one) == likeness(other)


class Warm(nn.Module):
    """Its outputs grow with every batch that it has trained on."""

    def __init__(self, counts):
        super().__init__()
        self.counts, self.passes = counts, 0

    def forward(self, x):
        self.passes += self.training and self.counts
        return x * (1 + 0.01 * self.passes)


@pytest.mark.parametrize("counts", [False, True])
def test_runs_of_a_model_with_a_state_of_its_own_are_not_joined(counts):
    data = tiny_federation(dtype=torch.float32)
    model = nn.Sequential(nn.Flatten(), nn.Linear(data.x[0].numel(), 3), Warm(counts))
    assert simulation(fedavg(), data, model, rounds=1, dtype=torch.float32).runtime.joins is not counts


def test_models_with_other_fixed_numbers_are_not_alike():
    """A buffer that is not persistent is no column: one run would compute with that of another."""

    def model(value, persistent):
        made = nn.Linear(1, 1)
        made.register_buffer("scale", torch.full((2,), value), persistent=persistent)
        return made

    assert likeness(model(1.0, False)) == likeness(model(1.0, False)) != likeness(model(2.0, False))
    assert likeness(model(1.0, True)) == likeness(model(2.0, True))

    @dataclass
    class Factor:
        given: InitVar[float]

        def __post_init__(self, given):
            self.used = given

    models = [nn.Linear(1, 1), nn.Linear(1, 1)]
    for number, made in enumerate(models):
        made.factor = Factor(float(number))
    assert likeness(models[0]) != likeness(models[1])


def test_a_model_with_an_attribute_that_holds_itself_is_like_no_other():
    model = nn.Linear(1, 1)
    model.seen = []
    model.seen.append(model.seen)
    assert likeness(model) is None


@dataclass
class Widths:
    each: tuple[int, ...]


def test_attributes_of_a_plain_class_are_compared_by_their_fields():
    assert likeness(Scaled(Widths((1, 2)))) == likeness(Scaled(Widths((1, 2)))) is not None
    assert likeness(Scaled(Widths((1, 2)))) != likeness(Scaled(Widths((1, 3))))
    assert likeness(Scaled(Widths((torch.ones(1),)))) is None


def tied(place):
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    layers[2].weight = layers[place].weight
    return layers


def test_models_that_tie_other_weights_are_not_alike():
    assert likeness(tied(0)) == likeness(tied(0))
    assert likeness(tied(0)) != likeness(tied(1))
    shared = nn.Linear(4, 4)
    assert likeness(nn.Sequential(shared, shared)) != likeness(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))


def test_a_model_with_hooks_is_like_no_other():
    model = tiny_model()
    model.register_forward_hook(lambda *given: None)
    assert likeness(model) is None


def test_runs_of_other_precision_share_no_steps():
    assert Speed().key != Speed(compile="off").key != Speed(products={"conv": True}).key


def test_a_gpu_is_shared_by_a_few_processes(monkeypatch):
    """Because one of them always has something to compute; on a CPU they would only compete for cores."""
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    monkeypatch.setattr("stratafl.runs.joined.device_of", lambda name: "cuda" if name == "auto" else name)
    assert [usual_jobs(works, "auto") for works in (1, 5, 6, 9, 18, 100)] == [1, 1, 2, 3, 3, 3]
    assert usual_jobs(18, "cpu") == 1
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert usual_jobs(18, "cuda:0") == 2


def stepping(factor):
    """A step of somebody's own, whose name says nothing of the factor."""

    def step(carry, client, stack):
        return {"row": {n: factor * x for n, x in carry["row"].items()}}

    return step


def test_steps_of_one_name_that_close_over_other_numbers_are_not_alike():
    assert enclosed(stepping(2.0)) == enclosed(stepping(2.0)) != enclosed(stepping(3.0))
    assert enclosed(partial(stepping, factor=2.0)) != enclosed(partial(stepping, factor=3.0))
    assert enclosed(stepping(stepping(2.0))) == enclosed(stepping(stepping(2.0))) != enclosed(stepping(stepping(3.0)))
    assert enclosed(stepping(torch.ones(1))) == enclosed(stepping(torch.zeros(1)))  # the name has to tell them apart


@pytest.mark.parametrize("named", [False, True])
def test_attributes_that_are_no_fields_tell_records_apart(named):
    one, like, other = CrossEntropy(), CrossEntropy(), CrossEntropy()
    object.__setattr__(other, "smoothing", 0.5)
    assert one == other
    found = [enclosed(stepping(each), (each,) if named else ()) for each in (one, like, other)]
    assert found[0] == found[1] != found[2]
