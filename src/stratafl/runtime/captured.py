"""Captured steps: a training or scoring step of several clients on tensors with fixed addresses, kept for later rounds.

On a GPU a step of stacked clients is hundreds of short kernels, and launching them from Python takes longer than
running them. A CUDA graph launches all of them at once; a compiled step has fewer.
"""

import gc
import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from functools import partial

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.state import State, unflatten
from stratafl.core.task import ScanStep
from stratafl.errors import first_line
from stratafl.runtime.compiling import Compiler
from stratafl.runtime.engine import Engine
from stratafl.runtime.inputs import Inputs, Plan
from stratafl.runtime.lanes import pace
from stratafl.runtime.products import fusing
from stratafl.runtime.scan import Scan, leaves
from stratafl.runtime.schedule import joined_slots, slots_for

WARM_UP = 2  # runs before a capture: libraries allocate on their first use, which a capture does not allow
log = logging.getLogger("stratafl")
KEPT = 1  # steps for the same scans that are kept while another one is made
MORE = 2  # a cohort that needs more than so many times the slots gets a new captured step
GAIN = 0.4  # the share of a round that compiling saves at least; measured on an H200: CNN 0.56, ResNet-18 0.74
COST = (8.0, 0.8)  # seconds to compile, and for each tensor of the model; measured there: CNN 12–20, ResNet-18 49–58


class CapturedStep:
    """One step of `slots` clients, for scans that are like the one it is made for, of one run or of several.

    Everything that changes from scan to scan (rows, learning rates, batches) is copied into tensors that stay where
    they are, and nothing is read back before the scan is over. Nothing of a run is kept: batches are read window by
    window, before their steps. Constants that all clients of a run share are one row if `common` names them.
    """

    def __init__(self, like: Scan, slots: int, common: frozenset[str]) -> None:
        self.slots, self.likeness, self._common = slots, like.likeness, common
        self._empty = tuple(name for name, value in like.carry.items() if not isinstance(value, Tensor) and not value)
        self._carry = {name: _blank(x, slots) for name, x in leaves(like.carry).items()}
        self._held = {name: _constant(x, slots, name in common) for name, x in leaves(like.held).items()}
        own = {name: x for name, x in self._held.items() if name not in common}
        self._carry_rows, self._held_rows = RowViews(self._carry), RowViews(own)
        self._inputs = [Inputs.blank(like.source, each, slots) for each in like.batches]
        self._at = torch.zeros(1, dtype=torch.int64, device=like.batches[0].samples.device)
        self.engine: Engine | None = None  # of a graph, which replays operations on what its model holds
        self.replay: Callable[[], object] | None = None  # the step as it was captured or compiled, if it was
        self.compiled: str | None = None  # its entry in the cache, if it is compiled

    def tensors(self) -> list[Tensor]:
        """Everything that a step reads or writes."""
        inputs = [x for each in self._inputs for x in each.tensors()]
        return [self._at, *self._carry.values(), *self._held.values(), *inputs]

    def on(self, tensors: Sequence[Tensor]) -> "CapturedStep":
        """The same step on other tensors, in the order of `tensors`."""
        twin, rest = copy(self), iter(tensors)
        twin._at = next(rest)
        twin._carry = {name: next(rest) for name in self._carry}
        twin._held = {name: next(rest) for name in self._held}
        twin._inputs = [Inputs(*(next(rest) for _ in each.tensors())) for each in self._inputs]
        return twin

    def rewind(self) -> None:
        self._at.zero_()

    def once(self, step: ScanStep) -> None:
        """One step of all slots."""
        stacks = [each.at(self._at) for each in self._inputs]
        after = leaves(step(self._state(self._carry), unflatten(self._held), *stacks))
        changed = {name: x for name, x in after.items() if x is not self._carry[name]}
        own = {_address(x) for x in self._carry.values()}
        apart = {name: x.clone() if _address(x) in own else x for name, x in changed.items()}  # fields may be swapped
        for name, x in apart.items():
            self._carry[name].copy_(x)
        self._at.add_(1)

    def run(self, scans: Sequence[Scan]) -> list[State]:
        """All steps of all clients of these scans; what is given is not written to."""
        plan = Plan(scans, self.slots)
        moving = [_Moving(scan, self._common) for scan in scans]
        for name in self._common:
            self._held[name][:1].copy_(leaves(scans[0].held)[name][:1])
        replay, window = self.replay or partial(self.once, scans[0].step), self._inputs[0].window
        paced = pace(sum(x.numel() for x in self._carry.values()), self._at.device)
        for each in moving:
            each.keep_idle()
        for now, leaving, coming, count in plan.changes(window):
            for turn in leaving:
                run, client = plan.places[turn.client]
                self._carry_rows.copy(turn.slot, moving[run].done, client)
            for turn in coming:
                run, client = plan.places[turn.client]
                (moving[run].done if turn.first else moving[run].given).copy(client, self._carry_rows, turn.slot)
                moving[run].fixed.copy(client, self._held_rows, turn.slot)
            if now % window == 0 and count:
                self._load(plan, now)
            for _ in range(count):
                with nullcontext() if paced is None else paced.step():
                    replay()
        return [self._state(each.after) for each in moving]

    def _state(self, flat: Rows) -> State:
        return {**{name: {} for name in self._empty}, **unflatten(flat)}

    def _load(self, plan: "Plan", begin: int) -> None:
        """The batches of the next window."""
        for draw, inputs in enumerate(self._inputs):
            inputs.load(plan, draw, begin)
        self._at.zero_()


class _Moving:
    """The rows of one scan: where they come from, where they go, and the constants that go with them."""

    def __init__(self, scan: Scan, common: frozenset[str]) -> None:
        before = leaves(scan.carry)
        self.steps = scan.steps
        self.after = {name: torch.empty_like(x, memory_format=torch.contiguous_format) for name, x in before.items()}
        self.given, self.done = RowViews(before), RowViews(self.after)
        self.fixed = RowViews({name: x for name, x in leaves(scan.held).items() if name not in common})

    def keep_idle(self) -> None:
        """Copy the rows of clients that take no step."""
        for client, steps in enumerate(self.steps):
            if not steps:
                self.given.copy(client, self.done, client)


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
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            once()
    finally:
        if collects:
            gc.enable()
    return graph.replay


class CapturedSteps:
    """The captured steps of a runtime: made when a scan first needs one, and kept for later rounds.

    With `compile="auto"`, a compiled step is used as soon as it is there: at once if it is in the cache, else the time
    of the second scan decides whether it is compiled, beside the rounds. `switched` says of an earlier part of a run
    from which round on each compiled step was used. If it `joins` scans of several runs, they share no constants.
    """

    def __init__(
        self,
        device: torch.device,
        compile: str = "auto",
        *,
        captures: bool = True,
        tensors: int = 0,
        joins: bool = False,
        switched: Mapping[str, int] | None = None,
    ) -> None:
        self._device, self._graphs, self._joins = device, captures and device.type == "cuda", joins
        self.compiles: bool | None = {"on": True, "off": False}.get(compile, None if self._graphs else False)
        if compile == "auto" and switched and self._graphs:
            self.compiles = True
        self._at_once, self._switched, self._compiler = compile == "on", switched or {}, Compiler()
        self._cost = COST[0] + COST[1] * tensors
        self._kept: dict[tuple[Hashable, int], CapturedStep] = {}  # the one used last is the last
        self._refused: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def close(self) -> None:
        """Free all steps and the memory that their graphs have reserved; the next scan makes them again."""
        self._kept.clear()
        self._compiler.close()
        if self._graphs:
            torch.cuda.synchronize(self._device)
            gc.collect()
            torch._C._cuda_clearCublasWorkspaces()  # one for each stream of a capture, in the pool of its graph
            torch.cuda.empty_cache()

    def scan(self, scans: Sequence[Scan]) -> list[State] | None:
        """The carries after all steps of scans that are alike, or None if this step cannot be captured."""
        first, joined = scans[0], len(scans) > 1 or self._joins
        key = (first.likeness, frozenset() if joined else first.common)
        if key in self._refused:
            return None
        first.engine.prepare()
        steps = [count for scan in scans for count in scan.steps]
        slots = joined_slots(steps) if joined else self._slots(key, slots_for(steps))
        kept = self._kept.pop((key, slots), None)
        if kept is not None:
            self._kept[key, slots] = kept  # the last one that was used
            self._switch(kept, (key, slots), first.round)
            return self._or_apart(key, partial(self._timed, kept, scans))
        captured = CapturedStep(first, slots, key[1])
        try:
            self._prepare(captured, (key, slots), first)
        except Exception as error:  # an objective may do what cannot be captured; then the step runs as it is
            log.warning("a step cannot be captured and runs more slowly: %s", first_line(error, typed=True))
            self._refused.add(key)
            return None
        self._forget(key, KEPT)
        self._kept[key, slots] = captured
        return self._or_apart(key, partial(captured.run, scans))

    def _or_apart(self, key: Hashable, run: Callable[[], list[State]]) -> list[State] | None:
        """What the scans give; of several runs, None if their clients cannot take this step together."""
        try:
            return run()
        except Exception as error:
            if not self._joins:
                raise
            log.info("steps of several runs cannot be joined: %s", first_line(error, typed=True))
            self._refused.add(key)
            self._forget(key, 0)
            return None

    def _slots(self, key: Hashable, slots: int) -> int:
        """The slots of the step that is kept for such scans, unless they need many more."""
        kept = next((step.slots for (known, _), step in self._kept.items() if known == key), slots)
        return kept if slots <= MORE * kept else slots

    def _forget(self, key: Hashable, but: int) -> None:
        """Free the steps for such scans but the last: as runs begin and end, their scans need more or fewer slots."""
        for old in [each for each in self._kept if each[0] == key][: -but or None]:
            del self._kept[old]
            self._compiler.forget(old)

    def compiled(self, scan: Scan) -> list[str]:
        """The compiled steps that such scans are executed with, by their entries in the cache."""
        return [step.compiled for step in self._kept.values() if step.likeness == scan.likeness and step.compiled]

    def _timed(self, captured: CapturedStep, scans: Sequence[Scan]) -> list[State]:
        """The scan; its time decides whether steps are compiled, if that is still open."""
        rounds_left = max((scan.rounds_left for scan in scans if scan.rounds_left is not None), default=None)
        if self.compiles is not None or rounds_left is None:
            return captured.run(scans)
        begin = time.perf_counter()
        done = captured.run(scans)
        torch.cuda.synchronize(self._device)
        seconds = time.perf_counter() - begin
        self.compiles = GAIN * seconds * rounds_left > self._cost
        log.info(
            "steps are %s: %d rounds of %.2f s are left, and compiling takes about %.0f s",
            *("compiled" if self.compiles else "not compiled", rounds_left, seconds, self._cost),
        )
        if self.compiles:
            self._compiler.launch()
        return done

    def _prepare(self, captured: CapturedStep, name: Hashable, scan: Scan) -> None:
        once = partial(captured.once, scan.step)
        if self._graphs:
            captured.engine = scan.engine
            captured.replay = capture(once)  # its counter begins at 0
        if self.compiles is not False and scan.rounds_left is not None:
            captured.rewind()
            with fusing():
                step = lambda *given: captured.on(given).once(scan.step)  # noqa: E731
                self._compiler.start(name, step, captured.tensors(), launch=bool(self.compiles))
            self._switch(captured, name, scan.round)

    def _switch(self, captured: CapturedStep, name: Hashable, t: int) -> None:
        """Use the compiled step if it is there; in a resumed run, from the round on in which it did so before."""
        entry = self._compiler.key(name)
        if captured.compiled is not None or entry is None:
            return
        since = self._switched.get(entry)
        if since is not None and t < since:
            return
        waits = self._at_once or since is not None
        run = self._compiler.wait(name) if waits else self._compiler.ready(name)
        if run is not None:
            captured.rewind()
            tensors = captured.tensors()
            once = partial(run, *tensors)
            captured.replay, captured.compiled = capture(once) if self._graphs else once, entry
