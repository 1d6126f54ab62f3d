"""`strata leak`: attacks on the uploads of runs, as a table, as CSV and as a picture."""

import csv
import io

import pytest
from cli_helpers import checked_line

SMALL = ("--rounds", 2, "--set", "data.clients=3", "--set", "data.alpha=1", "--set", "model.hidden=[4]")


@pytest.fixture
def runs(strata, place):
    for name, seed in (("fedper", 0), ("fedavg", 0), ("fedavg", 1)):
        out = f"{name}-{seed}"
        assert strata("run", "--algorithm", name, *SMALL, "--set", f"run.seed={seed}", "--out", out).code == 0
    return ["fedper-0", "fedavg-0", "fedavg-1"]


@pytest.mark.slow
@pytest.mark.budget(5, "three runs, and every attack on their uploads")
def test_runs_are_attacked_side_by_side(runs, strata, place):
    result = strata("leak", *runs, "--rounds", 1, "--clients", 2, "--csv", "leaks.csv", "--svg", "leaks.svg")
    assert result.code == 0, result.err
    lines = list(csv.DictReader(io.StringIO((place / "leaks.csv").read_text())))
    assert {(line["run"], line["method"], line["seed"]) for line in lines} == {
        ("fedper-0", "fedper", "0"),
        ("fedavg-0", "fedavg", "0"),
        ("fedavg-1", "fedavg", "1"),
    }
    layers = {method: {line["layer"] for line in lines if line["method"] == method} for method in ("fedper", "fedavg")}
    assert layers["fedavg"] - layers["fedper"] == {"fc", "fc, bias alone"}
    shares = [float(line["value"]) for line in lines if line["layer"] == "fc" and line["attack"] == "class shares"]
    assert f"{sum(shares) / 2:.2f}" in result.out  # the mean over seeds
    assert (place / "leaks.svg").read_text().startswith("<svg")
    again = strata("leak", *runs, "--csv", "leaks.csv")
    assert "leaks.csv" in checked_line(again)


@pytest.mark.slow
@pytest.mark.budget(5, "three runs, and every attack on their uploads")
def test_runs_whose_noise_others_add_are_no_seeds_of_one_method(strata, place):
    """Who adds the noise is part of the name, unless it is the server as by default."""
    added = {"a": "central", "b": "local", "c": "distributed"}
    for out, dp in added.items():
        noisy = ("--set", f"private.dp={dp}", "--set", f"server.secure={str(dp == 'distributed').lower()}")
        assert strata("run", "--algorithm", "fedavg+private", *SMALL, *noisy, "--out", out).code == 0
    assert strata("leak", *added, "--rounds", 1, "--clients", 2, "--csv", "leaks.csv", "--svg", "leaks.svg").code == 0
    lines = csv.DictReader(io.StringIO((place / "leaks.csv").read_text()))
    columns = ["fedavg+private", "fedavg+private, dp=local", "fedavg+private, dp=distributed, secure"]
    assert list(dict.fromkeys((line["run"], line["method"]) for line in lines)) == list(
        zip(added, columns, strict=True)
    )
    picture = (place / "leaks.svg").read_text()
    assert [picture.count(f">{column}</text>") for column in columns] == [1, 1, 1]


@pytest.mark.parametrize("options", [("--rounds", 0), ("--clients", 1)])
def test_what_cannot_be_is_refused_before_anything_is_read(strata, options):
    result = strata("leak", "nowhere", *options)
    assert options[0] in checked_line(result)
