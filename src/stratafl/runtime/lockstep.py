"""Ragged clients in lockstep: who takes a step when, with how many samples; all on the host, before the first step."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from stratafl.core import keys


@dataclass(frozen=True)
class Lockstep:
    """The steps of C clients, sorted so that those still active are always the first ones."""

    counts: tuple[int, ...]  # samples per client
    per_epoch: tuple[int, ...]  # batches per client and epoch
    steps: tuple[int, ...]  # steps per client
    batch: int
    dropped: tuple[int, ...]  # samples per client that each epoch leaves out

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Clients by falling number of steps; a stable sort, so equal ones keep their order."""
        return tuple(sorted(range(len(self.steps)), key=lambda c: -self.steps[c]))

    @property
    def longest(self) -> int:
        """The number of steps until everybody is done."""
        return max(self.steps, default=0)

    def active(self, step: int) -> int:
        """How many clients take this step."""
        return sum(steps > step for steps in self.steps)

    def size(self, client: int, step: int) -> int:
        """The number of real samples in a client's batch."""
        place = step % self.per_epoch[client]
        return min(self.batch, self.counts[client] - place * self.batch)

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


def plan(
    counts: list[int],
    *,
    batch: int,
    epochs: int = 1,
    steps: int | None = None,
    drop_last: bool = False,
    smallest: int = 1,
) -> Lockstep:
    """The lockstep of clients with so many samples, for so many epochs (or exactly `steps` steps each).

    A last batch below `smallest` (2 where a BatchNorm refuses a single sample) is dropped and counted.
    """
    if batch < smallest:
        return Lockstep(tuple(counts), (0,) * len(counts), (0,) * len(counts), batch, tuple(counts))
    tails = [n % batch for n in counts]
    kept = [tail >= smallest and not drop_last for tail in tails]
    per_epoch = [n // batch + (tail > 0 and keep) for n, tail, keep in zip(counts, tails, kept, strict=True)]
    taken = [(m * epochs if steps is None else steps) if m else 0 for m in per_epoch]
    dropped = tuple(0 if keep else tail for tail, keep in zip(tails, kept, strict=True))
    return Lockstep(tuple(counts), tuple(per_epoch), tuple(taken), batch, dropped)


def table(lockstep: Lockstep, epoch_keys: Tensor, offsets: Tensor, *, shuffle: bool = True) -> Tensor:
    """`[C, S, B]`: positions, in the split's flat list, of the samples of every step; padding repeats the client's own.

    `epoch_keys` is `[E, C]`, `offsets` `[C]`: where each client's samples begin.
    """
    device = epoch_keys.device
    counts = torch.tensor(lockstep.counts, device=device)
    width = max(lockstep.counts)
    if shuffle:
        order = torch.stack([keys.shuffles(k, counts, width) for k in epoch_keys], 1)  # [C, E, width]
    else:
        order = torch.arange(width, device=device).expand(len(counts), len(epoch_keys), width)
    per_epoch = torch.tensor(lockstep.per_epoch, device=device).clamp(min=1)[:, None]
    step = torch.arange(lockstep.longest, device=device)
    epoch = (step // per_epoch).clamp(max=len(epoch_keys) - 1)  # [C, S]
    place = (step % per_epoch)[:, :, None] * lockstep.batch + torch.arange(lockstep.batch, device=device)
    place = torch.minimum(place, (counts - 1).clamp(min=0)[:, None, None])  # who has none takes no step
    flat = epoch[:, :, None] * width + place
    local = order.reshape(len(counts), -1).gather(1, flat.reshape(len(counts), -1)).reshape(flat.shape)
    return local + offsets[:, None, None]
