"""The batches of a scan: which samples every client sees at every step, decided before the first step.

Clients have different numbers of samples. All take a step at the same time, short batches are padded to the full width,
and a client that is done takes no further step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil

import numpy as np
import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.reprs import holder


@dataclass(frozen=True)
class BatchPlan:
    """How many steps each of C clients takes, with how many samples."""

    counts: tuple[int, ...]  # samples per client
    per_epoch: tuple[int, ...]  # batches per client and epoch
    steps: tuple[int, ...]  # steps per client
    batch: int
    dropped: tuple[int, ...]  # samples per client that each epoch leaves out

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Clients by falling number of steps, so that the active ones come first; equal ones keep their order."""
        order: list[int] = np.argsort(-np.asarray(self.steps, np.int64), kind="stable").tolist()
        return tuple(order)

    @cached_property
    def falling(self) -> tuple[int, ...]:
        """The steps of the clients in this order."""
        return tuple(sorted(self.steps, reverse=True))

    @property
    def longest(self) -> int:
        return max(self.steps, default=0)

    def sizes(self) -> Tensor:
        """`[C, S]`: the number of real samples in every batch, 0 where a client is done."""
        steps, counts, per_epoch = (torch.tensor(x)[:, None] for x in (self.steps, self.counts, self.per_epoch))
        step = torch.arange(self.longest)
        place = step % per_epoch.clamp(min=1)
        return torch.where(step < steps, (counts - place * self.batch).clamp(max=self.batch), 0)

    @property
    def epochs(self) -> int:
        """The number of shuffles that are needed."""
        return max((-(-s // m) for s, m in zip(self.steps, self.per_epoch, strict=True) if m), default=0)


def plan_batches(
    counts: list[int],
    *,
    batch: int,
    epochs: int | Sequence[int] = 1,
    steps: int | None = None,
    share: float = 1.0,
    drop_last: bool = False,
    smallest: int = 1,
) -> BatchPlan:
    """The plan for clients with these numbers of samples, for some epochs (of each client) or exactly `steps` steps.

    An epoch takes the first `share` of its batches, at least one. A last batch below `smallest` (2 where a
    BatchNorm refuses a single sample) is dropped and counted.
    """
    if batch < smallest:
        return BatchPlan(tuple(counts), (0,) * len(counts), (0,) * len(counts), batch, tuple(counts))
    whole, tails = np.divmod(np.asarray(counts, np.int64), batch)
    keeps_tail = (tails >= smallest) & (not drop_last)
    numbers, places = np.unique(whole + ((tails > 0) & keeps_tail), return_inverse=True)
    per_epoch = np.array([ceil(round(share * m, 9)) for m in numbers.tolist()], np.int64)[places]
    taken = np.where(per_epoch > 0, per_epoch * np.asarray(epochs) if steps is None else steps, 0)
    columns = (per_epoch, taken, np.where(keeps_tail, 0, tails))
    per_epoch_of, steps_of, dropped = (tuple(column.tolist()) for column in columns)
    return BatchPlan(tuple(counts), per_epoch_of, steps_of, batch, dropped)


def sample_positions(plan: BatchPlan, epoch_keys: Tensor, offsets: Tensor, *, shuffle: bool = True) -> Tensor:
    """`[C, S, B]`: where the samples of every step are in the split's flat list; padding repeats the client's own.

    `epoch_keys` is `[E, C]`, `offsets` `[C]`: where each client's samples begin.
    """
    device = epoch_keys.device
    counts = torch.tensor(plan.counts, device=device)
    width = max(plan.counts)
    if shuffle:
        order = torch.stack([keys.shuffles(k, counts, width) for k in epoch_keys], 1)  # [C, E, width]
    else:
        order = torch.arange(width, device=device).expand(len(counts), len(epoch_keys), width)
    per_epoch = torch.tensor(plan.per_epoch, device=device).clamp(min=1)[:, None]
    step = torch.arange(plan.longest, device=device)
    epoch = (step // per_epoch).clamp(max=len(epoch_keys) - 1)  # [C, S]
    place = (step % per_epoch)[:, :, None] * plan.batch + torch.arange(plan.batch, device=device)
    place = torch.minimum(place, (counts - 1).clamp(min=0)[:, None, None])  # a client without samples takes no step
    flat = epoch[:, :, None] * width + place
    local = order.reshape(len(counts), -1).gather(1, flat.reshape(len(counts), -1)).reshape(flat.shape)
    return local + offsets[:, None, None]


@holder
class Batches:
    """All batches of a scan, as tensors on the device, so that the host is not asked between steps."""

    samples: Tensor  # [C, S, B]
    weight: Tensor  # [C, S, B]
    noise: Tensor  # [C, S]
    sizes: Tensor  # [C, S] on the host: how many samples of each batch are real
    trained: bool = False  # whether they are trained on, so that images are augmented

    def pick(self, clients: slice | Tensor) -> "Batches":
        parts = (self.samples[clients], self.weight[clients], self.noise[clients], self.sizes[clients])
        return Batches(*parts, trained=self.trained)

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.samples, self.weight, self.noise


@holder
class PlannedBatches:
    """Batches with their plan, which an evaluation keeps for later rounds."""

    plan: BatchPlan
    batches: Batches

    @cached_property
    def by_steps(self) -> Batches:
        """The batches in the order of falling numbers of steps."""
        return self.batches.pick(torch.tensor(self.plan.order))
