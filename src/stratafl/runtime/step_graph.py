"""A traced step as text: what another process compiles, and what a compiled step is found again by.

A step is a function that writes into the tensors it is given and returns nothing. Its trace is a list of operations of
torch on fixed shapes; the text names each operation, its arguments and the likeness of every tensor, and nothing else:
no Python object travels, and two steps with the same text compute the same.
"""

import base64
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from stratafl.errors import ModelError

Description = dict[str, Any]
NAMESPACES = ("aten", "prims", "stratafl")  # whose operations a text may name
CONSTANTS = 2**20  # bytes of constants that a step may hold
KINDS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def describe_step(step: Callable[..., None], tensors: Sequence[Tensor]) -> tuple[Description, list[Tensor]]:
    """The text of a step on such tensors, as a table for JSON, and the constants it holds.

    The step runs once, so the tensors are written to. Refused if it holds large constants, uses what is not an
    operation of torch, or reads a value back.
    """
    recorder = _Recorder(tensors)
    with recorder:
        step(*tensors)
    return recorder.description(), recorder.constants


class _Recorder(TorchDispatchMode):
    """Writes down the operations that reach the device, below `vmap` and `grad`.

    For ResNet-18 that takes as long as the step itself, 0.9 s on an ARM core, where `make_fx` takes 10 s for the same
    3,600 operations.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tensors, self.constants = list(tensors), list[Tensor]()
        self._contents: list[Description] = []  # of the constants, as they were before the step
        self._operations: list[list[Any]] = []
        self._places = WeakIdKeyDictionary()
        for place, x in enumerate(tensors):
            self._places[x] = {"given": place}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch would import its compiler to keep it away from this class, which takes two seconds."""
        return False

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        written = [_name(function), self._written(args), self._written(kwargs)]
        for argument, place in zip(function._schema.arguments, written[1], strict=False):
            if argument.is_write and isinstance(place, dict) and "constant" in place:
                raise ModelError(f"a step writes to a tensor that it holds ('{written[0]}'), so it cannot be compiled")
        result = function(*args, **kwargs)
        place = len(self._operations)
        self._operations.append(written)
        for path, x in _outputs(result):
            if isinstance(x, Tensor):
                if x not in self._places:
                    self._places[x] = {"value": [place, *path]}
            elif x is not None:
                raise ModelError(f"a step reads a value back ('{written[0]}'), so it cannot be compiled")
        return result

    def description(self) -> Description:
        return {
            "tensors": [_likeness(x) for x in self._tensors],
            "constants": self._contents,
            "operations": self._operations,
        }

    def _written(self, value: Any) -> Any:
        """An argument for JSON; what JSON does not know is a table of one entry, whose name says what it is."""
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, Tensor):
            return self._place(value)
        if isinstance(value, (list, tuple)):
            return [self._written(x) for x in value]
        if isinstance(value, dict):
            return {"table": {name: self._written(x) for name, x in value.items()}}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        for kind, known in KINDS.items():
            if isinstance(value, known):
                return {kind: _word(value)}
        raise ModelError(f"a step uses a {type(value).__name__} as an argument, which cannot be compiled")

    def _place(self, x: Tensor) -> Description:
        """Where a tensor comes from; one that no operation made is a constant."""
        if x not in self._places:
            if x.nbytes > CONSTANTS:
                raise ModelError(f"a step holds {x.nbytes:,} bytes of constants: at most {CONSTANTS:,} are compiled")
            self._places[x] = {"constant": len(self.constants)}
            self.constants.append(x.detach().contiguous())
            self._contents.append(_likeness(self.constants[-1]) | {"data": _data(x)})
        found: Description = self._places[x]
        return found


def _outputs(result: Any) -> list[tuple[tuple[int, ...], Any]]:
    return [((i,), x) for i, x in enumerate(result)] if isinstance(result, (list, tuple)) else [((), result)]


def _name(target: Any) -> str:
    if isinstance(target, torch._ops.OpOverload) and target.namespace in NAMESPACES:
        return f"{target.namespace}::{target._opname}.{target._overloadname}"
    raise ModelError(f"a step uses '{target}', which is not an operation of torch")


def _likeness(x: Tensor) -> Description:
    return {"shape": [*x.shape], "stride": [*x.stride()], "dtype": _word(x.dtype), "device": str(x.device)}


def _data(x: Tensor) -> str:
    return base64.b64encode(x.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()).decode()


def _word(value: object) -> str:
    return str(value).removeprefix("torch.")


def build_step(given: Description) -> GraphModule:
    """The step of a text, as a function of its tensors and then its constants that returns nothing."""
    graph = Graph()
    tensors = [graph.placeholder(f"tensor{i}") for i in range(len(given["tensors"]))]
    constants = [graph.placeholder(f"constant{i}") for i in range(len(given["constants"]))]
    reader = _Reader(graph, tensors, constants)
    for name, args, kwargs in given["operations"]:
        reader.values.append(graph.call_function(_target(name), tuple(reader.read(args)), reader.read(kwargs)))
    graph.output(())
    return GraphModule(torch.nn.Module(), graph)


def _target(name: str) -> Callable[..., Any]:
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    if namespace not in NAMESPACES or not packet.isidentifier() or not overload.isidentifier():
        raise ModelError(f"'{name}' is not an operation of torch")
    found = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
    if not isinstance(found, torch._ops.OpOverload):
        raise ModelError(f"'{name}' is not an operation of torch")
    return found


class _Reader:
    """Arguments of a text as nodes and values."""

    def __init__(self, graph: Graph, tensors: list[Node], constants: list[Node]) -> None:
        self._graph, self._tensors, self._constants = graph, tensors, constants
        self.values: list[Node] = []

    def read(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.read(x) for x in value]
        if not isinstance(value, dict):
            return value
        ((kind, x),) = value.items()
        match kind:
            case "given":
                return self._tensors[x]
            case "constant":
                return self._constants[x]
            case "value":
                return self._value(*x)
            case "table":
                return {name: self.read(each) for name, each in x.items()}
            case "device":
                return torch.device(x)
        return torch_word(kind, x)

    def _value(self, place: int, item: int | None = None) -> Node:
        made = self.values[place]
        return made if item is None else self._graph.call_function(operator.getitem, (made, item))


def torch_word(kind: str, word: str) -> Any:
    """Such as `torch.float32`, from its kind ("dtype") and its name."""
    found = getattr(torch, word, None)
    if kind not in KINDS or not isinstance(found, KINDS[kind]):
        raise ModelError(f"'{word}' is not a {kind} of torch")
    return found


def blank_tensors(given: Description) -> Iterator[Tensor]:
    """Tensors of zeros like those of a text, then its constants."""
    for each in given["tensors"]:
        size, stride = each["shape"], each["stride"]
        needed = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if 0 not in size else 0
        yield torch.zeros(needed, **_kind(each)).as_strided(size, stride)
    for each in given["constants"]:
        data = torch.frombuffer(bytearray(base64.b64decode(each["data"])), dtype=_kind(each)["dtype"])
        yield data.reshape(each["shape"]).to(torch.device(each["device"]))


def fake_tensors(given: Description) -> list[Tensor]:
    """Such tensors and constants without memory, as a compiler takes them."""
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv  # takes half a second

    with FakeTensorMode(shape_env=ShapeEnv()):
        return [
            torch.empty_strided(each["shape"], each["stride"], **_kind(each))
            for each in (*given["tensors"], *given["constants"])
        ]


def _kind(each: Description) -> dict[str, Any]:
    return {"dtype": torch_word("dtype", each["dtype"]), "device": torch.device(each["device"])}
