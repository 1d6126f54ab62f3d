"""The client's only access to data, as steps see it: batches, gradients, features, counts and scores of a cohort.

`stratafl.runtime` holds the implementation, with padding, engines and devices behind it.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from torch import Tensor

from stratafl.core.layout import Layout, Rows
from stratafl.core.objectives import Objective
from stratafl.core.reprs import holder
from stratafl.core.state import State

ScanStep = Callable[..., State]  # (carry, constants, *stacks) → carry


@holder
class Stack:
    """One batch for each of C clients, padded to one width, with what makes their random draws their own."""

    x: Tensor  # [C, B, …]
    y: Tensor  # [C, B]
    weight: Tensor  # [C, B]: 1 for real samples, 0 for padding
    keys: Tensor  # [C]
    sizes: tuple[int, ...]  # the number of real samples, known to the host


@holder
class Inputs:
    """What an objective reads besides the trained row, with a leading client axis."""

    frozen: Mapping[str, Rows] = field(default_factory=dict)
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    carry: Mapping[str, Tensor] = field(default_factory=dict)


@holder
class Gradients:
    """What one step gives, with a leading client axis."""

    rows: Rows  # gradients of the trained tensors
    loss: Tensor  # [C]
    statistics: Rows  # the new running statistics
    carry: dict[str, Tensor]
    metrics: dict[str, Tensor]


@holder
class Scores:
    """What models score on a split: hits, summed loss and number of samples of each client `[C]`."""

    hits: Tensor
    loss: Tensor
    count: Tensor
    finite: Tensor | None = None  # whether the model is finite, or else counts as guessing; None: not looked at

    @property
    def accuracy(self) -> Tensor:
        """The share of hits of each client; 0 without samples."""
        return self.hits / self.count.clamp(min=1)


class Task(Protocol):
    """What C clients can do with their data in one round; everything has a leading client axis C."""

    ids: Tensor
    layout: Layout
    classes: int | None
    watched: bool  # whether costly notes are read

    def __len__(self) -> int: ...

    def note(self, name: str, values: Tensor) -> None:
        """Leave `[C, …]` values for observers of the round; no computation may depend on them."""

    def sizes(self, split: str = "train") -> Tensor:
        """n_k: the samples of each client, int64 `[C]`."""

    def class_counts(self, split: str = "train") -> Tensor:
        """How often each client has each class, `[C, classes]`."""

    def objective(self) -> Objective:
        """The default: cross-entropy for labels, squared error for numbers."""

    def scan(
        self,
        step: ScanStep,
        carry: State,
        *,
        batch: int,
        epochs: int | Sequence[int] = 1,
        steps: int | None = None,
        share: float = 1.0,
        constants: Mapping[str, Tensor | Rows] | None = None,
        draws: int = 1,
        drop_last: bool = False,
        shuffle: bool = True,
        purpose: str = "train",
        name: Hashable = None,
        sparse: tuple[str, ...] = (),
    ) -> State:
        """Run `step(carry, constants, *stacks) → carry` over the batches of all clients, in lockstep.

        Carry and constants have a leading client axis (a step may simply close over values that all clients share);
        a client that is done keeps its carry. `epochs` may differ between clients, and an epoch may be a `share` of its
        batches. With `draws` each step gets that number of batches, shuffled independently.
        Steps of different clients may run in different threads: they must not write to anything they share. A step with
        a `name`, which stands for everything it closes over, is kept from scan to scan where that is faster, and may
        see clients of several runs at once; `core.state.common` gives a constant that they share, or refuses. Of the
        tensors in the carry's `row` that are named in `sparse`, a step reads and changes only entries with a gradient.
        """

    def gradients(
        self,
        rows: Rows,
        stack: Stack,
        *,
        objective: Objective | None = None,
        trained: tuple[str, ...] | None = None,
        inputs: Inputs | None = None,
        frozen_modules_train: bool = False,
    ) -> Gradients:
        """Gradients of all clients of the stack in one vectorised step.

        Modules whose tensors are not trained run in evaluation mode, unless `frozen_modules_train`.
        """

    def scores(self, rows: Rows, split: str) -> Scores:
        """Hits and loss of each client's row on its own samples of a split."""

    def features(self, rows: Rows, split: str) -> tuple[Tensor, Tensor, Tensor]:
        """What the head is given: features `[C, n, d]`, targets `[C, n]`, and 1 for real samples, 0 for padding."""

    def outputs(self, rows: Rows, split: str) -> tuple[Tensor, Tensor, Tensor]:
        """What the models give, without padding: each sample's client (its place) `[n]`, target, output `[n, …]`."""
