"""The content of Flower's messages between host and sites: a short table, bytes, and the signature of both.

The bytes are those of `execute/exchange/protocol.py`, in which parcels lie field by field and layer by layer. Flower
takes a request for every record, array and piece of an array: few bytes are part of the table's record, more are one
array.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict

from stratafl.deploy.courier import Kind, SignedMessage
from stratafl.errors import WireError

TYPES: dict[Kind, str] = {
    "identify": "query.identify",
    "introduce": "query.introduce",
    "agree": "query.agree",
    "round": "train.round",
    "report": "query.report",
    "secure": "query.secure",
}
MAX_TABLE_BYTES = 1 << 22  # bytes
MAX_ROUND_TABLE_BYTES = 1 << 19  # of a reply in a round: a score, or in a secure sum shares for 1,500 other sites
MAX_RECORD_BYTES = 1 << 20  # bytes that travel in the record; Flower cuts only arrays into pieces
_BYTES = "stratafl.bytes"


def most_message_bytes(upload: int) -> int:
    """What a message takes at most on the wire, with its table, the list of blocks that a site has, and headers.

    Without an upload it is an introduction, whose table describes all columns of the site's samples. Masked numbers
    take 8 bytes each, twice those of an upload (`secure/`).
    """
    return 2 * upload + upload // 4 + (MAX_ROUND_TABLE_BYTES if upload else MAX_TABLE_BYTES) + (1 << 16)


def answer_all(app: Any, answered: Callable[[Kind, Message, Context], Message]) -> None:
    """Let a ClientApp answer every kind of message so."""
    for kind, name in TYPES.items():
        category, _, action = name.partition(".")
        getattr(app, category)(action)(partial(answered, kind))


def content_of(message: SignedMessage) -> RecordDict:
    about = ConfigRecord({"json": message.table, "number": message.number, "signature": message.signature})
    if len(message.body) <= MAX_RECORD_BYTES:
        about["body"] = message.body
        return RecordDict({"table": about})
    array = Array(dtype="uint8", shape=(len(message.body),), stype=_BYTES, data=message.body)
    return RecordDict({"table": about, "body": ArrayRecord({"bytes": array})})


def read_content(content: RecordDict) -> SignedMessage:
    """The message; a `WireError` if it is anything else."""
    about, body = content.get("table"), content.get("body")
    if isinstance(about, ConfigRecord):
        array = body.get("bytes") if isinstance(body, ArrayRecord) and len(body) == 1 else None
        data = array.data if array is not None and array.stype == _BYTES else about.get("body")
        match about.get("json"), about.get("number"), about.get("signature"), data:
            case bytes(table), int(number), bytes(signature), bytes(data) if len(table) <= MAX_TABLE_BYTES:
                return SignedMessage(table, data, number, signature)
    raise WireError("this is not a message of stratafl: run the same version on both sides")
