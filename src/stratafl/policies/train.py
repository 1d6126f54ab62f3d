"""Train: minibatch descent of all clients, on some layers of one row.

`SGD` says what a descent does; `descend` does it, one step for all clients at once, in place on rows that belong to it.
The part of `SGD` that says what it means is the `[train]` table of a configuration.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Protocol

import torch
from torch import Tensor

from stratafl.core.annotations import Range
from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.layout import Layout, Rows
from stratafl.core.objectives import Objective
from stratafl.core.records import Written, record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, Value, rows_of, tensor_of
from stratafl.core.steps import Batching, Names, Train
from stratafl.core.task import Inputs, Stack, Task
from stratafl.errors import RecordError
from stratafl.policies.schedules import Constant, Exponential, Schedule

MOMENTUM = 4  # rows more of a client whose velocity of one step becomes that of the next; measured
MANY = 10**9  # more epochs or samples than anybody can mean
RATE = "learning rate"  # a constant of the scan, so that a step which is kept from round to round sees today's


class Edit(Protocol):
    """A change of the gradients: (gradients, row, fields of the client's state, layout) → gradients.

    `reads` are the fields that it needs.
    """

    @property
    def reads(self) -> Names: ...

    def __call__(self, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout) -> Rows: ...


class Rate(Edit, Protocol):
    """A factor on the learning rate: (gradients, row, fields of the client's state, layout) → factors that broadcast.

    One factor per layer (as `spread` gives it) or per column. It sees the gradients after all edits, before clipping
    and weight decay.
    """


@record
class Pull:
    """Add strength·(θ − anchor): the gradient of (strength/2)·‖θ − anchor‖²."""

    strength: float
    anchor: str = "anchor"

    @property
    def reads(self) -> Names:
        return (self.anchor,)

    def __call__(self, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout) -> Rows:
        anchor = rows_of(client, self.anchor)
        return {name: g + self.strength * (row[name] - anchor[name]) for name, g in gradients.items()}


Some = Written("epochs", Annotated[int, Range(least=1, most=MANY)], int, int)  # none is for steps of a method alone
Decay = Written(
    "decay",
    Annotated[float, Range(above=0, most=1)],
    lambda decay: Constant() if decay == 1 else Exponential(decay),
    lambda schedule: getattr(schedule, "factor", 1.0),
)


@record
class SGD(Train):
    """Minibatch SGD on some layers of one row, the others frozen.

    `purpose` keys its shuffles: two descents of one round need two purposes. What a descent counts are the fields
    `steps`, `loss` and `rate`; for another purpose than `train`, such as `head`, `head/steps` and so on. Layers that
    are not trained run in evaluation mode unless `frozen_modules_train`. `steps` counts steps instead of epochs.
    """

    lr: Annotated[float, Range(least=0, most=1e30), "learning rate"] = 0.05
    epochs: Annotated[int, Range(least=0, most=MANY), Some, "local epochs per round"] = 1
    batch: Annotated[int, Range(least=1, most=MANY), "samples per batch"] = 10
    momentum: Annotated[float, Range(least=0, below=1), "momentum of SGD, which starts anew each round"] = 0.0
    weight_decay: Annotated[float, Range(least=0, most=1e6), "weight decay of SGD"] = 0.0
    clip: Annotated[float | None, Range(above=0, most=1e12), "largest norm of a gradient"] = None
    schedule: Annotated[Schedule, Decay, "the learning rate is multiplied by this after each round"] = Constant()
    layers: Select = select("all")
    row: str = "theta"
    objective: Objective | None = None
    edits: tuple[Edit, ...] = ()
    rates: tuple[Rate, ...] = ()
    steps: Annotated[int | None, Range(least=1)] = None
    drop_last: Annotated[bool, "leave out last batches that are not full"] = False
    shuffle: bool = True
    frozen_modules_train: bool = False
    purpose: str = "train"

    @property
    def reads(self) -> Names:
        o = self.objective
        asked = () if o is None else (*o.frozen, *o.constants, *o.carries)
        return (self.row, *asked, *(name for edit in (*self.edits, *self.rates) for name in edit.reads))

    @property
    def writes(self) -> Names:
        return (self.row, *self.counts, *(() if self.objective is None else self.objective.carries))

    @property
    def counts(self) -> tuple[str, str, str]:
        """The fields with each client's steps, summed loss and learning rate."""
        before = "" if self.purpose == "train" else f"{self.purpose}/"
        return f"{before}steps", f"{before}loss", f"{before}rate"

    @property
    def batching(self) -> Batching:
        return Batching(self.batch, self.drop_last)

    def footprint(self, setup: Setup) -> Footprint:
        """The velocity that steps hand on, and gradients that are edited, clipped or decayed beside what they were."""
        row = setup.row_bytes(setup.layout.trainable(self.layers))
        edited = bool(self.edits) + (self.clip is not None) + bool(self.weight_decay)
        return Footprint(client=(MOMENTUM * bool(self.momentum) + edited) * row)

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        """The row after descent; as it was, if no layer is to be trained."""
        trained = rnd.layout.trainable(self.layers)
        if not trained or (self.epochs == 0 and self.steps is None):
            none = torch.zeros_like(task.ids)
            return self._counted(none, none.double(), 0.0, client)
        rate = self.lr * self.schedule(*rnd.schedule)
        after = descend(task, self, trained, rate, rows_of(client, self.row), client)
        task.note(f"{self.purpose}/loss", tensor_of(after, "loss") / tensor_of(after, "steps").clamp(min=1))
        task.note(f"{self.purpose}/steps", tensor_of(after, "steps"))
        if task.watched:
            task.note(f"{self.purpose}/rates", rate * _mean_factors(after, trained, task))
        carried = {name: after[name] for name in (self.objective or task.objective()).carries}
        counted = self._counted(tensor_of(after, "steps"), tensor_of(after, "loss"), rate, client)
        return {self.row: after["row"], **counted, **carried}

    def _counted(self, steps: Tensor, loss: Tensor, rate: float, client: State) -> State:
        like = next(iter(rows_of(client, self.row).values()))
        return dict(zip(self.counts, (steps, loss, like.new_full((len(steps),), rate)), strict=True))


@record
class Accuracy(Train):
    """A_k: the accuracy of the client's model on its own split; kept for its next round."""

    split: str = "train"
    reads = ("theta",)
    writes = ("accuracy",)
    scores = True

    @property
    def splits(self) -> Names:
        return (self.split,)

    def check(self, setup: Setup) -> None:
        """Refuse numbers as targets: nothing would ever be correct."""
        if setup.classes is None:
            raise RecordError("an accuracy needs classes, and the targets of this data are numbers")

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        """A number from 0 to 1 per client."""
        theta = rows_of(client, "theta")
        return {"accuracy": task.scores(theta, self.split).accuracy.to(next(iter(theta.values())).dtype)}


def descend(task: Task, sgd: SGD, trained: Names, rate: float, row: Rows, client: Mapping[str, Value]) -> State:
    """Rows after descent at this rate, the carried fields, and each client's number of steps and summed loss."""
    objective = sgd.objective or task.objective()
    like = next(iter(row.values()))
    count = len(task)
    moved = {*trained, *(n for n in row if not task.layout.specs[n].trainable)}
    carry: State = {
        # Trained tensors are moved in place, so they are copied; what is not trained may stay as it is.
        "row": {n: x.clone(memory_format=torch.contiguous_format) if n in moved else x for n, x in row.items()},
        "steps": torch.zeros(count, dtype=torch.int64, device=like.device),
        "loss": torch.zeros(count, dtype=torch.float64, device=like.device),
        "velocity": {n: torch.zeros_like(row[n]) for n in trained} if sgd.momentum else {},
    }
    carry |= {name: client[name] for name in objective.carries}
    if sgd.rates and task.watched:
        carry["factors"] = like.new_zeros(count, len(task.layout.layers))
    reads = [*objective.frozen, *objective.constants, *(r for e in (*sgd.edits, *sgd.rates) for r in e.reads)]
    constants = {name: client[name] for name in reads}
    constants[RATE] = torch.tensor(rate, dtype=like.dtype, device=like.device).expand(count)
    # All that the step closes over, and not the rate: a step is kept from round to round.
    closes_over = (sgd.momentum, sgd.weight_decay, sgd.clip, sgd.edits, sgd.rates, sgd.frozen_modules_train)
    return task.scan(
        _step(task, sgd, objective, trained),
        carry,
        constants=constants,
        name=("descent", objective, trained, *closes_over, "factors" in carry),
        batch=sgd.batch,
        epochs=sgd.epochs,
        steps=sgd.steps,
        drop_last=sgd.drop_last,
        shuffle=sgd.shuffle,
        purpose=sgd.purpose,
    )


def _step(task: Task, sgd: SGD, objective: Objective, trained: Names) -> Callable[[State, State, Stack], State]:
    def step(carry: State, client: State, stack: Stack) -> State:
        row, rate = rows_of(carry, "row"), tensor_of(client, RATE)[0]
        inputs = Inputs(
            {name: rows_of(client, name) for name in objective.frozen},
            {name: tensor_of(client, name) for name in objective.constants},
            {name: tensor_of(carry, name) for name in objective.carries},
        )
        modes = sgd.frozen_modules_train
        out = task.gradients(
            row, stack, objective=objective, trained=trained, inputs=inputs, frozen_modules_train=modes
        )
        velocity = rows_of(carry, "velocity")
        client = {**client, "steps": carry["steps"]}  # edits and rates may ask how far it is
        gradients = _edited(sgd, out.rows, row, client, task.layout)
        factors = _factors(sgd, gradients, row, client, task.layout)
        _move(row, _direction(sgd, gradients, row, task.layout, velocity), rate, factors)
        loss = tensor_of(carry, "loss") + out.loss.detach().double()
        counted = {"steps": tensor_of(carry, "steps") + 1, "loss": loss}
        if "factors" in carry:
            counted["factors"] = tensor_of(carry, "factors") + _by_layer(factors, trained, row, task.layout)
        return {"row": {**row, **out.statistics}, "velocity": velocity, **counted, **out.carry}

    return step


def _edited(sgd: SGD, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout) -> Rows:
    for edit in sgd.edits:
        edited = edit(gradients, row, client, layout)
        _check_edit(edit, gradients, edited)
        gradients = edited
    return gradients


def _direction(sgd: SGD, gradients: Rows, row: Rows, layout: Layout, velocity: Rows) -> Rows:
    """Clipped, decayed and with momentum, in the order of torch's SGD; velocity moves in place."""
    if sgd.clip is not None:
        norm = layout.dot(gradients, gradients).sum(1).sqrt()
        factor = (sgd.clip / (norm + 1e-6)).clamp(max=1)
        gradients = {n: g * factor.reshape(-1, *(1,) * (g.ndim - 1)) for n, g in gradients.items()}
    if sgd.weight_decay:
        gradients = {n: g + sgd.weight_decay * row[n] for n, g in gradients.items()}
    if not sgd.momentum:
        return gradients
    for name, v in velocity.items():
        v.mul_(sgd.momentum).add_(gradients[name])
    return velocity


def _check_edit(edit: Edit, before: Rows, after: Rows) -> None:
    """An edit gives every gradient back in its shape: a lost client axis would broadcast without a word."""
    for name, gradient in before.items():
        if name not in after or after[name].shape != gradient.shape:
            found, expected = tuple(after[name].shape) if name in after else "nothing", tuple(gradient.shape)
            raise RecordError(f"{type(edit).__name__} gives {found} for '{name}', whose gradients are {expected}")


def _factors(sgd: SGD, gradients: Rows, row: Rows, client: Mapping[str, Value], layout: Layout) -> dict[str, Tensor]:
    factors: Rows = {}
    for rate in sgd.rates:
        for name, factor in rate(gradients, row, client, layout).items():
            factors[name] = factors[name] * factor if name in factors else factor
    return factors


def _mean_factors(after: State, trained: Names, task: Task) -> Tensor:
    """`[C, L]`: the mean factor on the rate over all steps; 0 for a layer that is not trained."""
    if "factors" in after:
        return tensor_of(after, "factors") / tensor_of(after, "steps").clamp(min=1)[:, None]
    plain = torch.zeros(len(task.layout.layers), dtype=torch.float64, device=task.ids.device)
    plain[[task.layout.specs[name].layer for name in trained]] = 1.0
    return plain.expand(len(task), -1)


def _by_layer(factors: Rows, trained: Names, row: Rows, layout: Layout) -> Tensor:
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
