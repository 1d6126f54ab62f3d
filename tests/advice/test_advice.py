"""Advice from end to end: what it spends, that it never sees test samples, what it says, and what it refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from advice_table import SETTINGS, Store, accuracy, printed
from stratafl.advice import Advice, advice_on
from stratafl.advice import advice_text as words
from stratafl.advice.advice import _decided, _expectations, _means
from stratafl.advice.advice_files import plain, write_advice
from stratafl.advice.candidate_methods import Candidate
from stratafl.advice.cuts import Cut
from stratafl.advice.look import LayerConflict
from stratafl.advice.problem import Result
from stratafl.config.experiment import Experiment, load_experiment, with_values
from stratafl.data import Federation, from_clients
from stratafl.errors import DataError, RecordError
from stratafl.evaluation.guard import shrink
from stratafl.evaluation.metrics import METRICS
from stratafl.models import MLP
from stratafl.report.jackknife import Difference
from wording import mentions

EXPERIMENT = with_values(Experiment(), {"train.lr": 0.3, "train.batch": 20, "run.rounds": 12})


def federation(
    targets: Callable[[np.ndarray], np.ndarray], clients: int = 4, validation: float = 0.2, samples: int = 30
) -> Federation:
    rng = np.random.default_rng(3)
    drawn = [rng.normal(size=(samples, 4)).astype(np.float32) for _ in range(clients)]
    return from_clients([(x, targets(x)) for x in drawn], validation=validation, test=0.25)


def labels(x: np.ndarray) -> np.ndarray:
    return (x[:, 0] + x[:, 1] > 0).astype(np.int64)


def numbers(x: np.ndarray) -> np.ndarray:
    return (x[:, 0] - 0.5 * x[:, 1]).astype(np.float64)


def model(outputs: int) -> Callable[[], MLP]:
    return lambda: MLP(shape=(4,), classes=outputs, hidden=(6,))


@pytest.fixture(scope="module")
def given() -> Federation:
    return replace(federation(labels), client_names=("Ulm", "Pisa", "Bern", "Oslo"))


@pytest.fixture(scope="module")
def advice(given: Federation) -> Advice:
    return advice_on(EXPERIMENT, federation=given, model=model(2))


@pytest.mark.slow
def test_it_keeps_to_a_tenth_of_a_full_comparison(advice: Advice) -> None:
    tryout = advice.tryout
    assert 0.05 * tryout.full < tryout.steps <= tryout.allowed <= 0.1 * tryout.full
    assert {each.rounds for each in tryout.finalists} == {tryout.of("local").rounds}


@pytest.mark.slow
@pytest.mark.budget(1.5, "gives the same advice once more")
def test_test_samples_change_nothing(given: Federation, advice: Advice) -> None:
    poisoned = replace(given, x=given.x.clone(), y=given.y.clone())
    tests = given.split("test").indices
    poisoned.x[tests], poisoned.y[tests] = float("nan"), 1 - given.y[tests]
    again = advice_on(EXPERIMENT, federation=poisoned, model=model(2))
    assert plain(again, Path("x")) == plain(advice, Path("x"))


@pytest.mark.slow
def test_names_are_used_and_the_files_can_be_run(advice: Advice, tmp_path) -> None:
    config = write_advice(advice, tmp_path / "new")
    assert load_experiment(config).algorithm.name == advice.candidate.method
    page = (tmp_path / "new" / "advice.md").read_text()
    assert all(name in page for name in ("Ulm", "Pisa", "Bern", "Oslo"))
    assert f"strata run --config {config}" in page
    stored = json.loads((tmp_path / "new" / "advice.json").read_text())
    assert stored["federate"] == advice.federate
    assert len(stored["clients"]) == 4


@pytest.mark.budget(2, "the advice that the others read")
def test_the_answer_says_how_sure_it_is(advice: Advice) -> None:
    local, best = advice.tryout.of("local").candidate, advice.best_federated
    sure = replace(
        advice, federate=True, candidate=best, expected=Difference(0.05, 0.01), over_local=Difference(-0.1, 0.02)
    )
    assert sure.doubt == ""
    said = words.advice_answer(sure)
    assert said.startswith(words.FEDERATE.partition("{method}")[0] + best.label)
    assert all(number in said for number in ("5.0 ± 1.0", "10.0 ± 2.0", "12 rounds"))
    assert "+3.4 to +6.6" in said  # 5 ± 1.645
    maybe = replace(sure, expected=Difference(0.016, 0.01))
    assert maybe.doubt == "chance"
    assert "--guard" in words.advice_answer(maybe)
    guarded = "strata run --config a.toml --guard"  # a guard decides for clients with few validation samples: local
    for validation, settings in ((0.1, " --set data.validation=0.2"), (0.2, ""), (0.3, "")):
        planned = with_values(maybe.experiment, {"data.validation": validation})
        assert words.commands(replace(maybe, experiment=planned), Path("a.toml"))[0] == guarded + settings
    alone = replace(maybe, federate=False, candidate=local)
    assert words.advice_answer(alone).startswith(words.NOT_CLEARLY_BETTER.partition("{method}")[0] + best.label)
    assert words.SENDS_NOTHING in words.cost_text(alone)
    assert replace(alone, expected=Difference(-0.016, 0.01)).doubt == "chance"
    worse = replace(alone, expected=Difference(-0.05, 0.01))
    assert words.advice_answer(worse).startswith(words.TRAIN_ALONE.partition("{method}")[0] + best.label)


def test_the_decision_follows_the_expectation_and_caution(advice: Advice, monkeypatch: pytest.MonkeyPatch) -> None:
    def federates(so_far: float, expected: float, caution: float) -> bool:
        monkeypatch.setattr("stratafl.advice.advice.score_difference", lambda *_, late: Difference(so_far, 0.01))
        monkeypatch.setattr("stratafl.advice.advice.forecast_gain", lambda *_: Difference(expected, 0.01))
        seen = advice.tryout, advice.facts, advice.comparable, advice.tried, advice.federation
        return _decided(*seen, caution, 0.1).federate

    assert federates(-0.05, 0.02, 0)
    assert not federates(0.05, -0.02, 0)
    assert federates(0.05, 0.02, 1.9)
    assert not federates(0.05, 0.02, 2.1)


def test_if_training_alone_is_perfect_nothing_more_is_asked_for(advice: Advice) -> None:
    results = tuple(replace(each, score=1.0, expected=1.0) for each in advice.tryout.results)
    perfect = replace(advice, federate=False, tryout=replace(advice.tryout, results=results), learned=True)
    equal = replace(perfect, expected=Difference(0.0, 0.0), over_local=Difference(0.0, 0.0))
    assert words.advice_answer(equal).startswith(words.PERFECT_ALONE.partition("{tried}")[0])


def test_rounding_alone_is_no_reason_to_federate(advice: Advice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stratafl.advice.advice.forecast_gain", lambda *_: Difference(1e-14, 4e-13))
    seen = advice.tryout, advice.facts, advice.comparable, advice.tried, advice.federation
    assert not _decided(*seen, 0.0, 0.1).federate


def test_a_difference_has_as_many_digits_as_a_score_needs(advice: Advice) -> None:
    problem = replace(advice.tryout.problem, metric=METRICS["auroc"])
    results = tuple(replace(each, score=0.9) for each in advice.tryout.results)
    by_area = replace(advice, tryout=replace(advice.tryout, problem=problem, results=results))
    assert words.gain_number(1e-14, 4.1e-13, by_area, "+") == "+0.0000 ± 0.0000"
    assert words.gain_number(0.0312, 0.012, by_area, "+") == "+0.031 ± 0.012"
    assert words.gain_number(0.02, 0.0, by_area) == "0.020 ± 0.000"


def test_a_lower_loss_is_better(advice: Advice) -> None:
    problem = replace(advice.tryout.problem, metric=METRICS["log_loss"])
    found = replace(advice, tryout=replace(advice.tryout, problem=problem))
    assert words._against_alone(Difference(0.031, 0.012), found) == "better by 0.031 ± 0.012 in log-loss"
    assert words._against_alone(Difference(-0.2, float("inf")), found) == "worse by 0.2 ± unknown in log-loss"
    assert words.gain_number(-0.0002, 0.011, found, "+") == "+0.000 ± 0.011"
    assert words.clients_title(found).endswith("in log-loss, where + is better")


def test_gains_of_clients_are_in_the_metric_and_go_on_as_the_mean_does(advice: Advice) -> None:
    gains, samples = ([getattr(each, name) for each in advice.clients] for name in ("gain", "validation_samples"))
    assert np.average(gains, weights=samples) == pytest.approx(advice.expected.value, abs=0.02)
    assert words._unit(advice) == "points of accuracy"
    alone = advice.tryout.of("local")
    same = _expectations(advice.tryout.problem, alone, alone, Difference(0.03, 0.03), Difference(0.05, 0.05))
    assert [(each.gain, each.error) for each in same] == [pytest.approx((0.02, 0.04))] * 4


def test_clients_without_samples_get_the_mean_of_the_others() -> None:
    gained = torch.tensor([1.0, 0.0, 1.0, 0.0, 2.0, -1.0, torch.nan])
    mean, error = _means(gained.double(), torch.tensor([0, 0, 0, 0, 1, 1, 2]), 4)
    assert mean.tolist() == [0.5, 0.5, 0.0, 0.0]
    assert error.tolist() == pytest.approx([(5.5 / 4 / 4) ** 0.5, (5.5 / 4 / 2) ** 0.5, np.inf, np.inf])
    assert shrink(mean, error)[0].tolist() == pytest.approx([0.5] * 4)


def test_the_command_that_checks_it_has_the_options_of_the_method(advice: Advice) -> None:
    ifca = Candidate("ifca", {"groups": 5})
    alone = replace(advice, federate=False, candidate=Candidate("local"), best_federated=ifca)
    assert words.commands(alone, Path("a.toml"))[-1] == (
        "strata compare --config a.toml --algorithms local,ifca --set ifca.groups=5 --seeds 3"
    )


def test_layers_that_never_conflict_are_not_named(advice: Advice) -> None:
    facts = replace(advice.facts, layers=(LayerConflict("fc1", 0.0, 0.9), LayerConflict("fc", 0.0, 0.8)), cuts=())
    assert words.layers_text(replace(advice, facts=facts)).endswith(words.NO_CONFLICTS)


def test_both_cuts_are_named_with_the_setting_that_makes_them(advice: Advice) -> None:
    cuts = (Cut("one", ("fc1", "fc2", "fc"), 1), Cut("other", ("fc1", "fc2", "fc"), 0))
    text = words.layers_text(replace(advice, facts=replace(advice.facts, cuts=cuts)))
    assert mentions(text, "one", "'fc1'", "fedper.personal=last:2", "other")
    assert [cut.rule for cut in advice.facts.cuts] == ["PLayer-FL", "conflicts"]


def test_clients_of_one_size_have_no_range(advice: Advice) -> None:
    alike = replace(advice, facts=replace(advice.facts, clients=6, sizes=(23,) * 6))
    assert words.seen(alike)[0] == ("clients", "6, with 23 training samples each")


@pytest.mark.slow
def test_one_round_is_no_forecast(given: Federation) -> None:
    short = with_values(EXPERIMENT, {"run.rounds": 3})
    found = advice_on(short, federation=given, model=model(2), budget=0.15)
    assert found.doubt == "no forecast"
    said = words.advice_answer(found)
    assert "1 of 3 rounds" in said
    budget = float(said.split("--budget ")[1].rstrip("."))
    longer = replace(found, best_federated=Candidate("fedavglpft", tuning=2))
    more = words.advice_answer(
        replace(longer, tryout=replace(found.tryout, results=(*found.tryout.results, _named("fedavglpft", found))))
    )
    assert words.MORE_EPOCHS.format(epochs="3 epochs", alone=1) in more
    assert not words.commands(found, Path("a.toml"))[0].startswith("strata run")
    assert words.clients_title(found) not in words.advice_page(found, Path("a.toml"))
    assert advice_on(short, federation=given, model=model(2), budget=budget).tryout.forecast


def _named(name: str, advice: Advice) -> Result:
    return replace(advice.tryout.of("fedavg"), candidate=Candidate(name, tuning=2))


def rare(x: np.ndarray) -> np.ndarray:
    return (x[:, 0] + x[:, 1] > 2.2).astype(np.int64)


@pytest.mark.slow
def test_if_answers_show_nothing_probabilities_are_compared() -> None:
    slow = with_values(EXPERIMENT, {"train.lr": 0.05})
    given = federation(rare, clients=12, samples=60)
    found = advice_on(slow, federation=given, model=model(2))
    assert found.tryout.switched
    assert found.experiment.evaluate.metric == found.metric.name == "auroc"
    assert words.SWITCHED.format(metric="AUROC") in words.sentences(found)
    asked = advice_on(with_values(slow, {"evaluate.metric": "balanced_accuracy"}), federation=given, model=model(2))
    assert asked.doubt == "nothing learned"
    assert words.advice_answer(asked).endswith(words.TRY_AUROC)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "seed", "doubt"), [(0.01, 0, "nothing learned"), (0.05, 2, "chance")])
def test_probabilities_that_are_perfect_alone_tell_no_methods_apart(rate: float, seed: int, doubt: str) -> None:
    """Classes still show nothing, or did in the first stage, and every model ranks all samples rightly."""
    rng = np.random.default_rng(1)
    targets = (np.arange(60) % 6 == 0).astype(np.int64)
    clients = [((4.0 * targets[:, None] + rng.normal(size=(60, 4)) / 4).astype(np.float32), targets) for _ in range(6)]
    drawn = from_clients(clients, validation=0.2, test=0.25)
    found = advice_on(with_values(EXPERIMENT, {"train.lr": rate, "model.seed": seed}), federation=drawn, model=model(2))
    ranked = replace(found.tryout.problem, metric=METRICS["auroc"], over="clients")
    assert found.tryout.of("local").judged(ranked).score == 1.0
    assert (found.metric.name, found.tryout.switched, found.doubt) == ("balanced_accuracy", False, doubt)
    assert words.advice_answer(found).endswith(words.TRY_MORE) == (doubt == "nothing learned")


@pytest.mark.slow
def test_numbers_are_judged_by_their_error() -> None:
    found = advice_on(EXPERIMENT, federation=federation(numbers, validation=0.0), model=model(1))
    assert found.metric.name == "mse"
    assert "fedprior" not in {each.method for each in found.comparable}
    assert sum(each.validation_samples for each in found.clients) > 10  # taken from training samples


def test_what_cannot_be_advised_on_is_refused() -> None:
    with pytest.raises(DataError, match=r"1 client .*data\.client"):
        advice_on(EXPERIMENT, federation=federation(labels, clients=1), model=model(2))
    same = replace(federation(labels), y=torch.zeros(120, dtype=torch.int64), classes=1)
    with pytest.raises(DataError, match=f"'{same.name}'"):
        advice_on(EXPERIMENT, federation=same, model=model(1))
    with pytest.raises(RecordError, match=r"budget .* not 0"):
        advice_on(EXPERIMENT, federation=federation(labels), model=model(2), budget=0)
    short = with_values(EXPERIMENT, {"run.rounds": 1})
    with pytest.raises(RecordError, match=r"run\.rounds = 1"):
        advice_on(short, federation=federation(labels), model=model(2))


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["skew_10", "tiny"])
def test_the_advised_method_gains_nearly_as_much_as_the_best_at_a_tenth_of_the_steps(name: str, tmp_path) -> None:
    """Where sharing clearly helps; `python tests/advice_table.py` makes the table of all six federations."""
    store = Store(tmp_path, SETTINGS)
    row, alone = store.row(name, seeds=(0,), caution=0), accuracy(store.full(name, 0)["local"])
    print(printed([row]))
    assert row.share <= 0.1
    assert row.score - alone >= 0.8 * (row.best_score - alone) > 0.05
