"""A round and its setup: the round's number and plan, its sampled clients, its random keys."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.layout import Layout, Rows
from stratafl.core.reprs import holder

Participation = Literal["sampled", "all"]


@dataclass(frozen=True)
class Plan:
    """What happens in a round: its phase, who takes part, whether it is evaluated."""

    phase: int = 0
    participation: Participation = "sampled"
    evaluated: bool = True
    schedule: tuple[int, int] | None = None  # (t, T) for schedules, where it is not that of the run


def scheduled(plan: Plan, t: int, rounds: int) -> tuple[int, int]:
    """(t, T) for the schedules of round t: never past the last round."""
    t, rounds = plan.schedule or (t, rounds)
    return max(min(t, rounds - 1), 0), max(rounds, 1)


@holder
class Setup:
    """Everything that is fixed before the first round."""

    layout: Layout
    start: Rows  # the common initial model: one row, no client axis
    fresh: Callable[[Tensor], Rows]  # an initial model for each client of its own, keyed by (seed, id)
    clients: int
    rounds: int
    seeds: keys.Seeds = field(default_factory=keys.Seeds)
    classes: int | None = None
    features: int = 0  # the width of what the head is given
    participation: float = 1.0  # the share of clients that a round samples
    secret: bytes | None = field(default=None, repr=False)  # of a deployed server, for noise that no site may know

    def blank(self) -> "Setup":
        """The same setup with tensors that have shapes and no values, for finding out what a state would look like."""
        start = {name: x.to("meta") for name, x in self.start.items()}
        return replace(self, start=start, fresh=lambda ids: {n: x.expand(len(ids), *x.shape) for n, x in start.items()})

    @property
    def seed(self) -> int:
        return self.seeds.run

    @property
    def cohort(self) -> int:
        return min(self.clients, max(1, int(self.participation * self.clients + 1e-9)))  # 0.29 of 100 is 29

    def sampled(self, t: int) -> Tensor:
        """The clients that round t samples, the same for every algorithm, in increasing order."""
        count, seed = self.cohort, self.seeds.batches
        return torch.arange(self.clients) if count >= self.clients else keys.sample(seed, t, self.clients, count)

    def row_bytes(self, names: Iterable[str] | None = None, dtype: torch.dtype | None = None) -> int:
        """What these tensors of one model take, or all of them; in another type, if one is given."""
        start = [self.start[name] for name in self.layout.specs] if names is None else [self.start[n] for n in names]
        return sum(x.numel() * (dtype or x.dtype).itemsize for x in start)

    def block_bytes(self, dtype: torch.dtype | None = None) -> int:
        """What the largest tensor of one model takes."""
        return max(self.row_bytes([name], dtype) for name in self.layout.specs)


@holder
class Round:
    """Round t of a federation."""

    setup: Setup
    t: int
    plan: Plan = Plan()

    @property
    def layout(self) -> Layout:
        return self.setup.layout

    @property
    def schedule(self) -> tuple[int, int]:
        """(t, T) for schedules: never past the last round."""
        return scheduled(self.plan, self.t, self.setup.rounds)

    def sampled(self, ids: Tensor) -> Tensor:
        """`[C]` booleans: which of these clients the round samples; in some rounds the others take part as well."""
        return torch.isin(ids, self.setup.sampled(self.t).to(ids.device))

    def keys(self, ids: Tensor, purpose: str) -> Tensor:
        """One random key per client, for one purpose, in this round."""
        return keys.keys(self.setup.seeds.batches, self.t, ids, purpose)
