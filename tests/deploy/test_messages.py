"""The content of Flower's messages: few bytes travel in the table's record, more as an array."""

import os

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from stratafl.deploy.courier import SignedMessage
from stratafl.deploy.messages import (
    MAX_RECORD_BYTES,
    MAX_ROUND_TABLE_BYTES,
    MAX_TABLE_BYTES,
    content_of,
    most_message_bytes,
    read_content,
)
from stratafl.errors import WireError


@pytest.mark.parametrize("size", [0, 904, MAX_RECORD_BYTES, MAX_RECORD_BYTES + 1])
def test_a_message_comes_back_whole(size: int) -> None:
    message = SignedMessage(b"{}", os.urandom(size), 7, b"signed")
    content = content_of(message)
    assert len(content) == (1 if size <= MAX_RECORD_BYTES else 2)  # records: a request each
    assert read_content(content) == message


ABOUT = {"json": b"{}", "number": 1, "signature": b"", "body": b""}
ARRAY = Array(dtype="uint8", shape=(1,), stype="numpy.ndarray", data=b"x")


@pytest.mark.parametrize(
    "records",
    [
        {},
        {"table": ArrayRecord({"x": ARRAY})},
        *({"table": ConfigRecord({key: value for key, value in ABOUT.items() if key != left})} for left in ABOUT),
        {"table": ConfigRecord(ABOUT | {"body": "text"})},
        {"table": ConfigRecord(ABOUT | {"number": "1"})},
        {"table": ConfigRecord(ABOUT | {"json": bytes(MAX_TABLE_BYTES + 1)})},
        {"table": ConfigRecord(ABOUT | {"body": 1}), "body": ArrayRecord({"bytes": ARRAY})},
    ],
)
def test_anything_else_is_no_message(records: dict[str, object]) -> None:
    with pytest.raises(WireError):
        read_content(RecordDict(records))


@pytest.mark.parametrize("size", [0, 904, 20_000_000])
def test_a_message_takes_no_more_than_is_said(size: int) -> None:
    """With everything that flwr puts around it, and the largest table; flwr sends equal pieces once."""
    table = MAX_ROUND_TABLE_BYTES if size else MAX_TABLE_BYTES
    content = content_of(SignedMessage(os.urandom(table), os.urandom(size), 7, bytes(64)))
    parts = get_all_nested_objects(content).values()
    assert sum(len(part.deflate()) for part in parts) < most_message_bytes(size)
    assert most_message_bytes(904) < 600_000 < most_message_bytes(0)
