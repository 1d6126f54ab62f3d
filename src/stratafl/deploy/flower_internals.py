"""Every use of a name of Flower that Flower does not call public, and every name of Flower that is replaced.

Public are `flwr.app`, `flwr.serverapp`, `flwr.clientapp` and the commands. A federation of `strata host` needs more:
the SuperLink must ask for a token and refuse messages in another's name, and the code that a server sends must not be
run. Other modules call the functions here and know nothing of flwr. Imports are inside of functions, since a site needs
nothing of a SuperLink; the comment behind each says why it is needed.
tests/deploy/test_flower_internals.py lists all names, and fails if one of them disappears.
"""

import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from hmac import compare_digest
from importlib import import_module
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from stratafl.deploy.processes import require_flower

require_flower()

# Names of flwr that are replaced, and why nothing public does it:
CONTROL_ACCOUNTS = ("flwr.superlink.cli.flower_superlink", "load_control_authn_plugin")  # else anyone starts runs
FLEET_PUSH = ("flwr.superlink.servicer.fleet.fleet_handlers", "push_messages")  # else sites speak for each other
TASK_PATIENCE = ("flwr.supercore.corestate.sql_corestate", "HEARTBEAT_PATIENCE")  # else an outage of 60 s ends a run
DATABASE = ("flwr.supercore.sql_mixin", "SQLITE_PRAGMAS")  # else a database that is busy for 5 s fails a request
REPLACED = (CONTROL_ACCOUNTS, FLEET_PUSH, TASK_PATIENCE, DATABASE)
# Attributes that are reached or assigned: of a grid `_runtime_client` and `node`, by which its messages are sent whole,
# and `_retry_invoker.max_time`, else it retries for ever; `_message_id` of a message's metadata, as flwr sets it in
# sending; `run_id`, `node_id` and `task_id` of a `TaskIdentity`, as flwr sets them in processes that it starts.


def current(name: tuple[str, str]) -> Any:
    module, attribute = name
    return getattr(import_module(module), attribute)


def replace(name: tuple[str, str], by: Any) -> None:
    """Give a name of flwr another value; an AttributeError if this flwr has no such name."""
    current(name)
    setattr(import_module(name[0]), name[1], by)


# The SuperLink


def token_authn(token: str) -> Any:
    """An account plugin with one account, for clients that know the token: flwr's own are commercial."""
    from flwr.common.constant import ACCESS_TOKEN_KEY  # under which a client states its token
    from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin  # what an account plugin has to be

    secret = token.encode()

    class TokenAuthn(NoOpControlAuthnPlugin):
        def validate_tokens_in_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> tuple[bool, Any]:
            stated = dict(metadata).get(ACCESS_TOKEN_KEY, "")
            stated = stated.encode(errors="replace") if isinstance(stated, str) else stated
            return super().validate_tokens_in_metadata(metadata) if compare_digest(stated, secret) else (False, None)

    return TokenAuthn()


def refuse_messages_for_others() -> None:
    """Let sites push one message at a time, which is a reply of their own to the host.

    flwr checks whose key signed a request, and not whose messages are in it. Signed messages do not replace this: a
    site that answers in another's place would cost it the round.
    """
    from fastapi import HTTPException
    from flwr.common.constant import SUPERLINK_NODE_ID  # to whom a site may send

    push = current(FLEET_PUSH)

    def pushed(request: Any, state: Any) -> Any:
        about = [message.metadata for message in request.messages_list]
        allowed = [(request.node.node_id, SUPERLINK_NODE_ID)]
        if [(each.src_node_id, each.dst_node_id) for each in about] != allowed or not about[0].reply_to_message_id:
            raise HTTPException(403, "a site may push one message: its own reply to the host")
        return push(request=request, state=state)

    replace(FLEET_PUSH, pushed)


def be_patient(intervals: int, milliseconds: int) -> None:
    """With ServerApps, in intervals of 30 s without a heartbeat, and with the database."""
    replace(TASK_PATIENCE, intervals)
    replace(DATABASE, (*current(DATABASE), ("busy_timeout", str(milliseconds))))  # the last one counts


def run_superlink(token: str) -> None:
    """The command `flower-superlink`, in this process, because names of it are replaced."""
    replace(CONTROL_ACCOUNTS, lambda: token_authn(token))  # host.py checks that it is in force
    refuse_messages_for_others()
    import_module("flwr.superlink.cli.flower_superlink").flower_superlink()  # its package has a function of that name


# The host's requests to its SuperLink


def control_client(address: str, root_certificates: bytes, token: str) -> Any:
    """A client of the control API: the command `flwr` sends no token."""
    from flwr.supercore.control import ControlHttpClient  # which the command `flwr` uses
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor  # requests must state a version

    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="flwr CLI"), _Bearer(token)]
    return ControlHttpClient.from_server_address(address, False, root_certificates, interceptors)


class _Bearer:
    """Adds the token to every request."""

    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def intercept(self, context: Any, call_next: Any) -> Any:
        context.request.headers["authorization"] = self._header
        return call_next(context)


def ask_control(client: Any, name: str, /, **fields: Any) -> Any:
    """The answer to a request of the control API, such as `ListRuns`."""
    from flwr.proto import control_pb2  # its requests

    return getattr(client, name)(getattr(control_pb2, f"{name}Request")(**fields))


def bundle_of(app: Path) -> Any:
    """The bundle that `flwr run` would make of this folder."""
    from flwr.cli.build import build_fab_from_disk  # no public name makes a bundle
    from flwr.common.serde import fab_to_proto  # as StartRun takes it
    from flwr.supercore.fab import Fab  # what `fab_to_proto` takes

    content = build_fab_from_disk(app)
    return fab_to_proto(Fab(sha256(content).hexdigest(), content, {}))


def reason_in(answer: str) -> str:
    """What Flower says in the body of an answer that refuses; empty if it says nothing."""
    from flwr.supercore.error import FlowerError  # in which Flower says why it refuses

    details = FlowerError.from_json(answer)
    return f"[code: {details.code}] {details.message} {details.public_details or ''}".strip() if details else ""


# Runs of a SuperLink


def runtime_client(address: str, root_certificates: bytes, *, secret: bytes | None, token: str, retries: bool) -> Any:
    """A client that may ask for tasks (`secret`) or work on one (`token`): flower-superexec would run what was sent.

    With retries, an outage is waited out, and a 401 interrupts this process (flwr): the task is over.
    """
    from flwr.supercore.interceptors import (
        RuntimeTokenHttpInterceptor,  # shows that a request belongs to a task
        RuntimeVersionHttpInterceptor,  # requests must state a version
        SuperExecAuthHttpInterceptor,  # shows that this process may ask for tasks
    )
    from flwr.supercore.retry import make_simple_http_retry_invoker  # waits out an outage
    from flwr.supercore.runtime import RuntimeHttpClient  # what an own flower-superexec needs

    protected = ("/flwr.proto.Runtime/AcquireTask",)
    interceptors: list[Any] = [RuntimeVersionHttpInterceptor(component_name="stratafl")]
    if secret is not None:
        interceptors.append(SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods=protected))
    if token:
        interceptors.append(RuntimeTokenHttpInterceptor(token))
    invoker = make_simple_http_retry_invoker() if retries else None
    return RuntimeHttpClient.from_server_address(address, False, root_certificates, interceptors, retry_invoker=invoker)


def acquire_task(client: Any) -> str:
    """The token of a run that waits for its ServerApp, or nothing."""
    from flwr.proto.runtime_pb2 import AcquireTaskRequest  # asks for a task
    from flwr.supercore.constant import TaskType  # of which kind

    acquired = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
    return str(acquired.token) if acquired.HasField("task") else ""


def send_task_heartbeat(client: Any) -> None:
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest  # else the run counts as gone

    client.SendTaskHeartbeat(SendTaskHeartbeatRequest())


def push_task_end(client: Any, completed: bool, reason: str) -> None:
    from flwr.common.constant import SubStatus  # how a run has ended
    from flwr.proto.runtime_pb2 import PushTaskOutputRequest  # says so

    status = SubStatus.COMPLETED if completed else SubStatus.FAILED
    client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=reason))


# A site at the fleet API

APP_FAILED = 2  # flwr's ErrorCode.CLIENT_APP_RAISED_EXCEPTION, which is on the wire
_TIMEOUT = 120.0  # seconds without a byte; flwr takes 30, too few for a piece of 5 MiB over a slow line
_PIECES: dict[str, Any] = {
    "max_time": 60.0,
    "initial_backoff": 0.2,
    "backoff_cap": 2.0,
}  # seconds for a message to become complete


def fleet_client(server: str, root_certificates: bytes, key: Any, retries: Any = None) -> Any:
    """A client that signs as a site: flower-supernode would run what the server sends, and asks every 3 s."""
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor  # requests must state a version
    from flwr.supernode.fleet_http_client import FleetHttpClient  # what an own flower-supernode needs
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor  # signs requests with the site's key

    interceptors: list[Any] = [
        RuntimeVersionHttpInterceptor("SuperNode"),
        NodeAuthHttpInterceptor(key, key.public_key()),
    ]
    trusted = ssl.create_default_context(cadata=root_certificates.decode())
    return FleetHttpClient(
        f"https://{server}", interceptors=interceptors, verify=trusted, timeout=_TIMEOUT, retry_invoker=retries
    )


class FleetNode:
    """A site that is connected to a SuperLink: what a SuperNode does on the wire, without running code."""

    def __init__(self, server: str, root_certificates: bytes, key: Any, retries: Any) -> None:
        from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL  # the one that the SuperLink expects
        from flwr.proto.fleet_pb2 import ActivateNodeRequest  # connects the site
        from flwr.proto.node_pb2 import Node  # who asks, in every request

        self._client = fleet_client(server, root_certificates, key, retries)
        self._beats = fleet_client(server, root_certificates, key)
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self._interval = HEARTBEAT_DEFAULT_INTERVAL
        request = ActivateNodeRequest(public_key=public, heartbeat_interval=self._interval)
        self.number = int(self._client.ActivateNode(request).node_id)
        self._node = Node(node_id=self.number)

    def beat(self) -> bool:
        """Say that this site is there; whether it is still registered."""
        from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest  # else the site counts as gone

        request = SendNodeHeartbeatRequest(node=self._node, heartbeat_interval=self._interval)
        return bool(self._beats.SendNodeHeartbeat(request).success)

    def message(self) -> Any:
        """The next message, whole and confirmed, or None."""
        from flwr.proto.fleet_pb2 import PullMessagesRequest  # asks for a message
        from flwr.supercore.task_identity import TaskIdentity  # a message cannot be made outside a task

        pulled = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not pulled.messages_list:
            return None
        entry, tree = pulled.messages_list[0], pulled.message_object_trees[0]
        message = _received(self._client, self._node, entry, tree, **_PIECES)
        run = entry.metadata.run_id
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = run, self.number, 0  # of the reply
        return message

    def send(self, reply: Any) -> None:
        from flwr.proto.fleet_pb2 import PushMessagesRequest  # announces the reply

        entry, tree, objects = _parts(reply)
        request = PushMessagesRequest(
            node=self._node, messages_list=[entry], message_object_trees=[tree], clientapp_runtime_list=[0.0]
        )
        _push_objects(self._client, self._node, reply, objects, self._client.PushMessages(request))


def sign_off(server: str, root_certificates: bytes, key: Any, node_id: int) -> None:
    """Say for a process that has ended that it is gone, which none of Flower's commands can."""
    from flwr.proto.fleet_pb2 import DeactivateNodeRequest  # signs a site off

    with fleet_client(server, root_certificates, key) as client:
        client.DeactivateNode(DeactivateNodeRequest(node_id=node_id))


def message_is_lost() -> tuple[type[Exception], ...]:
    """The exceptions with which flwr says that a part of a message will not come, or was not taken."""
    from flwr.supercore.inflatable.inflatable_utils import ObjectPullError, ObjectPushError  # what is lost, each way

    return ObjectPullError, ObjectPushError


# Messages of both: what has no arrays is small, and travels whole in the request that announces it, because the
# SuperLink keeps a message with its content; flwr takes a request for each record, each way.


def _parts(message: Any) -> tuple[Any, Any, dict[str, Any]]:
    """What announces a message, the tree of its objects, and the objects, which follow one by one.

    Of a message that travels whole, the one object has its metadata, and an error in the place of its content, because
    flwr knows no message without either; who receives it reads the content of the announcement.
    """
    from flwr.app import Error
    from flwr.app.message import make_message, remove_content_from_message  # public ones set no metadata
    from flwr.common.serde import message_to_proto  # as a request takes a message
    from flwr.supercore.inflatable.inflatable_object import (
        get_all_nested_objects,  # the parts of a message, which follow it
        get_object_tree,  # their names, which are announced
        no_object_id_recompute,  # else all is hashed again and again
    )

    is_whole = message.has_content() and not message.content.array_records
    with no_object_id_recompute():
        top = make_message(message.metadata, error=Error(0)) if is_whole else message
        message.metadata.__dict__["_message_id"] = top.object_id
        entry = message_to_proto(message if is_whole else remove_content_from_message(message))
        return entry, get_object_tree(top), get_all_nested_objects(top)


def _push_objects(client: Any, node: Any, message: Any, objects: dict[str, Any], announced: Any) -> None:
    """What the SuperLink lacks of a message that was announced.

    The one object of a message that travels whole is refused if the message was taken and confirmed before it came.
    """
    from flwr.supercore.inflatable.inflatable_object import no_object_id_recompute  # else all is hashed again and again
    from flwr.supercore.inflatable.inflatable_protobuf_utils import make_push_object_fn_protobuf  # sends one part
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError, push_objects  # sends all parts

    run, missing, is_whole = message.metadata.run_id, set(announced.objects_to_push), len(objects) == 1
    with no_object_id_recompute(), suppress(*([ObjectPushError] if is_whole else ())):
        push = make_push_object_fn_protobuf(client.PushObject, node, run, announced.session_id)
        push_objects(objects, push, object_ids_to_push=missing)


def _received(client: Any, node: Any, entry: Any, tree: Any, **limits: Any) -> Any:
    """The message of an announcement, whole and confirmed."""
    from flwr.app import Message
    from flwr.common.serde import message_from_proto  # as an announcement has it
    from flwr.supercore.inflatable.inflatable_protobuf_utils import (
        make_confirm_message_received_fn_protobuf,  # else the sender's part is kept
        make_pull_object_fn_protobuf,  # fetches one part
    )
    from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree  # fetches and joins them

    run = entry.metadata.run_id
    confirm = make_confirm_message_received_fn_protobuf(client.ConfirmMessageReceived, node, run)
    if tree.children:
        pull = make_pull_object_fn_protobuf(client.PullObject, node, run)
        message: Any = pull_and_inflate_object_from_tree(tree, pull, confirm, return_type=Message, **limits)
    else:
        message = message_from_proto(entry)
        confirm(tree.object_id)
    message.metadata.__dict__["_message_id"] = tree.object_id  # which the message itself cannot hold
    return message


# The grid of a ServerApp


class HostGrid:
    """The grid that flwr gives to a ServerApp, with whole messages, and a limit to how long half a reply is waited for.

    flwr's own waits for longer than an hour.
    """

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def get_nodes(self) -> Any:
        return self._grid.get_nodes()

    def push_messages(self, messages: Sequence[Any]) -> list[str]:
        """Send messages; their ids, or "" for one that was not accepted."""
        from flwr.proto.runtime_pb2 import PushAppMessagesRequest  # announces a message

        numbers, client = list[str](), self._grid._runtime_client
        for message in messages:
            entry, tree, objects = _parts(message)
            request = PushAppMessagesRequest(messages_list=[entry], message_object_trees=[tree])
            announced = client.PushMessages(request)
            _push_objects(client, self._grid.node, message, objects, announced)
            numbers += announced.message_ids
        return numbers

    def pull_messages(self, numbers: Sequence[str], seconds: float, pause: float) -> list[Any]:
        """The replies that are there to these messages, each of which may take so long until it is whole."""
        from flwr.proto.runtime_pb2 import PullAppMessagesRequest  # asks for replies

        client, limits = self._grid._runtime_client, {"max_time": seconds, "backoff_cap": pause}
        pulled = client.PullMessages(PullAppMessagesRequest(message_ids=numbers))
        announced = zip(pulled.messages_list, pulled.message_object_trees, strict=True)
        return [_received(client, self._grid.node, entry, tree, **limits) for entry, tree in announced]

    @contextmanager
    def bounded_retries(self, seconds: float) -> Iterator[None]:
        """Limit how long requests are retried: flwr retries for ever, past any deadline."""
        retries = self._grid._retry_invoker
        retries.max_time = seconds
        try:
            yield
        finally:
            retries.max_time = None
