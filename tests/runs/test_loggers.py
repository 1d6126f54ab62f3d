"""Loggers: TensorBoard for real, the services by stand-ins; a resumed run sends no round twice."""

import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest

from stratafl.config.experiment import Experiment, with_settings
from stratafl.errors import RunError, UnknownNameError
from stratafl.report import ranking, read_outcome
from stratafl.runs import Run
from stratafl.runtime.joining import Joining

SMALL = ("data.clients=3", "model.hidden=[4]", "run.rounds=4", "run.checkpoint=2", "algorithm.name=local")
SMALL += ("data.partition=iid", "train.batch=400")


def killed_and_resumed(folder, name):
    """A run whose third round was written but not committed when it was killed, and then repeated; its lines."""
    run = Run.create(with_settings(Experiment(), [*SMALL, f'log.to=["{name}"]']), folder)
    for line in run.rounds():
        if line["round"] == 3:
            break
    run._loggers.close()
    run.save = lambda: None  # nothing of the third round is committed
    run.close()
    with Run.open(folder) as again:
        assert [line["round"] for line in again.rounds()] == [3, 4]
        return again.history


@pytest.mark.slow
def test_tensorboard_has_every_round_once(tmp_path):
    history = killed_and_resumed(tmp_path / "run", "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    seen = events.Scalars("test.deployed/accuracy")
    assert [event.step for event in seen] == [1, 2, 3, 4]
    expected = [line["test.deployed.accuracy"] for line in history]
    assert [event.value for event in seen] == pytest.approx(expected, abs=1e-6)
    assert "train/loss" in events.Tags()["scalars"]


class FakeWandb(ModuleType):
    """Keeps runs by their id, as the service does."""

    def __init__(self):
        super().__init__("wandb")
        self.runs, self.active = {}, []

    def init(self, *, id, resume, reinit=None, **given):
        assert resume == "allow"
        if self.active and reinit != "create_new":
            return self.active[0]
        sent = self.runs.setdefault(id, [])
        run = SimpleNamespace(step=sent[-1][0] + 1 if sent else 0, finish=lambda: self.active.remove(run), given=given)
        self.active.append(run)
        run.log = lambda numbers, step: sent.append((step, numbers))
        return run


def test_weights_and_biases_is_told_every_round_once(tmp_path, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    history = killed_and_resumed(tmp_path / "run", "wandb")
    (sent,) = fake.runs.values()  # resumed under the same id
    assert [step for step, _ in sent] == [1, 2, 3, 4]
    assert [n["test.deployed.accuracy"] for _, n in sent] == [line["test.deployed.accuracy"] for line in history]


@pytest.mark.slow
def test_joined_runs_are_told_apart_by_weights_and_biases(tmp_path, monkeypatch):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    folders = [tmp_path / f"run{seed}" for seed in range(2)]

    def work(seed, folder):
        settings = [*SMALL, 'log.to=["wandb"]', f"run.seed={seed}"]
        with Run.create(with_settings(Experiment(), settings), folder) as run:
            list(run.rounds())

    Joining(lambda: 2).drive(partial(work, *each) for each in enumerate(folders))
    assert [[step for step, _ in sent] for sent in fake.runs.values()] == [[1, 2, 3, 4]] * 2
    assert not fake.active


class FakeClient:
    """Keeps runs by their tags, and every metric that was sent."""

    runs: ClassVar[dict] = {}

    def get_experiment_by_name(self, name):
        return SimpleNamespace(experiment_id="7") if self.runs else None

    def create_experiment(self, name):
        return "7"

    def search_runs(self, experiments, filter_string):
        found = [
            run for run in self.runs.values() if filter_string == f"tags.`stratafl.key` = '{run.tags['stratafl.key']}'"
        ]
        return [SimpleNamespace(info=SimpleNamespace(run_id=run.name)) for run in found]

    def create_run(self, experiment, tags, run_name):
        made = SimpleNamespace(name=f"run{len(self.runs)}", tags=tags, sent=[], params={}, ended=0)
        self.runs[made.name] = made
        return SimpleNamespace(info=SimpleNamespace(run_id=made.name))

    def log_param(self, run, name, value):
        self.runs[run].params[name] = value

    def get_metric_history(self, run, key):
        return [metric for metric in self.runs[run].sent if metric.key == key]

    def log_batch(self, run, metrics):
        self.runs[run].sent += metrics

    def set_terminated(self, run):
        self.runs[run].ended += 1


def test_mlflow_is_told_every_round_once(tmp_path, monkeypatch):
    monkeypatch.setattr(FakeClient, "runs", {})
    entities, tracking = ModuleType("mlflow.entities"), ModuleType("mlflow.tracking")
    entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step)
    tracking.MlflowClient = FakeClient
    for name, module in (
        ("mlflow", ModuleType("mlflow")),
        ("mlflow.entities", entities),
        ("mlflow.tracking", tracking),
    ):
        monkeypatch.setitem(sys.modules, name, module)
    history = killed_and_resumed(tmp_path / "run", "mlflow")
    (run,) = FakeClient.runs.values()
    sent = [(metric.step, metric.value) for metric in run.sent if metric.key == "test.deployed.accuracy"]
    assert sent == [(line["round"], line["test.deployed.accuracy"]) for line in history]
    assert (run.params["algorithm.name"], run.ended) == ("local", 2)


def test_a_service_that_fails_is_left_out_and_not_the_run(tmp_path, monkeypatch, caplog):
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)

    def refuse(**_):
        raise ConnectionError("no network\nat all")

    monkeypatch.setattr(fake, "init", refuse)
    with Run.create(with_settings(Experiment(), [*SMALL, 'log.to=["wandb"]']), tmp_path / "run") as run:
        assert len(list(run.rounds())) == 4
    assert [record.args[::2] for record in caplog.records] == [("wandb", "no network at all")]


def test_what_is_not_installed_or_unknown_is_refused_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(RunError, match=r"'stratafl\[wandb\]'"):
        Run.create(with_settings(Experiment(), [*SMALL, 'log.to=["wandb"]']), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(UnknownNameError, match="did you mean 'tensorboard'"):
        with_settings(Experiment(), ['log.to=["tensorbord"]'])


@pytest.mark.slow
def test_where_lines_go_makes_no_other_method(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", FakeWandb())
    for seed, to in ((0, "[]"), (1, '["wandb"]')):
        with Run.create(
            with_settings(Experiment(), [*SMALL, f"run.seed={seed}", f"log.to={to}"]), tmp_path / to
        ) as run:
            list(run.rounds())
    (rank,) = ranking([read_outcome(tmp_path / to) for to in ("[]", '["wandb"]')])
    assert rank.seeds == (0, 1)
