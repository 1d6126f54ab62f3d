"""Minibatch descent of all clients: one step of it, in place on rows that belong to it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from stratafl.core.layout import Layout, Rows
from stratafl.core.objectives import Objective
from stratafl.core.state import State, Value, rows_of, tensor_of
from stratafl.core.task import Inputs, Stack, Task
from stratafl.errors import RecordError


class Edit(Protocol):
    """A change of the gradients: (gradients, row, fields of the client's state, layout) → gradients."""

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields of the client's state that it needs."""

    def __call__(self, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout) -> Rows:
        """New gradients."""


class Rate(Protocol):
    """A factor on the learning rate: (gradients, row, fields of the client's state, layout) → factors that broadcast.

    It sees the gradients after all edits, before clipping and weight decay.
    """

    @property
    def reads(self) -> tuple[str, ...]:
        """The fields of the client's state that it needs."""

    def __call__(self, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout) -> Rows:
        """One factor per layer (as `spread` gives it) or per column."""


RATE = "learning rate"  # a constant of the scan, so that a step which is kept from round to round sees today's


@dataclass(frozen=True)
class Descent:
    """What a step of descent does."""

    objective: Objective
    trained: tuple[str, ...]
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    edits: tuple[Edit, ...] = ()
    rates: tuple[Rate, ...] = ()
    frozen_modules_train: bool = False


def descend(task: Task, descent: Descent, row: Rows, client: Mapping[str, Value], **batches: object) -> State:
    """Rows after descent, the carried fields, and each client's number of steps and summed loss."""
    objective = descent.objective
    device = next(iter(row.values())).device
    count = len(task)
    moved = {*descent.trained, *(n for n in row if not task.layout.specs[n].trainable)}
    carry: State = {
        # Trained tensors are moved in place, so they are copied; what is not trained may stay as it is.
        "row": {n: x.clone(memory_format=torch.contiguous_format) if n in moved else x for n, x in row.items()},
        "steps": torch.zeros(count, dtype=torch.int64, device=device),
        "loss": torch.zeros(count, dtype=torch.float64, device=device),
        "velocity": {n: torch.zeros_like(row[n]) for n in descent.trained} if descent.momentum else {},
    }
    carry |= {name: client[name] for name in objective.carries}
    if descent.rates and task.watched:
        carry["factors"] = next(iter(row.values())).new_zeros(count, len(task.layout.layers))
    reads = [*objective.frozen, *objective.constants, *(r for e in (*descent.edits, *descent.rates) for r in e.reads)]
    constants = {name: client[name] for name in reads}
    constants[RATE] = torch.tensor(descent.lr, dtype=next(iter(row.values())).dtype, device=device).expand(count)
    name = (replace(descent, lr=0.0), "factors" in carry)
    return task.scan(_step(task, descent), carry, constants=constants, name=name, **batches)  # type: ignore[arg-type]


def _step(task: Task, descent: Descent) -> Callable[[State, State, Stack], State]:
    objective = descent.objective

    def step(carry: State, client: State, stack: Stack) -> State:
        row, rate = rows_of(carry, "row"), tensor_of(client, RATE)[0]
        inputs = Inputs(
            {name: rows_of(client, name) for name in objective.frozen},
            {name: tensor_of(client, name) for name in objective.constants},
            {name: tensor_of(carry, name) for name in objective.carries},
        )
        out = task.gradients(
            row,
            stack,
            objective=objective,
            trained=descent.trained,
            inputs=inputs,
            frozen_modules_train=descent.frozen_modules_train,
        )
        velocity = rows_of(carry, "velocity")
        client = {**client, "steps": carry["steps"]}  # edits and rates may ask how far it is
        gradients = _edited(descent, out.rows, row, client, task.layout)
        factors = _factors(descent, gradients, row, client, task.layout)
        _move(row, _direction(descent, gradients, row, task.layout, velocity), rate, factors)
        counted = {
            "steps": tensor_of(carry, "steps") + 1,
            "loss": tensor_of(carry, "loss") + out.loss.detach().double(),
        }
        if "factors" in carry:
            counted["factors"] = tensor_of(carry, "factors") + _by_layer(factors, descent.trained, row, task.layout)
        return {"row": {**row, **out.statistics}, "velocity": velocity, **counted, **out.carry}

    return step


def _edited(descent: Descent, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout) -> Rows:
    for edit in descent.edits:
        edited = edit(gradients, row, client, layout)
        _check_edit(edit, gradients, edited)
        gradients = edited
    return gradients


def _direction(descent: Descent, gradients: Rows, row: Rows, layout: Layout, velocity: Rows) -> Rows:
    """Clipped, decayed and with momentum, in the order of torch's SGD; velocity moves in place."""
    if descent.clip is not None:
        norm = layout.dot(gradients, gradients).sum(1).sqrt()
        factor = (descent.clip / (norm + 1e-6)).clamp(max=1)
        gradients = {n: g * factor.reshape(-1, *(1,) * (g.ndim - 1)) for n, g in gradients.items()}
    if descent.weight_decay:
        gradients = {n: g + descent.weight_decay * row[n] for n, g in gradients.items()}
    if not descent.momentum:
        return gradients
    for name, v in velocity.items():
        v.mul_(descent.momentum).add_(gradients[name])
    return velocity


def _check_edit(edit: Edit, before: Rows, after: Rows) -> None:
    """An edit gives every gradient back in its shape: a lost client axis would broadcast without a word."""
    for name, gradient in before.items():
        if name not in after or after[name].shape != gradient.shape:
            found = tuple(after[name].shape) if name in after else "nothing"
            raise RecordError(
                f"{type(edit).__name__} gives {found} for '{name}', whose gradients are {tuple(gradient.shape)}"
            )


def _factors(
    descent: Descent, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout
) -> dict[str, Tensor]:
    factors: Rows = {}
    for rate in descent.rates:
        for name, factor in rate(gradients, row, client, layout).items():
            factors[name] = factors[name] * factor if name in factors else factor
    return factors


def _by_layer(factors: Rows, trained: tuple[str, ...], row: Rows, layout: Layout) -> Tensor:
    """`[C, L]`: the mean factor of the trained tensors of each layer, for whoever watches; 0 where none is trained."""
    like = next(iter(row.values()))
    sums = [like.new_zeros(len(like)) for _ in layout.layers]
    counts = [0] * len(sums)
    for name in trained:
        layer, factor = layout.specs[name].layer, factors.get(name, like.new_ones(1))
        sums[layer] = sums[layer] + factor.reshape(len(factor), -1).mean(1).expand(len(like))
        counts[layer] += 1
    return torch.stack([total / max(count, 1) for total, count in zip(sums, counts, strict=True)], 1)


def _move(row: Rows, direction: Rows, rate: Tensor, factors: Rows) -> None:
    for name, d in direction.items():
        row[name].addcmul_(d, -rate if name not in factors else -rate * factors[name])
