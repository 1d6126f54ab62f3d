"""Signatures from end to end: host and sites know each other's messages by Ed25519 keys, whatever carries them.

A host signs every request, and a site every reply. A signature covers whether it is a request or a reply, the host's
key, the federation, the kind of message, the site, a number and the digests of table and body; that of a reply also the
digest of the request. So no message counts for another federation, site, kind or request than the one it was made for.

The host numbers its requests over all its starts. A site remembers the last one that it answered: an earlier number is
refused, and the same request is answered again, which changes nothing (docs/design/deployment.md#exactly-once). A site
checks a request before it reads or stores anything. A reply that cannot be verified counts as no reply and costs its
site no try: the host asks again.

Where no transport says which node is which site (`site_nodes.py`), the host asks each node with a message "identify",
which is for a node and not for a site. A site answers it only at that node, so no node can pass it on.
"""

import json
import logging
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from stratafl.config.deployment import read_federation
from stratafl.deploy.certificates import read_key
from stratafl.deploy.courier import REFUSED, Content, Courier, Delivered, Kind, SignedMessage
from stratafl.deploy.member import FILE, SiteMember
from stratafl.deploy.signing_keys import (
    HOST_KEY,
    SIGNING_KEY,
    keys_folder,
    read_signing_key,
    site_verifying_key,
    verifying_key,
)
from stratafl.errors import DamagedError, DeployError, RunError, StrataError, WireError, shown, told_to_others
from stratafl.execute.exchange.state_file import DiskFullError, explained_full
from stratafl.files import json_value, private_folder, read_plain, write_atomically

log = logging.getLogger("stratafl.deploy")
NODE, NAME = "node", "site"  # of a message "identify", and of the answer
STARTS, INBOX, LAST = "starts", "inbox", "last.json"  # of a host; of a site
MAX_RECORD_BYTES = 1000  # bytes of these files
_NUMBERS = 1 << 32  # requests that a host may send in one start


# The host


class HostSignatures:
    """Signs the requests of a host and verifies replies, by the files in its folder."""

    def __init__(self, folder: Path) -> None:
        self._key, self._keys = read_signing_key(folder / SIGNING_KEY), keys_folder(folder)
        self._federation = read_federation(folder / FILE, plain=True).deploy.name
        self._next = _started(folder / STARTS) * _NUMBERS

    def request(self, kind: Kind, site: str, content: Content) -> SignedMessage:
        table, body = content
        text, number = json.dumps(table).encode(), self._next
        self._next += 1
        statement = self._statement("request", kind, site, number, text, body)
        return SignedMessage(text, body, number, self._key.sign(statement))

    def reply(self, kind: Kind, site: str, request: SignedMessage, reply: SignedMessage) -> Content:
        """The content of a site's reply to this request; a `WireError` if another one or nobody signed it."""
        asked = self._statement("request", kind, _addressee(kind, site), request.number, request.table, request.body)
        statement = self._statement("reply", kind, site, reply.number, reply.table, reply.body, _digest(asked))
        path = self._keys / f"{site}.pub"
        if not path.exists():
            raise WireError(f"its key '{path}' was removed")
        try:
            site_verifying_key(path).verify(reply.signature, statement)
        except DeployError as error:
            raise WireError(f"its reply cannot be verified: {error}") from error
        except InvalidSignature as error:
            wrong = "its reply is forged, replayed or another site's: its signature does not fit"
            raise WireError(f"{wrong} the request and the key in '{path}'") from error
        return _table(reply.table), reply.body

    def question(self, node: int) -> SignedMessage:
        """The request that asks a node which site it is."""
        return self.request("identify", "", ({NODE: str(node)}, b""))

    def identified(self, request: SignedMessage, reply: SignedMessage, sites: Collection[str]) -> tuple[str, str]:
        """Which of the sites a node says it is ("": none), and why that is not believed ("": it is true)."""
        try:
            claimed = str(_table(reply.table).get(NAME))
            if claimed not in sites:
                return "", f"it says that it is '{shown(claimed)}', but there is no such site"
        except WireError as error:
            return "", str(error)
        try:
            self.reply("identify", claimed, request, reply)
        except WireError as error:
            return claimed, str(error)
        return claimed, ""

    def _statement(self, *facts: Any) -> bytes:
        return _statement(self._key.public_key(), self._federation, *facts)


class SignedCourier:
    """A courier whose requests are signed by the host, and whose replies must be by the site that they are from."""

    def __init__(self, transport: Courier[SignedMessage], signatures: HostSignatures) -> None:
        self._transport, self._signatures = transport, signatures

    def connected(self) -> frozenset[str]:
        return self._transport.connected()

    def carry(self, kind: Kind, messages: Mapping[str, Content], seconds: float) -> Delivered[Content]:
        requests = {site: self._signatures.request(kind, site, content) for site, content in messages.items()}
        done = self._transport.carry(kind, requests, seconds)
        replies, unverified = dict[str, Content](), dict(done.unverified)
        for site, reply in done.replies.items():
            try:
                replies[site] = self._signatures.reply(kind, site, requests[site], reply)
            except WireError as error:
                unverified[site] = str(error)
        return Delivered(replies, done.failures, unverified, done.silent)


def _started(path: Path) -> int:
    """How often a host has started, this time included, which is on disk before it sends anything."""
    try:
        starts = int(read_plain(path, MAX_RECORD_BYTES)) + 1 if path.exists() else 1
    except ValueError as error:
        todo = "restore it, or write a number into it that is larger than all that it has held"
        raise DamagedError(f"'{path}' is not a number of starts: {todo}") from error
    write_atomically(path, str(starts).encode())
    return starts


# A site


class SignedMember:
    """Answers the requests of the host that the owner of this site has agreed to join, and of nobody else."""

    def __init__(self, member: SiteMember) -> None:
        self._member, folder = member, member.folder
        self._key = read_signing_key(folder / SIGNING_KEY)
        line = read_key(folder / HOST_KEY).decode(errors="replace")
        self._host = verifying_key(line, f"'{folder / HOST_KEY}'", "restore it from the invitation")

    def answer(self, kind: Kind, request: SignedMessage, node: int | None = None) -> SignedMessage:
        """The reply; what is wrong at this site is a reply, too. A `WireError` if the host did not sign the request.

        `node` is the number of Flower's node that received the request, where the host asks which site it is.
        """
        facts = kind, self._member.name, request.number
        asked = kind, _addressee(kind, self._member.name), request.number
        statement = self._statement("request", *asked, request.table, request.body)
        try:
            self._host.verify(request.signature, statement)
        except InvalidSignature as error:
            wrong = f"a message '{kind}' is not from the host whose invitation this site accepted"
            wrong = f"{wrong}, or is for another site or federation: nothing was read or stored"
            log.warning("refused: %s", wrong)
            raise WireError(wrong) from error
        digest = _digest(statement)
        try:
            if kind == "identify":
                table, body = self._identity(_table(request.table), node), b""
            else:
                self._note(request.number, digest)
                table, body = self._member.answer(kind, _table(request.table), request.body)
        except StrataError as error:
            log.warning("refused: %s", error)
            # The host must not learn where a site keeps its files.
            table, body = {REFUSED: told_to_others(error).replace(f"{self._member.folder}{os.sep}", "")}, b""
        text = json.dumps(table).encode()
        return SignedMessage(
            text, body, request.number, self._key.sign(self._statement("reply", *facts, text, body, digest))
        )

    def _identity(self, table: Mapping[str, Any], node: int | None) -> dict[str, Any]:
        """This site's name, for the node at which it was asked alone: another node could else pass the question on."""
        if node is None or table.get(NODE) != str(node):
            raise WireError(f"this question is for node {shown(table.get(NODE))}, but it arrived at node {node}")
        return {NAME: self._member.name}

    def _statement(self, *facts: Any) -> bytes:
        return _statement(self._host, self._member.file.deploy.name, *facts)

    def _note(self, number: int, digest: str) -> None:
        """Remember a request before it is answered; one that is older than the last is refused."""
        folder = self._member.folder / INBOX
        with private_folder(folder):
            last = _last(folder / LAST)
            if (number, digest) == last:
                return
            if number <= last[0]:
                wrong = f"request {number} was sent before request {last[0]}, which this site has answered"
                raise WireError(f"{wrong}: it is replayed, or the host's folder is an old copy")
            self._write(folder / LAST, json.dumps({"number": number, "request": digest}).encode())

    def _write(self, path: Path, data: bytes) -> None:
        try:
            write_atomically(path, data)
        except RunError as error:
            if not isinstance(explained_full(error), DiskFullError):
                raise
            self._member.clear_blocks()
            write_atomically(path, data)


def _last(path: Path) -> tuple[int, str]:
    """Number and digest of the request that was answered last."""
    if not path.exists():
        return -1, ""
    with suppress(ValueError, KeyError, TypeError):
        record = json_value(read_plain(path, MAX_RECORD_BYTES))
        if type(record["number"]) is int and type(record["request"]) is str:
            return record["number"], record["request"]
    raise DamagedError(f"'{path}' is damaged: restore a copy, or remove it, and earlier requests are answered again")


# What is signed


def _addressee(kind: Kind, site: str) -> str:
    """Which site a request is for; one that asks a node who it is names none."""
    return "" if kind == "identify" else site


def _statement(
    host: Ed25519PublicKey,
    federation: str,
    role: str,
    kind: str,
    site: str,
    number: int,
    table: bytes,
    body: bytes,
    request: str = "",
) -> bytes:
    """The bytes that a signature covers; a list in JSON has one encoding, and no two lists have the same."""
    raw = host.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    digests = [_digest(table), _digest(body), request]
    return json.dumps([f"stratafl {role} 1", raw.hex(), federation, kind, site, number, *digests]).encode()


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=32).hexdigest()


def _table(text: bytes) -> dict[str, Any]:
    try:
        table = json_value(text)
    except ValueError as error:
        raise WireError(f"the table of this message is not JSON: {shown(error)}") from error
    if not isinstance(table, dict):
        raise WireError("the table of this message is not a table")
    return table
