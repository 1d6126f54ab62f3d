"""Gradients and outputs of many clients: stacked in one vectorised step, or client by client where that fails.

A stacked step that is repeated often is traced: recorded once as a list of plain operations, and replayed. Replaying
gives the same bits without differentiating and batching again, and releases the interpreter, so that lanes of clients
run in parallel. On 2 ARM cores (20 clients, batch 10) a step of a small MLP takes 2.7 ms instead of 5.8, before lanes.
"""

import importlib
import logging
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from operator import attrgetter
from threading import local
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.utils.rnn import pad_sequence
from torch.utils._pytree import tree_structure, tree_unflatten

from stratafl.core.keys import torchs_generator
from stratafl.core.lanes import in_lanes
from stratafl.core.layout import Rows
from stratafl.core.objectives import Batch, Objective
from stratafl.core.task import Gradients, Inputs, Stack
from stratafl.errors import first_line
from stratafl.runtime.model import Model
from stratafl.runtime.products import is_fusing
from stratafl.runtime.step_graph import record_graph

# Operations without a fast vmap rule are slower but correct: no reason for a warning at every step.
torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]
T = TypeVar("T")
Modes = frozenset[str]
log = logging.getLogger("stratafl")
_Aside = tuple[Tensor, Rows, Rows, Rows]  # loss, statistics, carry, metrics
_Result = tuple[Rows, _Aside]
Likeness = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]
DYNAMO = "torch._dynamo"
PATIENCE = 8  # times that a step runs before it is traced, at least
# Functions of torch that call the same kernels; each is 3 µs faster to call than its operation, a view 8 µs.
_FUNCTIONS = """
    add.Tensor bmm.default clone.default div.Tensor gather.default mul.Tensor neg.default permute.default relu.default
    rsqrt.default scatter_add.default squeeze.dims sub.Tensor sum.dim_IntList transpose.int unsqueeze.default
""".split()  # noqa: SIM905
_METHODS = ("add_.Tensor", "expand.default", "new_zeros.default", "view.default")
PLAIN: dict[object, Callable[..., Any]] = {
    attrgetter(name)(torch.ops.aten): getattr(owner, name.partition(".")[0])
    for owner, names in ((torch, _FUNCTIONS), (Tensor, _METHODS))
    for name in names
} | {torch.ops.aten._unsafe_view.default: Tensor.view}


class Engine(ABC):
    """How gradients and outputs of a cohort are computed."""

    parallel: bool  # whether lanes of clients may run at the same time
    alone: bool  # whether lanes take one client at a time, in one thread, on whose number its bits depend

    def __init__(self, make: Callable[[], Model]) -> None:
        self._make, self._own = make, local()
        self.client_seconds: float | None = None  # of a client's training step in one thread, where it was measured

    @property
    def model(self) -> Model:
        """The model of this thread, because it holds one set of columns at a time."""
        if not hasattr(self._own, "model"):
            self._own.model = self._make()
        model: Model = self._own.model
        return model

    @property
    def traces(self) -> int:
        """How many steps are replayed from a trace."""
        return 0

    def prepare(self) -> None:
        """Called between scans, when nothing else runs."""
        return

    def close(self) -> None:
        """Free what is kept from step to step; it is made again when needed."""
        return

    @abstractmethod
    def gradients(
        self, objective: Objective, rows: Rows, stack: Stack, trained: tuple[str, ...], inputs: Inputs, modes: Modes
    ) -> Gradients:
        """Gradients of the objective with respect to the trained tensors."""

    @abstractmethod
    def outputs(self, rows: Rows, x: Tensor, weight: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Outputs and features in evaluation mode, for inputs `[C, B, …]`, of which `sizes` are real samples."""


class StackedEngine(Engine):
    """All clients at once: `vmap` over the client axis of the gradient of one client's loss.

    A step that is repeated often is traced once into plain tensor operations and replayed: the same operations on the
    same values, bit for bit, without the cost of differentiating and batching them again.
    """

    parallel, alone = True, False

    def __init__(self, make: Callable[[], Model]) -> None:
        super().__init__(make)
        self.impatient = False  # steps are traced when they first come
        self._seen: Counter[Hashable] = Counter()
        self._wanted: dict[Hashable, tuple[Callable[..., _Result], list[Likeness]]] = {}
        self._traced: dict[Hashable, Callable[..., _Result]] = {}

    @property
    def traces(self) -> int:
        return len(self._traced)

    def gradients(
        self, objective: Objective, rows: Rows, stack: Stack, trained: tuple[str, ...], inputs: Inputs, modes: Modes
    ) -> Gradients:
        train = {n: rows[n] for n in trained}
        rest = {n: x for n, x in rows.items() if n not in train}
        arguments = (
            *(train, rest, dict(inputs.frozen), dict(inputs.constants), dict(inputs.carry)),
            *(stack.x, stack.y, stack.weight, stack.keys),
        )
        gradients, (value, statistics, carry, metrics) = self._replayed(objective, modes, arguments)
        self.model.context.clear()
        return Gradients(gradients, value, statistics, carry, metrics)

    def _loss(self, objective: Objective, modes: Modes) -> Callable[..., tuple[Tensor, _Aside]]:
        """The loss of one client, with statistics, carry and metrics."""
        specs = self.model.layout.specs

        def loss(
            train: Rows, rest: Rows, frozen: dict[str, Rows], constants: Rows, carry: Rows, *sample: Tensor
        ) -> tuple[Tensor, _Aside]:
            row = {**rest, **train}
            x, y, weight, key = sample
            net = self.model.net(row, frozen, modes, weight, key)
            value, carry, metrics = objective(net, row, frozen, Batch(x, y, weight, key), constants, carry)
            return value, (value, {n: x for n, x in row.items() if specs[n].is_statistic}, carry, metrics)

        return loss

    def _replayed(self, objective: Objective, modes: Modes, arguments: tuple[Any, ...]) -> _Result:
        """The step, from its trace if it has one; it is never traced if its name is not hashable."""
        names, leaves = _flat(arguments)
        kinds = tuple((x.shape, x.stride(), x.dtype) for x in leaves)
        # While a step is recorded for the compiler, no trace is used: it holds other slices than the compiler is given.
        signature: Hashable = None if is_fusing() else (objective, modes, names, kinds)
        try:
            replay = self._traced.get(signature)
        except TypeError:
            replay, signature = None, None
        if replay is not None:
            return replay(*leaves)
        step: Callable[..., _Result] = vmap(grad(self._loss(objective, modes), has_aux=True))
        if signature is not None:
            self._seen[signature] += 1
            if self._seen[signature] == (1 if self.impatient else patience(leaves)):
                likeness = [(x.shape, x.stride(), x.dtype, x.device) for x in leaves]
                structure = tree_structure(arguments)
                self._wanted[signature] = (lambda *flat: step(*tree_unflatten(flat, structure)), likeness)
        return step(*arguments)

    def prepare(self) -> None:
        """Trace the steps that were repeated often enough, before lanes run."""
        while self._wanted:
            _ = self.model  # a thread's first call makes it, which cannot be done inside a trace
            signature, (step, likeness) = self._wanted.popitem()
            try:
                self._traced[signature] = trace(step, likeness)
            except Exception as error:  # an objective may do what a trace cannot hold; then the step runs as it is
                log.info("a step cannot be traced and runs more slowly: %s", first_line(error, typed=True))

    def close(self) -> None:
        for cache in (self._seen, self._wanted, self._traced):
            cache.clear()

    def outputs(self, rows: Rows, x: Tensor, weight: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        model = self.model  # a thread's first call makes it, which cannot be done inside vmap

        def run(row: Rows, inputs: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
            return model.net({}, {}, frozenset(), real, None).both(row, inputs, train=False)

        with torch.no_grad():
            result: tuple[Tensor, Tensor] = vmap(run)(rows, x, weight)
        model.context.clear()
        return result


class LoopEngine(Engine):
    """Client by client, with exact batches and stock modules: any module runs, and tests compare with it.

    Where the module draws no random numbers of its own, several clients are computed at a time, each in one thread: a
    stock operation may split its sums over threads, so a client's bits would depend on their number.
    """

    def __init__(self, make: Callable[[], Model], *, parallel: bool = False) -> None:
        super().__init__(make)
        self.parallel = self.alone = parallel

    def gradients(
        self, objective: Objective, rows: Rows, stack: Stack, trained: tuple[str, ...], inputs: Inputs, modes: Modes
    ) -> Gradients:
        def client(c: int) -> Gradients:
            size = stack.sizes[c]
            # `data` has its own version counter: other lanes may move other clients' rows of the same tensor.
            row = {n: x.data[c] for n, x in rows.items()}
            leaves = {n: row[n].requires_grad_() for n in trained}
            batch = Batch(stack.x[c, :size], stack.y[c, :size], stack.weight[c, :size], stack.keys[c])
            frozen = {name: {n: x.data[c] for n, x in value.items()} for name, value in inputs.frozen.items()}
            constants, carry = ({n: x.data[c] for n, x in each.items()} for each in (inputs.constants, inputs.carry))
            # Modules with random numbers of their own (an LSTM's dropout) draw them from this client's key.
            with nullcontext() if self.parallel else torchs_generator(int(stack.keys[c])):
                net = self.model.net(row, frozen, modes, None, stack.keys[c])
                loss, carry, metrics = objective(net, row, frozen, batch, constants, carry)
            gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            pairs = zip(leaves.items(), gradients, strict=True)
            grads = {n: torch.zeros_like(x) if g is None else g for (n, x), g in pairs}
            moving = {n: row[n].detach() for n in rows if self.model.layout.specs[n].is_statistic}
            return Gradients(grads, loss.detach(), moving, _detached(carry), _detached(metrics))

        of_clients = self._each(client, range(len(stack.sizes)))
        return Gradients(
            _stacked([g.rows for g in of_clients]),
            torch.stack([g.loss for g in of_clients]),
            _stacked([g.statistics for g in of_clients]),
            _stacked([g.carry for g in of_clients]),
            _stacked([g.metrics for g in of_clients]),
        )

    def _each(self, run: Callable[[int], T], clients: Sequence[int]) -> list[T]:
        return in_lanes(run, clients, threads=1) if self.parallel else [run(c) for c in clients]

    def outputs(self, rows: Rows, x: Tensor, weight: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """Each client on its real samples; one without samples gets a padded one."""

        def client(c: int) -> tuple[Tensor, Tensor]:
            net = self.model.net({}, {}, frozenset(), None, None)
            with torch.no_grad():
                return net.both({n: block[c] for n, block in rows.items()}, x[c, : max(sizes[c], 1)], train=False)

        of_clients = self._each(client, range(len(sizes)))
        outputs, features = (pad_sequence(list(column), batch_first=True) for column in zip(*of_clients, strict=True))
        return outputs, features


def _stacked(of_clients: list[Rows]) -> Rows:
    """The rows of all clients; those of a single one are not copied."""
    if len(of_clients) == 1:
        return {name: x.contiguous().unsqueeze(0) for name, x in of_clients[0].items()}
    return {name: torch.stack([rows[name] for rows in of_clients]) for name in of_clients[0]}


def _flat(arguments: Sequence[Any]) -> tuple[tuple[str, ...], list[Tensor]]:
    """Names and tensors of nested tables, in torch's own order; torch takes 50 µs for it."""
    names, leaves = list[str](), list[Tensor]()

    def add(value: Any) -> None:
        if isinstance(value, Tensor):
            leaves.append(value)
            return
        for name, part in value.items():
            names.append(name)
            add(part)
        names.append("")  # ends a table

    for value in arguments:
        add(value)
    return tuple(names), leaves


def _detached(values: Mapping[str, Tensor]) -> Rows:
    return {name: x.detach() for name, x in values.items()}


# Traces


def trace(function: Callable[..., Any], likeness: Sequence[Likeness]) -> Callable[..., Any]:
    """The function for tensors of these shapes, strides, types and devices, as plain operations."""
    examples = [torch.empty_strided(s, stride, dtype=t, device=d).zero_() for s, stride, t, d in likeness]
    graph = record_graph(function, examples)
    graph.graph.eliminate_dead_code()
    for node in graph.graph.nodes:
        node.target = PLAIN.get(node.target, node.target) if node.op == "call_function" else node.target
    graph.recompile()
    return graph


def patience(leaves: Sequence[Tensor]) -> int:
    """How often a step runs before it is traced: tracing costs some ten steps, and gains least where a step is long."""
    return PATIENCE + sum(x.numel() for x in leaves) // 2**19


# Torch's compiler


class _Unloaded(ModuleType):
    """Stands for `torch._dynamo` until something asks for more of it, which imports the real package.

    `torch.func.grad` imports it, 1.7 of the 4.9 seconds that a short run takes, to switch off a feature that cannot be
    on before the package is imported.
    """

    compiled_autograd = SimpleNamespace(_disable=nullcontext)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(importlib.import_module(DYNAMO), name)


if DYNAMO not in sys.modules and "_dynamo" not in vars(torch):
    vars(torch)["_dynamo"] = _Unloaded(DYNAMO)
