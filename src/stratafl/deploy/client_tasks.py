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
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.supercore.constant import TaskType
from flwr.supercore.heartbeat import HeartbeatSender, make_task_heartbeat_fn_http
from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError
from flwr.supercore.run import RunNotRunningException
from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

from stratafl.deploy.processes import log_to_stderr
from stratafl.deploy.tasks import RuntimeApi, task_tokens
from stratafl.errors import first_line, told_to_others

log = logging.getLogger("stratafl.deploy")
READY = "ready for messages"  # what site_processes.py waits for
_OVER = (httpx.HTTPError, RuntimeError, ObjectPullError, ObjectPushError, RunNotRunningException, KeyboardInterrupt)


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
    for token in task_tokens(runtime, TaskType.CLIENT_APP, options.secret):
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
    heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
    heartbeat.start()
    try:
        message, context, _, _ = pull_task_input(client)
        reply, problem = _reply(app, message, context)
        push_message(client, reply, context)
        push_task_output(client, context, SubStatus.FAILED if problem else SubStatus.COMPLETED, problem)
    # The SuperNode is gone, or the run is over, which flwr says with a BaseException or by interrupting the process;
    # or the rest of the message will never come, or the answer is no longer wanted (supernode.py).
    except _OVER as error:
        log.warning("a message was not answered: %s", first_line(error, typed=True))
    finally:
        heartbeat.stop()
        client.close()


def _reply(app: ClientApp, message: Message, context: Context) -> tuple[Message, str]:
    """The reply and what went wrong, which is empty if nothing did."""
    try:
        return app(message=message, context=context), ""
    except Exception as error:
        log.exception("the app failed on a message '%s'", message.metadata.message_type)
        problem = told_to_others(error)
        failure = Error(code=ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason=problem)
        return Message(failure, reply_to=message), problem


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # a reply is sent whole or not at all: the SuperNode decides
    main()
