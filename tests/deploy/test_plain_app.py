"""An app on Flower's public names: nodes show by signatures which site they are, and sites work from their folders."""

import json
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

from flwr.app import Context, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from test_hosting import Clock

from hosted import SITES, deployed, largest, simulated, with_tables, write_file, write_folders
from plain_federation import PlainFederation
from stratafl.cli import main
from stratafl.config.deployment import read_federation
from stratafl.deploy.consent import CONSENT, check_consent, keep_consent
from stratafl.deploy.courier import SignedMessage
from stratafl.deploy.flower_app import node_configuration, write_plain_app
from stratafl.deploy.hosting import Hosting
from stratafl.deploy.member import FILE
from stratafl.deploy.messages import TYPES, content_of, read_content
from stratafl.deploy.plain_client import answered
from stratafl.deploy.plain_server import NodeCourier, app_folder
from stratafl.deploy.serving import checked_log
from stratafl.deploy.signatures import HostSignatures, SignedCourier
from stratafl.deploy.signing_keys import HOST_KEY, KEYS
from stratafl.deploy.site_model import member_in, predicted
from stratafl.deploy.site_nodes import AGAIN_SECONDS, MAX_AGAIN_SECONDS, QUESTION_SECONDS, WAIT_SECONDS, SiteNodes
from stratafl.deploy.status import read_status
from stratafl.errors import DeployError, WireError
from tiers import slow_except

KINDS = {name: kind for kind, name in TYPES.items()}


@pytest.fixture(autouse=True)
def task(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):  # a message is made inside a task
        monkeypatch.setattr(TaskIdentity, name, 1)


@dataclass
class MemoryGrid:
    """Nodes whose ClientApp answers in this process, by their configuration; `change` is what happens to replies."""

    nodes: dict[int, dict[str, str]]
    change: Callable[[str, int, Message, Message], Message] = lambda kind, node, request, reply: reply
    silent: set[int] = field(default_factory=set)
    sent: dict[str, Message] = field(default_factory=dict)
    kinds: list[tuple[str, int]] = field(default_factory=list)

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            numbers.append(f"m{len(self.sent)}")
            message.metadata.__dict__["_message_id"] = numbers[-1]
            self.sent[numbers[-1]] = message
            self.kinds.append((KINDS[message.metadata.message_type], message.metadata.dst_node_id))
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> list[Message]:
        return [self._reply(self.sent[number]) for number in numbers if self._node(number) not in self.silent]

    def _node(self, number: str) -> int:
        return self.sent[number].metadata.dst_node_id

    def _reply(self, message: Message) -> Message:
        kind, node = KINDS[message.metadata.message_type], message.metadata.dst_node_id
        try:
            reply = answered(kind, message, Context(1, node, self.nodes[node], RecordDict(), {}))
        except Exception as error:  # as flwr-clientapp does
            reply = Message(Error(2, str(error)), reply_to=message)
        reply = self.change(kind, node, message, reply)
        reply.metadata.__dict__["_src_node_id"] = node
        return reply

    def asked(self, kind: str) -> list[int]:
        return [node for each, node in self.kinds if each == kind]


def prepared(folder: Path, **tables):
    """Folders of a host and of sites whose owners have agreed, and a grid with a node for each."""
    file = with_tables(**tables)
    sites = write_folders(folder, file, keys=True)
    for site in sites.values():
        keep_consent(site, read_federation(site / FILE, plain=True), ["all"], (site / HOST_KEY).read_text())
    nodes = {100 + number: config(folder, name) for number, name in enumerate(SITES)}
    return file, sites, MemoryGrid(nodes)


def config(folder: Path, site: str) -> dict[str, str]:
    return {"site": site, "folder": str(folder / site), "data": str(folder / f"{site}.csv")}


@pytest.mark.slow
def test_the_commands_work_in_the_folder_of_a_site_that_a_supernode_serves(tmp_path: Path, capsys) -> None:
    federation = PlainFederation(tmp_path, run={"rounds": 1}, deploy={"sites": list(SITES), "report": True})
    grid = MemoryGrid({100 + number: config(tmp_path, name) for number, name in enumerate(SITES)})
    assert status(tmp_path / "a", capsys)["round"] == "0 of 1"
    host(tmp_path, grid).run()
    assert main(["predict", str(tmp_path / "a"), "--data", str(tmp_path / "b.csv")]) == 0
    printed = capsys.readouterr().out
    assert printed == predicted(member_in(federation.sites["a"]), tmp_path / "b.csv").csv()
    assert main(["export", str(tmp_path / "b"), "-o", str(tmp_path / "b.safetensors")]) == 0
    told = status(tmp_path / "a", capsys)
    assert (told["site"], told["round"]) == ("a", "1 of 1")
    assert "join" not in told["state"]
    assert set(status(tmp_path / "host", capsys)["report"]["scores"]) == set(told["report"]["scores"]) == set(SITES)
    assert main(["status", str(tmp_path / "host")]) == 0
    assert "personalised" in capsys.readouterr().out  # a column of the report


def status(folder: Path, capsys) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["status", str(folder), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def site_nodes(folder: Path, grid: MemoryGrid, clock: Clock | None = None) -> SiteNodes:
    clock = clock or Clock()
    return SiteNodes(grid, HostSignatures(folder / "host"), SITES, clock, clock.pause)


def host(folder: Path, grid: MemoryGrid) -> Hosting:
    clock, signatures = Clock(), HostSignatures(folder / "host")
    courier = NodeCourier(grid, SiteNodes(grid, signatures, SITES, clock, clock.pause))
    signed = SignedCourier(courier, signatures)
    return Hosting(folder / "host", signed, clock=clock, pause=clock.pause, limit_replies=courier.limit_replies)


@pytest.mark.budget(4, "two rounds of four sites that are read from disk for each message, and the simulation")
def test_a_run_ends_where_the_simulation_ends_although_another_node_claims_to_be_a_site(tmp_path: Path) -> None:
    file, sites, grid = prepared(tmp_path, run={"rounds": 2, "participation": 1.0}, deploy={"least": 4})
    thief = tmp_path / "thief"
    thief.mkdir(mode=0o700)
    for path in (tmp_path / "c").iterdir():  # the keys of another site
        if path.is_file():
            (thief / path.name).write_bytes(path.read_bytes())
    keep_consent(thief, read_federation(thief / FILE, plain=True), ["all"], (thief / HOST_KEY).read_text())
    grid.nodes = {7: {**config(tmp_path, "b"), "folder": str(thief)}, **grid.nodes, 8: {}}
    host(tmp_path, grid).run()
    assert largest(deployed(tmp_path / "host", sites, file), simulated(tmp_path, file)) == 0
    log = checked_log(tmp_path / "host")
    assert [sorted(line["absorbed"]) for line in log if line["event"] == "absorb"] == [list(SITES)] * 2
    status = read_status(tmp_path / "host")
    assert status["state"] == "finished"
    assert {site["state"] for site in status["sites"].values()} == {"has its model"}
    assert set(grid.asked("round")) == {100, 101, 102, 103}
    assert sorted(set(grid.asked("identify"))) == [7, 8, 100, 101, 102, 103]


def test_a_false_claim_is_reported_with_the_name_that_is_claimed(tmp_path: Path) -> None:
    _, _, grid = prepared(tmp_path)
    (tmp_path / "host" / KEYS / "b.pub").write_bytes((tmp_path / "host" / KEYS / "c.pub").read_bytes())
    nodes = site_nodes(tmp_path, grid)
    nodes.look()
    assert nodes.known() == {"a": 100, "c": 102, "d": 103}
    assert set(nodes.claims()) == {"b"}
    assert nodes.claims() == {}


def test_a_question_that_another_node_passes_on_is_not_answered(tmp_path: Path) -> None:
    """Else a node could be any site: it would pass on what the host asks, and the answer."""
    _, _, grid = prepared(tmp_path)
    signatures = HostSignatures(tmp_path / "host")
    request = signatures.question(7)
    message = Message(content_of(request), 100, TYPES["identify"])
    reply = answered("identify", message, Context(1, 100, grid.nodes[100], RecordDict(), {}))
    site, wrong = signatures.identified(request, read_content(reply.content), SITES)
    assert (site, bool(wrong)) == ("", True)
    at_home = signatures.question(100)
    message = Message(content_of(at_home), 100, TYPES["identify"])
    reply = answered("identify", message, Context(1, 100, grid.nodes[100], RecordDict(), {}))
    assert signatures.identified(at_home, read_content(reply.content), SITES) == ("a", "")
    assert signatures.identified(request, read_content(reply.content), SITES)[1]  # an answer to another question
    assert signatures.identified(at_home, read_content(reply.content), ("b",))[1]


@pytest.mark.parametrize("kind", slow_except(["forged"], ["replayed", "of another site"]))
@pytest.mark.budget(3, "a round of four sites that are read from disk for each message")
def test_a_reply_that_is_not_the_sites_is_refused_and_costs_it_no_round(tmp_path: Path, kind: str) -> None:
    _, _, grid = prepared(tmp_path, run={"rounds": 1, "participation": 1.0}, deploy={"least": 4})
    earlier, others = dict[str, RecordDict](), dict[str, RecordDict]()
    attacked = list[str]()

    def change(name: str, node: int, request: Message, reply: Message) -> Message:
        before, earlier[name] = earlier.get(name), reply.content if node == 101 else earlier.get(name)
        if node != 101:
            others[name] = reply.content
            return reply
        signed = read_content(reply.content)
        forged = content_of(replace(signed, table=b'{"score": 1.0}'))
        content = {"forged": forged, "replayed": before, "of another site": others.get(name)}[kind]
        if name == "identify" or content is None or attacked.count(name) == 2:
            return reply
        attacked.append(name)
        return Message(content, reply_to=request)

    grid.change = change
    host(tmp_path, grid).run()
    assert attacked.count("round") > 0
    log = checked_log(tmp_path / "host")
    assert [sorted(line["absorbed"]) for line in log if line["event"] == "absorb"] == [list(SITES)]
    assert {line["site"] for line in log if line["event"] == "refused"} == {"b"}
    assert read_status(tmp_path / "host")["state"] == "finished"


def test_a_reply_that_is_larger_than_an_upload_can_be_is_refused(tmp_path: Path) -> None:
    _, _, grid = prepared(tmp_path)
    transport = NodeCourier(grid, site_nodes(tmp_path, grid))
    transport.connected()
    requests = {site: transport._site_nodes._signatures.request("introduce", site, ({}, b"")) for site in "ab"}
    much = SignedMessage(b"{}", bytes(50_000_000), 1, b"")
    grid.change = lambda kind, node, request, reply: (
        Message(content_of(much), reply_to=request) if node == 101 else reply
    )
    transport.limit_replies(1726)
    done = transport.carry("introduce", requests, 60.0)
    assert (set(done.replies), set(done.failures)) == ({"a"}, {"b"})
    assert "50,000,002" in done.failures["b"]
    transport.limit_replies(50_000_000)
    assert set(transport.carry("introduce", requests, 60.0).replies) == {"a", "b"}


def test_of_a_node_that_is_connected_and_silent_the_host_says_what_to_do(tmp_path: Path) -> None:
    _, _, grid = prepared(tmp_path)
    transport = NodeCourier(grid, site_nodes(tmp_path, grid))
    transport.connected()
    grid.silent = {101}
    requests = {site: transport._site_nodes._signatures.request("introduce", site, ({}, b"")) for site in "ab"}
    done = transport.carry("introduce", requests, 0.2)
    assert (set(done.replies), set(done.failures)) == ({"a"}, {"b"})
    assert done.failures["b"].endswith(NodeCourier.silence)
    assert NodeCourier.silence


def test_a_node_that_started_again_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    _, _, grid = prepared(tmp_path)
    clock = Clock()
    nodes = site_nodes(tmp_path, grid, clock)
    nodes.look()
    grid.nodes[200] = grid.nodes[100]  # Flower counts the old one as connected for a minute
    nodes.look()
    assert nodes.known()["a"] == 200
    assert grid.asked("identify").count(100) == 1
    nodes.look()
    assert grid.asked("identify").count(100) == 1  # not at once: they would take turns
    del grid.nodes[200]
    nodes.look()
    assert "a" not in nodes.known()
    clock.pause(AGAIN_SECONDS)
    nodes.look()
    assert nodes.known()["a"] == 100


def test_nodes_are_waited_for_while_sites_are_missing_and_heard_when_they_answer(tmp_path: Path) -> None:
    _, _, grid = prepared(tmp_path)
    clock = Clock()
    nodes = site_nodes(tmp_path, grid, clock)
    grid.silent = {101}
    nodes.look()
    assert sorted(nodes.known()) == ["a", "c", "d"]
    assert WAIT_SECONDS <= clock.now <= WAIT_SECONDS + 1
    nodes.look()
    assert clock.now <= WAIT_SECONDS + 1  # it is waited for once
    grid.silent = set()
    nodes.look()
    assert nodes.known()["b"] == 101
    grid.nodes[9], before = {"site": "x"}, clock.now
    grid.silent = {9}
    nodes.look()
    assert clock.now == before  # nobody is missing


def test_a_node_that_does_not_say_who_it_is_is_asked_again_later(tmp_path: Path, monkeypatch) -> None:
    _, _, grid = prepared(tmp_path)
    clock = Clock()
    grid.nodes[100] = {}
    nodes = site_nodes(tmp_path, grid, clock)
    nodes.look()
    nodes.look()
    assert grid.asked("identify").count(100) == 1
    grid.nodes[100] = config(tmp_path, "a")
    clock.pause(AGAIN_SECONDS)
    nodes.look()
    assert nodes.known()["a"] == 100
    assert QUESTION_SECONDS > WAIT_SECONDS


def test_a_node_that_is_no_site_is_asked_ever_more_rarely_and_not_at_all_while_no_site_is_missing(
    tmp_path: Path,
) -> None:
    _, _, grid = prepared(tmp_path)
    clock = Clock()
    nodes, absent = site_nodes(tmp_path, grid, clock), grid.nodes.pop(100)
    grid.nodes[9] = {}
    for _ in range(4 * 60 + 1):
        before = clock.now
        nodes.look()
        assert clock.now == before  # it delays no round
        clock.pause(60.5)
    asked = grid.asked("identify").count(9)
    assert 24 <= asked <= 28  # in four hours: after 1, 3, 7 and 15 minutes, then every ten
    grid.nodes[100] = absent
    for _ in range(5):
        clock.pause(2 * MAX_AGAIN_SECONDS)
        nodes.look()
    assert grid.asked("identify").count(9) <= asked + 1
    assert set(nodes.known()) == set(SITES)


def test_a_silent_node_that_is_asked_again_delays_no_round(tmp_path: Path) -> None:
    _, _, grid = prepared(tmp_path)
    clock = Clock()
    nodes, grid.nodes[100] = site_nodes(tmp_path, grid, clock), {}
    nodes.look()
    grid.silent = {100}
    clock.pause(AGAIN_SECONDS + 1)
    before = clock.now
    nodes.look()
    assert (clock.now, grid.asked("identify").count(100)) == (before, 2)


def test_a_node_that_is_another_site_now_is_asked_again(tmp_path: Path) -> None:
    """Its number may be of its key, and its configuration may change."""
    _, _, grid = prepared(tmp_path)
    clock, signatures = Clock(), HostSignatures(tmp_path / "host")
    transport = NodeCourier(grid, SiteNodes(grid, signatures, SITES, clock, clock.pause))
    assert transport.connected() == frozenset(SITES)
    grid.nodes[100] = grid.nodes.pop(101)
    request = signatures.request("introduce", "a", ({"federation": "test"}, b""))
    assert set(transport.carry("introduce", {"a": request}, 60.0).failures) == {"a"}
    transport.connected()
    assert transport.nodes()["b"] == 100


# What a site needs


def refusal(folder: Path, grid: MemoryGrid, node: int = 100) -> str:
    message = Message(content_of(HostSignatures(folder / "host").question(node)), node, TYPES["identify"])
    with pytest.raises(Exception, match=r".") as raised:
        answered("identify", message, Context(1, node, grid.nodes[node], RecordDict(), {}))
    text = str(raised.value)
    assert "\n" not in text
    assert str(folder) not in text  # the host must not learn where a site keeps its files
    return text


@pytest.mark.parametrize("name", ["site", "folder", "data"])
def test_a_node_whose_configuration_lacks_something_refuses(tmp_path: Path, name: str) -> None:
    _, _, grid = prepared(tmp_path)
    del grid.nodes[100][name]
    assert f"'{name}'" in refusal(tmp_path, grid)


@pytest.mark.parametrize("what", ["missing", "copied", "another host", "another federation", "nothing there"])
def test_a_site_whose_owner_was_not_asked_refuses(tmp_path: Path, what: str) -> None:
    _, _, grid = prepared(tmp_path)
    folder = tmp_path / "a"
    if what == "missing":
        (folder / CONSENT).unlink()
    elif what == "copied":
        copy = folder.rename(tmp_path / "old")
        folder.mkdir()
        for path in copy.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
    elif what == "another host":
        (folder / HOST_KEY).write_text((tmp_path / "host" / KEYS / "b.pub").read_text().splitlines()[1])
    elif what == "another federation":
        write_file(folder, with_tables(run={"rounds": 50}))
    else:
        folder.rename(tmp_path / "old")
    with pytest.raises(WireError):
        check_consent(folder)
    assert "strata join" in refusal(tmp_path, grid)
    assert not (folder / "inbox").exists()
    assert folder.exists() == (what != "nothing there")


def test_a_message_that_the_host_did_not_sign_is_refused(tmp_path: Path) -> None:
    _, _, grid = prepared(tmp_path)
    request = HostSignatures(tmp_path / "host").question(100)
    message = Message(content_of(replace(request, signature=b"")), 100, TYPES["identify"])
    with pytest.raises(Exception, match="host"):
        answered("identify", message, Context(1, 100, grid.nodes[100], RecordDict(), {}))


# The host's folder and the app


def test_an_app_is_one_file_that_names_installed_components(tmp_path: Path) -> None:
    (tmp_path / "host").mkdir()
    app = write_plain_app(tmp_path / "app", tmp_path / "host", trust=False)
    assert [path.name for path in app.iterdir()] == ["pyproject.toml"]
    tables = tomllib.loads((app / "pyproject.toml").read_text())
    assert tables["project"]["dependencies"] == []
    for name in tables["tool"]["flwr"]["app"]["components"].values():
        module, _, attribute = name.partition(":")
        assert hasattr(__import__(module, fromlist=[attribute]), attribute)
    settings = tables["tool"]["flwr"]["app"]["config"]
    assert settings == {"folder": str(tmp_path / "host"), "trust": False}
    assert write_plain_app(tmp_path / "app", tmp_path / "host", trust=True) == app
    (app / "code.py").touch()
    with pytest.raises(DeployError, match=r"code\.py"):
        write_plain_app(tmp_path / "app", tmp_path / "host", trust=True)


@pytest.mark.parametrize("folder", ["", "federations/ward", "empty"])
def test_a_run_whose_folder_is_not_a_hosts_ends_with_the_reason(tmp_path: Path, folder: str) -> None:
    place = str(tmp_path / folder) if folder == "empty" else folder
    with pytest.raises(DeployError, match="folder"):
        app_folder({"folder": place})


def test_a_configuration_of_a_node_can_be_read_by_flower(tmp_path: Path) -> None:
    from flwr.common.config import parse_config_args

    place = str(tmp_path / "it's a table.csv")
    assert parse_config_args([node_configuration("north", tmp_path, place, trust=True)]) == {
        "site": "north",
        "folder": str(tmp_path),
        "data": place,
        "trust": True,
    }
    with pytest.raises(DeployError):
        node_configuration("north", tmp_path, 'a".csv', trust=False)


def test_a_consent_says_for_what_it_is(tmp_path: Path) -> None:
    prepared(tmp_path)
    assert set(json.loads((tmp_path / "a" / CONSENT).read_text())) == {
        "federation",
        "host",
        "keeps_scores",
        "leaves",
        "given",
    }
    check_consent(tmp_path / "a")
