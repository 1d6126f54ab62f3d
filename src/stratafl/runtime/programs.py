"""Programs: one step of all slots, on tensors that stay where they are, so that it can be captured and replayed.

On a GPU a step of stacked clients is hundreds of short kernels, and launching them from Python takes longer than
running them. A CUDA graph launches all of them at once; a compiled step has fewer of them. What enters a step from
round to round (rows, rates, batches) is copied into tensors with fixed addresses, and nothing is read back before the
scan is over.
"""

import gc
import logging
import time
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from stratafl.core.layout import Rows
from stratafl.core.reprs import short_repr
from stratafl.core.state import State, flatten, unflatten
from stratafl.core.task import Stack
from stratafl.errors import first_line
from stratafl.runtime.modules import fusing
from stratafl.runtime.slots import Turn, duration, enough, timetable, turns

log = logging.getLogger("stratafl")
Step = Callable[..., State]
Data = tuple[Tensor, ...]
Read = Callable[[Data, Tensor], tuple[Tensor, Tensor]]
ROOM = 64  # the least steps that a program has room for: tracing and warming up take some, and room costs nothing
MORE = 2  # times the slots that a program has, above which a cohort is worth another one
WARM_UP = 2  # runs before a capture: libraries allocate on their first use, which a capture does not allow


@short_repr
@dataclass(frozen=True, eq=False)
class Reel:
    """The batches of a whole scan: everything the host must say is said before the first step."""

    samples: Tensor  # [C, S, B]
    weight: Tensor  # [C, S, B]
    noise: Tensor  # [C, S]
    sizes: Tensor  # [C, S] on the host: how many samples of each batch are real

    def pick(self, clients: slice) -> "Reel":
        """The reel of some of the clients."""
        return Reel(self.samples[clients], self.weight[clients], self.noise[clients], self.sizes[clients])

    def columns(self) -> tuple[Tensor, Tensor, Tensor]:
        """Its tensors."""
        return self.samples, self.weight, self.noise

    def at(self, step: Tensor) -> tuple[Tensor, ...]:
        """The columns of one step, whose number only the device knows."""
        return tuple(column.index_select(1, step).squeeze(1) for column in self.columns())


class Program:
    """A step of so many slots, for scans of up to `length` steps."""

    def __init__(
        self,
        step: Step,
        read: Read,
        data: Data,
        carry: State,
        held: State,
        reels: Sequence[Reel],
        slots: int,
        length: int,
    ) -> None:
        self.slots, self.length = slots, length
        self._step, self._read, self._data = step, read, data
        self._hollow = tuple(name for name, value in carry.items() if not isinstance(value, Tensor) and not value)
        self._carry = {name: _blank(x, slots) for name, x in _leaves(carry).items()}
        self._held = {name: _constant(x, slots) for name, x in _leaves(held).items()}
        self._own = [name for name, x in self._held.items() if not shared(x)]
        self._at_work, self._in_use = Shelf(self._carry), Shelf({name: self._held[name] for name in self._own})
        self._reels = [_blank_reel(reel, slots, length) for reel in reels]
        self._at = torch.zeros(1, dtype=torch.int64, device=reels[0].samples.device)
        self.replay: Callable[[], object] | None = None  # the step as it was captured or compiled, if it was

    def tensors(self) -> list[Tensor]:
        """Everything that a step reads or writes."""
        reels = [column for reel in self._reels for column in reel.columns()]
        return [self._at, *self._data, *self._carry.values(), *self._held.values(), *reels]

    def on(self, tensors: Sequence[Tensor]) -> "Program":
        """The same program on other tensors, in the order of `tensors`."""
        twin, rest = copy(self), iter(tensors)
        twin._at = next(rest)
        twin._data = tuple(next(rest) for _ in self._data)
        twin._carry = {name: next(rest) for name in self._carry}
        twin._held = {name: next(rest) for name in self._held}
        twin._reels = [Reel(next(rest), next(rest), next(rest), reel.sizes) for reel in self._reels]
        return twin

    def once(self) -> None:
        """One step of all slots."""
        stacks = []
        for reel in self._reels:
            samples, weight, noise = reel.at(self._at)
            stacks.append(Stack(*self._read(self._data, samples), weight, noise, ()))
        after = _leaves(self._step(self._state(self._carry), unflatten(self._held), *stacks))
        moved = {name: x for name, x in after.items() if x is not self._carry[name]}
        own = {_place(x) for x in self._carry.values()}
        apart = {name: x.clone() if _place(x) in own else x for name, x in moved.items()}  # fields may change places
        for name, x in apart.items():
            self._carry[name].copy_(x)
        self._at.add_(1)

    def run(self, carry: State, held: State, reels: Sequence[Reel], steps: Sequence[int]) -> State:
        """All steps of all clients; what is given is not written to."""
        plan = turns(steps, self.slots)
        before, constants = _leaves(carry), _leaves(held)
        after = {name: torch.empty_like(x, memory_format=torch.contiguous_format) for name, x in before.items()}
        given, done, fixed = Shelf(before), Shelf(after), Shelf({name: constants[name] for name in self._own})
        self._load(constants, reels, plan)
        for client in range(len(steps)):
            if not steps[client]:
                given.copy(client, done, client)
        for leaving, coming, until in _shifts(plan):
            for turn in leaving:
                self._at_work.copy(turn.slot, done, turn.client)
            for turn in coming:
                (done if turn.first else given).copy(turn.client, self._at_work, turn.slot)
                fixed.copy(turn.client, self._in_use, turn.slot)
            for _ in range(until):
                (self.replay or self.once)()
        return self._state(after)

    def _state(self, leaves: Rows) -> State:
        return {**{name: {} for name in self._hollow}, **unflatten(leaves)}

    def _load(self, constants: Rows, reels: Sequence[Reel], plan: Sequence[Turn]) -> None:
        longest = max((turn.end for turn in plan), default=0)
        client, step = (x.to(self._at.device) for x in timetable(plan, self.slots, longest))
        for mine, reel in zip(self._reels, reels, strict=True):
            for kept, column in zip(mine.columns(), reel.columns(), strict=True):
                kept[:, :longest].copy_(column[client, step])
        for name, kept in self._held.items():
            if shared(kept):
                kept[:1].copy_(constants[name][:1])
        self._at.zero_()


def shared(x: Tensor) -> bool:
    """Whether all clients see one and the same row, which is then kept once."""
    return x.stride(0) == 0


def _place(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()


def _leaves(state: State) -> Rows:
    """Flat names and tensors, without the marks of fields that hold no layer."""
    return {path: x for path, x in flatten(state).items() if not path.endswith("/")}


def _blank(x: Tensor, *leading: int) -> Tensor:
    return x.new_zeros(*leading, *x.shape[1:])


def _blank_reel(reel: Reel, slots: int, length: int) -> Reel:
    samples, weight, noise = (_blank(x[:, 0], slots, length) for x in reel.columns())
    return Reel(samples, weight, noise, reel.sizes)


def _constant(x: Tensor, slots: int) -> Tensor:
    return _blank(x, 1).expand(slots, *x.shape[1:]) if shared(x) else _blank(x, slots)


class Shelf:
    """Rows of tensors at hand, so that one is copied in one launch per type.

    Copied tensor by tensor, the rows of a client of ResNet-18 would cost as much as a step; taking views anew for every
    copy, half a millisecond of Python.
    """

    def __init__(self, tensors: Rows) -> None:
        kinds = sorted({x.dtype for x in tensors.values()}, key=str)
        self._kinds = [[x.unbind() for name, x in sorted(tensors.items()) if x.dtype == kind] for kind in kinds]

    def copy(self, here: int, target: "Shelf", there: int) -> None:
        """One row of all tensors to a place of another shelf with the same tensors."""
        for mine, others in zip(self._kinds, target._kinds, strict=True):
            torch._foreach_copy_([rows[there] for rows in others], [rows[here] for rows in mine])


def _shifts(plan: Sequence[Turn]) -> Iterator[tuple[list[Turn], list[Turn], int]]:
    """Who leaves and who comes whenever anybody does, and how many steps there are until the next time."""
    times = sorted({t for turn in plan for t in (turn.begin, turn.end)})
    for now, following in pairwise([*times, *times[-1:]]):
        leaving = [turn for turn in plan if turn.end == now]
        yield leaving, [turn for turn in plan if turn.begin == now], following - now


def captured(once: Callable[[], object], pool: Any) -> Callable[[], object]:
    """The step as one CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            once()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    gc.disable()  # an older graph that is let go of while this one is captured would spoil it
    try:
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            once()
    finally:
        if collects:
            gc.enable()
    return graph.replay


def release(device: torch.device) -> None:
    """Give a GPU's memory back that nothing uses: cycles of Python, pools of graphs, workspaces of libraries."""
    torch.cuda.synchronize(device)
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()  # one for each stream that a step was captured on, in the pool of its graph
    torch.cuda.empty_cache()


def compiled(program: Program) -> Callable[[], object]:
    """The step as fewer kernels: traced into plain operations, and these fused by torch's compiler."""
    from torch._inductor.compile_fx import compile_fx  # imports the compiler, which takes seconds

    tensors = program.tensors()

    def once(*given: Tensor) -> tuple[Tensor]:
        twin = program.on(given)
        twin.once()
        return (twin._at,)

    with fusing(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # advice to use fewer digits, which is the person's to decide
        traced = make_fx(once)(*tensors)
        run: Callable[..., object] = compile_fx(traced, tensors)  # type: ignore[assignment]
    return lambda: run(*tensors)


GAIN = 0.4  # of a round's time that compiling saves at least; measured on an H200: CNN 0.56, ResNet-18 0.74
COST = (8.0, 0.8)  # seconds to compile, and for each tensor of the model; measured there: CNN 12–20, ResNet-18 49–58


class Programs:
    """The programs of a runtime: made when a scan first needs one, kept for the rounds to come.

    Whether steps are compiled is decided, if nobody has decided it, when the second scan of a kind has been timed.
    """

    def __init__(self, device: torch.device, compile: str = "auto", *, captures: bool = True, tensors: int = 0) -> None:
        self._device, self._graphs = device, captures and device.type == "cuda"
        self.compiles: bool | None = {"on": True, "off": False}.get(compile, None if self._graphs else False)
        self._pool = torch.cuda.graph_pool_handle() if self._graphs else None
        self._cost = COST[0] + COST[1] * tensors
        self._kept: dict[Hashable, Program] = {}
        self._refused: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def close(self) -> None:
        """Let go of all programs and of the memory that their graphs have reserved; a scan makes them anew."""
        self._kept.clear()
        if self._graphs:
            self._pool = torch.cuda.graph_pool_handle()
            release(self._device)

    def scan(
        self,
        name: Hashable,
        step: Step,
        read: Read,
        data: Data,
        carry: State,
        held: State,
        reels: Sequence[Reel],
        steps: Sequence[int],
        rounds_left: int | None = None,
    ) -> State | None:
        """The carry after all steps, or None if this step cannot be a program.

        With the number of rounds that are left, the step may be worth compiling; without it, it is not compiled.
        """
        likeness = tuple((n, x.shape[1:], x.dtype, shared(x)) for s in (carry, held) for n, x in _leaves(s).items())
        key = (name, likeness, reels[0].samples.shape[2], len(reels))
        try:
            if key in self._refused:
                return None
        except TypeError:  # a name that cannot be compared cannot be found again
            return None
        program = self._kept.get(key)
        slots = enough(steps)
        if program is not None and slots <= MORE * program.slots:
            slots = program.slots
        length = duration(steps, slots)
        if program is not None and program.slots == slots and program.length >= length:
            return self._timed(program, rounds_left, carry, held, reels, steps)
        program = Program(step, read, data, carry, held, reels, slots, max(length + length // 4, ROOM))
        try:
            self._prepare(program, compiles=rounds_left is not None)
        except Exception as error:  # anybody's objective may do what cannot be captured; then it goes on as it is
            log.warning("a step is taken anew every time: %s", first_line(error, typed=True))
            self._refused.add(key)
            return None
        self._kept[key] = program
        return program.run(carry, held, reels, steps)

    def _timed(self, program: Program, rounds_left: int | None, *scan: Any) -> State:
        """The scan, with its time taken if that decides something."""
        if self.compiles is not None or rounds_left is None:
            return program.run(*scan)
        begin = time.perf_counter()
        done = program.run(*scan)
        torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - begin
        self.compiles = GAIN * seconds * rounds_left > self._cost
        said = "compiled" if self.compiles else "not compiled"
        log.info(
            "steps are %s: %d rounds of %.2f s are left, and compiling takes about %.0f s",
            *(said, rounds_left, seconds, self._cost),
        )
        if self.compiles:
            self._kept.clear()
        return done

    def _prepare(self, program: Program, compiles: bool) -> None:
        once: Callable[[], object] = program.once
        if self.compiles and compiles:
            try:
                once = compiled(program)
            except Exception as error:  # no compiler, or none that knows these operations
                log.warning("steps are not compiled: %s", first_line(error, typed=True))
                self.compiles = False
        if self._graphs:
            program.replay = captured(once, self._pool)
        elif once != program.once:
            program.replay = once
