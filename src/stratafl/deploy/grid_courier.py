"""For a ServerApp: Flower's grid carries the signed messages of a host to the nodes of its sites.

`server_app.py` knows which node is which site from the SuperLink, `plain_server.py` from the sites (`site_nodes.py`).
"""

from abc import abstractmethod
from collections.abc import Mapping

from flwr.app import Message
from flwr.serverapp import Grid

from stratafl.deploy.courier import Delivered, Kind, SignedMessage
from stratafl.deploy.messages import TYPES, content_of, read_content
from stratafl.deploy.replies import MessageRound
from stratafl.errors import WireError


class GridCourier:
    """A courier by the nodes of a grid."""

    silence = ""  # what to do about a node that is connected and does not answer

    def __init__(self, grid: Grid) -> None:
        self.grid = grid

    @abstractmethod
    def nodes(self) -> Mapping[str, int]:
        """The nodes of the sites that were connected when last looked at."""

    def round(self, nodes: Mapping[str, int], seconds: float) -> MessageRound:
        """A round of messages to these nodes. One that is slow may still answer when it has been asked again."""
        return MessageRound(self.grid, seconds, late=2 * seconds)

    def failed(self, site: str) -> None:
        """The node of a site has answered with a failure, or not as a site does; one that is silent may be slow."""

    def connected(self) -> frozenset[str]:
        return frozenset(self.nodes())

    def carry(self, kind: Kind, messages: Mapping[str, SignedMessage], seconds: float) -> Delivered[SignedMessage]:
        nodes = {site: node for site, node in self.nodes().items() if site in messages}
        sent = [Message(content_of(messages[site]), node, TYPES[kind]) for site, node in nodes.items()]
        done = self.round(nodes, seconds).run(sent)
        replies, failures = (
            dict[str, SignedMessage](),
            {site: "not connected" for site in messages if site not in nodes},
        )
        for site, node in nodes.items():
            if node in done.failures:
                failures[site] = done.failures[node] + (self.silence if node in done.silent else "")
            else:
                try:
                    replies[site] = read_content(done.replies[node].content)
                except WireError as error:
                    failures[site] = str(error)
            if site in failures and node not in done.silent:
                self.failed(site)
        silent = frozenset(site for site, node in nodes.items() if node in done.silent)
        return Delivered(replies, failures, silent=silent)
