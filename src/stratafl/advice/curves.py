"""Learning curves: what the scores of two rounds let expect after all rounds, and how sure that is."""

from collections.abc import Sequence
from math import isfinite, log

from torch import Tensor

from stratafl.advice.problem import Problem
from stratafl.advice.results import Result
from stratafl.evaluation.metrics import METRICS
from stratafl.report.jackknife import Difference, with_error

STEEPEST = 1.5  # exponent of a learning curve that is still believed
OWN = 0.75  # weight of a candidate's own exponent; the rest is the mean of all
FLATTER = 0.6  # of an exponent so far is left for the rounds to come; measured, see docs/results/advice.md


def expected(problem: Problem, results: Sequence[Result], kept: Tensor | None = None) -> list[float]:
    """The scores after all rounds, if errors go on falling as a power of the rounds; on the samples `kept`, or all.

    Only the error that is left on training samples can still be trained away; what validation samples have above it
    stays: e(T) = e(t) − a·(1 − (T/t)^−γβ), where a is the smaller of both errors, β = log(e(s)/e(t))/log(t/s) of the
    rounds s < t that were scored, between 0 and `STEEPEST` and drawn towards the mean of all candidates, and γ is
    `FLATTER`. Without an earlier round, and for metrics without a best value, it is the score as it is.
    """
    scores = [problem.score(each.predictions, kept) for each in results]
    perfect = best_value(problem)
    rounds = [sorted(each.seen)[-2:] for each in results]
    if perfect is None or any(len(each) < 2 for each in rounds):
        return scores
    least = 0.5 / max(1, len(results[0].predictions))
    late = [max(perfect - score, least) for score in scores]
    early = [
        max(perfect - problem.score(result.seen[pair[0]], kept), least)
        for result, pair in zip(results, rounds, strict=True)
    ]
    own = [
        log(before / after) / log(pair[1] / pair[0]) if isfinite(before) and isfinite(after) else 0.0
        for before, after, pair in zip(early, late, rounds, strict=True)
    ]
    mean = sum(own) / len(own)
    slopes = [FLATTER * min(STEEPEST, max(0.0, mean + OWN * (each - mean))) for each in own]
    left = [max(0.0, min(error, perfect - result.fitted)) for error, result in zip(late, results, strict=True)]
    return [
        perfect - error + part * (1 - (problem.rounds / pair[1]) ** -slope)
        for error, part, slope, pair in zip(late, left, slopes, rounds, strict=True)
    ]


def best_value(problem: Problem) -> float | None:
    """The best score there is: 1 of a share, 0 of a loss; unknown of your own metric."""
    if problem.metric.name not in METRICS and not problem.metric.name.startswith("sensitivity"):
        return None
    return 1.0 if problem.metric.larger_is_better else 0.0


def difference(problem: Problem, one: Result, other: Result, among: Sequence[Result], *, late: bool) -> Difference:
    """score(one) − score(other), as they are or as expected after all rounds (`late`), with its standard error."""
    places = among.index(one), among.index(other)

    def of(kept: Tensor | None) -> float:
        if late:
            scores = expected(problem, among, kept)
            return scores[places[0]] - scores[places[1]]
        return problem.score(one.predictions, kept) - problem.score(other.predictions, kept)

    return with_error(of, one.predictions.client)
