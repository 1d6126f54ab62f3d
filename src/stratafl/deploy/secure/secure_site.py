"""A site's side of a session: it answers each step once, and keeps what it needs to go on after a kill.

Everything a site knows of the open session is in one file, which is on the disk before an answer leaves. The same
message again gets the same answer. Another message for the same step is refused: with two sets of survivors, a host
could learn both secrets of a site and with them its numbers. So is the same message if the numbers have changed since:
under equal masks, the difference of two answers would be that of the numbers.

A site that gives shares forgets its own secrets before: what stays is what it needs to give the same shares again.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from stratafl.deploy.secure.group import Group
from stratafl.deploy.secure.masks import (
    Numbers,
    add_mask,
    decrypted,
    derived_key,
    encrypted,
    new_secret,
    public_key,
)
from stratafl.deploy.secure.session import (
    SIGNATURE_BYTES,
    Announcement,
    Session,
    Signers,
    canonical,
    check_announcements,
    check_confirmations,
    from_hex,
    site_names,
    survivors_signature,
)
from stratafl.deploy.secure.shamir import SHARE_BYTES, split_secret
from stratafl.errors import DamagedError, WireError
from stratafl.files import json_value, read_plain, write_atomically

Step = Literal["keys", "shares", "masked", "confirm", "open"]
STEPS: tuple[Step, ...] = get_args(Step)
NUMBERS, SECRETS = "numbers.safetensors", "secrets.json"
MAX_SECRETS_BYTES = 1 << 24
SEALED_BYTES = 2 * SHARE_BYTES + 16  # two shares and the tag of their encryption


class SecretFile(Protocol):
    """Where the secrets of the open session are kept."""

    def read(self) -> bytes | None:
        """What was written last."""

    def write(self, data: bytes) -> None:
        """Replace it; when this returns, it survives a power cut."""


@dataclass(frozen=True)
class SecretsOnDisk:
    """A file in the site's own folder."""

    path: Path

    def read(self) -> bytes | None:
        return read_plain(self.path, MAX_SECRETS_BYTES) if self.path.exists() else None

    def write(self, data: bytes) -> None:
        write_atomically(self.path, data)


@dataclass
class SessionSecrets:
    """What a site knows of a session; texts are hexadecimal."""

    opened: int = -1  # the last round for which it gave shares
    session: list[Any] = field(default_factory=list)
    mask_secret: str = ""
    share_secret: str = ""
    seed: str = ""
    members: list[list[str]] = field(default_factory=list)
    own_shares: list[str] = field(default_factory=list)  # of its seed and its mask secret, at its own place
    dealt: dict[str, str] = field(default_factory=dict)  # what it encrypted for each peer
    senders: list[str] = field(default_factory=list)
    received: dict[str, list[str]] = field(default_factory=dict)  # shares of each peer's seed and mask secret
    sent: str = ""  # a digest of its masked numbers
    survivors: list[str] = field(default_factory=list)


class SecureSite:
    """One site; `signers` are the keys of all sites of the federation, as its owner agreed to them."""

    def __init__(self, name: str, key: Ed25519PrivateKey, signers: Signers, file: SecretFile) -> None:
        self.name, self._key, self._signers, self._file = name, key, signers, file

    def answer(
        self, session: Session, step: str, table: Mapping[str, Any], numbers: Callable[[], Numbers]
    ) -> tuple[dict[str, Any], bytes]:
        """The answer to a step of a session, whose numbers are asked for when they are masked."""
        secrets = self._secrets()
        is_open = secrets.session == session.to_table()
        if is_open and not secrets.seed and not (secrets.survivors and step == STEPS[-1]):
            raise WireError("this session has ended at this site: the host must begin another one")
        if step == "keys":
            return self._announced(session, secrets), b""
        if not is_open:
            raise WireError("this session is not open at this site: it began another one, or lost its secrets")
        if step == "shares":
            return self._dealt(session, secrets, table.get("members")), b""
        if not secrets.members:
            raise _out_of_order(step)
        if step == "masked":
            return {}, self._masked(session, secrets, table, numbers)
        if not secrets.senders:
            raise _out_of_order(step)
        if step == "confirm":
            return self._confirmed(session, secrets, table.get("survivors")), b""
        if step != "open" or not secrets.survivors:
            raise _out_of_order(step)
        return self._opened(session, secrets, table.get("confirmations")), b""

    # Steps

    def _announced(self, session: Session, secrets: SessionSecrets) -> dict[str, Any]:
        if secrets.session != session.to_table():
            if session.round <= secrets.opened:
                raise WireError(
                    f"this site has already opened a sum of round {secrets.opened + 1}: it opens no second one"
                )
            if secrets.session and (session.round, session.attempt) <= (secrets.session[1], secrets.session[2]):
                raise WireError("this session is older than the last one of this site: it is a replay")
            mask_secret, share_secret, seed = (new_secret().hex() for _ in range(3))
            begun = session.to_table()
            secrets = SessionSecrets(secrets.opened, begun, mask_secret, share_secret, seed)
            self._keep(secrets)
        return {"announcement": self._announcement(session, secrets).to_table()}

    def _announcement(self, session: Session, secrets: SessionSecrets) -> Announcement:
        mask_key, share_key = (public_key(bytes.fromhex(text)) for text in (secrets.mask_secret, secrets.share_secret))
        commitment = derived_key(bytes.fromhex(secrets.seed), b"commitment")
        return Announcement(self.name, mask_key, share_key, commitment, b"").signed(session, self._key)

    def _dealt(self, session: Session, secrets: SessionSecrets, members: Any) -> dict[str, Any]:
        announcements = Announcement.list_from(members)
        if secrets.members and secrets.members != members:
            raise WireError("the host has already named other members of this session: it stops")
        check_announcements(session, announcements, self._signers)
        if self._announcement(session, secrets) not in announcements:
            raise WireError("the host names other keys of this site than it announced: the session stops")
        if not secrets.members:
            secrets.members = members
            self._deal(session, secrets)
            self._keep(secrets)
        return {"shares": secrets.dealt}

    def _deal(self, session: Session, secrets: SessionSecrets) -> None:
        """Split both secrets among the peers and itself."""
        group = Group(session, Announcement.list_from(secrets.members))
        holders, threshold = sorted([*group.peers(self.name), self.name]), group.threshold
        places = {name: group.place(name) for name in holders}
        shares = [
            split_secret(bytes.fromhex(secret), list(places.values()), threshold)
            for secret in (secrets.seed, secrets.mask_secret)
        ]
        texts = {name: [part[place].to_bytes(SHARE_BYTES, "big") for part in shares] for name, place in places.items()}
        secrets.own_shares = [part.hex() for part in texts.pop(self.name)]
        secret = bytes.fromhex(secrets.share_secret)
        for peer, parts in texts.items():
            key = group.share_key(secret, self.name, peer, peer)
            secrets.dealt[peer] = encrypted(key, b"".join(parts), group.digest).hex()

    def _masked(
        self, session: Session, secrets: SessionSecrets, table: Mapping[str, Any], numbers: Callable[[], Numbers]
    ) -> bytes:
        group = Group(session, Announcement.list_from(secrets.members))
        senders, sealed = site_names(table.get("senders")), table.get("shares")
        group.check_part(senders, self.name, group.names)
        peers = [peer for peer in group.peers(self.name) if peer in senders]
        if not isinstance(sealed, dict) or sorted(sealed) != peers:
            raise WireError("the host does not pass on the shares of just the peers that sent some: the session stops")
        secret = bytes.fromhex(secrets.share_secret)
        received = {}
        for peer in peers:
            data = from_hex(sealed[peer], SEALED_BYTES)
            parts = decrypted(group.share_key(secret, peer, self.name, peer), data, group.digest)
            received[peer] = [parts[:SHARE_BYTES].hex(), parts[SHARE_BYTES:].hex()]
        if secrets.senders and (secrets.senders, secrets.received) != (senders, received):
            raise WireError("the host has already named other senders of this session: it stops")
        masked = np.array(numbers(), dtype="<u8")
        add_mask(masked, group.own_key(bytes.fromhex(secrets.seed)))
        for peer in peers:
            key = group.pair_key(bytes.fromhex(secrets.mask_secret), self.name, peer)
            add_mask(masked, key, subtract=self.name > peer)
        data = masked.tobytes()
        sent = sha256(data).hexdigest()
        if secrets.sent and secrets.sent != sent:
            raise WireError("the numbers of this site have changed since it masked them: the session stops")
        secrets.senders, secrets.received, secrets.sent = senders, received, sent
        self._keep(secrets)
        return data

    def _confirmed(self, session: Session, secrets: SessionSecrets, survivors: Any) -> dict[str, Any]:
        group = Group(session, Announcement.list_from(secrets.members))
        names = site_names(survivors)
        group.check_part(names, self.name, secrets.senders)
        if secrets.survivors and secrets.survivors != names:
            raise WireError("the host has already named other survivors of this session: it stops")
        secrets.survivors = names
        self._keep(secrets)
        return {"signature": survivors_signature(session, group.digest, names, self.name, self._key).hex()}

    def _opened(self, session: Session, secrets: SessionSecrets, confirmations: Any) -> dict[str, Any]:
        """Of each peer the share of one secret: its seed if it survived, or the secret of its masks."""
        group = Group(session, Announcement.list_from(secrets.members))
        if not isinstance(confirmations, dict):
            raise WireError("the survivors' confirmations are not a table")
        signatures = {site: from_hex(text, SIGNATURE_BYTES) for site, text in confirmations.items()}
        check_confirmations(session, group.digest, secrets.survivors, signatures, self._signers)
        seeds = {site: parts[0] for site, parts in secrets.received.items() if site in secrets.survivors}
        lost = {site: parts[1] for site, parts in secrets.received.items() if site not in secrets.survivors}
        if secrets.seed:
            shares = {site: [seeds.get(site, ""), lost.get(site, "")] for site in secrets.received}
            rest = replace(secrets, mask_secret="", share_secret="", seed="", dealt={}, received=shares)
            self._keep(replace(rest, opened=session.round, own_shares=secrets.own_shares[:1]))
        return {"seeds": {**seeds, self.name: secrets.own_shares[0]}, "secrets": lost}

    # The file

    def _secrets(self) -> SessionSecrets:
        data = self._file.read()
        if data is None:
            return SessionSecrets()
        try:
            return SessionSecrets(**json_value(data))
        except (TypeError, ValueError) as error:
            todo = f"remove '{SECRETS}' and '{NUMBERS}': without its numbers, no second sum of the round has them"
            raise DamagedError(f"the secrets of this site's open session are damaged: {todo}") from error

    def _keep(self, secrets: SessionSecrets) -> None:
        self._file.write(canonical(asdict(secrets)))

    def forget(self) -> None:
        """The round has ended: of its session only the name stays, and whether shares were given for it."""
        secrets = self._secrets()
        if secrets.seed or secrets.members:
            self._keep(SessionSecrets(secrets.opened, secrets.session))


def _out_of_order(step: str) -> WireError:
    return WireError(f"the step '{step}' of this session comes before another one: the session stops")
