"""Messages of an exchange that are random or changed: refused in one line, or the only encoding of what they hold.

100,000 inputs to both decoders (seed 0; `make test` takes 3,000 of another seed). Half of them are changed bytes; in
the other half the header is changed and the checksum computed anew, as by somebody who wants to deceive.
"""

import json
import random
import tracemalloc
from collections import Counter
from hashlib import blake2b

import pytest
from crashes import Disk
from small_federation import SITES, Federation
from test_refusals import files

from stratafl.errors import WireError
from stratafl.execute.exchange import protocol
from stratafl.execute.exchange.protocol import (
    MAGIC,
    MAX_HEADER_BYTES,
    Address,
    Commit,
    Committed,
    DownloadMessage,
    Piece,
    Refusal,
    SendAll,
    UploadMessage,
    decode_reply,
    decode_request,
    encode_message,
)

ADDRESS = Address("digits-2026", "anna", 3, 17)
DIGEST, BLOCK = "0123456789abcdef" * 4, "fedcba9876543210" * 2
MESSAGES = tuple(
    encode_message(message)
    for message in (
        DownloadMessage(
            ADDRESS, DIGEST, (Piece(5), Piece(4, BLOCK), Piece(3, BLOCK[::-1], False)), b"headblck"[:9] + b"s"
        ),
        DownloadMessage(ADDRESS, "", (), b""),
        Commit(ADDRESS, DIGEST, (Piece(4, BLOCK),), b"data"),
        UploadMessage(ADDRESS, DIGEST, (BLOCK, BLOCK[::-1]), b"an encoded parcel"),
        SendAll(ADDRESS),
        Committed(ADDRESS, DIGEST),
        Refusal(ADDRESS, "its disk is full"),
    )
)
ANNA = SITES[0]
DECODERS = (decode_request, decode_reply)
ODD = (None, True, -1, 0, 1, 2**53, 2**53 - 1, 10**30, 1.5, float("nan"), "", "x", "../x", "a" * 65, "\n", "ä", DIGEST)
ODD += (
    BLOCK,
    [],
    [BLOCK],
    [BLOCK, BLOCK],
    {},
    [[1, "", True]],
    [[9, BLOCK, False]],
    [[2**52, BLOCK, False]],
    [[-1, "", True]],
)
ODD += ("download", "commit", "upload", "send all", "committed", "refusal")


def sealed(header: bytes, body: bytes, length: int | None = None) -> bytes:
    rest = (len(header) if length is None else length).to_bytes(8, "little") + header + body
    return MAGIC + blake2b(rest, digest_size=32).digest() + rest


def parts(message: bytes) -> tuple[dict, bytes]:
    length = int.from_bytes(message[40:48], "little")
    return json.loads(message[48 : 48 + length]), message[48 + length :]


def changed_bytes(draw: random.Random, message: bytes) -> bytes:
    data, kind = bytearray(message), draw.randrange(6)
    at = draw.randrange(len(data))
    if kind == 0:
        data[at] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at:at] = draw.randbytes(draw.randint(1, 9))
    elif kind == 3:
        del data[at : at + draw.randint(1, 9)]
    elif kind == 4:
        data[at : at + 8] = draw.choice((b"\xff" * 8, b"\0" * 8, draw.randbytes(8)))
    else:
        data[:] = draw.choice((b"", MAGIC)) + draw.randbytes(draw.randrange(200))
    return bytes(data)


def changed_header(draw: random.Random, message: bytes) -> bytes:
    header, body = parts(message)
    for _ in range(draw.choice((1, 1, 2))):
        key, kind = draw.choice(sorted(header) or ["kind"]), draw.randrange(8)
        if kind < 4:
            header[key] = draw.choice(ODD)
        elif kind == 4:
            header.pop(key, None)
        elif kind == 5:
            header[draw.choice(("extra", "body", "address", "absorbed", "digest", "have"))] = draw.choice(ODD)
        elif kind == 6:
            body = draw.choice((b"", body + b"x", body[1:], draw.randbytes(len(body))))
        else:
            header = parts(draw.choice(MESSAGES))[0]
    text = json.dumps(
        header, sort_keys=draw.random() < 0.95, separators=draw.choice(((",", ":"),) * 9 + ((", ", ": "),))
    )
    if draw.random() < 0.05:
        text = text[:-1] + draw.choice((',"kind":"commit"}', "", "}}", ',"x":[' + "[" * 500))
    length = draw.choice((None,) * 9 + (0, 2**63, len(text) + 1))
    return sealed(text.encode(), body, length)


def check_one_line(said: str) -> None:
    assert said.isprintable(), said
    assert len(said) < 600


def outcomes(cases: int, seed: int) -> Counter[str]:
    draw, counted = random.Random(seed), Counter[str]()
    for case in range(cases):
        message = draw.choice(MESSAGES)
        kind = ("bytes", "header")[case % 2]
        data = (changed_bytes if kind == "bytes" else changed_header)(draw, message)
        for decoder in DECODERS:
            try:
                found = decoder(data)
            except WireError as error:
                check_one_line(str(error))
                counted[f"{kind}: refused"] += 1
                continue
            assert encode_message(found) == data
            counted[f"{kind}: {'as it was' if data in MESSAGES else 'another message'}"] += 1
    return counted


@pytest.mark.parametrize(
    ("cases", "seed"),
    [
        (3_000, 1),
        pytest.param(30_000, 2, marks=pytest.mark.slow),
        pytest.param(100_000, 0, marks=pytest.mark.nightly),
    ],
    ids=["quick", "more", "whole"],
)
def test_what_is_no_message_is_refused(cases, seed):
    counted = outcomes(cases, seed)
    assert counted["bytes: another message"] == 0  # no change of bytes goes by the checksum
    assert counted["header: another message"] > cases / 100  # addresses, digests and bodies that could have been sent
    assert counted["header: refused"] > cases / 2
    assert counted.total() == 2 * cases


BOMBS = {
    "a length": MAGIC + b"\0" * 32 + b"\xff" * 8,
    "nested lists": sealed(b"[" * MAX_HEADER_BYTES, b""),
    "many lists": sealed(b"[" + b"[]," * (MAX_HEADER_BYTES // 3 - 2) + b"[]]", b""),
    "a long number": sealed(b'{"round":' + b"9" * 100_000 + b"}", b""),
    "a long name": sealed(b'{"kind":"' + b"x" * (MAX_HEADER_BYTES - 20) + b'"}', b""),
    "a header that is too long": sealed(b" " * (MAX_HEADER_BYTES + 1), b""),
    "large pieces": sealed(
        json.dumps(
            parts(MESSAGES[0])[0] | {"pieces": [[2**52, BLOCK, False]] * 9}, sort_keys=True, separators=(",", ":")
        ).encode(),
        b"",
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name == "many lists" else []) for name in BOMBS]
)
def test_memory_is_bounded(name):
    tracemalloc.start()
    try:
        for decoder in DECODERS:
            with pytest.raises(WireError) as raised:
                decoder(BOMBS[name])
            check_one_line(str(raised.value))
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_a_message_above_the_limit_is_refused(monkeypatch):
    for message in MESSAGES[:3]:
        monkeypatch.setattr(protocol, "MAX_MESSAGE_BYTES", len(message))
        assert decode_request(message)
        monkeypatch.setattr(protocol, "MAX_MESSAGE_BYTES", len(message) - 1)
        with pytest.raises(WireError, match="are allowed"):
            decode_request(message)


@pytest.mark.parametrize(
    "cases",
    [150, pytest.param(1_000, marks=pytest.mark.slow), pytest.param(4_000, marks=pytest.mark.nightly)],
    ids=["quick", "more", "whole"],
)
def test_nothing_changes_by_what_is_refused(tmp_path, cases):
    """Changed messages to a site and replies to a server in the middle of a round, which then goes on."""
    federation, draw, counted = Federation(tmp_path), random.Random(cases), Counter[str]()
    with Disk()(), federation.server() as server:
        for site in SITES:
            server.take(site, federation.answer(site, server.ask(site)))
        server.absorb()
        message = server.ask(ANNA)
        reply = federation.answer(ANNA, message)
        before, told = files(tmp_path, but="audit.jsonl"), len(federation.log())
        for case in range(cases):
            change = (changed_bytes, changed_header)[case % 2]
            data, answered = change(draw, reply), change(draw, message)
            if data != reply and addressed(data, decode_reply) != decode_reply(reply).address:
                answer = server.take(ANNA, data)
                counted[answer.kind] += 1
                check_one_line(answer.reason)
            if answered != message and addressed(answered, decode_request) is None:
                with pytest.raises(WireError):
                    federation.answer(ANNA, answered)
        assert files(tmp_path, but="audit.jsonl") == before
        assert len(federation.log()) == told + counted.total()
        assert set(counted) == {"refused"}
        assert counted.total() > cases / 2
        assert server.take(ANNA, reply).kind == "accepted"


def addressed(data: bytes, decoder) -> Address | None:
    """The address of what is a message all the same."""
    try:
        return decoder(data).address
    except WireError:
        return None
