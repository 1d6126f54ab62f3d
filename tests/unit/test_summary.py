"""What a run came to, from lines written by hand."""

import pytest

from stratafl.config.experiment import Experiment, from_stored
from stratafl.config.setting_tables import EvaluateTable, StopTable
from stratafl.runs.summary import (
    Cost,
    best,
    converged,
    cost,
    counting,
    evaluated,
    last,
    quality,
    reached,
    selected,
    stop_reason,
)


def line(number, test=None, validation=None, **more):
    """A round that took 2 seconds with its clients, 0.5 with the server, 100 bytes down and 10 up."""
    made = {"round": number, "seconds.train": 2.0, "seconds.server": 0.5, "bytes.down": 100, "bytes.up": 10}
    for split, accuracy in (("test", test), ("validation", validation)):
        if accuracy is not None:
            made |= {f"{split}.deployed.accuracy": accuracy, f"{split}.deployed.loss": 1.0}
    return made | more


def regression(number, test, validation):
    return line(number) | {"test.deployed.loss": test, "validation.deployed.loss": validation}


def validated(*accuracies):
    return [line(i + 1, accuracy, accuracy) for i, accuracy in enumerate(accuracies)]


# How good a line is


def test_quality_is_accuracy_or_minus_the_loss():
    assert quality(line(1, test=0.7), "test.deployed") == 0.7
    assert quality(regression(1, 0.25, 0.5), "test.deployed") == -0.25
    assert quality(regression(1, 0.25, 0.5), "validation.deployed") == -0.5


def test_what_was_not_measured_or_is_no_number_is_the_worst():
    assert quality(line(1), "test.deployed") == float("-inf")
    assert quality({"test.deployed.loss": None}, "test.deployed") == float("-inf")


def test_an_accuracy_of_zero_is_an_accuracy():
    assert quality(line(1, test=0.0), "test.deployed") == 0.0


def test_evaluated_rounds_have_scores_of_a_held_out_split():
    lines = [line(1), line(2, test=0.1), line(3, validation=0.1), line(4, **{"new.test.trained.accuracy": 0.1})]
    lines.append(line(5, **{"train.loss": 0.1}))
    assert [each["round"] for each in evaluated(lines)] == [2, 3]


# The selected, best and last round


BEFORE = EvaluateTable(ties="first")  # as runs of earlier versions


def test_selected_is_best_on_validation_and_the_last_of_equals():
    lines = [line(1, 0.9, 0.5), line(2, 0.6, 0.8), line(3), line(4, 0.7, 0.8), line(5, 0.8, 0.7)]
    assert selected(lines)["round"] == 4
    assert selected(lines, BEFORE)["round"] == 2
    assert best(lines)["round"] == 1
    assert last(lines)["round"] == 5


@pytest.mark.parametrize(("select", "number"), [("validation", 1), ("best", 2), ("last", 3)])
def test_the_settings_say_which_round_counts(select, number):
    lines = [line(1, test=0.6, validation=0.9), line(2, test=0.8, validation=0.7), line(3, test=0.7, validation=0.8)]
    assert counting(lines, EvaluateTable(select=select))["round"] == number


def test_best_is_the_last_of_equals():
    lines = [line(1, 0.5), line(2, 0.6), line(3, 0.6)]
    assert best(lines)["round"] == 3
    assert best(lines, BEFORE)["round"] == 2


@pytest.mark.parametrize("metric", ["accuracy", "auroc", "log_loss", "ece"])
def test_of_rounds_that_tie_by_any_metric_the_lowest_loss_is_selected(metric):
    """By AUROC of a few validation samples, a model that gives one answer ties with one that knows the classes."""
    evaluate = EvaluateTable(metric=metric, average="clients")
    losses = [0.69, 0.3, 0.1, 0.2]
    place = "validation.deployed"
    lines = [line(t, **{f"{place}.client_{metric}": 1.0, f"{place}.loss": loss}) for t, loss in enumerate(losses, 1)]
    assert selected(lines, evaluate)["round"] == 3
    assert selected(lines, EvaluateTable(metric=metric, average="clients", ties="first"))["round"] == 1
    on_tests = [{key.replace("validation", "test"): value for key, value in each.items()} for each in lines]
    assert best(on_tests, evaluate)["round"] == 3


def test_runs_of_earlier_versions_keep_their_round():
    assert from_stored({"evaluate": {"metric": "auroc"}}).evaluate.ties == "first"
    assert Experiment().evaluate.ties == "loss"


def test_without_validation_the_last_evaluated_round_is_selected():
    lines = [line(1, 0.9), line(2, 0.6), line(3)]
    assert selected(lines)["round"] == 2
    assert last(lines)["round"] == 2


def test_a_regression_is_selected_by_the_lowest_loss():
    lines = [regression(1, 0.5, 0.3), regression(2, 0.2, 0.4), regression(3, 0.4, 0.3)]
    assert selected(lines)["round"] == 3
    assert best(lines)["round"] == 2


def test_a_round_that_diverged_is_not_selected():
    lines = [regression(1, None, None), regression(2, 9.0, 8.0), regression(3, None, None)]
    assert selected(lines)["round"] == 2
    assert best(lines)["round"] == 2


# What it took


def test_costs_add_up_over_all_rounds_evaluated_or_not():
    lines = [line(1), line(2, 0.5), line(3), line(4, 0.6)]
    lines[0]["seconds.train"], lines[2]["bytes.up"] = 7.0, 1000
    assert cost(lines, lines[1]) == Cost(round=2, seconds=7.0 + 2.0 + 2 * 0.5, bytes=2 * 110)
    assert cost(lines, lines[3]) == Cost(round=4, seconds=7.0 + 3 * 2.0 + 4 * 0.5, bytes=3 * 110 + 1100)


def test_evaluation_takes_no_part_in_the_cost():
    assert cost([line(1, **{"seconds.evaluate": 50.0})], line(1)).seconds == 2.5


def test_converged_is_the_first_round_within_half_a_point_of_the_best():
    lines = [line(1, 0.5), line(2, 0.8949), line(3), line(4, 0.8951), line(5, 0.9), line(6, 0.7)]
    assert converged(lines) == Cost(4, 4 * 2.5, 4 * 110)


def test_exactly_half_a_point_is_within():
    lines = [line(1, 0.9 - 0.005), line(2, 0.9)]
    assert converged(lines).round == 1


def test_a_regression_converges_within_0_005_of_its_lowest_loss():
    lines = [regression(1, 0.2101, 1.0), regression(2, 0.2049, 1.0), regression(3, 0.2, 1.0)]
    assert converged(lines).round == 2


def test_one_round_has_converged():
    assert converged([line(1, 0.1)]).round == 1


def test_reached_is_the_first_round_at_the_target_or_never():
    lines = [line(1, 0.5), line(2, 0.7), line(3, 0.6), line(4, 0.8)]
    assert reached(lines, 0.7) == Cost(2, 5.0, 220)
    assert reached(lines, 0.7 + 1e-9) == Cost(4, 10.0, 440)
    assert reached(lines, 0.81) is None
    assert reached([line(1)], 0.0) is None


# When to stop


def test_nothing_stops_what_was_not_evaluated_or_has_no_rule():
    assert stop_reason([], StopTable(target=0.1, patience=1)) is None
    assert stop_reason([line(1), line(2)], StopTable(target=0.1, patience=1)) is None
    assert stop_reason(validated(0.9, 0.9, 0.9), StopTable()) is None


def test_the_target_is_looked_for_on_validation_in_the_newest_round():
    stop = StopTable(target=0.75)
    assert stop_reason(validated(0.5, 0.7499), stop) is None
    assert stop_reason(validated(0.5, 0.75), stop) == "validation accuracy 75.0% reached the target 75.0%"
    assert stop_reason([line(1, test=0.9, validation=0.5)], stop) is None
    assert stop_reason([*validated(0.8), line(2)], stop) is not None  # round 2 was not evaluated
    assert stop_reason(validated(0.8, 0.7), stop) is None


@pytest.mark.parametrize(
    ("accuracies", "stops"),
    [
        ((0.5,), False),
        ((0.5, 0.5), False),  # only one round after the first, and two are allowed
        ((0.5, 0.5, 0.5), True),
        ((0.5, 0.5, 0.75), False),
        ((0.5, 0.75, 0.5), False),
        ((0.5, 0.5, 0.625), True),  # exactly the margin is no more than the margin
        ((0.5, 0.5, 0.626), False),
        ((0.75, 0.5, 0.5, 0.7), True),  # better than before, and not than the best before
        ((0.25, 0.75, 0.75, 0.75), True),
        ((0.25, 0.375, 0.5, 0.625), False),  # a margin in one round, more than a margin in two
    ],
)
def test_patience_counts_rounds_without_a_margin_over_the_best_before(accuracies, stops):
    reason = stop_reason(validated(*accuracies), StopTable(patience=2, margin=0.125))
    assert reason == ("no gain above 0.125 in 2 evaluated rounds" if stops else None)


def test_patience_counts_evaluated_rounds_only():
    lines = [line(1, 0.5, 0.5), line(2), line(3), line(4, 0.5, 0.5), line(5)]
    assert stop_reason(lines, StopTable(patience=2)) is None
    assert stop_reason(lines, StopTable(patience=1)) == "no gain above 0.005 in 1 evaluated round"


def test_without_a_margin_any_gain_goes_on():
    stop = StopTable(patience=1, margin=0.0)
    assert stop_reason(validated(0.5, 0.5), stop) is not None
    assert stop_reason(validated(0.5, 0.5 + 1e-9), stop) is None


def test_the_target_comes_before_patience():
    assert "reached the target" in stop_reason(validated(0.5, 0.5), StopTable(target=0.5, patience=1))


def test_a_regression_runs_out_of_patience_by_its_loss():
    lines = [regression(1, 1.0, 1.0), regression(2, 1.0, 0.5), regression(3, 1.0, 0.499)]
    assert stop_reason(lines[:2], StopTable(patience=1)) is None
    assert stop_reason(lines, StopTable(patience=1)) is not None


# Of the models that count


def test_best_converged_and_reached_are_of_the_models_and_the_average_that_count():
    """As received, mean over clients: 0.5, 0.6, 0.4; deployed: 0.7, 0.8, 0.9."""
    counts = EvaluateTable(stage="received", average="clients")
    received = {"test.received.accuracy": 0.1, "test.received.client_accuracy": 0.5}
    lines = [line(i + 1, 0.7 + i / 10, **received) for i in range(3)]
    lines[1]["test.received.client_accuracy"] = 0.6
    lines[2]["test.received.client_accuracy"] = 0.4
    assert (best(lines)["round"], best(lines, counts)["round"]) == (3, 2)
    assert (converged(lines).round, converged(lines, counts).round) == (3, 2)
    assert (reached(lines, 0.45).round, reached(lines, 0.55, counts).round) == (1, 2)


def test_what_has_no_number_has_not_converged():
    assert converged([regression(1, None, None), regression(2, None, None)]) is None
    assert converged([line(1, 0.5)], EvaluateTable(stage="global")) is None  # a method without a model of the server
