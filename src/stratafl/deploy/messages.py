"""The content of Flower's messages between host and sites: a short table, and bytes.

The bytes are those of `execute/exchange/protocol.py`, in which parcels lie field by field and layer by layer. They are
one array: Flower takes a request for every record and array, 0.1 to 0.4 s each on a busy machine.
"""

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from stratafl.deploy.courier import Kind
from stratafl.errors import WireError, shown
from stratafl.files import json_value

TYPES: dict[Kind, str] = {"introduce": "query.introduce", "agree": "query.agree", "round": "train.round"}
MAX_TABLE_BYTES = 1 << 22  # bytes
_BYTES = "stratafl.bytes"


def content_of(table: Mapping[str, Any], body: bytes = b"") -> RecordDict:
    array = Array(dtype="uint8", shape=(len(body),), stype=_BYTES, data=body)
    return RecordDict({"table": ConfigRecord({"json": json.dumps(table)}), "body": ArrayRecord({"bytes": array})})


def read_content(content: RecordDict) -> tuple[dict[str, Any], bytes]:
    """Table and bytes; a `WireError` if it is anything else."""
    table, body = content.get("table"), content.get("body")
    text = table.get("json") if isinstance(table, ConfigRecord) else None
    array = body.get("bytes") if isinstance(body, ArrayRecord) and len(body) == 1 else None
    if not isinstance(text, str) or len(text) > MAX_TABLE_BYTES or array is None or array.stype != _BYTES:
        raise WireError("this is not a message of stratafl: run the same version on both sides")
    try:
        content_table = json_value(text.encode())
    except ValueError as error:
        raise WireError(f"the table of this message is not JSON: {shown(error)}") from error
    if not isinstance(content_table, dict):
        raise WireError("the table of this message is not a table")
    return content_table, array.data
