"""Flower's SuperLink, with a control API that needs a token, sites that speak only for themselves, and patience.

flwr serves the control API to every client of its port, and a run is code: on a shared machine, loopback is no
protection. And it takes a run for dead if no heartbeat reached it for a minute, even if it was down itself; our
`server_tasks.py` says when a ServerApp dies, so half an hour does no harm. A request that finds the database locked for
5 seconds fails, which large messages on a slow disk can take. What the host asks twice a second is not logged, which
would be 40 MB a day. `python -m stratafl.deploy.superlink TOKENFILE …` takes the options of `flower-superlink`.

flwr checks whose key signed a request, and not whose messages are in it: a site that knows another one's node id could
ask it in the name of the host, and answer in its place.
"""

import logging
import sys
from collections.abc import Sequence
from hmac import compare_digest
from importlib import import_module
from pathlib import Path
from typing import Any

from fastapi import HTTPException
from flwr.common.constant import ACCESS_TOKEN_KEY, SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.auth.typing import AccountInfo
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin

from stratafl.deploy.certificates import read_key

PATIENCE = 60  # intervals of 30 s without a heartbeat, after which a ServerApp counts as dead; in flwr 2
LOCKED = 30_000  # milliseconds that a request waits for the database
ASKED_OFTEN = ("ControlServicer.ListNodes", "ControlServicer.ListRuns", "/v1/control/list-")


class TokenAuthn(NoOpControlAuthnPlugin):
    """One account, for clients that know the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token.encode()

    def validate_tokens_in_metadata(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[bool, AccountInfo | None]:
        token = dict(metadata).get(ACCESS_TOKEN_KEY, "")
        token = token.encode(errors="replace") if isinstance(token, str) else token
        return super().validate_tokens_in_metadata(metadata) if compare_digest(token, self._token) else (False, None)


def refuse_messages_for_others() -> None:
    """Let sites push one message at a time, which is a reply of their own to the host."""
    handlers: Any = import_module("flwr.superlink.servicer.fleet.fleet_handlers")
    push = handlers.push_messages

    def pushed(request: PushMessagesRequest, state: Any) -> Any:
        about = [message.metadata for message in request.messages_list]
        allowed = [(request.node.node_id, SUPERLINK_NODE_ID)]
        if [(each.src_node_id, each.dst_node_id) for each in about] != allowed or not about[0].reply_to_message_id:
            raise HTTPException(403, "a site may push one message: its own reply to the host")
        return push(request=request, state=state)

    handlers.push_messages = pushed


def worth_a_line(line: logging.LogRecord) -> bool:
    """Whether something is not what the host asks all the time, or was refused."""
    message = line.getMessage()
    return not any(each in message for each in ASKED_OFTEN) or (
        line.name == "uvicorn.access" and not message.endswith("200")
    )


def be_patient() -> None:
    """With ServerApps, and with the database."""
    state: Any = import_module("flwr.supercore.corestate.sql_corestate")
    state.HEARTBEAT_PATIENCE = PATIENCE
    database: Any = import_module("flwr.supercore.sql_mixin")
    database.SQLITE_PRAGMAS = (*database.SQLITE_PRAGMAS, ("busy_timeout", str(LOCKED)))  # the last one counts


def main() -> None:
    for logger in ("flwr", "uvicorn.access"):
        logging.getLogger(logger).addFilter(worth_a_line)
    token = read_key(Path(sys.argv.pop(1))).decode()
    command: Any = import_module("flwr.superlink.cli.flower_superlink")  # its package has a function of that name
    command.load_control_authn_plugin = lambda: TokenAuthn(token)  # host.py checks that it is in force
    refuse_messages_for_others()
    be_patient()
    command.flower_superlink()


if __name__ == "__main__":
    main()
