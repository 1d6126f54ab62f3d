"""Optimisers: from edited gradients to the direction of a step, for all clients at once.

Each is that of `torch.optim` with its order of things: weight decay (L2) enters the gradient, except for AdamW, where
it is added to the direction. Momentum and Adam's moments are state, which `LocalTraining` drops or keeps between
rounds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from stratafl.core.layout import Rows, per_row

Optimizer = Literal["sgd", "adam", "adamw"]


@dataclass(frozen=True)
class Direction:
    """What of a descent decides how a gradient becomes a step."""

    optimizer: Optimizer = "sgd"
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    @property
    def slots(self) -> tuple[str, ...]:
        """The rows of state that it moves from step to step."""
        return ("moment", "square") if self.optimizer != "sgd" else ("velocity",) if self.momentum else ()

    @property
    def counts(self) -> bool:
        """Whether it needs the number of steps so far."""
        return self.optimizer != "sgd"

    def __call__(self, gradients: Rows, row: Rows, state: Mapping[str, Rows], step: Tensor | None) -> Rows:
        """The direction to subtract; the state moves in place. `step` `[C]` counts from 1."""
        if self.weight_decay and self.optimizer != "adamw":
            gradients = {n: g + self.weight_decay * row[n] for n, g in gradients.items()}
        if self.optimizer == "sgd":
            return self._with_momentum(gradients, state["velocity"]) if self.momentum else gradients
        assert step is not None
        moments, squares = state["moment"], state["square"]
        first, second = (1 - beta ** step.to(torch.float64) for beta in (self.beta1, self.beta2))
        directions = {}
        for name, g in gradients.items():
            m = moments[name].mul_(self.beta1).add_(g, alpha=1 - self.beta1)
            v = squares[name].mul_(self.beta2).addcmul_(g, g, value=1 - self.beta2)
            wide = _wide(g)
            directions[name] = (m / wide(first)) / (v.sqrt() / wide(second.sqrt()) + self.epsilon)
            if self.weight_decay and self.optimizer == "adamw":
                directions[name] = directions[name] + self.weight_decay * row[name]
        return directions

    def _with_momentum(self, gradients: Rows, velocity: Rows) -> Rows:
        for name, v in velocity.items():
            v.mul_(self.momentum).add_(gradients[name])
        if not self.nesterov:
            return velocity
        return {n: g + self.momentum * velocity[n] for n, g in gradients.items()}


def _wide(like: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda values: per_row(values.to(like.dtype), like)
