"""Captured steps, kept from round to round: which steps are captured or compiled, and when that pays."""

import gc
import logging
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from stratafl.core.state import State
from stratafl.core.task import ScanStep
from stratafl.errors import first_line
from stratafl.runtime.batches import Batches
from stratafl.runtime.captured_step import CapturedStep, Data, Read, capture, compiled, leaves, shared
from stratafl.runtime.schedule import duration, slots_for

log = logging.getLogger("stratafl")
LEAST_LENGTH = 64  # steps that a captured step is made for at least: warming up takes a few, and space costs nothing
MORE = 2  # a cohort that needs more than so many times the slots gets a new captured step
GAIN = 0.4  # the share of a round that compiling saves at least; measured on an H200: CNN 0.56, ResNet-18 0.74
COST = (8.0, 0.8)  # seconds to compile, and for each tensor of the model; measured there: CNN 12–20, ResNet-18 49–58


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
