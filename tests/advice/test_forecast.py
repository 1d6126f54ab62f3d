"""The gain that is forecast: measured on samples that did not choose, and drawn towards a typical one."""

from math import sqrt
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from stratafl.advice.candidate_methods import Candidate
from stratafl.advice.forecast import MISSED, TYPICAL, VARIES, crossed_gain, halves, shrunk_gain
from stratafl.advice.problem import Result
from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.predictions import Predictions
from stratafl.report.jackknife import Difference


def problem(metric="accuracy"):
    def score(predictions, samples=None):
        chosen = predictions if samples is None else predictions.at(samples)
        return METRICS[metric].sign * chosen.average(METRICS[metric], "samples")

    return SimpleNamespace(metric=METRICS[metric], over="samples", rounds=8, score=score)


def guessing(name, rng, count=120, right=0.6):
    """A candidate that is right about as often as all others, by chance."""
    y = torch.zeros(count, dtype=torch.int64)
    hits = torch.from_numpy(rng.random(count) < right)
    scores = torch.stack([hits.float(), 1 - hits.float()], 1)
    answers = Predictions(torch.arange(count) % 4, y, scores)
    return Result(Candidate(name), {1: answers}, answers, score=float(hits.double().mean()))


def test_the_best_of_many_that_are_alike_is_expected_to_gain_nothing(monkeypatch):
    monkeypatch.setattr("stratafl.advice.forecast.with_error", lambda of, client: Difference(of(None), 0.0))
    crossed, chosen_by_all = [], []
    for seed in range(1000, 1030):
        rng = np.random.default_rng(seed)
        alone, *others = (guessing(name, rng) for name in ("local", *"abcdefgh"))
        crossed.append(crossed_gain(problem(), [alone, *others], alone).value)
        chosen_by_all.append(max(each.score for each in others) - alone.score)
    assert np.mean(chosen_by_all) > 0.05  # the winner's curse
    assert abs(np.mean(crossed)) < 0.5 * np.mean(chosen_by_all)


def test_both_halves_have_samples_of_every_client_and_none_in_common():
    client = torch.tensor([0] * 6 + [1] * 9)
    first, second = halves(client)
    assert sorted(torch.cat([first, second]).tolist()) == list(range(15))
    assert client[first].bincount().tolist() in ([3, 4], [3, 5])


def test_a_gain_is_drawn_towards_a_typical_one_by_hand():
    """Training alone lacks 0.4: with w = v/(v + s²) it is w·0.2 + (1 − w)·m, and its error is √(w·s²)."""
    alone = SimpleNamespace(score=0.6)
    forecast = shrunk_gain(problem(), Difference(0.2, 0.05), alone)
    assert (TYPICAL, VARIES, MISSED) == (0.075, 0.15, 0.14)
    weight = 0.0036 / (0.0036 + 0.0025 + 0.003136)
    assert forecast.value == pytest.approx(weight * 0.2 + (1 - weight) * 0.03) == pytest.approx(0.09626, abs=1e-5)
    assert forecast.error == pytest.approx(sqrt(weight * 0.005636)) == pytest.approx(0.04687, abs=1e-5)


def test_where_nothing_is_left_to_gain_none_is_forecast_and_an_unknown_scale_is_left_alone():
    nothing = shrunk_gain(problem(), Difference(0.0, 0.0), SimpleNamespace(score=1.0))
    assert (nothing.value, nothing.error) == (0.0, 0.0)
    own = SimpleNamespace(metric=SimpleNamespace(name="own", larger_is_better=True))
    assert shrunk_gain(own, Difference(3.0, 1.0), SimpleNamespace(score=0.0)) == Difference(3.0, 1.0)
