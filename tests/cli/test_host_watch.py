"""What `strata host` does while it looks on: outages of the SuperLink, ServerApps that end."""

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

import stratafl.cli.host as command
from stratafl.deploy.control import RunState
from stratafl.deploy.status import Status
from stratafl.errors import DeployError, OutageError

STOPPED = RunState("finished", "stopped", "")
DONE = RunState("finished", "completed", "")


class FakeHost:
    """Runs whose states are given, one for each look; an exception is raised."""

    def __init__(self, folder, *looks):
        self.folder, self.looks, self.runs = folder, list(looks), 0

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

    def sites(self):
        if self.looks and isinstance(self.looks[0], OutageError):
            raise self.looks.pop(0)
        return []

    def counts(self):
        return {}


def watch(folder, host):
    file = SimpleNamespace(deploy=SimpleNamespace(name="test"))
    prepared = SimpleNamespace(path=folder, file=file, sites=("a",), waiting_keys=lambda known: {})
    return command._Watch(prepared, host, [], trust=False)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch):
    monkeypatch.setattr(command, "LOOK", 0.0)


def test_a_superlink_that_does_not_answer_is_asked_again(tmp_path):
    host = FakeHost(tmp_path, OutageError("away"), OutageError("away"), DONE)
    assert watch(tmp_path, host).until_it_ends() == 0
    assert (host.looks, host.runs) == ([], 1)


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
