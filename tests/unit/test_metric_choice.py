"""Which metric a run has: named, of a path that is trusted, or by the data; what it selects, stops and shows."""

import itertools
import logging
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import stratafl
from stratafl.algorithms import fedavg, local
from stratafl.config.experiment import Experiment, from_stored, names_code, paths_in, to_tables, with_settings
from stratafl.config.metric_choice import chosen_by_classes, metric_for, metric_of, stored_metric, with_metric
from stratafl.config.setting_tables import EvaluateTable, StopTable, parse_settings
from stratafl.config.trust import typed
from stratafl.data import from_clients, from_splits
from stratafl.errors import DataError, RecordError, RunError, StrataError, TrustError
from stratafl.evaluation.metrics import METRICS
from stratafl.report.chance import class_shares, majority
from stratafl.report.outcome import measure, read_outcome, what_counts
from stratafl.report.ranking import ranking
from stratafl.runs import Run, read_run
from stratafl.runs.comparison import Comparison
from stratafl.runs.json_files import read_lines
from stratafl.runs.prediction_file import read_predictions
from stratafl.runs.summary import counting, reached, scored, selected, stop_reason
from wording import mentions

_numbers = itertools.count()
TINY = ("run.rounds=2", "data.clients=3", "data.partition=iid", "model.hidden=[4]", "train.batch=100")
COST = """
def cost(y_true, y_score):
    return float((y_score.argmax(1) != y_true).mean())
cost.larger_is_better = False
class Cost: pass
"""


def made(*settings):
    return with_settings(Experiment(), [*TINY, *settings])


def finished(folder, *settings, trust=False):
    with Run.create(made(*settings), folder, trust=trust) as run:
        list(run.rounds())
    return folder


def labelled(*counts):
    """A federation whose two clients have so many samples of each class."""
    y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    x = torch.randn(len(y), 3, generator=torch.Generator().manual_seed(0))
    return from_clients([(x, y), (x, y)], validation=0.2, test=0.2, seed=0)


def numbered():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    return from_clients([(x, x[:, 0]), (x, x[:, 0])], validation=0.2, test=0.2, seed=0)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """The path of a metric in a module of the current folder, which no other module ever had."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"own_costs_{next(_numbers)}"
    Path(f"{name}.py").write_text(COST)
    yield f"{name}:cost"
    sys.modules.pop(name, None)


# By the data


@pytest.mark.parametrize(
    ("federation", "asked", "name", "average"),
    [
        (labelled(50, 50), "auto", "accuracy", "samples"),
        (labelled(60, 40), "auto", "accuracy", "samples"),
        (labelled(62, 38), "auto", "balanced_accuracy", "samples"),
        (labelled(20, 70, 10), "auto", "balanced_accuracy", "samples"),
        (labelled(90, 10), "plain", "accuracy", "samples"),
        (labelled(90, 10), "auroc", "auroc", "clients"),
        (numbered(), "auto", "mse", "samples"),
        (numbered(), "plain", "mse", "samples"),
        (numbered(), "mae", "mae", "samples"),
    ],
)
def test_the_metric_follows_the_data_unless_it_is_named(federation, asked, name, average):
    evaluate = with_metric(made(f"evaluate.metric={asked}"), federation).evaluate
    assert (evaluate.metric, evaluate.average) == (name, average)
    assert evaluate.better == ("larger" if METRICS[name].larger_is_better else "smaller")
    kept = with_metric(made(f"evaluate.metric={asked}", "evaluate.average=clients"), federation).evaluate
    assert kept.average == "clients"


def test_test_samples_do_not_decide_the_metric():
    x, even, uneven = torch.zeros(8, 3), torch.arange(8) % 2, torch.zeros(8, dtype=torch.int64)
    federation = from_splits([{"train": (x, even), "validation": (x, even), "test": (x, uneven)}] * 2, classes=2)
    assert metric_for(EvaluateTable(), federation).name == "accuracy"


def test_a_choice_by_the_data_is_said_and_a_named_one_is_not(caplog):
    with caplog.at_level(logging.WARNING, "stratafl"):
        with_metric(made("evaluate.metric=balanced_accuracy"), labelled(90, 10))
        with_metric(made(), labelled(50, 50))
        assert caplog.messages == []
        with_metric(made(), labelled(90, 10))
    (said,) = caplog.messages
    assert mentions(said, "'0'", "90.0%", "balanced accuracy", "--metric auroc")
    assert chosen_by_classes(labelled(90, 5, 5)).endswith("--metric accuracy")


@pytest.mark.parametrize(
    ("federation", "setting", "message"),
    [
        (numbered(), "evaluate.metric=auroc", "'auroc'.*mse, rmse"),
        (labelled(5, 5), "evaluate.metric=mae", "'mae'.*accuracy, balanced_accuracy"),
        (labelled(5, 5), "stop.target=2", "stop.target .*1 .*'accuracy'.*2"),
        (numbered(), "stop.target=0.5", "stop.target .*--metric mae"),
    ],
)
def test_what_does_not_fit_the_data_is_refused(federation, setting, message):
    with pytest.raises(RecordError, match=message):
        with_metric(made(setting), federation)


@pytest.mark.parametrize("name", ["aurok", "sensitivity@2", "sensitivity@x"])
def test_a_name_is_checked_where_it_is_set(name):
    with pytest.raises(StrataError, match=r"auroc|between 0 and 1"):
        made(f"evaluate.metric={name}")


# Of a path


def test_a_metric_of_a_path_obeys_trust(own):
    assert paths_in(parse_settings([f"evaluate.metric={own}"])) == [own]
    assert names_code(made(f"evaluate.metric={own}"))
    assert not names_code(made())
    with pytest.raises(TrustError, match=own):
        metric_of(own)
    assert own.partition(":")[0] not in sys.modules
    metric = metric_of(own, typed([own]))
    assert (metric.name, metric.title, metric.larger_is_better) == (own, "cost", False)
    with pytest.raises(RecordError, match=r"Cost.*y_true, y_score"):
        metric_of(own.replace(":cost", ":Cost"), True)
    with pytest.raises(RecordError, match="standard library"):
        metric_of("os:getcwd", True)
    turned = EvaluateTable(metric=own, better="larger")
    assert metric_for(turned, labelled(5, 5), True).larger_is_better
    with pytest.raises(RecordError, match="'ece'"):
        metric_for(EvaluateTable(metric="ece", better="larger"), labelled(5, 5))


def test_a_run_by_your_own_metric_is_reported_without_its_code_and_resumed_with_trust(own, tmp_path):
    folder = finished(tmp_path / "run", f"evaluate.metric={own}", trust=typed([own]))
    sys.modules.pop(own.partition(":")[0])
    (tmp_path / f"{own.partition(':')[0]}.py").rename(tmp_path / "away.py")
    one = read_outcome(folder)
    line = counting(one.lines, one.evaluate)
    assert one.numbers()["score"] == line[f"test.deployed.client_{own}"]
    assert one.numbers()["score"] == pytest.approx(1 - line["test.deployed.client_accuracy"])
    assert not one.metric.larger_is_better
    assert len(one.by_client()) == 3
    assert "test cost" in f"test {measure(one.metric)}"
    with pytest.raises(RecordError):
        read_predictions(folder).value(one.metric)
    with pytest.raises(TrustError):
        Run.open(folder)
    (tmp_path / "away.py").rename(tmp_path / f"{own.partition(':')[0]}.py")
    with Run.open(folder, trust=True) as run:
        assert run.finished


# Rounds


def lines(*values, place="validation.deployed", key="client_auroc", **more):
    return [
        {"round": i, f"{place}.{key}": value, "validation.deployed.loss": 10.0 - i, "test.deployed.loss": 1.0, **more}
        for i, value in enumerate(values, 1)
    ]


def test_the_metric_selects_the_round_and_smaller_may_be_better():
    auroc, brier = EvaluateTable(metric="auroc", average="clients"), EvaluateTable(metric="brier", average="samples")
    assert selected(lines(0.5, 0.9, 0.9, None), auroc)["round"] == 3  # of a tie by the loss
    assert selected(lines(0.5, 0.2, None, 0.2, key="brier"), brier)["round"] == 4
    assert selected(lines(0.3, 0.7, key="auroc"), auroc)["round"] == 2  # over all samples, since no client has it
    assert selected(lines(None, None, None), auroc)["round"] == 3  # by the loss
    balanced = EvaluateTable(metric="balanced_accuracy")
    assert selected(lines(0.5, 0.5, 0.4, key="balanced_accuracy"), balanced)["round"] == 2  # of a tie by the loss
    assert selected(lines(0.5, 0.5, 0.6, key="balanced_accuracy"), balanced)["round"] == 3
    assert selected(lines(0.5, 0.5, 0.4, key="accuracy"), EvaluateTable(metric="accuracy"))["round"] == 2
    assert selected(lines(0.3, 0.7, key="accuracy"), EvaluateTable(metric="plain", average="clients"))["round"] == 2


def test_targets_and_patience_are_of_the_metric():
    evaluate = EvaluateTable(metric="brier", average="samples")
    falling = lines(0.4, 0.3, 0.2, key="brier")
    reason = stop_reason(falling, StopTable(target=0.2), evaluate)
    assert reason == "validation Brier score 0.2 reached the target 0.2"
    assert stop_reason(falling, StopTable(target=0.1), evaluate) is None
    assert stop_reason(lines(0.2, 0.3, 0.3, key="brier"), StopTable(patience=2), evaluate).startswith("no gain")
    assert stop_reason(falling, StopTable(patience=2), evaluate) is None
    on_test = [
        dict(line, **{"seconds.train": 1, "seconds.server": 0, "bytes.down": 1, "bytes.up": 1})
        for line in lines(0.4, 0.3, 0.2, place="test.deployed", key="brier")
    ]
    assert reached(on_test, -0.3, evaluate).round == 2
    assert scored(on_test[2], evaluate) == 0.2


# Runs


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    return finished(tmp_path_factory.mktemp("metric") / "run", "evaluate.metric=auroc", "data.new_clients=1")


@pytest.mark.slow
def test_lines_hold_the_metric_of_every_stage_and_client(example):
    (*_, line), found = read_lines(example / "rounds.jsonl"), read_predictions(example)
    assert line["round"] == read_run(example, "newest")[1].t
    for place in ("test.deployed", "validation.received", "test.trained", "new.test.trained", "new.test.deployed"):
        assert {f"{place}.auroc", f"{place}.client_auroc", f"{place}.std", f"{place}.accuracy"} <= set(line)
    again = stratafl.load(example, round="newest")
    each = again.predictions().by_client(METRICS["auroc"])
    assert line["test.deployed.client_auroc"] == pytest.approx(np.mean(list(each.values())), abs=1e-12)
    assert line["test.deployed.std"] == pytest.approx(np.std(list(each.values())), abs=1e-12)
    assert line["test.deployed.worst10"] == pytest.approx(min(each.values()), abs=1e-12)
    assert line["test.deployed.auroc"] == pytest.approx(again.metric("auroc", average="samples"), abs=1e-12)
    clients = [each for each in read_lines(example / "clients.jsonl") if each["round"] == line["round"]]
    assert {one["client"]: one["test.deployed.auroc"] for one in clients if "new" not in one} == pytest.approx(each)
    assert any("new" in one and "test.trained.auroc" in one for one in clients)
    assert read_outcome(example).by_client() == pytest.approx(found.by_client(METRICS["auroc"]), abs=1e-12)


def test_hits_and_loss_are_those_of_a_run_by_accuracy(example, tmp_path):
    plain = finished(tmp_path / "run", "data.new_clients=1")
    for one, other in zip(*(read_lines(folder / "rounds.jsonl") for folder in (example, plain)), strict=True):
        for key in (key for key in other if key.endswith(("accuracy", ".loss"))):
            assert one[key] == pytest.approx(other[key], abs=1e-6), key


def test_a_comparison_chooses_one_metric_for_all_its_seeds(tmp_path):
    comparison = Comparison.create(tmp_path / "compare", made(), ["fedavg", "local"], 3, {})
    assert {member.experiment.evaluate.metric for member in comparison.members()} == {"accuracy"}


def test_the_chosen_metric_is_stored_and_the_comparison_is_resumed(tmp_path):
    comparison = Comparison.create(tmp_path / "compare", made(), ["fedavg"], 1, {})
    (member,) = comparison.members()
    with member.run() as run:
        next(run.rounds())
    stored = to_tables(read_outcome(member.folder) and run.experiment)["evaluate"]
    assert (stored["metric"], stored["average"], stored["better"]) == ("accuracy", "samples", "larger")
    assert Comparison.open(tmp_path / "compare").base.evaluate.metric == "accuracy"


def test_an_old_run_is_by_accuracy_whatever_its_classes():
    old = to_tables(made())
    del old["evaluate"]["metric"], old["evaluate"]["better"]
    old["evaluate"]["average"] = "samples"
    evaluate = from_stored(old).evaluate
    assert evaluate.metric == "plain"
    assert [stored_metric(evaluate, regression).name for regression in (False, True)] == ["accuracy", "mse"]


def test_fedavg_has_a_global_model_and_fedper_has_none(tmp_path):
    folder = finished(tmp_path / "run", "algorithm.name=fedavg", "evaluate.stage=global")
    one = read_outcome(folder)
    assert one.numbers()["score"] == one.numbers()["received"]
    assert read_predictions(folder).value(METRICS["accuracy"]) == pytest.approx(one.numbers()["score"])
    with pytest.raises(RecordError, match=r"'global'.*received, trained, deployed"):
        Run.create(made("algorithm.name=fedper", "evaluate.stage=global"), tmp_path / "other")


# Tables


def outcomes(tmp_path, *settings):
    return [read_outcome(finished(tmp_path / str(i), *each)) for i, each in enumerate(settings)]


@pytest.mark.slow
def test_equal_scores_share_a_place_and_one_answer_is_told(example, tmp_path):
    still = ("train.lr=1e-9",)  # the initial model, which does not move
    found = outcomes(tmp_path, still, (*still, "train.epochs=2"), ("train.lr=0.5", "model.hidden=[16]"))
    ranks = ranking(found)
    assert [rank.place for rank in ranks] == [1, 2, 2]
    with pytest.raises(RunError, match=r"accuracy.*auroc"):
        ranking([*found, read_outcome(example)])
    told = replace(found[0])
    told.__dict__["one_answer"] = True
    (rank, *_) = ranking([told])
    assert rank.title.endswith("(one answer)")


def test_the_majority_class_is_each_clients_own():
    assert class_shares(torch.tensor([[3, 1], [0, 0]])).tolist() == [[0.75, 0.25], [0.75, 0.25]]


def test_the_row_of_the_majority_class_is_what_counting_gives(example, tmp_path):
    one = read_outcome(finished(tmp_path / "run", "data.partition=dirichlet"))
    row = majority(ranking([one]))
    federation = read_run(one.folder)[0].runtime.federation
    train, test = federation.class_counts("train"), federation.class_counts("test")
    hits = test.gather(1, train.argmax(1, keepdim=True))[:, 0]
    assert row.numbers["score"].mean == pytest.approx(float(hits.sum() / test.sum()))
    assert row.numbers["worst10"].mean == pytest.approx(float((hits / test.sum(1)).min()))
    assert majority(ranking([read_outcome(example)])).numbers["score"].mean == 0.5


def test_captions_name_the_metric_and_the_unit_of_scaled_targets(example, tmp_path):
    assert mentions(what_counts([read_outcome(example)]), "deployed", "clients", "AUROC")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3)).astype("float32")
    np.savez(tmp_path / "d.npz", x=x, y=100 * x[:, 0] + rng.normal(size=90).astype("float32"))
    scaled = finished(tmp_path / "run", f"data.name={tmp_path / 'd.npz'}", "data.targets=scaled")
    assert what_counts([read_outcome(scaled)]).partition(";")[2]
    assert majority(ranking([read_outcome(scaled)])) is None


# In Python


def test_fit_selects_by_a_metric_and_tells_any_other(caplog):
    def wrong(y, p):
        return float((p.argmax(1) != y).mean())

    wrong.larger_is_better = False
    uneven = labelled(45, 15)
    with caplog.at_level(logging.WARNING, "stratafl"):
        fitted = stratafl.fit(fedavg(), uneven, nn.Linear(3, 2), rounds=2)
    assert mentions(caplog.text, "metric='auroc'")
    assert fitted.selected["round"] == fitted.round
    best = max(line["validation.deployed.balanced_accuracy"] for line in fitted.history)
    assert fitted.selected["validation.deployed.balanced_accuracy"] == best
    assert fitted.metric("accuracy") == pytest.approx(fitted.accuracy)
    assert fitted.metric(wrong, average="samples") == pytest.approx(1 - fitted.accuracy)
    assert fitted.metric("accuracy", "validation", client=1) == pytest.approx(
        1 - fitted.metric(wrong, "validation", client=1)
    )
    assert fitted.confusion(0).sum() == uneven.counts("test")[0]
    assert (fitted.confusion(0) + fitted.confusion(1)).tolist() == fitted.confusion().tolist()
    for refused in (lambda: fitted.metric("auroc", "train"), lambda: fitted.confusion(7), lambda: fitted.metric("mae")):
        with pytest.raises((DataError, StrataError)):
            refused()
    by_own = stratafl.fit(local(), labelled(20, 20), nn.Linear(3, 2), rounds=2, metric=wrong)
    values = [line["validation.deployed.client_own:wrong"] for line in by_own.history]
    assert by_own.selected["validation.deployed.client_own:wrong"] == min(values)
