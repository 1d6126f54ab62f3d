"""What a host writes down: a line for each round, to loggers too; its audit log, checked; sites that are forgotten."""

import json
import shutil

import pytest

import stratafl.deploy.certificates as certificates
from hosted import SITES, Local, with_tables, write_file, write_samples
from stratafl.cli import main as strata
from stratafl.config.deployment import federation_from
from stratafl.deploy.folders import prepare_host
from stratafl.deploy.host import HostAddress
from stratafl.deploy.hosting import Hosting
from stratafl.deploy.member import STATE
from stratafl.deploy.serving import checked_log, forget_site
from stratafl.deploy.status import ROUNDS, read_status, site_score_line
from stratafl.errors import DamagedError, DeployError, UnknownNameError
from stratafl.files import private_folder
from stratafl.runs.json_files import read_lines

pytestmark = pytest.mark.budget(1.3, "the first test makes the federation that all read")


class Stopped(BaseException):
    """As by SIGKILL."""


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A federation that was killed in its second round, with a torn line in its journal, and went on."""
    folder = tmp_path_factory.mktemp("host")
    write_samples(folder)
    sites = {name: folder / name for name in SITES}
    tables = with_tables(run={"rounds": 3, "participation": 1.0}).tables()
    for place in (folder / "host", *sites.values()):
        write_file(place, federation_from({**tables, "log": {"to": ["tensorboard"]}}))
    courier = Local(folder, sites)

    def away(site):
        if courier.carried.count(("round", site)):
            raise Stopped
        return False

    courier.away = away
    with pytest.raises(Stopped):
        Hosting(folder / "host", courier).run()
    with (folder / "host" / ROUNDS).open("ab") as file:
        file.write(b'{"round":2,"coh')
    courier.away = lambda site: False
    Hosting(folder / "host", courier).run()
    return folder


@pytest.fixture
def host(federation, tmp_path):
    return shutil.copytree(federation / "host", tmp_path / "host")


def test_every_round_has_a_line_as_a_run_has(federation):
    lines = read_lines(federation / "host" / ROUNDS, summed=True)
    assert [line["round"] for line in lines] == [1, 2, 3]
    for line in lines:
        assert (line["cohort"], line["uploads"], line["left_out"], line["shortened"]) == (4, 4, 0, 0)
        assert line["bytes.up"] > 1000
        assert line["bytes.down"] > 1000
        assert 0 <= line["test.received.worst10"] <= line["test.received.client_accuracy"] <= 1
        assert min(line["seconds.train"], line["seconds.server"]) >= 0
    sites = read_status(federation / "host")["sites"]
    mean = sum(site["score"] for site in sites.values()) / 4
    assert lines[-1]["test.received.client_accuracy"] == pytest.approx(mean)
    sizes = {"accepted": 0, "asked": 0}
    for line in checked_log(federation / "host"):
        if line["event"] in sizes and line["round"] == 2:
            sizes[line["event"]] += line["bytes"]
    assert (lines[-1]["bytes.up"], lines[-1]["bytes.down"]) == (sizes["accepted"], sizes["asked"])


def test_tensorboard_has_every_round_once(federation):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(federation / "host" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("test.received/client_accuracy")] == [1, 2, 3]
    assert "bytes/up" in events.Tags()["scalars"]


def test_worst_sites_have_the_lowest_accuracy_and_the_largest_loss():
    scores = {"a": 0.2, "b": 0.6}
    assert site_score_line(scores, 2)["test.received.worst10"] == 0.2
    assert site_score_line(scores, None)["test.received.worst10"] == 0.6
    assert site_score_line(scores, None)["test.received.client_loss"] == pytest.approx(0.4)
    assert site_score_line({}, 2) == {}


def test_the_audit_log_is_checked_and_printed(federation, capsys):
    assert strata(["audit", str(federation / "host"), "--site", "b", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert {line["site"] for line in shown} == {"b"}
    assert [line["event"] for line in shown].count("accepted") >= 3
    assert strata(["audit", str(federation / "host")]) == 0
    assert "absorb" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (lambda lines: [*lines[:3], *lines[4:]], r"line 4\b"),
        (lambda lines: [*lines[:3], lines[3].replace(b'"time":"20', b'"time":"19'), *lines[4:]], r"line 4\b"),
        (lambda lines: lines[:6], "6 of the 29"),
    ],
)
def test_a_log_that_was_changed_or_cut_is_refused(host, change, wrong):
    path = host / "server" / "audit.jsonl"
    before = path.read_bytes().splitlines(keepends=True)
    after = change(before)
    assert after != before
    path.write_bytes(b"".join(after))
    with pytest.raises(DamagedError, match=wrong):
        checked_log(host)


def test_the_status_of_a_host_and_of_a_site_says_where_they_stand(federation, tmp_path, capsys):
    assert strata(["status", str(federation / "host"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["running"], told["round"], told["rounds"]) == (False, 3, 3)
    assert {site["state"] for site in told["sites"].values()} == {"has its model"}
    with private_folder(federation / "host"):  # as while it is hosted
        assert strata(["status", str(federation / "host")]) == 0
    shown = capsys.readouterr().out
    assert "round 3 of 3" in shown
    assert "not running" not in shown
    (federation / "b" / "ca.pem").touch()
    (federation / "b" / "node.toml").write_text(f'site = "b"\ndata = "{federation / "b.csv"}"\n')
    assert strata(["status", str(federation / "b"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["site"], told["round"]) == ("b", "3 of 3")
    assert "round 3" in told["model"]
    assert "not running" in told["state"]
    assert strata(["status", str(tmp_path)]) == 2


def test_a_site_of_which_the_log_has_no_line_is_an_error(federation, capsys):
    assert strata(["audit", str(federation / "host"), "--site", "bb"]) == 2
    assert "'bb'" in capsys.readouterr().err


def test_a_folder_without_a_log_is_refused(tmp_path):
    with pytest.raises(DeployError, match=f"'{tmp_path}'"):
        checked_log(tmp_path)


@pytest.mark.slow
def test_a_forgotten_site_starts_anew(tmp_path):
    write_samples(tmp_path)
    sites = {name: tmp_path / name for name in SITES}
    for place in (tmp_path / "host", *sites.values()):
        write_file(place, with_tables(run={"rounds": 2, "participation": 1.0}, deploy={"least": 4}))
    courier = Local(tmp_path, sites)
    with pytest.raises(DeployError, match="'d'"):
        forget_site(tmp_path / "host", "d")

    def lost(site):
        if site == "d" and ("round", "d") in courier.carried and not (tmp_path / "lost").exists():
            shutil.rmtree(tmp_path / "d" / STATE)
            (tmp_path / "lost").touch()
        return False

    courier.away = lost
    with pytest.raises(DeployError, match=r"round 2 .*3 of 4 .*'d'"):
        Hosting(tmp_path / "host", courier).run()
    with pytest.raises(UnknownNameError, match="'test' 'e'"):
        forget_site(tmp_path / "host", "e")
    forget_site(tmp_path / "host", "d")
    Hosting(tmp_path / "host", courier).run()
    assert read_status(tmp_path / "host")["state"] == "finished"
    assert [line["site"] for line in checked_log(tmp_path / "host") if line["event"] == "forget"] == ["d"]


@pytest.mark.parametrize(("days", "kept"), [(0, False), (20, False), (60, True)])
def test_a_certificate_that_has_ended_or_ends_soon_is_made_anew(tmp_path, monkeypatch, days, kept):
    place, host = HostAddress("127.0.0.1", 9443), tmp_path / "host"
    monkeypatch.setattr(certificates, "SERVER_DAYS", days)
    before = prepare_host(host, with_tables(), place)
    old, authority = before.certificate.public.read_bytes(), before.authority.read_bytes()
    monkeypatch.undo()
    after = prepare_host(host, with_tables(), place)
    assert (after.certificate.public.read_bytes() == old) == kept
    assert not certificates.ends_soon(after.certificate.public)
    assert after.authority.read_bytes() == authority  # so that sites notice nothing
