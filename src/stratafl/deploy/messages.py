"""The content of Flower's messages between host and sites: a short table, bytes, and the signature of both.

The bytes are those of `execute/exchange/protocol.py`, in which parcels lie field by field and layer by layer. They are
one array: Flower takes a request for every record and array, 0.1 to 0.4 s each on a busy machine.
"""

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from stratafl.deploy.courier import Kind, SignedMessage
from stratafl.errors import WireError

TYPES: dict[Kind, str] = {
    "identify": "query.identify",
    "introduce": "query.introduce",
    "agree": "query.agree",
    "round": "train.round",
}
MAX_TABLE_BYTES = 1 << 22  # bytes
_BYTES = "stratafl.bytes"


def content_of(message: SignedMessage) -> RecordDict:
    array = Array(dtype="uint8", shape=(len(message.body),), stype=_BYTES, data=message.body)
    about = ConfigRecord({"json": message.table, "number": message.number, "signature": message.signature})
    return RecordDict({"table": about, "body": ArrayRecord({"bytes": array})})


def read_content(content: RecordDict) -> SignedMessage:
    """The message; a `WireError` if it is anything else."""
    about, body = content.get("table"), content.get("body")
    array = body.get("bytes") if isinstance(body, ArrayRecord) and len(body) == 1 else None
    if isinstance(about, ConfigRecord) and array is not None and array.stype == _BYTES:
        match about.get("json"), about.get("number"), about.get("signature"):
            case bytes(table), int(number), bytes(signature) if len(table) <= MAX_TABLE_BYTES:
                return SignedMessage(table, array.data, number, signature)
    raise WireError("this is not a message of stratafl: run the same version on both sides")
