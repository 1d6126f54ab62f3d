"""What one run came to: the round that it selected, and which runs have the same clients."""

from written_runs import rewrite, write_run

from stratafl.report.outcome import read_outcome
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
