"""`strata bench`: a table, a chart, files that are new."""

import json

import pytest
from cli_helpers import checked_line

from stratafl.bench.options import command_line

QUICK = ("bench", "--models", "mlp", "--clients", 2, "--steps", 8, "--repeats", 1, "--device", "cpu")


@pytest.mark.slow
def test_a_table_a_chart_and_two_files(strata, place):
    result = strata(*QUICK, "--methods", "fedavg,fedper", "--json", "speed.json", "--svg", "speed.svg")
    assert result.code == 0
    assert all(word in result.out for word in ("fedavg", "fedper", "× loop", "█", "torch", "threads"))
    assert result.err.count("client-step") == 2
    assert [row["method"] for row in json.loads((place / "speed.json").read_text())["rows"]] == ["fedavg", "fedper"]
    drawn = (place / "speed.svg").read_text()
    assert "<svg" in drawn
    assert "http://cdn" not in drawn.replace("https", "http")
    for name in ("speed.json", "speed.svg"):
        before = (place / name).read_bytes()
        again = strata(*QUICK, f"--{name.partition('.')[2]}", name)
        assert f"'{name}' exists" in checked_line(again)
        assert (place / name).read_bytes() == before


@pytest.mark.slow
def test_without_baselines_bars_are_times(strata, monkeypatch):
    processor = "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz, a name that takes a line"
    monkeypatch.setattr("stratafl.bench.measurement._processor", lambda: processor)
    result = strata(*QUICK, "--methods", "fedavg", "--no-baselines")
    words = " ".join(result.out.split())  # wherever the name of a processor has broken the line
    assert result.code == 0
    assert "bars: ms per client-step" in words
    assert "medians of 1 round, " in words
    assert f"{words} {result.err}".count("cores") == 1  # the machine is named once


@pytest.mark.slow
def test_a_size_that_does_not_fit_has_no_figures(strata, monkeypatch):
    monkeypatch.setattr("stratafl.bench.engine_run.device_memory", lambda device: 2)
    result = strata(*QUICK, "--methods", "fedavg")
    assert result.code == 0
    assert "–" in result.out
    assert "not measured" in result.err


def test_the_command_has_every_option_with_its_help_text(strata, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = strata("bench", "--help").out
    for option in command_line():
        assert f"--{option.name}" in shown
        assert option.help in shown
