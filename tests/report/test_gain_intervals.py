"""Intervals of clients' gains: values by hand, coverage by simulation; and what gains are related to."""

import numpy as np
import pytest
import torch
from scipy.special import stdtrit

from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.predictions import Predictions
from stratafl.report.gains.gain_intervals import Noise, gain_limits, noise_of_means, pooled
from stratafl.report.gains.sample_noise import ClientScores, paired_noise
from stratafl.report.gains.traits import average_ranks, dependences, spearman, thirds, traits_of


def one(x):
    return np.array([float(x)])


def of_means(differences, client=None, bound=1.0, counted=True):
    """The interval of each client, from the differences of its samples with each seed."""
    differences = np.asarray(differences, dtype=float)
    client = np.zeros(differences.shape[1], dtype=int) if client is None else client
    gains, noise = noise_of_means(differences, client, int(client.max()) + 1)
    return gains, noise, gain_limits(gains, noise, bound, counted)


def test_an_interval_by_hand():
    gains, noise, found = of_means([[1, 0, 0, 0]])
    assert (gains[0, 0], noise.size[0], noise.variance[0]) == pytest.approx((0.25, 4, 0.75 / 16))
    variance = (0.75 + 2 + 2 * 4 * 0.25**2 / 6) / 6**2
    centre, half = 0.25 * 4 / 6, 2.5706 * variance**0.5  # t of 4 + 2 − 1 degrees of freedom
    assert (found.low[0], found.high[0]) == pytest.approx((centre - half, centre + half), rel=1e-4)


@pytest.mark.parametrize("kind", ["counted", "bounded", "unbounded"])
def test_the_smoothing_is_that_of_two_more_samples(kind):
    """One for, one against: the mean and variance of n + 2 differences, as Bonett and Price have it for shares."""
    x = np.array([1, 1, 0, 0, 0, -1, 0, 1.0]) / (1 if kind == "counted" else 4)
    _, _, found = of_means([x], bound=None if kind == "unbounded" else 1.0, counted=kind == "counted")
    own = ((x - x.mean()) ** 2).sum()
    usual = {"counted": 1, "bounded": (own + 1) / (len(x) + 1), "unbounded": own / len(x)}[kind]
    more = np.append(x, np.array([1, -1]) * usual**0.5)
    half = stdtrit(len(more) - 1, 0.975) * (more.var() / len(more)) ** 0.5
    centre = more.mean() if kind == "counted" else x.mean()
    assert (found.low[0], found.high[0]) == pytest.approx((centre - half, centre + half), rel=1e-3)


def test_the_variance_of_means_is_that_of_a_bootstrap():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 30)) + rng.normal(size=30)
    drawn = x[:, rng.integers(0, 30, (20000, 30))].mean(axis=2)  # [S, B]
    _, exact, _ = of_means(x)
    assert drawn.mean(axis=0).var() == pytest.approx(exact.variance[0], rel=0.05)
    between = (drawn - drawn.mean(axis=0)).var(axis=1).sum() / 2  # of three seeds
    assert between == pytest.approx(exact.explained[0], rel=0.05)


def test_seeds_that_share_samples_do_not_average_their_noise_out():
    """The same differences with three seeds say no more than with one; with other samples they do."""
    x = np.random.default_rng(0).choice([-1, 0, 1], 40).astype(float)
    _, once, _ = of_means([x])
    _, shared, _ = of_means([x, x, x])
    apart = pooled([once, once, once])
    assert shared.variance == pytest.approx(once.variance)
    assert shared.explained == pytest.approx(0)
    assert apart.variance == pytest.approx(once.variance / 3)
    assert (apart.size, apart.explained) == (one(120), once.variance)


def test_seeds_that_differ_widen_the_interval():
    size, small = np.full(4, 1000.0), np.full(4, 1e-6)
    near = gain_limits(np.tile([[0.10], [0.11], [0.12]], 4), Noise(size, small, small))
    far = gain_limits(np.tile([[-0.2], [0.11], [0.42]], 4), Noise(size, small, small))
    assert near.low[0] > 0
    assert far.low[0] < 0 < far.high[0]


def test_what_test_samples_explain_of_the_seeds_is_not_counted_twice():
    spread, variance = np.array([[0.1], [0.2], [0.3]]), one(0.002)  # their variance between seeds is 0.01
    explained = gain_limits(spread, Noise(one(50), variance, one(0.01)))
    without_seeds = gain_limits(np.array([[0.2]]), Noise(one(50), variance, one(0)))
    assert (explained.low[0], explained.high[0]) == pytest.approx((without_seeds.low[0], without_seeds.high[0]))
    half = gain_limits(spread, Noise(one(50), variance, one(0.005)))
    assert half.low < explained.low


@pytest.mark.parametrize("samples", [1, 2, 5])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_few_samples_that_agree_are_no_certainty(samples, value):
    _, _, found = of_means([[value] * samples])
    assert found.high[0] - found.low[0] > 0.3
    assert found.low[0] < 0 < found.high[0] or (samples == 5 and value == 1)  # five of five: p = 0.06


def test_many_samples_that_agree_are_one():
    _, _, found = of_means([[0.0] * 2000])
    assert 0 < found.high[0] < 0.005
    _, _, found = of_means([[1.0] * 50])
    assert 0.8 < found.low[0] < found.high[0] == 1  # cut where accuracies end


def test_losses_have_no_bound_and_a_loss_that_is_the_same_tells_nothing():
    _, _, found = of_means([[5.0, 5.5, 6.0, 5.2]], bound=None)
    assert found.high[0] > 5 > 0
    _, _, same = of_means([[0.0, 0.0]], bound=None)
    assert (same.low[0], same.high[0]) == (0, 0)  # which is no gain


def false_verdicts(rng, seeds, samples, differ, noise, shared, effect=0.0):
    """How many clients of a federation of 20 get a verdict, if samples differ that often and seeds that much."""
    clients = 20
    sticky = rng.random((1, clients, samples)) < 0.5  # differ in the same way with every seed

    def draw(likely):
        each = rng.random((seeds, clients, samples)), rng.random((1, clients, samples))
        return np.where(sticky, np.broadcast_to(each[1], each[0].shape), each[0]) < likely

    shift = rng.normal(0, noise, (seeds, 1 if shared else clients, 1)) + effect
    signs = np.where(draw(np.clip(0.5 + shift / (2 * differ), 0, 1)), 1, -1)
    x = (draw(differ) * signs).reshape(seeds, -1)
    _, _, found = of_means(x, np.repeat(np.arange(clients), samples))
    return (found.low > 0).mean(), (found.high < 0).mean()


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(("samples", "differ"), [(8, 0.4), (60, 0.3), (200, 0.2)])
@pytest.mark.parametrize("shared", [False, True])
def test_clients_without_a_difference_get_a_verdict_in_about_one_of_twenty_cases(seeds, samples, differ, shared):
    rng = np.random.default_rng(1)
    noise = 0.03 if seeds > 1 else 0  # the noise of training, of which one seed knows nothing
    wrong = [sum(false_verdicts(rng, seeds, samples, differ, noise, shared)) for _ in range(60)]
    assert np.mean(wrong) < 0.08
    assert np.mean(wrong) > 0.015 or samples < 60  # few samples are rarely enough for a verdict


def test_a_true_difference_is_found():
    rng = np.random.default_rng(2)
    found = [false_verdicts(rng, 3, 150, 0.3, 0.02, True, effect=0.15) for _ in range(20)]
    better, worse = np.mean(found, axis=0)
    assert better > 0.75
    assert worse < 0.005


def test_size_skew_and_distance_by_hand():
    found = traits_of([[8, 0], [6, 2], [0, 4], [0, 0]])
    assert found.samples.tolist() == [8, 8, 4, 0]
    assert found.skew[:3] == pytest.approx([0.3, 0.05, 0.7])  # from 14/20 and 6/20
    assert found.distance[:3] == pytest.approx([(0.25 + 1) / 2, (0.25 + 0.75) / 2, (1 + 0.75) / 2])
    assert np.isnan(found.skew[3])
    assert np.isnan(found.distance[3])
    assert traits_of([[3], [5]]).skew is None


def test_only_the_nearest_count():
    """Two groups of clients: whoever has others of its kind is near, however unlike the federation it is."""
    found = traits_of([[9, 0, 0]] * 4 + [[0, 9, 0]] * 4 + [[0, 0, 9]])
    assert found.distance == pytest.approx([0] * 8 + [1])


def test_the_correlation_is_spearmans():
    from scipy.stats import spearmanr  # takes a second to import

    rng = np.random.default_rng(0)
    x = rng.integers(0, 6, 60).astype(float)  # with ties
    y = 0.5 * x + rng.normal(size=60)
    found = spearman(x, y)
    assert found.mean == pytest.approx(spearmanr(x, y).statistic)
    assert 0 < found.low < found.mean < found.high < 1
    assert average_ranks(np.array([3.0, 1, 3, 2])).tolist() == [3.5, 1, 3.5, 2]
    assert spearman(x, y) == found  # the same draws
    assert spearman(x[:7], y[:7]) is None
    assert spearman(np.ones(20), y[:20]) is None


def test_thirds_have_their_mean_gain_and_clients_without_a_trait_are_left_out():
    values = [1, 2, 3, 4, 5, 6, 7]
    parts = thirds("training samples", np.array(values, dtype=float), np.array(values) / 10)
    assert [(each.name, each.least, each.most, each.clients) for each in parts] == [
        ("smallest", 1, 3, 3),
        ("middle", 4, 5, 2),
        ("largest", 6, 7, 2),
    ]
    assert [each.gain for each in parts] == pytest.approx([0.2, 0.45, 0.65])
    (only,) = dependences([0.1] * 3, {"training samples": [1, None, 3], "class skew": [None, None, None]})
    assert (only.trait, only.correlation, only.thirds) == ("training samples", None, ())


def scores_of(rng, metric, classes):
    """Three clients of 30, 60 and 9 samples, and one with a single class; probabilities with some ties."""
    client = np.repeat([0, 1, 2, 3], [30, 60, 9, 5])
    y = np.where(client == 3, 0, rng.integers(0, classes, len(client)))

    def drawn():
        raw = torch.as_tensor(rng.normal(size=(len(y), classes)).round(1)) + 1.5 * torch.eye(classes)[y]
        return Predictions(torch.as_tensor(client), torch.as_tensor(y), raw.softmax(-1).float())

    return [ClientScores(drawn(), METRICS[metric]) for _ in range(2)]


def bootstrap_variance(method, alone, client, times=1500):
    """The variance of a client's difference over resamples of its samples, the same for both models."""
    places = np.flatnonzero(method.predictions.client.numpy() == client)
    drawn = torch.as_tensor(np.random.default_rng(0).choice(places, (times, len(places))))
    values = [
        side.metric(side.predictions.y[drawn], side.predictions.scores[drawn], torch.ones(drawn.shape))
        for side in (method, alone)
    ]
    return float(np.nanvar((values[0] - values[1]).numpy()))


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "auroc", "log_loss", "macro_f1", "auprc"])
def test_values_of_samples_give_the_score_and_the_variance_of_a_bootstrap(metric, classes):
    method, alone = scores_of(np.random.default_rng(3), metric, classes)
    sums = np.bincount(method.place, method.of_samples, minlength=4)
    assert sums / method.samples == pytest.approx(method.values, nan_ok=True)
    noise = paired_noise([(method, alone)], method.ids)
    drawn = [bootstrap_variance(method, alone, client) for client in (0, 1)]
    assert noise.variance[:2] == pytest.approx(drawn, rel=0.35)


def test_auroc_is_as_certain_as_its_rarer_class():
    client, y = [0] * 12 + [1] * 12, [1] + [0] * 11 + [1, 0] * 6
    scores = torch.full((24, 2), 0.5)
    found = ClientScores(Predictions(torch.tensor(client), torch.tensor(y), scores), METRICS["auroc"])
    assert found.size == pytest.approx([1 / (1 + 1 / 11), 3])
