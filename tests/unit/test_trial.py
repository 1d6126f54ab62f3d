"""A trial: when and on whom it is evaluated, what its lines hold, and that looking changes nothing."""

from dataclasses import replace

import pytest
import torch

from stratafl.algorithms import fedavg, fedper, local
from stratafl.core.phased import Phase, Phased
from stratafl.core.records import record
from stratafl.core.steps import Train
from stratafl.data import from_splits
from stratafl.evaluation import evaluate
from stratafl.evaluation.evaluate import score_new_clients, score_stages
from stratafl.evaluation.measure import score_line
from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.trial import RoundLines, Trial
from stratafl.execute import Debug, Matrix, Messages, Progress, simulation
from stratafl.policies import LocalTraining
from stratafl.runtime import Runtime
from stratafl.testing import SIZES, tiny_federation, tiny_model

TUNE = LocalTraining(lr=0.2, purpose="tune")


def made(alg=None, batchnorm=False, **options):
    options = {"rounds": 2, "dtype": torch.float64} | options
    return simulation(alg or fedper(), tiny_federation(), tiny_model(batchnorm), **options)


def run(trial):
    progress, entries = trial.sim.start(), []
    while progress.t < trial.rounds:
        progress, entry = trial.round(progress)
        entries.append(entry)
    return progress, entries


def is_evaluated(entry):
    return "test.deployed.accuracy" in entry.round


def evaluated_rounds(trial):
    return [entry.round["round"] for entry in run(trial)[1] if is_evaluated(entry)]


# When


@pytest.mark.parametrize(
    ("every", "rounds", "expected"),
    [(1, 2, [1, 2]), (2, 3, [2, 3]), (10, 2, [2])],
)
def test_every_so_many_rounds_and_always_the_last(every, rounds, expected):
    assert evaluated_rounds(Trial(made(rounds=rounds), every)) == expected


def test_a_round_that_is_not_evaluated_still_has_its_costs():
    _, (first, second) = run(Trial(made(), every=2))
    costs = {"round", "phase", "cohort", "train.loss", "train.steps", "bytes.down", "bytes.up"}
    costs |= {f"seconds.{part}" for part in ("train", "server", "evaluate")}
    assert set(first.round) == costs
    assert first.clients == []
    assert [line["layer"] for line in first.layers] == ["fc1", "fc"]
    assert set(second.round) > costs
    assert len(second.clients) == len(SIZES)


def test_phases_that_are_not_evaluated():
    phases = Phased((Phase(fedavg(), 2, evaluated=False), Phase(fedavg())))
    progress, entries = run(Trial(made(phases, rounds=4)))
    assert [(e.round["round"], e.round["phase"], is_evaluated(e)) for e in entries] == [
        (1, 0, False),
        (2, 0, False),
        (3, 1, True),
        (4, 1, True),
    ]
    assert progress.t == 4


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_finish_is_one_more_round_and_it_is_the_last(evaluated):
    alone = local().phases[0].algorithm
    phases = Phased((Phase(fedavg()),), finish=Phase(alone, participation="all", evaluated=evaluated))
    trial = Trial(made(phases, rounds=3), every=2)
    assert trial.rounds == 4
    assert evaluated_rounds(trial) == ([2, 4] if evaluated else [2])


# On whom


def test_without_a_sample_everybody_is_evaluated():
    sim = made()
    for sample in (0, len(SIZES), len(SIZES) + 1):
        assert Trial(sim, sample=sample).ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(Trial(sim, sample=len(SIZES) - 1).ids) == len(SIZES) - 1


@pytest.mark.slow
def test_the_sample_is_constant_and_keyed_by_the_seed():
    samples = [tuple(Trial(made(seed=seed), sample=3).ids.tolist()) for seed in range(6)]
    again = [tuple(Trial(made(fedavg(), seed=seed, rounds=9), sample=3).ids.tolist()) for seed in range(6)]
    assert samples == again  # whatever the method and the number of rounds
    assert len(set(samples)) > 1
    assert all(list(ids) == sorted(set(ids)) and len(ids) == 3 and max(ids) < 6 for ids in samples)
    smaller = Trial(made(seed=1), sample=2).ids.tolist()
    assert set(smaller) < set(samples[1])


def test_the_same_clients_are_evaluated_in_every_round():
    trial = Trial(made(rounds=3), sample=2)
    _, entries = run(trial)
    for entry in entries:
        assert [line["client"] for line in entry.clients] == trial.ids.tolist()


def test_the_sample_is_not_the_cohort():
    """Or one would always look at those who train first."""
    trials = [Trial(made(participation=0.5, seed=seed), sample=3) for seed in range(6)]
    cohorts = [trial.sim.cohort(trial.sim.at(0)).sort().values for trial in trials]
    assert sum(torch.equal(trial.ids, cohort) for trial, cohort in zip(trials, cohorts, strict=True)) < 3


# What


@pytest.mark.slow
def test_a_line_holds_the_scores_of_the_models_after_the_round():
    sim = made(replace(fedper(), tune=(TUNE,)), new_clients=2)
    trial = Trial(sim, sample=3)
    progress, entries = run(trial)
    line = entries[-1].round
    board = score_stages(sim, progress, trial.ids, ("validation", "test"))
    new = score_new_clients(sim, progress, ("validation", "test"))
    for key, value in {**score_line(board, 3), **score_line(new, 3, "new.")}.items():
        assert line[key] == value, key
    assert line["test.received.loss"] != line["test.deployed.loss"]
    assert {key.rpartition(".")[0] for key in line if key.startswith(("test.", "validation.", "new."))} == {
        f"{who}{split}.{stage}"
        for who in ("", "new.")
        for split in ("validation", "test")
        for stage in ("received", "trained", "deployed")
    }


def test_every_client_counts_with_what_it_last_trained_and_before_as_received():
    trial = Trial(made(participation=0.5, rounds=4), sample=4)
    progress, entries = run(trial)
    last = dict[int, dict]()
    for t, entry in enumerate(entries):
        assert [line["client"] for line in entry.clients] == trial.ids.tolist()
        cohort = set(trial.sim.cohort(trial.sim.at(t)).tolist())
        for line in entry.clients:
            trained = {key: line[key] for key in ("test.trained.accuracy", "validation.trained.loss")}
            if line["client"] in cohort:
                last[line["client"]] = trained
            received = {key.replace("received", "trained"): value for key, value in line.items() if "received" in key}
            assert trained.items() <= last.get(line["client"], received).items()
            assert (line["test.samples"], line["validation.samples"]) == (4, 3)
        assert entry.round.get("trained.clients", 4) == len(last)
    assert progress.t == 4
    assert entries[0].round["trained.clients"] < 4


def test_a_client_that_trains_before_the_evaluated_round_counts_as_if_all_were_evaluated():
    """Its model is scored when it last trains, so that looking less often shows the same."""
    (_, often), (_, seldom) = (run(Trial(made(participation=0.4, rounds=4), every)) for every in (1, 4))
    assert [entry.clients for entry in often[-1:]] == [entry.clients for entry in seldom[-1:]]
    trained = {key: value for key, value in often[-1].round.items() if "trained" in key}
    assert trained
    assert trained.items() <= seldom[-1].round.items()
    assert not any(entry.clients for entry in seldom[:-1])


@pytest.mark.parametrize("metric", [None, "auroc", "balanced_accuracy"])
def test_a_trial_goes_on_from_its_tensors_with_the_same_lines(metric):
    trial = Trial(made(participation=0.4, rounds=3), metric=None if metric is None else METRICS[metric])
    progress, (_, _, expected) = run(trial)
    again = trial.sim.start()
    for _ in range(2):
        again, _ = trial.round(Progress.of(again.tensors()))
    again, entry = trial.round(Progress.of(again.tensors()))
    assert entry.clients == expected.clients
    assert {k: v for k, v in entry.round.items() if "trained" in k} == {
        k: v for k, v in expected.round.items() if "trained" in k
    }
    assert all(torch.equal(x, again.tensors()[name]) for name, x in progress.tensors().items())


@record
class BreaksSome(Train):
    """Local training after which the models of clients 0 and 2 are not finite from the second round on."""

    train: LocalTraining = LocalTraining()
    reads = writes = ("theta",)
    batching = LocalTraining().batching

    def __call__(self, rnd, client, task):
        state = self.train(rnd, client, task)
        broken = torch.isin(task.ids, torch.tensor([0, 2])) & (rnd.t > 0)
        return {"theta": {name: torch.where(_like(broken, x), torch.nan, x) for name, x in state["theta"].items()}}


def _like(rows, x):
    return rows.reshape(-1, *[1] * (x.ndim - 1))


def test_a_client_that_diverges_counts_with_its_last_sound_model():
    trial = Trial(made(replace(fedper(), train=(BreaksSome(),)), rounds=2))
    _, (first, second) = run(trial)
    assert {each["client"] for each in second.round["left_out"]} == {0, 2}
    before, after = ({line["client"]: line["test.trained.loss"] for line in e.clients} for e in (first, second))
    assert before.keys() == after.keys() == set(range(len(SIZES)))
    assert {client for client in before if before[client] == after[client]} == {0, 2}
    weights = [line["test.samples"] for line in second.clients]
    mean = sum(w * line["test.trained.loss"] for w, line in zip(weights, second.clients, strict=True)) / sum(weights)
    assert second.round["test.trained.loss"] == pytest.approx(mean)


def test_a_line_with_flagged_clients_says_how_many_there_are_and_how_many_are_evaluated():
    """So that three broken models of three are known to be all."""
    breaks = replace(fedper(), train=(BreaksSome(),))
    for sample, expected in ((0, (len(SIZES), None)), (3, (len(SIZES), 3))):
        _, (sound, flagged) = run(Trial(made(breaks, rounds=2), sample=sample))
        assert (flagged.round["clients"], flagged.round.get("evaluated.clients")) == expected
        assert not {"clients", "evaluated.clients"} & sound.round.keys()


def test_the_mean_over_the_trained_is_over_those_of_the_sample():
    trial = Trial(made(participation=0.5), sample=4)
    _, entry = trial.round(trial.sim.start())
    each = [line["test.trained.accuracy"] for line in entry.clients if "test.trained.accuracy" in line]
    assert entry.round["test.trained.client_accuracy"] == pytest.approx(sum(each) / len(each))


@pytest.mark.parametrize("chunk", [None, 2, 1])
def test_what_a_client_scores_does_not_depend_on_who_else_is_looked_at(chunk):
    sim = made()
    (_, everybody), (_, some) = (
        Trial(sim, sample=sample, executor=Matrix(chunk)).round(sim.start()) for sample in (0, 3)
    )
    by_client = {line["client"]: line for line in everybody.clients}
    assert len({line["test.trained.loss"] for line in everybody.clients}) == len(SIZES)
    assert len(some.clients) == 3
    assert all(line == by_client[line["client"]] for line in some.clients)


def test_nobody_of_the_sample_took_part_yet():
    sim = made(participation=0.2, rounds=9)
    trial = Trial(sim, sample=1)
    absent = next(i for i in range(len(SIZES)) if i not in sim.cohort(sim.at(0)).tolist())
    trial.__dict__["ids"] = torch.tensor([absent])
    _, entry = trial.round(sim.start())
    assert entry.round["test.trained.accuracy"] == entry.round["test.received.accuracy"]
    assert entry.round["trained.clients"] == 0


def test_new_clients_have_lines_of_their_own():
    trial = Trial(made(new_clients=2), sample=1)
    _, entry = trial.round(trial.sim.start())
    known, *new = entry.clients
    assert known["client"] == int(trial.ids[0])
    assert "new" not in known
    assert [(line["round"], line["new"], line["client"]) for line in new] == [(1, True, 4), (1, True, 5)]
    assert all("test.trained.accuracy" in line for line in new)


def test_layers_have_a_line_each_round():
    _, entries = run(Trial(made(), every=2))
    assert [(line["round"], line["layer"]) for e in entries for line in e.layers] == [
        (1, "fc1"),
        (1, "fc"),
        (2, "fc1"),
        (2, "fc"),
    ]
    assert entries[0].layers[1]["bytes.down"] == 0


@pytest.mark.parametrize("held_out", [(), ("test",), ("validation",), ("validation", "test")])
def test_splits_without_samples_are_left_out(held_out):
    pair = (torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1] * 4))
    clients = [{"train": pair}, dict.fromkeys(("train", *held_out), pair)]  # the first has nothing held out
    trial = Trial(simulation(fedavg(), from_splits(clients), torch.nn.Linear(4, 2), rounds=1))
    _, (entry,) = run(trial)
    assert trial.splits == held_out
    assert {key.partition(".")[0] for key in entry.round if "deployed" in key} == set(held_out)
    assert [line["client"] for line in entry.clients] == [0, 1]
    assert [entry.clients[0].get(f"{split}.samples") for split in held_out] == [0] * len(held_out)
    assert [entry.clients[1].get(f"{split}.samples") for split in held_out] == [8] * len(held_out)


def test_an_entry_may_hold_a_round_alone():
    assert RoundLines({"round": 1}) == RoundLines({"round": 1}, (), [])


# Looking changes nothing


@pytest.mark.parametrize(
    "alg",
    [
        replace(fedavg(), tune=(TUNE,)),
        pytest.param(fedper(), marks=pytest.mark.slow),
        pytest.param(local(), marks=pytest.mark.slow),
    ],
)
def test_a_trial_ends_with_the_bits_of_a_simulation_that_nobody_looks_at(alg):
    def sim():
        return made(alg, batchnorm=True, rounds=2, participation=0.5, new_clients=1, dtype=torch.float32)

    looked, _ = run(Trial(sim()))
    alone = sim().run(Matrix())
    a, b = replace(looked, trained={}).tensors(), alone.tensors()
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any("theta" in name for name in a)


@pytest.mark.parametrize("executor", [Matrix(chunk=2), Messages(), pytest.param(Debug(), marks=pytest.mark.slow)])
def test_the_executor_does_not_show_in_the_scores(executor):
    sim = made(dtype=torch.float32, rounds=1)
    (_, (one,)), (_, (other,)) = run(Trial(sim)), run(Trial(sim, executor=executor))
    for line in (one.round, other.round):
        for part in ("train", "server", "evaluate"):
            del line[f"seconds.{part}"]
    assert (one.round, one.clients, one.layers) == (other.round, other.clients, other.layers)


# Seconds


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def slow(self, function, seconds):
        def taking(*arguments):
            self.now += seconds
            return function(*arguments)

        return taking


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(Runtime, "now", lambda self: made())
    return made


@record
class Ticking(Train):
    """A descent that takes a second for each client."""

    clock: object
    reads = writes = ("theta",)

    def __call__(self, rnd, client, task):
        self.clock.now += len(task)
        return {}


def test_seconds_of_training_are_without_those_of_looking(clock, monkeypatch):
    monkeypatch.setattr(evaluate, "score_trained", clock.slow(evaluate.score_trained, 100))
    monkeypatch.setattr(evaluate, "score_stages", clock.slow(evaluate.score_stages, 1000))
    monkeypatch.setattr(evaluate, "score_new_clients", clock.slow(evaluate.score_new_clients, 10000))
    trial = Trial(made(replace(fedavg(), train=(Ticking(clock),)), new_clients=1), every=2, executor=Matrix(chunk=2))
    _, (first, second) = run(trial)
    assert (first.round["seconds.train"], first.round["seconds.evaluate"]) == (5.0, 0.0)
    # three groups were looked at; the new client's training is part of looking
    assert (second.round["seconds.train"], second.round["seconds.evaluate"]) == (5.0, 3 * 100 + 1000 + 10000 + 1)


def test_seconds_of_the_server_are_apart(clock, monkeypatch):
    alg = replace(fedavg(), train=(Ticking(clock),))
    monkeypatch.setattr(type(alg), "absorb", clock.slow(type(alg).absorb, 30))
    _, entries = run(Trial(made(alg)))
    for entry in entries:
        assert (entry.round["seconds.train"], entry.round["seconds.server"]) == (6.0, 30.0)
