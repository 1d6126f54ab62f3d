"""Clients that drop out of rounds, and the time that rounds would take: keyed, equal everywhere, resumable."""

from dataclasses import replace
from math import exp

import pytest
import torch

from simulations import built
from stratafl.algorithms import fedavg, fedper
from stratafl.config.deployment import DeployTable, FederationFile
from stratafl.config.experiment import from_tables
from stratafl.core import keys
from stratafl.errors import RecordError
from stratafl.evaluation.trial import Trial
from stratafl.execute import Debug, Matrix, Messages, Progress
from stratafl.execute.simulated_time import SimulatedTime
from stratafl.policies import LocalTraining
from stratafl.testing import SIZES, difference, everything

METHOD = fedper(train=LocalTraining(lr=0.1, batch=10))


def simulated(method=METHOD, *, drop=0.4, rounds=4, **options):
    return built(method, rounds=rounds, batchnorm=False, drop=drop, time=SimulatedTime(1.0), **options)


def lines(trial, progress=None):
    progress, made = progress or trial.sim.start(), []
    while progress.t < trial.rounds:
        progress, entry = trial.round(progress)
        made.append({key: value for key, value in entry.round.items() if not key.startswith("seconds.")})
    return progress, made


def test_a_client_drops_out_by_its_own_key():
    sim = simulated(rounds=60)
    for t in range(60):
        rnd = sim.at(t)
        draws = keys.keys(sim.setup.seeds.batches, t, torch.arange(len(SIZES)), "drop")
        staying = {i for i, draw in enumerate(draws.tolist()) if draw / 2**64 + 0.5 >= 0.4}
        assert {*sim.cohort(rnd).tolist()} == (staying or {int(draws.argmax())})
    assert 0.3 < sum(1 - len(sim.cohort(sim.at(t))) / len(SIZES) for t in range(60)) / 60 < 0.5
    assert len(built(METHOD, batchnorm=False).cohort(rnd)) == len(SIZES)


def test_one_client_stays_when_all_would_drop_out():
    sim = simulated(drop=1 - 2**-40)
    assert [len(sim.cohort(sim.at(t))) for t in range(4)] == [1] * 4


def test_who_drops_out_sends_nothing_and_keeps_its_state():
    sim = simulated(rounds=1)
    progress, report = sim.round(sim.start(), Matrix())
    gone = {*range(len(SIZES))} - {*report.cohort.tolist()}
    assert gone
    assert not gone & {*progress.clients}
    assert len(report.up.clients) == len(SIZES) - len(gone)


@pytest.mark.budget(1.5, "five simulations of four rounds")
def test_every_executor_has_the_same_cohorts_results_and_times():
    sim = simulated()
    progress, expected = lines(Trial(sim))
    assert {line["dropped_out"] for line in expected} != {0}
    for executor in (Messages(), Debug(), Matrix(chunk=2)):
        other, made = lines(Trial(sim, executor=executor))
        assert difference(everything(sim, progress), everything(sim, other)) < 1e-12
        for one, two in zip(expected, made, strict=True):
            assert one["simulated.seconds"] == two["simulated.seconds"]
            assert (one["cohort"], one["dropped_out"]) == (two["cohort"], two["dropped_out"])


def test_a_resumed_run_goes_on_with_the_same_clients_and_times():
    sim = simulated()
    _, expected = lines(Trial(sim))
    progress = sim.start()
    for _ in range(2):
        progress, _ = Trial(sim).round(progress)
    again = simulated(seed=0)
    _, rest = lines(Trial(again), Progress.of(progress.tensors()))
    assert rest == expected[2:]


def test_simulated_seconds_by_hand():
    ids, time = torch.tensor([4, 1]), SimulatedTime(slow=0.5, bandwidth=8.0, step_seconds=0.25)
    sent, steps = torch.tensor([2_000_000, 1_000_000]), torch.tensor([4, 8])
    factors = []
    for client in ids.tolist():
        key = keys.keys(7, 0, torch.tensor([client]), "slow")
        factors.append(exp(0.5 * (float(keys.uniform(key, torch.arange(12), torch.float64).sum()) - 6)))
    assert time.seconds(7, ids, sent, steps) == pytest.approx(max(factors[0] * (2 + 1), factors[1] * (1 + 2)))
    assert SimulatedTime(0.0, 8.0, 0.25).seconds(7, ids, sent, steps) == pytest.approx(3)
    spread = torch.log(SimulatedTime(1.0).factors(0, torch.arange(4000)))
    assert (float(spread.mean()), float(spread.std())) == pytest.approx((0, 1), abs=0.05)


def test_time_counts_the_bytes_and_steps_of_a_round():
    trial = Trial(replace(simulated(fedavg(train=LocalTraining(lr=0.1)), drop=0.0), time=SimulatedTime(0.0, 1.0, 0.5)))
    _, made = lines(trial)
    line = made[0]
    largest = max(-(-n // 10) for n in SIZES)
    per_client = (line["bytes.down"] + line["bytes.up"]) / len(SIZES)
    assert line["simulated.seconds"] == pytest.approx(8e-6 * per_client + 0.5 * largest, rel=1e-3)
    assert "dropped_out" not in line


def test_settings_without_effect_are_refused_and_a_federation_takes_none():
    for wrong in ({"bandwidth": 3.0}, {"step_seconds": 1.0}, {"drop": 1.0}, {"slow": -1.0}):
        with pytest.raises(RecordError):
            from_tables({"run": wrong})
    deploy = DeployTable(sites=("a", "b"))
    for table, settings in (("run", {"drop": 0.1}), ("run", {"slow": 0.0}), ("data", {"shift": "labels"})):
        with pytest.raises(RecordError, match=next(iter(settings))):
            FederationFile(from_tables({table: settings}), deploy)
