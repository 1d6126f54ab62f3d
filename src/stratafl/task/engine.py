"""Gradients and outputs of many clients: stacked in one vectorised step, or client by client where that fails."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor
from torch.func import grad, vmap

from stratafl.layout import Rows
from stratafl.objectives import Batch, Objective
from stratafl.task.model import Model


@dataclass(frozen=True, eq=False)
class Stack:
    """One batch for each of C clients, padded to one width, with what makes their random draws their own."""

    x: Tensor  # [C, B, …]
    y: Tensor  # [C, B]
    weight: Tensor  # [C, B]: 1 for real samples, 0 for padding
    keys: Tensor  # [C]
    sizes: tuple[int, ...]  # the number of real samples, known to the host


@dataclass(frozen=True, eq=False)
class Inputs:
    """What an objective reads besides the trained row, with a leading client axis."""

    frozen: Mapping[str, Rows] = field(default_factory=dict)
    constants: Mapping[str, Tensor] = field(default_factory=dict)
    carry: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Gradients:
    """What one step gives, with a leading client axis."""

    rows: Rows  # gradients of the trained tensors
    loss: Tensor  # [C]
    statistics: Rows  # the new running statistics
    carry: dict[str, Tensor]
    metrics: dict[str, Tensor]


Modes = frozenset[str]


class Engine(Protocol):
    """How gradients and outputs of a cohort are computed."""

    model: Model

    def gradients(
        self, objective: Objective, rows: Rows, stack: Stack, trained: tuple[str, ...], inputs: Inputs, modes: Modes
    ) -> Gradients:
        """Gradients of the objective with respect to the trained tensors."""

    def outputs(self, rows: Rows, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and features in evaluation mode, for inputs `[C, B, …]`."""


class StackedEngine:
    """All clients at once: `vmap` over the client axis of the gradient of one client's loss."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def gradients(
        self, objective: Objective, rows: Rows, stack: Stack, trained: tuple[str, ...], inputs: Inputs, modes: Modes
    ) -> Gradients:
        """One vectorised step."""
        moving = [n for n in rows if not self.model.layout.specs[n].trainable]

        def loss(
            train: Rows,
            rest: Rows,
            frozen: dict[str, Rows],
            consts: Rows,
            carry: Rows,
            x: Tensor,
            y: Tensor,
            w: Tensor,
            k: Tensor,
        ) -> tuple[Tensor, tuple[Tensor, Rows, Rows, Rows]]:
            row = {**rest, **train}
            net = self.model.net(row, modes, w, k)
            value, carry, metrics = objective(net, row, frozen, Batch(x, y, w), consts, carry)
            return value, (value, {n: row[n] for n in moving}, carry, metrics)

        train = {n: rows[n] for n in trained}
        rest = {n: x for n, x in rows.items() if n not in train}
        gradients, (value, statistics, carry, metrics) = vmap(grad(loss, has_aux=True))(
            train,
            rest,
            dict(inputs.frozen),
            dict(inputs.constants),
            dict(inputs.carry),
            stack.x,
            stack.y,
            stack.weight,
            stack.keys,
        )
        return Gradients(gradients, value, statistics, carry, metrics)

    def outputs(self, rows: Rows, x: Tensor) -> tuple[Tensor, Tensor]:
        """One vectorised pass."""

        def run(row: Rows, inputs: Tensor) -> tuple[Tensor, Tensor]:
            return self.model.net({}, frozenset(), None, None).both(row, inputs)

        with torch.no_grad():
            result: tuple[Tensor, Tensor] = vmap(run)(rows, x)
        return result


class LoopEngine:
    """Client by client, batches at their exact size, stock modules: any module runs, and it is an oracle."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def gradients(
        self, objective: Objective, rows: Rows, stack: Stack, trained: tuple[str, ...], inputs: Inputs, modes: Modes
    ) -> Gradients:
        """One client after the other, joined."""
        each = [self._client(c, objective, rows, stack, trained, inputs, modes) for c in range(len(stack.sizes))]
        return Gradients(
            _stacked([g.rows for g in each]),
            torch.stack([g.loss for g in each]),
            _stacked([g.statistics for g in each]),
            _stacked([g.carry for g in each]),
            _stacked([g.metrics for g in each]),
        )

    def _client(
        self,
        c: int,
        objective: Objective,
        rows: Rows,
        stack: Stack,
        trained: tuple[str, ...],
        inputs: Inputs,
        modes: Modes,
    ) -> Gradients:
        size = stack.sizes[c]
        row = {n: x[c].detach() for n, x in rows.items()}
        leaves = {n: row[n].clone().requires_grad_() for n in trained}
        row.update(leaves)
        weight = stack.weight[c, :size]
        batch = Batch(stack.x[c, :size], stack.y[c, :size], weight)
        frozen = {name: {n: x[c] for n, x in value.items()} for name, value in inputs.frozen.items()}
        constants = {name: x[c] for name, x in inputs.constants.items()}
        carry = {name: x[c] for name, x in inputs.carry.items()}
        with torch.random.fork_rng(devices=[]):
            # Modules that draw by themselves (an LSTM's dropout) draw from this client's key.
            torch.manual_seed(int(stack.keys[c]) & ((1 << 62) - 1))
            net = self.model.net(row, modes, None, stack.keys[c])
            loss, carry, metrics = objective(net, row, frozen, batch, constants, carry)
        gradients = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        grads = {
            n: torch.zeros_like(x) if g is None else g for (n, x), g in zip(leaves.items(), gradients, strict=True)
        }
        moving = {n: row[n].detach() for n in rows if not self.model.layout.specs[n].trainable}
        return Gradients(grads, loss.detach(), moving, _detached(carry), _detached(metrics))

    def outputs(self, rows: Rows, x: Tensor) -> tuple[Tensor, Tensor]:
        """One client after the other, joined."""
        net = self.model.net({}, frozenset(), None, None)
        with torch.no_grad():
            pairs = [net.both({n: block[c] for n, block in rows.items()}, x[c]) for c in range(len(x))]
        return torch.stack([o for o, _ in pairs]), torch.stack([f for _, f in pairs])


def _stacked(each: list[Rows]) -> Rows:
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def _detached(values: Mapping[str, Tensor]) -> Rows:
    return {name: x.detach() for name, x in values.items()}
