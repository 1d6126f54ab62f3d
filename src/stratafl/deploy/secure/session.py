"""What the members of a session say to each other: announcements of keys, survivors, and who signs what.

A session is one attempt to sum one round. Every signature and every key covers it, so nothing of one session counts in
another. All that arrives is checked before it is used.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from stratafl.core.secure_sums import opening_threshold
from stratafl.deploy.secure.masks import KEY_BYTES
from stratafl.errors import WireError, shown

Signers = Mapping[str, Ed25519PublicKey]  # the sites that a site has agreed to, and the keys by which it knows them
SIGNATURE_BYTES, BASIS_BYTES = 64, 32


@dataclass(frozen=True)
class Session:
    """An attempt of a round; a site compares `cohort` and `basis` with what it knows itself.

    `cohort` is the number of sites that the round asks. `basis` is a digest of what each of them was sent, so that a
    sum is of updates of one model: if all other sites had been sent a model that learns nothing, the sum would tell the
    update of one (Pasquini, Francati, Ateniese, 2022).
    """

    federation: str
    round: int
    attempt: int
    cohort: int
    basis: str

    @property
    def name(self) -> bytes:
        return canonical(self.to_table())

    def to_table(self) -> list[Any]:
        return [self.federation, self.round, self.attempt, self.cohort, self.basis]

    @staticmethod
    def from_table(entry: Any) -> "Session":
        if isinstance(entry, list) and len(entry) == 5:
            federation, round, attempt, cohort, basis = entry
            is_whole = all(type(each) is int and 0 <= each < 1 << 53 for each in (round, attempt, cohort))
            if isinstance(federation, str) and is_whole:
                return Session(federation, round, attempt, cohort, from_hex(basis, BASIS_BYTES).hex())
        raise WireError("a session has the name of a federation, a round, an attempt, a number of sites and a digest")

    @property
    def least(self) -> int:
        """The number of sites from which a sum is opened."""
        return opening_threshold(self.cohort)


def basis_of(format: Mapping[str, Any], download: bytes) -> str:
    """The digest of what a site was sent: the table of the agreed format, by which it reads samples, and its model."""
    return sha256(sha256(canonical(format)).digest() + sha256(download).digest()).hexdigest()


@dataclass(frozen=True)
class Announcement:
    """A site's two public keys of a session, for its masks and for its shares, and a commitment to its seed, signed."""

    site: str
    mask_key: bytes
    share_key: bytes
    commitment: bytes  # by which a wrong share of the seed is noticed
    signature: bytes

    def to_table(self) -> list[str]:
        return [*self._about, self.signature.hex()]

    @property
    def _about(self) -> list[str]:
        return [self.site, self.mask_key.hex(), self.share_key.hex(), self.commitment.hex()]

    @staticmethod
    def from_table(entry: Any) -> "Announcement":
        if not (isinstance(entry, list) and len(entry) == 5 and isinstance(entry[0], str)):
            raise WireError("an announcement of keys has a site, two keys, a commitment and a signature")
        sizes = (KEY_BYTES, KEY_BYTES, KEY_BYTES, SIGNATURE_BYTES)
        return Announcement(entry[0], *(from_hex(text, count) for text, count in zip(entry[1:], sizes, strict=True)))

    @staticmethod
    def list_from(members: Any) -> "list[Announcement]":
        if not isinstance(members, list):
            raise WireError("the members of this session are not a list")
        return [Announcement.from_table(entry) for entry in members]

    def signed(self, session: Session, key: Ed25519PrivateKey) -> "Announcement":
        return replace(self, signature=key.sign(_statement("keys", session, self._about)))

    def check(self, session: Session, signers: Signers) -> None:
        check_signature(self.site, self.signature, _statement("keys", session, self._about), signers)


def check_announcements(session: Session, announcements: Sequence[Announcement], signers: Signers) -> None:
    """Refuse keys that no agreed site signed for this session, sites that come twice, and too few."""
    names = [each.site for each in announcements]
    if sorted(set(names)) != names:
        raise WireError("the sites of this session are not in order, or one comes twice")
    if len(names) > session.cohort or len(names) < session.least:
        count = f"{len(names)} sites, but a sum of {session.cohort} is opened from {session.least} on"
        raise WireError(f"the host names {count}: the session stops")
    keys = [key for each in announcements for key in (each.mask_key, each.share_key)]
    if len(set(keys)) < len(keys):
        raise WireError("two sites of this session announce the same key: the session stops")
    for announcement in announcements:
        announcement.check(session, signers)


def members_digest(session: Session, announcements: Sequence[Announcement]) -> bytes:
    """What tells the members of a session, with their keys, from all others."""
    return sha256(session.name + canonical([each.to_table() for each in announcements])).digest()


def survivors_signature(
    session: Session, members: bytes, survivors: Sequence[str], site: str, key: Ed25519PrivateKey
) -> bytes:
    return key.sign(_survivors_statement(session, members, survivors, site))


def check_confirmations(
    session: Session, members: bytes, survivors: Sequence[str], confirmations: Mapping[str, bytes], signers: Signers
) -> None:
    """Refuse unless enough of the survivors have signed that these, and no others, are the survivors."""
    for site, signature in confirmations.items():
        check_confirmation(session, members, survivors, site, signature, signers)
    if len(confirmations) < session.least:
        count = f"{len(confirmations)} sites confirm who survived, but {session.least} must"
        raise WireError(f"{count}: the session stops")


def check_confirmation(
    session: Session, members: bytes, survivors: Sequence[str], site: str, signature: bytes, signers: Signers
) -> None:
    """Refuse unless this site is one of the survivors and has signed that these, and no others, are."""
    if site not in survivors:
        raise WireError(f"'{shown(site)}' confirms survivors of which it is none: the session stops")
    check_signature(site, signature, _survivors_statement(session, members, survivors, site), signers)


def _survivors_statement(session: Session, members: bytes, survivors: Sequence[str], site: str) -> bytes:
    return _statement("survivors", session, [members.hex(), list(survivors), site])


def check_signature(site: str, signature: bytes, statement: bytes, signers: Signers) -> None:
    if site not in signers:
        raise WireError(f"'{shown(site)}' is none of the sites that this site has agreed to: the session stops")
    try:
        signers[site].verify(signature, statement)
    except InvalidSignature as error:
        raise WireError(f"'{site}' did not sign this for this session: the session stops") from error


def _statement(kind: str, session: Session, about: Any) -> bytes:
    """The bytes to sign; the kind keeps a signature for one purpose from serving another."""
    return b"stratafl secure sums 1 " + canonical([kind, session.name.decode(), about])


def canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def from_hex(text: Any, count: int) -> bytes:
    """The bytes that a text from outside says."""
    if not (isinstance(text, str) and len(text) == 2 * count and set(text) <= set("0123456789abcdef")):
        raise WireError(f"a key, share or signature of this session is not {count} bytes in hexadecimal digits")
    return bytes.fromhex(text)


def site_names(value: Any) -> list[str]:
    """A list of different names in their order, from outside."""
    if not (isinstance(value, list) and all(isinstance(name, str) for name in value) and sorted(set(value)) == value):
        raise WireError("the sites of this message are not a list of different names in their order")
    return value
