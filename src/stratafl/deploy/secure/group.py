"""The members of a session: who shares masks with whom, and the keys between two of them.

Up to 50 sites share masks with all others, from 51 sites on with k neighbours on a ring (Bell et al., 2020): sites in a
random order, each with the k/2 before and after it. If up to a fifth of the sites work for the host, and it says who
drops out, it could cut the ring at two places and open the sums of both parts. So sites stop unless every k/2 sites in
succession have more survivors than work for the host: then one of them is honest, and shares a mask with the next
honest one. k is the smallest with which these fail with the probabilities below: a site's secrets stay hidden, the ring
is whole (2^-40), and if another fifth drops out by chance, the sum can be opened (2^-20). Fifths are of the round's
sites: of those, the host may leave out honest ones before a session begins.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from math import comb

from stratafl.core.secure_sums import COMPLETE, MARKED, opening_threshold
from stratafl.deploy.secure.masks import derived_key, shared_key
from stratafl.deploy.secure.session import Announcement, Session, canonical, members_digest
from stratafl.errors import WireError

_HIDDEN, _OPENED = 2.0**-40, 2.0**-20


@dataclass(frozen=True)
class Peers:
    """How many peers a site has, how many shares give a secret of it, and how many of `count`/2 in succession stay."""

    count: int
    threshold: int
    least: int = 0


def peers_of(sites: int, cohort: int) -> Peers:
    """For a session of this many sites of a cohort."""
    chosen = None if sites <= COMPLETE else _ring(sites, cohort // MARKED)
    return Peers(sites - 1, opening_threshold(cohort)) if chosen is None else chosen


@cache
def _ring(sites: int, marked: int) -> Peers | None:
    """The smallest k that is safe if this many sites work for the host; None if only all others are enough."""
    for k in range(2, sites - 1, 2):
        of_peers, of_stretch = (
            [sites * p for p in _tails(*drawn, marked)] for drawn in ((sites - 1, k), (sites, k // 2))
        )
        least = next(n for n, failing in enumerate(of_stretch) if failing <= _HIDDEN)
        if least > k // 2 or of_stretch[k // 2 - least + 1] > _OPENED:
            continue
        for threshold in range(k // 2 + 1, k + 1):  # of k peers' shares: a site that vanished gives none of its own
            if of_peers[threshold] <= _HIDDEN and of_peers[k - threshold + 1] <= _OPENED:
                return Peers(k, threshold, least)
    return None


def _tails(sites: int, drawn: int, marked: int) -> list[float]:
    """The probabilities that of `drawn` sites at least 0, 1, … and `drawn` + 1 are marked."""
    ways = [comb(marked, n) * comb(sites - marked, drawn - n) for n in range(drawn + 1)]
    return [sum(ways[n:]) / comb(sites, drawn) for n in range(drawn + 2)]


def neighbours(names: Sequence[str], name: str, count: int, seed: bytes) -> tuple[str, ...]:
    """The peers of a site, by name; who is a peer of whom follows from the seed, which no single site chooses."""
    if count >= len(names) - 1:
        return tuple(sorted(other for other in names if other != name))
    ring = ring_of(names, seed)
    place = ring.index(name)
    steps = [step for step in range(-(count // 2), count // 2 + 1) if step]
    return tuple(sorted(ring[(place + step) % len(ring)] for step in steps))


def ring_of(names: Sequence[str], seed: bytes) -> list[str]:
    return sorted(names, key=lambda member: sha256(seed + member.encode()).digest())


class Group:
    """The members of a session: whose peer is who, the place of each in shares, and keys between two of them."""

    def __init__(self, session: Session, announcements: Sequence[Announcement]) -> None:
        self.session = session
        self.members = {each.site: each for each in announcements}
        self.names = list(self.members)
        self.digest = members_digest(session, announcements)
        self._peers = peers_of(len(self.names), session.cohort)

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
        if self._peers.least:
            present, stretch = [each in part for each in ring_of(self.names, self.digest)], self._peers.count // 2
            around = present + present[: stretch - 1]
            fewest = min(sum(around[place : place + stretch]) for place in range(len(present)))
            if fewest < self._peers.least:
                least = f"only {fewest} of {stretch} neighbours on the ring are left, and {self._peers.least} must be"
                raise WireError(f"{least}, or a sum of some of the sites could be opened: the session stops")

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
