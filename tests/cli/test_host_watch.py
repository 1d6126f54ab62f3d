"""What `strata host` does while it looks on: outages of the SuperLink, ServerApps that end."""

import json
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

import stratafl.cli.host_command as command
from hosted import with_tables, write_file
from stratafl.cli import main as strata
from stratafl.config.deployment import DeployTable
from stratafl.deploy.control import RunState
from stratafl.deploy.prometheus import MetricsFile
from stratafl.deploy.status import Status
from stratafl.errors import DeployError, OutageError

STOPPED = RunState("finished", "stopped", "")
DONE = RunState("finished", "completed", "")


class FakeHost:
    """Runs whose states are given, one for each look; an exception is raised."""

    registered = ()

    def __init__(self, folder, *looks):
        self.folder, self.looks, self.runs, self.control = folder, list(looks), 0, self

    def start_run(self, server_app, client_app, settings):
        self.runs += 1
        if self.looks and isinstance(self.looks[0], str):
            raise OutageError(self.looks.pop(0))
        return self.runs

    def run_state(self, run):
        found = self.looks.pop(0)
        if isinstance(found, Exception):
            raise found
        if found is DONE:
            Status(self.folder, ["a"]).end("finished", "")
        return found

    def tend(self):
        return []

    def counts(self):
        return {}


def watch(folder, host, metrics=None):
    experiment = SimpleNamespace(run=SimpleNamespace(rounds=7))
    file = SimpleNamespace(deploy=DeployTable(("a",), name="test"), experiment=experiment)
    prepared = SimpleNamespace(
        path=folder, file=file, keys=folder / "keys", waiting_keys=lambda known: {}, shut_out=list, site_keys={}
    )
    prepared.store_keys = lambda site, path: path
    return command._Watch(prepared, host, [], trust=False, metrics=metrics, invite=lambda: folder)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(command, "LOOK", 0.0)
    monkeypatch.setattr(command, "LOOKS_PER_REQUEST", 1)


def test_a_superlink_that_does_not_answer_is_asked_again(tmp_path):
    host = FakeHost(tmp_path, OutageError("away"), OutageError("away"), DONE)
    assert watch(tmp_path, host).until_it_ends() == 0
    assert (host.looks, host.runs) == ([], 1)


def test_the_superlink_is_asked_now_and_then_and_at_once_when_the_status_has_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "LOOKS_PER_REQUEST", 3)
    running = RunState("running", "", "")
    host, looks = FakeHost(tmp_path, running, DONE), []

    def tend():
        looks.append(len(host.looks))
        if len(looks) == 5:
            Status(tmp_path, ["a"]).end("finished", "")
        return []

    host.tend = tend
    assert watch(tmp_path, host).until_it_ends() == 0
    assert looks == [2, 2, 2, 1, 1]


def test_a_run_that_was_stopped_because_its_serverapp_is_gone_starts_again(tmp_path):
    host = FakeHost(tmp_path, STOPPED, "away", STOPPED, DONE)
    assert watch(tmp_path, host).until_it_ends() == 0
    assert host.runs == 3  # of which the SuperLink did not take one


def test_a_federation_that_failed_is_not_started_again(tmp_path):
    host = FakeHost(tmp_path, STOPPED)
    started = watch(tmp_path, host)
    Status(tmp_path, ["a"]).end("failed", "too few sites")
    with pytest.raises(DeployError, match="the federation stopped: too few sites"):
        started.until_it_ends()


def test_a_serverapp_that_ends_again_and_again_is_given_up(tmp_path):
    host = FakeHost(tmp_path, *[STOPPED] * command.STARTS)
    with pytest.raises(DeployError, match="the ServerApp ended 5 times in 10 minutes"):
        watch(tmp_path, host).until_it_ends()


def test_the_state_in_metrics_is_how_the_host_ended(tmp_path, monkeypatch):
    metrics = MetricsFile(tmp_path / "m.prom", tmp_path, "test")

    def state():
        lines = (tmp_path / "m.prom").read_text().splitlines()
        return [line.split('"')[3] for line in lines if line.startswith("strata_state{") and line.endswith(" 1")]

    assert watch(tmp_path, FakeHost(tmp_path, DONE), metrics).until_it_ends() == 0
    assert state() == ["finished"]

    def interrupted(self):
        (tmp_path / "status.json").write_text(json.dumps({"state": "running"}))
        return command.INTERRUPTED

    started = watch(tmp_path, FakeHost(tmp_path), metrics)
    monkeypatch.setattr(command._Watch, "_watched", interrupted)
    assert started.until_it_ends() == command.INTERRUPTED
    assert state() == ["stopped"]

    def given_up(self):
        raise DeployError("the ServerApp ended 5 times")

    monkeypatch.setattr(command._Watch, "_watched", given_up)
    with pytest.raises(DeployError, match="5 times"):
        started.until_it_ends()
    assert state() == ["failed"]


def test_what_the_serverapp_says_is_shown_once_and_rounds_are_known_from_the_start(tmp_path, capsys):
    running = RunState("running", "", "")
    host = FakeHost(tmp_path, running, running, running, DONE)
    started, look = watch(tmp_path, host), host.run_state
    status = Status(tmp_path, ["a"])
    status.begin(0, 3)

    def run_state(run):
        if len(host.looks) == 3:
            status.say("'a' is set aside: it missed 3 rounds in a row")
            status.say("round 2: the upload of 'a' was left out: its update is too long")
            status.absorbed(1, 1.0, 1)
        if len(host.looks) == 2:
            status.failed("a", "its disk is full")
            status.failed("a", "its disk is full")
            status.absorbed(2, 1.0, 1)
        return look(run)

    host.run_state = run_state
    assert started.until_it_ends() == 0
    shown = " ".join(capsys.readouterr().err.split())
    assert shown.count("note: 'a' is set aside: it missed 3 rounds in a row") == 1
    assert shown.count("note: round 2: the upload of 'a' was left out") == 1
    assert shown.count("its disk is full") == 1  # until it has answered
    assert shown.count("7 rounds") == 1  # in the table at the end, which knows no round yet
    assert "round 0" not in shown
    assert "round 0 of 3" not in shown
    assert [f"round {t} of 3" in shown for t in (1, 2)] == [True, True]


def test_a_key_that_is_still_being_copied_does_not_end_the_host(tmp_path, capsys):
    running = RunState("running", "", "")
    host, tries = FakeHost(tmp_path, running, running, running, DONE), []

    def register(site, path):
        tries.append(site)
        if len(tries) < 3:
            raise DeployError(f"'{path}' is not a public key")

    host.register = register
    started = watch(tmp_path, host)
    started._prepared.waiting_keys = lambda known: {"a": tmp_path / "a.pub"} if len(tries) < 3 else {}
    assert started.until_it_ends() == 0
    said = capsys.readouterr().err
    assert (said.count("'a.pub' "), said.count("site 'a' is registered")) == (1, 1)


def test_a_key_of_no_site_is_said_once_and_a_removed_one_shuts_out(tmp_path, capsys):
    running = RunState("running", "", "")
    started = watch(tmp_path, FakeHost(tmp_path, running, running, running, DONE))
    removed = [[], ["a"], [], []]
    started._prepared.waiting_keys = lambda known: {"nroth": tmp_path / "nroth.pub"}
    started._prepared.shut_out = lambda: removed.pop(0)
    assert started.until_it_ends() == 0
    said = capsys.readouterr().err
    assert (said.count("'nroth.pub' "), said.count("site 'a' is shut out")) == (1, 1)


def test_names_of_options_are_checked_before_anything_starts(tmp_path, capsys):
    write_file(tmp_path, with_tables())
    for option in ("--forget", "--unregister", "--register"):
        assert (
            strata(["host", str(tmp_path / "federation.toml"), "--out", str(tmp_path / "host"), option, "nroth"]) == 2
        )
        assert "'nroth'" in capsys.readouterr().err
    assert not (tmp_path / "host").exists()
