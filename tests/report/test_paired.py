"""Paired differences: bootstraps that are enumerated by hand, how often chance is taken for a difference, sentences."""

import csv
import io
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.special import stdtr, stdtrit
from written_runs import as_regression, rewrite, write_run

from stratafl.cli import main as strata
from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.predictions import Predictions
from stratafl.report import gather
from stratafl.report import sentences as say
from stratafl.report.bootstrap import Uncertainty, of_these, sharing, uncertainty, usual_variance
from stratafl.report.decision import ranking_lead
from stratafl.report.gains.sample_noise import ClientScores
from stratafl.report.intervals import Interval, t_quantile, t_tail, unbounded
from stratafl.report.pair_tables import pairs_csv, pairs_table
from stratafl.report.paired import (
    MAX_FORECAST_SEEDS,
    Paired,
    ScoredRun,
    _by_partition,
    _more_seeds,
    _sample_variance,
    _tested_share,
    client_differences,
    holm,
    pair_of,
    pairs,
    scored_runs,
)
from stratafl.report.ranking_tables import ranking_table
from stratafl.report.run_facts import varied_parts

ONES = np.ones((2, 2))


@pytest.mark.parametrize("freedom", [0.5, 1, 2, 3.7, 19, 1000])
def test_students_t_is_that_of_scipy(freedom):
    for t in (0.0, 0.3, 1.0, 4.3, 60.0):
        assert t_tail(t, freedom) == pytest.approx(2 * stdtr(freedom, -t), rel=1e-6)
    for p in (0.5, 0.05, 0.001):
        assert t_quantile(p, freedom) == pytest.approx(-stdtrit(freedom, p / 2), rel=1e-6)


# How sure a mean is


def enumerated(values, weights, crossed):
    """The corrected variances between seeds and between clients, over all bootstrap samples of two of each."""

    def mean(seed, clients):
        return np.average(values[seed, list(clients)], weights=weights[seed, list(clients)])

    whole = [mean(seed, (0, 1)) for seed in (0, 1)]
    draws, of_seeds, of_clients = list(product((0, 1), repeat=2)), [], []
    for seeds in draws:
        of_seeds.append(np.mean([whole[s] for s in seeds]))
        for one, other in product(draws, draws):
            clients = (one, one) if crossed else (one, other)
            drawn = [mean(seed, some) for seed, some in zip(seeds, clients, strict=True)]
            of_clients.append(np.mean(drawn) - of_seeds[-1])
    return 2 * np.var(of_seeds), 2 * np.var(of_clients)  # n/(n − 1) = 2 for both


@pytest.mark.parametrize("crossed", [True, False])
@pytest.mark.parametrize("weights", [ONES, np.array([[1.0, 3.0], [2.0, 5.0]])])
def test_variances_are_those_of_all_bootstrap_samples(crossed, weights):
    values = np.array([[0.1, 0.5], [0.2, 0.9]])
    found = uncertainty(values, weights, crossed)
    expected = enumerated(values, weights, crossed)
    assert (found.between_seeds, found.between_clients) == pytest.approx(expected, rel=0.06)  # 2,000 draws
    assert found.mean == pytest.approx(
        np.mean([np.average(v, weights=w) for v, w in zip(values, weights, strict=True)])
    )


def test_the_variance_between_seeds_by_hand():
    found = uncertainty(np.array([[0.0], [0.1], [0.5]]), np.ones((3, 1)), crossed=True)
    assert found.mean == pytest.approx(0.2)
    assert found.between_seeds == pytest.approx(0.07 / 3, rel=0.06)  # s² = (0.04 + 0.01 + 0.09) / 2
    assert found.between_clients == 0
    error = np.sqrt(found.between_seeds)
    assert found.interval().high == pytest.approx(0.2 + 4.3027 * error, rel=1e-4)
    assert found.p == pytest.approx(2 * stdtr(2, -0.2 / error), rel=1e-4)


def test_clients_that_are_the_same_with_every_seed_do_not_become_more():
    own = np.random.default_rng(0).normal(size=(1, 20))  # what a method does for each client, with every seed
    every = np.repeat(own, 5, axis=0)
    crossed, nested = (uncertainty(every, np.ones((5, 20)), way) for way in (True, False))
    variance = own.var(ddof=1) / 20
    assert crossed.between_clients == pytest.approx(variance, rel=0.1)
    assert nested.between_clients == pytest.approx(variance / 5, rel=0.1)
    assert crossed.with_seeds(1000).between_clients == pytest.approx(crossed.between_clients)
    assert nested.with_seeds(50).between_clients == pytest.approx(nested.between_clients / 10)


def test_the_tail_is_averaged_by_shares_of_the_variance():
    nested = Uncertainty(1.0, 0.01, 0.03, 0.0, 3, 5.0, False, 15, 2)
    expected = 0.25 * 2 * stdtr(2, -5) + 0.75 * 2 * stdtr(3 * 4, -5)  # 3 seeds of 5 clients; 1 / √0.04 = 5
    assert nested.p == pytest.approx(expected)
    assert replace(nested, crossed=True).p == pytest.approx(0.25 * 2 * stdtr(2, -5) + 0.75 * 2 * stdtr(4, -5))


def test_a_seed_with_other_clients_draws_its_own():
    values, weights = np.array([[0.0, 0.0, 0.4], [0.1, 0.5, 0.0]]), np.array([[0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    found = uncertainty(values, weights, crossed=False)
    # A seed with one client always has its 0.4. Of the other, two clients of 0.1 and 0.5 are drawn: variance 0.02,
    # a quarter of that for each time it is drawn itself (once on average), times m/(m − 1) = 2.
    assert found.between_clients == pytest.approx(0.02 / 4 * 2, rel=0.15)


def test_what_seeds_do_to_single_clients_shrinks_with_more_seeds():
    values = np.random.default_rng(1).normal(size=(5, 40))
    found = uncertainty(values, np.ones((5, 40)), crossed=True)
    assert found.of_both == pytest.approx(1 / 200, rel=0.3)
    assert found.with_seeds(5000).between_clients < 0.6 * found.between_clients


def test_many_clients_are_drawn_in_groups():
    rng = np.random.default_rng(2)
    values, weights = rng.normal(size=(1, 5000)), rng.integers(1, 9, size=(1, 5000)).astype(float)
    share = weights / weights.sum()
    mean = (share * values).sum()
    found = uncertainty(values, weights, crossed=True)
    assert found.mean == pytest.approx(mean)
    assert found.between_clients == pytest.approx((share**2 * (values - mean) ** 2).sum(), rel=0.15)


def test_equal_differences_are_no_proof_if_there_are_few():
    two = uncertainty(np.full((2, 1), 0.1), np.ones((2, 1)), crossed=True)
    assert two.p == 0.5  # a coin that falls on the same side twice
    assert uncertainty(np.full((3, 9), 0.1), np.ones((3, 9)), crossed=True).p < 1e-7
    assert uncertainty(np.zeros((3, 9)), np.ones((3, 9)), crossed=True).p == 1.0


def test_two_seeds_with_equal_means_prove_nothing_for_their_clients():
    values = np.random.default_rng(0).normal(0.002, 0.05, 20)
    found = uncertainty(np.stack([values, values[::-1]]), np.ones((2, 20)), crossed=True)
    assert of_these(found, 0.0, 100).p >= 0.5


def of_variance(variance, seeds=3):
    return Uncertainty(1.0, variance, 0.0, 0.0, seeds, 1.0, True, seeds, seeds - 1)


def test_pairs_whose_variances_are_alike_share_half_of_them():
    first, alone = sharing([of_variance(1.0), of_variance(2.0), of_variance(6.0), of_variance(9.0, seeds=4)])[::3]
    usual = 12 ** (1 / 3) * np.exp(np.euler_gamma)  # the geometric mean; E ln(χ²(2)/2) is −γ
    assert (first.between_seeds, first.seed_freedom) == (pytest.approx((1 + usual) / 2), 4)
    assert alone == of_variance(9.0, seeds=4)  # no other pair has as many seeds
    two = [of_variance(1.0), of_variance(2.0)]
    assert sharing(two) == two  # two pairs say little about what is usual
    assert sharing([of_variance(0.0)] * 3) == [of_variance(0.0)] * 3


def test_what_variances_have_in_common_is_found_again():
    """True variances d₀s₀²/χ²(d₀) with d₀ = 3 and s₀² = 5, estimated with 9 degrees of freedom (Smyth 2004)."""
    rng = np.random.default_rng(0)
    true = 3 * 5 / rng.chisquare(3, 20_000)
    usual, weight = usual_variance(true * rng.chisquare(9, 20_000) / 9, 9)
    assert (usual, weight) == (pytest.approx(5, rel=0.03), pytest.approx(3, rel=0.03))


def test_rows_with_equal_scores_neither_share_nor_keep_others_from_sharing():
    equal = Uncertainty(0.0, 0.0, 0.0, 0.0, 3, 1.0, True, 3, 2)
    others = [of_variance(1.0), of_variance(2.0), of_variance(6.0)]
    assert sharing([equal, *others]) == [equal, *sharing(others)]


def test_a_noisy_method_does_not_hide_what_the_others_show():
    quiet, *noisy = sharing([of_variance(0.12), of_variance(53.0), of_variance(53.0)])
    assert quiet.between_seeds < 1
    assert all(each.between_seeds > 30 for each in noisy)


def test_holm_by_hand():
    adjusted, level = holm([0.04, 0.001, 0.03])
    assert adjusted == pytest.approx([0.06, 0.003, 0.06])  # 3 · 0.001; 2 · 0.03; 0.04, which cannot be below 0.06
    assert level == pytest.approx(0.025)  # the second of three is tested at 5 % / 2
    assert holm([0.6, 0.9]) == ([1.0, 1.0], 0.025)
    assert holm([]) == ([], 0.05)


def found_by_chance(seeds, crossed, of_seeds, of_clients, times, methods=3, lead=0.0):
    """How often one of the pairs of methods is found different; only the first method has a lead."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(times):
        scores = of_seeds * rng.normal(size=(methods, seeds, 1)) + rng.normal(size=(methods, seeds, 20))
        scores += of_clients * rng.normal(size=(methods, 1 if crossed else seeds, 20))
        scores[0] += lead
        weights = np.broadcast_to(rng.integers(5, 50, size=(1 if crossed else seeds, 20)), (seeds, 20)).astype(float)
        each = [scores[i] - scores[j] for i in range(methods) for j in range(i)]
        hits += min(holm([est.p for est in sharing([uncertainty(d, weights, crossed) for d in each])])[0]) < 0.05
    return hits / times


CASES = [(crossed, of_seeds, of_clients) for crossed in (True, False) for of_seeds, of_clients in ((0.2, 0.5), (2, 1))]


@pytest.mark.parametrize(("crossed", "of_seeds", "of_clients"), [CASES[0], CASES[3]])
def test_chance_is_rarely_taken_for_a_difference(crossed, of_seeds, of_clients):
    assert found_by_chance(3, crossed, of_seeds, of_clients, times=40) <= 0.1
    assert found_by_chance(3, crossed, of_seeds, of_clients, times=5, lead=12 * (of_seeds + of_clients)) >= 0.8


# Each number of seeds and methods with each kind of clients and each strength of noise once.
COVERING = [
    ((2, 2), CASES[0]),
    ((3, 2), CASES[1]),
    ((10, 2), CASES[2]),
    ((3, 4), CASES[3]),
    ((3, 2), (True, 0, 1)),
    ((2, 2), (False, 0, 0)),
]
FULL = [
    (sizes, noise) for sizes in ((2, 2), (3, 2), (10, 2), (3, 4)) for noise in (*CASES, (True, 0, 1), (False, 0, 0))
]
SLOW_OR_NIGHTLY = [
    pytest.param(*case, marks=pytest.mark.slow if case in COVERING else pytest.mark.nightly) for case in FULL
]


@pytest.mark.parametrize(("sizes", "noise"), SLOW_OR_NIGHTLY)
def test_chance_is_taken_for_a_difference_in_at_most_seven_of_a_hundred(sizes, noise):
    (seeds, methods), (crossed, of_seeds, of_clients) = sizes, noise
    allowed = 0.07 if seeds > 2 else 0.085
    times = 600 if methods == 2 else 250
    rate = found_by_chance(seeds, crossed, of_seeds, of_clients, times, methods)
    assert rate <= allowed + 2 * np.sqrt(allowed * (1 - allowed) / times)


def missed(seeds, crossed, of_seeds, of_clients, times, methods):
    """How many of the intervals of pairs without a difference do not hold 0."""
    rng, lost, count = np.random.default_rng(1), 0, 0
    for _ in range(times):
        scores = of_seeds * rng.normal(size=(methods, seeds, 1)) + rng.normal(size=(methods, seeds, 20))
        scores += of_clients * rng.normal(size=(methods, 1 if crossed else seeds, 20))
        each = [scores[i] - scores[j] for i in range(methods) for j in range(i)]
        found = sharing([uncertainty(d, np.ones((seeds, 20)), crossed) for d in each])
        lost, count = lost + sum(one.interval().beyond_noise for one in found), count + len(found)
    return lost / count


@pytest.mark.parametrize(("sizes", "noise"), SLOW_OR_NIGHTLY)
def test_intervals_hold_the_difference_in_94_of_a_hundred(sizes, noise):
    (seeds, methods), (crossed, of_seeds, of_clients) = sizes, noise
    allowed, times = 0.06 if seeds > 2 else 0.085, 300 if methods == 2 else 80
    rate = missed(seeds, crossed, of_seeds, of_clients, times, methods)
    assert rate <= allowed + 2 * np.sqrt(allowed * (1 - allowed) / times)


# How many more seeds


def test_as_many_more_seeds_as_are_said_are_enough_and_one_less_is_not():
    values = np.array([[0.02, 0.05, -0.01], [-0.02, 0.04, 0.0], [0.01, 0.06, -0.02]])
    (found,) = sharing([uncertainty(values, np.ones((3, 3)), crossed=False)])
    more, limited = _more_seeds(found, 0.05)
    assert more is not None
    assert not limited
    assert more > 1
    assert found.with_seeds(3 + more).tells(0.05)
    assert not found.with_seeds(2 + more).tells(0.05)
    stricter, _ = _more_seeds(found, 0.01)
    assert stricter is None or stricter > more


def test_more_seeds_do_not_help_where_clients_disagree():
    own = np.array([[0.3, -0.3, 0.2, -0.1]])
    values = np.repeat(own, 3, axis=0) + np.array([[0.01], [0.0], [-0.01]])
    (found,) = sharing([uncertainty(values, np.ones((3, 4)), crossed=True)])
    assert _more_seeds(found, 0.05) == (None, True)
    these = of_these(found, 0.0, 100)  # other clients are not the question: 0.025 ± 0.006 with other seeds
    assert these.p == pytest.approx(2 * stdtr(2, -0.025 / np.sqrt(1e-4 / 3)), rel=0.1)
    assert these.p < found.p
    unsure = of_these(found, 0.04**2, 100)  # their test samples are too few
    assert unsure.p > 0.4
    assert _more_seeds(unsure, 0.05) == (None, True)


@pytest.mark.parametrize("lead", [0.03, 0.06])
def test_so_many_seeds_as_are_forecast_tell_in_four_of_five(lead):
    rng, told, times = np.random.default_rng(0), 0, 400
    known = Uncertainty(lead, 0.03**2 / 3, 0.01**2, 0.0, 3, 20.0, False, 60, 2)
    more, _ = _more_seeds(known, 0.05)
    seeds = 3 + more
    for _ in range(times):
        values = lead + 0.03 * rng.normal(size=seeds) + 0.01 * rng.normal()
        between = values.var(ddof=1) / seeds
        told += Uncertainty(values.mean(), between, 0.01**2, 0.0, seeds, 20.0, False, 60, seeds - 1).p < 0.05
    assert told / times >= 0.72


# Clients that the data names


def of_samples(rng, seeds, shared, clients=8, rows=40, tested=10, lead=0.0):
    """Couples of two methods that are right equally often; every seed tests some rows of a client."""
    right = rng.random((2, clients, rows)) < np.array([0.6 + lead, 0.6])[:, None, None]
    couples, values = [], []
    for seed in range(seeds):
        if seed == 0 or not shared:
            some = np.stack([rng.permutation(rows)[:tested] for _ in range(clients)])
        hits = np.take_along_axis(right, np.broadcast_to(some, (2, *some.shape)), axis=2)
        couples.append(tuple(ScoredRun(None, 0.0, {}, scores_of(each)) for each in hits))
        values.append(hits.mean(2)[0] - hits.mean(2)[1])
    return couples, np.array(values)


def scores_of(hits):
    """As if class 1 were right everywhere."""
    given = torch.from_numpy(hits.flatten()).double()
    client = torch.arange(len(hits)).repeat_interleave(hits.shape[1])
    found = Predictions(client, torch.ones(len(given), dtype=torch.int64), torch.stack([1 - given, given], 1))
    return ClientScores(found, METRICS["accuracy"])


@pytest.mark.parametrize(("shared", "of_seeds_alone"), [(True, 0.0), (False, 0.1)])
def test_for_these_clients_chance_in_their_samples_is_rarely_taken_for_a_difference(
    shared, of_seeds_alone, monkeypatch
):
    monkeypatch.setattr("stratafl.report.paired._tested_share", lambda one: 0.25)
    rng, wrong, naive, times = np.random.default_rng(1), 0, 0, 40
    weights = dict.fromkeys(range(8), 1 / 8)
    for _ in range(times):
        couples, values = of_samples(rng, 5, shared)
        found = uncertainty(values, np.ones(values.shape), crossed=True)
        wrong += of_these(found, *_sample_variance(couples, weights)).p < 0.05
        naive += of_these(found, 0.0, 80).p < 0.05  # as if seeds were all there is
    assert wrong / times <= 0.1
    assert naive / times >= of_seeds_alone


# Sentences, from runs


def write(place, of=None, **scores):
    """Runs with these scores by seed; client i of 4 is i hundredths below, and `of` adds more to client 0."""
    for name, values in scores.items():
        for seed, value in enumerate(values):
            folder = write_run(place / f"{name}{seed}", [value / 2, value], name=name, seed=seed)
            rng = np.random.default_rng(seed + len(name))
            shift = (of or {}).get(name, 0.0)
            rewrite(folder / "clients.jsonl", lambda line, rng=rng, shift=shift: jittered(line, rng, shift))
    return gather([place])


def jittered(line, rng, shift):
    return {**line, "test.deployed.accuracy": line["test.deployed.accuracy"] + shift + 0.02 * float(rng.normal())}


def test_the_difference_is_that_of_the_scores(tmp_path):
    study = write(tmp_path, fedavg=(0.5, 0.52, 0.51), local=(0.8, 0.83, 0.8))
    (pair,) = pairs(study.ranks)
    assert (pair.first, pair.second, pair.seeds, pair.clients) == ("local", "fedavg", 3, 4)
    assert pair.difference.mean == pytest.approx(0.3)  # (0.3 + 0.31 + 0.29) / 3
    assert pair.verdict == "better"
    assert pair.more_seeds is None
    assert pair.sentence == say.PAIR_BETTER.format(first="local", second="fedavg", evidence=pair.evidence)
    assert pair.evidence.startswith("30.0 points, 95 % interval 2")
    assert pairs(study.ranks) == [pair]  # the same every time


def test_clients_count_by_their_samples_or_equally(tmp_path):
    study = write(tmp_path, fedavg=(0.5,), local=(0.8,))
    one, other = scored_runs(study.ranks).values()
    found = client_differences(one, other)
    assert {client: weight for client, (_, weight) in found.items()} == pytest.approx(
        {client: (4 + client) / 22 for client in range(4)}
    )
    assert sum(difference * weight for difference, weight in found.values()) == pytest.approx(0.3)
    config = one.outcome.config
    config = {**config, "evaluate": {**config["evaluate"], "average": "clients"}}
    equal = replace(one, outcome=replace(one.outcome, config=config))
    assert [weight for _, weight in client_differences(equal, other).values()] == [0.25] * 4


def test_what_cannot_be_told_says_how_many_more_seeds_would(tmp_path):
    (pair,) = pairs(write(tmp_path, fedavg=(0.7, 0.75, 0.72), local=(0.74, 0.75, 0.75)).ranks)
    assert pair.verdict == "unclear"
    assert pair.sentence.startswith("local vs fedavg")
    assert f"{pair.more_seeds} further seeds" in pair.sentence


def test_one_seed_gives_no_verdict_however_large_the_difference(tmp_path):
    study = write(tmp_path, fedavg=(0.2,), local=(0.9,))
    (pair,) = pairs(study.ranks)
    assert (pair.verdict, pair.p, pair.adjusted) == ("unclear", 1.0, 1.0)
    assert pair.difference == unbounded(pytest.approx(0.7))
    assert pair.sentence == say.PAIR_ONE_SEED.format(first="local", second="fedavg", distance="70.0 points")
    (line,) = csv.DictReader(io.StringIO(pairs_csv([pair])))
    assert (float(line["difference"]), line["low"], line["high"]) == (pytest.approx(0.7), "", "")
    behind = list(csv.DictReader(io.StringIO(ranking_table(study).csv)))[1]
    assert (float(behind["difference"]), behind["difference_low"]) == (pytest.approx(-0.7), "")
    assert [cell.shown for cell in pairs_table([pair]).rows[0]][3:] == ["–", "–", "one seed", "–"]


# Planned pairs, and methods that are the same

FIVE = {"fedper": 0.80, "fedrep": 0.78, "flayer": 0.90, "local": 0.70, "fedavg": 0.60}


def three_seeds(score):
    return (score, score + 0.01, score - 0.01)


def test_each_method_is_planned_to_be_compared_with_alone_and_shared_and_corrected_for_these(tmp_path):
    study = write(tmp_path, **{name: three_seeds(score) for name, score in FIVE.items()})
    compared = pairs(study.ranks)
    assert len(compared) == 10
    planned = [pair for pair in compared if {pair.first, pair.second} & {"local", "fedavg"}]
    others = [pair for pair in compared if pair not in planned]
    assert {(pair.planned, pair.pairs) for pair in planned} == {(True, 7)}  # 3 methods with 2, and these 2
    assert {(pair.planned, pair.pairs) for pair in others} == {(False, 3)}
    for family in (planned, others):
        assert [pair.adjusted for pair in family] == pytest.approx(holm([pair.p for pair in family])[0])
    assert "7 pairs" in pairs_table(compared).caption


def test_without_alone_and_shared_all_pairs_are_corrected_together(tmp_path):
    study = write(tmp_path, **{name: three_seeds(FIVE[name]) for name in ("fedper", "fedrep", "flayer")})
    assert {(pair.planned, pair.pairs) for pair in pairs(study.ranks)} == {(False, 3)}


def test_methods_with_the_same_scores_in_every_round_count_once(tmp_path):
    scores = {name: three_seeds(FIVE[name]) for name in ("fedper", "local", "fedavg")}
    before = pairs(write(tmp_path / "before", **scores).ranks)
    write(tmp_path / "after", **scores)
    for seed, score in enumerate(three_seeds(FIVE["fedavg"])):  # FedBN without BatchNorm
        rng = np.random.default_rng(seed + len("fedavg"))
        folder = write_run(tmp_path / "after" / f"fedbn{seed}", [score / 2, score], name="fedbn", seed=seed)
        rewrite(folder / "clients.jsonl", lambda line, rng=rng: jittered(line, rng, 0.0))
    study = gather([tmp_path / "after"])
    after = pairs(study.ranks)
    assert len(after) == 6
    assert {pair.pairs for pair in after if pair.verdict != "same"} == {pair.pairs for pair in before} == {3}
    (same,) = [pair for pair in after if pair.verdict == "same"]
    assert {same.first, same.second} == {"fedavg", "fedbn"}
    assert (same.more_seeds, same.difference.mean) == (None, 0)
    assert same.sentence == say.PAIR_SAME.format(first=same.first, second=same.second)
    for rival in ("fedper", "local"):
        copy, original = pair_of(after, "fedbn", rival), pair_of(before, "fedavg", rival)
        assert replace(copy, first="fedavg") == original
    assert pairs_table(after) is not None


def test_equal_scores_of_other_models_are_not_the_same_method(tmp_path):
    write_run(tmp_path / "a", [0.5, 0.6], name="fedavg")
    folder = write_run(tmp_path / "b", [0.5, 0.6], name="fedper")
    (pair,) = pairs(gather([tmp_path]).ranks)
    assert pair.verdict == "same"
    rewrite(folder / "rounds.jsonl", lambda line: line | {"validation.deployed.loss": 0.3})
    (pair,) = pairs(gather([tmp_path]).ranks)
    assert pair.verdict == "unclear"


def test_two_seeds_say_nothing_absurd(tmp_path):
    study = write(tmp_path, fedavg=(0.7, 0.9), local=(0.84, 0.8))
    first, rivals = ranking_lead(study)
    assert (first.values["score"], first.values["basis"]) == ("82.0 %", "2 seeds: 84.0 % and 80.0 %")
    assert rivals.sentence == say.FIRST_UNCLEAR
    (pair,) = pairs(study.ranks)
    assert -1 <= pair.difference.mean <= 1
    assert "100.0" in pair.sentence or pair.difference.high < 1  # limits end where accuracies end


def test_methods_without_a_common_seed_are_not_compared(tmp_path):
    write_run(tmp_path / "a", [0.5], name="fedavg", seed=0)
    write_run(tmp_path / "b", [0.9], name="local", seed=1)
    study = gather([tmp_path])
    (pair,) = pairs(study.ranks)
    assert (pair.verdict, pair.adjusted, pair.seeds) == ("unclear", 1.0, 0)
    assert pair.sentence == say.PAIR_APART.format(first="local", second="fedavg")
    assert ranking_lead(study)[-1].values == {"methods": ["fedavg"]}
    assert "local,fedavg," in pairs_csv([pair])


def test_of_losses_the_lower_is_better(tmp_path):
    for name, losses in (("fedavg", (1.5, 1.52, 1.51)), ("local", (1.2, 1.21, 1.2))):
        for seed, loss in enumerate(losses):
            as_regression(write_run(tmp_path / f"{name}{seed}", [2 - loss], name=name, seed=seed))
    (pair,) = pairs(gather([tmp_path]).ranks)
    assert (pair.first, pair.verdict) == ("local", "better")
    assert pair.difference.mean < 0
    assert pair.evidence.startswith("0.307, 95 % interval 0.")


def test_a_sentence_has_the_values_of_its_pair():
    unclear = Paired("a", "b", Interval(0.02, 0.001, 0.04), 0.04, 0.24, "unclear", 3, 3, 20, pairs=6)
    assert unclear.evidence.startswith("2.0 points, 95 % interval 0.1 to 4.0, ")
    assert "6 pairs" in unclear.evidence
    assert unclear.sentence.endswith(say.OUTLOOK_SEEDS.format(seeds="3 further seeds"))
    assert replace(unclear, more_seeds=1).sentence.endswith(say.OUTLOOK_SEEDS.format(seeds="1 further seed"))
    assert str(MAX_FORECAST_SEEDS) in replace(unclear, more_seeds=None).sentence
    limited = replace(unclear, more_seeds=None, limited=True)
    assert limited.sentence.endswith(say.OUTLOOK_CLIENTS)
    here = replace(limited, about_these_clients=True)
    assert here.sentence.endswith(say.OUTLOOK_SAMPLES)
    assert here.evidence.endswith("for these clients")
    worse = replace(unclear, verdict="worse", difference=Interval(-0.0004, -0.0008, -0.0001))
    assert worse.sentence == say.PAIR_WORSE.format(
        first="a", second="b", evidence="0.04 points, 95 % interval 0.01 to 0.08"
    )


def test_a_pair_can_be_seen_from_either_side():
    pair = Paired("a", "b", Interval(0.02, 0.01, 0.04), 0.01, 0.01, "better", None, 3, 20)
    other = pair_of([pair], "b", "a")
    assert (other.first, other.verdict, other.difference) == ("b", "worse", Interval(-0.02, -0.04, -0.01))
    assert pair_of([pair], "a", "b") is pair
    assert pair_of([pair], "a", "c") is None


def test_all_pairs_are_a_table_and_csv(tmp_path):
    study = write(tmp_path, fedavg=(0.1, 0.12, 0.11), local=(0.8, 0.6, 0.76), fedper=(0.81, 0.75, 0.7))
    found = pairs(study.ranks)
    assert [(pair.first, pair.second) for pair in found] == [
        ("fedper", "local"),
        ("fedper", "fedavg"),
        ("local", "fedavg"),
    ]
    table = pairs_table(found)
    assert [row[5].shown for row in table.rows] == ["not significant", "fedper is better", "local is better"]
    assert table.csv.splitlines()[0].startswith("first,second,difference,low,high,p,p_adjusted,verdict")
    assert len(table.csv.splitlines()) == 4
    behind = list(csv.DictReader(io.StringIO(ranking_table(study).csv)))[1]  # local, minus the first
    assert float(behind["difference_low"]) == pytest.approx(-found[0].difference.high)
    assert "3 seeds, 4 clients" in table.caption
    assert pairs_table([]) is None
    _, better, unclear = ranking_lead(study)
    assert better.values["pairs"].startswith("fedavg (64.3 points, 95 % interval")
    assert (unclear.sentence, unclear.values["pairs"].split()[0]) == (say.FIRST_UNCLEAR, "local")


@pytest.mark.slow
def test_the_command_prints_the_pairs_with_the_first_and_writes_all(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    write(tmp_path / "runs", fedavg=(0.1, 0.12, 0.11), local=(0.8, 0.6, 0.76), fedper=(0.81, 0.75, 0.7))
    assert strata(["report", str(tmp_path / "runs"), "--pairs", str(tmp_path / "pairs.csv")]) == 0
    said = capsys.readouterr().out
    assert "fedper vs local: " in said
    assert "fedavg (64.3 points" in said
    assert "local vs fedavg" not in said
    assert len((tmp_path / "pairs.csv").read_text().splitlines()) == 4
    monkeypatch.setenv("COLUMNS", "80")
    assert strata(["report", str(tmp_path / "runs")]) == 0
    folded = capsys.readouterr().out
    assert max(map(len, folded.splitlines())) <= 80  # the verdicts as the tables, although nobody watches


# Which seeds differ


def test_runs_that_differ_in_one_seed_are_one_configuration(tmp_path):
    for name, shift in (("fedavg", 0.0), ("local", 0.3)):
        for seed in range(3):
            place = tmp_path / f"{name}{seed}"
            write_run(place, [0.5 + shift + seed / 100], name=name, seed=0, model={"seed": seed})
    study = gather([tmp_path])
    assert [len(rank.members) for rank in study.ranks] == [3, 3]
    assert varied_parts(study.outcomes) == "the initial weights; the same: the partition, the batches"
    (pair,) = pairs(study.ranks)
    assert pair.seeds == 3


def test_clients_are_the_same_where_the_partition_or_the_data_says_so(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr("stratafl.report.paired.uncertainty", lambda d, w, c: seen.append(c) or uncertainty(d, w, c))
    names = {"classes": None, "clients": 4, "counts": {"train": [[3]] * 4, "validation": [[3]] * 4, "test": [[3]] * 4}}
    for case, options in {
        "all": {},
        "fixed": {"data": {"name": "gone.npz", "seed": 0}},
        "named": {"holdings": {**names, "client_names": list("abcd")}},
    }.items():
        for name in ("fedavg", "local"):
            for seed in range(2):
                write_run(
                    tmp_path / case / f"{name}{seed}", [0.5 + (seed + len(name)) / 99], name=name, seed=seed, **options
                )
        pairs(gather([tmp_path / case]).ranks)
    assert seen == [False, True, True]


def test_runs_with_the_same_partition_count_once():
    values, weights = np.array([[1.0, 2.0], [3.0, 6.0], [5.0, 5.0]]), np.array([[1.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
    means, sums = _by_partition([7, 7, 8], values, weights)
    assert means.tolist() == [[2.0, 4.0], [5.0, 0.0]]
    assert sums.tolist() == [[2.0, 2.0], [2.0, 0.0]]


def test_the_same_runs_twice_on_their_partitions_are_no_surer(tmp_path):
    """Two runs on each of three partitions with the same scores tell as much as one run on each."""
    for name, values in (("fedavg", (0.7, 0.75, 0.72)), ("local", (0.74, 0.75, 0.75))):
        for partition, value in enumerate(values):
            for place, seed in (("once", 0), ("twice", 0), ("twice", 1)):
                folder = tmp_path / place / f"{name}{partition}{seed}"
                write_run(folder, [value], name=name, seed=seed, data={"seed": partition})
    once, twice = (pairs(gather([tmp_path / place]).ranks)[0] for place in ("once", "twice"))
    assert (once.seeds, twice.seeds) == (3, 6)
    assert twice.p == pytest.approx(once.p)
    assert (twice.difference.low, twice.difference.high) == pytest.approx((once.difference.low, once.difference.high))


def test_the_share_of_samples_that_a_seed_tests():
    counts = {"train": [[6, 1]], "validation": [[1, 0]], "test": [[1, 1]]}
    assert _tested_share(SimpleNamespace(class_counts={"counts": counts})) == 0.2
    assert _tested_share(SimpleNamespace(class_counts=None)) == 1.0


def test_verdicts_follow_the_corrected_p(tmp_path):
    study = write(
        tmp_path, fedavg=(0.70, 0.75, 0.72, 0.71), local=(0.75, 0.765, 0.765, 0.75), fedper=(0.76, 0.75, 0.7, 0.8)
    )
    found = pairs(study.ranks)
    assert any(pair.p < 0.05 <= pair.adjusted for pair in found)
    assert all((pair.verdict == "unclear") == (pair.adjusted >= 0.05) for pair in found)
