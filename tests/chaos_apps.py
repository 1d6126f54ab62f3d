"""The apps of a federation, with places at which a test lets their processes wait or die.

`python chaos_apps.py host …` is `strata host …` with them, and `join` likewise. A place is a name such as `a.kept.2`:
site, or `server`, what it has just done, and in which round, from 0. If the folder in the environment variable
`STRATAFL_TEST_PLACES` holds a file of that name, its text is an order:

    die     the file is removed, and the process sends itself SIGKILL
    hold    the pid is written to `NAME.reached`, and the process waits until the file is removed
    full    (`a.disk` alone) the disk of the site is full for as long as the file is there

Without that variable nothing happens.
"""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import stratafl.cli.host_command
from stratafl.deploy import client_app, member, replies, site_processes
from stratafl.deploy.hosting import Hosting
from stratafl.deploy.secure.secure_round import SecureRounds
from stratafl.deploy.server_app import host_folder, limit_replies, signed_courier
from stratafl.execute.exchange import ServerExchange, SiteStore
from stratafl.execute.exchange.protocol import decode_request
from stratafl.execute.exchange.server_store import ServerStore

PLACES = "STRATAFL_TEST_PLACES"
LATE = "late"  # a file in that folder: so many seconds the host's clock is ahead
LOOKS = "looks"  # a file in that folder: seconds between two looks for a reply without a hint
_now = {"site": "", "round": -1}  # what this process, if it is a site, is at


def at(place: str) -> None:
    order = _order(place)
    if order == "die":
        _path(place).unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    elif order == "hold":
        _path(f"{place}.reached").write_text(str(os.getpid()))
        while _path(place).exists():
            time.sleep(0.02)


def _path(place: str) -> Path:
    return Path(os.environ[PLACES]) / place


def _order(place: str) -> str:
    return _path(place).read_text() if PLACES in os.environ and _path(place).exists() else ""


def around(kind: type, name: str, call: Callable[..., Any]) -> None:
    """Let `call(original, self, …)` take the place of a method."""
    original = getattr(kind, name)
    setattr(kind, name, lambda self, *given, **named: call(original, self, *given, **named))


# A site


def _round(original: Callable[..., Any], self: member.SiteMember, data: bytes) -> Any:
    _now.update(site=self.name, round=decode_request(data).address.round)
    _at_site("asked")
    answer = original(self, data)
    _at_site("answered")
    return answer


def _work(original: Callable[..., Any], *given: Any) -> Any:
    _at_site("training")
    return original(*given)


def _keep(original: Callable[..., Any], *given: Any) -> None:
    _at_site("trained")
    with patch.object(os, "fsync", _no_space) if _order(f"{_now['site']}.disk") == "full" else nullcontext():
        original(*given)
    _at_site("kept")


def _no_space(handle: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _promote(original: Callable[..., Any], *given: Any) -> None:
    _at_site("promoting")
    original(*given)
    _at_site("promoted")


def _deliver(original: Callable[..., Any], *given: Any) -> None:
    original(*given)
    _at_site("delivered")


def _sum_up(original: Callable[..., Any], self: member.SiteMember, table: Any) -> Any:
    _now.update(site=self.name, round=table["session"][1])
    answer = original(self, table)
    _at_site(table["step"])
    return answer


def _at_site(done: str) -> None:
    at(f"{_now['site']}.{done}.{_now['round']}")


around(member.SiteMember, "round", _round)
around(member.SiteMember, "sum_up", _sum_up)
around(member.Working, "work", _work)
around(SiteStore, "keep", _keep)
around(SiteStore, "promote", _promote)
around(SiteStore, "deliver", _deliver)
client = client_app.app


# The server


def _ask(original: Callable[..., Any], self: ServerExchange, *given: Any, **named: Any) -> bytes:
    data: bytes = original(self, *given, **named)
    at(f"server.asked.{self.round}")
    return data


def _take(original: Callable[..., Any], self: ServerExchange, *given: Any) -> Any:
    answer = original(self, *given)
    at(f"server.{answer.kind}.{self.round}")
    return answer


def _save(original: Callable[..., Any], self: ServerStore, saved: Any) -> None:
    at(f"server.absorbed.{saved.round - 1}")
    original(self, saved)
    at(f"server.saved.{saved.round - 1}")


def _store(original: Callable[..., Any], self: SecureRounds, masked: Any, uploads: Any) -> None:
    original(self, masked, uploads)
    at(f"server.masked.{masked.session.round}")


around(SecureRounds, "_store", _store)
around(ServerExchange, "ask", _ask)
around(ServerExchange, "commit", _ask)
around(ServerExchange, "take", _take)
around(ServerStore, "save", _save)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    replies.LOOK_ANYWAY = float(_order(LOOKS) or replies.LOOK_ANYWAY)
    Hosting(host_folder(), signed_courier(grid), clock=_clock, limit_replies=limit_replies).run()


def _clock() -> float:
    return time.monotonic() + float(_order(LATE) or 0)


if __name__ == "__main__":
    stratafl.cli.host_command.SERVER_APP = "chaos_apps:server"
    stratafl.cli.host_command.CLIENT_APP = site_processes.CLIENT_APP = "chaos_apps:client"
    sys.exit(stratafl.cli.command())
