"""Objectives: the losses that clients minimise, as records.

An objective is written for one client and one batch; the engine makes it work for all clients at once. It may read
frozen rows, constants and a carry (values that live from step to step), each by the names it declares. Padding is
visible in one way only: means over samples are taken with `batch.mean`.
"""

from dataclasses import replace
from math import prod
from typing import Literal, Protocol

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.layout import Rows, per_row
from stratafl.core.records import record
from stratafl.core.reprs import holder

Frozen = dict[str, Rows]
Loss = tuple[Tensor, Rows, Rows]  # the loss, the new carry, and numbers to watch


@holder
class Batch:
    """Samples of one client: inputs, targets, and weight 1 for real samples, 0 for padding."""

    x: Tensor
    y: Tensor
    weight: Tensor
    key: Tensor  # of this client in this step, for what an objective draws
    importance: Tensor | None = None  # [B]: by how much a sample counts more in a mean; None: all alike

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        """Numbers from (0, 1) for each sample, `[B, *shape]`: the same on every device and for every cohort."""
        size = (len(self.weight), *shape)
        key = keys.fold(self.key, keys.purpose_number(purpose))
        # The key in the places keeps a compiler from multiplying the places themselves by numbers that overflow there.
        index = torch.arange(prod(size), device=self.weight.device) ^ (key ^ key)
        return keys.uniform(key, index, self.weight.dtype).reshape(size)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the real samples (and over all further dimensions) of values `[B, …]`."""
        per_sample = values.flatten(1).mean(1) if values.ndim > 1 else values
        per_sample = per_sample if self.importance is None else per_sample * self.importance
        return (per_sample * self.weight).sum() / self.weight.sum()

    def average(self, values: Tensor) -> Tensor:
        """The mean over the real samples, dimension by dimension: `[B, d]` to `[d]`."""
        weight = per_row(self.weight, values)
        return (values * weight).sum(0) / self.weight.sum()


class Net(Protocol):
    """A model inside an objective.

    The trained row runs in training mode and its statistics move; declared frozen rows run in evaluation mode; for any
    other row, such as a copy with some columns detached, say which with `train`.
    """

    def __call__(self, row: Rows, x: Tensor, *, train: bool | None = None) -> Tensor:
        """The outputs of a row on inputs `[B, …]`."""

    def features(self, row: Rows, x: Tensor, *, train: bool | None = None) -> Tensor:
        """What the head is given."""

    def head(self, row: Rows, features: Tensor, *, train: bool | None = None) -> Tensor:
        """The outputs of the head on features."""

    def part(self, path: str, row: Rows, *inputs: Tensor, train: bool | None = None) -> Tensor:
        """What a part of the model gives, such as `head` or `head.personal`."""

    def both(self, row: Rows, x: Tensor, *, train: bool | None = None) -> tuple[Tensor, Tensor]:
        """Outputs and features of one pass."""


class Objective(Protocol):
    """(net, row, frozen rows, batch, constants, carry) → loss, carry, metrics."""

    @property
    def frozen(self) -> tuple[str, ...]:
        """Fields of the client's state that it reads as rows without training them."""

    @property
    def constants(self) -> tuple[str, ...]:
        """Fields of the client's state that it reads as tensors."""

    @property
    def carries(self) -> tuple[str, ...]:
        """Fields of the client's state that it rewrites at every step."""

    def __call__(self, net: Net, row: Rows, frozen: Frozen, batch: Batch, constants: Rows, carry: Rows) -> Loss:
        """The loss of one client on one batch, the new carry, and numbers to watch."""


@record
class CrossEntropy:
    """Mean cross-entropy of the logits."""

    frozen = constants = carries = ()

    def __call__(self, net: Net, row: Rows, frozen: Frozen, batch: Batch, constants: Rows, carry: Rows) -> Loss:
        return batch.mean(cross_entropies(net(row, batch.x), batch.y)), carry, {}


@record
class MeanSquaredError:
    """Mean squared distance of the outputs to the targets."""

    frozen = constants = carries = ()

    def __call__(self, net: Net, row: Rows, frozen: Frozen, batch: Batch, constants: Rows, carry: Rows) -> Loss:
        return batch.mean(sample_losses(net(row, batch.x), batch.y, None)), carry, {}


CLASS_WEIGHT = "class weight"  # `[C, classes]`, a constant of a descent
Balance = Literal["none", "balanced"]


@record
class ClassWeighted:
    """Any objective, with the loss of a sample times the weight w_y of its class: (1/B)·Σ w_y·L.

    The sum is divided by the number of samples, as scikit-learn and Keras do, and not by the sum of weights of a batch
    (torch's `weight`): a batch without the rare class then counts less, and FedAvg minimises the weighted loss of all.
    """

    objective: Objective

    @property
    def frozen(self) -> tuple[str, ...]:
        return self.objective.frozen

    @property
    def carries(self) -> tuple[str, ...]:
        return self.objective.carries

    @property
    def constants(self) -> tuple[str, ...]:
        return (*self.objective.constants, CLASS_WEIGHT)

    def __call__(self, net: Net, row: Rows, frozen: Frozen, batch: Batch, constants: Rows, carry: Rows) -> Loss:
        weighted = replace(batch, importance=constants[CLASS_WEIGHT].gather(0, batch.y))
        return self.objective(net, row, frozen, weighted, constants, carry)


def balanced_weights(counts: Tensor) -> Tensor:
    """w_c = n / (K·n_c) of class counts `[…, classes]`, with the K classes that occur; 0 for others.

    The mean weight of all samples is 1. Counts (6, 2) give 2/3 and 2.
    """
    counts = counts.double()
    occurring = (counts > 0).sum(-1, keepdim=True).clamp(min=1)
    weights = counts.sum(-1, keepdim=True) / (occurring * counts.clamp(min=1))
    return torch.where(counts > 0, weights, 0.0)


def cross_entropies(logits: Tensor, y: Tensor) -> Tensor:
    """−log softmax at the label, sample by sample; without the checks for ignored labels, which cost ten operations."""
    return -torch.log_softmax(logits, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def default_objective(classes: int | None) -> Objective:
    """Cross-entropy for labels, squared error for numbers."""
    return MeanSquaredError() if classes is None else CrossEntropy()


def losses(output: Tensor, y: Tensor) -> Tensor:
    """The default loss of each sample `[B]`: cross-entropy for labels, squared error for numbers."""
    return sample_losses(output, y, None if y.is_floating_point() else output.shape[-1])


def sample_losses(output: Tensor, y: Tensor, classes: int | None) -> Tensor:
    """The loss of each sample `[B]`, for evaluation."""
    if classes is None:
        errors = (output - y.reshape(output.shape).to(output.dtype)).square()
        return errors.flatten(1).mean(1) if errors.ndim > 1 else errors
    return cross_entropies(output, y)


def sample_hits(output: Tensor, y: Tensor, classes: int | None) -> Tensor:
    """Whether each sample is classified correctly `[B]`; False for regression."""
    if classes is None:
        return torch.zeros(len(y), dtype=torch.bool, device=y.device)
    return output.argmax(-1) == y
