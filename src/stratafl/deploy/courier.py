"""Transport-independent messages between host and sites: their kinds, their content and their outcome.

The host uses a `Courier[Content]`, and a transport is a `Courier[SignedMessage]`: between them, `signatures.py` signs
and verifies.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from stratafl.core.reprs import short_repr

Kind = Literal["identify", "introduce", "agree", "round", "secure", "report"]
Content = tuple[Mapping[str, Any], bytes]  # a short table, and bytes of the exchange
REFUSED = "refused"  # the key of a reply that says why a site does not do what it was asked
T = TypeVar("T")


@short_repr
@dataclass(frozen=True)
class SignedMessage:
    """A message as it travels: its table is JSON, which is signed as the bytes that it is."""

    table: bytes
    body: bytes
    number: int
    signature: bytes


@dataclass(frozen=True)
class Delivered(Generic[T]):
    """What became of messages: the reply of each site, or why there is none.

    `silent`: of the failures, sites that are connected and may still be working on an answer.
    `unverified`: there was a reply, but nothing shows that it is the site's. It counts as none, and not against the
    site.
    """

    replies: Mapping[str, T]
    failures: Mapping[str, str]
    unverified: Mapping[str, str] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()


class Courier(Protocol[T]):
    """Carries messages to sites and their replies back."""

    def connected(self) -> frozenset[str]:
        """The sites that are there now."""

    def carry(self, kind: Kind, messages: Mapping[str, T], seconds: float) -> Delivered[T]:
        """One message to each of these sites; waits at most `seconds` for replies."""
