"""Federations of real processes: rounds over TLS with keys, strangers, and what a SIGKILL does to each part."""

import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

import httpx
from test_guardian import is_gone, soon

from flower_federation import CLIENT_APP, PATIENCE, SERVER_APP, Federation, kill, lines
from stratafl.deploy.certificates import Pair, create_authority, create_site_key
from stratafl.deploy.control import ControlClient
from stratafl.deploy.flower_app import write_app
from stratafl.deploy.folders import SiteFolder
from stratafl.deploy.processes import flower_command, flower_environment, free_port
from stratafl.deploy.site_processes import SiteProcesses, SiteStatus
from stratafl.errors import BusyError, DeployError

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three sites, which the tests below share."""
    with Federation(tmp_path_factory.mktemp("federation")) as federation:
        for name in ("a", "b", "c"):
            federation.join(name)
        yield federation


@pytest.mark.slow
def test_three_sites_do_two_rounds_over_tls_with_their_keys(three: Federation, tmp_path: Path) -> None:
    run = three.run("three", size=3_000_000)  # 12 MB, in three pieces
    ended = run.finish()
    assert (ended.status, ended.end) == ("finished", "completed")
    done = run.events("done")
    assert [(event["value"], list(event["sites"]), event["failed"]) for event in done] == [
        (1.0, ["a", "b", "c"], {}),
        (2.0, ["a", "b", "c"], {}),
    ]
    told = [answer["site"] for answer in done[0]["sites"].values()]
    assert told == ["a", "b", "c"]  # the names that the keys were registered for are those that the sites have
    for name in "abc":
        assert {event["sites"][name]["pid"] for event in done} == {three.sites[name].pid()}
        assert f"site '{name}' is connected" in three.notes
        three.until(lambda: three.host.counts().get(name, {}).get("received", 0) > 1000, "the count")  # noqa: B023
    key = Pair(tmp_path / "k", tmp_path / "p")
    folder = SiteFolder(three.folder / "a", None, "a", "a:1", key, tmp_path / "a")
    with pytest.raises(BusyError):  # a second process with this key would drive out the first
        SiteProcesses(folder, {})


def flwr(federation: Federation, *given: str, port: int | None = None) -> subprocess.CompletedProcess[str]:
    """A command of Flower, as somebody else would run it: with the authority, but without key and token."""
    home = federation.folder / "stranger"
    home.mkdir(exist_ok=True)
    roots = federation.authority.public
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "lab"\n[superlink.lab]\naddress = "127.0.0.1:{port or federation.host.address.port}"\n'
        f'root-certificates = "{roots}"\n'
    )
    command = [flower_command("flwr"), *given]
    done = subprocess.Popen(
        command, env=flower_environment(home), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    federation.until(lambda: done.poll() is not None, "flwr")
    return subprocess.CompletedProcess(command, done.returncode, done.communicate()[0])


@pytest.mark.slow
@pytest.mark.parametrize("way", ["gate", "loopback"])
def test_commands_of_strangers_are_refused(three: Federation, way: str, tmp_path: Path) -> None:
    """Through the gate only the fleet passes; on loopback, where others of the machine are, the token is asked for."""
    port = three.host.address.port if way == "gate" else three.host._port
    key = create_site_key(tmp_path, "intruder")
    # An app that `flwr run` takes for whole, or else it would ask nobody.
    app = write_app(tmp_path / "app", "stratafl.deploy.server_app:app", "stratafl.deploy.client_app:app", {})
    before, runs = three.host.control.nodes(), three.host.control.unfinished_runs()
    for given in (("run", str(app), "lab"), ("supernode", "register", str(key.public), "lab")):
        done = flwr(three, *given, port=port)
        assert done.returncode != 0, done.stdout
        assert "Successfully" not in done.stdout
    assert [site.node_id for site in three.host.control.nodes()] == [site.node_id for site in before]
    assert three.host.control.unfinished_runs() == runs
    if way == "gate":
        log = (three.host.folder / "logs" / "gate.log").read_text()
        for path in ("start-run", "register-node"):
            assert f": POST /v1/control/{path}\n" in log


@pytest.mark.slow
def test_a_site_with_a_key_that_is_not_registered_is_refused_until_it_is(three: Federation) -> None:
    key = create_site_key(three.folder, "d")
    site = three.join("d", register=False, key=key)
    try:
        three.until(lambda: any("has not let this site in" in note for note in three.notes), "the refusal")
        assert site.status is SiteStatus.PAUSED
        assert "WARNING refused 127.0.0.1: " in (three.host.folder / "logs" / "gate.log").read_text()
        three.host.register("d", key.public)
        three.until(lambda: site.status is SiteStatus.CONNECTED, "the connection")
        three.host.unregister("d")
        three.until(lambda: site.status is SiteStatus.PAUSED, "the end of the connection")
    finally:
        three.sites.pop("d").end()


@pytest.mark.slow
def test_a_site_that_was_given_another_authority_ends_with_the_reason(three: Federation, tmp_path: Path) -> None:
    site = three.join("e", authority=create_authority(tmp_path).public)
    try:
        with pytest.raises(DeployError, match="certificate"):
            three.until(lambda: site.status is SiteStatus.CONNECTED)
        assert site.status is SiteStatus.ENDED
    finally:
        three.sites.pop("e").end()
        three.host.unregister("e")


@pytest.mark.slow
def test_who_speaks_no_tls_gets_no_answer(three: Federation) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.post(f"http://{three.address}/v1/fleet/activate-node", trust_env=False, timeout=PATIENCE)
    assert "no TLS connection" in (three.host.folder / "logs" / "gate.log").read_text()


@pytest.mark.slow
def test_a_task_of_a_superlink_needs_the_secret(three: Federation) -> None:
    """Else anybody on the machine could be the ServerApp."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest

    three.until(lambda: all(site.status is SiteStatus.CONNECTED for site in three.sites.values()))
    asked = AcquireTaskRequest(supported_task_types=["serverapp", "clientapp"]).SerializeToString()
    trusted = ssl.create_default_context(cafile=three.authority.public)
    place = f"https://127.0.0.1:{three.host._port}/v1/runtime/acquire-task"
    with httpx.Client(verify=trusted, trust_env=False, timeout=PATIENCE) as client:
        answer = client.post(place, content=asked, headers={"content-type": "application/protobuf"})
    assert answer.status_code in (401, 403), answer.text


@pytest.mark.slow
def test_the_code_that_a_server_sends_is_not_run(three: Federation, tmp_path: Path) -> None:
    """flower-supernode would import it."""
    marker = tmp_path / "was here"
    app = write_app(
        tmp_path / "app",
        SERVER_APP,
        "evil:app",
        {"log": str(tmp_path / "log"), "size": 10, "rounds": 1, "sites": 3, "deadline": PATIENCE},
    )
    (app / "evil.py").write_text(
        f"open({str(marker)!r}, 'w')\nfrom flwr.clientapp import ClientApp\napp = ClientApp()\n"
    )
    run = three.host.control.start_run(app)
    three.until(lambda: three.host.control.run_state(run).finished)
    assert [event["value"] for event in lines(tmp_path / "log") if event["event"] == "done"] == [1.0]
    assert not marker.exists()


@pytest.mark.slow
def test_an_app_that_raises_is_a_failure_with_its_reason(three: Federation) -> None:
    three.until(lambda: all(site.status is SiteStatus.CONNECTED for site in three.sites.values()))
    pid, wrong = three.sites["b"].pid(), three.sites["b"].folder / "raise"
    wrong.touch()
    run = three.run("raises")
    three.until(lambda: len(run.events("done")) == 1)
    wrong.unlink()
    assert run.finish().end == "completed"
    (failed,) = run.events("done")[0]["failed"].items()
    assert failed[0] == "b"
    assert "ValueError" in failed[1]
    assert run.events("done")[1]["sites"]["b"]["pid"] == pid  # it went on


@pytest.mark.nightly  # slow: test_chaos.py, with bits
def test_a_site_that_is_killed_at_work_fails_and_comes_back(three: Federation) -> None:
    before, hold = len(three.messages("b")), three.hold("b")
    run = three.run("kill-site", rounds=2, sites=3)
    three.until(lambda: len(three.messages("b")) > before, "the message")
    kill(three.sites["b"].pid() or 0)
    hold.unlink()
    assert run.finish().end == "completed"
    first, second = run.events("done")
    assert list(first["sites"]) == ["a", "c"]
    assert list(first["failed"]) == ["b"]
    assert list(second["sites"]) == ["a", "b", "c"]  # with the node id that it had
    assert any("site was killed by SIGKILL" in note and "starts again" in note for note in three.notes)


@pytest.mark.nightly  # slow: test_chaos.py, with bits
@pytest.mark.parametrize("part", ["superlink", "gate"])
def test_a_run_survives_when_superlink_or_gate_are_killed(three: Federation, part: str) -> None:
    before, hold = len(three.messages("b")), three.hold("b")
    run = three.run(f"kill-{part}", rounds=2, sites=3)
    three.until(lambda: len(three.messages("b")) > before, "the message")
    victim = next(kept for kept in three.host._kept if kept.process.name == part)
    kill(victim.process.pid)
    three.until(lambda: any(f"{part} was killed by SIGKILL" in note for note in three.notes), "the note")
    hold.unlink()
    assert run.finish().end == "completed"
    first, second = run.events("done")
    assert sorted({*first["sites"], *first["failed"]}) == ["a", "b", "c"]
    # An outage of a minute, or one in the middle of an upload, costs that reply: docs/design/flower.md.
    assert all(reason.endswith(("(code 3)", "(code 5)")) for reason in first["failed"].values()), first["failed"]
    assert list(second["sites"]) == ["a", "b", "c"], second["failed"]


@pytest.mark.nightly
def test_a_run_whose_serverapp_is_killed_or_that_is_stopped_says_so_and_another_completes(three: Federation) -> None:
    hold = three.hold("b")
    run = three.run("kill-serverapp")
    three.until(lambda: run.events("round"), "the round")
    kill(run.events("start")[0]["pid"])
    ended = run.finish()
    hold.unlink()
    assert (ended.end, ended.reason) == ("failed", "the ServerApp was killed by SIGKILL")
    hold = three.hold("b")
    run = three.run("stopped")
    three.until(lambda: run.events("round"), "the round")
    three.host.control.stop_run(run.number)
    ended = run.finish()
    hold.unlink()
    assert (ended.status, ended.end) == ("finished", "stopped")
    assert three.run("after-stop").finish().end == "completed"


OWNER = """
import sys, time
from pathlib import Path
from flower_federation import Federation
federation = Federation(Path(sys.argv[1]))
federation.join("a")
run = federation.run("owned", rounds=1000)
federation.until(lambda: run.events("done"))
pids = [kept.process.pid for kept in federation.host._kept]
pids += [federation.sites["a"].pid(), run.events("start")[0]["pid"]]
(Path(sys.argv[1]) / "pids").write_text(" ".join(map(str, pids)))
(Path(sys.argv[1]) / "ready").touch()
while True:
    federation.tend()
    time.sleep(0.1)
"""


@pytest.mark.nightly  # slow: test_chaos.py kills a host and hosts its folder again; test_guardian.py
def test_nothing_is_left_of_an_owner_that_is_killed_and_its_folder_can_be_hosted_again(tmp_path: Path) -> None:
    source = str(Path(sys.modules["stratafl"].__file__ or "").parents[1])
    paths = os.pathsep.join([str(Path(__file__).parents[1]), source])
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(tmp_path)], env={**os.environ, "PYTHONPATH": paths})
    try:
        latest = time.monotonic() + PATIENCE
        while not (tmp_path / "ready").exists():
            assert owner.poll() is None
            assert time.monotonic() < latest
            time.sleep(0.1)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 5
    assert all(soon(lambda pid=pid: is_gone(pid)) for pid in pids)
    (tmp_path / "keys").mkdir()
    for name in ("ca.key", "ca.pem", "server.key", "server.pem"):  # a new authority for the same folder
        (tmp_path / name).rename(tmp_path / "keys" / name)
    with Federation(tmp_path) as federation:
        assert federation.host.control.unfinished_runs() == []
        assert [site.name for site in federation.host.control.nodes()] == ["a"]
        key = Pair(tmp_path / "a.key", tmp_path / "a.pub")
        folder = SiteFolder(tmp_path / "a", None, "a", federation.address, key, federation.authority.public)
        site = SiteProcesses(folder, {}, CLIENT_APP)
        federation.sites["a"] = site
        assert federation.run("again").finish().end == "completed"


def test_a_control_client_says_that_nobody_answers(tmp_path: Path) -> None:
    authority = create_authority(tmp_path)
    control = ControlClient(f"127.0.0.1:{free_port()}", authority.public.read_bytes(), "token")
    with pytest.raises(DeployError, match="cannot list the sites: the SuperLink does not answer"):
        control.nodes()
    control.close()
