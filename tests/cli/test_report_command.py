"""The report as a person asks for it, and as every comparison ends with it."""

import json
import shutil
import sys
from html import escape

import numpy as np
from cli_helpers import SMALL


def test_a_comparison_ends_with_its_report(strata, place):
    result = strata("compare", "-a", "local,fedper", "--seeds", 1, "--rounds", 2, "--lab", 1, "--out", "two", *SMALL)
    assert result.code == 0
    assert "report: two/report.html (" in result.out
    text = (place / "two" / "report.html").read_text(encoding="utf-8")
    assert all(f'id="chart-{name}"' in text for name in ("curves", "clients", "class_counts", "layers", "bytes"))
    again = strata("resume", "two")  # writes it once more
    assert (again.code, "report: two/report.html" in again.out) == (0, True)


def test_a_comparison_that_was_left_says_which_runs_have_not_begun_and_how_to_go_on(strata, place, refused):
    asked = ("compare", "-a", "local,fedper", "--seeds", 2, "--rounds", 1, "--out", "left", *SMALL)
    assert strata(*asked).code == 0
    assert "not started" not in strata("report", "left").out
    shutil.rmtree(place / "left" / "fedper" / "seed-1")
    result = strata("report", "left", "-o", "left.html")
    says = "1 of the 4 runs of 'left' has not started. To continue, run: strata resume left"
    assert says in " ".join(result.out.split())
    assert escape(says) in (place / "left.html").read_text(encoding="utf-8")
    assert "over the seeds that each row has" in " ".join(result.out.split())
    refused(*asked, says="'left' already holds a comparison: continue it with 'strata resume left', or choose another")
    (place / "left" / "compare.toml").write_text("[compare]\n", encoding="utf-8")  # its runs are whole all the same
    assert strata("report", "left").code == 0


def test_a_report_of_any_runs(strata, place):
    assert strata("run", "-a", "local", "--rounds", 1, "--out", "one", *SMALL).code == 0
    result = strata("report", "one", "-o", "all.html")
    assert (result.code, result.err) == (0, "")
    assert "report: all.html (" in result.out
    assert "local reaches" in (place / "all.html").read_text(encoding="utf-8")
    assert strata("report", "one", "-o", "all.html").code == 0  # a report may be replaced


def test_other_files_are_not_written_over(strata, place, refused):
    assert strata("run", "-a", "local", "--rounds", 1, "--out", "one", *SMALL).code == 0
    (place / "mine.html").write_text("mine", encoding="utf-8")
    refused("report", "one", "-o", "mine.html", says="'mine.html' exists and is not a report")
    refused("report", "one", "-o", "one", says="'one' is a folder: name a file, such as one/report.html")


def test_verdicts_alone_make_a_report(strata, place):
    (place / "told").mkdir()
    told = [{"paper": "P", "claim": "c", "holds": None}]
    (place / "told" / "verdicts.json").write_text(json.dumps(told), encoding="utf-8")
    result = strata("report", "told", "-o", "told.html")
    assert (result.code, result.err) == (0, "")
    assert "– not run" in (place / "told.html").read_text(encoding="utf-8")


def test_without_plotly_a_comparison_is_whole_all_the_same(strata, place, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    result = strata("compare", "-a", "local", "--seeds", 1, "--rounds", 1, "--out", "c", *SMALL)
    assert result.code == 0
    assert "note: no report was written: the report needs 'plotly'" in result.err
    assert not (place / "c" / "report.html").exists()


def test_a_regression_that_diverged_has_its_row_and_its_columns(strata, place):
    x = np.linspace(-1, 1, 40, dtype=np.float32)[:, None]
    np.savez(place / "own.npz", x=x, y=x[:, 0] * 1000, client=np.arange(40) % 4)
    asked = ("-a", "fedavg", "--seeds", 1, "--rounds", 2, "-d", "own.npz", "--set", "train.lr=1e9")
    result = strata("compare", *asked, "--set", "model.hidden=[4]", "--out", "lost")
    assert result.code == 0, result.err
    assert all(word in result.out for word in ("received", "deployed", "worst 10%", "(diverged)", "–"))
    text = (place / "lost" / "report.html").read_text(encoding="utf-8")
    assert "fedavg (diverged)" in text
    assert ">diverged</td>" in text
    assert '<th scope="col">worst 10 %</th>' in text
