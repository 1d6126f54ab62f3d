"""Which engine a CPU run takes: measured once, kept, never against an explicit setting, and the same when resumed."""

import json

import pytest
import torch
from torch import nn

from stratafl.algorithms import fedavg
from stratafl.config.assemble import simulation_of
from stratafl.config.experiment import Experiment, with_settings
from stratafl.data import digits_federation
from stratafl.execute import simulation
from stratafl.models import build
from stratafl.runs.environment import misstated
from stratafl.runtime import LoopEngine, StackedEngine, choice
from stratafl.runtime.choice import Measured, compare_engines, is_measured
from stratafl.runtime.speed import Speed

SLOW, FAST = Measured("stacked", 0.01, 0.02), Measured("loop", 0.02, 0.01)


@pytest.fixture
def found(monkeypatch, tmp_path):
    """What measuring gives, and how often it was asked; with a cache of its own."""
    asked = []

    def compared(*_):
        asked.append(FAST)
        return asked[0]

    monkeypatch.setenv("STRATAFL_CACHE", str(tmp_path))
    monkeypatch.delenv(choice.SWITCH)
    monkeypatch.setattr(choice, "_known", {})
    monkeypatch.setattr(choice, "compare_engines", compared)
    return asked


def made(model="cnn", **options):
    federation = options.pop("federation", None) or digits_federation(clients=6)
    return simulation(fedavg(), federation, lambda: build(model, shape=(1, 8, 8), classes=10), rounds=1, **options)


@pytest.mark.slow
def test_the_faster_engine_is_taken_and_not_measured_again(found, tmp_path):
    assert isinstance(made().runtime.engine, LoopEngine)
    assert made().runtime.tuning["engine"] == "loop"
    assert len(found) == 1
    choice._known.clear()  # another process
    assert isinstance(made().runtime.engine, LoopEngine)
    assert len(found) == 1
    (entry,) = (tmp_path / "engines").iterdir()
    assert json.loads(entry.read_text())["engine"] == "loop"


@pytest.mark.parametrize(
    "options", [{"dtype": torch.float64}, {"model": "lenet"}, {"federation": digits_federation(clients=2)}]
)
def test_other_geometry_is_measured_for_itself(options, found):
    made()
    made(**options)
    assert len(found) == 2


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: "[" * 5000,
        lambda d: json.dumps(d | {"engine": "fast"}),
        lambda d: json.dumps(d | {"loop": -1.0}),
        lambda d: json.dumps(d | {"key": {}}),
        lambda d: json.dumps(d | {"more": "x" * choice.MAX_ENTRY_BYTES}),
    ],
)
def test_a_damaged_entry_is_measured_again(damage, found, tmp_path):
    made()
    (entry,) = (tmp_path / "engines").iterdir()
    whole = entry.read_text()
    entry.write_text(damage(json.loads(whole)))
    choice._known.clear()
    made()
    assert len(found) == 2
    assert [file.name for file in (tmp_path / "engines").iterdir()] == [entry.name]
    assert entry.read_text() == whole


def test_of_two_processes_the_first_decides(tmp_path):
    entry, key = tmp_path / "engines" / "x.json", {"batch": 10}
    assert choice._keep(entry, key, SLOW) == SLOW
    assert choice._keep(entry, key, FAST) == SLOW
    assert [file.name for file in entry.parent.iterdir()] == ["x.json"]


def test_without_a_cache_it_holds_for_the_process(found, monkeypatch):
    monkeypatch.setenv("STRATAFL_CACHE", "/dev/null/nowhere")
    assert isinstance(made().runtime.engine, LoopEngine)
    made()
    assert len(found) == 1


@pytest.mark.parametrize(
    "options",
    [{"engine": "stacked"}, {"speed": Speed(convolutions="product")}, {"speed": Speed(products={})}, {"model": "mlp"}],
)
def test_settings_earlier_parts_and_small_models_are_not_measured(options, found):
    assert isinstance(made(**options).runtime.engine, StackedEngine)
    assert found == []


def test_few_clients_on_many_cores_stay_stacked(found, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 12)
    assert isinstance(made().runtime.engine, StackedEngine)
    assert found == []


def test_models_that_may_gain_are_measured(found):
    assert not is_measured(nn.Sequential(nn.Linear(64, 200), nn.BatchNorm1d(200), nn.Linear(200, 10)))
    assert is_measured(nn.Linear(1024, 1024))
    assert is_measured(nn.Conv2d(1, 1, 1))
    assert is_measured(nn.LSTM(2, 2))


@pytest.mark.parametrize(
    ("eager", "traced", "loop", "engine"),
    [(1.0, 1.0, 0.96, "stacked"), (1.0, 0.5, 0.8, "stacked"), (1.0, 0.9, 0.8, "loop"), (9.0, 0.5, 8.0, "loop")],
)
def test_the_loop_must_win_clearly_and_against_the_trace_of_short_steps(eager, traced, loop, engine, monkeypatch):
    """Seconds of one client; four are stacked."""
    now = {"stacked": eager, "loop": loop / 4}
    monkeypatch.setattr(choice, "SHORT", 5.0)
    monkeypatch.setattr(choice, "seconds", lambda step: now[step])
    monkeypatch.setattr(choice, "_trace", lambda *_: now.update(stacked=traced))
    assert compare_engines("stacked", "loop", None, 4).engine == engine


@pytest.mark.parametrize(("loop", "calls"), [(0.9, 2), (0.4, 4)])
def test_long_steps_that_are_far_apart_are_timed_once(loop, calls, monkeypatch):
    """0.25 s for each of four stacked clients; 0.9 is far from it, 0.4 is not."""
    timed = []
    monkeypatch.setattr(choice, "seconds", lambda step: timed.append(step) or (loop if step == "loop" else 1.0))
    assert compare_engines("stacked", "loop", None, 4).engine == "stacked"
    assert len(timed) == calls


@pytest.mark.slow
def test_both_engines_can_be_timed(monkeypatch, tmp_path):
    monkeypatch.delenv(choice.SWITCH)
    monkeypatch.setenv("STRATAFL_CACHE", str(tmp_path))
    monkeypatch.setattr(choice, "CLEARLY", 1e9)  # the loop wins, also against a trace
    monkeypatch.setattr(choice, "REPEATS", 1)
    engine = made().runtime.engine
    assert isinstance(engine, LoopEngine)
    assert engine.client_seconds > 0


def test_a_resumed_run_takes_the_engine_it_had(found):
    experiment = with_settings(Experiment(), ["model.name=cnn", "data.clients=3", "run.rounds=1"])
    first = simulation_of(experiment).runtime
    assert first.tuning["engine"] == "loop"
    found.clear()
    assert isinstance(simulation_of(experiment, first.tuning).runtime.engine, LoopEngine)
    old = {"products": first.tuning["products"], "compiled": None}  # of a version that always stacked
    assert isinstance(simulation_of(experiment, old).runtime.engine, StackedEngine)
    assert found == []


def test_the_record_of_a_run_is_checked():
    assert misstated({"tuning": {"products": {}, "compiled": None, "engine": "loop"}}) is None
    assert misstated({"tuning": {"engine": "fast"}}) == "tuning.engine is neither 'stacked' nor 'loop'"
