"""A SuperNode forgets messages that it will never have whole, tried on flwr's own state."""

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supercore.task_identity import TaskIdentity
from flwr.supernode.nodestate import NodeState, NodeStateFactory
from flwr.supernode.start_client_internal import _pull_and_store_message, _push_messages

from stratafl.deploy import supernode
from stratafl.deploy.supernode import OneMessage

RUN = 1


@pytest.fixture
def state() -> NodeState:
    state = NodeStateFactory(objectstore_factory=ObjectStoreFactory()).state()
    state.set_node_id(7)
    state.store_run(Run.create_empty(RUN))
    return state


@pytest.fixture
def message(monkeypatch: pytest.MonkeyPatch) -> Message:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    message = Message(RecordDict({"table": ConfigRecord({"x": 1})}), 7, "train")
    message.metadata.__dict__["_message_id"] = message.object_id
    return message


def pulled(pull, state: NodeState, message: Message, pull_object) -> int | None:
    return pull(
        state=state,
        object_store=state.object_store,
        node_config={},
        receive=lambda: (message, get_object_tree(message)),
        get_run=lambda run: Run.create_empty(run),
        get_fab=lambda digest, run: Fab(digest, b"", {}),
        pull_object=pull_object,
        confirm_message_received=lambda run, message: None,
        trusted_entities=None,
    )


def the_run_is_over(run: int, name: str) -> bytes:
    raise RunNotRunningException


def left(state: NodeState, message: Message) -> tuple[int, bytes | None]:
    """How many messages a task would be given, and what it would get of this one: b"" is "not yet"."""
    found = state.get_messages_legacy(run_ids=[RUN], is_reply=False)
    return len(found), state.get_object(RUN, message.object_id)


def test_nothing_is_left_of_a_message_whose_run_ends_while_it_is_received(state: NodeState, message: Message) -> None:
    assert pulled(OneMessage(_pull_and_store_message, _push_messages).pull, state, message, the_run_is_over) is None
    assert left(state, message) == (0, None)


def test_flwr_leaves_it_which_is_why_we_remove_it(state: NodeState, message: Message) -> None:
    """If this fails, flwr has mended it, and `OneMessage` can go."""
    assert pulled(_pull_and_store_message, state, message, the_run_is_over) is None
    assert [task.type for task in state.get_tasks(run_ids=[RUN])] == [TaskType.CLIENT_APP]
    assert left(state, message) == (1, b"")


def test_a_message_that_was_received_whole_stays(state: NodeState, message: Message) -> None:
    parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    assert (
        pulled(OneMessage(_pull_and_store_message, _push_messages).pull, state, message, lambda run, name: parts[name])
        == RUN
    )
    assert left(state, message) == (1, parts[message.object_id])


def answered(state: NodeState, message: Message) -> str:
    """As a ClientApp does; the id of the answer."""
    reply = Message(RecordDict({"table": ConfigRecord({"answer": 1})}), reply_to=message)
    reply.metadata.__dict__["_message_id"] = reply.object_id
    state.object_store.preregister(RUN, get_object_tree(reply))
    for name, part in get_all_nested_objects(reply).items():
        state.object_store.put(name, part.deflate())
    state.store_message(reply)
    return reply.object_id


@pytest.mark.parametrize("ours", [True, False])
def test_the_answer_to_a_message_that_was_given_up_is_not_sent_in_place_of_the_next(
    state: NodeState, message: Message, ours: bool
) -> None:
    """All is there, the run ends before that is confirmed, and the ClientApp answers: flwr would send that next."""
    later = Message(RecordDict({"table": ConfigRecord({"x": 2})}), 7, "train")
    later.metadata.__dict__["_message_id"] = later.object_id
    one = OneMessage(_pull_and_store_message, _push_messages)
    sent = list[str]()

    def send(reply: Message, tree: object, seconds: float) -> tuple[set[str], str]:
        sent.append(reply.metadata.reply_to_message_id)
        return set(), ""

    pull, push = (one.pull, one.push) if ours else (_pull_and_store_message, _push_messages)
    assert pulled(pull, state, message, the_run_is_over) is None
    stale = answered(state, message)
    parts = {name: part.deflate() for name, part in get_all_nested_objects(later).items()}
    assert pulled(pull, state, later, lambda run, name: parts[name]) == RUN
    for each in (message, later):
        state.record_message_processing_start(each.object_id)
        state.record_message_processing_end(each.object_id)
    answered(state, later)
    push(state=state, object_store=state.object_store, send=send, push_object=lambda *given: None)
    assert sent == ([later.object_id] if ours else [message.object_id, later.object_id])
    assert state.object_store.get(stale) is None


def test_after_an_answer_it_soon_polls_again(state: NodeState, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, asked, empty = [100.0], list[float](), object()

    class Time:
        sleep = staticmethod(lambda seconds: clock.__setitem__(0, clock[0] + seconds))

    monkeypatch.setattr(supernode, "time", Time)

    def pull(receive, **given):
        asked.append(clock[0])
        return None if receive() is None else RUN

    one = OneMessage(pull, lambda **given: None)
    nothing = {"state": state, "object_store": empty, "receive": lambda: None}
    assert one.pull(**nothing) is None
    assert asked == [100.0]  # then flwr waits for three seconds
    one.push(state=state, object_store=empty)
    asked.clear()
    assert one.pull(**nothing) is None
    assert asked == [100.0, 100.5, 101.5, 103.5]
    asked.clear()
    assert one.pull(**nothing) is None
    assert len(asked) == 1
