"""FLAYER as the authors' published code implements it: it explains the paper's tables, but differs from the paper.

It uses each client's test accuracy to steer its training, so its numbers are not comparable with any others. Besides:
one extra epoch on the head before everything else; rates per child module, once per epoch from its first batch, with
factors of their own for the first child (1), the head (1/5) and, in the CNN, the middle (20); masks per tensor and
inside each kernel, none for matrices, and always everything of a 1×1 convolution; batches in order, the last dropped;
statistics stay with clients (`buffers="local"`, which is the run's to say).
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from stratafl.algorithms.fedavg import fedavg
from stratafl.core.annotations import Range
from stratafl.core.fields import Number, Start
from stratafl.core.footprint import Footprint
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout, Rows, per_row, row_dot
from stratafl.core.parcel import ColumnMask, Field, Parcel
from stratafl.core.records import record, validated
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.core.steps import Batching, Mix, Send, Train
from stratafl.core.task import Stack, Task
from stratafl.errors import RecordError
from stratafl.policies import Accuracy, LocalTraining, Remember, Take

log = logging.getLogger("stratafl")
HEAD_RATE = 0.2
IN_ORDER = LocalTraining(drop_last=True, shuffle=False)
FLOOR = 1e-8  # of a norm; the authors' code divides by zero


@validated
def official(
    *,
    p: Annotated[int, Range(least=1)] = 2,
    middle: Annotated[float, Range(above=0)] = 20.0,
    train: LocalTraining = IN_ORDER,
) -> Layerwise:
    """The last `p` tensors are the head (2; 4 for ResNet-18); `middle` is 20 for the CNN and 1 for the others."""
    if train.shuffle or not train.drop_last:
        needed = "set train.drop_last to true (in Python also shuffle=False)"
        raise RecordError(f"flayer, preset official: it needs full batches in order: {needed}")
    if train != LocalTraining(lr=train.lr, epochs=train.epochs, batch=train.batch, drop_last=True, shuffle=False):
        raise RecordError("flayer, preset official: it trains by plain SGD: set only lr, epochs and batch")
    return replace(
        fedavg(),
        mix=(GuideTensors(p), HeadEpoch(p, train.lr, train.batch), Remember()),
        train=(Accuracy("test"), ChildRates(train.lr, train.batch, train.epochs, middle)),
        send=(KernelTop(),),
        client={"theta": Start(), "accuracy": Number(0.0)},
        leaks="flayer, preset official: the test accuracy of each client steers its training",
    )


@record
class GuideTensors(Mix):
    """A_k·own + (1 − A_k)·received for the last p tensors."""

    p: int
    reads = ("theta", "accuracy", "down.theta")
    writes = ("theta",)

    def check(self, setup: Setup) -> None:
        """Refuse a head that leaves no base; say when statistics would travel."""
        layout = setup.layout
        most = len(layout.trainable()) - 1
        if self.p > most:
            raise RecordError(f"flayer, preset official: choose p from 1 to {most} tensors, not {self.p}")
        if layout.travelling() != layout.trainable():
            log.warning(
                "flayer, preset official: the authors keep running statistics with clients: set run.buffers to 'local'"
            )

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        theta, received = rows_of(client, "theta"), rows_of(Take()(rnd, client, down, task), "theta")
        A, head = tensor_of(client, "accuracy"), rnd.layout.trainable()[-self.p :]
        mixed = {rnd.layout.specs[n].layer for n in head}
        task.note("mix/own", A[:, None] * A.new_tensor([i in mixed for i in range(len(rnd.layout.layers))]))
        weight = {n: per_row(A.to(theta[n].dtype), theta[n]) for n in head}
        return {"theta": {**received, **{n: w * theta[n] + (1 - w) * received[n] for n, w in weight.items()}}}


@record
class HeadEpoch(Mix):
    """One epoch on the last p tensors alone, the rest frozen but in training mode; for every client, every round."""

    p: int
    lr: float
    batch: int
    reads = writes = ("theta",)

    @property
    def batching(self) -> Batching:
        return Batching(self.batch, drop_last=True)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        # What this gives is the model that is evaluated as received.
        trained = rnd.layout.trainable()[-self.p :]
        sgd = LocalTraining(batch=self.batch, shuffle=False, drop_last=True, frozen_modules_train=True, purpose="head")
        after = sgd.descend(task, trained, self.lr * HEAD_RATE, rows_of(client, "theta"), client)
        return {"theta": after["row"]}


@record
class ChildRates(Train):
    """SGD with a rate per top-level child, computed from the first batch of each epoch."""

    lr: float
    batch: int
    epochs: int
    middle: float
    reads = writes = ("theta",)

    @property
    def batching(self) -> Batching:
        return Batching(self.batch, drop_last=True)

    def footprint(self, setup: Setup) -> Footprint:
        """Its steps give new rows instead of moving those that are there."""
        return Footprint(client=2 * setup.row_bytes())

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        theta = rows_of(client, "theta")
        per_epoch = (task.sizes("train") // self.batch).clamp(min=1)
        like = next(iter(theta.values()))

        def step(carry: State, constants: State, stack: "Stack") -> State:
            row, steps = rows_of(carry, "row"), tensor_of(carry, "steps")
            out = task.gradients(row, stack)
            fresh = child_rates(out.rows, task.layout, self.middle)
            first = (steps % tensor_of(constants, "per_epoch") == 0)[:, None]
            rates = torch.where(first, fresh, tensor_of(carry, "rates"))
            spread = _per_tensor(rates, row, task.layout)
            moved = {n: x - self.lr * spread[n] * out.rows[n] if n in out.rows else x for n, x in row.items()}
            watched = {"factors": tensor_of(carry, "factors") + rates} if "factors" in carry else {}
            return {
                "row": {**moved, **out.statistics},
                "steps": steps + 1,
                "rates": rates,
                "loss": tensor_of(carry, "loss") + out.loss.detach().double(),
                **watched,
            }

        none = like.new_zeros(len(task), len(children(task.layout)))
        carry: State = {
            "row": theta,
            "steps": torch.zeros(len(task), dtype=torch.int64, device=like.device),
            "rates": none,
            "loss": torch.zeros(len(task), dtype=torch.float64, device=like.device),
        }
        if task.watched:
            carry["factors"] = none
        batches = {"batch": self.batch, "epochs": self.epochs, "shuffle": False, "drop_last": True}
        name = (self, task.watched)  # all that the step closes over
        after = task.scan(step, carry, constants={"per_epoch": per_epoch}, name=name, **batches)  # type: ignore[arg-type]
        self._note(after, task)
        return {"theta": after["row"]}

    def _note(self, after: State, task: Task) -> None:
        """Loss, steps and mean rates, under the names that every descent uses."""
        steps = tensor_of(after, "steps")
        task.note("train/steps", steps)
        task.note("train/loss", tensor_of(after, "loss") / steps.clamp(min=1))
        if "factors" in after:
            mean = tensor_of(after, "factors") / steps.clamp(min=1)[:, None]
            task.note("train/rates", self.lr * _per_layer(mean, task.layout))


def children(layout: Layout) -> list[str]:
    """The top-level children of the module that have parameters, in their order."""
    return list(dict.fromkeys(name.partition(".")[0] for name in layout.trainable()))


def _child_of(layout: Layout) -> dict[str, int]:
    """For each trainable tensor, the place of its child."""
    places = {child: i for i, child in enumerate(children(layout))}
    return {name: places[name.partition(".")[0]] for name in layout.trainable()}


def child_rates(gradients: Rows, layout: Layout, middle: float) -> Tensor:
    """`[C, children]`: 1, then middle·(1 + i/(n−1)·mean over tensors of ln(1 + 1/‖g‖)), and 1/5 for the head."""
    child, n = _child_of(layout), len(children(layout))
    rates = []
    for i in range(n):
        tensors = [g for name, g in gradients.items() if child[name] == i]
        logs = torch.stack([torch.log1p(1 / row_dot(g, g).sqrt().clamp(min=FLOOR)) for g in tensors]).mean(0)
        if i == n - 1:
            rates.append(torch.full_like(logs, HEAD_RATE))
        elif i == 0:
            rates.append(torch.ones_like(logs))
        else:
            rates.append(middle * (1 + i / (n - 1) * logs))
    return torch.stack(rates, 1)


def _per_tensor(rates: Tensor, row: Rows, layout: Layout) -> Rows:
    return {name: per_row(rates[:, i], row[name]) for name, i in _child_of(layout).items()}


def _per_layer(rates: Tensor, layout: Layout) -> Tensor:
    """`[C, L]`: the rate of the child that each layer is in; 0 without trainable columns."""
    layers = rates.new_zeros(len(rates), len(layout.layers))
    for name, i in _child_of(layout).items():
        layers[:, layout.specs[name].layer] = rates[:, i]
    return layers


@record
class KernelTop(Send):
    """What changed most, tensor by tensor: keep = clamp(i/T, 0.1, 0.9), all of the last two and of matrices."""

    reads = ("theta", "anchor")
    writes = ("up.theta", "up.samples")
    masked = True

    def footprint(self, setup: Setup) -> Footprint:
        """Its mask, and places of one tensor at a time, which are sorted; a weight per column on the server."""
        columns, sums = (setup.row_bytes(dtype=kind) for kind in (torch.bool, torch.float64))
        return Footprint(client=2 * columns + 6 * setup.block_bytes(), sums=sums)

    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        theta, start, names = rows_of(client, "theta"), rows_of(client, "anchor"), rnd.layout.trainable()
        sent = {name: torch.ones_like(theta[name], dtype=torch.bool) for name in rnd.layout.travelling()}
        for i, name in enumerate(names[:-2]):
            keep = min(max(i / len(names), 0.1), 0.9)
            sent[name] = kernel_mask((theta[name] - start[name]).abs(), keep)
        field = Field({name: theta[name] for name in sent}, mask=ColumnMask(sent))
        return {"theta": field, "samples": Field(task.sizes("train"))}


def kernel_mask(change: Tensor, keep: float) -> Tensor:
    """Without the smallest changes: of each k×k kernel (1 to k² − 1 of them), of a vector; a matrix is kept whole."""
    if change.ndim == 5:
        flat = change.flatten(3)
        size = flat.shape[-1]
        pruned = 1 if size == 1 else min(max(round(size * (1 - keep)), 1), size - 1)
    elif change.ndim == 2:
        flat = change
        pruned = round(flat.shape[-1] * (1 - keep))
    else:
        return torch.ones_like(change, dtype=torch.bool)
    order = flat.argsort(dim=-1, stable=True)
    return torch.ones_like(flat, dtype=torch.bool).scatter_(-1, order[..., :pruned], False).reshape(change.shape)
