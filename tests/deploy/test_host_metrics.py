"""Metrics of a host, as Prometheus' own parser reads them."""

import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_hosting import hosted, prepared

from stratafl.deploy.prometheus import STATES, Family, MetricsFile, families, text_of
from stratafl.deploy.status import ROUNDS, read_status
from stratafl.errors import DeployError
from stratafl.runs.json_files import read_lines


def read(text):
    """Values by name and labels without the federation, and the kinds of metrics."""
    found = list(text_string_to_metric_families(text))
    assert all(sample.labels.pop("federation") == "test" for family in found for sample in family.samples)
    values = {(s.name, *s.labels.values()): s.value for family in found for s in family.samples}
    assert len(values) == sum(len(family.samples) for family in found)
    assert all(family.documentation for family in found)
    return values, {family.name: family.type for family in found}


@pytest.mark.budget(0.8, "two rounds of four sites")
def test_metrics_are_what_status_and_journal_say(tmp_path):
    _, courier, _ = prepared(tmp_path)
    hosted(tmp_path, courier).run()
    assert MetricsFile(tmp_path / "m.prom", tmp_path / "host", "test").write({"a": {"seen": 4e9}}) == ""
    values, kinds = read((tmp_path / "m.prom").read_text())
    status, rounds = read_status(tmp_path / "host"), read_lines(tmp_path / "host" / ROUNDS)
    last = rounds[-1]
    assert values["strata_round",] == values["strata_rounds",] == 5
    assert {state: values["strata_state", state] for state in STATES} == {s: s == "finished" for s in STATES}
    assert (values["strata_sites_present",], values["strata_sites_set_aside",]) == (4, 0)
    assert values["strata_uploads_absorbed_total",] == sum(line["uploads"] for line in rounds) > 5
    assert values["strata_uploads_left_out_total",] == 0
    assert values["strata_received_bytes_total",] == sum(line["bytes.up"] for line in rounds) > last["bytes.up"]
    assert values["strata_sent_bytes_total",] == sum(line["bytes.down"] for line in rounds)
    assert values["strata_last_round_received_bytes",] == last["bytes.up"] > 0
    assert values["strata_last_round_sent_bytes",] == last["bytes.down"] != last["bytes.up"]
    assert values["strata_last_round_duration_seconds",] == last["seconds.train"] + last["seconds.server"]
    assert values["strata_score", "accuracy"] == last["test.received.client_accuracy"]
    assert values["strata_site_last_seen_timestamp_seconds", "a"] == 4e9  # the gate has seen it later than the rounds
    assert values["strata_site_last_seen_timestamp_seconds", "b"] == status["sites"]["b"]["seen"]
    scores = {name: site["score"] for name, site in status["sites"].items() if site.get("score") is not None}
    assert {labels[0]: x for (name, *labels), x in values.items() if name == "strata_site_score"} == scores != {}
    assert {name for name, kind in kinds.items() if kind == "counter"} == {
        "strata_uploads_absorbed",  # as the parser names them, without _total
        "strata_uploads_left_out",
        "strata_received_bytes",
        "strata_sent_bytes",
    }


def test_numbers_that_nobody_knows_are_left_out():
    values, _ = read(text_of("test", families({}, [], {})))
    assert values["strata_round",] == 0
    assert values["strata_uploads_absorbed_total",] == 0
    assert not any("last_round" in name or "score" in name or "seen" in name for name, *_ in values)
    sites = {"a": {"state": "set aside", "score": None}, "b": {"state": "not connected"}, "c": {"state": "asked"}}
    lines = [{"test.received.client_loss": 0.5, "left_out": 2}, {"seconds.train": 1.0, "left_out": 1}]
    values, _ = read(text_of("test", families({"sites": sites}, lines, {})))
    assert (values["strata_sites_present",], values["strata_sites_set_aside",]) == (1, 1)
    assert values["strata_score", "loss"] == 0.5  # of the last round that has one
    assert values["strata_uploads_left_out_total",] == 3


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", 'a\\"\n', "α {x=1} #"])
def test_label_values_are_escaped(name):
    text = text_of("test", [Family("strata_x", "gauge", "X.", [({"site": name}, 1)])])
    assert len(text.splitlines()) == 3
    assert read(text)[0] == {("strata_x", name): 1}


def test_a_place_that_no_collector_reads_is_refused_at_once(tmp_path):
    for path in (tmp_path / "m.txt", tmp_path / "none" / "m.prom"):
        with pytest.raises(DeployError, match=r"\.prom"):
            MetricsFile(path, tmp_path, "test")


def test_what_cannot_be_written_is_said_and_ends_nothing(tmp_path):
    (tmp_path / "m.prom").mkdir()
    (tmp_path / "m.prom" / "full").touch()
    assert "m.prom" in MetricsFile(tmp_path / "m.prom", tmp_path, "test").write({})
    (tmp_path / "status.json").write_text("{")
    assert "status.json" in MetricsFile(tmp_path / "n.prom", tmp_path, "test").write({})
