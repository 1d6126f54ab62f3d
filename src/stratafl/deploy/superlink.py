"""Flower's SuperLink, with a control API that asks for a token, and with patience.

flwr serves the control API to whoever reaches its port, and a run is code: on a machine that others use too, loopback
is no protection. And it takes a run for dead if no heartbeat reached it for a minute, even if it was down itself; our
`server_tasks.py` says when a ServerApp dies, so half an hour does no harm. `python -m stratafl.deploy.superlink
TOKENFILE …` takes the options of `flower-superlink`.
"""

import sys
from collections.abc import Sequence
from hmac import compare_digest
from importlib import import_module
from pathlib import Path
from typing import Any

from flwr.common.constant import ACCESS_TOKEN_KEY
from flwr.supercore.auth.typing import AccountInfo
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin

from stratafl.deploy.certificates import MOST_BYTES
from stratafl.files import read_plain

PATIENCE = 60  # intervals of 30 s without a heartbeat, after which a ServerApp counts as dead; in flwr 2


class TokenAuthn(NoOpControlAuthnPlugin):
    """One account, for whoever knows the token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._token = token.encode()

    def validate_tokens_in_metadata(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[bool, AccountInfo | None]:
        given = dict(metadata).get(ACCESS_TOKEN_KEY, "")
        given = given.encode(errors="replace") if isinstance(given, str) else given
        return super().validate_tokens_in_metadata(metadata) if compare_digest(given, self._token) else (False, None)


def main() -> None:
    token = read_plain(Path(sys.argv.pop(1)), MOST_BYTES).decode()
    command: Any = import_module("flwr.superlink.cli.flower_superlink")  # its package has a function of that name
    command.load_control_authn_plugin = lambda: TokenAuthn(token)  # host.py checks that it is in force
    state: Any = import_module("flwr.supercore.corestate.sql_corestate")
    state.HEARTBEAT_PATIENCE = PATIENCE
    command.flower_superlink()


if __name__ == "__main__":
    main()
