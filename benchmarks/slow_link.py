"""A federation of real processes over a slow line: does it finish, and how long does a round take?

    python benchmarks/slow_link.py --sites 1 --megabytes 50 --kilobytes 200 --milliseconds 300

Each site reaches the host through a proxy that passes so many kilobytes a second each way, and each byte half of the
round trip later. The proxy takes the place of `tc … netem`, which needs a module of the kernel.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread

import deployed
from stratafl.deploy.processes import free_port

PIECE = 16 * 1024  # bytes


class Line:
    """One direction of a line, which all of its connections share."""

    def __init__(self, rate: float, delay: float) -> None:
        self._rate, self._delay, self._free = rate, delay, 0.0

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass on what is read: after the bytes before it, and `delay` seconds late."""
        late = asyncio.Queue[tuple[float, bytes]](64)
        sender = asyncio.create_task(self._send(late, writer))
        with suppress(OSError):
            while data := await reader.read(PIECE):
                self._free = max(self._free, time.monotonic()) + len(data) / self._rate
                await asyncio.sleep(self._free - time.monotonic())
                await late.put((time.monotonic() + self._delay, data))
        await late.put((0.0, b""))
        await sender

    async def _send(self, late: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while (piece := await late.get())[1]:
                await asyncio.sleep(max(0.0, piece[0] - time.monotonic()))
                writer.write(piece[1])
                await writer.drain()
        writer.close()


def slow_line(target: int, rate: float, round_trip: float) -> int:
    """The port of a proxy to another port of this machine."""
    port = free_port()
    up, down = Line(rate, round_trip / 2), Line(rate, round_trip / 2)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far, to_far = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(up.carry(reader, to_far), down.carry(far, writer))

    async def serve() -> None:
        async with await asyncio.start_server(connected, "127.0.0.1", port) as server:
            await server.serve_forever()

    Thread(target=lambda: asyncio.run(serve()), daemon=True).start()
    return port


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("sites", 1), ("rounds", 1), ("megabytes", 50.0), ("kilobytes", 200.0)):
        parser.add_argument(f"--{name}", type=type(default), default=default)
    parser.add_argument("--milliseconds", type=float, default=300.0)
    options = parser.parse_args(arguments)
    rate, trip = options.kilobytes * 1e3, options.milliseconds / 1e3
    with tempfile.TemporaryDirectory(prefix="slow-") as folder:
        line = partial(slow_line, rate=rate, round_trip=trip)
        figures = deployed.measure(Path(folder), options.sites, options.megabytes, options.rounds, line)
    print(f"{figures['state']} after {figures['seconds']:.0f} s; absorbed at {figures['absorbed_at']}")
    print(f"{figures['socket'] / 1e6:.1f} MB at the socket, {figures['requests']} requests")
    return 0


if __name__ == "__main__":
    sys.exit(main())
