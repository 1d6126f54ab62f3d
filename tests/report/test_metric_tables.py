"""The ranking on the console with metrics: places, the majority class, one answer, and how values are written."""

import io

import pytest
from rich.console import Console
from written_runs import write_run

from stratafl.cli.display import scores_so_far
from stratafl.cli.result_tables import console_ranking
from stratafl.evaluation.metrics import METRICS
from stratafl.report import gather
from stratafl.report.formats import difference_text, limits, score_text, spread
from stratafl.report.intervals import Interval, Spread
from stratafl.runs.loggers import grouped

HELD = {"classes": 2, "clients": 4, "counts": {split: [[3, 1]] * 4 for split in ("train", "test")}}


def printed(place, width):
    study = gather([place])
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(console_ranking(study, width))
    return console.file.getvalue().splitlines()


def test_equal_methods_share_a_place_and_the_majority_class_has_none(tmp_path):
    for name, accuracy in (("fedavg", 0.75), ("fedper", 0.75), ("local", 0.5)):
        write_run(tmp_path / name, [accuracy], name=name, holdings=HELD)
    lines = printed(tmp_path, 80)
    assert all(len(line) <= 80 for line in lines)
    cells = [[cell.strip() for cell in line.split("│")] for line in lines if "│" in line]
    rows = {method: place for _, place, method, *_ in cells}
    assert rows == {"fedavg": "1", "fedper": "1", "local": "3", "majority class": ""}


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [("accuracy", 0.1234, "12.3 %"), ("auroc", 0.7, "0.700"), ("log_loss", 1.23456, "1.235"), ("r2", -0.5, "−0.5")],
)
def test_shares_are_in_per_cent_and_areas_have_three_decimals(name, value, text):
    assert score_text(value, METRICS[name]) == text
    assert spread(Spread(value, None), METRICS[name]) == text


def test_limits_end_where_the_metric_does():
    wide = Interval(0.5, -0.2, 1.3)
    assert limits(wide, METRICS["accuracy"]) == "0.0 to 100.0 %"
    assert limits(wide, METRICS["auroc"]) == "0.000 to 1.000"
    assert limits(wide, METRICS["r2"]) == "−0.2 to 1.3"
    assert limits(wide, METRICS["log_loss"]) == "0 to 1.3"
    assert difference_text(Interval(0.1, 0.0, 0.2), METRICS["accuracy"]) == "+10.0 (+0.0 to +20.0)"
    assert difference_text(Interval(0.1, 0.0, 0.2), METRICS["auroc"]) == "+0.100 (+0.000 to +0.200)"


def test_the_course_is_that_of_the_metric():
    line = {"test.deployed.loss": 1.0, "test.deployed.accuracy": 0.9, "test.deployed.client_accuracy": 0.8}
    assert scores_so_far([line]) == ("90.0%", [0.9])
    area = line | {"test.deployed.auroc": 0.6, "test.deployed.client_auroc": 0.7, "test.deployed.std": 0.1}
    assert scores_so_far([area, area]) == ("0.7", [0.7, 0.7])
    balanced = line | {"test.deployed.balanced_accuracy": 0.6, "test.deployed.client_balanced_accuracy": 0.7}
    assert scores_so_far([balanced]) == ("60.0%", [0.6])


def test_loggers_group_a_metric_whose_name_has_dots():
    assert grouped("test.deployed.sensitivity@0.95") == ("test.deployed", "sensitivity@0.95")
    assert grouped("new.test.trained.costs.clinic:cost") == ("new.test.trained", "costs.clinic:cost")
    assert grouped("seconds.train") == ("seconds", "train")
