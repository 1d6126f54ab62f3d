"""The majority class as a method of its own: every client always gives the class that it has most in training.

What learns nothing scores this much, so a ranking shows it beside the methods. Its probabilities are the shares of the
classes in the client's training data.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from stratafl.evaluation.measure import MetricValues
from stratafl.evaluation.predictions import Predictions
from stratafl.report.intervals import Spread
from stratafl.report.outcome import Outcome, is_imported, numbers_of
from stratafl.report.ranking import Rank

MAJORITY = "majority class"
SAMPLES = 2_000_000  # of larger federations it is not computed


def majority(ranks: Sequence[Rank]) -> Rank | None:
    """The row of the majority class, for the seeds of the first method; None for numbers and for your own metrics."""
    members = ranks[0].members if ranks else ()
    by_run = [numbers_of(values, run.evaluate) if (values := majority_values(run)) else {} for run in members]
    names = [name for name in by_run[0] if all(name in numbers for numbers in by_run)] if by_run else []
    if "score" not in names:
        return None
    spreads = {name: Spread.of([numbers[name] for numbers in by_run]) for name in names if name != "client_mean"}
    return Rank(MAJORITY, ranks[0].seeds, (0, 0), False, spreads)


def majority_values(run: Outcome) -> MetricValues | None:
    """What the majority class scores on the test samples of a run, by the metric of the run."""
    predicted = majority_predictions(run) if run.metric.classes and not is_imported(run.metric) else None
    return None if predicted is None else MetricValues.of(run.metric, predicted)


def majority_predictions(run: Outcome, tested: Predictions | None = None) -> Predictions | None:
    """What the majority class gives for the test samples of the clients that took part; in the order of `tested`."""
    class_counts = run.class_counts
    if class_counts is None or class_counts["classes"] is None:
        return None
    train, test = (torch.tensor(class_counts["counts"][split])[: run.clients or None] for split in ("train", "test"))
    if int(test.sum()) > SAMPLES:
        return None
    clients, classes = test.shape
    y = torch.arange(classes).repeat(clients).repeat_interleave(test.flatten())
    client = torch.arange(clients).repeat_interleave(test.sum(1))
    if tested is not None:
        client, y = tested.client, tested.y
    return Predictions(client, y, class_shares(train)[client])


def class_shares(train: Tensor) -> Tensor:
    """The shares of the classes in each client's training data; those of all clients for one without any."""
    counts = torch.where(train.sum(1, keepdim=True) > 0, train, train.sum(0, keepdim=True)).double()
    return counts / counts.sum(1, keepdim=True)
