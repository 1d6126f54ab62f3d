"""What one run came to: the round that it selected, and which runs have the same clients."""

from written_runs import rewrite, write_run

from stratafl.report.outcome import read_outcome
from stratafl.runs.stored import selected_line


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
