"""The file itself: complete, offline, escaped, small; and verdicts, which come from other files."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from written_runs import EVIL, as_regression, write_run, write_study

from stratafl.errors import RunError, UnknownNameError
from stratafl.report import gather
from stratafl.report import sentences as say
from stratafl.report.page import in_script, is_report, page, sections, write_report
from stratafl.report.verdict import STAND_IN, Verdict, read_verdicts, tally


class Outline(HTMLParser):
    """The elements of a page, as a browser sees them."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.texts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        given = dict(attributes)
        self.links += [given[key] for key in ("src", "href", "data-src") if key in given]

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return page(gather([write_study(tmp_path_factory.mktemp("study") / "s")]))


def test_nothing_can_break_out(written):
    outline = Outline(written)
    assert outline.tags.count("script") == 3
    assert "img" not in outline.tags
    assert EVIL not in written
    assert EVIL in "".join(outline.texts)  # it is there as text
    assert in_script({"a": "</script><!--&"}) == '{"a":"\\u003c/script\\u003e\\u003c!--\\u0026"}'
    assert json.loads(in_script({"a": EVIL})) == {"a": EVIL}


def test_nothing_is_fetched(written):
    links = Outline(written).links
    assert all(link.startswith(("#", "data:,")) for link in links)
    assert "default-src 'none'" in written
    without = re.sub(r'<script type="text/plain" id="plotly-gzip">.*?</script>', "", written, flags=re.DOTALL)
    assert "http://" not in without
    assert "https://" not in without


def test_every_section_is_there_with_headings_captions_and_labels(written):
    assert '<section id="decision"' in written
    for name in ("ranked", "course", "spread", "held", "lab", "ablations", "reproduction", "made"):
        assert f'<section id="{name}"' in written
        assert f'href="#{name}"' in written
    assert written.count("<table ") == written.count("<caption>")
    ids = re.findall(r'<(?:section|table|div|h2)[^>]* id="([^"]+)"', written)
    assert len(set(ids)) == len(ids)
    charts = re.findall(r'<div class="chart" id="chart-(\w+)" role="img" aria-label="[^"]+"', written)
    assert charts == ["decision", "curves", "clients", "layers", "methods", "mixing", "bytes", "class_counts"]
    for chart in charts:
        assert all(f'data-chart="{chart}" data-format="{kind}"' in written for kind in ("png", "svg", "csv"))


def test_every_table_can_be_had_as_csv(written):
    data = json.loads(re.search(r'id="report-data">(.*?)</script>', written, re.DOTALL)[1])
    assert set(re.findall(r'data-table="([\w-]+)"', written)) == set(data["tables"])
    assert data["tables"]["ranking"].startswith("method,seeds,")


@pytest.mark.slow
def test_many_clients_and_rounds_make_no_large_file(tmp_path):
    counts = {"train": [[1] * 20] * 10_000, "test": [[1] * 20] * 10_000}
    held = {"classes": 20, "clients": 10_000, "counts": counts}
    write_run(tmp_path / "clients", [0.5], clients=10_000, holdings=held)
    write_run(tmp_path / "rounds", [0.5] * 2000, name="local", lab=10, mixing=30, layers=("a", "b"), clients=1)
    assert write_report(gather([tmp_path]), tmp_path / "report.html") < 6e6


def test_a_report_may_be_replaced_and_nothing_else(tmp_path):
    write_report(gather([write_run(tmp_path / "run", [0.5])]), tmp_path / "report.html")
    assert is_report(tmp_path / "report.html")
    (tmp_path / "other.html").write_text("<p>mine</p>", encoding="utf-8")
    assert not is_report(tmp_path / "other.html")


def test_a_regression_is_reported_by_its_loss(tmp_path):
    folder = as_regression(write_run(tmp_path / "run", [0.5, 0.6]))
    text = page(gather([folder]))
    assert say.ALONE_REACHES.format(method="fedper", metric="loss", score="1.4", basis="one seed") in text


# Verdicts


def tell(folder, *entries):
    folder.mkdir(exist_ok=True)
    (folder / "verdicts.json").write_text(json.dumps(list(entries)), encoding="utf-8")
    return folder


GIVEN = {"paper": "P", "table": "1", "claim": "a beats b", "predicate": "a > b", "paper_value": 1.5, "measured": None}


def test_verdicts_have_signs_words_and_colours(tmp_path):
    folder = tell(tmp_path / "v", *({**GIVEN, "holds": holds, "reason": "why"} for holds in (True, False, None)))
    assert [verdict.words for verdict in read_verdicts([folder])] == ["✓ holds", "✗ does not hold", "– not run"]
    text = page(gather([folder]))  # without any run
    assert say.NO_RUNS in text
    assert "<span>1 of 3 claims holds, 1 does not, 1 was not run</span>" in text
    assert [text.count(f'class="left {look}"') for look in ("holds", "fails", "unrun")] == [1, 1, 1]


def test_a_verdict_within_noise_is_said_to_be_and_does_not_look_certain(tmp_path):
    given = [{**GIVEN, "holds": holds, "noise": True} for holds in (True, False, None)]
    folder = tell(tmp_path / "v", *given)
    words = ["✓ holds, within noise", "✗ does not hold, within noise", "– not run"]
    assert [verdict.words for verdict in read_verdicts([folder])] == words
    text = page(gather([folder]))
    assert [text.count(f'class="left {look}"') for look in ("doubtful", "holds", "fails")] == [2, 0, 0]
    assert "1 of 3 claims holds (within noise), 1 does not (within noise), 1 was not run; within noise: other" in text


def test_a_verdict_from_one_seed_is_its_own_kind_and_does_not_look_certain(tmp_path):
    given = [{**GIVEN, "holds": True, "one_seed": True}, {**GIVEN, "holds": True}, {**GIVEN, "holds": None}]
    untold = {**GIVEN, "holds": None, "measured": "a 1.00 · b 2.00"}
    folder = tell(tmp_path / "v", *given, untold)
    told = read_verdicts([folder])
    assert [verdict.sure for verdict in told] == [False, True, False, False]
    assert len({verdict.words for verdict in told}) == 4
    assert tally(told) == "2 of 4 claims hold (1 with one seed), 1 cannot be told, 1 was not run"
    text = page(gather([folder]))
    assert [text.count(f'class="left {look}"') for look in ("doubtful", "holds", "unrun")] == [1, 1, 2]


def test_the_tally_counts_what_there_is():
    def told(*holds, noise=0):
        return tally([Verdict("", "", "", "", each, noise=i < noise) for i, each in enumerate(holds)])

    assert told(*[True] * 6) == "6 of 6 claims hold"
    assert told(*[True] * 6, noise=5) == "6 of 6 claims hold (5 within noise)"
    assert told(True) == "1 of 1 claim holds"
    assert (
        told(False, False, True, None, None, noise=1)
        == "1 of 5 claims holds, 2 do not (1 within noise), 2 were not run"
    )
    assert told(False) == "0 of 1 claim hold, 1 does not"


def test_what_stands_in_is_no_evidence_and_no_success(tmp_path):
    write_run(tmp_path / "run", [0.5])
    folder = tell(tmp_path, {**GIVEN, "holds": True, "stand_in": True})
    (verdict,) = read_verdicts([folder])
    assert not verdict.sure
    assert tally([verdict]) == STAND_IN  # and no count of what holds
    assert tally([verdict, replace(verdict, stand_in=False)]) == f"1 of 1 claim holds; {STAND_IN}"
    text = page(gather([folder]))
    assert [text.count(f'class="left {look}"') for look in ("doubtful", "holds")] == [1, 0]


def test_verdicts_come_right_after_the_decision_and_their_csv_has_every_key(tmp_path):
    write_run(tmp_path / "run", [0.5])
    study = gather([tell(tmp_path, {**GIVEN, "holds": True, "reason": "why", "noise": True})])
    found = sections(study)
    assert [section.name for section in found[:3]] == ["decision", "reproduction", "ranked"]
    head, row = found[1].parts[0].csv.splitlines()
    assert head == "paper,table,claim,predicate,paper_value,measured,holds,reason,noise,one_seed,stand_in"
    assert row == "P,1,a beats b,a > b,1.5,,True,why,True,False,False"
    assert '<th scope="row" class="left" data-title="claim">a beats b<small>a &gt; b</small></th>' in page(study)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ([], "verdict 1 is wrong"),
        (3, "verdict 1 is wrong: 3 "),
        ({"paper": "P", "claim": "c"}, "verdict 1 is wrong: holds"),
        ({**GIVEN, "holds": "yes"}, "holds is .*yes"),
        ({**GIVEN, "holds": 1}, "holds is 1"),
        ({**GIVEN, "holds": True, "predicat": ""}, "did you mean 'predicate'"),
        ({**GIVEN, "holds": True, "noise": 1}, "verdict 1 is wrong: noise is 1"),
    ],
)
def test_verdicts_that_are_none_are_refused(tmp_path, entry, says):
    with pytest.raises((RunError, UnknownNameError), match=says):
        read_verdicts([tell(tmp_path / "v", entry)])


@pytest.mark.parametrize(
    ("lab", "says"),
    [({}, "This run has no layer diagnostics. Add <code>--lab 10</code>."), ({"lab": 1}, "Layers over rounds")],
)
def test_a_run_without_layer_diagnostics_says_how_to_get_them(tmp_path, lab, says):
    text = page(gather([write_run(tmp_path / "run", [0.5], **lab)]))
    assert says in text
    assert ("no layer diagnostics" in text) == (not lab)
