"""One side of a request that passes the gate: HTTP/1.1 over a connection, by h11, with a time for everything."""

import asyncio
import time

import h11

MOST_HEAD = 16 * 1024  # bytes of request line and headers
PIECE = 64 * 1024  # bytes that are read at a time; a connection buffers a few of them
REUSED = 3.0  # seconds for which a connection to the SuperLink is kept


class Side:
    """A connection, what h11 has understood of it, and how many bytes went through."""

    def __init__(
        self, role: type[h11.CLIENT] | type[h11.SERVER], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.http = h11.Connection(role, max_incomplete_event_size=MOST_HEAD)
        self.reader, self.writer, self.received, self.sent = reader, writer, 0, 0
        self.link: Side | None = None  # of a site: its connection to the SuperLink
        self.used = time.monotonic()

    def is_fresh(self) -> bool:
        """Whether it can carry another request; uvicorn hangs up after 5 seconds."""
        done = self.http.our_state is h11.DONE and self.http.their_state is h11.DONE
        return done and not self.reader.at_eof() and time.monotonic() - self.used < REUSED

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
