"""A site's side of Flower: receives messages from the host and answers them with one ClientApp, which the site chose.

flower-supernode fetches the code of a run from the server and starts a Python process for each message; here no code is
fetched, the app is the one named on the command line, and it stays in memory. Nothing listens: this process alone asks
the host's gate, which lets a request for messages wait until there is one. What fails for good ends this process, and
`site_processes.py` reads why and starts it again.
"""

import argparse
import logging
import os
import signal
import time
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from stratafl.deploy.certificates import read_key
from stratafl.deploy.flower_internals import APP_FAILED, FleetNode, message_is_lost, reason_in
from stratafl.deploy.processes import (
    BAD_CERTIFICATE,
    BAD_KEY,
    CONNECTED,
    FOUND,
    LOST,
    NOT_TAKEN,
    RETRY,
    SHUT_OUT,
    log_to_stderr,
)
from stratafl.errors import StrataError, first_line, told_to_others

log = logging.getLogger("stratafl.deploy")
PAUSES = (0.5, 1.0, 2.0, 3.0)  # seconds after an answer until the next requests, where no gate lets them wait
_WAITED = 1.0  # seconds that a request took if a gate let it wait
BEAT = 20.0  # seconds between two heartbeats; Flower expects one every 30
_TOO_LARGE = "it is larger than the host expects in this round: host and site must run the same version"
_AWAY = (502, 503, 504)  # statuses that are worth another try


class Retries:
    """Repeats requests of a client while its server is away; flwr's own would pause for up to 20 s."""

    def __init__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        self._sleep = sleep

    def invoke(self, target: Callable[..., Any], *arguments: Any) -> Any:
        pause, lost = 0.5, False
        while True:
            try:
                answer = target(*arguments)
            except (httpx.HTTPStatusError, httpx.TransportError) as error:
                if not _may_pass(error):
                    raise
                if not lost:
                    log.warning("%s: %s", LOST, first_line(error, typed=True))
                lost = True
            else:
                if lost:
                    log.info(FOUND)
                return answer
            self._sleep(pause)
            pause = min(2 * pause, RETRY)


def _may_pass(error: httpx.HTTPError) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in _AWAY
    return BAD_CERTIFICATE not in str(error)


class SiteNode:
    """Answers the messages of one site, one after the other."""

    def __init__(self, node: FleetNode, app: ClientApp, config: dict[str, Any]) -> None:
        self._node, self._app, self._config = node, app, config
        self._sending = self._ending = False
        self._pauses = list(PAUSES)

    def end(self, *_: object) -> None:
        """At once, but a reply that is on its way is sent whole; the site's owner signs off."""
        self._ending = True
        if not self._sending:
            os._exit(0)

    def work(self) -> None:
        """Wait for a message and answer it."""
        begin = time.monotonic()
        try:
            message = self._node.message()
            if message is None:
                if time.monotonic() - begin < _WAITED:
                    time.sleep(self._pauses.pop(0) if len(self._pauses) > 1 else self._pauses[0])
                return
            reply = self._answer(message)
            self._sending = True
            self._node.send(reply)
            self._pauses = list(PAUSES)
        except httpx.HTTPStatusError as error:
            if (status := error.response.status_code) not in (403, 413):
                raise
            why = _TOO_LARGE if status == 413 else reason_in(error.response.text) or first_line(error)
            log.warning("%s: %s", NOT_TAKEN, why)
        except message_is_lost() as error:  # its sender has ended, or it will not be complete
            log.warning("a message was not answered: %s", first_line(error, typed=True))
        finally:
            self._sending = False
            if self._ending:
                os._exit(0)

    def _answer(self, message: Message) -> Message:
        """The reply of the app; that it failed, without a reason that could quote samples."""
        context = Context(message.metadata.run_id, self._node.number, self._config, RecordDict(), {})
        try:
            return self._app(message=message, context=context)
        except Exception as error:
            log.exception("the app failed on a message '%s'", message.metadata.message_type)
            return Message(Error(APP_FAILED, told_to_others(error)), reply_to=message)


def load_app(name: str) -> ClientApp:
    module, _, attribute = name.partition(":")
    app = getattr(import_module(module), attribute)
    if not isinstance(app, ClientApp):
        raise TypeError(f"'{name}' is not a ClientApp")
    return app


def _beat(node: FleetNode) -> None:
    """Heartbeats, also while the app trains."""
    pause = BEAT
    while True:
        time.sleep(pause)
        try:
            is_known, pause = node.beat(), BEAT
        except httpx.HTTPError:  # the main thread says so, if it lasts
            pause = RETRY  # a site that is not heard of for a minute counts as gone: an outage may have cost two beats
            continue
        if not is_known:
            _end("the server no longer counts this site as connected")


def _end(why: str) -> None:
    log.error(why)
    os._exit(1)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("server", "app"):
        parser.add_argument(f"--{name}", required=True, help="HOST:PORT, package.module:app")
    for name in ("authority", "key", "config"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    log_to_stderr()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    app = load_app(options.app)
    try:
        key: Any = load_ssh_private_key(read_key(options.key), None)
    except (ValueError, StrataError) as error:
        _end(f"{BAD_KEY}: {first_line(error)}")
    try:
        node = FleetNode(options.server, read_key(options.authority), key, Retries())
        log.info("%s %d", CONNECTED, node.number)
        site = SiteNode(node, app, tomllib.loads(options.config.read_text()))
        signal.signal(signal.SIGTERM, site.end)
        Thread(target=_beat, args=(node,), daemon=True).start()
        while True:
            site.work()
    except httpx.HTTPStatusError as error:
        status = error.response.status_code
        _end(SHUT_OUT if status == 401 else f"the server refuses: {reason_in(error.response.text) or status}")
    except httpx.TransportError as error:
        _end(first_line(error, typed=True))


if __name__ == "__main__":
    main()
