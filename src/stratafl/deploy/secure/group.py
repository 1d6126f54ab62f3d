"""The members of a session: who shares masks with whom, and the keys between two of them.

Up to 50 sites share masks with all others, from 51 sites on with k neighbours on a ring (Bell et al., 2020): sites in a
random order, each with the k/2 before and after it. k is the smallest with which, if up to a fifth of the sites work
for the host and another fifth drop out, three things fail with the probabilities below: a site's secrets stay hidden,
the rest of the ring holds together (2^-40), and the sum can be opened (2^-20).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from math import comb

from stratafl.deploy.secure.masks import derived_key, shared_key
from stratafl.deploy.secure.session import Announcement, Session, canonical, members_digest
from stratafl.errors import WireError

COMPLETE = 50  # sites up to which each has all others as peers
CORRUPT, DROPPED = 5, 5  # one in five works for the host, one in five drops out
_HIDDEN, _OPENED = 2.0**-40, 2.0**-20


@dataclass(frozen=True)
class Peers:
    """How many peers a site has, and how many shares give a secret of it."""

    count: int
    threshold: int


def peers_of(sites: int, least: int) -> Peers:
    """For a session of this many sites, whose sum is opened from `least` on."""
    chosen = None if sites <= COMPLETE else _ring(sites)
    return Peers(sites - 1, least) if chosen is None else chosen


@cache
def _ring(sites: int) -> Peers | None:
    """The smallest k that is safe, and its threshold; None if only all others are enough."""
    others = sites - 1
    corrupt, alive = sites // CORRUPT, others - sites // DROPPED
    for k in range(2, others, 2):
        if sites * (1 / CORRUPT + 1 / DROPPED) ** (k // 2) > _HIDDEN:
            continue
        for threshold in range(k // 2 + 1, k + 1):  # of k + 1 holders, the site itself is one
            hidden = sites * _tail(others, corrupt, k, threshold) <= _HIDDEN
            opened = sites * _tail(others, others - alive, k, k - threshold + 2) <= _OPENED
            if hidden and opened:
                return Peers(k, threshold)
    return None


def _tail(others: int, marked: int, drawn: int, least: int) -> float:
    """The probability that of `drawn` of the others at least `least` are marked."""
    ways = sum(comb(marked, n) * comb(others - marked, drawn - n) for n in range(max(least, 0), min(marked, drawn) + 1))
    return ways / comb(others, drawn)


def neighbours(names: Sequence[str], name: str, count: int, seed: bytes) -> tuple[str, ...]:
    """The peers of a site, by name; who is a peer of whom follows from the seed, which no single site chooses."""
    if count >= len(names) - 1:
        return tuple(sorted(other for other in names if other != name))
    ring = sorted(names, key=lambda member: sha256(seed + member.encode()).digest())
    place = ring.index(name)
    steps = [step for step in range(-(count // 2), count // 2 + 1) if step]
    return tuple(sorted(ring[(place + step) % len(ring)] for step in steps))


class Group:
    """The members of a session: whose peer is who, the place of each in shares, and keys between two of them."""

    def __init__(self, session: Session, announcements: Sequence[Announcement]) -> None:
        self.session = session
        self.members = {each.site: each for each in announcements}
        self.names = list(self.members)
        self.digest = members_digest(session, announcements)
        self._peers = peers_of(len(self.names), session.least)

    @property
    def threshold(self) -> int:
        """How many shares give a secret."""
        return self._peers.threshold

    def peers(self, name: str) -> tuple[str, ...]:
        return neighbours(self.names, name, self._peers.count, self.digest)

    def place(self, name: str) -> int:
        return self.names.index(name) + 1

    def check_part(self, part: Sequence[str], name: str, of: Sequence[str]) -> None:
        """Refuse a part of the members that this site is not in, with others in it, or that is too small."""
        if not set(part) <= set(of) or name not in part:
            raise WireError("the host names sites that took no part before, or leaves this one out: the session stops")
        if len(part) < self.session.least:
            raise WireError(f"only {len(part)} sites are left, and {self.session.least} must be: the session stops")

    def share_key(self, secret: bytes, sender: str, receiver: str, other: str) -> bytes:
        """The key with which one site encrypts shares for another; `other` is whichever of them asks not."""
        purpose = b"shares " + self.digest + canonical([sender, receiver])
        return shared_key(secret, self.members[other].share_key, purpose)

    def pair_key(self, secret: bytes, name: str, other: str) -> bytes:
        """The key of the mask that two sites share."""
        return shared_key(
            secret, self.members[other].mask_key, b"pair " + self.digest + canonical(sorted([name, other]))
        )

    def own_key(self, seed: bytes) -> bytes:
        return derived_key(seed, b"own " + self.digest)
