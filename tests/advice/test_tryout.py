"""Trying out: what is counted, what is held out, what learning curves let expect, and which of equals is taken."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from stratafl.advice.advice import simplest
from stratafl.advice.candidate_methods import Candidate, comparable, short_list
from stratafl.advice.forecast import above_chance, expected
from stratafl.advice.look import Effect, Facts
from stratafl.advice.problem import Problem, Result, held_out
from stratafl.advice.tryout import Training, _survivors, least_budget, try_out
from stratafl.config.experiment import Experiment, with_values
from stratafl.data import Federation, from_clients
from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.predictions import Predictions
from stratafl.models import MLP
from stratafl.report.jackknife import jackknife_error, jackknife_parts, sample_values, with_error


def small(sizes: tuple[int, ...] = (30, 40, 50, 60), validation: float = 0.2) -> Federation:
    rng = np.random.default_rng(1)
    pairs = [(rng.normal(size=(n, 6)).astype(np.float32), rng.integers(0, 3, n)) for n in sizes]
    return from_clients(pairs, classes=3, validation=validation, test=0.25)


def problem_of(federation: Federation, **settings: object) -> Problem:
    values = {"train.batch": 7, "run.rounds": 8, **{key.replace("__", "."): v for key, v in settings.items()}}
    return Problem(
        with_values(Experiment(), values),
        federation,
        lambda: MLP(shape=(6,), classes=3, hidden=(8,)),
        METRICS["accuracy"],
        "samples",
    )


def test_test_samples_are_removed_and_validation_is_topped_up_by_class() -> None:
    given = small(validation=0.1)
    held = held_out(given)
    assert not len(held.split("test").indices)
    for client in range(4):
        mine = torch.cat([held.split(split).of(client) for split in ("train", "validation")])
        before = torch.cat([given.split(split).of(client) for split in ("train", "validation")])
        assert sorted(mine.tolist()) == sorted(before.tolist())
        counts = [int(held.counts(split)[client]) for split in ("train", "validation")]
        assert counts[1] == int(0.25 * sum(counts))
    assert (held.class_counts("validation") > 0).all()


def test_samples_of_groups_are_not_moved() -> None:
    given = replace(small(validation=0.0), group="patient")
    assert torch.equal(held_out(given).split("train").indices, given.split("train").indices)


FEW = ("local", "fedavg", "fedavgft", "fedrep")  # every kind of cost: in every round, in a cohort, before use, twice


@pytest.mark.parametrize("few", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_cost_of_comparable_methods_is_what_they_note(few: bool) -> None:
    epochs, sizes = 2, (16, 16, 16, 16)  # so that every cohort costs the same
    problem = problem_of(held_out(small(sizes)), train__epochs=epochs, run__participation=0.5)
    layout = Training(problem, [Candidate("fedavg")]).sim.setup.layout
    every = comparable(layout, 3, 4, epochs)
    assert {each.method for each in every} >= {"local", "fedavg", "fedavgft", "fedper", "fedrep", "ditto", "ifca"}
    for each in (candidate for candidate in every if not few or candidate.method in FEW):
        training = Training(problem, [each])
        training.round()
        training.predictions(each)
        assert training.steps == pytest.approx(problem.cost(each, 1)), each.name
        training.close()


def results(curves: dict[str, dict[int, int]], fitted: dict[str, float], n: int = 100) -> list[Result]:
    """Results in which so many of 100 predictions are right, by round."""
    found = []
    for name, curve in curves.items():
        seen = {}
        for t, hits in curve.items():
            right = (torch.arange(n) < hits).float()
            seen[t] = Predictions(
                torch.arange(n) % 5, torch.ones(n, dtype=torch.int64), torch.stack([1 - right, right], 1)
            )
        last = max(curve)
        found.append(Result(Candidate(name), seen, seen[last], score=curve[last] / n, fitted=fitted[name]))
    return found


def test_errors_fall_as_a_power_of_the_rounds() -> None:
    problem = problem_of(small())
    both = results({"local": {2: 60, 4: 80}, "fedavg": {2: 60, 4: 80}}, {"local": 0.8, "fedavg": 0.8})
    assert expected(problem, both) == pytest.approx(
        [1 - 0.2 * 2**-0.6] * 2
    )  # β = 1, and twice as many rounds are to come


def test_what_is_fitted_already_cannot_be_trained_away() -> None:
    problem = problem_of(small())
    local, fedavg = results({"local": {2: 60, 4: 80}, "fedavg": {2: 60, 4: 80}}, {"local": 1.0, "fedavg": 0.9})
    assert expected(problem, [local, fedavg]) == pytest.approx([0.8, 0.8 + 0.1 * (1 - 2**-0.6)])


def test_who_goes_on_is_decided_by_what_is_expected() -> None:
    """FedAvg has the lowest score, and the steepest curve."""
    curves = {"local": {2: 50, 4: 55}, "fedavg": {2: 40, 4: 60}, "fedper": {2: 64, 4: 65}, "fedrep": {2: 64, 4: 64}}
    found = results(curves, {name: curve[4] / 100 for name, curve in curves.items()})
    trainings = [SimpleNamespace(first=each.candidate, candidates=[each.candidate]) for each in found]
    alive = _survivors(problem_of(small()), trainings, {each.candidate.name: each for each in found})
    assert {each.first.name for each in alive} == {"local", "fedavg", "fedper"}


def test_the_jackknife_gives_the_standard_error_of_a_mean() -> None:
    x = np.random.default_rng(0).normal(size=12)
    without = [np.delete(x, i).mean() for i in range(12)]
    assert jackknife_error(without) == pytest.approx(x.std(ddof=1) / 12**0.5)
    assert jackknife_error([1.0]) == float("inf")
    found = with_error(lambda kept: float(x.mean() if kept is None else x[kept.numpy()].mean()), torch.zeros(12))
    assert (found.value, found.error) == pytest.approx((x.mean(), x.std(ddof=1) / 12**0.5))


def test_every_part_has_its_share_of_each_client() -> None:
    client = torch.tensor([0] * 6 + [1] * 9)
    part = jackknife_parts(client, 3)
    assert [int(((part == g) & (client == k)).sum()) for k in (0, 1) for g in range(3)] == [2, 2, 2, 3, 3, 3]


def probabilities(sizes: tuple[int, ...], seed: int = 0) -> Predictions:
    rng = np.random.default_rng(seed)
    y = torch.from_numpy(rng.integers(0, 2, sum(sizes)))
    chance = torch.sigmoid(torch.from_numpy(rng.normal(size=len(y))) + y)
    client = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return Predictions(client, y, torch.stack([1 - chance, chance], 1).float())


def test_values_of_samples_are_their_hits_if_the_metric_is_accuracy() -> None:
    given = probabilities((5, 9))
    assert torch.allclose(sample_values(METRICS["accuracy"], given), given.hits().double())


@pytest.mark.slow
def test_values_of_samples_have_the_mean_and_the_variance_of_auroc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variance against that of AUROC over new samples, with a part for each sample and with some in each part."""
    metric, n = METRICS["auroc"], 100
    drawn = np.var([probabilities((n,), seed).value(metric) for seed in range(1, 250)])
    for at_once in (1 << 22, 1):
        monkeypatch.setattr("stratafl.report.jackknife.MAX_SCORES", at_once)
        variances = []
        for seed in range(20):
            given = probabilities((n,), seed)
            values = sample_values(metric, given)
            assert float(values.mean()) == pytest.approx(given.value(metric))
            variances.append(float(values.var()) / n)
        assert np.mean(variances) == pytest.approx(drawn, rel=0.25)


def test_a_client_with_one_class_has_no_auroc() -> None:
    given = probabilities((4, 40))
    given.y[:4] = 1
    assert sample_values(METRICS["auroc"], given).isnan().tolist() == [True] * 4 + [False] * 40


def test_the_facts_choose_the_short_list() -> None:
    layout = Training(problem_of(small()), [Candidate("fedavg")]).sim.setup.layout
    every = comparable(layout, 3, 20)
    there, none = Effect(0.6, 0.1, 0.01), Effect(0.0, 0.0, 0.7)

    def listed(skew: Effect, shift: Effect, groups: tuple[int, ...] = ()) -> set[str]:
        facts = Facts(20, (30,) * 20, 3, skew, shift, groups, (), False)
        found = short_list(facts, every)
        assert all(each.why for each in found)
        return {each.name for each in found}

    always = {"local", "fedavg", "fedavgft", "fedavglpft"}
    assert listed(none, none) == always | {"fedprior", "fedstrata"}
    assert listed(there, none) == always | {"fedprior", "fedstrata", "fedper (personal head)", "flayer"}
    assert listed(none, there, (0, 1) * 10) == always | {"ifca (groups 4)", "heurfedamp"}
    assert "lgfedavg (shared head)" in listed(none, there)


def of_scores(name: str, hits: int, received: float = 1.0, tuning: float = 0.0, n: int = 400) -> Result:
    """So many of the predictions are right, of other samples for each name, and stay so."""
    right = torch.roll((torch.arange(n) < hits).float(), 37 * sum(map(ord, name)))
    given = Predictions(torch.arange(n) % 5, torch.ones(n, dtype=torch.int64), torch.stack([1 - right, right], 1))
    share, candidate = hits / n, Candidate(name, tuning=tuning)
    return Result(candidate, {2: given, 4: given}, given, received, share, share, share)


def chosen(*among: Result) -> str:
    order = [each.candidate for each in among]
    ranked = sorted(among, key=lambda each: -each.expected)
    return simplest(problem_of(small()), ranked, order).candidate.name


def test_of_methods_that_are_as_good_the_simplest_is_taken() -> None:
    alone = of_scores("local", 300)
    assert chosen(alone, of_scores("fedavg", 350), of_scores("fedprior", 350)) == "fedavg"  # the first of the list
    assert (
        chosen(alone, of_scores("fedavg", 352), of_scores("fedprior", 353)) == "fedavg"
    )  # a quarter of a point is no more
    assert chosen(alone, of_scores("fedavg", 350), of_scores("fedprior", 353)) == "fedprior"  # three quarters are
    assert chosen(alone, of_scores("fedavg", 351), of_scores("fedper", 351, received=0.9)) == "fedper"  # sends less
    assert chosen(alone, of_scores("fedavgft", 352, tuning=1), of_scores("fedprior", 351)) == "fedprior"  # trains less
    assert chosen(of_scores("local", 352), of_scores("fedavg", 352), of_scores("fedprior", 353)) == "fedprior"  # alone


def test_methods_that_surely_differ_are_not_as_good() -> None:
    """The better one is right wherever the other is, and on a third of a point more."""
    alone, plain = (of_scores(name, hits, n=1600) for name, hits in (("local", 1200), ("fedavg", 1400)))
    better = replace(of_scores("fedavg", 1406, n=1600), candidate=Candidate("fedprior"))
    assert chosen(alone, plain, better) == "fedprior"


def test_one_prediction_for_all_samples_is_chance() -> None:
    federation, n = small((400, 400)), 200
    problem = replace(problem_of(federation), metric=METRICS["balanced_accuracy"])
    y = torch.arange(n) % 3

    def given(*right: float) -> Result:
        answer = torch.where(torch.rand(n, generator=torch.Generator().manual_seed(1)) < right[0], y, (y + 1) % 3)
        seen = {1: Predictions(torch.zeros(n, dtype=torch.int64), y, torch.eye(3)[answer])}
        return Result(Candidate("local"), seen, seen[1]).judged(problem)

    assert not above_chance(problem, [given(0.33)])
    assert above_chance(problem, [given(0.33), given(0.6)])
    same = Predictions(torch.zeros(n, dtype=torch.int64), y, torch.eye(3)[torch.zeros_like(y)])
    assert not above_chance(problem, [Result(Candidate("local"), {1: same}, same).judged(problem)])


def test_a_lead_within_its_error_is_chance() -> None:
    """Of 60 answers 24 are right, where the most frequent class gives 20."""
    n, problem = 60, problem_of(small())
    y = torch.arange(n) % 3
    right = torch.randperm(n, generator=torch.Generator().manual_seed(0)) < 24
    answers = torch.where(right, y, (y + 1) % 3)
    seen = {1: Predictions(torch.zeros(n, dtype=torch.int64), y, torch.eye(3)[answers])}
    result = Result(Candidate("local"), seen, seen[1]).judged(problem)
    assert result.score == pytest.approx(0.4)
    assert not above_chance(problem, [result])


@pytest.mark.slow
def test_the_least_budget_scores_all_of_them_in_two_rounds() -> None:
    problem = problem_of(held_out(small()))
    shared = [[Candidate("local")], [Candidate("fedavg"), Candidate("fedavgft", training="fedavg", tuning=1)]]
    full = problem.full_cost([each for some in shared for each in some])
    trainings = [Training(problem, some) for some in shared]
    found = try_out(problem, trainings, 1.001 * least_budget(problem, shared, full) * full, full)
    assert found.forecast
    assert all(len(each.seen) > 1 for each in found.results)
    assert found.steps <= found.allowed


def test_seeds_of_weights_and_batches_have_an_effect() -> None:
    federation = held_out(small())
    plain, weights, batches = (
        Training(problem_of(federation, **each), [Candidate("fedavg")])
        for each in ({}, {"model__seed": 5}, {"run__batch_seed": 5})
    )
    start = [each.sim.setup.start for each in (plain, weights, batches)]
    assert all(torch.equal(start[0][name], start[2][name]) for name in start[0])
    assert not all(torch.equal(start[0][name], start[1][name]) for name in start[0])
    for each in (plain, batches):
        each.round()
    given = [each.predictions(Candidate("fedavg"))[0].scores for each in (plain, batches)]
    assert not torch.equal(*given)
