"""Answers the messages that reach a SuperNode with one ClientApp, which the site itself has chosen.

By itself a SuperNode runs whatever code the server sends along with a run (its FAB), and starts a Python for each
message. Here the code that was sent is never unpacked: the app is the one named on this command line, it is imported
once, and it stays in memory from message to message.
"""

import argparse
import logging
import os
import signal
from importlib import import_module
from pathlib import Path

import httpx
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from stratafl.deploy.flower_internals import (
    answered_task,
    app_error,
    message_is_incomplete,
    push_was_refused,
    run_is_over,
)
from stratafl.deploy.processes import log_to_stderr
from stratafl.deploy.tasks import RuntimeApi, task_tokens
from stratafl.errors import first_line, told_to_others

log = logging.getLogger("stratafl.deploy")
READY = "ready for messages"  # what site_processes.py waits for
_OVER = (httpx.HTTPError, RuntimeError, KeyboardInterrupt, run_is_over(), push_was_refused(), message_is_incomplete())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--runtime", required=True)
    parser.add_argument("--secret", type=Path, required=True)
    parser.add_argument("--app", required=True, help="package.module:app")
    options = parser.parse_args()
    log_to_stderr()
    app = load_app(options.app)
    log.info(READY)
    runtime = RuntimeApi(options.runtime)
    for token in task_tokens(runtime, "CLIENT_APP", options.secret):
        answer_message(runtime, token, app)


def load_app(name: str) -> ClientApp:
    module, _, attribute = name.partition(":")
    app = getattr(import_module(module), attribute)
    if not isinstance(app, ClientApp):
        raise TypeError(f"'{name}' is not a ClientApp")
    return app


def answer_message(runtime: RuntimeApi, token: str, app: ClientApp) -> None:
    """One message: fetch it, let the app answer, send the reply; an exception of the app is a reply too."""
    client = runtime.client(token=token)
    try:
        with answered_task(client) as (message, context, answer):
            answer(*_reply(app, message, context))
    # The SuperNode is gone, or the run is over, which flwr says with a BaseException or by interrupting the process;
    # or the rest of the message will never come, or the answer is no longer wanted (supernode.py).
    except _OVER as error:
        log.warning("a message was not answered: %s", first_line(error, typed=True))
    finally:
        client.close()


def _reply(app: ClientApp, message: Message, context: Context) -> tuple[Message, str]:
    """The reply and what went wrong, which is empty if nothing did."""
    try:
        return app(message=message, context=context), ""
    except Exception as error:
        log.exception("the app failed on a message '%s'", message.metadata.message_type)
        problem = told_to_others(error)
        return Message(app_error(problem), reply_to=message), problem


def _exit_at_once(*_: object) -> None:
    """A reply is sent whole or not at all: the SuperNode decides."""
    os._exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _exit_at_once)
    main()
