"""Advice from end to end: what it spends, that it never sees test samples, what it says, and what it refuses."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from advice_table import SETTINGS, judged, printed
from federations import FEDERATIONS
from stratafl.advice import Advice, advise, words
from stratafl.advice.files import plain, write_advice
from stratafl.config.experiment import Experiment, load, with_values
from stratafl.data import Federation, from_clients
from stratafl.errors import DataError, RecordError
from stratafl.models import MLP

EXPERIMENT = with_values(Experiment(), {"train.lr": 0.3, "train.batch": 20, "run.rounds": 12})


def federation(targets: Callable[[np.ndarray], np.ndarray], clients: int = 4, validation: float = 0.2) -> Federation:
    rng = np.random.default_rng(3)
    drawn = [rng.normal(size=(30, 4)).astype(np.float32) for _ in range(clients)]
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
    return advise(EXPERIMENT, federation=given, model=model(2))


def test_it_keeps_to_a_tenth_of_a_full_comparison(advice: Advice) -> None:
    outcome = advice.outcome
    assert 0.05 * outcome.full < outcome.steps <= outcome.allowed <= 0.1 * outcome.full
    assert {each.rounds for each in outcome.finalists} == {outcome.of("local").rounds}


def test_test_samples_change_nothing(given: Federation, advice: Advice) -> None:
    poisoned = replace(given, x=given.x.clone(), y=given.y.clone())
    tests = given.split("test").indices
    poisoned.x[tests], poisoned.y[tests] = float("nan"), 1 - given.y[tests]
    again = advise(EXPERIMENT, federation=poisoned, model=model(2))
    assert plain(again, Path("x")) == plain(advice, Path("x"))


def test_names_are_used_and_the_files_can_be_run(advice: Advice, tmp_path) -> None:
    config = write_advice(advice, tmp_path / "new")
    assert load(config).algorithm.name == advice.candidate.method
    page = (tmp_path / "new" / "advice.md").read_text()
    assert all(name in page for name in ("Ulm", "Pisa", "Bern", "Oslo"))
    assert f"strata run --config {config}" in page
    stored = json.loads((tmp_path / "new" / "advice.json").read_text())
    assert stored["federate"] == advice.federate
    assert len(stored["clients"]) == 4


def test_if_nothing_is_clearly_better_it_says_train_alone(advice: Advice) -> None:
    unclear = replace(advice, federate=False, candidate=advice.outcome.of("local").candidate)
    assert words.answer(unclear).startswith("Train alone, or collect more data")
    assert "sends nothing" in words.cost(unclear)


def test_numbers_are_judged_by_their_error() -> None:
    found = advise(EXPERIMENT, federation=federation(numbers, validation=0.0), model=model(1))
    assert found.metric.name == "mse"
    assert "fedprior" not in {each.method for each in found.comparable}
    assert sum(each.validation_samples for each in found.clients) > 10  # taken from training samples


def test_what_cannot_be_advised_on_is_refused() -> None:
    with pytest.raises(DataError, match="1 client that trains, and nobody to federate with"):
        advise(EXPERIMENT, federation=federation(labels, clients=1), model=model(2))
    same = replace(federation(labels), y=torch.zeros(120, dtype=torch.int64), classes=1)
    with pytest.raises(DataError, match="are the same: there is nothing to learn"):
        advise(EXPERIMENT, federation=same, model=model(1))
    with pytest.raises(RecordError, match="budget is 0"):
        advise(EXPERIMENT, federation=federation(labels), model=model(2), budget=0)
    short = with_values(EXPERIMENT, {"run.rounds": 1})
    with pytest.raises(RecordError, match="too few for advice"):
        advise(short, federation=federation(labels), model=model(2))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["skew_10", "tiny"])
def test_the_advised_method_is_close_to_the_best_at_a_tenth_of_the_steps(name: str) -> None:
    """Where sharing clearly helps; `python tests/advice_table.py` makes the table of all six federations."""
    row = judged(name, FEDERATIONS[name], SETTINGS, seeds=(0,))
    print(printed([row]))
    assert row.share <= 0.1
    assert row.close
