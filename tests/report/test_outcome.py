"""What one run came to: the round that it selected, and which runs have the same clients."""

import re
from math import sqrt

import pytest
from written_runs import rewrite, write_run

from stratafl.report.outcome import read_outcome, what_counts
from stratafl.runs.directory import selected_line


def test_an_old_run_keeps_the_round_that_it_selected(tmp_path):
    """Before metrics could be chosen, rounds were selected over all samples, whatever the average of the score."""
    run = write_run(tmp_path / "old", [0.7, 0.6], evaluate={"average": "clients"}, stop={"patience": 1})

    def mean_over_clients(line):
        values = {1: 0.5, 2: 0.8}[line["round"]]
        return line | {f"{split}.deployed.client_accuracy": values for split in ("validation", "test")}

    rewrite(run / "rounds.jsonl", mean_over_clients)
    one = read_outcome(run)
    assert one.config["evaluate"]["metric"] == "accuracy"  # as in runs of today, with which it is ranked
    assert one.numbers()["selected_round"] == selected_line(run, one.lines)["round"] == 1
    assert one.numbers()["score"] == 0.5
    assert one.stopped


def test_runs_have_the_same_clients_by_their_names_or_by_their_partition(tmp_path):
    counts = {"classes": 2, "clients": 2, "counts": {"train": [[3, 1], [2, 2]], "test": [[1, 1], [1, 1]]}}

    def population(number, seed, names=(), data=()):
        held = counts | ({"client_names": list(names)} if names else {})
        return read_outcome(
            write_run(tmp_path / str(number), [0.5], seed=seed, holdings=held, data=dict(data))
        ).population

    assert population(0, 0) != population(1, 1)
    assert population(2, 0, data={"seed": 5}) == population(3, 1, data={"seed": 5})
    assert population(4, 0, ["Bergen", "Oslo"]) == population(5, 1, ["Bergen", "Oslo"])
    assert population(6, 0, ["Bergen", "Oslo"]) != population(7, 1, ["Bergen", "Voss"])  # drawn among the sites


def sampled_outcome(folder, average, clients=10, evaluated=3):
    """Three clients with accuracies of 0.8, 0.5 and 0.2 on 4, 5 and 6 samples."""
    settings = {"clients": evaluated, "average": average}
    run = write_run(folder, [0.6], clients=3, environment={"clients": clients}, evaluate=settings)
    rewrite(run / "clients.jsonl", lambda line: line | {"test.deployed.accuracy": (0.8, 0.5, 0.2)[line["client"]]})
    return read_outcome(run)


def test_the_standard_error_of_a_sample_of_clients(tmp_path):
    weighted = [4 * (0.8 - 0.46), 5 * (0.5 - 0.46), 6 * (0.2 - 0.46)]  # 0.46 is the mean over 15 samples
    deviations = {"clients": 0.3, "samples": sqrt(sum(x**2 for x in weighted) / 2) / 5}  # 5 samples are a client's mean
    for average, deviation in deviations.items():
        run = sampled_outcome(tmp_path / average, average)
        # 3 of 10 clients are drawn without replacement, so seven tenths of the variance remain
        assert run.sampling_error == pytest.approx(deviation * sqrt(0.7 / 3), rel=1e-12)
    many = sampled_outcome(tmp_path / "many", "clients", clients=10**6)
    assert many.sampling_error == pytest.approx(0.3 / sqrt(3), rel=1e-5)
    assert re.findall(r"\d[\d,.]*", what_counts([many])) == ["3", "1,000,000", "17"]  # points
    few = sampled_outcome(tmp_path / "few", "clients")
    assert re.findall(r"\d[\d,.]*", what_counts([few, many])) == ["3", "10", "17"]  # the largest of them
    everyone = sampled_outcome(tmp_path / "everyone", "clients", clients=3, evaluated=0)
    assert everyone.sampling_error is None
    assert not re.search(r"\d", what_counts([everyone]))
