"""Which names of flwr are used that Flower does not call public: they are listed here, and live in one module."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs pip install 'stratafl[flower]'")

from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import get_object_id, iterate_object_tree
from flwr.supercore.task_identity import TaskIdentity

import stratafl
from stratafl.deploy import flower_internals, processes
from stratafl.deploy.courier import SignedMessage
from stratafl.deploy.messages import MAX_RECORD_BYTES, content_of, read_content
from stratafl.deploy.processes import require_flower
from stratafl.errors import DeployError

PUBLIC = {"flwr.app", "flwr.serverapp", "flwr.clientapp"}
HOME = "deploy/flower_internals.py"
IMPORTED = {
    "flwr.app.message": {"make_message", "remove_content_from_message"},
    "flwr.cli.build": {"build_fab_from_disk"},
    "flwr.common.constant": {"ACCESS_TOKEN_KEY", "HEARTBEAT_DEFAULT_INTERVAL", "SUPERLINK_NODE_ID", "SubStatus"},
    "flwr.common.serde": {"fab_to_proto", "message_from_proto", "message_to_proto"},
    "flwr.proto": {"control_pb2"},
    "flwr.proto.fleet_pb2": {
        "ActivateNodeRequest",
        "DeactivateNodeRequest",
        "PullMessagesRequest",
        "PushMessagesRequest",
    },
    "flwr.proto.heartbeat_pb2": {"SendNodeHeartbeatRequest"},
    "flwr.proto.node_pb2": {"Node"},
    "flwr.proto.runtime_pb2": {
        "AcquireTaskRequest",
        "PullAppMessagesRequest",
        "PushAppMessagesRequest",
        "PushTaskOutputRequest",
        "SendTaskHeartbeatRequest",
    },
    "flwr.supercore.constant": {"TaskType"},
    "flwr.supercore.control": {"ControlHttpClient"},
    "flwr.supercore.error": {"FlowerError"},
    "flwr.supercore.fab": {"Fab"},
    "flwr.supercore.inflatable.inflatable_object": {
        "get_all_nested_objects",
        "get_object_tree",
        "no_object_id_recompute",
    },
    "flwr.supercore.inflatable.inflatable_protobuf_utils": {
        "make_confirm_message_received_fn_protobuf",
        "make_pull_object_fn_protobuf",
        "make_push_object_fn_protobuf",
    },
    "flwr.supercore.inflatable.inflatable_utils": {
        "ObjectPullError",
        "ObjectPushError",
        "pull_and_inflate_object_from_tree",
        "push_objects",
    },
    "flwr.supercore.interceptors": {
        "RuntimeTokenHttpInterceptor",
        "RuntimeVersionHttpInterceptor",
        "SuperExecAuthHttpInterceptor",
    },
    "flwr.supercore.retry": {"make_simple_http_retry_invoker"},
    "flwr.supercore.runtime": {"RuntimeHttpClient"},
    "flwr.supercore.task_identity": {"TaskIdentity"},
    "flwr.superlink.auth_plugin": {"NoOpControlAuthnPlugin"},
    "flwr.superlink.cli.flower_superlink": {"flower_superlink"},
    "flwr.supernode.fleet_http_client": {"FleetHttpClient"},
    "flwr.supernode.node_auth_http_interceptor": {"NodeAuthHttpInterceptor"},
}
CALLED = {  # methods and fields of theirs, by the client they belong to
    ("flwr.supercore.control", "ControlHttpClient"): "RegisterNode UnregisterNode StartRun ListRuns StopRun ListNodes",
    ("flwr.supercore.runtime", "RuntimeHttpClient"): "AcquireTask SendTaskHeartbeat PushTaskOutput from_server_address "
    "PullMessages PushMessages PullObject PushObject ConfirmMessageReceived",
    ("flwr.superlink.grid.http_grid", "HttpGrid"): "_runtime_client node _retry_invoker",
    ("flwr.supercore.retry.retry_invoker", "RetryInvoker"): "max_time",
    ("flwr.supercore.task_identity", "TaskIdentity"): "run_id node_id task_id",
    ("flwr.app", "Metadata"): "_message_id",
    ("flwr.supernode.fleet_http_client", "FleetHttpClient"): "ActivateNode DeactivateNode SendNodeHeartbeat "
    "PullMessages PushMessages PullObject PushObject ConfirmMessageReceived",
    ("flwr.supercore.constant", "TaskType"): "SERVER_APP",
}


def modules() -> Iterator[tuple[str, ast.Module]]:
    """Those that name flwr."""
    source = Path(stratafl.__file__).parent
    for path in source.rglob("*.py"):
        if "flwr" in (text := path.read_text()):
            yield str(path.relative_to(source)), ast.parse(text)


def names_of_flwr(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Modules and names that are imported, and texts that name a module of flwr."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.split(".")[0] == "flwr")
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("flwr."):
            yield node.value, ""


def test_names_that_are_not_public_are_in_one_module() -> None:
    elsewhere = {
        (path, module, name)
        for path, tree in modules()
        for module, name in names_of_flwr(tree)
        if path != HOME and module not in PUBLIC
    }
    assert elsewhere == set()


def test_every_name_is_listed_here_and_exists() -> None:
    imported = defaultdict(set)
    tree = dict(modules())[HOME]
    for module, name in names_of_flwr(tree):
        if module not in PUBLIC and name:
            imported[module].add(name)
    for node in ast.walk(tree):  # `import_module("…").name`
        match node:
            case ast.Attribute(value=ast.Call(func=ast.Name("import_module"), args=[ast.Constant(str(module))])):
                imported[module].add(node.attr)
    assert imported == IMPORTED
    for module, names in IMPORTED.items():
        assert not {name for name in names if not hasattr(import_module(module), name)}, module
    for (module, kind), methods in CALLED.items():
        assert set(methods.split()) <= names_in(getattr(import_module(module), kind)), module


def names_in(kind: type) -> set[str]:
    """The attributes of a class, and those that its __init__ gives to an object, be it by the names of arguments."""
    code = getattr(kind.__init__, "__code__", None)
    attributes = {*code.co_names, *(f"_{name}" for name in code.co_varnames)} if code is not None else set()
    return {*dir(kind), *dir(type(kind)), *attributes}


def test_every_import_says_why() -> None:
    lines = (Path(stratafl.__file__).parent / HOME).read_text().splitlines()
    tree = dict(modules())[HOME]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module not in PUBLIC]
    of_flwr = [node for node in imports if (node.module or "").startswith("flwr.")]
    assert of_flwr
    assert not [alias.name for node in of_flwr for alias in node.names if "  # " not in lines[alias.lineno - 1]]


def attributes_reached(tree: ast.Module) -> set[str]:
    """Names with an underscore of objects that are not our own, and what is assigned to other objects than `self`."""
    reached = set[str]()
    for node in ast.walk(tree):
        is_private = isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
        if is_private and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            reached.add(node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and "__dict__" in ast.dump(node):
            reached.add(str(node.slice.value))
    others = {target.attr for target in assigned(tree) if not ast.unparse(target.value).startswith("self")}
    return (reached | others) - {""}  # "": of setattr, in `replace`


def test_every_attribute_that_is_reached_is_listed() -> None:
    listed = {name for names in CALLED.values() for name in names.split()}
    assert attributes_reached(dict(modules())[HOME]) <= listed
    assert {"max_time", "_message_id", "run_id", "_runtime_client"} <= attributes_reached(dict(modules())[HOME])


def test_a_failure_of_an_app_has_flwrs_own_code() -> None:
    assert import_module("flwr.common.constant").ErrorCode.CLIENT_APP_RAISED_EXCEPTION == flower_internals.APP_FAILED


def test_every_name_that_is_replaced_exists() -> None:
    for module, name in flower_internals.REPLACED:
        assert hasattr(import_module(module), name), module
    with pytest.raises(AttributeError):
        flower_internals.replace(("flwr.supercore.sql_mixin", "no_such_name"), 1)
    assert not hasattr(import_module("flwr.supercore.sql_mixin"), "no_such_name")


def assigned(tree: ast.Module) -> Iterator[ast.Attribute]:
    """Attributes that are given a value, by whatever statement, and those of setattr."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                yield node
            case ast.Call(func=ast.Name("setattr"), args=[target, *_]):
                yield ast.Attribute(target, "")


def assigned_of_flwr(tree: ast.Module) -> list[str]:
    """What is assigned of names that were imported from flwr."""
    of_flwr = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "flwr":
            of_flwr |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = [alias for alias in node.names if alias.name.split(".")[0] == "flwr"]
            of_flwr |= {alias.asname or "flwr" for alias in names}
    texts = [ast.unparse(target.value) for target in assigned(tree)]
    return [text for text in texts if text.split(".")[0] in of_flwr]


def test_nothing_of_flwr_is_assigned_elsewhere() -> None:
    for path, tree in modules():
        assert assigned_of_flwr(tree) == [] or path == HOME, path


@pytest.mark.parametrize(
    "code",
    [
        "import flwr.common as c\nc.x = 1",
        "import flwr.common\nflwr.common.x = 1",
        "from flwr import common\ncommon.x += 1",
        "from flwr import common as c\nc.x: int = 1",
        "from flwr import common\nsetattr(common.y, 'x', 1)",
        "from flwr import common\nfor common.x in (): pass",
        "from flwr import common\ndel common.x",
    ],
)
def test_every_way_to_assign_an_attribute_is_seen(code: str) -> None:
    assert len(assigned_of_flwr(ast.parse(code))) == 1
    assert assigned_of_flwr(ast.parse(code.replace("flwr", "other"))) == []


@pytest.mark.parametrize(
    ("installed", "is_fine"), [("1.41.0", True), ("1.42.3", True), ("1.40.0", False), ("2.0", False)]
)
def test_other_versions_of_flower_are_refused_in_one_line(
    installed: str, is_fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "version", lambda name: installed)
    if is_fine:
        require_flower()
        return
    with pytest.raises(DeployError, match=installed) as refused:
        require_flower()
    assert "\n" not in str(refused.value)


def test_the_installed_version_is_one_of_them() -> None:
    assert tuple(version("flwr").split(".")[:2]) in processes.FLOWER_VERSIONS


class StoredMessages:
    """What a SuperLink does with messages: it keeps what announces one, and the objects that it lacks."""

    def __init__(self) -> None:
        self.requests, self.announced, self.objects = list[str](), list[Any](), dict[str, bytes]()

    def push(self, request: Any) -> SimpleNamespace:
        self.requests.append("push")
        self.announced.append((request.messages_list[0], request.message_object_trees[0]))
        wanted = [tree.object_id for tree in iterate_object_tree(request.message_object_trees[0])]
        return SimpleNamespace(
            objects_to_push=wanted, session_id="s", message_ids=[request.message_object_trees[0].object_id]
        )

    def PushObject(self, request: Any) -> SimpleNamespace:
        self.requests.append("push object")
        assert get_object_id(request.object_content) == request.object_id
        self.objects[request.object_id] = request.object_content
        return SimpleNamespace(stored=True)

    def PullObject(self, request: Any) -> SimpleNamespace:
        self.requests.append("pull object")
        return SimpleNamespace(object_found=True, object_available=True, object_content=self.objects[request.object_id])

    def PushMessages(self, request: Any) -> SimpleNamespace:
        return self.push(request)

    def PullMessages(self, request: Any) -> SimpleNamespace:
        self.requests.append("pull")
        entries, trees = zip(*self.announced, strict=True)
        return SimpleNamespace(messages_list=entries, message_object_trees=trees)

    def ConfirmMessageReceived(self, request: Any) -> None:
        self.requests.append("confirm")
        assert request.message_object_id in self.objects


@pytest.mark.parametrize("is_small", [True, False])
def test_a_small_message_takes_four_requests_and_a_large_one_two_more_for_each_part(
    is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    store, body = StoredMessages(), b"x" * (10 if is_small else MAX_RECORD_BYTES + 1)
    grid = flower_internals.HostGrid(SimpleNamespace(_runtime_client=store, node=Node(node_id=1)))
    sent = Message(content_of(SignedMessage(b"{}", body, 3, b"sig")), 7, "train.round")
    (number,) = grid.push_messages([sent])
    (received,) = grid.pull_messages([number], 5.0, 0.1)
    assert read_content(received.content) == SignedMessage(b"{}", body, 3, b"sig")
    assert received.metadata.message_id == number == sent.metadata.message_id
    assert (received.metadata.dst_node_id, received.metadata.message_type) == (7, "train.round")
    if is_small:
        assert store.requests == ["push", "push object", "pull", "confirm"]
    else:
        assert store.requests.count("push object") == store.requests.count("pull object") > 4


@pytest.mark.parametrize("is_small", [True, False])
def test_a_whole_message_that_was_taken_before_its_object_came_is_sent(
    is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site that asks between the two requests has all of it, and confirms it: then the object is refused."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    store, body = StoredMessages(), b"x" * (10 if is_small else MAX_RECORD_BYTES + 1)
    store.PushObject = lambda request: SimpleNamespace(stored=False)
    grid = flower_internals.HostGrid(SimpleNamespace(_runtime_client=store, node=Node(node_id=1)))
    sent = Message(content_of(SignedMessage(b"{}", body, 3, b"sig")), 7, "train.round")
    if is_small:
        assert grid.push_messages([sent]) == [sent.metadata.message_id]
    else:
        with pytest.raises(flower_internals.message_is_lost()):
            grid.push_messages([sent])


def test_an_error_reaches_the_host() -> None:
    store = StoredMessages()
    metadata = Metadata(1, "", 7, 1, "asked", "", 1740700801.0, 60.0, "train.round")
    store.announced.append((message_to_proto(make_message(metadata, error=Error(2, "no"))), ObjectTree(object_id="a")))
    store.objects["a"] = b""
    grid = flower_internals.HostGrid(SimpleNamespace(_runtime_client=store, node=Node(node_id=1)))
    (received,) = grid.pull_messages(["asked"], 5.0, 0.1)
    assert (received.error.code, received.metadata.reply_to_message_id) == (2, "asked")
