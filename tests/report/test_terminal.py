"""The ranking on the console: whole numbers and whole names at every width."""

import io
import re

import pytest
from rich.console import Console
from written_runs import as_regression, write_run

from stratafl.cli.console import PIPED_WIDTH, result_console
from stratafl.cli.display import scores_so_far, sparkline
from stratafl.cli.result_tables import console_ranking
from stratafl.report import gather


def printed(place, width):
    """The lines of the table, as a terminal of this width has them."""
    study = gather([place])
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(console_ranking(study, width))
    return console.file.getvalue().splitlines()


def cells(line):
    return [cell.strip() for cell in re.split("[│┃]", line)[1:-1]]


@pytest.fixture(scope="module")
def price(tmp_path_factory):
    """A regression of three methods, whose losses have as many digits as losses have."""
    place = tmp_path_factory.mktemp("price")
    for name, best in (("fedavg", 1.23456), ("fedper", 1.34567), ("local", 1.45678)):
        for seed in range(3):
            as_regression(write_run(place / f"{name}{seed}", [best + seed**2 / 123], name=name, seed=seed))
    return place


@pytest.mark.parametrize("width", [40, 60, 80, 100, 110, 120, 125, 131, 160])
def test_no_name_and_no_number_is_cut_at_any_width(price, width):
    head, *rows = [cells(line) for line in printed(price, width) if line[0] in "┃│"]
    assert [row[0] for row in rows] == ["local", "fedper", "fedavg"]
    assert {"method", "deployed"} <= set(head)
    loss = 2 - 1.45678 - (0 + 1 + 4) / 3 / 123
    assert rows[0][head.index("deployed")] == f"{loss:.4f} ± 0.0169"  # deviation of 0, 1, 4: 2.08, by 123


def test_the_wider_the_more_columns_and_the_last_to_go_are_the_worst_clients(price):
    heads = {width: cells(next(line for line in printed(price, width) if line[0] == "┃")) for width in (42, 80, 160)}
    assert heads[42] == ["method", "deployed", "worst 10%"]
    assert heads[80] == ["method", "received", "deployed", "spread", "worst 10%", "MB", "s"]
    assert heads[160][-2:] == ["converged", "best"]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_a_long_label_is_folded_between_its_words(tmp_path, width):
    for lr in (0.1, 0.05):
        write_run(tmp_path / str(lr), [0.5 - lr], train={"lr": lr, "momentum": lr}, name="my.own.package:method")
    names = [cells(line)[0] for line in printed(tmp_path, width) if line[0] == "│"]
    words = " ".join(names).split()
    assert sorted(words[:3]) == ["my.own.package:method", "train.lr=0.05", "train.momentum=0.05"]


def test_a_deviation_of_nothing_is_shown_and_one_seed_has_none(tmp_path):
    for seed in (0, 1):
        write_run(tmp_path / f"same{seed}", [0.5], seed=seed)
    write_run(tmp_path / "alone", [0.25], name="local")
    head, *rows = [cells(line) for line in printed(tmp_path, 120) if line[0] in "┃│"]
    assert head[:2] == ["method", "seeds"]
    at = head.index("deployed")
    assert [[*row[:2], row[at]] for row in rows] == [["fedper", "2", "50.0% ± 0.0"], ["local", "1", "25.0%"]]


def test_seeds_have_no_column_where_all_rows_have_as_many(price):
    assert "seeds" not in printed(price, 160)[2]


def test_a_table_that_nobody_watches_is_as_wide_as_columns_say(monkeypatch):
    monkeypatch.setenv("COLUMNS", "90")
    assert result_console().width == 90
    monkeypatch.delenv("COLUMNS")
    assert result_console().width == PIPED_WIDTH


def test_the_course_of_a_loss_falls_as_the_loss_does():
    numbers = (0.8, 0.4, 0.2, 0.0)
    score, values = scores_so_far([{"test.deployed.loss": value} for value in numbers])
    assert (score, sparkline(values)) == ("0", "█▅▃▁")
    score, values = scores_so_far(
        [{"test.deployed.loss": 1 - x, "test.deployed.accuracy": x} for x in reversed(numbers)]
    )
    assert (score, sparkline(values)) == ("80.0%", "▁▃▅█")
    assert scores_so_far([{"round": 1}]) == ("", [])
