"""All metrics and the confusion matrix, from stored predictions; and what a tuning chose."""

import json

import pytest
import torch
from seen import heat_map, series
from written_runs import EVIL, write_run

from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.predictions import Predictions
from stratafl.report import gather
from stratafl.report.metric_tables import all_metrics, confusion_chart, metrics_table
from stratafl.report.page import page
from stratafl.report.tuned import TUNING_RESULT, rates_chart, tuning_table
from stratafl.runs.prediction_file import write_predictions

Y = [0, 0, 0, 1]
GIVEN = [0, 1, 1, 1]  # two samples of class 0 are taken for class 1


def predicted():
    scores = torch.tensor([[0.8, 0.2] if given == 0 else [0.3, 0.7] for given in GIVEN])
    return Predictions(torch.tensor([0, 1, 1, 1]), torch.tensor(Y), scores)


def written(place, **more):
    rows = [[2, 0], [0, 2]]
    held = {
        "classes": 2,
        "clients": 2,
        "counts": {"train": rows, "test": [[1, 0], [2, 1]]},
        "class_names": ["alive", EVIL],
    }
    folder = write_run(place / "fedper", [0.75], clients=2, holdings=held, **more)
    write_predictions(folder, {"test": predicted()}, 1, "deployed")
    return gather([place])


def test_metrics_are_over_all_samples_and_over_clients():
    found = all_metrics([predicted()], [METRICS["accuracy"], METRICS["auroc"]])
    assert found["accuracy"].samples.mean == pytest.approx(0.5)
    assert found["accuracy"].clients.mean == pytest.approx((1 + 1 / 3) / 2)
    assert found["auroc"].samples.mean == pytest.approx(2 / 3)  # of three pairs one is right and two are ties
    assert found["auroc"].clients.mean == pytest.approx(0.5)  # the first client has one class, so it does not count


def test_a_table_of_all_metrics(tmp_path):
    table = metrics_table(written(tmp_path))
    row = dict(zip(table.head, table.rows[0], strict=True))
    assert (row["accuracy"].shown, row["accuracy"].below) == ("50.0 %", "66.7 %")
    assert row["AUROC"].shown == "0.667"
    assert "Lower is better: log-loss" in table.caption


def test_a_confusion_matrix_by_the_names_of_classes(tmp_path):
    study = written(tmp_path)
    chart = confusion_chart(study, study.ranks[0])
    columns, rows, shares = heat_map(chart)
    assert columns == rows
    assert rows[0] == "alive"
    assert shares == [[pytest.approx(1 / 3, abs=1e-4), pytest.approx(2 / 3, abs=1e-4)], [0, 1]]
    assert EVIL not in page(study)


def test_without_predictions_there_is_neither(tmp_path):
    study = gather([write_run(tmp_path / "fedper", [0.75])])
    assert metrics_table(study) is None
    assert confusion_chart(study, study.ranks[0]) is None


def test_what_a_tuning_chose_and_its_scores_over_the_learning_rate(tmp_path):
    write_run(tmp_path / "winners", [0.75])
    trials = [
        {"number": i, "settings": {"train.lr": lr}, "rounds": 5, "steps": 9, "score": score}
        for i, (lr, score) in enumerate(((0.01, 0.5), (0.1, 0.7), (1.0, 0.6)))
    ]
    method = {"method": "fedper", "settings": {"train.lr": 0.1}, "default": {"train.lr": 0.05}, "validation": 0.7}
    method |= {"sides": {"train.lr": "inside"}, "trials": trials, "tuned": {"1": 0.8}, "untuned": {"1": 0.6}}
    (tmp_path / TUNING_RESULT).write_text(json.dumps({"methods": [method]}), encoding="utf-8")
    study = gather([tmp_path])
    (row,) = tuning_table(study.tuned).rows
    assert [cell.shown for cell in row[:6]] == ["fedper", "learning rate = 0.1", "70.0 %", "80.0 %", "60.0 %", "3"]
    assert series(rates_chart(study.tuned))["fedper"] == [(0.01, 0.5), (0.1, 0.7), (1.0, 0.6)]
    assert 'id="tuning"' in page(study)
