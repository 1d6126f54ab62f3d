"""Recorded steps: the operations of torch that a step consists of, as a graph or as text.

The text of a step is what another process compiles, and what a compiled step is found again by. Such a step is a
function that writes into the tensors it is given and returns nothing. The text names each operation, its arguments and
the likeness of every tensor, and nothing else: no Python object travels, and two steps with the same text compute the
same.
"""

import base64
import importlib
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from stratafl.core.state import bytes_of
from stratafl.errors import ModelError

Description = dict[str, Any]
NAMESPACES = ("aten", "prims", "stratafl")  # whose operations a text may name
OWN_OPERATIONS = "stratafl.runtime.grouped"  # registers those of the last one, with what it imports
CONSTANTS = 2**20  # bytes of constants that the text of a step may hold
ELEMENTS = 2**31 - 1  # of a tensor in a step that is compiled
KINDS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
# What gives the shape of an own operation's result: a recorder needs no more, and kernels take seconds to compile.
SHAPES: dict[torch._ops.OpOverload, Callable[..., Tensor]] = {}
VIEWS = (torch.ops.aten.view.default, torch.ops.aten.expand.default, torch.ops.aten._unsafe_view.default)


class Place(NamedTuple):
    """Where a tensor comes from: `given`, a `constant` or the `value` of an operation, which may have several items."""

    kind: str
    number: int
    item: int | None = None


class Recorder(TorchDispatchMode):
    """Notes the operations that reach the device, below `vmap` and `grad`, while it is active.

    For ResNet-18 that takes as long as the step itself, 0.9 s on an ARM core, where `make_fx` takes 10 s for the same
    3,600 operations. Views that change nothing are left out.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.constants: list[Tensor] = []  # tensors that no operation has made
        self.operations: list[tuple[torch._ops.OpOverload, Any, Any]] = []
        self.largest = 0  # elements of a tensor
        self._places = WeakIdKeyDictionary()
        for index, x in enumerate(tensors):
            self._places[x] = Place("given", index)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler to keep it away from this class, which takes two seconds."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function is torch.ops.aten.lift_fresh.default:
            function = torch.ops.aten.clone.default  # a literal may be written to, and is another one in each step
        noted = (function, self.placed(args), self.placed(kwargs))
        _check_writes(*noted)
        result = SHAPES.get(function, function)(*args, **kwargs)
        if function in VIEWS and (result.shape, result.stride()) == (args[0].shape, args[0].stride()):
            self._places.setdefault(result, noted[1][0])
            return result
        several = isinstance(result, (list, tuple))
        for item, x in enumerate(result if several else [result]):
            if isinstance(x, Tensor):
                self.largest = max(self.largest, x.numel())
                self._places.setdefault(x, Place("value", len(self.operations), item if several else None))
            elif x is not None:
                raise ModelError(f"a step reads a value back ('{function}'), so it cannot be recorded")
        self.operations.append(noted)
        return result

    def placed(self, value: Any) -> Any:
        """The same arguments or results with places instead of tensors."""
        if isinstance(value, Tensor):
            return self._place(value)
        if isinstance(value, dict):
            return {name: self.placed(x) for name, x in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.placed, value)) if type(value) in (list, tuple) else [*map(self.placed, value)]
        return value

    def _place(self, x: Tensor) -> Place:
        place: Place | None = self._places.get(x)
        if place is None:
            place = self._places[x] = Place("constant", len(self.constants))
            self.constants.append(x.detach())
        return place


def _check_writes(function: Any, args: Any, kwargs: Any) -> None:
    """A constant has another owner, which would not see what a recorded step writes to its copy."""
    if function._schema.is_mutable:
        for argument, place in zip(function._schema.arguments, args, strict=False):
            if argument.is_write and isinstance(place, Place) and place.kind == "constant":
                raise ModelError(f"a step writes to a tensor that it holds ('{function}'), so it cannot be recorded")


class _Builder:
    """A graph that is put together from recorded operations."""

    def __init__(self, tensors: int) -> None:
        self.graph = Graph()
        self._nodes = {Place("given", i): self.graph.placeholder(f"given{i}") for i in range(tensors)}
        self._operations = 0

    def add_constant(self, index: int, name: str | None = None) -> None:
        """As an attribute, or as one more argument."""
        node = self.graph.placeholder(f"constant{index}") if name is None else self.graph.get_attr(name)
        self._nodes[Place("constant", index)] = node

    def add(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        node = self.graph.call_function(function, tuple(self.filled(args)), self.filled(kwargs))
        self._nodes[Place("value", self._operations)] = node
        self._operations += 1

    def filled(self, value: Any) -> Any:
        """With nodes instead of places."""
        if isinstance(value, Place):
            return self._node(value)
        if isinstance(value, dict):
            return {name: self.filled(x) for name, x in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(map(self.filled, value))
        return value

    def _node(self, place: Place) -> Node:
        if place not in self._nodes and place.item is not None:
            whole = self._nodes[place._replace(item=None)]
            self._nodes[place] = self.graph.call_function(operator.getitem, (whole, place.item))
        return self._nodes[place]


def record_graph(function: Callable[..., Any], examples: Sequence[Tensor]) -> GraphModule:
    """What the function does with such tensors, as a graph that returns what it returns; it runs once."""
    recorder = Recorder(examples)
    with recorder:
        result = function(*examples)
    builder, holder = _Builder(len(examples)), torch.nn.Module()
    returned = recorder.placed(result)
    for index, x in enumerate(recorder.constants):
        holder.register_buffer(f"constant{index}", x, persistent=False)
        builder.add_constant(index, f"constant{index}")
    for operation in recorder.operations:
        builder.add(*operation)
    builder.graph.output(builder.filled(returned))
    return GraphModule(holder, builder.graph)


def describe_step(step: Callable[..., None], tensors: Sequence[Tensor]) -> tuple[Description, list[Tensor]]:
    """The text of a step on such tensors, as a table for JSON, and the constants it holds.

    The step runs once, so the tensors are written to. Refused if it holds large constants, uses what is not an
    operation of torch, or reads a value back.
    """
    recorder = Recorder(tensors)
    with recorder:
        step(*tensors)
    if recorder.largest > ELEMENTS:
        raise ModelError(f"a step makes a tensor of {recorder.largest:,} numbers: at most {ELEMENTS:,} are compiled")
    constant_bytes = sum(x.nbytes for x in recorder.constants)
    if constant_bytes > CONSTANTS:
        raise ModelError(f"a step holds {constant_bytes:,} bytes of constants: at most {CONSTANTS:,} are compiled")
    return {
        "tensors": [_likeness(x) for x in tensors],
        "constants": [_likeness(x) | {"data": _data(x)} for x in recorder.constants],
        "operations": [
            [_name(function), _written(args), _written(kwargs)] for function, args, kwargs in recorder.operations
        ],
    }, recorder.constants


def _name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload) and target.namespace in NAMESPACES:
        return f"{target.namespace}::{target._opname}.{target._overloadname}"
    raise ModelError(f"a step uses '{target}', which is not an operation of torch")


def _written(value: Any) -> Any:
    """An argument for JSON; what JSON does not know is a table of one entry, whose name says what it is."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Place):
        return {value.kind: value.number if value.item is None else [value.number, value.item]}
    if isinstance(value, (list, tuple)):
        return [_written(x) for x in value]
    if isinstance(value, dict):
        return {"table": {name: _written(x) for name, x in value.items()}}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind, torch_type in KINDS.items():
        if isinstance(value, torch_type):
            return {kind: _word(value)}
    raise ModelError(f"a step uses a {type(value).__name__} as an argument, which cannot be compiled")


def _likeness(x: Tensor) -> Description:
    return {"shape": [*x.shape], "stride": [*x.stride()], "dtype": _word(x.dtype), "device": str(x.device)}


def _data(x: Tensor) -> str:
    return base64.b64encode(bytes_of(x.cpu()).numpy().tobytes()).decode()


def _word(value: object) -> str:
    return str(value).removeprefix("torch.")


def build_step(description: Description) -> GraphModule:
    """The step of a text, as a function of its tensors and then its constants that returns nothing."""
    builder = _Builder(len(description["tensors"]))
    for index in range(len(description["constants"])):
        builder.add_constant(index)
    for name, args, kwargs in description["operations"]:
        builder.add(_target(name), _read(args), _read(kwargs))
    builder.graph.output(())
    return GraphModule(torch.nn.Module(), builder.graph)


def _target(name: str) -> Callable[..., Any]:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    if namespace not in NAMESPACES or not packet.isidentifier() or not overload.isidentifier():
        raise ModelError(f"'{name}' is not an operation of torch")
    if namespace == "stratafl":
        with suppress(ModuleNotFoundError):
            importlib.import_module(OWN_OPERATIONS)
    operation = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    if not isinstance(operation, torch._ops.OpOverload):
        raise ModelError(f"'{name}' is not an operation of torch")
    return operation


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(x) for x in value]
    if not isinstance(value, dict):
        return value
    ((kind, x),) = value.items()
    match kind:
        case "given" | "constant" | "value":
            return Place(kind, *(x if isinstance(x, list) else [x]))
        case "table":
            return {name: _read(each) for name, each in x.items()}
        case "device":
            return torch.device(x)
    return torch_word(kind, x)


def torch_word(kind: str, word: str) -> Any:
    """Such as `torch.float32`, from its kind ("dtype") and its name."""
    torch_value = getattr(torch, word, None)
    if kind not in KINDS or not isinstance(torch_value, KINDS[kind]):
        raise ModelError(f"'{word}' is not a {kind} of torch")
    return torch_value


def blank_tensors(description: Description) -> Iterator[Tensor]:
    """Tensors of zeros like those of a text, then its constants."""
    for likeness in description["tensors"]:
        yield _zeros(likeness)
    for likeness in description["constants"]:
        blank = _zeros(likeness)
        data = torch.frombuffer(bytearray(base64.b64decode(likeness["data"])), dtype=blank.dtype).reshape(blank.shape)
        once = tuple(
            slice(1) if stride == 0 else slice(None) for stride in blank.stride()
        )  # an expanded axis is written once
        blank[once].copy_(data[once])
        yield blank


def _zeros(likeness: Description) -> Tensor:
    size, stride = likeness["shape"], likeness["stride"]
    needed = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if 0 not in size else 0
    return torch.zeros(needed, **_kind(likeness)).as_strided(size, stride)


def fake_tensors(description: Description) -> list[Tensor]:
    """Such tensors and constants without memory, as a compiler takes them."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # takes half a second

    with FakeTensorMode(shape_env=ShapeEnv()):
        return [
            torch.empty_strided(likeness["shape"], likeness["stride"], **_kind(likeness))
            for likeness in (*description["tensors"], *description["constants"])
        ]


def _kind(likeness: Description) -> dict[str, Any]:
    return {"dtype": torch_word("dtype", likeness["dtype"]), "device": torch.device(likeness["device"])}
