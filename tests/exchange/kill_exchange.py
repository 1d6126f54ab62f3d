"""A federation whose processes are sent SIGKILL, again and again, before they may finish.

python kill_exchange.py DIR site      one process for each message to a site, killed at its first file operation, then
                                      at its second …, and in training, until it answers
python kill_exchange.py DIR all       one process for the server and its sites, killed likewise until it finishes

Prints {"kills": how many, "same": whether it came to what a federation comes to that nobody kills, "rounds": how many}.
Processes are forked, and fsync is the real one.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from crashes import OPERATIONS
from small_federation import SITES, Federation

PATIENCE = 900  # seconds until a child that nobody killed ends: one that hangs


def in_a_process(work: Callable[[], bytes], at: int | None, federation: Federation) -> bytes | None:
    """What it gives, computed in a process that is killed at its so many-th file operation; None if it was.

    With `at` None it is killed in training, by this process.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 70
        signal.alarm(PATIENCE)
        try:
            os.close(reading)
            if at is None:
                _stop_in_training(federation, writing)
            else:
                _killed_at(at)
            with os.fdopen(writing, "wb") as file:
                file.write(b"=" + work())
            code = 0
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        first = file.read(1)
        if first == b"!":
            os.kill(child, signal.SIGKILL)
        rest = file.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    assert (os.waitstatus_to_exitcode(status), first) == (0, b"="), "a child failed"
    return rest


def _killed_at(number: int) -> None:
    """This process ends at its so many-th file operation, and no code of it runs after that."""
    count = -1

    def counted(operation: Callable[..., object]) -> Callable[..., object]:
        def call(*given: object, **named: object) -> object:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*given, **named)

        return call

    for name in OPERATIONS:
        setattr(os, name, counted(getattr(os, name)))


def _stop_in_training(federation: Federation, writing: int) -> None:
    class Stopped:
        def __init__(self, work: object) -> None:
            self.enrol = work.enrol  # type: ignore[attr-defined]

        def work(self, *given: object) -> None:
            os.write(writing, b"!")
            time.sleep(PATIENCE)

    federation.site_works = {site: Stopped(work) for site, work in federation.site_works.items()}


def sites_killed(federation: Federation) -> int:
    kills = 0
    with federation.server() as server:
        while server.round < federation.rounds:
            for site in federation.cohort(server.round):
                reply, at = None, None
                while reply is None:
                    data = server.ask(site)
                    reply = in_a_process(lambda site=site, data=data: federation.answer(site, data), at, federation)
                    kills, at = kills + (reply is None), 0 if at is None else at + 1
                assert server.take(site, reply).kind == "accepted"
            server.absorb()
        for site in SITES:
            reply, at = None, 0
            while reply is None:
                data = server.commit(site)
                reply = in_a_process(lambda site=site, data=data: federation.answer(site, data), at, federation)
                kills, at = kills + (reply is None), at + 1
            assert server.take(site, reply).kind == "committed"
    return kills


def all_killed(federation: Federation) -> int:
    def work() -> bytes:
        with federation.server() as server:
            federation.all_rounds(server, federation.answer)
        return b"done"

    kills = 0
    while in_a_process(work, kills, federation) is None:
        kills += 1
    return kills


def main(folder: Path, who: str) -> None:
    torch.set_num_threads(1)
    federation = Federation(folder / "killed")
    kills = {"site": sites_killed, "all": all_killed}[who](federation)
    same = Federation(folder / "killed").outcome() == Federation(folder / "plain").run()
    print(json.dumps({"kills": kills, "same": same, "rounds": len(federation.absorbed())}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
