"""Intervals against values from tables, and the words that are made of them."""

from math import sqrt

import pytest
from written_runs import rewrite, round_line, write_run

from stratafl.report import gather
from stratafl.report.formats import difference, duration, limits, score, size, spread
from stratafl.report.intervals import Interval, Spread, interval
from stratafl.report.summary import cautions, summary


def test_the_t_interval_is_that_of_a_table():
    found = interval([1.0, 2.0, 3.0])  # s = 1; t(0.975, 2) = 4.303
    assert found.mean == 2
    assert found.high - 2 == pytest.approx(4.3027 / sqrt(3), abs=1e-4)
    assert 2 - found.low == pytest.approx(found.high - 2)
    two = interval([0.0, 1.0])  # s = √½; t(0.975, 1) = 12.706
    assert two.high - 0.5 == pytest.approx(12.7062 * sqrt(0.5) / sqrt(2), abs=1e-3)


def test_one_value_has_no_interval():
    assert interval([1.0]) is None


def test_an_interval_is_beyond_noise_if_it_excludes_0():
    assert Interval(0.1, 0.05, 0.3).beyond_noise
    assert not Interval(0.1, -0.1, 0.3).beyond_noise


def test_numbers_as_a_person_reads_them():
    assert (score(0.12345), score(None), score(1.23456, True)) == ("12.3 %", "–", "1.235")
    assert spread(Spread(0.5, 0.0123)) == "50.0 % ± 1.2"
    assert limits(Interval(0.9, 0.7, 1.1)) == "70.0 to 100.0 %"  # an accuracy ends there
    assert difference(Interval(-0.012, -0.05, 0.026)) == "−1.2 (−5.0 to +2.6)"
    assert [size(n) for n in (0, 999, 1000, 123_456, 2.5e6, 999_999_999)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "123 kB",
        "2.5 MB",
        "1.0 GB",
    ]
    assert [duration(s) for s in (2.25, 150, 7200)] == ["2.2 s", "2.5 min", "2.0 h"]


def runs(place, **scores):
    for name, values in scores.items():
        for seed, value in enumerate(values):
            write_run(place / f"{name}{seed}", [value / 2, value], name=name, seed=seed)
    return gather([place])


def test_a_winner_is_named_only_beyond_noise(tmp_path):
    clear = summary(runs(tmp_path / "clear", fedavg=(0.5, 0.52, 0.51), local=(0.8, 0.83, 0.8)))
    assert clear.startswith("local comes first with 81.0 % test accuracy (mean of 3 seeds, 95 % interval ")
    assert "It is better than fedavg (30.0 points, 95 % interval 2" in clear
    assert "no clear winner" not in clear
    noisy = summary(runs(tmp_path / "noisy", fedavg=(0.5, 0.9, 0.7), local=(0.8, 0.6, 0.76)))
    assert "Whether it is better than fedavg (2.0 points, 95 % interval −" in noisy
    assert noisy.endswith("cannot be told, so there is no clear winner.")


def test_of_losses_the_lower_is_better(tmp_path):
    for name, losses in (("fedavg", (2.0, 2.1)), ("local", (1.0, 1.0))):
        for seed, loss in enumerate(losses):
            folder = write_run(tmp_path / f"{name}{seed}", [2 - loss], name=name, seed=seed)
            line = {key: value for key, value in round_line(1, 0.0, loss).items() if not key.endswith("accuracy")}
            rewrite(folder / "rounds.jsonl", lambda _, line=line: line)
    said = summary(gather([tmp_path]))
    assert said.startswith(
        "local comes first with a test loss of 1 (2 seeds: 1 and 1). It is better than fedavg (1.05, "
    )


def test_one_seed_says_nothing_about_noise(tmp_path):
    said = summary(runs(tmp_path / "one", fedavg=(0.5,), local=(0.8,)))
    assert said.startswith("local comes first with 80.0 % test accuracy (one seed).")
    assert said.endswith("These are differences between clients with one seed; with other seeds they may differ.")
    assert summary(runs(tmp_path / "alone", fedavg=(0.5,))) == "fedavg reaches 50.0 % test accuracy (one seed)."


def test_a_method_that_leaks_wins_nothing(tmp_path):
    write_run(tmp_path / "a", [0.9], name="flayer", environment={"leaks": "it sees test data"})
    write_run(tmp_path / "b", [0.5], name="fedavg")
    study = gather([tmp_path])
    assert summary(study).startswith("fedavg reaches 50.0 %")
    assert any("flayer †" in line and "it sees test data" in line for line in cautions(study))


def test_what_a_reader_is_warned_of(tmp_path):
    write_run(tmp_path / "half", [0.5], asked=3, environment={"torch": "2.12"})
    write_run(tmp_path / "whole", [0.4, 0.5, 0.6], name="local", train={"lr": 0.5}, seed=1)
    write_run(tmp_path / "again", [0.4, 0.5, 0.6], name="local", train={"lr": 0.5}, seed=1)
    write_run(tmp_path / "empty", [], name="fedavg", asked=3)
    resumed = [{"at": "now", "round": 1, "changed": ["torch 1 → 2"]}]
    write_run(tmp_path / "moved", [0.4, 0.5, 0.6], name="fedavg", environment={"resumed": resumed})
    said = "\n".join(cautions(gather([tmp_path])))
    for words in (
        "fedper is not finished: 1 of 3 rounds",
        "empty' has no evaluated round yet",
        "whole' repeats a configuration",
        "moved' was resumed elsewhere and is not bit-identical: torch 1 → 2",
        "differ in train.lr",
        "not all run with the same seeds",
        "versions of torch: ",
    ):
        assert words in said


def test_limits_end_where_numbers_end_and_minus_is_no_hyphen():
    wide = Interval(0.1, -0.2, 1.3)
    assert limits(wide) == "0.0 to 100.0 %"
    assert limits(wide, True) == "0 to 1.3"
    assert limits(Interval(2e-5, 1e-5, 3e-5), True) == "1e−05 to 3e−05"
    assert score(1e-5, True) == "1e−05"
    assert spread(Spread(1e-5, 1e-6), True) == "1e−05 ± 1e−06"
    assert spread(Spread(0.7075, 0.1123), True) == "0.7075 ± 0.1123"
    assert spread(Spread(0.7882, 0.0037), True) == "0.7882 ± 0.0037"
    assert spread(Spread(-1234.4, 0.321), True) == "−1234.4 ± 0.3"
    assert spread(Spread(0.7, 0.0), True) == "0.7000 ± 0.0000"
    assert difference(Interval(-0.1, -0.2, 0.1)) == "−10.0 (−20.0 to +10.0)"
