"""Which node of a Flower federation is which site: every node is asked, and its answer must be signed.

Names of nodes may be empty, and whoever runs a SuperLink gives them. So the host asks each node who it is
(`signatures.py`) and believes what the site's key has signed. An answer counts until the node is gone or fails; every
reply of a round is signed, too, and shows again whose it is. A node that claims to be another site is refused, and its
claim is reported with that site's name. It takes nothing from the site, whose own node is asked as before.
"""

import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

from stratafl.deploy.courier import SignedMessage
from stratafl.deploy.messages import TYPES, content_of, read_content
from stratafl.deploy.replies import MessageRound
from stratafl.deploy.signatures import HostSignatures
from stratafl.errors import WireError, shown

log = logging.getLogger("stratafl.deploy")
WAIT_SECONDS = 60.0  # seconds for which new nodes are waited for; who is slower is known when its answer arrives
QUESTION_SECONDS = 600.0  # seconds after which a question is given up: a site that trains answers afterwards
AGAIN_SECONDS = 60.0  # seconds after which a node is asked again that failed, or whose site another one is
MAX_AGAIN_SECONDS = 600.0  # that pause doubles: a question may cost a stranger's machine a process
_PAUSE = 0.2


@dataclass(frozen=True)
class _Question:
    request: SignedMessage
    asked: MessageRound


class SiteNodes:
    """The nodes of a grid that have shown which site they are."""

    def __init__(
        self,
        grid: Grid,
        signatures: HostSignatures,
        sites: Collection[str],
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._grid, self._signatures, self._sites, self._clock, self._pause = grid, signatures, sites, clock, pause
        self._names, self._questions = dict[int, str](), dict[int, _Question]()  # by node
        self._next, self._pauses, self._claims = dict[int, float](), dict[int, float](), dict[str, str]()

    def known(self) -> dict[str, int]:
        """The nodes of sites, as of the last look."""
        return {site: node for node, site in self._names.items()}

    def look(self) -> None:
        """Ask nodes that are new, others again while a site is missing, and hear what nodes have answered.

        Only new nodes are waited for.
        """
        present = set(self._grid.get_node_ids())
        for node in {*self._names, *self._questions, *self._next} - present:
            self._forget(node)
            self._pauses.pop(node, None)
        begin = self._clock()
        strangers = sorted(present - self._names.keys() - self._questions.keys())
        new = [node for node in strangers if node not in self._next]
        later = [node for node in strangers if node in self._next and self._next[node] <= begin]
        for node in (*new, *(later if self._misses_sites() else ())):
            self._ask(node)
        self._hear()
        while self._questions.keys() & new and self._misses_sites() and self._clock() - begin < WAIT_SECONDS:
            self._pause(_PAUSE)
            self._hear()

    def doubt(self, site: str) -> None:
        """The node of a site has failed: it is asked again who it is."""
        for node in self._nodes_of(site):
            del self._names[node], self._next[node]

    def _nodes_of(self, site: str) -> list[int]:
        return [node for node, name in self._names.items() if name == site]

    def claims(self) -> dict[str, str]:
        """Sites that a node claims to be without showing it, and what was wrong, since this was asked last."""
        claims, self._claims = self._claims, {}
        return claims

    def _misses_sites(self) -> bool:
        return len(set(self._names.values())) < len(self._sites)

    def _forget(self, node: int) -> None:
        self._names.pop(node, None)
        self._next.pop(node, None)
        self._questions.pop(node, None)

    def _ask(self, node: int) -> None:
        request = self._signatures.question(node)
        message = Message(content_of(request), node, TYPES["identify"])
        self._questions[node] = _Question(request, MessageRound(self._grid, QUESTION_SECONDS).begin([message]))

    def _hear(self) -> None:
        for node, question in list(self._questions.items()):
            asked = question.asked
            asked.look()
            if asked.waiting and asked.left() > 0:
                continue
            self._forget(node)
            pause = self._pauses.get(node, AGAIN_SECONDS)
            self._next[node], self._pauses[node] = self._clock() + pause, min(2 * pause, MAX_AGAIN_SECONDS)
            if node in asked.replies:
                self._answered(node, question.request, asked.replies[node])
            elif node in asked.failures:
                log.warning("node %d did not say which site it is: %s", node, asked.failures[node])

    def _answered(self, node: int, request: SignedMessage, reply: Message) -> None:
        try:
            site, wrong = self._signatures.identified(request, read_content(reply.content), self._sites)
        except WireError as error:
            site, wrong = "", str(error)
        if wrong:
            log.warning("node %d is refused%s: %s", node, site and f" as '{site}'", wrong)
            if site:
                self._claims[site] = f"node {node} claims to be '{site}': {shown(wrong, 200)}"
            return
        for old in self._nodes_of(site):  # a node that started again has a new number; the old one is there for a while
            del self._names[old]
        self._names[node] = site
        self._pauses.pop(node, None)
        log.info("node %d is '%s'", node, site)
