"""A host's side of a session: it asks the sites step by step, adds up what they send, and removes the masks that stay.

A site that does not answer a step is left out of those that follow. The sum is opened if enough sites are left at each
step; otherwise the session ends with a `ClosedSumError`, and the host has learned nothing.

Sites give shares in one session of a round. So what the host knows before it asks for them is a `MaskedSum`, which it
can keep, and with which it asks for the same shares again after a restart.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from stratafl.core.reprs import short_repr
from stratafl.deploy.courier import Content
from stratafl.deploy.secure.group import Group
from stratafl.deploy.secure.masks import Numbers, add_mask, derived_key, public_key
from stratafl.deploy.secure.secure_site import SEALED_BYTES, Step
from stratafl.deploy.secure.session import (
    SIGNATURE_BYTES,
    Announcement,
    Session,
    Signers,
    check_announcements,
    check_confirmation,
    from_hex,
)
from stratafl.deploy.secure.shamir import SECRET_BYTES, SHARE_BYTES, join_shares
from stratafl.errors import DeployError, WireError

T = TypeVar("T")
# Sends a step to some sites; returns the answers of those that gave one.
Ask = Callable[[Step, Mapping[str, Content]], Mapping[str, Content]]


class ClosedSumError(DeployError):
    """A sum could not be opened; what the sites sent says nothing."""


@short_repr
@dataclass(frozen=True)
class OpenedSum:
    """The sum, and whose numbers are in it."""

    numbers: Numbers
    sites: tuple[str, ...]


@short_repr
@dataclass(frozen=True)
class MaskedSum:
    """The sum of what survivors sent, with their masks, and what a host needs to ask for shares that remove these."""

    session: Session
    members: Sequence[Announcement]
    senders: Sequence[str]
    survivors: Sequence[str]
    confirmations: Mapping[str, str]
    total: Numbers


def masked_sum(ask: Ask, session: Session, sites: Sequence[str], size: int, signers: Signers) -> MaskedSum:
    """The sum of what these sites hold, each `size` numbers modulo 2^64, with masks: the steps before the last one."""
    group = _members(ask, session, sites, signers)
    senders, sealed = _dealt(ask, group)
    total, survivors = _masked(ask, group, senders, sealed, size)
    confirmations = _confirmed(ask, group, survivors, signers)
    return MaskedSum(session, tuple(group.members.values()), senders, survivors, confirmations, total)


def open_sum(ask: Ask, masked: MaskedSum) -> OpenedSum:
    """The sum without masks, by the shares of survivors."""
    group, survivors, confirmations = Group(masked.session, masked.members), masked.survivors, masked.confirmations
    senders, total = masked.senders, masked.total.copy()
    shares = _answers(ask, "open", dict.fromkeys(survivors, ({"confirmations": confirmations}, b"")), _shares_in)
    seeds = {by: of_seeds for by, (of_seeds, _) in shares.items()}
    secrets = {by: of_secrets for by, (_, of_secrets) in shares.items()}
    for site in survivors:
        seed = _joined(group, site, seeds)
        if derived_key(seed, b"commitment") != group.members[site].commitment:
            raise ClosedSumError(f"a share of '{site}' is wrong, so the sum stays closed")
        add_mask(total, group.own_key(seed), subtract=True)
    for site in senders:
        if site not in survivors and not set(survivors).isdisjoint(group.peers(site)):
            _remove_pairs(group, site, _joined(group, site, secrets), survivors, total)
    return OpenedSum(total, tuple(survivors))


def _members(ask: Ask, session: Session, sites: Sequence[str], signers: Signers) -> Group:
    def announced(site: str, table: Mapping[str, Any], _: bytes) -> Announcement:
        announcement = Announcement.from_table(table.get("announcement"))
        if announcement.site != site:
            raise WireError(f"it announces keys of '{announcement.site}'")
        announcement.check(session, signers)
        return announcement

    announced_keys = _answers(ask, "keys", dict.fromkeys(sites, ({}, b"")), announced)
    members = [announced_keys[site] for site in sorted(announced_keys)]
    _check_enough(session, announced_keys)
    check_announcements(session, members, signers)
    return Group(session, members)


def _dealt(ask: Ask, group: Group) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Who dealt shares, and what for whom."""

    def dealt(site: str, table: Mapping[str, Any], _: bytes) -> dict[str, str]:
        shares = table.get("shares")
        if not isinstance(shares, dict) or sorted(shares) != list(group.peers(site)):
            raise WireError("it does not deal shares to just its peers")
        return {peer: from_hex(text, SEALED_BYTES).hex() for peer, text in shares.items()}

    tables = [each.to_table() for each in group.members.values()]
    sealed = _answers(ask, "shares", dict.fromkeys(group.names, ({"members": tables}, b"")), dealt)
    _check_enough(group.session, sealed)
    return sorted(sealed), sealed


def _masked(
    ask: Ask, group: Group, senders: list[str], sealed: Mapping[str, Mapping[str, str]], size: int
) -> tuple[Numbers, list[str]]:
    """The sum of what arrived, with masks, and whose numbers are in it."""

    def numbers(site: str, table: Mapping[str, Any], body: bytes) -> Numbers:
        if len(body) != 8 * size:
            raise WireError(f"it sends {len(body):,} bytes of numbers, not {8 * size:,}")
        return np.frombuffer(body, "<u8")

    def received(site: str) -> dict[str, str]:
        return {peer: sealed[peer][site] for peer in group.peers(site) if peer in senders}

    asked: dict[str, Content] = {site: ({"senders": senders, "shares": received(site)}, b"") for site in senders}
    arrived = _answers(ask, "masked", asked, numbers)
    _check_enough(group.session, arrived)
    total = np.zeros(size, dtype="<u8")
    for part in arrived.values():
        total += part
    return total, sorted(arrived)


def _confirmed(ask: Ask, group: Group, survivors: list[str], signers: Signers) -> dict[str, str]:
    """The signatures under the list of those whose numbers arrived."""

    def signed(site: str, table: Mapping[str, Any], _: bytes) -> str:
        signature = from_hex(table.get("signature"), SIGNATURE_BYTES)
        check_confirmation(group.session, group.digest, survivors, site, signature, signers)
        return signature.hex()

    confirmations = _answers(ask, "confirm", dict.fromkeys(survivors, ({"survivors": survivors}, b"")), signed)
    _check_enough(group.session, confirmations)
    return confirmations


def _shares_in(site: str, table: Mapping[str, Any], _: bytes) -> tuple[dict[str, int], dict[str, int]]:
    """The shares that a site gives: of seeds, and of secrets of masks."""
    kinds = [table.get("seeds"), table.get("secrets")]
    if not all(isinstance(kind, dict) for kind in kinds):
        raise WireError("it gives no tables of shares")
    seeds, secrets = (
        {of: int.from_bytes(from_hex(text, SHARE_BYTES), "big") for of, text in dict(kind or {}).items()}
        for kind in kinds
    )
    return seeds, secrets


def _joined(group: Group, site: str, shares: Mapping[str, Mapping[str, int]]) -> bytes:
    """The secret of a site, from the shares that others gave."""
    points = {group.place(by): of_sites[site] for by, of_sites in shares.items() if site in of_sites}
    if len(points) < group.threshold:
        count = f"only {len(points)} of {group.threshold} shares of '{site}' arrived"
        raise ClosedSumError(f"{count}, so the sum stays closed")
    with suppress(OverflowError):
        return join_shares(dict(list(points.items())[: group.threshold])).to_bytes(SECRET_BYTES, "big")
    raise ClosedSumError(f"a share of '{site}' is wrong, so the sum stays closed")


def _remove_pairs(group: Group, site: str, secret: bytes, survivors: Sequence[str], total: Numbers) -> None:
    """Remove the masks that survivors share with a site whose own numbers did not arrive."""
    if public_key(secret) != group.members[site].mask_key:
        raise ClosedSumError(f"a share of '{site}' is wrong, so the sum stays closed")
    for peer in group.peers(site):
        if peer in survivors:
            add_mask(total, group.pair_key(secret, site, peer), subtract=peer < site)


def _check_enough(session: Session, answered: Mapping[str, Any]) -> None:
    if len(answered) < session.least:
        raise ClosedSumError(f"only {len(answered)} of {session.cohort} sites are left, and {session.least} must be")


def _answers(
    ask: Ask, step: Step, asked: Mapping[str, Content], read: Callable[[str, Mapping[str, Any], bytes], T]
) -> dict[str, T]:
    """What the answers say; a site whose answer makes no sense counts as one that gave none."""
    read_answers = {}
    for site, (table, body) in ask(step, asked).items():
        with suppress(WireError):
            read_answers[site] = read(site, table, body)
    return read_answers
