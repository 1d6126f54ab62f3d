"""Chance: whether the metric shows that any model has learned something.

Answers at the usual threshold can all be the same although the probabilities know a lot, as with one positive in eight.
Scores are therefore compared with those of one prediction for all samples: the class frequencies, or the mean target.
"""

from collections.abc import Sequence

from torch import Tensor

from stratafl.advice.problem import Problem
from stratafl.advice.results import Result
from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.predictions import Predictions
from stratafl.report.jackknife import with_error

CLEAR = 2.0  # standard errors that are not chance; the best of several candidates is often one ahead by chance
BY_ANSWERS = ("accuracy", "balanced_accuracy", "macro_f1")


def above_chance(problem: Problem, results: Sequence[Result]) -> bool:
    """Whether some candidate is clearly better than one prediction for all samples; True where that means nothing."""
    if problem.metric.name not in METRICS or problem.metric.name == "ece":  # class frequencies are calibrated
        return True
    return any(_above(problem, each.predictions) for each in results)


def _above(problem: Problem, predictions: Predictions) -> bool:
    same = constant(problem, predictions)

    def of(kept: Tensor | None) -> float:
        return problem.score(predictions, kept) - problem.score(same, kept)

    found = with_error(of, predictions.client)
    return found.value > CLEAR * found.error


def constant(problem: Problem, predictions: Predictions) -> Predictions:
    """The same prediction for all of these samples: what training samples have on average."""
    federation = problem.federation
    if federation.classes is None:
        given = federation.y.cpu()[federation.split("train").indices].double().mean(0).reshape(1, -1)
    else:
        counts = federation.class_counts("train").sum(0).double()
        given = (counts / counts.sum())[None]
    return Predictions(predictions.client, predictions.y, given.float().expand(len(predictions), -1))
