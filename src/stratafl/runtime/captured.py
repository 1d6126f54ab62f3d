"""Captured steps: a training or scoring step of several clients on tensors with fixed addresses, kept for later rounds.

On a GPU a step of stacked clients is hundreds of short kernels, and launching them from Python takes longer than
running them. A CUDA graph launches all of them at once; a compiled step has fewer.
"""

import gc
import logging
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from stratafl.core.layout import Rows
from stratafl.core.state import State, flatten, shared, unflatten
from stratafl.core.task import ScanStep, Stack
from stratafl.errors import first_line
from stratafl.runtime.batches import Batches
from stratafl.runtime.products import fusing
from stratafl.runtime.schedule import Turn, duration, slots_for, timetable, turns

Data = tuple[Tensor, ...]
Read = Callable[[Data, Tensor], tuple[Tensor, Tensor]]
WARM_UP = 2  # runs before a capture: libraries allocate on their first use, which a capture does not allow
log = logging.getLogger("stratafl")
LEAST_LENGTH = 64  # steps that a captured step is made for at least: warming up takes a few, and space costs nothing
MORE = 2  # a cohort that needs more than so many times the slots gets a new captured step
GAIN = 0.4  # the share of a round that compiling saves at least; measured on an H200: CNN 0.56, ResNet-18 0.74
COST = (8.0, 0.8)  # seconds to compile, and for each tensor of the model; measured there: CNN 12–20, ResNet-18 49–58


class CapturedStep:
    """One step of `slots` clients, for scans of up to `length` steps.

    Everything that changes from round to round (rows, learning rates, batches) is copied into tensors that stay where
    they are, and nothing is read back before the scan is over.
    """

    def __init__(
        self,
        step: ScanStep,
        read: Read,
        data: Data,
        carry: State,
        held: State,
        batches: Sequence[Batches],
        slots: int,
        length: int,
    ) -> None:
        self.slots, self.length = slots, length
        self._step, self._read, self._data = step, read, data
        self._empty = tuple(name for name, value in carry.items() if not isinstance(value, Tensor) and not value)
        self._carry = {name: _blank(x, slots) for name, x in leaves(carry).items()}
        self._held = {name: _constant(x, slots) for name, x in leaves(held).items()}
        self._own = [name for name, x in self._held.items() if not shared(x)]
        self._carry_rows, self._held_rows = RowViews(self._carry), RowViews({n: self._held[n] for n in self._own})
        self._batches = [_blank_batches(each, slots, length) for each in batches]
        self._at = torch.zeros(1, dtype=torch.int64, device=batches[0].samples.device)
        self.replay: Callable[[], object] | None = None  # the step as it was captured or compiled, if it was

    def tensors(self) -> list[Tensor]:
        """Everything that a step reads or writes."""
        batches = [x for each in self._batches for x in each.tensors()]
        return [self._at, *self._data, *self._carry.values(), *self._held.values(), *batches]

    def on(self, tensors: Sequence[Tensor]) -> "CapturedStep":
        """The same step on other tensors, in the order of `tensors`."""
        twin, rest = copy(self), iter(tensors)
        twin._at = next(rest)
        twin._data = tuple(next(rest) for _ in self._data)
        twin._carry = {name: next(rest) for name in self._carry}
        twin._held = {name: next(rest) for name in self._held}
        twin._batches = [Batches(next(rest), next(rest), next(rest), each.sizes) for each in self._batches]
        return twin

    def once(self) -> None:
        """One step of all slots."""
        stacks = []
        for batches in self._batches:
            samples, weight, noise = batches.at(self._at)
            stacks.append(Stack(*self._read(self._data, samples), weight, noise, ()))
        after = leaves(self._step(self._state(self._carry), unflatten(self._held), *stacks))
        changed = {name: x for name, x in after.items() if x is not self._carry[name]}
        own = {_address(x) for x in self._carry.values()}
        apart = {name: x.clone() if _address(x) in own else x for name, x in changed.items()}  # fields may be swapped
        for name, x in apart.items():
            self._carry[name].copy_(x)
        self._at.add_(1)

    def run(self, carry: State, held: State, batches: Sequence[Batches], steps: Sequence[int]) -> State:
        """All steps of all clients; what is given is not written to."""
        plan = turns(steps, self.slots)
        before, constants = leaves(carry), leaves(held)
        after = {name: torch.empty_like(x, memory_format=torch.contiguous_format) for name, x in before.items()}
        given, done, fixed = RowViews(before), RowViews(after), RowViews({name: constants[name] for name in self._own})
        self._load(constants, batches, plan)
        for client in range(len(steps)):
            if not steps[client]:
                given.copy(client, done, client)
        for leaving, coming, count in _changes(plan):
            for turn in leaving:
                self._carry_rows.copy(turn.slot, done, turn.client)
            for turn in coming:
                (done if turn.first else given).copy(turn.client, self._carry_rows, turn.slot)
                fixed.copy(turn.client, self._held_rows, turn.slot)
            for _ in range(count):
                (self.replay or self.once)()
        return self._state(after)

    def _state(self, flat: Rows) -> State:
        return {**{name: {} for name in self._empty}, **unflatten(flat)}

    def _load(self, constants: Rows, batches: Sequence[Batches], plan: Sequence[Turn]) -> None:
        longest = max((turn.end for turn in plan), default=0)
        client, step = (x.to(self._at.device) for x in timetable(plan, self.slots, longest))
        for mine, given in zip(self._batches, batches, strict=True):
            for kept, x in zip(mine.tensors(), given.tensors(), strict=True):
                kept[:, :longest].copy_(x[client, step])
        for name, kept in self._held.items():
            if shared(kept):
                kept[:1].copy_(constants[name][:1])
        self._at.zero_()


class RowViews:
    """Views of the rows of tensors, so that one client's row is copied in one launch per type.

    Copied tensor by tensor, a client's row of ResNet-18 would cost as much as a step; making the views again for every
    copy, half a millisecond of Python.
    """

    def __init__(self, tensors: Rows) -> None:
        kinds = sorted({x.dtype for x in tensors.values()}, key=str)
        self._kinds = [[x.unbind() for name, x in sorted(tensors.items()) if x.dtype == kind] for kind in kinds]

    def copy(self, row: int, target: "RowViews", target_row: int) -> None:
        for mine, others in zip(self._kinds, target._kinds, strict=True):
            torch._foreach_copy_([rows[target_row] for rows in others], [rows[row] for rows in mine])


def leaves(state: State) -> Rows:
    """Flat names and tensors, without the entries that mark empty fields."""
    return {path: x for path, x in flatten(state).items() if not path.endswith("/")}


def _address(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _blank(x: Tensor, *leading: int) -> Tensor:
    return x.new_zeros(*leading, *x.shape[1:])


def _blank_batches(like: Batches, slots: int, length: int) -> Batches:
    samples, weight, noise = (_blank(x[:, 0], slots, length) for x in like.tensors())
    return Batches(samples, weight, noise, like.sizes)


def _constant(x: Tensor, slots: int) -> Tensor:
    return _blank(x, 1).expand(slots, *x.shape[1:]) if shared(x) else _blank(x, slots)


def _changes(plan: Sequence[Turn]) -> Iterator[tuple[list[Turn], list[Turn], int]]:
    """Whenever a slot changes its client: turns that end, turns that begin, and the steps until the next change."""
    times = sorted({t for turn in plan for t in (turn.begin, turn.end)})
    for now, following in pairwise([*times, *times[-1:]]):
        leaving = [turn for turn in plan if turn.end == now]
        yield leaving, [turn for turn in plan if turn.begin == now], following - now


def capture(once: Callable[[], object], pool: Any) -> Callable[[], object]:
    """The step as one CUDA graph, to be called."""
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
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            once()
    finally:
        if collects:
            gc.enable()
    return graph.replay


def compiled(captured: CapturedStep) -> Callable[[], object]:
    """The step with fewer kernels: traced into plain operations, which torch's compiler fuses."""
    from torch._inductor.compile_fx import compile_fx  # importing the compiler takes seconds

    tensors = captured.tensors()

    def once(*given: Tensor) -> tuple[Tensor]:
        twin = captured.on(given)
        twin.once()
        return (twin._at,)

    with fusing(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice to lower the precision, which the user decides
        traced = make_fx(once)(*tensors)
        run: Callable[..., object] = compile_fx(traced, tensors)  # type: ignore[assignment]
    return lambda: run(*tensors)


class CapturedSteps:
    """The captured steps of a runtime: made when a scan first needs one, and kept for later rounds.

    With `compile="auto"`, the time of the second scan of a kind decides whether steps are compiled.
    """

    def __init__(self, device: torch.device, compile: str = "auto", *, captures: bool = True, tensors: int = 0) -> None:
        self._device, self._graphs = device, captures and device.type == "cuda"
        self.compiles: bool | None = {"on": True, "off": False}.get(compile, None if self._graphs else False)
        self._pool = torch.cuda.graph_pool_handle() if self._graphs else None
        self._cost = COST[0] + COST[1] * tensors
        self._kept: dict[Hashable, CapturedStep] = {}
        self._refused: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def close(self) -> None:
        """Free all steps and the memory that their graphs have reserved; the next scan makes them again."""
        self._kept.clear()
        if self._graphs:
            self._pool = torch.cuda.graph_pool_handle()
            torch.cuda.synchronize(self._device)
            gc.collect()
            torch._C._cuda_clearCublasWorkspaces()  # one for each stream of a capture, in the pool of its graph
            torch.cuda.empty_cache()

    def scan(
        self,
        name: Hashable,
        step: ScanStep,
        read: Read,
        data: Data,
        carry: State,
        held: State,
        batches: Sequence[Batches],
        steps: Sequence[int],
        rounds_left: int | None = None,
    ) -> State | None:
        """The carry after all steps, or None if this step cannot be captured.

        Without the number of rounds that are left, the step is never compiled.
        """
        likeness = tuple((n, x.shape[1:], x.dtype, shared(x)) for s in (carry, held) for n, x in leaves(s).items())
        key = (name, likeness, batches[0].samples.shape[2], len(batches))
        try:
            if key in self._refused:
                return None
        except TypeError:  # a name that is not hashable cannot be found again
            return None
        captured = self._kept.get(key)
        slots = slots_for(steps)
        if captured is not None and slots <= MORE * captured.slots:
            slots = captured.slots
        length = duration(steps, slots)
        if captured is not None and captured.slots == slots and captured.length >= length:
            return self._timed(captured, rounds_left, carry, held, batches, steps)
        captured = CapturedStep(step, read, data, carry, held, batches, slots, max(length + length // 4, LEAST_LENGTH))
        try:
            self._prepare(captured, compiles=rounds_left is not None)
        except Exception as error:  # an objective may do what cannot be captured; then the step runs as it is
            log.warning("a step cannot be captured and runs more slowly: %s", first_line(error, typed=True))
            self._refused.add(key)
            return None
        self._kept[key] = captured
        return captured.run(carry, held, batches, steps)

    def _timed(self, captured: CapturedStep, rounds_left: int | None, *scan: Any) -> State:
        """The scan; its time decides whether steps are compiled, if that is still open."""
        if self.compiles is not None or rounds_left is None:
            return captured.run(*scan)
        begin = time.perf_counter()
        done = captured.run(*scan)
        torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - begin
        self.compiles = GAIN * seconds * rounds_left > self._cost
        log.info(
            "steps are %s: %d rounds of %.2f s are left, and compiling takes about %.0f s",
            *("compiled" if self.compiles else "not compiled", rounds_left, seconds, self._cost),
        )
        if self.compiles:
            self._kept.clear()
        return done

    def _prepare(self, captured: CapturedStep, compiles: bool) -> None:
        once: Callable[[], object] = captured.once
        if self.compiles and compiles:
            try:
                once = compiled(captured)
            except Exception as error:  # no compiler, or one that does not know these operations
                log.warning("steps cannot be compiled and run more slowly: %s", first_line(error, typed=True))
                self.compiles = False
        if self._graphs:
            captured.replay = capture(once, self._pool)
        elif once != captured.once:
            captured.replay = once
