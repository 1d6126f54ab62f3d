"""The report of a federation: what each site's models score on its own test samples, shared with all, or kept."""

import json

import pytest
import torch
from test_hosting import Clock

from hosted import SITES, Local, simulation, with_all_samples, with_tables, write_file, write_folders
from stratafl.api import Fitted
from stratafl.cli import main as strata
from stratafl.config.assemble import simulation_of
from stratafl.config.experiment import with_values
from stratafl.deploy.courier import Delivered
from stratafl.deploy.federation_report import FederationReport, report_sentences
from stratafl.deploy.hosting import Hosting
from stratafl.deploy.member import CONSENT, SiteMember
from stratafl.deploy.site_model import final_model, member_in
from stratafl.deploy.site_scores import SiteScores
from stratafl.deploy.status import read_status
from stratafl.errors import WireError
from stratafl.evaluation.evaluate import score_stages
from stratafl.evaluation.metrics import METRICS
from stratafl.execute import Matrix

pytestmark = pytest.mark.budget(4, "a federation of four sites in this process, and each alone")
FILE = with_tables(run={"rounds": 2, "participation": 1.0}, deploy={"report": True})


def hosted(folder, courier, file=FILE):
    clock = Clock()
    Hosting(folder / "host", courier, clock=clock, pause=clock.pause).run()
    return FederationReport.load(folder / "host", file)


def prepared(folder, file=FILE):
    return Local(folder, write_folders(folder, file))


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    folder = tmp_path_factory.mktemp("reported")
    courier = prepared(folder)
    (folder / "c" / CONSENT).write_text(json.dumps({"keeps_scores": True}))
    return folder, courier, hosted(folder, courier)


def test_scores_are_those_of_the_simulation_and_of_training_alone_in_it(federation):
    folder, _, report = federation
    sim = simulation(folder, FILE)
    method = score_stages(sim, sim.run(Matrix()), _everybody(sim), ("test",))
    alone_sim = simulation_of(with_values(with_all_samples(folder, FILE), {"algorithm.name": "local"}))
    alone = score_stages(alone_sim, alone_sim.run(Matrix()), _everybody(sim), ("test",))["test.deployed"]
    for name, scores in {**report.scores, "c": FederationReport.load(folder / "c", FILE).scores["c"]}.items():
        at = FILE.deploy.number(name)
        received, deployed = method["test.received"], method["test.deployed"]
        assert scores.samples == int(deployed.count[at])
        for value, expected in ((scores.alone, alone), (scores.received, received), (scores.personalised, deployed)):
            assert value == pytest.approx(float(expected.hits[at] / expected.count[at]), abs=1e-7)
        assert scores.low <= scores.personalised - scores.alone <= scores.high


def _everybody(sim):
    return torch.arange(sim.setup.clients)


def test_a_site_predicts_with_the_model_that_it_trained_alone(federation, tmp_path, capsys):
    folder, *_ = federation
    (folder / "a" / "node.toml").write_text(f'site = "a"\ndata = "{folder / "nowhere.csv"}"\n')
    command = ["predict", str(folder / "a"), "--data", str(folder / "a.csv")]
    assert strata(command) == strata([*command, "--alone"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[: len(lines) // 2] != lines[len(lines) // 2 :]
    sim = simulation_of(with_values(with_all_samples(folder, FILE), {"algorithm.name": "local"}))
    state = Fitted(sim, sim.run(Matrix()), []).client(0).state
    alone = final_model(member_in(folder / "a"), alone=True).module.state_dict()
    assert all(torch.equal(alone[name], x) for name, x in state.items())


def test_a_site_keeps_its_scores_and_sees_those_of_the_others(federation):
    folder, _, report = federation
    assert (set(report.scores), report.private) == (set("abd"), ("c",))
    assert "score" not in read_status(folder / "host")["sites"]["c"] or (
        read_status(folder / "host")["sites"]["c"]["score"] is None
    )
    for site in SITES:
        theirs = FederationReport.load(folder / site, FILE)
        assert set(theirs.scores) == set("abd") | {site}
    status = read_status(folder / "host")
    assert (status["state"], {each["state"] for each in status["sites"].values()}) == ("finished", {"has its model"})


def test_a_host_that_is_started_again_asks_nobody_twice(federation):
    folder, courier, report = federation
    courier.carried.clear()
    assert hosted(folder, courier) == report
    assert courier.carried == []


@pytest.mark.slow
def test_a_site_that_was_away_reports_when_the_host_is_started_again(tmp_path):
    courier = prepared(tmp_path)
    asked = []

    def away(site):  # once all have their model
        asked.append(site)
        return site == "b" and ("report", "a") in courier.carried and len(asked) < 3000

    courier.away = away
    report = hosted(tmp_path, courier)
    assert report.heard == set(SITES)
    assert SiteMember(tmp_path / "b", "b", str(tmp_path / "b.csv")).report({"federation": "test"})["scores"]


@pytest.mark.slow
def test_a_site_that_has_gone_holds_up_the_report_of_the_others_for_one_deadline(tmp_path):
    courier, clock, gone = prepared(tmp_path), Clock(), set[str]()
    carry = courier.carry

    def carried(kind, messages, seconds):
        if kind != "report" or "b" not in messages:
            return carry(kind, messages, seconds)
        gone.add("b")
        done = carry(kind, {site: content for site, content in messages.items() if site != "b"}, seconds)
        return Delivered(done.replies, {"b": "no answer"})

    courier.carry, courier.away = carried, gone.__contains__
    Hosting(tmp_path / "host", courier, clock=clock, pause=clock.pause).run()
    assert FederationReport.load(tmp_path / "host", FILE).heard == set(SITES) - {"b"}
    assert FILE.deploy.deadline < clock.now < 1.5 * FILE.deploy.deadline


@pytest.mark.slow
def test_a_site_may_train_alone_for_as_long_as_all_rounds_may_take(tmp_path):
    """Two rounds of 900 s: it is silent for 1700 s, and is asked again because a message may be lost."""
    courier, clock, asked = prepared(tmp_path), Clock(), list[float]()
    carry = courier.carry

    def carried(kind, messages, seconds):
        if kind != "report" or "b" not in messages or any("report" in table for table, _ in messages.values()):
            return carry(kind, messages, seconds)
        asked.append(clock.now)
        if clock.now + seconds - asked[0] >= 1700:
            return carry(kind, messages, seconds)
        done = carry(kind, {site: content for site, content in messages.items() if site != "b"}, seconds)
        clock.pause(seconds)
        return Delivered(done.replies, {"b": "no answer"}, silent=frozenset("b"))

    courier.carry = carried
    Hosting(tmp_path / "host", courier, clock=clock, pause=clock.pause).run()
    assert FederationReport.load(tmp_path / "host", FILE).heard == set(SITES)
    assert len(asked) > 3


@pytest.mark.parametrize(
    ("table", "wrong"),
    [
        ({}, "scores"),
        ({"rounds": 2, "samples": 5, "alone": "1", "received": 0, "personalised": 1, "low": 0, "high": 1}, "scores"),
        ({"rounds": 2, "samples": -5, "alone": 1, "received": 0, "personalised": 1, "low": 0, "high": 1}, "scores"),
        ({"rounds": 2, "samples": 5, "alone": 1e99, "received": 0, "personalised": 1, "low": 0, "high": 1}, "scores"),
        ({"rounds": 2, "samples": 5, "alone": True, "received": 0, "personalised": 1, "low": 0, "high": 1}, "scores"),
    ],
)
def test_scores_that_are_none_are_refused(table, wrong):
    with pytest.raises(WireError, match=wrong):
        SiteScores.from_table(table)


@pytest.mark.parametrize(
    "table",
    [
        [],
        {"rounds": 1, "scores": {"nobody": {}}, "private": []},
        {"rounds": 1, "scores": {}, "private": ["x"]},
        {"rounds": 1, "scores": {}, "private": [["a"]]},
    ],
)
def test_a_report_of_other_sites_is_refused(table):
    with pytest.raises(WireError):
        FederationReport.from_table(table, FILE)


def test_verdicts_follow_the_interval_whatever_the_metric():
    gains = SiteScores(9, 50, 0.5, 0.6, 0.7, 0.1, 0.3)
    worse = SiteScores(9, 50, 0.7, 0.6, 0.5, -0.3, -0.1)
    unclear = SiteScores(9, 50, 0.5, 0.6, 0.7, -0.1, 0.5)
    none = SiteScores(9, 0, None, None, None)
    assert [each.outlook for each in (gains, worse, unclear, none)] == ["gains", "loses", "unclear", "unclear"]
    assert gains.gain(METRICS["accuracy"]) == pytest.approx(0.2)
    assert gains.gain(METRICS["mse"]) == pytest.approx(-0.2)
    report = FederationReport(9, {"a": gains, "b": worse}, ("c",))
    lines = report_sentences(report, FILE)
    assert [line.endswith(f": {site}") for line, site in zip(lines, "abcd", strict=False)] == [True] * 4


def test_strata_report_writes_the_page_of_a_host_and_of_a_site(federation, tmp_path, capsys):
    folder, _, report = federation
    page = tmp_path / "ward.html"
    assert strata(["report", str(folder / "host"), "-o", str(page)]) == 0
    shown, text = capsys.readouterr().out, page.read_text()
    for site, scores in report.scores.items():
        assert f"{100 * scores.alone:.1f} %" in shown
        assert f'<th scope="row" class="left">{site}</th>' in text
    assert '"course"' in text
    assert strata(["report", str(folder / "c")]) == 0  # has its own scores
    assert (folder / "c" / "report.html").exists()
    capsys.readouterr()
    write_file(tmp_path / "begun", FILE)
    assert strata(["report", str(tmp_path / "begun")]) == 2
    assert strata(["report", str(folder / "host"), str(folder / "c")]) == 2
    assert [str(tmp_path / "begun") in line or str(folder) in line for line in capsys.readouterr().err.splitlines()]
