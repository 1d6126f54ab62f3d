"""Captured steps: a training or scoring step of several clients on tensors with fixed addresses, kept for later rounds.

On a GPU a step of stacked clients is hundreds of short kernels, and launching them from Python takes longer than
running them. A CUDA graph launches all of them at once; a compiled step has fewer.
"""

import gc
import logging
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

import torch

from stratafl.core.state import State
from stratafl.errors import ModelError, first_line
from stratafl.runtime.captured_step import CapturedStep, capture
from stratafl.runtime.compiled_step import Run
from stratafl.runtime.compiling import Compiler
from stratafl.runtime.products import fusing, is_rounding
from stratafl.runtime.scan import Scan
from stratafl.runtime.schedule import joined_slots, slots_for

log = logging.getLogger("stratafl")
MAX_STEPS_PER_SCAN = 1  # steps for the same scans that are kept while another one is made
UNUSED = 4  # steps that are kept although no run under way has used them: the next may do so, with its third scan
MORE = 2  # a cohort that needs more than MORE times the slots gets a new captured step
COMPILING = (20.0, 0.8)  # seconds to compile a step during the rounds, plus seconds per tensor of the model
LOADING = 5.0  # … until one from the cache is loaded


class CapturedSteps:
    """The captured steps of a runtime: made when a scan first needs one, and kept for later rounds.

    With `compile="auto"`, steps are compiled, or loaded from the cache, during the rounds if the rounds that are left
    take longer than that, and each is used as soon as it is there. `switched` says of an earlier part of a run from
    which round on each compiled step was used. If it `joins` scans of several runs, they share no constants.
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
        self._compiling = COMPILING[0] + COMPILING[1] * tensors
        self._reached: dict[int, float] = {}  # when each of the first rounds began
        self._kept: dict[tuple[Hashable, int], CapturedStep] = {}  # the one used last is the last
        self._refused: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._kept)

    def close(self) -> None:
        """Free all steps and the memory that their graphs have reserved; the next scan makes them again."""
        self._wait()
        self._kept.clear()
        self._compiler.close()
        self._release()

    def free_unused(self, used: frozenset[Hashable]) -> None:
        """Free steps for scans that are none of these, but the last few."""
        unused = [each for each, step in self._kept.items() if step.likeness not in used][:-UNUSED]
        self._drop(unused)
        if unused:
            self._release()

    def _release(self) -> None:
        if self._graphs:
            gc.collect()
            torch._C._cuda_clearCublasWorkspaces()  # one for each stream that was used
            torch.cuda.empty_cache()

    def scan(self, scans: Sequence[Scan]) -> list[State] | None:
        """The carries after all steps of scans that are alike, or None if this step cannot be captured."""
        first, joined = scans[0], len(scans) > 1 or self._joins
        self._decide(scans)
        key = (first.likeness, frozenset() if joined else first.common)
        if key in self._refused:
            return None
        first.engine.prepare()
        steps = [count for scan in scans for count in scan.steps]
        if joined:
            slots = joined_slots(steps, first.width, self._device.type)
        else:
            slots = self._slots(key, slots_for(steps))
        captured_before = self._kept.pop((key, slots), None)
        if captured_before is not None:
            self._kept[key, slots] = captured_before  # the last one that was used
            self._switch(captured_before, (key, slots), scans)
            return self._or_apart(key, partial(captured_before.run, scans))
        try:
            captured = CapturedStep(first, slots, key[1])
            self._prepare(captured, (key, slots), scans)
        except Exception as error:  # an objective may do what cannot be captured; then the step runs as it is
            log.warning("a step cannot be captured and runs more slowly: %s", first_line(error, typed=True))
            self._refused.add(key)
            return None
        self._forget(key, MAX_STEPS_PER_SCAN)
        self._kept[key, slots] = captured
        return self._or_apart(key, partial(captured.run, scans))

    def _or_apart(self, key: Hashable, run: Callable[[], list[State]]) -> list[State] | None:
        """What the scans give; of several runs, None if their clients cannot take this step together."""
        try:
            return run()
        except Exception as error:
            if not self._joins:
                raise
            expected = isinstance(error, ValueError)  # `state.common` refuses constants of several runs
            why = first_line(error, typed=True)
            log.log(
                logging.INFO if expected else logging.WARNING,
                *("a step of several runs cannot be joined and runs more slowly: %s", why),
            )
            self._refused.add(key)
            self._forget(key, 0)
            return None

    def _slots(self, key: Hashable, slots: int) -> int:
        """The slots of the step that is kept for such scans, unless they need many more."""
        slots_before = next((step.slots for (step_key, _), step in self._kept.items() if step_key == key), slots)
        return slots_before if slots <= MORE * slots_before else slots

    def _forget(self, key: Hashable, but: int) -> None:
        """Free the steps for such scans but the last: as runs begin and end, their scans need more or fewer slots."""
        self._drop([each for each in self._kept if each[0] == key][: -but or None])

    def _drop(self, names: Sequence[tuple[Hashable, int]]) -> None:
        if names:
            self._wait()
        for name in names:
            del self._kept[name]
            self._compiler.forget(name)

    def _wait(self) -> None:
        """Until no step is being executed: with a compiled one its kernels would go."""
        if self._graphs:
            torch.cuda.synchronize(self._device)

    def compiled(self, scan: Scan) -> list[str]:
        """The compiled steps that such scans are executed with, by their entries in the cache."""
        return [step.compiled for step in self._kept.values() if step.likeness == scan.likeness and step.compiled]

    def _decide(self, scans: Sequence[Scan]) -> None:
        """Whether steps are compiled, by the time of the first round that captures nothing."""
        if self.compiles is not None:
            return
        now, rounds_left = (max(each) for each in zip(*((scan.round, scan.rounds_left) for scan in scans), strict=True))
        self._reached.setdefault(now, time.perf_counter())
        _, *later = sorted(self._reached)
        if len(later) < 2:
            return
        seconds = (self._reached[later[-1]] - self._reached[later[0]]) / (later[-1] - later[0])
        takes = LOADING if self._compiler.cached else self._compiling
        self.compiles = seconds * rounds_left > takes
        log.info(
            "steps are %s: %d rounds of %.2f s are left, and it takes about %.0f s",
            *("compiled" if self.compiles else "not compiled", rounds_left, seconds, takes),
        )
        if self.compiles:
            self._compiler.launch()

    def _prepare(self, captured: CapturedStep, name: Hashable, scans: Sequence[Scan]) -> None:
        step = scans[0].step
        if self._graphs:
            captured.engine = scans[0].engine
            captured.replay = capture(partial(captured.once, step))  # its counter begins at 0
        if self.compiles is not False:
            captured.rewind()
            with fusing():
                described = lambda *tensors: captured.on(tensors).compute(step)  # noqa: E731
                self._compiler.start(name, described, captured.tensors(), launch=bool(self.compiles))
            self._switch(captured, name, scans)

    def _switch(self, captured: CapturedStep, name: Hashable, scans: Sequence[Scan]) -> None:
        """Use the compiled step if it is there; in a resumed run, from the round on in which it did so before."""
        entry, t = self._compiler.key(name), scans[0].round
        if captured.compiled is not None or entry is None:
            return
        since = self._switched.get(entry)
        if since is not None and t < since:
            return
        waits = self._at_once or since is not None
        run = self._compiler.wait(name) if waits else self._compiler.ready(name)
        if run is not None:
            try:
                captured.replay, captured.compiled = self._checked(captured, run, scans), entry
            except Exception as error:  # there may be no memory for a second graph
                self._compiler.refuse(name, error)

    def _checked(self, captured: CapturedStep, run: Run, scans: Sequence[Scan]) -> Callable[[], object]:
        """The compiled step, to be replayed, after a trial: it must change what the captured one changes."""
        tensors = captured.tensors()

        def once() -> None:
            run(*tensors)
            captured.advance()

        captured.rewind()
        replay = capture(once) if self._graphs else once
        difference = captured.difference(replay, scans)
        if difference > _rounding(scans[0].source.dtype):
            raise ModelError(f"the compiled step differs by {100 * difference:.0f} % of a step's change")
        return replay


def _rounding(kind: torch.dtype) -> float:
    """What rounding may make of a step at most, as a share of what it changes; another batch would make about 1."""
    if kind == torch.float64:
        return 1e-6
    exact = torch.get_float32_matmul_precision() == "highest" and not is_rounding()
    return 0.03 if exact else 0.3
