"""Flower's SuperNode, which ends when its work ends and drops messages that will never be complete.

If its main thread fails, for example at a 500 of the SuperLink, `flower-supernode` lives on in the thread of its HTTP
server, without a connection. `python -m stratafl.deploy.supernode …` takes the same options and then ends, so that
`site_processes.py` sees it.

If a run ends while one of its messages is being received, flwr forgets the message, but not its task. A ClientApp that
takes the task would wait for more than an hour. If the message was whole but not yet confirmed, its answer would be
sent in place of the next one, and from then on every answer would be one message late. Here the message is removed,
too, and an answer to another message than the last one is dropped.

flwr polls every three seconds. After an answer the next message may come soon, so here the first polls come sooner;
more of them would keep a SuperLink with many sites busy.
"""

import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from stratafl.deploy.flower_internals import run_supernode
from stratafl.deploy.processes import RETRY

FIRST_POLL_SECONDS = (0.5, 1.0, 2.0)  # seconds before each of the first polls after an answer


class OneMessage:
    """flwr's `_pull_and_store_message` and `_push_messages`, which take turns, so that they mean the same message."""

    def __init__(self, pull: Callable[..., int | None], push: Callable[..., None]) -> None:
        self._pull, self._push, self._message, self._pauses = pull, push, "", list[float]()

    def pull(self, **arguments: Any) -> int | None:
        """Receive a message; None if there is none, after an answer also when asked again soon."""
        run = self._pull_once(**arguments)
        while run is None and not self._message and self._pauses:
            time.sleep(self._pauses.pop(0))
            run = self._pull_once(**arguments)
        return run

    def _pull_once(self, *, state: Any, object_store: Any, receive: Callable[[], Any], **arguments: Any) -> int | None:
        """Nothing is left of a message that was not received whole."""
        self._message = ""

        def noted() -> Any:
            message = receive()
            self._message = "" if message is None else message[0].metadata.message_id
            return message

        run = self._pull(state=state, object_store=object_store, receive=noted, **arguments)
        if run is None and self._message:
            state.delete_messages(message_ids=[self._message])
            object_store.delete(self._message)
        return run

    def push(self, *, state: Any, object_store: Any, **arguments: Any) -> None:
        """Wait for the answer to that message, and send it."""
        self._push(state=_Answers(state, object_store, self._message), object_store=object_store, **arguments)
        self._pauses = list(FIRST_POLL_SECONDS)


class _Answers:
    """The state of a SuperNode in which there are answers to one message alone."""

    def __init__(self, state: Any, object_store: Any, message: str) -> None:
        self._state, self._object_store, self._message = state, object_store, message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def get_messages_legacy(self, **asked: Any) -> list[Any]:
        replies = self._state.get_messages_legacy(**asked)
        for reply in replies:
            if reply.metadata.reply_to_message_id != self._message:
                self._state.delete_messages(message_ids=[reply.metadata.message_id])
                self._object_store.delete(reply.metadata.message_id)
        return [reply for reply in replies if reply.metadata.reply_to_message_id == self._message]


def _in_turns(pull: Callable[..., int | None], push: Callable[..., None]) -> tuple[Any, Any]:
    turns = OneMessage(pull, push)
    return turns.pull, turns.push


def main() -> None:
    code = 1
    try:
        run_supernode(_in_turns, RETRY)
        print("the SuperNode stopped working", file=sys.stderr)
    except SystemExit as ended:  # flwr has run its exit handlers
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
