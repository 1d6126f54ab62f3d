"""The ServerApp of `strata host`: Flower's grid carries the messages of `hosting.py`."""

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from stratafl.deploy.flower_internals import HostGrid
from stratafl.deploy.grid_courier import GridCourier
from stratafl.deploy.hosting import Hosting
from stratafl.deploy.messages import most_message_bytes
from stratafl.deploy.processes import FLOWER_FOLDER
from stratafl.deploy.replies import PAUSES, MessageRound, SiteHints, nodes_of_sites
from stratafl.deploy.signals import Signals
from stratafl.deploy.signatures import HostSignatures, SignedCourier

app = ServerApp()


class KeyCourier(GridCourier):
    """Messages by the names that keys were registered for."""

    def __init__(self, grid: Any, signals: Signals | None = None) -> None:
        super().__init__(grid)
        self._signals, self._nodes = signals, dict[str, int]()

    def nodes(self) -> dict[str, int]:
        return self._nodes

    def connected(self) -> frozenset[str]:
        self._nodes = nodes_of_sites(self.grid)
        return super().connected()

    def round(self, nodes: Mapping[str, int], seconds: float) -> MessageRound:
        names = {node: site for site, node in nodes.items()}
        hints = SiteHints(self._signals, names) if self._signals else None
        return HostRound(self.grid, seconds, late=2 * seconds, hints=hints)


class HostRound(MessageRound):
    """A round with limits for what flwr would do for longer than its deadline."""

    def pull(self, number: str) -> list[Message]:
        return list(self.grid.pull_messages([number], max(0.0, self.left() + self.late), PAUSES[-1]))

    def limited_retries(self) -> AbstractContextManager[None]:
        retries: AbstractContextManager[None] = self.grid.bounded_retries(max(1.0, self.left()))
        return retries


@app.main()
def main(grid: Grid, context: Context) -> None:
    trust = bool(context.run_config.get("trust", False))
    Hosting(host_folder(), signed_courier(grid), trust=trust, limit_replies=limit_replies).run()


def limit_replies(upload: int) -> None:
    """Let the gate refuse more than an upload takes, and a table."""
    Signals(Path(os.environ[FLOWER_FOLDER])).limit_replies(most_message_bytes(upload))


def signed_courier(grid: Grid) -> SignedCourier:
    signals = Signals(Path(os.environ[FLOWER_FOLDER]))
    return SignedCourier(KeyCourier(HostGrid(grid), signals), HostSignatures(host_folder()))


def host_folder() -> Path:
    """From the environment: sites can fetch the settings of a run."""
    return Path(os.environ[FLOWER_FOLDER]).parent
