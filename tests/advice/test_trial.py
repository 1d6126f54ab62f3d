"""Trials: what is counted, what is held out, and what learning curves let expect."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from stratafl.advice.candidates import Candidate, comparable, short_list
from stratafl.advice.look import Effect, Facts
from stratafl.advice.trial import Problem, Result, Training, expected, held_out, jackknife_error, parts
from stratafl.config.experiment import Experiment, with_values
from stratafl.data import Federation, from_clients
from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.predictions import Predictions
from stratafl.models import MLP


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


def test_the_cost_of_every_comparable_method_is_what_it_notes() -> None:
    epochs, sizes = 2, (16, 16, 16, 16)  # so that every cohort costs the same
    problem = problem_of(held_out(small(sizes)), train__epochs=epochs, run__participation=0.5)
    layout = Training(problem, [Candidate("fedavg")]).sim.setup.layout
    every = comparable(layout, 3, 4, epochs)
    assert {each.method for each in every} >= {"local", "fedavg", "fedavgft", "fedper", "fedrep", "ditto", "ifca"}
    for each in every:
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
        found.append(Result(Candidate(name), seen, curve[max(curve)] / n, fitted[name]))
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


def test_the_jackknife_gives_the_standard_error_of_a_mean() -> None:
    x = np.random.default_rng(0).normal(size=12)
    without = [np.delete(x, i).mean() for i in range(12)]
    assert jackknife_error(without) == pytest.approx(x.std(ddof=1) / 12**0.5)
    assert jackknife_error([1.0]) == float("inf")


def test_every_part_has_its_share_of_each_client() -> None:
    client = torch.tensor([0] * 6 + [1] * 9)
    part = parts(client, 3)
    assert [int(((part == g) & (client == k)).sum()) for k in (0, 1) for g in range(3)] == [2, 2, 2, 3, 3, 3]


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
    assert listed(none, none) == always | {"fedprior"}
    assert listed(there, none) == always | {"fedprior", "fedper (personal head)", "flayer"}
    assert listed(none, there, (0, 1) * 10) == always | {"ifca (groups 4)", "heurfedamp"}
    assert "lgfedavg (shared head)" in listed(none, there)
