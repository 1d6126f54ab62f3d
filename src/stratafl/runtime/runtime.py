"""The runtime of a federation: its data, its engine and its captured steps, which do not change from round to round."""

import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import field, replace
from functools import cached_property

import torch

from stratafl.core.layout import Layout
from stratafl.core.reprs import holder
from stratafl.core.state import State
from stratafl.data.federation import Federation
from stratafl.runtime.batches import PlannedBatches
from stratafl.runtime.captured import CapturedSteps
from stratafl.runtime.engine import Engine
from stratafl.runtime.joining import ScanRequest, this_run
from stratafl.runtime.scan import Scan, Source
from stratafl.runtime.speed import DEFAULT_SPEED, Speed
from stratafl.runtime.tables import Table

KEPT_BATCHES = 8  # groups of clients × splits
MAX_JOINED_COLUMNS = (
    2**19
)  # columns of a model whose clients gain on a CPU by company: their steps are many short operations


@holder
class Runtime:
    """What the tasks of all cohorts share; `build_runtime` makes it."""

    federation: Federation
    engine: Engine
    layout: Layout
    dtype: torch.dtype
    device: torch.device
    smallest_batch: int = 1
    features: int = 0  # the width of the head's input
    captured: CapturedSteps | None = None
    speed: Speed = DEFAULT_SPEED
    likeness: Hashable = None  # the same for runs whose engines compute the same; None: it runs alone
    prefers_loop: bool = False  # client by client although the model runs stacked
    table: Table | None = None  # of which steps may take the embeddings in use
    numbers: tuple[int, ...] | None = None  # of the federation's clients, where a row is another client than its place
    widest: Mapping[str, int] = field(default_factory=dict)  # samples of the largest client, also of those elsewhere
    _joined: list[CapturedSteps] = field(default_factory=list)  # that it shares with other runs
    _batches: dict[Hashable, PlannedBatches] = field(default_factory=dict)
    _switched: dict[str, int] = field(default_factory=dict)  # since which round which compiled step is used

    @cached_property
    def source(self) -> Source:
        """Samples and targets, and what samples are scaled with."""
        federation = self.federation
        return Source(federation.x, federation.y, federation.scale(self.dtype), self.dtype)

    @cached_property
    def training_source(self) -> Source:
        """The same, with images augmented."""
        augmentation = self.federation.augmentation
        return self.source if augmentation is None else replace(self.source, augmentation=augmentation)

    @property
    def small(self) -> bool:
        """Whether operations of a step are so short that more clients hardly make it longer."""
        return self.device.type != "cpu" or self.layout.columns <= MAX_JOINED_COLUMNS

    @property
    def joins(self) -> bool:
        """Whether clients of other runs may take steps with its own, and all gain by it."""
        return self.likeness is not None and self.small

    @property
    def scores_by_scan(self) -> bool:
        """Whether clients are scored by a scan, also alone: batches of another width would have other bits."""
        return self.captured is not None or self.joins

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Where the federation has the samples of these clients."""
        return ids if self.numbers is None else torch.tensor([self.numbers.index(client) for client in ids.tolist()])

    def largest(self, split: str) -> int:
        """The samples of the largest client of all, to which batches are padded: bits depend on their width."""
        return max(self.widest.get(split, 0), int(self.federation.counts(split).max()))

    def kept_batches(self, key: Hashable, make: Callable[[], PlannedBatches]) -> PlannedBatches:
        """Batches that are the same in every round, as those of an evaluation: making them takes as long as a step."""
        self._batches[key] = self._batches.pop(key) if key in self._batches else make()  # those used last are the last
        for unused in [*self._batches][:-KEPT_BATCHES]:
            del self._batches[unused]
        return self._batches[key]

    def scan(self, scan: Scan) -> State | None:
        """The carry after all steps, by a captured step; None if steps of this name or here are not captured."""
        run = this_run()
        if not scan.repeatable:
            return None
        if run is not None and self.joins:
            steps = run.joining.steps((self.device, self.speed.key), self._steps_to_share)
            self._joined[:] = [steps]
            done = run.ask(ScanRequest(scan, steps))
            if done is not None:
                self._note_switch(steps, scan)
                return done
        if self.captured is None:
            return None
        carries = self.captured.scan([scan])
        self._note_switch(self.captured, scan)
        return None if carries is None else carries[0]

    def _note_switch(self, steps: CapturedSteps, scan: Scan) -> None:
        for entry in steps.compiled(scan):
            self._switched.setdefault(entry, scan.round)

    def _steps_to_share(self) -> CapturedSteps:
        return steps_of(self.speed, self.device, len(self.layout.specs), joins=True)

    def now(self) -> float:
        """Seconds on a clock that stands still while other runs are worked on."""
        run = this_run()
        return time.perf_counter() - (0.0 if run is None else run.others_seconds)

    @property
    def tuning(self) -> dict[str, object]:
        """What was measured about speed. A resumed run reads it, so that it computes the same bits."""
        steps = next(iter(self._joined), self.captured)
        compiled, engine = None if steps is None else steps.compiles, "loop" if self.prefers_loop else "stacked"
        choices: dict[str, object] = {
            "products": dict(self.speed.products or {}),
            "compiled": compiled,
            "engine": engine,
        }
        return {**choices, "switched": {**(self.speed.switched or {}), **self._switched}}

    @property
    def kept(self) -> int:
        return self.engine.traces + (0 if self.captured is None else len(self.captured))

    def close(self) -> None:
        """Free captured and traced steps with their GPU memory; later rounds make them again."""
        self.engine.close()
        self._batches.clear()
        if self.captured is not None:
            self.captured.close()

    def batch_size(self, batch: int) -> int:
        """The batch, cut to the largest client's data (the rest is padding), but not below what BatchNorm needs."""
        return max(min(batch, self.largest("train")), min(batch, self.smallest_batch))


def steps_of(speed: Speed, device: torch.device, tensors: int, joins: bool = False) -> CapturedSteps:
    """The captured steps of a model with `tensors` tensors, of one run or of joined runs."""
    graphs = speed.graphs != "off"
    return CapturedSteps(
        device, speed.compile, captures=graphs, tensors=tensors, joins=joins, switched=None if joins else speed.switched
    )
