"""Site, control and task processes without the processes: what is said of each end, and who may ask for what."""

import sqlite3
import tomllib
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

import httpx
from flwr.common.constant import ACCESS_TOKEN_KEY
from flwr.proto.runtime_pb2 import PushTaskOutputRequest

from stratafl.deploy import host as hosts
from stratafl.deploy import server_tasks
from stratafl.deploy import site_processes as sites
from stratafl.deploy.certificates import Pair, create_authority, create_site_key
from stratafl.deploy.control import ControlClient
from stratafl.deploy.flower_app import write_app
from stratafl.deploy.flower_internals import be_patient, token_authn
from stratafl.deploy.folders import SiteFolder
from stratafl.deploy.host import RESTARTS, RestartedProcess
from stratafl.deploy.processes import BAD_CERTIFICATE, BAD_KEY, CONNECTED, FOUND, LOST, SHUT_OUT
from stratafl.deploy.server_tasks import pause_after
from stratafl.deploy.site_processes import PAUSES, SiteProcesses, SiteStatus
from stratafl.deploy.superlink import LOCKED, PATIENCE
from stratafl.errors import DeployError


@dataclass
class FakeProcess:
    name: str
    text: str = ""
    code: int | None = None
    ended: list[str] = field(default_factory=list)

    def running(self) -> bool:
        return self.code is None

    def exit_code(self) -> int | None:
        return self.code

    def was_killed(self) -> bool:
        return self.code == 137

    def outcome(self) -> str:
        return f"{self.name} exited with code {self.code}"

    def said(self) -> str:
        return self.text

    def terminate(self) -> None:
        self.ended.append(self.name)

    def end(self) -> None:
        self.code = 0 if self.code is None else self.code


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiteProcesses:
    """A site whose processes are stand-ins; time passes when a test says so."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(sites, "time", clock)
    monkeypatch.setattr(sites, "Process", lambda name, command, log, environment: FakeProcess(name))
    key, authority = create_site_key(tmp_path, "north"), create_authority(tmp_path)
    folder = SiteFolder(tmp_path / "north", None, "north", "127.0.0.1:1", key, authority.public)
    site = SiteProcesses(folder, {"data": 'a "b" c'}, "flower_echo:client")
    site.clock = clock
    yield site
    site.end()


def connected(site: SiteProcesses) -> FakeProcess:
    assert site.tend() == []
    process = site._process
    process.text = f"INFO {CONNECTED} 77\n"
    site.clock.now += 1
    assert site.tend()[0].startswith("site 'north' is connected")
    assert site.status is SiteStatus.CONNECTED
    return process


def test_a_site_is_connected_when_its_process_says_so(site: SiteProcesses) -> None:
    site.tend()
    site.clock.now += 1
    assert (site.tend(), site.status) == ([], SiteStatus.STARTING)
    site._process.text = f"INFO {CONNECTED} 77\n"
    site.clock.now += 1
    assert site.tend() == ["site 'north' is connected"]
    assert (site.folder / "node").read_text() == "77"
    assert tomllib.loads((site.folder / "node.toml").read_text()) == {"site": "north", "data": 'a "b" c'}


def test_an_outage_of_the_server_is_said_and_its_end_too(site: SiteProcesses) -> None:
    process = connected(site)
    process.text += f"WARNING {LOST}: refused\n"
    site.clock.now += 1
    assert "127.0.0.1:1" in site.tend()[0]
    assert site.status is SiteStatus.UNREACHABLE
    site.clock.now += 1
    assert site.tend() == []  # once
    process.text += f"INFO {FOUND}\n"
    site.clock.now += 1
    assert site.tend() == ["site 'north' is connected again"]


def test_a_process_that_ends_starts_again_after_pauses_that_grow(site: SiteProcesses) -> None:
    for number in range(7):
        process = connected(site)
        process.code = 137
        pause = PAUSES[min(number, len(PAUSES) - 1)]
        (line,) = site.tend()
        assert line.startswith(f"site 'north': {process.name} ")
        assert line.endswith(f" {pause:.0f} s")
        site.clock.now += pause - 0.01
        assert site.tend() == []
        assert site.pid() is None
        site.clock.now += 0.02
    process = connected(site)
    site.clock.now += sites.HEALTHY + 1
    site.tend()
    process.code = 137
    assert site.tend()[0].endswith(f" {PAUSES[0]:.0f} s")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("the server refuses: [code: 2004] Failed to activate SuperNode.", "[code: 2004]"),
        ("[code: 9999] something new", "[code: "),
        (SHUT_OUT, SHUT_OUT),
    ],
)
def test_a_refusal_is_said_and_tried_again(site: SiteProcesses, text: str, cause: str) -> None:
    site.tend()
    site._process.text, site._process.code = text, 1
    assert sites._REASONS[cause] in site.tend()[0]
    assert site.status is SiteStatus.PAUSED


def test_a_site_that_waits_says_so_once_and_one_that_is_shut_out_is_told_so(site: SiteProcesses) -> None:
    def refused() -> list[str]:
        site._process.text, site._process.code = f"ERROR {SHUT_OUT}", 1
        lines = site.tend()
        site.clock.now += PAUSES[-1] + 1
        return lines

    site.tend()
    (line,) = refused()
    assert sites._REASONS[SHUT_OUT] in line
    assert "1" not in line  # of an exit code
    site.tend()
    assert site.status is SiteStatus.PAUSED  # strata status says so beside the reason
    assert refused() == []
    assert connected(site) is not None
    assert site.status is SiteStatus.CONNECTED
    (line,) = refused()
    assert sites._REVOKED in line


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"ConnectError: [SSL: X] {BAD_CERTIFICATE}", "authority"),
        (f"{BAD_KEY}: no key", BAD_KEY),
        ("ModuleNotFoundError: No module named 'nowhere'", "code 1"),
    ],
)
def test_what_trying_again_cannot_mend_ends_the_site(site: SiteProcesses, text: str, told: str) -> None:
    site.tend()
    site._process.text, site._process.code = text, 1
    with pytest.raises(DeployError, match=told):
        site.tend()
    assert site.status is SiteStatus.ENDED


@pytest.mark.parametrize(("text", "code"), [("", 137), (f"WARNING {LOST}: refused", 1)])
def test_a_process_that_is_killed_while_it_starts_or_has_lost_its_server_is_started_again(
    site: SiteProcesses, text: str, code: int
) -> None:
    site.tend()
    site._process.text, site._process.code = text, code
    assert site.tend()
    assert site.status is SiteStatus.PAUSED


def test_what_a_site_refuses_is_said_there_once(site: SiteProcesses) -> None:
    process = connected(site)
    for line in ("WARNING refused: the state is lost", "WARNING it runs more slowly", "INFO a round"):
        process.text += f"\n2026-11-17 09:00:00,123 {line}"
    site.clock.now += 1
    (line,) = site.tend()
    assert line.startswith("site 'north' ")
    assert line.endswith(": the state is lost")
    site.clock.now += 1
    assert site.tend() == []


def test_a_process_that_was_connected_long_ago_is_started_again(site: SiteProcesses) -> None:
    process = connected(site)
    process.text, process.code = "only the last lines of its log", 1
    assert site.tend()
    assert site.status is SiteStatus.PAUSED


def test_a_process_that_has_ended_is_signed_off(site: SiteProcesses, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the server would refuse the next one for a minute."""
    said = list[int]()
    monkeypatch.setattr(sites, "sign_off", lambda server, roots, key, node: said.append(node))
    connected(site).code = 137
    site.tend()
    assert said == [77]
    assert not (site.folder / "node").exists()


def test_a_kept_process_that_is_killed_while_it_starts_is_started_again_and_given_up_when_that_is_no_use() -> None:
    starts = list[FakeProcess | DeployError](
        [FakeProcess("superlink"), DeployError("killed"), FakeProcess("superlink")]
    )

    def start() -> FakeProcess:
        found = starts.pop(0)
        if isinstance(found, DeployError):
            raise found
        return found

    kept = RestartedProcess(start)
    kept.process.code = 137
    assert (kept.tend() or "").endswith(": killed")
    assert "137" in (kept.tend() or "")
    assert kept.tend() is None
    kept.process.code = 1
    starts += [DeployError("killed")] * RESTARTS
    for _ in range(RESTARTS - 2):
        assert (kept.tend() or "").endswith(": killed")
    with pytest.raises(DeployError, match=r"\b6\b"):
        kept.tend()


def test_a_kept_process_is_started_again_and_given_up_when_it_ends_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(hosts, "time", clock)
    kept = RestartedProcess(lambda: FakeProcess("gate"))
    assert kept.tend() is None
    for _ in range(3 * RESTARTS):
        kept.process.code = 1
        assert (kept.tend() or "").startswith("gate exited with code 1")
        clock.now += hosts.WITHIN / RESTARTS + 1
    clock.now += hosts.WITHIN
    for _ in range(RESTARTS):
        kept.process.code = 1
        assert kept.tend()
    kept.process.code = 1
    with pytest.raises(DeployError, match=r"\b6 .*\b10 minutes"):
        kept.tend()


def test_an_app_is_a_pyproject_alone(tmp_path: Path) -> None:
    folder = write_app(tmp_path / "app", "a.b:server", "a.c:client", {"rounds": 3, "log": 'x "y"'})
    assert [path.name for path in folder.iterdir()] == ["pyproject.toml"]
    app = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert app["components"] == {"serverapp": "a.b:server", "clientapp": "a.c:client"}
    assert app["config"] == {"rounds": 3, "log": 'x "y"'}


class FakeRuntime:
    """A SuperLink that answers with these, one after the other: nothing, a status, or an exception."""

    def __init__(self, *answers: int | Exception | None) -> None:
        self.answers, self.heard, self.closed = list(answers), list[tuple[str, str]](), False

    def client(self, *, token: str, retries: bool) -> "FakeRuntime":
        assert (token, retries) == ("token", False)
        return self

    def PushTaskOutput(self, request: PushTaskOutputRequest) -> None:
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise httpx.HTTPStatusError("", request=None, response=httpx.Response(answer))
        if answer is not None:
            raise answer
        self.heard.append((request.sub_status, request.details))

    def close(self) -> None:
        self.closed = True


def test_the_end_of_a_task_is_reported_through_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_tasks, "_AGAIN", 0.0)
    away = FakeRuntime(httpx.ConnectError("refused"), 503, None)
    assert server_tasks.report_end(away, "token", True, "why")
    assert (away.heard, away.closed) == ([("completed", "why")], True)
    known = FakeRuntime(401)  # the ServerApp was heard itself
    assert server_tasks.report_end(known, "token", True, "why")
    assert not server_tasks.report_end(FakeRuntime(httpx.ConnectError("refused")), "token", False, "why", patience=-1)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (0, (True, "the ServerApp ended with code 0")),
        (1, (False, "the ServerApp ended with code 1")),
        (-9, (False, "the ServerApp was killed by SIGKILL")),
    ],
)
def test_every_end_of_a_serverapp_is_reported(
    monkeypatch: pytest.MonkeyPatch, code: int, told: tuple[bool, str]
) -> None:
    reported = []
    monkeypatch.setattr(server_tasks, "kept_alive", lambda runtime, token: nullcontext())
    monkeypatch.setattr(server_tasks.subprocess, "run", lambda *a, **o: SimpleNamespace(returncode=code))
    monkeypatch.setattr(server_tasks, "report_end", lambda runtime, token, *how: reported.append(how) or True)
    server_tasks._run(SimpleNamespace(address="", root_certificates=""), "token")
    assert reported == [told]


def test_the_superlink_waits_for_its_database_and_for_serverapps(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore import sql_mixin
    from flwr.supercore.corestate import sql_corestate

    monkeypatch.setattr(sql_mixin, "SQLITE_PRAGMAS", sql_mixin.SQLITE_PRAGMAS)
    monkeypatch.setattr(sql_corestate, "HEARTBEAT_PATIENCE", sql_corestate.HEARTBEAT_PATIENCE)
    be_patient(PATIENCE, LOCKED)
    connection = sqlite3.connect(":memory:")
    sql_mixin._set_sqlite_pragmas(connection, None)  # what flwr calls for every connection
    assert connection.execute("PRAGMA busy_timeout").fetchone() == (LOCKED,)
    assert sql_corestate.HEARTBEAT_PATIENCE == PATIENCE
    connection.close()


def test_the_token_of_the_control_api_is_compared_whole() -> None:
    authn = token_authn("secret")
    assert authn.validate_tokens_in_metadata([(ACCESS_TOKEN_KEY, "secret")])[0]
    for given in ([], [(ACCESS_TOKEN_KEY, "")], [(ACCESS_TOKEN_KEY, "secre")], [(ACCESS_TOKEN_KEY, "secret\ud800")]):
        assert authn.validate_tokens_in_metadata(given) == (False, None)


@pytest.fixture
def control(tmp_path: Path) -> ControlClient:
    """A control client whose SuperLink is a list."""
    control = ControlClient("127.0.0.1:1", create_authority(tmp_path).public.read_bytes(), "token")
    nodes = list[SimpleNamespace]()

    def register(asked: SimpleNamespace) -> SimpleNamespace:
        found = SimpleNamespace(
            node_id=len(nodes) + 1, name=asked.name, public_key=asked.public_key, status="registered"
        )
        nodes.append(found)
        return found

    def unregister(asked: SimpleNamespace) -> None:
        nodes[asked.node_id - 1].status = "unregistered"

    control._client = SimpleNamespace(
        RegisterNode=register,
        UnregisterNode=unregister,
        ListNodes=lambda asked: SimpleNamespace(nodes_info=nodes),
        close=lambda: None,
    )
    return control


def test_a_key_has_one_name_and_a_name_one_key(control: ControlClient) -> None:
    assert control.register("north", b"key") == 1
    assert control.register("north", b"key") == 1  # again, when a folder is hosted again
    with pytest.raises(DeployError, match=r"'north'.*'south'"):
        control.register("south", b"key")
    assert control.register("north", b"other") == 2
    assert [(node.public_key, node.name) for node in control.nodes()] == [(b"other", "north")]
    with pytest.raises(DeployError, match="64"):
        control.register("../x", b"third")
    with pytest.raises(DeployError, match="'west'"):
        control.unregister("west")


def test_a_key_that_was_unregistered_is_refused_with_what_to_do(control: ControlClient) -> None:
    def register(asked: SimpleNamespace) -> SimpleNamespace:
        raise DeployError("cannot register site 'north': the SuperLink says: Public key already in use.")

    control._client.RegisterNode = register
    with pytest.raises(DeployError, match=r"'north'.*north\.key and"):
        control.register("north", b"key")


def test_a_pair_names_its_files() -> None:
    assert Pair(Path("a.key"), Path("a.pub")).public == Path("a.pub")


def test_a_task_is_asked_for_less_often_the_longer_none_came() -> None:
    assert [pause_after(waited) for waited in (0.0, 2.0, 5.0, 3600.0)] == [0.2, 0.2, 0.5, 1.0]
