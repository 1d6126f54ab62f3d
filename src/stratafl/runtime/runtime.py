"""The runtime of a federation: its data, its engine and its captured steps, which do not change from round to round."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from stratafl.core.layout import Layout
from stratafl.core.reprs import short_repr
from stratafl.data.federation import Federation
from stratafl.data.scaling import numbers, samples_at
from stratafl.runtime.captured import CapturedSteps
from stratafl.runtime.engine import Engine
from stratafl.runtime.speed import USUAL, Speed


@short_repr
@dataclass(frozen=True, eq=False)
class Runtime:
    """What the tasks of all cohorts share; `build_runtime` makes it."""

    federation: Federation
    engine: Engine
    layout: Layout
    dtype: torch.dtype
    device: torch.device
    smallest_batch: int = 1
    features: int = 0  # the width of what the head is given
    captured: CapturedSteps | None = None
    speed: Speed = USUAL

    @cached_property
    def data(self) -> tuple[Tensor, ...]:
        """Samples and targets, and what samples are scaled with."""
        return self.federation.x, self.federation.y, *self.federation.scale(self.dtype)

    def read(self, data: tuple[Tensor, ...], samples: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples; a captured step has its own copy of `data`."""
        x, y, *scale = data
        return numbers(samples_at(x, samples), self.dtype, tuple(scale)), y[samples]

    @property
    def tuning(self) -> dict[str, object]:
        """What was measured about speed; a resumed run is given it, so that it computes the same bits."""
        compiled = None if self.captured is None else self.captured.compiles
        return {"products": dict(self.speed.products or {}), "compiled": compiled}

    @property
    def kept(self) -> int:
        return self.engine.traces + (0 if self.captured is None else len(self.captured))

    def close(self) -> None:
        """Free captured and traced steps with their GPU memory; later rounds make them again."""
        self.engine.close()
        if self.captured is not None:
            self.captured.close()

    def batch_size(self, batch: int) -> int:
        """The batch, cut to the largest client's data (the rest is padding), but not below what BatchNorm needs."""
        return max(min(batch, int(self.federation.counts("train").max())), min(batch, self.smallest_batch))
