"""Forecasts: whether scores are better than chance, and what scores to expect after all rounds.

Answers at the usual threshold can all be the same although the probabilities know a lot, as with one positive in eight.
So scores are compared with those of one prediction for all samples: the class frequencies, or the mean target. The
scores of two rounds give a learning curve, and the jackknife says how sure the expectation is.
"""

from collections.abc import Sequence
from math import isfinite, log, sqrt

from torch import Tensor, isin

from stratafl.advice.problem import Problem, Result
from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.predictions import Predictions
from stratafl.report.jackknife import Difference, jackknife_parts, with_error

SAME_SCORE = 1e-9  # a difference that is only rounding
STEEPEST = 1.5  # exponent of a learning curve that is still believed
OWN_WEIGHT = 0.75  # weight of a candidate's own exponent; the rest is the mean of all
FLATTER = 0.6  # of an exponent so far is left for the rounds to come; measured, see docs/notebook/advice.md


def expected(problem: Problem, results: Sequence[Result], samples: Tensor | None = None) -> list[float]:
    """The scores after all rounds, if errors go on falling as a power of the rounds; on these samples, or all.

    Only the error that is left on training samples can still be trained away; what validation samples have above it
    stays: e(T) = e(t) − a·(1 − (T/t)^−γβ), where a is the smaller of both errors, β = log(e(s)/e(t))/log(t/s) of the
    rounds s < t that were scored, between 0 and `STEEPEST` and drawn towards the mean of all candidates, and γ is
    `FLATTER`. Without an earlier round, and for metrics without a best value, it is the score as it is.
    """
    scores = [problem.score(each.predictions, samples) for each in results]
    perfect = best_value(problem)
    rounds = [sorted(each.seen)[-2:] for each in results]
    if perfect is None or any(len(each) < 2 for each in rounds):
        return scores
    least = 0.5 / max(1, len(results[0].predictions))
    late = [max(perfect - score, least) for score in scores]
    early = [
        max(perfect - problem.score(result.seen[pair[0]], samples), least)
        for result, pair in zip(results, rounds, strict=True)
    ]
    exponents = [
        log(before / after) / log(pair[1] / pair[0]) if isfinite(before) and isfinite(after) else 0.0
        for before, after, pair in zip(early, late, rounds, strict=True)
    ]
    mean = sum(exponents) / len(exponents)
    slopes = [FLATTER * min(STEEPEST, max(0.0, mean + OWN_WEIGHT * (each - mean))) for each in exponents]
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


def is_perfect(problem: Problem, result: Result) -> bool:
    """Whether no score can be better."""
    perfect = best_value(problem)
    return perfect is not None and perfect - result.score < SAME_SCORE


def score_difference(
    problem: Problem, first: Result, second: Result, among: Sequence[Result], *, late: bool
) -> Difference:
    """score(one) − score(other), as they are or as expected after all rounds (`late`), with its standard error."""
    places = among.index(first), among.index(second)

    def of(samples: Tensor | None) -> float:
        if late:
            scores = expected(problem, among, samples)
            return scores[places[0]] - scores[places[1]]
        return problem.score(first.predictions, samples) - problem.score(second.predictions, samples)

    return with_error(of, first.predictions.client)


# The gain to be expected, on samples that did not choose

TYPICAL, VARIES = 0.075, 0.15  # gains over training alone, as shares of its error: their mean and deviation …
MISSED = 0.14  # … and by how much a trial misses them besides the noise of its samples; see docs/results/forecasts.md
INTERVAL_ERRORS = 1.645  # standard errors on either side of a forecast that cover 90 %


def halves(client: Tensor) -> tuple[Tensor, Tensor]:
    """The places of every other sample of each client, and of the rest."""
    part = jackknife_parts(client, 2)
    return (part == 0).nonzero()[:, 0], (part == 1).nonzero()[:, 0]


def forecast_gain(problem: Problem, among: Sequence[Result], alone: Result) -> Difference:
    """The gain of the best federated candidate over training alone after all rounds, with its standard error."""
    return shrunk_gain(problem, crossed_gain(problem, among, alone), alone)


def crossed_gain(problem: Problem, among: Sequence[Result], alone: Result) -> Difference:
    """The expected gain of what one half of the samples chooses, measured on the other half; the mean of both ways.

    On the samples that chose it, the best of several candidates looks better than it is.
    """
    local, client = among.index(alone), alone.predictions.client
    others = [place for place in range(len(among)) if place != local]
    parts = halves(client)
    chosen = [_best_of(others, expected(problem, among, part)) for part in parts]

    def of(samples: Tensor | None) -> float:
        gains = []
        for place, part in zip(chosen, reversed(parts), strict=True):
            scores = expected(problem, among, part if samples is None else part[isin(part, samples)])
            gains.append(scores[place] - scores[local])
        finite = [gain for gain in gains if isfinite(gain)]
        return sum(finite) / len(finite) if finite else float("nan")

    return with_error(of, client)


def _best_of(places: Sequence[int], scores: Sequence[float]) -> int:
    return max(places, key=lambda place: scores[place] if isfinite(scores[place]) else -float("inf"))


def shrunk_gain(problem: Problem, gain: Difference, alone: Result) -> Difference:
    """The gain drawn towards a typical one, the more the less sure it is: w·g + (1 − w)·m, with the error √(w·s²).

    w = v/(v + s²), where s² = error² + (`MISSED`·e)², m = `TYPICAL`·e, v = (`VARIES`·e)², and e is what training alone
    lacks of the best score. Of a metric without a best value, the gain is as it is.
    """
    perfect = best_value(problem)
    if perfect is None or not isfinite(gain.value) or not isfinite(gain.error):
        return gain
    lacks = max(0.0, perfect - alone.score)
    noise, varies = gain.error**2 + (MISSED * lacks) ** 2, (VARIES * lacks) ** 2
    weight = varies / (varies + noise) if varies + noise > 0 else 0.0
    return Difference(weight * gain.value + (1 - weight) * TYPICAL * lacks, sqrt(weight * noise))


# Chance


SURE_ERRORS = 2.0  # standard errors that are not chance; the best of several candidates is often one ahead by chance
BY_ANSWERS = ("accuracy", "balanced_accuracy", "macro_f1")


def above_chance(problem: Problem, results: Sequence[Result]) -> bool:
    """Whether some candidate is clearly better than one prediction for all samples; True where that means nothing."""
    if problem.metric.name not in METRICS or problem.metric.name == "ece":  # class frequencies are calibrated
        return True
    return any(_above(problem, each.predictions) for each in results)


def _above(problem: Problem, predictions: Predictions) -> bool:
    same = constant(problem, predictions)

    def of(samples: Tensor | None) -> float:
        return problem.score(predictions, samples) - problem.score(same, samples)

    lead = with_error(of, predictions.client)
    return lead.value > SURE_ERRORS * lead.error


def constant(problem: Problem, predictions: Predictions) -> Predictions:
    """The same prediction for all of these samples: what training samples have on average."""
    federation = problem.federation
    if federation.classes is None:
        prediction = federation.y.cpu()[federation.split("train").indices].double().mean(0).reshape(1, -1)
    else:
        counts = federation.class_counts("train").sum(0).double()
        prediction = (counts / counts.sum())[None]
    return Predictions(predictions.client, predictions.y, prediction.float().expand(len(predictions), -1))
