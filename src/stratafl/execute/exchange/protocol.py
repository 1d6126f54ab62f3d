"""The messages of an exchange, and their only encoding as bytes.

The server sends a `DownloadMessage` or, after the last round, a `Commit`. A site replies with an `UploadMessage`, with
`Committed`, with `SendAll` if it lacks a block that was left out, or with a `Refusal` that says why. A message is
`MAGIC`, a checksum of everything else, a header in JSON and a body. It has exactly one encoding; all other bytes are
refused. Like the checksum of a parcel, this one notices damage and is no signature: the caller must know the sender.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import blake2b
from typing import Any, cast

from stratafl.core.reprs import short_repr
from stratafl.errors import RecordError, WireError, shown
from stratafl.files import json_value

MAGIC = b"strata 1"  # with the version of the protocol
MAX_MESSAGE_BYTES = 4 << 30
MAX_HEADER_BYTES = 1 << 20
MAX_OFFERED_BLOCKS = 1024  # blocks that a site offers
MAX_REFUSAL_LETTERS = 300
NONE_ABSORBED = ""  # the digest of the last absorbed upload, where there is none
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_DIGEST, _BLOCK = (re.compile(rf"[0-9a-f]{{{length}}}", re.ASCII) for length in (64, 32))
_MAX_INTEGER = 1 << 53
_SUM, _LENGTH, _HEADER = slice(8, 40), slice(40, 48), 48


@dataclass(frozen=True)
class Address:
    """Which download a message is, or answers: `attempt` numbers all messages that a server ever sent."""

    federation: str
    site: str
    round: int
    attempt: int


@dataclass(frozen=True)
class Piece:
    """A stretch of a download: a block that the site may keep by its digest, or (without one) bytes between blocks."""

    size: int
    digest: str = ""
    sent: bool = True  # False: the site has it


@short_repr
@dataclass(frozen=True)
class DownloadMessage:
    """Server: the parcel for one site, in pieces; `absorbed` is the digest of the site's last absorbed upload."""

    address: Address
    absorbed: str
    pieces: tuple[Piece, ...]
    body: bytes  # the pieces that are sent


@short_repr
@dataclass(frozen=True)
class Commit:
    """Server, after the last round: what was absorbed, and the last parcel, from which a site has its final model."""

    address: Address
    absorbed: str
    pieces: tuple[Piece, ...]
    body: bytes


@short_repr
@dataclass(frozen=True)
class UploadMessage:
    """Site: an encoded parcel, its digest, and the blocks that need not be sent again."""

    address: Address
    digest: str
    have: tuple[str, ...]
    body: bytes


@short_repr
@dataclass(frozen=True)
class SendAll:
    """Site: a block that was left out is not here; send the download again with everything in it."""

    address: Address


@short_repr
@dataclass(frozen=True)
class Committed:
    """Site: the state after the absorbed upload is kept, and so is the last parcel."""

    address: Address
    absorbed: str


@short_repr
@dataclass(frozen=True)
class Refusal:
    """Site: nothing was changed, because of this; `lost`: its state is not the one that the server absorbed."""

    address: Address
    reason: str
    lost: bool = False


Request = DownloadMessage | Commit
Reply = UploadMessage | SendAll | Committed | Refusal
_REQUESTS: dict[str, type[Any]] = {"download": DownloadMessage, "commit": Commit}
_REPLIES: dict[str, type[Any]] = {
    "upload": UploadMessage,
    "send all": SendAll,
    "committed": Committed,
    "refusal": Refusal,
}
_WORDS = {kind: word for word, kind in (_REQUESTS | _REPLIES).items()}


def upload_digest(federation: str, site: str, round: int, upload: bytes) -> str:
    """What tells one upload from all others: equal bytes of two rounds have two digests."""
    hashed = blake2b(json.dumps([federation, site, round]).encode() + b"\n", digest_size=32)
    hashed.update(upload)
    return hashed.hexdigest()


def check_exchange_name(what: str, name: str) -> str:
    """The name of a federation or of a site, which becomes the name of a folder."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        allowed = "up to 64 letters a-z, digits, '.', '_' and '-', starting with a letter or digit"
        raise RecordError(f"{what} cannot be called '{shown(name)}': use {allowed}")
    return name


def encode_message(message: Request | Reply) -> bytes:
    plain = {f.name: getattr(message, f.name) for f in fields(message) if f.name not in ("address", "body")}
    if "pieces" in plain:
        plain["pieces"] = [[piece.size, piece.digest, piece.sent] for piece in plain["pieces"]]
    if "reason" in plain:
        plain["reason"] = shown(plain["reason"], MAX_REFUSAL_LETTERS)
    header = _dumped({"kind": _WORDS[type(message)], **asdict(message.address), **plain})
    if len(header) > MAX_HEADER_BYTES:
        raise WireError(f"the header of this message takes {len(header):,} bytes, more than {MAX_HEADER_BYTES:,}")
    parts = (len(header).to_bytes(8, "little"), header, getattr(message, "body", b""))
    return b"".join((MAGIC, _checksum(parts), *parts))


def decode_request(data: bytes) -> Request:
    """What a server sent; anything else is a `WireError`."""
    return cast(Request, _decoded(data, _REQUESTS))


def decode_reply(data: bytes) -> Reply:
    """What a site replied; anything else is a `WireError`."""
    return cast(Reply, _decoded(data, _REPLIES))


def _decoded(data: bytes, kinds: Mapping[str, type[Any]]) -> Any:
    header, body = _opened(data)
    message_type = kinds.get(header.get("kind", "")) if isinstance(header.get("kind"), str) else None
    if message_type is None:
        raise _not_a_message(f"it is of kind '{shown(header.get('kind'))}', not one of: {', '.join(kinds)}")
    names = [f.name for f in fields(message_type) if f.name not in ("address", "body")]
    expected = {"kind", *(f.name for f in fields(Address)), *names}
    if set(header) != expected:
        raise _not_a_message(f"its header must have exactly the keys: {', '.join(sorted(expected))}")
    for name in expected - {"kind"}:
        if not _CHECKS[name](header[name]):
            raise _not_a_message(f"its {name} is {shown(header[name])}")
    values = {name: _READ[name](header[name]) if name in _READ else header[name] for name in names}
    if message_type in (DownloadMessage, Commit):
        _check_sizes(values["pieces"], len(body))
    elif body and message_type is not UploadMessage:
        raise _not_a_message(f"{len(body):,} bytes follow its header")
    address = Address(*(header[f.name] for f in fields(Address)))
    bodies = {"body": body} if message_type in (DownloadMessage, Commit, UploadMessage) else {}
    return message_type(address, **values, **bodies)


def _opened(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header and the body of a message that is whole."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise _not_a_message(f"it has {len(data):,} bytes, but at most {MAX_MESSAGE_BYTES:,} are allowed")
    if data[:8] != MAGIC:
        raise _not_a_message(f"it begins with {data[:8]!r}, not with {MAGIC!r}")
    length = int.from_bytes(data[_LENGTH], "little")
    if length > MAX_HEADER_BYTES or _HEADER + length > len(data):
        raise _not_a_message(f"its header claims {length:,} bytes, which are missing or too many")
    if data[_SUM] != _checksum((memoryview(data)[_LENGTH.start :],)):
        raise _not_a_message("its checksum is wrong, so it is damaged; send it again")
    text, body = data[_HEADER : _HEADER + length], data[_HEADER + length :]
    try:
        header = json_value(text)
    except ValueError as error:
        raise _not_a_message(f"its header is not JSON: {shown(error)}") from error
    if not isinstance(header, dict) or _dumped(header) != text:
        raise _not_a_message("its header does not have the form that this version writes")
    return header, body


def _check_sizes(pieces: Sequence[Piece], body_bytes: int) -> None:
    if sum(piece.size for piece in pieces) > MAX_MESSAGE_BYTES:
        raise _not_a_message(f"its parcel is larger than the allowed {MAX_MESSAGE_BYTES:,} bytes")
    sent = sum(piece.size for piece in pieces if piece.sent)
    if sent != body_bytes:
        raise _not_a_message(f"it has {body_bytes:,} bytes of pieces, but its header says {sent:,}")


def _dumped(header: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    except RecursionError as error:
        raise _not_a_message("its header is nested too deeply") from error


def _checksum(parts: Sequence[bytes | memoryview]) -> bytes:
    hashed = blake2b(digest_size=32)
    for part in parts:
        hashed.update(part)
    return hashed.digest()


def _not_a_message(why: str) -> WireError:
    return WireError(f"this is not a message of the exchange: {why}")


# What each field of a header may be


def _is_whole(value: Any, least: int = 0) -> bool:
    return type(value) is int and least <= value < _MAX_INTEGER


def _is_text(form: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and form.fullmatch(value) is not None


def _is_piece(value: Any) -> bool:
    if not (isinstance(value, list) and len(value) == 3):
        return False
    size, digest, sent = value
    named = digest == "" or _is_text(_BLOCK, digest)
    return _is_whole(size) and named and type(sent) is bool and (sent or digest != "")


def _is_have(value: Any) -> bool:
    listed = isinstance(value, list) and len(value) <= MAX_OFFERED_BLOCKS
    return listed and all(_is_text(_BLOCK, each) for each in value) and len(set(value)) == len(value)


_CHECKS: dict[str, Callable[[Any], bool]] = {
    "federation": lambda value: _is_text(_NAME, value),
    "site": lambda value: _is_text(_NAME, value),
    "round": _is_whole,
    "attempt": lambda value: _is_whole(value, 1),
    "absorbed": lambda value: value == NONE_ABSORBED or _is_text(_DIGEST, value),
    "digest": lambda value: _is_text(_DIGEST, value),
    "pieces": lambda value: isinstance(value, list) and all(map(_is_piece, value)),
    "have": _is_have,
    "reason": lambda value: isinstance(value, str) and len(value) <= MAX_REFUSAL_LETTERS and value.isprintable(),
    "lost": lambda value: type(value) is bool,
}
_READ: dict[str, Callable[[Any], Any]] = {
    "pieces": lambda value: tuple(Piece(*each) for each in value),
    "have": tuple,
}
