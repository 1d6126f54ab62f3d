"""For a ServerApp: the connected sites, and one round of messages with a deadline.

Flower's `send_and_receive` looks every three seconds, and without a timeout it waits for ever. `MessageRound` looks
often, ends at its deadline, and says whom it waits for.
"""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Thread
from typing import Any, Self, TypeVar

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from stratafl.deploy.signals import MAX_TRIES, Signals
from stratafl.errors import first_line, shown

log = logging.getLogger("stratafl.deploy")
T = TypeVar("T")
PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between two looks; with hints always the first
LOOK_ANYWAY = 5.0  # seconds after which a reply is looked for without a hint: Flower itself replies for a lost node
SAID_EVERY = 30.0  # seconds between two lines about whom we wait for
_UNAVAILABLE = 5  # flwr's ErrorCode.NODE_UNAVAILABLE
_MARGIN = 5.0  # seconds that a message outlives its deadline, for clocks and polling


def nodes_of_sites(grid: Grid) -> dict[str, int]:
    """The nodes that are connected now, by the name that their key was registered for, not by what they say."""
    return {node.name: node.node_id for node in grid.get_nodes() if node.name}


class SiteHints:
    """What a gate says of sites, by their nodes."""

    def __init__(self, signals: Signals, sites: Mapping[int, str]) -> None:
        self._signals, self._sites = signals, sites

    def posted(self, node: int) -> None:
        self._signals.tell(self._sites[node], "posted")

    def asked(self, node: int) -> int:
        """When it last asked for a message: whatever it has sent before is whole."""
        return self._signals.last(self._sites[node], "asked")

    def is_lost(self, node: int) -> bool:
        """Whether it was given the last message that was posted, and asks for the next one without an answer."""
        site = self._sites[node]
        return 0 < self._signals.last(site, "lost") == self._signals.last(site, "posted")


class MessageRound:
    """One message to each node, until all have ended: with a reply, or with a reason why there is none, by node.

    It ends when every node has replied or failed, or after `deadline` seconds. Messages expire with the deadline, or
    `late` seconds later: until then a site may still answer, and the answer is dropped; it keeps what it trained and
    sends it when it is asked again. An outage of the SuperLink within the deadline is waited out. A reply that is on
    its way at the deadline, or is sent bit by bit, is waited for, `late` seconds at most; others are fetched meanwhile.
    One that cannot be read is a failure of its node. If a connection was lost in the middle of an upload, Flower says
    so when the upload expires, 180 s later. With hints, a message that was lost with a process of its site is sent
    again at once, as a new one; an answer to the first one is dropped.
    """

    def __init__(self, grid: Any, deadline: float, late: float = 0.0, hints: SiteHints | None = None) -> None:
        self.grid, self.deadline, self.late, self.hints = grid, deadline, late, hints
        self.looks = dict[str, tuple[int, float]]()  # by id: the hint that was followed, and when it was looked anyway
        self.start, self.said, self.outage_said = time.monotonic(), 0.0, -SAID_EVERY
        self.replies, self.failures, self.silent = dict[int, Message](), dict[int, str](), frozenset[int]()
        self.waiting, self.pulls = dict[str, int](), dict[str, Future[list[Message]]]()  # by id of the message
        self.sent = dict[int, list[Message]]()  # by node: its message, as often as it was sent

    def run(self, messages: Sequence[Message]) -> Self:
        self.begin(messages)
        self._collect()
        self.silent = frozenset(self.waiting.values())
        self.failures |= dict.fromkeys(self.silent, f"no answer within {self.deadline - self.left():.0f} s")
        return self

    def begin(self, messages: Sequence[Message]) -> Self:
        """Send the messages, one at a time, so that one model at a time is in memory as bytes.

        If the round is not `run`, `look` for replies.
        """
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.ttl = self.left() + self.late + _MARGIN
            self.sent.setdefault(node, []).append(message)
            before = 0 if self.hints is None else self.hints.asked(node)
            sent, why = list[str | None](), "the SuperLink did not accept its message"
            with self._reachable():
                try:
                    sent = list(self.grid.push_messages([message]))
                except httpx.HTTPError:
                    raise
                except Exception as error:  # a site that confirms a message too early takes it away from us
                    why = f"its message could not be sent: {shown(first_line(error), 200)}"
            if sent and sent[0]:
                self.waiting[sent[0]] = node
                if self.hints is not None:
                    self.looks[sent[0]] = before, time.monotonic()
                    self.hints.posted(node)
            else:
                self.failures[node] = why
        return self

    def pull(self, number: str) -> list[Message]:
        """The reply to a message if it is there; with Flower's public names, its rest is waited for without a limit."""
        return list(self.grid.pull_messages([number]))

    def limited_retries(self) -> AbstractContextManager[None]:
        """A limit to how long the grid retries: by its public names flwr retries for ever, past any deadline."""
        return nullcontext()

    def _collect(self) -> None:
        looks = 0
        while self.waiting and (self.left() > 0 or self._on_the_way()):
            if self.look():
                looks = 0
                continue
            self._say()
            pause = PAUSES[0 if self.hints is not None else min(looks, len(PAUSES) - 1)]
            time.sleep(max(0.0, min(pause, self.left())))
            looks += 1

    def _on_the_way(self) -> bool:
        """Whether a reply has begun to arrive, and may take longer."""
        return bool(self.pulls) and self.left() + self.late > 0

    def left(self) -> float:
        return self.deadline - (time.monotonic() - self.start)

    def look(self) -> bool:
        """Fetch what has arrived; whether something had.

        Each reply is fetched alone and in a thread: flwr waits for one that is not whole, and fails at one that it
        cannot read, without naming its site.
        """
        before = len(self.waiting)
        for number, node in list(self.waiting.items()):
            if self.hints is not None and self.hints.is_lost(node):
                self._send_again(number)
        with self._reachable():
            for number, node in self.waiting.items():
                if number not in self.pulls and self._may_be_there(number, node):
                    self.pulls[number] = in_background(self.pull, number)
            done, _ = wait(self.pulls.values(), PAUSES[-1 if self.hints is None else 0], FIRST_COMPLETED)
            for number in [number for number, pull in self.pulls.items() if pull in done]:
                self._pulled(number, self.pulls.pop(number))
        return len(self.waiting) < before

    def _send_again(self, number: str) -> None:
        """A message may be what kills its site: it is sent as often as a site may fail."""
        node = self.waiting.pop(number)
        self.pulls.pop(number, None)
        if len(self.sent[node]) < MAX_TRIES:
            lost = self.sent[node][0]
            self.begin([Message(lost.content, node, lost.metadata.message_type)])
        else:
            self.failures[node] = f"it took its message {MAX_TRIES} times and did not answer"

    def _may_be_there(self, number: str, node: int) -> bool:
        """Without hints always; else if the site has asked for its next message, and every few seconds."""
        if self.hints is None:
            return True
        asked, now = self.hints.asked(node), time.monotonic()
        before, looked = self.looks.setdefault(number, (asked, now))
        if asked == before and now - looked < LOOK_ANYWAY:
            return False
        self.looks[number] = asked, now
        return True

    def _pulled(self, number: str, pull: "Future[list[Message]]") -> None:
        """The reply to one message, if it is there."""
        try:
            messages = pull.result()
        except httpx.HTTPError:
            raise
        except Exception as error:  # whatever flwr makes of bytes that a site has chosen
            node = self.waiting.pop(number)
            self.failures[node] = f"its reply cannot be read: {shown(first_line(error, typed=True), 200)}"
        else:
            for message in messages[:1]:
                self._take(number, message)

    def _take(self, number: str, message: Message) -> None:
        node = self.waiting.pop(number)
        if not isinstance(message, Message):
            self.failures[node] = "its reply cannot be read: it is not a message"
        elif message.has_error():
            is_gone = message.error.code == _UNAVAILABLE
            reason = "it has left or was not heard of for a minute" if is_gone else message.error.reason
            self.failures[node] = f"{shown(reason, 200)} (code {message.error.code})"
        elif not isinstance(message.content, RecordDict):
            self.failures[node] = "its reply cannot be read: it holds no records"
        elif (message.metadata.src_node_id, message.metadata.reply_to_message_id) != (node, number):
            self.failures[node] = "another node sent its reply"
        else:
            self.replies[node] = message

    def _say(self) -> None:
        passed = self.deadline - self.left()
        if passed - self.said >= SAID_EVERY:
            self.said = passed
            waiting = f"{len(self.waiting)} of {len(self.waiting) + len(self.replies) + len(self.failures)} nodes"
            log.info("waiting for %s for %.0f s; the deadline is %.0f s", waiting, passed, self.deadline)

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """An outage of the SuperLink is said and waited out."""
        try:
            with self.limited_retries():
                yield
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            if time.monotonic() - self.outage_said >= SAID_EVERY:
                self.outage_said = time.monotonic()
                log.info("the SuperLink does not answer: %s", first_line(error, typed=True))


def in_background(call: Callable[[str], T], number: str) -> "Future[T]":
    """A call in a thread that does not keep its process from ending: a reply may never be whole."""
    result = Future[T]()

    def work() -> None:
        try:
            result.set_result(call(number))
        except BaseException as error:
            result.set_exception(error)

    Thread(target=work, name="replies", daemon=True).start()
    return result
