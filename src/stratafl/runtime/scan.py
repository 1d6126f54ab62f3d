"""A scan: a step that is repeated over the batches of clients, and everything needed to execute it.

A run asks for one scan at a time. Scans of several runs that are alike can be executed as one (`joining.py`).
"""

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.reprs import holder
from stratafl.core.state import State, Value, flatten, shared
from stratafl.core.task import ScanStep
from stratafl.data.augmentation import Augmentation
from stratafl.data.preprocessing import numbers, samples_at
from stratafl.runtime.batches import Batches
from stratafl.runtime.engine import Engine
from stratafl.runtime.likeness import enclosed
from stratafl.runtime.tables import Table


@holder
class Source:
    """Where the samples of a run are read: inputs, targets, and what inputs are scaled with."""

    x: Tensor
    y: Tensor
    scale: tuple[Tensor, ...]
    dtype: torch.dtype
    augmentation: Augmentation | None = None

    def read(self, samples: Tensor, keys: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Inputs and targets of these samples `[*K, B]`, augmented by the keys `[*K]` of their batches."""
        x = numbers(samples_at(self.x, samples), self.dtype, self.scale)
        if self.augmentation is not None and keys is not None:
            x = self.augmentation.applied(x, keys)
        return x, self.y[samples]

    @cached_property
    def form(self) -> Hashable:
        """The types and shapes of inputs and targets."""
        x, y = self.read(torch.zeros(1, dtype=torch.int64, device=self.x.device))
        return x.dtype, x.shape[1:], y.dtype, y.shape[1:]

    @cached_property
    def identity(self) -> Hashable:
        """The same for runs that read the same tensors in the same way."""
        scale = tuple(tuple(each.flatten().tolist()) for each in self.scale)
        return self.x.data_ptr(), self.y.data_ptr(), self.x.shape, scale, self.dtype, self.augmentation


@holder
class Scan:
    """Steps of some clients of one run; all tensors have a leading client axis.

    `name` stands for everything that the step closes over but the engine; without one the step is not kept. Numbers and
    records that the step closes over tell scans apart even if the name leaves them out. `round` and `rounds_left` are
    those of its run.
    """

    name: Hashable
    step: ScanStep
    carry: State
    constants: State
    batches: Sequence[Batches]
    steps: Sequence[int]  # of each client
    source: Source
    engine: Engine
    model: Hashable = None  # the same for runs whose engines compute the same
    rounds_left: int = 0
    round: int = 0
    table: Table | None = None  # of which steps that are not captured may take the embeddings in use

    @cached_property
    def likeness(self) -> Hashable:
        """The same for scans that one captured step serves."""
        carry, constants = (
            tuple((n, x.shape[1:], x.dtype) for n, x in leaves(s).items()) for s in (self.carry, self.constants)
        )
        code = enclosed(self.step, self.name)  # two methods may have chosen the same name
        return self.name, code, self.model, carry, constants, self.width, len(self.batches), self.source.form

    @property
    def width(self) -> int:
        """Samples of a batch."""
        return self.batches[0].samples.shape[2]

    @cached_property
    def repeatable(self) -> bool:
        """Whether a step with this name can be found again."""
        try:
            hash(self.name)
        except TypeError:
            return False
        return self.name is not None

    @cached_property
    def common(self) -> frozenset[str]:
        """The constants that all clients share."""
        return frozenset(name for name, x in leaves(self.constants).items() if shared(x))


def leaves(state: Mapping[str, Value]) -> Rows:
    """Flat names and tensors, without the entries that mark empty fields."""
    return {path: x for path, x in flatten(state).items() if not path.endswith("/")}
