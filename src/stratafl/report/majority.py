"""The majority class as a method of its own: every client always gives the class that it has most in training.

What learns nothing scores this much, so a ranking shows it beside the methods. Its probabilities are the shares of the
classes in the client's training data.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from stratafl.config.experiment import from_tables
from stratafl.evaluation.measure import MetricValues
from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.predictions import Predictions
from stratafl.report.intervals import Spread
from stratafl.report.outcome import Outcome
from stratafl.report.ranking import Rank
from stratafl.runs.class_counts import read_class_counts

MAJORITY = "majority class"
SAMPLES = 2_000_000  # of larger federations it is not computed


def majority(ranks: Sequence[Rank]) -> Rank | None:
    """The row of the majority class, for the seeds of the first method; None for numbers and for your own metrics."""
    if not ranks or not ranks[0].members:
        return None
    members = ranks[0].members
    metric, evaluate = members[0].metric, members[0].evaluate
    if not metric.classes or any(one.metric.name != metric.name for one in members):
        return None
    each = [_numbers(one, metric) for one in members]
    if not all(each):
        return None
    names = ("score", evaluate.stage, "spread", "worst10")
    spreads = {name: Spread.of([numbers[name] for numbers in each if numbers]) for name in dict.fromkeys(names)}
    return Rank(MAJORITY, ranks[0].seeds, (0, 0), False, spreads)


def _numbers(one: Outcome, metric: Metric) -> dict[str, float] | None:
    found = _predictions(one)
    if found is None:
        return None
    values = MetricValues.of(metric, found)
    numbers = values.statistics()
    score = numbers[f"client_{metric.key}" if one.evaluate.average == "clients" else metric.key]
    told = {"score": score, one.evaluate.stage: score, "spread": numbers["std"], "worst10": numbers["worst10"]}
    return told if all(value == value for value in told.values()) else None


def _predictions(one: Outcome) -> Predictions | None:
    """What the majority class gives for the test samples of the clients that took part."""
    held = read_class_counts(one.folder, from_tables(one.config))
    if held is None or held["classes"] is None:
        return None
    train, test = (torch.tensor(held["counts"][split])[: one.clients or None] for split in ("train", "test"))
    if int(test.sum()) > SAMPLES:
        return None
    clients, classes = test.shape
    y = torch.arange(classes).repeat(clients).repeat_interleave(test.flatten())
    client = torch.arange(clients).repeat_interleave(test.sum(1))
    return Predictions(client, y, shares(train)[client])


def shares(train: Tensor) -> Tensor:
    """The shares of the classes in each client's training data; those of all clients for one without any."""
    counts = torch.where(train.sum(1, keepdim=True) > 0, train, train.sum(0, keepdim=True)).double()
    return counts / counts.sum(1, keepdim=True)
