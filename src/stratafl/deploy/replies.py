"""For a ServerApp: the connected sites, and one round of messages with a deadline.

Flower's `send_and_receive` looks every three seconds, and without a timeout it waits for ever. `MessageRound` looks
often, ends at its deadline, and says whom it waits for.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Self

import httpx
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.run import RunNotRunningException

from stratafl.errors import first_line, shown

log = logging.getLogger("stratafl.deploy")
_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)  # seconds between two looks; a SuperNode sleeps for up to 3 s between its own
SAID_EVERY = 30.0  # seconds between two lines about whom we wait for
_MARGIN = 5.0  # seconds that a message outlives its deadline, for clocks and polling


def nodes_of_sites(grid: Grid) -> dict[str, int]:
    """The nodes that are connected now, by the name that their key was registered for, not by what they say."""
    return {node.name: node.node_id for node in grid.get_nodes() if node.name}


class MessageRound:
    """One message to each node, until all have ended: with a reply, or with a reason why there is none, by node.

    It ends when every node has replied or failed, or after `deadline` seconds. Messages expire with the deadline, or
    `late` seconds later: until then a site may still answer, and the answer is dropped; it keeps what it trained and
    sends it when it is asked again. An outage of the SuperLink within the deadline is waited out. A reply that is on
    its way at the deadline, or is sent bit by bit, is waited for, `late` seconds at most; others are fetched meanwhile.
    One that cannot be read is a failure of its node. If a connection was lost in the middle of an upload, Flower says
    so when the upload expires, 180 s later.
    """

    def __init__(self, grid: Grid, deadline: float, late: float = 0.0) -> None:
        self.grid, self.deadline, self.late = grid, deadline, late
        self.start, self.said, self.outage_said = time.monotonic(), 0.0, -SAID_EVERY
        self.replies, self.failures, self.silent = dict[int, Message](), dict[int, str](), frozenset[int]()
        self.waiting, self.pulls = dict[str, int](), dict[str, Future[list[Message]]]()  # by id of the message

    def run(self, messages: Sequence[Message]) -> Self:
        with self._bounded():
            try:
                self.begin(messages)
                self._collect()
            finally:
                self.end()
        self.silent = frozenset(self.waiting.values())
        self.failures |= dict.fromkeys(self.silent, f"no answer within {self.deadline - self.left():.0f} s")
        return self

    def begin(self, messages: Sequence[Message]) -> Self:
        """Send the messages; whoever does not `run` the round looks for replies until it ends it."""
        for message in messages:
            message.metadata.ttl = self.deadline + self.late + _MARGIN
        self.pool = ThreadPoolExecutor(max(1, len(messages)), "replies")
        self._push(messages)
        return self

    def end(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)

    def _collect(self) -> None:
        looks = 0
        while self.waiting and (self.left() > 0 or self._on_the_way()):
            if self.look():
                looks = 0
                continue
            self._say()
            time.sleep(max(0.0, min(_PAUSES[min(looks, len(_PAUSES) - 1)], self.left())))
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
        with self._reachable():
            for number in self.waiting:
                if number not in self.pulls:
                    self.pulls[number] = self.pool.submit(self._pull, number)
            done, _ = wait(self.pulls.values(), timeout=_PAUSES[-1])
            for number in [number for number, pull in self.pulls.items() if pull in done]:
                self._pulled(number, self.pulls.pop(number))
        return len(self.waiting) < before

    def _pull(self, number: str) -> list[Message]:
        return list(self.grid.pull_messages([number]))

    def _pulled(self, number: str, pull: "Future[list[Message]]") -> None:
        """The reply to one message, if it is there."""
        try:
            messages = pull.result()
        except (httpx.HTTPError, RunNotRunningException):
            raise
        except Exception as error:  # whatever flwr makes of bytes that a site has chosen
            node = self.waiting.pop(number)
            self.failures[node] = f"its reply cannot be read: {shown(first_line(error, typed=True), 200)}"
        else:
            for message in messages[:1]:
                self._take(number, message)

    def _push(self, messages: Sequence[Message]) -> None:
        """One at a time, so that one model at a time is in memory as bytes."""
        for message in messages:
            node = message.metadata.dst_node_id
            sent, why = list[str | None](), "the SuperLink did not accept its message"
            with self._reachable():
                try:
                    sent = list(self.grid.push_messages([message]))
                except ObjectPushError as error:  # a site that confirms a message too early takes it away from us
                    why = f"its message could not be sent: {shown(first_line(error), 200)}"
            if sent and sent[0]:
                self.waiting[sent[0]] = node
            else:
                self.failures[node] = why

    def _take(self, number: str, message: Message) -> None:
        node = self.waiting.pop(number)
        if not isinstance(message, Message):
            self.failures[node] = "its reply cannot be read: it is not a message"
        elif message.has_error():
            self.failures[node] = f"{shown(message.error.reason, 200)} (code {message.error.code})"
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
    def _bounded(self) -> Iterator[None]:
        """Limit how long the grid waits for the rest of a reply: flwr waits for more than an hour."""
        grids: Any = import_module("flwr.superlink.grid.http_grid")
        pull = grids.pull_objects

        def bounded(*arguments: Any, **options: Any) -> Any:
            limits = {"max_time": max(0.0, self.left() + self.late), "backoff_cap": _PAUSES[-1]}
            return pull(*arguments, **{**options, **limits})

        grids.pull_objects = bounded
        try:
            yield
        finally:
            grids.pull_objects = pull

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        """Limit how long the grid retries: flwr retries for ever, past any deadline."""
        retries = getattr(self.grid, "_retry_invoker", None)
        if retries is not None:
            retries.max_time = max(1.0, self.left())
        try:
            yield
        except (httpx.TransportError, httpx.HTTPStatusError) as error:
            if time.monotonic() - self.outage_said >= SAID_EVERY:
                self.outage_said = time.monotonic()
                log.info("the SuperLink does not answer: %s", first_line(error, typed=True))
        finally:
            if retries is not None:
                retries.max_time = None
