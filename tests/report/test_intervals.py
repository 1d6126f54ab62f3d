"""Intervals against values from tables, and the words that are made of them."""

from math import sqrt

import pytest
from written_runs import rewrite, round_line, write_run

from stratafl.evaluation.metrics import METRICS
from stratafl.report import gather
from stratafl.report import sentences as say
from stratafl.report.decision import ranking_lead
from stratafl.report.formats import NO_VALUE, difference_text, duration_text, limits, score_text, size_text, spread
from stratafl.report.intervals import Interval, Spread, interval
from stratafl.report.notes import cautions, privacy_findings
from stratafl.report.ranking_tables import ranking_table
from stratafl.report.sentences import finding

ACCURACY, MSE = METRICS["accuracy"], METRICS["mse"]


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
    assert (score_text(0.12345, ACCURACY), score_text(None, ACCURACY), score_text(1.23456, MSE)) == (
        "12.3 %",
        "–",
        "1.235",
    )
    assert spread(Spread(0.5, 0.0123), ACCURACY) == "50.0 % ± 1.2"
    assert limits(Interval(0.9, 0.7, 1.1), ACCURACY) == "70.0 to 100.0 %"  # an accuracy ends there
    assert difference_text(Interval(-0.012, -0.05, 0.026), ACCURACY) == "−1.2 (−5.0 to +2.6)"
    assert [size_text(n) for n in (0, 999, 1000, 123_456, 2.5e6, 999_999_999)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "123 kB",
        "2.5 MB",
        "1.0 GB",
    ]
    assert [duration_text(s) for s in (2.25, 150, 7200)] == ["2.2 s", "2.5 min", "2.0 h"]


def runs(place, **scores):
    for name, values in scores.items():
        for seed, value in enumerate(values):
            write_run(place / f"{name}{seed}", [value / 2, value], name=name, seed=seed)
    return gather([place])


def test_a_winner_is_named_only_beyond_noise(tmp_path):
    first, rivals = ranking_lead(runs(tmp_path / "clear", fedavg=(0.5, 0.52, 0.51), local=(0.8, 0.83, 0.8)))
    assert (first.sentence, first.values["method"], first.values["score"]) == (say.FIRST, "local", "81.0 %")
    assert (rivals.sentence, rivals.values["pairs"][:19]) == (say.FIRST_BETTER, "fedavg (30.0 points")
    _, noisy = ranking_lead(runs(tmp_path / "noisy", fedavg=(0.5, 0.9, 0.7), local=(0.8, 0.6, 0.76)))
    assert (noisy.sentence, noisy.values["pairs"][:18]) == (say.FIRST_UNCLEAR, "fedavg (2.0 points")


def test_of_losses_the_lower_is_better(tmp_path):
    for name, losses in (("fedavg", (2.0, 2.1)), ("local", (1.0, 1.0))):
        for seed, loss in enumerate(losses):
            folder = write_run(tmp_path / f"{name}{seed}", [2 - loss], name=name, seed=seed)
            line = {key: value for key, value in round_line(1, 0.0, loss).items() if not key.endswith("accuracy")}
            rewrite(folder / "rounds.jsonl", lambda _, line=line: line)
    first, rivals = ranking_lead(gather([tmp_path]))
    assert (first.values["method"], first.values["metric"], first.values["score"]) == ("local", "loss", "1")
    assert (rivals.sentence, rivals.values["pairs"][:12]) == (say.FIRST_BETTER, "fedavg (1.05")


def test_one_seed_says_nothing_about_noise(tmp_path):
    first, *_, last = ranking_lead(runs(tmp_path / "one", fedavg=(0.5,), local=(0.8,)))
    assert (first.values["basis"], last.sentence) == ("one seed", say.FIRST_ONE_SEED)
    (only,) = ranking_lead(runs(tmp_path / "alone", fedavg=(0.5,)))
    assert (only.sentence, only.values["score"]) == (say.ALONE_REACHES, "50.0 %")


def test_a_method_that_leaks_wins_nothing(tmp_path):
    write_run(tmp_path / "a", [0.9], name="flayer", environment={"leaks": "it sees test data"})
    write_run(tmp_path / "b", [0.5], name="fedavg")
    study = gather([tmp_path])
    assert [each.values["method"] for each in ranking_lead(study)] == ["fedavg"]
    assert any("flayer †" in line and "it sees test data" in line for line in cautions(study))


def private_run(folder, epsilon, **options):
    write_run(folder, [0.4, 0.5], name="fedavg+private", algorithm=options)
    spent = {"privacy.epsilon": epsilon, "privacy.delta": 1e-5}
    rewrite(folder / "rounds.jsonl", lambda line: {**line, **spent} if line["round"] == 2 else line)


@pytest.mark.parametrize(
    ("dp", "observers", "epsilon", "factor"),
    [
        ({}, "all but the server", 0.5, "1.7"),  # e^0.5 = 1.6487, rounded up
        ({"dp": "local"}, "the server and all others", 3.0, "21"),
        ({"dp": "distributed"}, "the server and all others", 8.0, "3,000"),
        ({"dp": "central"}, "all but the server", 13.8, "990,000"),
        ({"dp": "central"}, "all but the server", 13.9, "more than a million"),
    ],
)
def test_epsilon_stands_beside_the_accuracy_with_what_it_means(tmp_path, dp, observers, epsilon, factor):
    private_run(tmp_path / "private", epsilon, **dp)
    write_run(tmp_path / "plain", [0.5, 0.6], name="fedavg")
    study = gather([tmp_path])
    table = ranking_table(study)
    column = table.head.index("ε")
    assert {row[0].shown: row[column].shown for row in table.rows[:2]} == {
        "fedavg": NO_VALUE,
        "fedavg+private": f"{epsilon:.3g}",
    }
    meaning, simulated = privacy_findings(study.ranks)
    expected = {"method": "fedavg+private", "epsilon": f"{epsilon:.3g}", "delta": "1e-05"}
    assert meaning == finding(say.EPSILON_MEANS, **expected, observers=observers, factor=factor)
    assert simulated.sentence == say.EPSILON_SIMULATED
    assert str(meaning) in table.caption
    assert "epsilon_mean" in table.written


def test_without_noise_a_report_has_no_epsilon(tmp_path):
    write_run(tmp_path / "plain", [0.5, 0.6], name="fedavg")
    study = gather([tmp_path])
    assert "ε" not in ranking_table(study).head
    assert privacy_findings(study.ranks) == []


def test_what_a_reader_is_warned_of(tmp_path):
    write_run(tmp_path / "half", [0.5], asked=3, environment={"torch": "2.12"})
    write_run(tmp_path / "whole", [0.4, 0.5, 0.6], name="local", train={"lr": 0.5}, seed=1)
    write_run(tmp_path / "again", [0.4, 0.5, 0.6], name="local", train={"lr": 0.5}, seed=1)
    write_run(tmp_path / "empty", [], name="fedavg", asked=3)
    resumed = [{"at": "now", "round": 1, "changed": ["torch 1 → 2"]}]
    write_run(tmp_path / "moved", [0.4, 0.5, 0.6], name="fedavg", environment={"resumed": resumed})
    warnings = cautions(gather([tmp_path]))
    for expected in (
        finding(say.BEHIND, method="fedper", done=1, rounds="3 rounds"),
        finding(say.NOT_EVALUATED, folder=tmp_path / "empty"),
        finding(say.REPEATED, folder=tmp_path / "whole"),
        finding(say.RESUMED_ELSEWHERE, folder=tmp_path / "moved", changes="torch 1 → 2"),
        finding(say.UNLIKE_SETTINGS, keys="train.lr"),
        finding(say.UNLIKE_SEEDS),
        finding(say.UNLIKE_MACHINES, what="versions of torch", values="2.13, 2.12"),
    ):
        assert str(expected) in warnings


def test_every_sentence_takes_its_values():
    """Names are joined, and long lists are cut."""
    assert "e, f and 2" in str(finding(say.UNFINISHED, methods=[*"abcdefgh"]))


def test_limits_end_where_numbers_end_and_minus_is_no_hyphen():
    wide = Interval(0.1, -0.2, 1.3)
    assert limits(wide, ACCURACY) == "0.0 to 100.0 %"
    assert limits(wide, MSE) == "0 to 1.3"
    assert limits(Interval(2e-5, 1e-5, 3e-5), MSE) == "1e−05 to 3e−05"
    assert score_text(1e-5, MSE) == "1e−05"
    assert spread(Spread(1e-5, 1e-6), MSE) == "1e−05 ± 1e−06"
    assert spread(Spread(0.7075, 0.1123), MSE) == "0.7075 ± 0.1123"
    assert spread(Spread(0.7882, 0.0037), MSE) == "0.7882 ± 0.0037"
    assert spread(Spread(-1234.4, 0.321), MSE) == "−1234.4 ± 0.3"
    assert spread(Spread(0.7, 0.0), MSE) == "0.7000 ± 0.0000"
    assert difference_text(Interval(-0.1, -0.2, 0.1), ACCURACY) == "−10.0 (−20.0 to +10.0)"
