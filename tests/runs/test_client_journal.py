"""Lines of clients as columns: they say the same, and what is damaged is refused."""

import json

import numpy as np
import pytest
import torch

from simulations import federation
from stratafl.core.task import Scores
from stratafl.errors import DamagedError
from stratafl.evaluation.measure import MetricValues, scored_clients
from stratafl.evaluation.metrics import METRICS
from stratafl.evaluation.trial import SAMPLED, SAMPLED_FROM, evaluated_clients
from stratafl.report.run_journals import lines_of_round
from stratafl.runs import client_journal
from stratafl.runs.class_counts import CountRows, class_counts, counts_array, stored_class_counts, write_class_counts
from stratafl.runs.client_journal import journal_lines
from stratafl.runs.json_files import Journal


def tables():
    """Of four clients: one without samples, one whose model is not finite, and one without a metric."""
    finite = torch.tensor([True, True, False, True])
    scores = Scores(
        torch.tensor([1.0, 0, 1.5, 3]), torch.tensor([0.5, 0, torch.nan, 2]), torch.tensor([4, 0, 3, 3]), finite
    )
    values = {"test.deployed": MetricValues(METRICS["auroc"], 0.5, {9: 0.25, 4: 1 / 3})}
    known = scored_clients(torch.tensor([9, 2, 4, 7]), {"test.deployed": scores}, 3, values)
    trained = Scores(torch.tensor([2.0, 1]), torch.tensor([0.1, 0.2]), torch.tensor([2, 1]))
    return known, scored_clients(torch.tensor([11, 12]), {"test.trained": trained}, 3, new=True)


def test_columns_say_what_lines_say(tmp_path, monkeypatch):
    written = {}
    for name, many in (("lines", 1000), ("columns", 1)):
        monkeypatch.setattr(client_journal, "MIN_COLUMN_CLIENTS", many)
        monkeypatch.setattr(client_journal, "MAX_LINE_CLIENTS", 3)
        journal = Journal(tmp_path / name)
        for number in (1, 2):
            journal.append(journal_lines(number, tables()))
        lines = lines_of_round(tmp_path / name, 2, summed=True)
        written[name] = [{key: value for key, value in line.items() if key != "round"} for line in lines]
    assert written["columns"] == written["lines"]
    assert written["lines"][0]["test.deployed.auroc"] == 0.25
    assert written["lines"][1] == {"client": 2, "test.samples": 0}
    assert written["lines"][2]["test.deployed.loss"] is None
    assert written["lines"][2]["test.deployed.not_finite"] == 1
    assert written["lines"][4]["new"] is True
    assert len((tmp_path / "columns").read_text().splitlines()) == 2 * 3


@pytest.mark.parametrize(
    "change",
    [
        {"clients": 3},
        {"clients": "4"},
        {"new": 3},
        {"whole": []},
        {"whole": {"test.samples": "AAAAAAAAAAA="}},
        {"numbers": {"test.deployed.loss": "?"}},
        {"numbers": {"test.deployed.loss": 3}},
    ],
)
def test_damaged_columns_are_refused(tmp_path, monkeypatch, change):
    monkeypatch.setattr(client_journal, "MIN_COLUMN_CLIENTS", 1)
    (line,) = journal_lines(1, tables()[:1])
    (tmp_path / "clients.jsonl").write_text(json.dumps({**line, **change}) + "\n")
    with pytest.raises(DamagedError, match="columns"):
        lines_of_round(tmp_path / "clients.jsonl", 1)


def test_a_table_takes_the_columns_of_another_in_its_own_order():
    one, _ = tables()
    scores = Scores(torch.tensor([1.0, 2, 3, 4]), torch.zeros(4), torch.tensor([4, 4, 4, 4]))
    whole = one.updated(scored_clients(torch.tensor([2, 4, 7, 9]), {"test.trained": scores}, 3))
    assert whole.whole["client"].tolist() == [9, 2, 4, 7]
    assert whole.numbers["test.trained.accuracy"].tolist() == [1.0, 0.25, 0.5, 0.75]
    assert whole.whole["test.samples"].tolist() == [4, 4, 4, 4]


def test_a_sample_of_many_clients_is_evaluated_unless_a_number_is_set():
    assert evaluated_clients(None, SAMPLED_FROM) == SAMPLED_FROM
    assert evaluated_clients(None, SAMPLED_FROM + 1) == SAMPLED
    assert [evaluated_clients(number, 10**6) for number in (0, 3, 10**9)] == [10**6, 3, 10**6]


def test_packed_class_counts_are_those_of_lists(tmp_path, monkeypatch):
    samples = federation((5, 9, 6))
    listed = class_counts(samples)
    monkeypatch.setattr("stratafl.runs.class_counts.MIN_PACKED_CLIENTS", 1)
    write_class_counts(tmp_path, samples)
    stored = stored_class_counts(tmp_path)
    for split, rows in listed["counts"].items():
        assert isinstance(stored["counts"][split], CountRows)
        assert [*stored["counts"][split]] == rows
        assert [*stored["counts"][split][1:]] == rows[1:]
        assert np.array_equal(counts_array(rows), counts_array(stored["counts"][split]))
    assert stored["counts"]["train"] == class_counts(samples)["counts"]["train"]
    text = json.loads((tmp_path / "class_counts.json").read_text())
    for wrong in ("AAAA", "?", 3, None):
        broken = {"classes": text["classes"], "clients": 3, "counts": {**text["counts"], "train": wrong}}
        (tmp_path / "class_counts.json").write_text(json.dumps(broken))
        assert stored_class_counts(tmp_path) is None
