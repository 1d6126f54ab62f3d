"""Which requests the gate lets through to the SuperLink: fleet requests, signed with the key of a registered site.

Everything is decided on the head of a request, before its body is read. A site has a quota of bytes: Flower would store
whatever it sends.
"""

import re
import time
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from stratafl.deploy.certificates import read_public_key
from stratafl.errors import StrataError

# What a site asks. `register-node` and `unregister-node` are missing: the host registers. So are `get-run` and
# `get-fab`: a site takes no code.
_REQUESTS = "activate-node deactivate-node send-node-heartbeat pull-messages push-messages push-object pull-object"
_REQUESTS += " confirm-message-received"
PATHS = frozenset(f"/v1/fleet/{name}" for name in _REQUESTS.split())
# All other headers are dropped; uvicorn, for one, would believe an X-Forwarded-For that comes from loopback.
FORWARDED = re.compile(rb"content-type|accept|flwr-[a-z0-9-]+")
MAX_BODY_BYTES = 16 * 1024 * 1024  # Flower cuts arrays into pieces of 5 MiB
_OLDEST, _NEWEST = 305, -5  # seconds, as the SuperLink has it


class RefusedError(Exception):
    """A request that is not let through: the status that is answered, and why, for the log."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


class KeyRing:
    """The public keys of sites, from a folder of `SITE.pub`; read again when a file is added or removed."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._changed, self._sites = folder, -1, dict[bytes, str]()
        self._read()

    def site_of(self, key: bytes) -> str | None:
        if self._folder.stat().st_mtime_ns != self._changed:
            self._read()
        return self._sites.get(key)

    def _read(self) -> None:
        self._changed = self._folder.stat().st_mtime_ns
        self._sites = {read_public_key(path): path.stem for path in sorted(self._folder.glob("*.pub"))}


@dataclass
class Quota:
    """At most `most` bytes of each site in every `seconds` seconds."""

    most: int = 4_000_000_000
    seconds: float = 60.0
    now: Callable[[], float] = time.monotonic
    _used: dict[str, tuple[float, int]] = field(default_factory=dict)  # since when, and how many

    def take(self, site: str, length: int) -> None:
        """Count a body; a `RefusedError` if it is too much."""
        since, used = self._used.get(site, (self.now(), 0))
        if self.now() - since >= self.seconds:
            since, used = self.now(), 0
        if used + length > self.most:
            more = f"more than {self.most / 1e6:,.0f} MB within {self.seconds:g} s"
            raise RefusedError(503, f"site '{site}' would have sent {more}")  # after which a site tries again
        self._used[site] = since, used + length


def admit(method: str, target: str, fields: Iterable[tuple[str, str]], keys: KeyRing) -> tuple[str, int]:
    """The site that asks, and how long the body is; a `RefusedError` if it may not pass."""
    headers = dict[str, str]()
    for name, value in fields:
        if name in headers:  # the SuperLink might believe the other one
            raise RefusedError(400, f"two headers '{name[:50]}'")
        headers[name] = value
    if target not in PATHS:
        raise RefusedError(404, f"not a fleet request: {method} {target[:100]}")
    if method != "POST":
        raise RefusedError(405, f"method {method}")
    length = _length(headers)
    return _site(headers, keys), length


def _length(headers: Mapping[str, str]) -> int:
    if "transfer-encoding" in headers or "upgrade" in headers or "expect" in headers:
        raise RefusedError(400, "a body without a length, or another protocol")
    length = headers.get("content-length", "")
    if not length.isascii() or not length.isdigit() or len(length) > 12:
        raise RefusedError(411, "the body has no length")
    if int(length) > MAX_BODY_BYTES:
        raise RefusedError(413, f"a body of {int(length):,} bytes; at most {MAX_BODY_BYTES:,} may pass")
    return int(length)


def _site(headers: Mapping[str, str], keys: KeyRing) -> str:
    try:
        key = b64decode(headers["flwr-public-key"], validate=True)
        signature = b64decode(headers["flwr-signature"], validate=True)
        signed = headers["flwr-timestamp"]
        age = (datetime.now(UTC) - datetime.fromisoformat(signed)).total_seconds()
    except (KeyError, ValueError, TypeError, Base64Error) as error:
        raise RefusedError(401, "no signature of a site") from error
    try:
        site = keys.site_of(key)
    except (StrataError, OSError) as error:
        raise RefusedError(503, f"the keys of the sites cannot be read: {error}") from error
    if site is None:
        raise RefusedError(401, "a key that is not registered")
    if not _NEWEST < age < _OLDEST:
        raise RefusedError(401, f"the clock of site '{site}' is {abs(age):.0f} s {'behind' if age > 0 else 'ahead'}")
    if not _is_signed(key, signed.encode(), signature):
        raise RefusedError(401, f"an invalid signature for site '{site}'")
    return site


def _is_signed(key: bytes, data: bytes, signature: bytes) -> bool:
    public = serialization.load_pem_public_key(key)
    assert isinstance(public, ec.EllipticCurvePublicKey)  # KeyRing has read it
    try:
        public.verify(signature, data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True
