"""A task without data: it shows what a round would send, and learns nothing.

The client of a rehearsal has two samples of every class, whose features are noise. Its descents take no step, as those
of a client without a full batch, its models score nothing, and gradients are 0.
"""

from typing import Any

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.objectives import Objective, default_objective
from stratafl.core.round import Round
from stratafl.core.state import State
from stratafl.core.task import Gradients, ScanStep, Scores, Stack

PER_CLASS = 2  # so that deviations within a class exist


class Rehearsal:
    """What client 0 could do without data; `core.task.Task` says what each function does."""

    def __init__(self, rnd: Round) -> None:
        self._like = next(iter(rnd.setup.start.values()))
        self._features = rnd.setup.features
        self.ids = torch.zeros(1, dtype=torch.int64, device=self._like.device)
        self.layout, self.classes, self.watched = rnd.layout, rnd.setup.classes, False

    def __len__(self) -> int:
        return 1

    def note(self, name: str, values: Tensor) -> None:
        return

    def sizes(self, split: str = "train") -> Tensor:
        return torch.full_like(self.ids, PER_CLASS * (self.classes or 1))

    def class_counts(self, split: str = "train") -> Tensor:
        return torch.full((1, self.classes or 1), PER_CLASS, device=self.ids.device)

    def objective(self) -> Objective:
        return default_objective(self.classes)

    def scan(self, step: ScanStep, carry: State, **options: Any) -> State:
        return carry

    def gradients(
        self, rows: Rows, stack: Stack, *, trained: tuple[str, ...] | None = None, **options: Any
    ) -> Gradients:
        names = self.layout.trainable() if trained is None else trained
        nothing = {name: torch.zeros_like(rows[name]) for name in names}
        return Gradients(nothing, self._like.new_zeros(1), {}, {}, {})

    def scores(self, rows: Rows, split: str) -> Scores:
        nothing = torch.zeros(1, dtype=torch.float64, device=self.ids.device)
        return Scores(nothing, nothing, self.sizes(split))

    def features(self, rows: Rows, split: str) -> tuple[Tensor, Tensor, Tensor]:
        count = int(self.sizes(split))
        z = torch.randn(1, count, self._features, generator=torch.Generator().manual_seed(0))
        y = torch.arange(count)[None] // PER_CLASS if self.classes else torch.zeros(1, count)
        z, y = z.to(self._like), y.to(self.ids.device) if self.classes else y.to(self._like)
        return z, y, torch.ones(1, count, dtype=torch.float64, device=self.ids.device)

    def outputs(self, rows: Rows, split: str) -> tuple[Tensor, Tensor, Tensor]:
        _, y, _ = self.features(rows, split)
        return torch.zeros_like(y[0], dtype=torch.int64), y[0], self._like.new_zeros(y.shape[1], self.classes or 1)
