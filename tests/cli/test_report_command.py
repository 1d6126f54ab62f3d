"""The report as a person asks for it, and as every comparison ends with it."""

import json
import re
import shutil
import sys

import numpy as np
import pytest
from cli_helpers import SMALL


def test_a_comparison_ends_with_its_report(originals, both):
    assert "report: both/report.html (" in originals.printed["both"].out
    text = (both / "report.html").read_text(encoding="utf-8")
    assert all(f'id="chart-{name}"' in text for name in ("curves", "clients", "class_counts", "bytes"))


@pytest.mark.slow
@pytest.mark.budget(0.7, "three reports")
def test_a_comparison_that_was_left_says_which_runs_have_not_begun_and_how_to_go_on(strata, place, both, refused):
    again = "strata resume both"
    assert again not in strata("report", both).out
    shutil.rmtree(both / "fedavg")
    result = strata("report", both, "-o", "left.html")
    assert re.search(f"\\b1 .*\\b2 .*{again}", " ".join(result.out.split()))  # one of two runs
    assert again in (place / "left.html").read_text(encoding="utf-8")
    refused("compare", *SMALL, "-a", "local,fedavg", "--out", both, says=("'both'", f"'{again}'"))
    (both / "compare.toml").write_text("[compare]\n", encoding="utf-8")  # its runs are whole all the same
    assert strata("report", both).code == 0


@pytest.mark.budget(0.8, "two reports")
def test_a_report_of_any_runs(strata, place, finished, refused):
    result = strata("report", finished, "-o", "all.html")
    assert (result.code, result.err) == (0, "")
    assert "report: all.html (" in result.out
    assert "fedper" in (place / "all.html").read_text(encoding="utf-8")
    assert strata("report", finished, "-o", "all.html").code == 0  # a report may be replaced
    (place / "mine.html").write_text("mine", encoding="utf-8")
    refused("report", finished, "-o", "mine.html", says="'mine.html'")
    refused("report", finished, "-o", finished, says=("'done'", "done/report.html"))


def test_verdicts_alone_make_a_report(strata, place):
    (place / "told").mkdir()
    told = [{"paper": "P", "claim": "c", "holds": None}]
    (place / "told" / "verdicts.json").write_text(json.dumps(told), encoding="utf-8")
    result = strata("report", "told", "-o", "told.html")
    assert (result.code, result.err) == (0, "")
    assert "– not run" in (place / "told.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_without_plotly_a_comparison_is_whole_all_the_same(strata, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    result = strata("compare", "-a", "local", "--seeds", 1, "--rounds", 1, "--out", "c", *SMALL)
    assert result.code == 0
    assert "'plotly'" in result.err
    assert not (place / "c" / "report.html").exists()


@pytest.mark.slow
def test_a_regression_that_diverged_has_its_row_and_its_columns(strata, place):
    x = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    np.savez(place / "own.npz", x=x, y=x[:, 0] * 1000, client=np.arange(40) % 4)
    asked = ("-a", "fedavg", "--seeds", 1, "--rounds", 2, "-d", "own.npz", "--set", "train.lr=1e9")
    result = strata("compare", *asked, "--set", "model.hidden=[4]", "--out", "lost")
    assert result.code == 0, result.err
    assert all(word in result.out for word in ("received", "deployed", "worst 10%", "(diverged)"))
    assert "4 of 4 clients diverged" in result.out
    text = (place / "lost" / "report.html").read_text(encoding="utf-8")
    assert "fedavg (diverged)" in text
    assert "4 of 4 clients diverged" in text
    assert '<th scope="col">worst 10 %</th>' in text
