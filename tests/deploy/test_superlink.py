"""What a SuperLink takes from a site: its own replies, and nothing in the name of others."""

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

from fastapi import HTTPException
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.superlink.routers.fleet import router
from flwr.superlink.servicer.fleet import fleet_handlers

from stratafl.deploy import flower_internals

NORTH, SOUTH = 7, 8


def asked(**about: object) -> PushMessagesRequest:
    """A request that is signed by 'north'."""
    usual = {"src_node_id": NORTH, "dst_node_id": SUPERLINK_NODE_ID, "reply_to_message_id": "a", "run_id": 1}
    return PushMessagesRequest(node=Node(node_id=NORTH), messages_list=[Message(metadata=Metadata(**usual | about))])


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[PushMessagesRequest]:
    """The requests that reach flwr's own handler."""
    found: list[PushMessagesRequest] = []

    def push(request: PushMessagesRequest, state: object) -> PushMessagesResponse:
        found.append(request)
        return PushMessagesResponse()

    monkeypatch.setattr(fleet_handlers, "push_messages", push)
    flower_internals.refuse_messages_for_others()
    return found


def test_a_reply_of_a_site_is_taken(taken: list[PushMessagesRequest]) -> None:
    router.fleet_push_messages(asked(), SimpleNamespace())
    assert len(taken) == 1


@pytest.mark.parametrize(
    "about",
    [
        {"src_node_id": SUPERLINK_NODE_ID, "dst_node_id": SOUTH, "reply_to_message_id": ""},  # as the host would
        {"dst_node_id": SOUTH, "reply_to_message_id": ""},
        {"reply_to_message_id": ""},
        {"src_node_id": SOUTH},
        {"dst_node_id": SOUTH},
    ],
)
def test_a_site_cannot_speak_for_the_host_or_for_another_site(
    taken: list[PushMessagesRequest], about: dict[str, object]
) -> None:
    with pytest.raises(HTTPException) as refused:
        router.fleet_push_messages(asked(**about), SimpleNamespace())
    assert (refused.value.status_code, taken) == (403, [])


def test_a_request_has_one_message(taken: list[PushMessagesRequest]) -> None:
    two = asked()
    two.messages_list.append(two.messages_list[0])
    for request in (two, PushMessagesRequest(node=Node(node_id=NORTH))):
        with pytest.raises(HTTPException):
            router.fleet_push_messages(request, SimpleNamespace())
    assert taken == []
