"""One step of several clients on tensors with fixed addresses, so that it can be captured or compiled.

A scan (`scan.py`) repeats a step over the batches of its clients; the tensors that it changes are its carry. A captured
step has a fixed number of slots. Clients have different numbers of batches, so they take turns at the slots
(`schedule.py`). Batches are loaded for a window of steps at a time (`inputs.py`). `captured.py` decides when such a
step is made, compiled and freed.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from typing import Self

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.state import State, unflatten
from stratafl.core.task import ScanStep
from stratafl.errors import ModelError
from stratafl.runtime.engine import Engine
from stratafl.runtime.inputs import InputBuffers, SlotPlan
from stratafl.runtime.scan import Scan, leaves
from stratafl.runtime.schedule import Turn
from stratafl.runtime.threads import pace

WARM_UP = 2  # runs before a capture: libraries allocate on their first use, which a capture does not allow


class CapturedStep:
    """One step of `slots` clients, for scans like the one that it is made for, of one run or of several.

    Everything that changes from scan to scan (rows, learning rates, batches) is copied into tensors that stay where
    they are, and nothing is read back before the scan is over. It keeps nothing of a run: batches are read window by
    window, before their steps. Constants that all clients of a run share are one row if `common` names them.
    """

    def __init__(self, like: Scan, slots: int, common: frozenset[str]) -> None:
        self.slots, self.likeness, self._common = slots, like.likeness, common
        self._empty = tuple(name for name, value in like.carry.items() if not isinstance(value, Tensor) and not value)
        self._carry = {name: _blank(x, slots) for name, x in leaves(like.carry).items()}
        self._constants = {name: _constant(x, slots, name in common) for name, x in leaves(like.constants).items()}
        per_client = {name: x for name, x in self._constants.items() if name not in common}
        self._carry_rows, self._constant_rows = RowViews(self._carry), RowViews(per_client)
        self._frozen = like.engine.model.frozen
        self._inputs = [InputBuffers.blank(like.source, batches, slots) for batches in like.batches]
        # The step within the window, on the device, because a captured step takes no arguments.
        self._at = torch.zeros(1, dtype=torch.int64, device=like.batches[0].samples.device)
        self.engine: Engine | None = (
            None  # of a CUDA graph, which reads its model's tensors at their addresses: keeps them
        )
        self.replay: Callable[[], object] | None = None  # the step as it was captured or compiled, if it was
        self.compiled: str | None = None  # its entry in the cache, if it is compiled

    # What a scan does

    def run(self, scans: Sequence[Scan]) -> list[State]:
        """The carries after all steps of all clients of these scans, whose tensors are not written to."""
        plan = SlotPlan(scans, self.slots)
        scan_rows = self._enter(scans)
        window, take_step = self._inputs[0].window, self._step_of(scans)
        paced = pace(sum(x.numel() for x in self._carry.values()), self._at.device, self.slots)
        with RowCopies() as copies:
            for rows in scan_rows:
                rows.keep_idle(copies)
        for now, leaving, coming, steps in plan.changes(window):
            self._unseat(leaving, plan, scan_rows)
            self._seat(coming, plan, scan_rows)
            if now % window == 0 and steps:
                self._load(plan, now)
            for _ in range(steps):
                with nullcontext() if paced is None else paced.step():
                    take_step()
        return [self._state(rows.after) for rows in scan_rows]

    def _step_of(self, scans: Sequence[Scan]) -> Callable[[], object]:
        return self.replay or partial(self.once, scans[0].step)

    def _enter(self, scans: Sequence[Scan]) -> list["_ScanRows"]:
        """Copy in the constants that all clients share, which stay at their place; return the rows that will move."""
        for name in self._common:
            self._constants[name][:1].copy_(leaves(scans[0].constants)[name][:1])
        return [_ScanRows(scan, self._common) for scan in scans]

    def _unseat(self, leaving: Sequence[Turn], plan: SlotPlan, scan_rows: Sequence["_ScanRows"]) -> None:
        """Rows of clients that leave their slots, back to their scans."""
        with RowCopies() as copies:
            for turn in leaving:
                scan, client = plan.places[turn.client]
                copies.add(self._carry_rows, turn.slot, scan_rows[scan].finished, client)

    def _seat(self, coming: Sequence[Turn], plan: SlotPlan, scan_rows: Sequence["_ScanRows"]) -> None:
        """Rows and constants of clients that come, at their slots."""
        with RowCopies() as copies:
            for turn in coming:
                scan, client = plan.places[turn.client]
                rows = scan_rows[scan]
                # A client that has been at another slot goes on from where it was.
                copies.add(rows.finished if turn.first else rows.received, client, self._carry_rows, turn.slot)
                copies.add(rows.constants, client, self._constant_rows, turn.slot)

    def _load(self, plan: SlotPlan, begin: int) -> None:
        """The batches of the next window."""
        for draw, inputs in enumerate(self._inputs):
            inputs.load(plan, draw, begin)
        self.rewind()

    def _state(self, flat: Rows) -> State:
        return {**{name: {} for name in self._empty}, **unflatten(flat)}

    # One step

    def once(self, step: ScanStep) -> None:
        """One step of all slots."""
        self.compute(step)
        self.advance()

    def advance(self) -> None:
        self._at.add_(1)

    def rewind(self) -> None:
        self._at.zero_()

    def compute(self, step: ScanStep) -> None:
        """The step, without counting it: torch 2.11 compiled CPU code that counted before it read the batch."""
        stacks = [inputs.at(self._at) for inputs in self._inputs]
        after = leaves(step(self._state(self._carry), unflatten(self._constants), *stacks))
        changed = {name: x for name, x in after.items() if x is not self._carry[name]}
        carried = {_address(x) for x in self._carry.values()}
        # A step may swap fields: a result that lies in one of the carried tensors is copied before any is written.
        apart = {name: x.clone() if _address(x) in carried else x for name, x in changed.items()}
        for name, x in apart.items():
            if (x.shape, x.dtype) != (self._carry[name].shape, self._carry[name].dtype):
                raise ModelError(f"a step changes the shape or the type of '{name}', so it cannot be captured")
            self._carry[name].copy_(x)

    # For the compiler

    def tensors(self) -> list[Tensor]:
        """Everything that a step reads or writes; frozen tensors come last, and stay where they are."""
        buffers = [x for inputs in self._inputs for x in inputs.tensors()]
        return [self._at, *self._carry.values(), *self._constants.values(), *buffers, *self._frozen]

    def on(self, tensors: Sequence[Tensor]) -> "CapturedStep":
        """The same step on other tensors, in the order of `tensors`."""
        twin, rest = copy(self), iter(tensors)
        twin._at = next(rest)
        twin._carry = {name: next(rest) for name in self._carry}
        twin._constants = {name: next(rest) for name in self._constants}
        twin._inputs = [InputBuffers(*(next(rest) for _ in inputs.tensors())) for inputs in self._inputs]
        return twin

    def difference(self, replay: Callable[[], object], scans: Sequence[Scan]) -> float:
        """How far the first step of these scans differs when it is replayed, as a share of what the step changes."""
        plan = SlotPlan(scans, self.slots)
        self._seat([turn for turn in plan.turns if not turn.begin], plan, self._enter(scans))
        self._load(plan, 0)
        start = {name: x.clone() for name, x in self._carry.items()}
        # The first step as it runs today …
        self._step_of(scans)()
        expected = {name: x.clone() for name, x in self._carry.items()}
        # … and again from the same start, replayed.
        for name, x in start.items():
            self._carry[name].copy_(x)
        self.rewind()
        replay()
        return max((_share(self._carry[name], expected[name], x) for name, x in start.items()), default=0.0)


class _ScanRows:
    """The rows of one scan: as received, as finished, and the constants that move with them."""

    def __init__(self, scan: Scan, common: frozenset[str]) -> None:
        before = leaves(scan.carry)
        self.steps = scan.steps
        self.after = {name: torch.empty_like(x, memory_format=torch.contiguous_format) for name, x in before.items()}
        self.received, self.finished = RowViews(before), RowViews(self.after)
        self.constants = RowViews({name: x for name, x in leaves(scan.constants).items() if name not in common})

    def keep_idle(self, copies: "RowCopies") -> None:
        """Copy the rows of clients that take no step."""
        for client, steps in enumerate(self.steps):
            if not steps:
                copies.add(self.received, client, self.finished, client)


class RowViews:
    """Views of the rows of tensors, by their type: making them for every copy takes half a millisecond of Python."""

    def __init__(self, tensors: Rows) -> None:
        self.kinds: dict[torch.dtype, list[tuple[Tensor, ...]]] = {}
        for _, x in sorted(tensors.items()):
            self.kinds.setdefault(x.dtype, []).append(x.unbind())


class RowCopies:
    """Copies of rows of several clients, made together in one launch per type when the block ends.

    Copied tensor by tensor, a client's row of ResNet-18 would cost as much as a step; and before the first step the
    rows of as many clients as there are slots are copied, while a GPU waits.
    """

    def __init__(self) -> None:
        self._kinds: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}

    def add(self, source: RowViews, row: int, target: RowViews, target_row: int) -> None:
        for kind, tensors in source.kinds.items():
            targets, sources = self._kinds.setdefault(kind, ([], []))
            targets += [rows[target_row] for rows in target.kinds[kind]]
            sources += [rows[row] for rows in tensors]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for targets, sources in self._kinds.values() if error is None else ():
            torch._foreach_copy_(targets, sources)


def _share(x: Tensor, expected: Tensor, start: Tensor) -> float:
    """‖x − expected‖ / ‖expected − start‖, beyond the rounding of stored numbers. NaN and infinity count as 0."""
    if not x.is_floating_point():
        return float(not torch.equal(x, expected))
    rounded = 4 * torch.finfo(x.dtype).eps
    x, expected, start = (each.double().nan_to_num(0.0, 0.0, 0.0) for each in (x, expected, start))
    return float((x - expected).norm() / ((expected - start).norm() + rounded * expected.norm()).clamp(min=1e-300))


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _blank(x: Tensor, *leading: int) -> Tensor:
    return x.new_zeros(*leading, *x.shape[1:])


def _constant(x: Tensor, slots: int, common: bool) -> Tensor:
    return _blank(x, 1).expand(slots, *x.shape[1:]) if common else _blank(x, slots)


def capture(once: Callable[[], object]) -> Callable[[], object]:
    """The step as one CUDA graph, to be called; its memory is its own, and freed with it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            once()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    gc.disable()  # an older graph that is freed during the capture would invalidate it
    try:
        # A capture that fails may leave its stream as the current one; the outer context sets it back.
        back = torch.cuda.stream(torch.cuda.current_stream())
        with back, _own_workspaces(), torch.cuda.graph(graph, capture_error_mode="thread_local"):
            once()
    finally:
        if collects:
            gc.enable()
    return graph.replay


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Workspaces of cuBLAS for what is captured here, and for nothing else.

    cuBLAS keeps one for each stream, and all captures have the same stream. A second graph would use that of the first,
    and write to memory that is gone when the first is freed.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()
