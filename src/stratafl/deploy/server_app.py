"""The ServerApp of every federation: Flower's grid carries the messages of `hosting.py`."""

import os
from collections.abc import Mapping
from pathlib import Path

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from stratafl.deploy.courier import Delivered, Kind, SignedMessage
from stratafl.deploy.hosting import Hosting
from stratafl.deploy.messages import TYPES, content_of, read_content
from stratafl.deploy.processes import FLOWER_FOLDER
from stratafl.deploy.replies import MessageRound, SiteHints, nodes_of_sites
from stratafl.deploy.signals import Signals
from stratafl.deploy.signatures import HostSignatures, SignedCourier
from stratafl.errors import WireError

app = ServerApp()


class GridCourier:
    """Messages by the names that keys were registered for."""

    def __init__(self, grid: Grid, signals: Signals | None = None) -> None:
        self._grid, self._signals = grid, signals

    def connected(self) -> frozenset[str]:
        return frozenset(nodes_of_sites(self._grid))

    def carry(self, kind: Kind, messages: Mapping[str, SignedMessage], seconds: float) -> Delivered[SignedMessage]:
        nodes = {site: node for site, node in nodes_of_sites(self._grid).items() if site in messages}
        sent = [Message(content_of(messages[site]), node, TYPES[kind]) for site, node in nodes.items()]
        # One that fails ends no other's wait; one that is slow may still answer when it has been asked again.
        hints = SiteHints(self._signals, {node: site for site, node in nodes.items()}) if self._signals else None
        done = MessageRound(self._grid, seconds, late=2 * seconds, hints=hints).run(sent)
        replies, failures = (
            dict[str, SignedMessage](),
            {site: "not connected" for site in messages if site not in nodes},
        )
        for site, node in nodes.items():
            if node in done.failures:
                failures[site] = done.failures[node]
                continue
            try:
                replies[site] = read_content(done.replies[node].content)
            except WireError as error:
                failures[site] = str(error)
        return Delivered(replies, failures)


@app.main()
def main(grid: Grid, context: Context) -> None:
    trust = bool(context.run_config.get("trust", False))
    Hosting(host_folder(), signed_courier(grid), trust=trust).run()


def signed_courier(grid: Grid) -> SignedCourier:
    signals = Signals(Path(os.environ[FLOWER_FOLDER]))
    return SignedCourier(GridCourier(grid, signals), HostSignatures(host_folder()))


def host_folder() -> Path:
    """From the environment: sites can fetch the settings of a run."""
    return Path(os.environ[FLOWER_FOLDER]).parent
