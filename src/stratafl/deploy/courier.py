"""Transport-independent messages between host and sites: their kinds, their content and their outcome."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Kind = Literal["introduce", "agree", "round"]
Content = tuple[Mapping[str, Any], bytes]  # a short table, and bytes of the exchange
REFUSED = "refused"  # the key of a reply that says why a site does not do what it was asked


@dataclass(frozen=True)
class Delivered:
    """What became of messages: the reply of each site, or why there is none."""

    replies: Mapping[str, Content]
    failures: Mapping[str, str]


class Courier(Protocol):
    """Carries messages to sites and their replies back."""

    def connected(self) -> frozenset[str]:
        """The sites that are there now."""

    def carry(self, kind: Kind, messages: Mapping[str, Content], seconds: float) -> Delivered:
        """One message to each of these sites; waits at most `seconds` for replies."""
