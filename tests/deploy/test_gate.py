"""The gate in front of a SuperLink that is a stand-in: what passes, what is refused, and what strangers can take."""

import asyncio
import logging
import os
import re
import socket
import ssl
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

from test_admission import PULL, signed

from stratafl.core.machine import resident
from stratafl.deploy.admission import MAX_BODY_BYTES, KeyRing, Quota
from stratafl.deploy.certificates import create_authority, create_server_certificate, create_site_key
from stratafl.deploy.gate import LOGGED_PER_MINUTE, MAX_HEAD_BYTES, Gate, GateLimits, server_tls
from stratafl.deploy.replies import SiteHints
from stratafl.deploy.signals import Signals

PATIENCE = 120.0  # seconds; only what hangs takes that long
CONTROL = ("start-run", "register-node", "list-runs", "list-nodes", "stop-run")  # which the owner alone may ask
QUICK = GateLimits(handshake=0.5, head=0.5, idle=0.5, piece=0.5, answer=0.5, farewell=0.5)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/protobuf\r\ncontent-length: 6\r\nserver: x\r\n\r\nanswer"


class Place:
    """Certificates, a key of a site, and a stand-in for the SuperLink that keeps what it is asked."""

    def __init__(self, folder: Path) -> None:
        self.authority = create_authority(folder)
        self.certificate = create_server_certificate(folder, [], self.authority)
        (folder / "sites").mkdir()
        self.site = create_site_key(folder / "sites", "north")
        self.asked, self.answer, self.gate, self.port = list[bytes](), ANSWER, None, 0
        self.quota = Quota()

    def tls(self) -> ssl.SSLContext:
        return server_tls(self.certificate.public, self.certificate.key)

    async def superlink(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                fields = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                self.asked.append(head + await reader.readexactly(int(fields[b"content-length"])))
                writer.write(self.answer)
                await writer.drain()
        writer.close()

    @asynccontextmanager
    async def open(self, limits: GateLimits | None = None, *, superlink: bool = True, signals: Signals | None = None):
        server = await asyncio.start_server(self.superlink, "127.0.0.1", 0, ssl=self.tls())
        upstream = server.sockets[0].getsockname()[:2]
        if not superlink:
            server.close()
        trusted = ssl.create_default_context(cafile=self.authority.public)
        keys = KeyRing(self.site.public.parent)
        self.gate = Gate(keys, upstream, trusted, limits or GateLimits(), self.quota, signals=signals)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            task = asyncio.create_task(self.gate.serve(listener, self.tls()))
            try:
                yield self
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                server.close()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        trusted = ssl.create_default_context(cafile=self.authority.public)
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=trusted)

    def request(self, target: str = PULL, body: bytes = b"asked", method: str = "POST", **more: str) -> bytes:
        fields = {
            "host": "gate",
            **signed(self.site, length=len(body)),
            **{k.replace("_", "-"): v for k, v in more.items()},
        }
        lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body


async def reply(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    return int(head.split()[1]), await reader.readexactly(length)


async def told(place: Place, data: bytes) -> int:
    """The status of the answer to these bytes; 0 if the connection ends without one."""
    reader, writer = await place.connect()
    try:
        with suppress(ConnectionError):
            writer.write(data)
            await writer.drain()
        return (await reply(reader))[0]
    except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
        return 0
    finally:
        writer.transport.abort()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def attend(work: Callable[[], Awaitable[object]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE):
            await work()

    asyncio.run(limited())


async def until(met: Callable[[], bool]) -> None:
    while not met():
        await asyncio.sleep(0.01)


def test_a_request_of_a_site_passes_and_its_answer_comes_back(place: Place) -> None:
    async def work() -> None:
        async with place.open():
            reader, writer = await place.connect()
            for body in (b"first", os.urandom(3_000_000), b""):
                writer.write(place.request(body=body, x_forwarded_for="8.8.8.8", authorization="Bearer stolen"))
                assert await reply(reader) == (200, b"answer")
                head, _, passed = place.asked[-1].partition(b"\r\n\r\n")
                assert passed == body
                assert head.startswith(f"POST {PULL} HTTP/1.1".encode())
                assert b"flwr-signature" in head.lower()
                assert b"forwarded" not in head.lower()
                assert b"stolen" not in head
            writer.close()
        count = place.gate.counts["north"]
        assert count.requests == 3
        assert 3_000_005 < count.received < 3_010_000
        assert count.sent < 2_000

    attend(work)


def test_a_site_that_sends_more_than_its_quota_is_refused_and_named(place: Place, caplog) -> None:
    clock = [0.0]
    place.quota = Quota(most=3_000_000, seconds=10, now=lambda: clock[0])

    async def work() -> None:
        async with place.open():
            body = bytes(1_400_000)
            assert [await told(place, place.request(body=body)) for _ in range(3)] == [200, 200, 503]
            assert len(place.asked) == 2
            clock[0] = 10.0
            assert await told(place, place.request(body=body)) == 200

    with caplog.at_level(logging.WARNING):
        attend(work)
    assert re.search(r"'north'.* 3 MB .* 10 s", caplog.text)


def test_an_error_of_the_superlink_is_passed_back(place: Place) -> None:
    place.answer = b"HTTP/1.1 409 Conflict\r\ncontent-length: 3\r\n\r\nwhy"

    async def work() -> None:
        async with place.open():
            reader, writer = await place.connect()
            writer.write(place.request())
            assert await reply(reader) == (409, b"why")
            writer.close()

    attend(work)


@pytest.mark.parametrize(
    ("target", "status"),
    [
        *[(f"/v1/control/{name}", 404) for name in CONTROL],
        *[(path, 404) for path in ("/v1/runtime/acquire-task", "/v1/fleet/register-node", "/docs", "/health")],
    ],
)
def test_what_is_not_of_the_fleet_never_reaches_the_superlink(place: Place, target: str, status: int) -> None:
    async def work() -> None:
        async with place.open():
            assert await told(place, place.request(target)) == status
            assert await told(place, place.request(body=b"") + place.request(target)) == 200  # and after a good one
            await until(lambda: place.gate.refusals.total == 2)
        assert [asked.split()[1] for asked in place.asked] == [PULL.encode()]

    attend(work)


def test_a_request_within_the_body_of_another_stays_a_body(place: Place) -> None:
    async def work() -> None:
        inner = place.request("/v1/control/start-run")
        async with place.open():
            assert await told(place, place.request(body=inner)) == 200
        assert [asked.partition(b"\r\n\r\n")[2] for asked in place.asked] == [inner]

    attend(work)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda data: data.replace(b"content-length: 5", b"content-length: 5\r\ncontent-length: 6"), 400),
        (lambda data: data.replace(b"content-length: 5", b"transfer-encoding: chunked"), 400),
        (lambda data: data.replace(b"content-length: 5", b"content-length: %d" % (MAX_BODY_BYTES + 1)), 413),
        (lambda data: data.replace(b"host: gate", b"host: gate\r\nx: " + b"y" * (2 * MAX_HEAD_BYTES)), 431),
        (lambda data: data.replace(b"host: gate", b"host: gate\nx: y\x00"), 400),
        (lambda data: data.replace(b" HTTP/1.1", b" HTTP/2.0"), 505),
        (lambda data: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (lambda data: data.replace(b" HTTP/1.1", b" HTTP/1.0"), 505),
        (lambda data: b"\x00\xff" * 100 + b"\r\n\r\n", 400),
    ],
)
def test_what_is_malformed_or_too_long_is_refused(place: Place, change: Callable[[bytes], bytes], status: int) -> None:
    async def work() -> None:
        async with place.open():
            assert await told(place, change(place.request())) in (status, 0)
            await until(lambda: place.gate.refusals.total == 1)
        assert place.asked == []

    attend(work)


def test_without_tls_nothing_is_answered(place: Place) -> None:
    async def work() -> None:
        async with place.open():
            reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
            writer.write(place.request())
            with suppress(ConnectionError):
                assert b"HTTP" not in await reader.read()
            writer.close()
            await until(lambda: place.gate.refusals.total == 1)
        assert place.asked == []

    attend(work)


def test_old_tls_is_refused(place: Place) -> None:
    assert place.tls().minimum_version == ssl.TLSVersion.TLSv1_2


def test_who_is_slow_is_dropped_and_others_are_served(place: Place) -> None:
    """A head that drips, a handshake that never begins, a body that stops, a connection that says nothing."""

    async def work() -> None:
        async with place.open(QUICK):
            slow = [await place.connect() for _ in range(3)]
            silent = await asyncio.open_connection("127.0.0.1", place.port)
            slow[0][1].write(place.request()[:40])
            slow[1][1].write(place.request(body=b"x" * 1000)[:-500])
            while await told(place, place.request()) != 200:  # on a busy machine half a second may be too short for it
                await asyncio.sleep(0.1)
            for reader, writer in (*slow, silent):
                with suppress(ConnectionError, ssl.SSLError):
                    while await reader.read(1000):
                        pass
                writer.transport.abort()
            await until(lambda: not place.gate._tasks)
        assert place.gate._open.total() == 0

    attend(work)


def test_a_site_has_few_requests_at_work_at_a_time(place: Place) -> None:
    async def work() -> None:
        async with place.open(GateLimits(of_one=1)):
            _, slow = await place.connect()
            slow.write(place.request(body=bytes(1000))[:-1])
            await until(lambda: place.gate._at_work["north"] == 1)
            assert await told(place, place.request()) == 503
            slow.transport.abort()
            await until(lambda: place.gate._at_work["north"] == 0)
            assert await told(place, place.request()) == 200

    attend(work)


def test_a_body_that_comes_byte_by_byte_is_broken_off(place: Place) -> None:
    async def work() -> None:
        async with place.open(GateLimits(piece=0.5, slowest=1e9)):
            reader, writer = await place.connect()
            whole = place.request(body=bytes(10_000))
            writer.write(whole[:-10_000])
            sent = 0
            with suppress(ConnectionError):
                while not reader.at_eof() and sent < 200:  # each in time for itself
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.1)
                    sent += 1
            assert sent < 200
            assert not place.asked
            writer.transport.abort()

    attend(work)


def test_connections_are_limited_in_all_and_per_address(place: Place) -> None:
    async def work() -> None:
        async with place.open(GateLimits(connections=5, per_address=3)):
            held = [await place.connect() for _ in range(3)]
            for _ in range(20):
                with pytest.raises((ConnectionError, ssl.SSLError)):
                    await place.connect()
            assert place.gate._open.total() == 3
            held[0][1].transport.abort()
            await until(lambda: place.gate._open.total() == 2)
            assert await told(place, place.request()) == 200
            for _, writer in held:
                writer.transport.abort()

    attend(work)


@pytest.mark.slow
def test_a_flood_takes_little_memory(place: Place) -> None:
    """Strangers that announce large bodies and send what they can."""

    async def flood() -> None:
        with suppress(ConnectionError, ssl.SSLError):
            _, writer = await place.connect()
            writer.write(place.request("/v1/control/start-run", body=b"")[:-2] + b"a: b\r\n\r\n")
            for _ in range(200):
                writer.write(bytes(100_000))
                await writer.drain()
            writer.transport.abort()

    async def work() -> None:
        async with place.open():
            before = resident()
            await asyncio.gather(*(flood() for _ in range(40)))
            grown = resident() - before
            assert await told(place, place.request()) == 200
        assert len(place.asked) == 1
        assert grown < 200e6  # of 800 MB that were offered; both ends are in this process

    attend(work)


def test_an_outage_of_the_superlink_is_answered_with_503(place: Place) -> None:
    """The status after which a site asks again."""

    async def work() -> None:
        async with place.open(superlink=False):
            assert await told(place, place.request()) == 503

    attend(work)


def test_a_superlink_that_is_silent_is_an_outage(place: Place) -> None:
    place.answer = b""

    async def work() -> None:
        async with place.open(GateLimits(answer=0.5)):
            assert await told(place, place.request()) == 503

    attend(work)


def test_a_superlink_of_another_authority_is_not_believed(place: Place, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = create_authority(tmp_path / "other")

    async def work() -> None:
        async with place.open():
            place.gate.upstream_tls = ssl.create_default_context(cafile=other.public)
            assert await told(place, place.request()) == 503
        assert place.asked == []

    attend(work)


def test_refusals_are_logged_with_address_and_reason_but_not_without_end(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "stratafl.deploy.gate")

    async def work() -> None:
        async with place.open():
            assert await told(place, place.request("/v1/control/start-run")) == 404
            for _ in range(3 * LOGGED_PER_MINUTE):
                place.gate.refusals.tell("1.2.3.4", "again\x1b[31m")
            assert place.gate.refusals.total == 3 * LOGGED_PER_MINUTE + 1

    attend(work)
    lines = [record.getMessage() for record in caplog.records]
    assert lines[0].startswith("refused 127.0.0.1: ")
    assert lines[0].endswith(": POST /v1/control/start-run")
    assert len(lines) <= 2 * LOGGED_PER_MINUTE + 2  # a minute may have ended in between
    assert "\x1b" not in "".join(lines)


def test_a_request_for_messages_waits_until_there_may_be_one(place: Place, tmp_path: Path) -> None:
    """The first is passed on, since nobody knows; the next after a message was posted, or at the end of the wait."""
    signals = Signals(tmp_path)

    async def work() -> None:
        async with place.open(GateLimits(held=PATIENCE), signals=signals):
            reader, writer = await place.connect()
            writer.write(place.request())
            assert await reply(reader) == (200, b"answer")
            before = signals.last("north", "asked")
            assert before > 0
            writer.write(place.request())
            await until(lambda: signals.last("north", "asked") > before)
            assert len(place.asked) == 1
            signals.tell("south", "posted")
            other = asyncio.create_task(told(place, place.request("/v1/fleet/push-messages")))
            assert await other == 200  # only requests for messages wait
            assert len(place.asked) == 2
            signals.tell("north", "posted")
            assert await reply(reader) == (200, b"answer")
            assert len(place.asked) == 3
            writer.close()

    attend(work)


def test_a_request_for_messages_is_passed_on_after_a_while(place: Place, tmp_path: Path) -> None:
    async def work() -> None:
        async with place.open(GateLimits(held=0.05), signals=Signals(tmp_path)):
            for _ in range(3):
                assert await told(place, place.request()) == 200

    attend(work)
    assert len(place.asked) == 3


def test_a_site_that_left_while_it_waited_takes_no_message_with_it(place: Place, tmp_path: Path) -> None:
    signals = Signals(tmp_path)

    async def work() -> None:
        async with place.open(GateLimits(held=PATIENCE), signals=signals):
            assert await told(place, place.request()) == 200
            before = signals.last("north", "asked")
            _, writer = await place.connect()
            writer.write(place.request())
            await until(lambda: signals.last("north", "asked") > before)
            writer.transport.abort()
            await asyncio.sleep(0.05)
            signals.tell("north", "posted")
            await until(lambda: place.gate.refusals.total > 0)
            assert len(place.asked) == 1

    attend(work)


def test_a_site_that_asks_for_another_message_without_an_answer_to_the_last_has_lost_it(
    place: Place, tmp_path: Path
) -> None:
    signals = Signals(tmp_path)
    is_lost = SiteHints(signals, {1: "north"}).is_lost

    async def work() -> None:
        async with place.open(GateLimits(held=0.0), signals=signals):
            assert await told(place, place.request()) == 200
            signals.tell("north", "posted")
            for requests, lost in (([PULL], False), ([PULL], True), (["/v1/fleet/push-messages", PULL], True)):
                for target in requests:
                    assert await told(place, place.request(target)) == 200
                assert is_lost(1) is lost
            signals.tell("north", "posted")  # which is sent again
            for target in (PULL, "/v1/fleet/pull-object", "/v1/fleet/push-messages", PULL, PULL):
                assert not is_lost(1)
                assert await told(place, place.request(target)) == 200
            assert not is_lost(1)

    attend(work)


def test_a_reply_that_is_larger_than_the_round_allows_is_refused_before_it_is_received(
    place: Place, tmp_path: Path
) -> None:
    """In one piece or in several. All tries of a round may be answered late, a request for a message allows no more."""
    signals = Signals(tmp_path)
    push, part = "/v1/fleet/push-messages", "/v1/fleet/push-object"

    async def work() -> None:
        async with place.open(GateLimits(held=0.0), signals=signals):
            assert await told(place, place.request(part, bytes(3000))) == 200  # before a limit is known
            signals.limit_replies(2000)
            signals.tell("north", "posted")
            reader, writer = await place.connect()
            head = place.request(part, bytes(50_000))[:-50_000]
            writer.write(head)  # nothing of the body is sent
            assert (await reply(reader))[0] == 413
            writer.transport.abort()
            for target in (push, part, part):
                assert await told(place, place.request(target, bytes(1900))) == 200
            for target, status in ((part, 413), ("/v1/fleet/pull-object", 200), (part, 413)):
                assert await told(place, place.request(target, bytes(900))) == status
            assert await told(place, place.request()) == 200
            assert await told(place, place.request(part, bytes(900))) == 413
            signals.tell("north", "posted")
            assert await told(place, place.request(part, bytes(2000))) == 200
            signals.limit_replies(10**6)
            assert await told(place, place.request(part, bytes(3000))) == 200

    attend(work)
    assert max(map(len, place.asked)) < 10_000


def test_what_did_not_reach_the_superlink_does_not_count_as_a_reply(place: Place, tmp_path: Path) -> None:
    signals = Signals(tmp_path)
    signals.limit_replies(2000)

    async def work() -> None:
        async with place.open(QUICK, superlink=False, signals=signals):
            for _ in range(4):  # 3,600 bytes, of which none has arrived
                assert await told(place, place.request("/v1/fleet/push-object", bytes(900))) == 503

    attend(work)


def test_a_reply_that_is_broken_off_allows_no_more_than_one_to_the_next_message(place: Place, tmp_path: Path) -> None:
    signals = Signals(tmp_path)
    signals.limit_replies(2000)
    part = "/v1/fleet/push-object"

    async def work() -> None:
        async with place.open(signals=signals):
            _, writer = await place.connect()
            writer.write(place.request(part, bytes(1900))[:-1000])
            await until(lambda: place.gate._replied.get("north", (0, 0))[1] == 1900)
            signals.tell("north", "posted")
            for count in (1500, 2000, 2000):
                assert await told(place, place.request(part, bytes(count))) == 200
            writer.transport.abort()
            await until(lambda: place.gate.refusals.total > 0)
            assert await told(place, place.request(part, bytes(600))) == 413

    attend(work)
