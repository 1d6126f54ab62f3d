"""A round of messages has an end: all replied or failed, or the deadline."""

import logging
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Event, Timer
from types import SimpleNamespace
from typing import Self

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

import httpx
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, ObjectUnavailableError, pull_objects
from flwr.supercore.task_identity import TaskIdentity
from google.protobuf.message import DecodeError

from stratafl.deploy import replies
from stratafl.deploy.courier import SignedMessage
from stratafl.deploy.flower_internals import HostGrid
from stratafl.deploy.replies import SiteHints, nodes_of_sites
from stratafl.deploy.server_app import HostRound, KeyCourier
from stratafl.deploy.signals import MAX_TRIES


@dataclass
class Clock:
    """Time that passes only when somebody sleeps or looks."""

    now: float = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += max(seconds, 0.001)


@dataclass
class FakeGrid:
    """Replies at given seconds after the messages were sent; a text is an error, an exception an outage."""

    clock: Clock
    answers: dict[int, tuple[float, str | None]]
    outage: tuple[float, float] = (0.0, 0.0)
    refused: frozenset[int] = frozenset()
    sent: dict[str, Message] = field(default_factory=dict)
    start: float = 0.0
    _retry_invoker: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(max_time=None))
    limits: list[float] = field(default_factory=list)
    bounded_retries = HostGrid.bounded_retries

    @property
    def _grid(self) -> Self:
        return self

    def get_nodes(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name=name, node_id=node) for name, node in (("north", 7), ("south", 8))]

    def push_messages(self, messages: Iterable[Message]) -> list[str | None]:
        self._check_outage()
        self.start = self.clock.now
        ids: list[str | None] = []
        for message in messages:
            node = message.metadata.dst_node_id
            number = f"m{node}" + "'" * sum(sent.metadata.dst_node_id == node for sent in self.sent.values())
            ids.append(None if node in self.refused else number)
            message.metadata.__dict__["_message_id"] = number
            self.sent[number] = message
        return ids

    def pull_messages(self, ids: Iterable[str], *limits: float) -> list[Message]:
        self._check_outage()
        found = []
        for name in ids:
            node = self.sent[name].metadata.dst_node_id
            when, error = self.answers.get(node, (float("inf"), None))
            if self.clock.now - self.start >= when:
                content = RecordDict({"a": ConfigRecord({"node": node})})
                reply = Message(Error(5, error) if error else content, reply_to=self.sent[name])
                reply.metadata.__dict__["_src_node_id"] = 1 if error else node
                found.append(reply)
        return found

    def _check_outage(self) -> None:
        self.limits.append(self._retry_invoker.max_time)
        begin, end = self.outage
        if begin <= self.clock.now - 1000.0 < end:
            self.clock.now += min(self._retry_invoker.max_time, 5.0)
            raise httpx.ConnectError("connection refused")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(replies, "time", clock)
    for name in ("_run_id", "_node_id", "_task_id"):  # a message is made inside a task
        monkeypatch.setattr(TaskIdentity, name, 1)
    return clock


def messages(*nodes: int) -> list[Message]:
    return [Message(RecordDict({"a": ConfigRecord({"x": 1})}), node, "train") for node in nodes]


def test_all_replies_end_a_round_at_once(clock: Clock) -> None:
    grid = FakeGrid(clock, {7: (2.0, None), 8: (4.0, None)})
    done = HostRound(grid, 60).run(messages(7, 8))
    assert {node: reply.content["a"]["node"] for node, reply in done.replies.items()} == {7: 7, 8: 8}
    assert done.failures == {}
    assert 4.0 <= clock.now - 1000 < 5.1  # not Flower's three seconds more


def test_a_courier_waits_for_every_site_although_one_has_failed(clock: Clock) -> None:
    grid = FakeGrid(clock, {7: (1.0, "Node Unavailable"), 8: (9.0, None)})
    message = SignedMessage(b"{}", b"x", 1, b"")
    courier = KeyCourier(grid)
    assert courier.connected() == {"north", "south"}
    done = courier.carry("round", dict.fromkeys(("north", "south", "west"), message), 60.0)
    assert done.failures["north"].endswith("(code 5)")
    assert set(done.failures) == {"north", "south", "west"}  # south has answered, if not as a site does


def test_the_deadline_ends_a_round_with_what_there_is(clock: Clock) -> None:
    grid = FakeGrid(clock, {7: (2.0, None), 8: (90.0, None)})
    done = HostRound(grid, 60).run(messages(7, 8))
    assert (set(done.replies), set(done.failures)) == ({7}, {8})
    assert re.search(r"\b6[01] s", done.failures[8])


def test_a_failure_is_the_nodes_whose_message_it_answers_although_another_sends_it(clock: Clock) -> None:
    grid = FakeGrid(clock, {7: (2.0, None), 8: (1.0, "Node Unavailable")})
    done = HostRound(grid, 60).run(messages(7, 8))
    assert done.failures == {8: done.failures[8]}
    assert done.failures[8].endswith("(code 5)")
    assert list(done.replies) == [7]


def test_a_reply_that_another_node_sent_is_a_failure(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    grid = FakeGrid(clock, {7: (1.0, None)})
    honest = grid.pull_messages

    def forged(ids: Iterable[str], *limits: float) -> list[Message]:
        found = honest(ids)
        for reply in found:
            reply.metadata.__dict__["_src_node_id"] = 99
        return found

    monkeypatch.setattr(grid, "pull_messages", forged)
    done = HostRound(grid, 60).run(messages(7))
    assert (done.replies, done.failures) == ({}, {7: done.failures[7]})


def test_a_message_that_is_not_taken_is_a_failure(clock: Clock) -> None:
    grid = FakeGrid(clock, {7: (1.0, None), 8: (1.0, None)}, refused=frozenset({8}))
    done = HostRound(grid, 60).run(messages(7, 8))
    assert set(done.failures) == {8}


def test_an_outage_is_said_and_waited_out(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stratafl.deploy")
    grid = FakeGrid(clock, {7: (1.0, None)}, outage=(0.5, 20.0))
    done = HostRound(grid, 60).run(messages(7))
    assert set(done.replies) == {7}
    assert 19.0 < clock.now - 1000 < 30.0
    assert any(line.endswith("ConnectError: connection refused") for line in caplog.messages)


def test_an_outage_does_not_outlast_the_deadline(clock: Clock) -> None:
    """By itself the grid retries for ever."""
    grid = FakeGrid(clock, {7: (1.0, None)}, outage=(0.5, 1e9))
    done = HostRound(grid, 60).run(messages(7))
    assert set(done.failures) == {7}
    assert clock.now - 1000 < 66.0
    assert all(1.0 <= limit <= 60.0 for limit in grid.limits)
    assert grid._retry_invoker.max_time is None  # as it was before


def test_it_is_said_for_whom_we_wait(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stratafl.deploy")
    HostRound(FakeGrid(clock, {7: (1.0, None)}), 100).run(messages(7, 8))
    assert len(caplog.messages) == 3
    assert re.search(r"\b1 of 2 nodes .*\b3\d s", caplog.messages[0])


def test_messages_expire_with_their_deadline(clock: Clock) -> None:
    """Else a site that comes back would begin with the rounds that it missed."""
    sent = messages(7, 8)
    HostRound(FakeGrid(clock, {7: (1.0, None), 8: (1.0, None)}), 60, late=20).run(sent)
    assert {message.metadata.ttl for message in sent} == {85.0}


def test_sites_are_known_by_the_name_of_their_key(clock: Clock) -> None:
    nodes = [SimpleNamespace(name="north", node_id=7), SimpleNamespace(name="", node_id=9)]
    grid = SimpleNamespace(get_nodes=lambda: nodes)
    assert nodes_of_sites(grid) == {"north": 7}


class UnreadableGrid(FakeGrid):
    """One site's reply is what flwr, or we, cannot read."""

    reply: object = None

    def pull_messages(self, ids: Iterable[str], *limits: float) -> list[Message]:
        if "m7" not in (asked := list(ids)):
            return super().pull_messages(asked, *limits)
        if isinstance(self.reply, Exception):
            raise self.reply  # nothing of the others arrives
        found = super().pull_messages(asked, *limits)
        return [self.reply, *(each for each in found if each.metadata.src_node_id != 7)]  # type: ignore[list-item]


def odd_content(node: int, sent: Message) -> Message:
    reply = Message(RecordDict(), reply_to=sent)
    reply.metadata.__dict__["_src_node_id"] = node
    reply.__dict__["_content"] = ConfigRecord({"table": "x"})
    return reply


@pytest.mark.parametrize(
    "reply", [DecodeError("x"), KeyError("CustomDataClass"), IndexError(), ConfigRecord({}), "odd"]
)
def test_a_reply_that_cannot_be_read_is_a_failure_of_its_site_alone(clock: Clock, reply: object) -> None:
    grid = UnreadableGrid(clock, {7: (1.0, None), 8: (4.0, None)})
    sent = messages(7, 8)
    sent[0].metadata.__dict__["_message_id"] = "m7"
    grid.reply = odd_content(7, sent[0]) if reply == "odd" else reply
    done = HostRound(grid, 60).run(sent)
    assert set(done.replies) == {8}
    assert set(done.failures) == {7}


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class SlowGrid(FakeGrid):
    """The rest of the reply of site 7 comes when its event is set; the others answer in time."""

    def __init__(self, answers: dict[int, tuple[float, str | None]]) -> None:
        super().__init__(Clock(), answers)
        self.whole = Event()

    def pull_messages(self, ids: Iterable[str], *limits: float) -> list[Message]:
        def rest(number: str) -> bytes:
            if not self.whole.is_set():
                raise ObjectUnavailableError(number)
            return b""

        asked = list(ids)
        if asked == ["m7"]:
            seconds, pause = limits
            pull_objects(["a"], rest, max_tries_per_object=100, max_time=seconds, backoff_cap=pause)
        return super().pull_messages(asked, *limits)


def test_a_reply_that_never_comes_whole_holds_up_nobody(identity: None) -> None:
    grid, begin = SlowGrid({8: (0.0, None)}), time.monotonic()
    done = HostRound(grid, 0.5, late=0.5).run(messages(7, 8))
    assert set(done.replies) == {8}
    assert set(done.failures) == {7}
    assert time.monotonic() - begin < 60  # by itself it would be a quarter of an hour


def test_a_reply_that_is_on_its_way_at_the_deadline_is_waited_for(identity: None) -> None:
    grid = SlowGrid({7: (0.0, None)})
    Timer(1.5, grid.whole.set).start()
    done = HostRound(grid, 0.5, late=600).run(messages(7))
    assert (set(done.replies), done.failures) == ({7}, {})


def test_a_message_that_its_site_takes_away_before_it_is_sent_is_a_failure_of_that_site_alone(clock: Clock) -> None:
    class Taken(FakeGrid):
        def push_messages(self, messages: Iterable[Message]) -> list[str | None]:
            mine = list(messages)
            if mine[0].metadata.dst_node_id == 7:
                raise ObjectPushError("a", 1, "b")
            return super().push_messages(mine)

    done = HostRound(Taken(clock, {8: (4.0, None)}), 60).run(messages(7, 8))
    assert set(done.replies) == {8}
    assert set(done.failures) == {7}


class FakeSignals:
    """A gate: every site asks for its next message when it has answered."""

    def __init__(self, clock: Clock, grid: FakeGrid) -> None:
        self.clock, self.grid, self.posted, self.is_silent = clock, grid, list[str](), False

    def tell(self, site: str, event: str) -> None:
        assert event == "posted"
        self.posted.append(site)

    def last(self, site: str, event: str) -> int:
        if event != "asked":
            return 0
        when, _ = self.grid.answers[{"north": 7, "south": 8}[site]]
        return int(self.grid.sent != {} and not self.is_silent and self.clock.now - self.grid.start >= when)


@pytest.mark.parametrize("is_silent", [False, True])
def test_with_hints_a_reply_is_asked_for_when_it_is_there_and_otherwise_now_and_then(
    clock: Clock, is_silent: bool
) -> None:
    grid = FakeGrid(clock, {7: (2.0, None), 8: (4.0, None)})
    signals = FakeSignals(clock, grid)
    signals.is_silent = is_silent
    asked = list[str]()
    pull = grid.pull_messages
    grid.pull_messages = lambda ids, *limits: asked.extend(ids) or pull(ids)
    done = HostRound(grid, 60, hints=SiteHints(signals, {7: "north", 8: "south"})).run(messages(7, 8))
    assert set(done.replies) == {7, 8}
    assert signals.posted == ["north", "south"]
    assert asked == ["m7", "m8"]  # each once
    last = replies.LOOK_ANYWAY if is_silent else 4.0
    assert last <= clock.now - 1000 < last + 0.5


class LosingSignals(FakeSignals):
    """As often as `losses`, the site north asks for the next message two seconds after one was sent, unanswered."""

    losses = 1

    def last(self, site: str, event: str) -> int:
        posts = self.posted.count(site)
        if event == "lost":
            is_lost = site == "north" and posts <= self.losses and self.clock.now - self.grid.start >= 2.0
            return posts if is_lost else posts - 1
        return posts if event == "posted" else super().last(site, event)


def test_a_message_that_was_lost_with_a_process_of_its_site_is_sent_again_at_once(clock: Clock) -> None:
    """The same content, and one answer counts, though the first message is answered late, too."""
    grid = FakeGrid(clock, {7: (2.5, None), 8: (40.0, None)})
    signals, sent = LosingSignals(clock, grid), messages(7, 8)
    done = HostRound(grid, 60, late=120, hints=SiteHints(signals, {7: "north", 8: "south"})).run(sent)
    assert signals.posted == ["north", "south", "north"]
    again = grid.sent["m7'"]
    assert again.content == sent[0].content
    assert again.metadata.message_type == sent[0].metadata.message_type
    assert 180.0 < again.metadata.ttl <= 183.0  # until the end of this round, and two tries more
    assert (set(done.replies), done.failures) == ({7, 8}, {})
    assert done.replies[7].metadata.reply_to_message_id == "m7'"
    assert clock.now - 1000 < 45.0


def test_a_message_that_is_lost_again_and_again_is_a_failure_of_its_site(clock: Clock) -> None:
    grid = FakeGrid(clock, {7: (2.5, None)})
    signals = LosingSignals(clock, grid)
    signals.losses = 100
    done = HostRound(grid, 60, hints=SiteHints(signals, {7: "north"})).run(messages(7))
    assert signals.posted == ["north"] * MAX_TRIES
    assert (done.replies, set(done.failures), done.silent) == ({}, {7}, frozenset())
    assert clock.now - 1000 < 10.0
