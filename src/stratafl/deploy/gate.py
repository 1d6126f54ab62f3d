"""The gate: the only port of a federation that others can reach.

flwr 1.41 serves its control, fleet and runtime APIs on one port, and a client of the control API can start code.
So the SuperLink listens on loopback, and the gate, which ends TLS and speaks HTTP/1.1 (h11), passes on what
`admission.py` admits. Bodies are passed piece by piece. Connections, heads and waiting times are limited.
`python -m stratafl.deploy.gate --help` shows the options.
docs/design/deployment.md#processes-and-the-gate says why it is a proxy.
"""

import argparse
import asyncio
import json
import logging
import signal
import socket
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import h11

from stratafl.deploy.admission import FORWARDED, KeyRing, Quota, RefusedError, admit
from stratafl.deploy.processes import log_to_stderr
from stratafl.deploy.signals import MAX_TRIES, Signals
from stratafl.errors import shown
from stratafl.files import write_atomically

log = logging.getLogger("stratafl.deploy.gate")
COUNTS_EVERY = 2.0  # seconds between two writings of the counts
LOGGED_PER_MINUTE = 60  # refusals; the rest is counted
MAX_HEAD_BYTES = 16 * 1024  # bytes of request line and headers
PIECE = 64 * 1024  # bytes that are read at a time; a connection buffers a few of them
REUSE_SECONDS = 3.0  # seconds for which a connection to the SuperLink is kept
PULL = b"/v1/fleet/pull-messages"
PUSHES = (b"/v1/fleet/push-messages", b"/v1/fleet/push-object")
_LOOK = 0.1  # seconds between two looks whether there is a message
MAX_DRAINED_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True)
class GateLimits:
    """How much strangers can take: connections in all and from one address, and seconds for each thing to happen."""

    connections: int = 256
    per_address: int = 64
    at_work: int = 64  # requests that the SuperLink holds in memory at a time
    of_one: int = 32  # of them of one site; those that it has given up count until the SuperLink answers
    slowest: float = 50_000.0  # bytes a second of a body, after the time for a piece
    handshake: float = 10.0
    head: float = 10.0
    idle: float = 60.0  # until the next request of a connection begins
    piece: float = 60.0  # until the next piece of a body arrives
    answer: float = 120.0  # until the SuperLink answers
    farewell: float = 5.0
    held: float = 10.0  # until a request for messages is passed on, if there are none


@dataclass
class Counts:
    """What passed for a site, in bytes of bodies and heads; `seen` in seconds since 1970."""

    requests: int = 0
    received: int = 0
    sent: int = 0
    seen: float = 0.0


@dataclass
class _Refusals:
    """Logs who was refused and why, at most `LOGGED_PER_MINUTE` lines a minute."""

    minute: int = 0
    lines: int = 0
    total: int = 0
    silent: int = 0

    def tell(self, address: str, reason: str) -> None:
        self.total += 1
        now = int(time.monotonic() // 60)
        if now != self.minute:
            if self.silent:
                log.warning("refused %d more", self.silent)
            self.minute, self.lines, self.silent = now, 0, 0
        self.lines += 1
        if self.lines <= LOGGED_PER_MINUTE:
            log.warning("refused %s: %s", address, shown(reason, 200))
        else:
            self.silent += 1


class Side:
    """A connection, what h11 has understood of it, and how many bytes went through."""

    def __init__(
        self, role: type[h11.CLIENT] | type[h11.SERVER], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=MAX_HEAD_BYTES)
        self.reader, self.writer, self.received, self.sent = reader, writer, 0, 0
        self.link: Side | None = None  # of a site: its connection to the SuperLink
        self.used = time.monotonic()

    def is_fresh(self) -> bool:
        """Whether it can carry another request; uvicorn hangs up after 5 seconds."""
        done = self.http.our_state is h11.DONE and self.http.their_state is h11.DONE
        return done and not self.reader.at_eof() and time.monotonic() - self.used < REUSE_SECONDS

    def leave_link(self) -> None:
        if self.link is not None:
            self.link.writer.transport.abort()
            self.link = None

    async def event(self, seconds: float) -> object:
        """What h11 reads next: a request, a response, a piece of a body, its end, the end of the connection."""
        async with asyncio.timeout(seconds):
            while (event := self.http.next_event()) is h11.NEED_DATA:
                data = await self.reader.read(PIECE)
                self.received += len(data)
                self.http.receive_data(data)
        return event

    async def send(self, event: h11.Event, seconds: float) -> None:
        data = self.http.send(event)
        if data:
            self.sent += len(data)
            self.writer.write(data)
            async with asyncio.timeout(seconds):
                await self.writer.drain()


@dataclass
class Gate:
    """Passes requests of registered sites on to a SuperLink on loopback."""

    keys: KeyRing
    upstream: tuple[str, int]
    upstream_tls: ssl.SSLContext
    limits: GateLimits = field(default_factory=GateLimits)
    quota: Quota = field(default_factory=Quota)
    counts: dict[str, Counts] = field(default_factory=dict)
    signals: Signals | None = None  # else requests for messages are passed on at once

    def __post_init__(self) -> None:
        self.refusals, self._open, self._tasks = _Refusals(), Counter[str](), set[asyncio.Task[None]]()
        self._work, self._at_work = asyncio.Semaphore(self.limits.at_work), Counter[str]()
        self._replied = dict[str, tuple[int, int]]()  # when its last message was posted, and bytes of a site's replies
        self._served = dict[str, int]()  # when there was a message for a site, as of its last request for one

    async def serve(self, listener: socket.socket, tls: ssl.SSLContext) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        try:
            while True:
                with suppress(ConnectionError):
                    connection, address = await loop.sock_accept(listener)
                    self._accept(connection, str(address[0]), tls)
        finally:
            for task in tuple(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, connection: socket.socket, address: str, tls: ssl.SSLContext) -> None:
        if self._open.total() >= self.limits.connections or self._open[address] >= self.limits.per_address:
            self.refusals.tell(address, f"too many connections ({self._open[address]} from this address)")
            connection.close()
            return
        self._open[address] += 1
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else every answer takes 40 ms longer
        task = asyncio.create_task(self._attend(connection, address, tls))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._left(done, address))

    def _left(self, task: "asyncio.Task[None]", address: str) -> None:
        self._tasks.discard(task)
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]
        if not task.cancelled() and (error := task.exception()):
            log.error("the gate failed on a connection from %s", address, exc_info=error)

    async def _attend(self, connection: socket.socket, address: str, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=PIECE)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=tls,
                ssl_handshake_timeout=self.limits.handshake,
                ssl_shutdown_timeout=self.limits.farewell,
            )
        except (OSError, EOFError) as error:  # ssl.SSLError is an OSError
            connection.close()
            self.refusals.tell(address, f"no TLS connection: {error or type(error).__name__}")
            return
        transport.set_write_buffer_limits(high=PIECE)
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        side = Side(h11.SERVER, reader, writer)
        try:
            while await self._pass_one(side, address):
                side.http.start_next_cycle()
                side.received = side.sent = 0
        except (OSError, TimeoutError, h11.ProtocolError) as error:
            self.refusals.tell(address, f"broken off: {error or type(error).__name__}")
            transport.abort()
        finally:
            side.leave_link()
            writer.close()
            with suppress(OSError):  # TimeoutError is one
                async with asyncio.timeout(self.limits.farewell):
                    await writer.wait_closed()
            transport.abort()

    async def _pass_one(self, site: Side, address: str) -> bool:
        """One request and its answer; whether the connection can carry another."""
        request = await self._head(site, address)
        if request is None:
            return False
        try:
            if request.http_version != b"1.1":
                raise RefusedError(505, "a version of HTTP other than 1.1")
            size = sum(len(name) + len(value) for name, value in request.headers)
            if size > MAX_HEAD_BYTES:  # h11 limits unfinished heads
                raise RefusedError(431, f"a head of more than {MAX_HEAD_BYTES:,} bytes")
            headers = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in request.headers)
            name, length = admit(request.method.decode(), request.target.decode("latin-1"), headers, self.keys)
            self.quota.take(name, length)
            if request.target == PULL and self.signals is not None:
                await self._hold(site, name, self.signals)
            with self._limited(name, length if request.target in PUSHES else 0):
                async with self._turn(name):
                    await self._forward(site, request, length)
        except RefusedError as refusal:
            await self._refuse(site, address, refusal)
            return False
        count = self.counts.setdefault(name, Counts())
        count.requests, count.seen = count.requests + 1, time.time()
        count.received, count.sent = count.received + site.received, count.sent + site.sent
        return site.http.our_state is h11.DONE and site.http.their_state is h11.DONE

    @contextmanager
    def _limited(self, name: str, length: int) -> Iterator[None]:
        """Refuse a reply that is larger than an upload of this round can be, before it is received.

        A site may answer all messages of a round after the last one was posted, each in one request or in several.
        """
        if self.signals is None or not length:
            yield
            return
        most, posted = self.signals.most_reply_bytes(), self.signals.last(name, "posted")
        sent = self._sent_since(name, posted) + length
        if most is not None and (length > most or sent > MAX_TRIES * most):
            raise RefusedError(413, f"site '{name}': a reply of at least {sent:,} bytes; at most {most:,} are expected")
        self._replied[name] = posted, sent
        try:
            yield
        except BaseException:
            if self._replied[name][0] == posted:  # it is sent again
                self._replied[name] = posted, self._sent_since(name, posted) - length
            raise

    def _sent_since(self, name: str, posted: int) -> int:
        """Bytes of a site's replies to the message that was posted for it then."""
        before, sent = self._replied.get(name, (posted, 0))
        return sent if before == posted else 0

    async def _hold(self, site: Side, name: str, signals: Signals) -> None:
        """Let a site wait until there is a message for it: it would ask again and again.

        A site answers a message before it asks for the next one. If it has not, its process was killed, or the
        connection broke while it was given the message.
        """
        signals.tell(name, "asked")
        posted = signals.last(name, "posted")
        if posted == self._served.get(name) and not self._sent_since(name, posted):
            signals.tell(name, "lost", posted)
        latest = time.monotonic() + self.limits.held
        while (posted := signals.last(name, "posted")) == self._served.get(name) and time.monotonic() < latest:
            await asyncio.sleep(_LOOK)
        if site.reader.at_eof() or site.writer.is_closing():  # a message that nobody receives would be lost
            raise ConnectionResetError("it disconnected while it waited for a message")
        self._served[name] = posted

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[None]:
        """A place among the requests in progress. A slow site cannot take the places of others."""
        if self._at_work[name] >= self.limits.of_one:
            raise RefusedError(503, f"site '{name}' has {self.limits.of_one} requests in progress")
        self._at_work[name] += 1
        try:
            async with self._work:
                yield
        finally:
            self._at_work[name] -= 1

    async def _head(self, site: Side, address: str) -> h11.Request | None:
        """The head of the next request, or None where there is no other."""
        if not site.http.trailing_data[0]:
            async with asyncio.timeout(self.limits.idle):
                first = await site.reader.read(PIECE)
            if not first:
                return None
            site.received += len(first)
            site.http.receive_data(first)
        try:
            event = await site.event(self.limits.head)
        except (h11.RemoteProtocolError, TimeoutError) as error:
            hint = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 408
            await self._refuse(site, address, RefusedError(hint, f"not a request: {error or 'its head took too long'}"))
            return None
        return event if isinstance(event, h11.Request) else None

    async def _forward(self, site: Side, request: h11.Request, length: int) -> None:
        """The body to the SuperLink, its answer to the site; a `RefusedError` if the SuperLink cannot be reached."""
        link = await self._superlink(site)
        headers = [(name, value) for name, value in request.headers if FORWARDED.fullmatch(name)]
        fixed = [(b"host", b"superlink"), (b"content-length", b"%d" % length)]
        await self._to_link(link, h11.Request(method=b"POST", target=request.target, headers=[*fixed, *headers]))
        async with asyncio.timeout(self.limits.piece + length / self.limits.slowest):
            while not isinstance(event := await site.event(self.limits.piece), h11.EndOfMessage):
                if not isinstance(event, h11.Data):
                    raise ConnectionResetError("it disconnected in the middle of a body")
                await self._to_link(link, h11.Data(data=event.data))
        await self._to_link(link, h11.EndOfMessage())
        await self._answer(site, link)
        link.used = time.monotonic()

    async def _to_link(self, link: Side, event: h11.Event) -> None:
        try:
            await link.send(event, self.limits.piece)
        except (OSError, TimeoutError) as error:
            raise RefusedError(503, f"the SuperLink broke the connection: {error or type(error).__name__}") from error

    async def _answer(self, site: Side, link: Side) -> None:
        try:
            head = await link.event(self.limits.answer)
        except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
            raise RefusedError(503, f"the SuperLink does not answer: {error or type(error).__name__}") from error
        if not isinstance(head, h11.Response):
            raise RefusedError(502, "the SuperLink disconnected without an answer")
        headers = [(name, value) for name, value in head.headers if name in (b"content-type", b"content-length")]
        await site.send(h11.Response(status_code=head.status_code, headers=headers), self.limits.piece)
        while isinstance(event := await link.event(self.limits.answer), h11.Data):
            await site.send(h11.Data(data=event.data), self.limits.piece)
        if not isinstance(event, h11.EndOfMessage):
            raise ConnectionResetError("the SuperLink disconnected in the middle of an answer")
        await site.send(h11.EndOfMessage(), self.limits.piece)

    async def _superlink(self, site: Side) -> Side:
        """A connection to the SuperLink: the one that served this site a moment ago, or a new one."""
        if site.link is not None and site.link.is_fresh():
            site.link.http.start_next_cycle()
            return site.link
        site.leave_link()
        host, port = self.upstream
        try:
            async with asyncio.timeout(self.limits.handshake):
                reader, writer = await asyncio.open_connection(host, port, ssl=self.upstream_tls, limit=PIECE)
        except (OSError, TimeoutError) as error:
            raise RefusedError(503, f"the SuperLink cannot be reached: {error or type(error).__name__}") from error
        site.link = Side(h11.CLIENT, reader, writer)
        return site.link

    async def _refuse(self, site: Side, address: str, refusal: RefusedError) -> None:
        self.refusals.tell(address, refusal.reason)
        if site.http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = h11.Response(
                status_code=refusal.status, headers=[(b"content-length", b"0"), (b"connection", b"close")]
            )
            with suppress(OSError, TimeoutError, h11.LocalProtocolError):
                await site.send(answer, 2.0)
                await site.send(h11.EndOfMessage(), 2.0)
                await self._drain(site)

    async def _drain(self, site: Side) -> None:
        """Read on for a moment, so that the answer arrives: closing with unread bytes would reset the connection."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                for _ in range(MAX_DRAINED_BYTES // PIECE):
                    if not await site.reader.read(PIECE):
                        return


async def _write_counts(gate: Gate, path: Path) -> None:
    """Write the counts that the table of `strata host` shows."""
    written = ""
    while True:
        sites = {name: vars(count) for name, count in sorted(gate.counts.items())}
        text = json.dumps({"sites": sites, "refused": gate.refusals.total})
        if text != written:
            await asyncio.to_thread(write_atomically, path, text.encode())
            written = text
        await asyncio.sleep(COUNTS_EVERY)


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    return context


async def _run(options: argparse.Namespace) -> None:
    upstream_tls = ssl.create_default_context(cafile=options.authority)
    quota = Quota(options.most, options.seconds)
    gate = Gate(
        KeyRing(options.sites),
        ("127.0.0.1", options.superlink_port),
        upstream_tls,
        quota=quota,
        signals=Signals(options.sites.parent),
    )
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    with socket.create_server((options.host, options.port), family=family, backlog=128) as listener:
        log.info("listening on %s port %d", *listener.getsockname()[:2])
        tasks = [
            asyncio.create_task(gate.serve(listener, server_tls(options.certificate, options.key))),
            asyncio.create_task(_write_counts(gate, options.counts)),
        ]
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: [task.cancel() for task in tasks])
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--superlink-port", type=int, required=True, help="on loopback")
    parser.add_argument("--most", type=int, required=True, help="bytes that a site may send within --seconds")
    parser.add_argument("--seconds", type=float, required=True)
    for name in ("certificate", "key", "authority", "sites", "counts"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    log_to_stderr()
    asyncio.run(_run(parser.parse_args()))


if __name__ == "__main__":
    main()
