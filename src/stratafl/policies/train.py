"""Train: minibatch descent of all clients, on some layers of one row.

`SGD` says what a descent does; `descend` does it, one step for all clients at once, in place on rows that belong to it.
The part of `SGD` that says what it means is the `[train]` table of a configuration. Methods shape a descent by records:

    edits       change the gradients (a pull towards an anchor, a control variate)
    rates       factors on the learning rate, layer by layer or column by column
    gradient    takes the gradient somewhere else than at the row (a mixture of models, a look-ahead)
    follow      moves other fields along with the row, once per batch (a moving anchor, mixing weights)
    project     brings the row back to where it is allowed to be
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Protocol

import torch
from torch import Tensor

from stratafl.core.annotations import Range
from stratafl.core.fields import FieldSpec, Filled, Number
from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.layout import Layout, Rows
from stratafl.core.objectives import Objective
from stratafl.core.records import Written, record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, Value, rows_of, tensor_of
from stratafl.core.steps import Batching, Names, Train
from stratafl.core.task import Gradients, Inputs, Stack, Task
from stratafl.errors import RecordError
from stratafl.policies.optimizers import Direction, Optimizer
from stratafl.policies.schedules import Constant, Schedule, parse_schedule, schedule_text

MOMENTUM = 4  # rows more of a client for each row of an optimiser's state that one step hands to the next; measured
MANY = 10**9  # more epochs or samples than anybody can mean
RATE = "learning rate"  # a constant of the scan, so that a step which is kept from round to round sees today's
Fields = Mapping[str, Value]


class Edit(Protocol):
    """A change of the gradients: (gradients, row, fields of the client's state, layout) → gradients.

    `reads` are the fields that it needs.
    """

    @property
    def reads(self) -> Names: ...

    def __call__(self, gradients: Rows, row: Rows, client: Fields, layout: Layout) -> Rows: ...


class Rate(Edit, Protocol):
    """A factor on the learning rate: (gradients, row, fields of the client's state, layout) → factors that broadcast.

    One factor per layer (as `spread` gives it) or per column. It sees the gradients after all edits, before clipping
    and weight decay.
    """


class GradientAt(Protocol):
    """The objective's gradients at any whole model, on one of the batches that a step draws."""

    def __call__(self, rows: Rows, draw: int = 0) -> Gradients: ...


class GradientRule(Protocol):
    """Where the gradient is taken: (gradient at, row, fields, layout) → gradients of the row, fields for followers.

    A step gives it `draws` batches that are shuffled independently; `gives` names what it leaves for followers.
    """

    @property
    def reads(self) -> Names: ...

    @property
    def gives(self) -> Names: ...

    @property
    def draws(self) -> int: ...

    def __call__(self, gradient: GradientAt, row: Rows, client: Fields, layout: Layout) -> tuple[Gradients, State]: ...


class Follower(Protocol):
    """Fields that move along with the row, once per batch: (row, fields, layout, learning rate) → their next values.

    What it `writes` it finds among the fields as it is now, with what the gradient rule left for it.
    """

    @property
    def reads(self) -> Names: ...

    @property
    def writes(self) -> Names: ...

    def __call__(self, row: Rows, client: Fields, layout: Layout, rate: Tensor) -> State: ...


class Projection(Protocol):
    """Where the trained tensors of a row may be."""

    def __call__(self, trained: Rows) -> Rows: ...


@record
class Pull:
    """Add strength·(θ − anchor): the gradient of (strength/2)·‖θ − anchor‖²."""

    strength: float
    anchor: str = "anchor"

    @property
    def reads(self) -> Names:
        return (self.anchor,)

    def __call__(self, gradients: Rows, row: Rows, client: Fields, layout: Layout) -> Rows:
        anchor = rows_of(client, self.anchor)
        return {name: g + self.strength * (row[name] - anchor[name]) for name, g in gradients.items()}


@record
class Clamp:
    """Every value between two limits."""

    least: float = 0.0
    most: float = 1.0

    def __call__(self, trained: Rows) -> Rows:
        return {name: x.clamp(self.least, self.most) for name, x in trained.items()}


Some = Written("epochs", Annotated[int, Range(least=1, most=MANY)], int, int)  # none is for steps of a method alone
Scheduled = Written("schedule", str, parse_schedule, schedule_text)
Share = Annotated[float, Range(least=0, below=1)]


@record
class SGD(Train):
    """Minibatch descent on some layers of one row, the others frozen.

    `purpose` keys its shuffles: two descents of one round need two purposes. What a descent counts are the fields
    `steps`, `loss` and `rate`; for another purpose than `train`, such as `head`, `head/steps` and so on. Layers that
    are not trained run in evaluation mode unless `frozen_modules_train`. `steps` counts steps instead of epochs,
    `epochs_from` names a field with the number of epochs of each client, `share` is the part of its batches that an
    epoch takes, and `repeats` how often each batch is used in a row.
    """

    lr: Annotated[float, Range(least=0, most=1e30), "learning rate"] = 0.05
    epochs: Annotated[int, Range(least=0, most=MANY), Some, "local epochs per round"] = 1
    batch: Annotated[int, Range(least=1, most=MANY), "samples per batch"] = 10
    optimizer: Annotated[Optimizer, "how a gradient becomes a step"] = "sgd"
    momentum: Annotated[Share, "momentum of SGD"] = 0.0
    nesterov: Annotated[bool, "momentum looks ahead (Nesterov)"] = False
    beta1: Annotated[Share, "decay of the mean of gradients, for Adam"] = 0.9
    beta2: Annotated[Share, "decay of the mean of squared gradients, for Adam"] = 0.999
    epsilon: Annotated[float, Range(above=0, most=1), "added to Adam's denominator"] = 1e-8
    optimizer_state: Annotated[
        Literal["dropped", "kept"], "whether momentum and moments start anew each round or are kept by each client"
    ] = "dropped"
    weight_decay: Annotated[float, Range(least=0, most=1e6), "weight decay"] = 0.0
    clip: Annotated[float | None, Range(above=0, most=1e12), "largest norm of a gradient"] = None
    decay: Annotated[float, Range(above=0, most=1), "the learning rate is multiplied by this after each round"] = 1.0
    schedule: Annotated[
        Schedule,
        Scheduled,
        "the learning rate over the rounds: constant, cosine, cosine:0.1, step:30:0.1, warmup:5+cosine",
    ] = Constant()
    layers: Select = select("all")
    row: str = "theta"
    objective: Objective | None = None
    edits: tuple[Edit, ...] = ()
    rates: tuple[Rate, ...] = ()
    gradient: GradientRule | None = None
    follow: tuple[Follower, ...] = ()
    project: Projection | None = None
    repeats: Annotated[int, Range(least=1)] = 1
    steps: Annotated[int | None, Range(least=1)] = None
    epochs_from: str | None = None
    share: Annotated[float, Range(above=0, most=1)] = 1.0
    drop_last: Annotated[bool, "leave out last batches that are not full"] = False
    shuffle: bool = True
    frozen_modules_train: bool = False
    purpose: str = "train"

    def __post_init__(self) -> None:
        if self.optimizer != "sgd" and (self.momentum or self.nesterov):
            raise RecordError(
                f"momentum has no effect with optimizer '{self.optimizer}', which has its own: leave it out"
            )
        if self.nesterov and not self.momentum:
            raise RecordError("nesterov needs a momentum above 0, such as momentum=0.9")

    @property
    def direction(self) -> Direction:
        """How a gradient becomes a step."""
        decay, betas = self.weight_decay, (self.beta1, self.beta2)
        if self.optimizer == "sgd":
            return Direction("sgd", self.momentum, self.nesterov, decay)
        return Direction(self.optimizer, 0.0, False, decay, *betas, self.epsilon)

    @property
    def reads(self) -> Names:
        o = self.objective
        asked = () if o is None else (*o.frozen, *o.constants, *o.carries)
        count = () if self.epochs_from is None else (self.epochs_from,)
        return (self.row, *asked, *self._shaped_by, *self.keeps, *count)

    @property
    def _shaped_by(self) -> Names:
        """The fields that edits, rates, the gradient rule and followers need; what the rule gives, followers have."""
        rule = () if self.gradient is None else (self.gradient,)
        given = () if self.gradient is None else self.gradient.gives
        asked = [name for part in (*self.edits, *self.rates, *rule, *self.follow) for name in part.reads]
        return tuple(name for name in (*asked, *_followed(self)) if name not in given)

    @property
    def writes(self) -> Names:
        carried = () if self.objective is None else self.objective.carries
        return (self.row, *self.counts, *carried, *self.keeps, *_followed(self))

    @property
    def counts(self) -> tuple[str, str, str]:
        """The fields with each client's steps, summed loss and learning rate."""
        before = "" if self.purpose == "train" else f"{self.purpose}/"
        return f"{before}steps", f"{before}loss", f"{before}rate"

    @property
    def keeps(self) -> Mapping[str, FieldSpec]:
        """The state of the optimiser, if each client keeps it from round to round."""
        if self.optimizer_state == "dropped":
            return {}
        rows: dict[str, FieldSpec] = {self._slot(name): Filled(0.0, self.layers) for name in self.direction.slots}
        return rows | ({self._slot("updates"): Number(0.0)} if self.direction.counts else {})

    def _slot(self, name: str) -> str:
        return f"{self.purpose}.{name}"

    @property
    def batching(self) -> Batching:
        return Batching(self.batch, self.drop_last)

    def footprint(self, setup: Setup) -> Footprint:
        """The state that steps hand on, and gradients that are edited, clipped or decayed beside what they were."""
        row = setup.row_bytes(setup.layout.trainable(self.layers))
        edited = bool(self.edits) + (self.clip is not None) + bool(self.weight_decay)
        elsewhere = 2 * (self.gradient is not None) + 2 * len(self.follow)
        return Footprint(client=(MOMENTUM * len(self.direction.slots) + edited + elsewhere) * row)

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        """The row after descent; as it was, if no layer is to be trained."""
        trained = rnd.layout.trainable(self.layers)
        if not trained or (self.epochs == 0 and self.steps is None and self.epochs_from is None):
            none = torch.zeros_like(task.ids)
            return self._counted(none, none.double(), 0.0, client)
        rate = self.lr * self.decay ** rnd.schedule[0] * self.schedule(*rnd.schedule)
        after = descend(task, self, trained, rate, rows_of(client, self.row), client)
        task.note(f"{self.purpose}/loss", tensor_of(after, "loss") / tensor_of(after, "steps").clamp(min=1))
        task.note(f"{self.purpose}/steps", tensor_of(after, "steps"))
        if task.watched:
            task.note(f"{self.purpose}/rates", rate * _mean_factors(after, trained, task))
        carried = {n: after[n] for n in (*(self.objective or task.objective()).carries, *_followed(self))}
        kept = {name: after[name.removeprefix(self._slot(""))] for name in self.keeps}
        counted = self._counted(tensor_of(after, "steps"), tensor_of(after, "loss"), rate, client)
        return {self.row: after["row"], **counted, **carried, **kept}

    def _counted(self, steps: Tensor, loss: Tensor, rate: float, client: State) -> State:
        like = next(iter(rows_of(client, self.row).values()))
        return dict(zip(self.counts, (steps, loss, like.new_full((len(steps),), rate)), strict=True))


@record
class Copy(Train):
    """One field of the client becomes what another one is."""

    source: str
    into: str

    @property
    def reads(self) -> Names:
        return (self.source,)

    @property
    def writes(self) -> Names:
        return (self.into,)

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        return {self.into: client[self.source]}


@record
class Accuracy(Train):
    """A_k: the accuracy of the client's model on its own split; kept for its next round."""

    split: str = "train"
    row: str = "theta"
    writes = ("accuracy",)
    scores = True

    @property
    def reads(self) -> Names:
        return (self.row,)

    @property
    def splits(self) -> Names:
        return (self.split,)

    def check(self, setup: Setup) -> None:
        """Refuse numbers as targets: nothing would ever be correct."""
        if setup.classes is None:
            raise RecordError("an accuracy needs classes, and the targets of this data are numbers")

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        """A number from 0 to 1 per client."""
        row = rows_of(client, self.row)
        return {"accuracy": task.scores(row, self.split).accuracy.to(next(iter(row.values())).dtype)}


def _followed(sgd: SGD) -> Names:
    return tuple(name for part in sgd.follow for name in part.writes)


def descend(task: Task, sgd: SGD, trained: Names, rate: float, row: Rows, client: Fields) -> State:
    """Rows after descent at this rate, the carried fields, and each client's number of steps and summed loss."""
    objective, followed = sgd.objective or task.objective(), _followed(sgd)
    like = next(iter(row.values()))
    count = len(task)
    moved = {*trained, *(n for n in row if not task.layout.specs[n].trainable)}
    carry: State = {
        # Trained tensors are moved in place, so they are copied; what is not trained may stay as it is.
        "row": {n: x.clone(memory_format=torch.contiguous_format) if n in moved else x for n, x in row.items()},
        "steps": torch.zeros(count, dtype=torch.int64, device=like.device),
        "loss": torch.zeros(count, dtype=torch.float64, device=like.device),
        **_optimizer_state(sgd, {n: row[n] for n in trained}, client),
    }
    carry |= {name: client[name] for name in (*objective.carries, *followed)}
    if sgd.rates and task.watched:
        carry["factors"] = like.new_zeros(count, len(task.layout.layers))
    reads = [*objective.frozen, *objective.constants, *sgd._shaped_by]
    constants = {name: client[name] for name in reads if name not in carry}
    constants[RATE] = torch.tensor(rate, dtype=like.dtype, device=like.device).expand(count)
    # All that the step closes over, and not the rate: a step is kept from round to round.
    shape = (sgd.edits, sgd.rates, sgd.gradient, sgd.follow, sgd.project, sgd.repeats)
    closes_over = (sgd.direction, sgd.clip, *shape, sgd.frozen_modules_train)
    return task.scan(
        _step(task, sgd, objective, trained),
        carry,
        constants=constants,
        name=("descent", objective, trained, *closes_over, "factors" in carry),
        batch=sgd.batch,
        epochs=sgd.epochs if sgd.epochs_from is None else tensor_of(client, sgd.epochs_from).long().tolist(),
        steps=sgd.steps,
        share=sgd.share,
        draws=1 if sgd.gradient is None else sgd.gradient.draws,
        drop_last=sgd.drop_last,
        shuffle=sgd.shuffle,
        purpose=sgd.purpose,
    )


def _optimizer_state(sgd: SGD, trained: Rows, client: Fields) -> State:
    """Zeros, or what the clients kept; a copy, because steps move it in place."""
    kept = {name.removeprefix(sgd._slot("")): client[name] for name in sgd.keeps}
    state: State = {
        slot: {n: rows_of(kept, slot)[n].clone() if slot in kept else torch.zeros_like(x) for n, x in trained.items()}
        for slot in sgd.direction.slots
    }
    if sgd.direction.counts:
        like = next(iter(trained.values()))
        state["updates"] = kept.get("updates", like.new_zeros(len(like)))
    return state


def _step(task: Task, sgd: SGD, objective: Objective, trained: Names) -> Callable[..., State]:
    direction = sgd.direction

    def step(carry: State, client: State, *stacks: Stack) -> State:
        row, rate = dict(rows_of(carry, "row")), tensor_of(client, RATE)[0]
        after = {name: carry[name] for name in carry if name != "row"}
        for _ in range(sgd.repeats):
            fields = {**client, **after}  # edits and rates may ask how far it is
            gradient = _gradient_at(task, sgd, objective, trained, fields, stacks)
            out, left = (
                (gradient(row), {}) if sgd.gradient is None else sgd.gradient(gradient, row, fields, task.layout)
            )
            edited = _edited(sgd, out.rows, row, fields, task.layout)
            factors = _factors(sgd, edited, row, fields, task.layout)
            _move(row, direction(_clipped(sgd, edited, task.layout), row, *_state(direction, after)), rate, factors)
            if sgd.project is not None:
                row |= sgd.project({name: row[name] for name in trained})
            row |= {name: x for name, x in out.statistics.items() if name in row}
            after |= {"steps": tensor_of(after, "steps") + 1, **out.carry}
            after["loss"] = tensor_of(after, "loss") + out.loss.detach().double()
            if "factors" in carry:
                after["factors"] = tensor_of(after, "factors") + _by_layer(factors, trained, row, task.layout)
        for part in sgd.follow:
            after |= part(row, {**client, **after, **left}, task.layout, rate)
        return {"row": row, **after}

    return step


def _gradient_at(
    task: Task, sgd: SGD, objective: Objective, trained: Names, fields: Fields, stacks: tuple[Stack, ...]
) -> GradientAt:
    inputs = Inputs(
        {name: rows_of(fields, name) for name in objective.frozen},
        {name: tensor_of(fields, name) for name in objective.constants},
        {name: tensor_of(fields, name) for name in objective.carries},
    )
    modes = sgd.frozen_modules_train

    def gradient(rows: Rows, draw: int = 0) -> Gradients:
        return task.gradients(
            rows, stacks[draw], objective=objective, trained=trained, inputs=inputs, frozen_modules_train=modes
        )

    return gradient


def _edited(sgd: SGD, gradients: Rows, row: Rows, client: Fields, layout: Layout) -> Rows:
    for edit in sgd.edits:
        edited = edit(gradients, row, client, layout)
        _check_edit(edit, gradients, edited)
        gradients = edited
    return gradients


def _clipped(sgd: SGD, gradients: Rows, layout: Layout) -> Rows:
    if sgd.clip is None:
        return gradients
    factor = (sgd.clip / (layout.dot(gradients, gradients).sum(1).sqrt() + 1e-6)).clamp(max=1)
    return {n: g * factor.reshape(-1, *(1,) * (g.ndim - 1)) for n, g in gradients.items()}


def _state(direction: Direction, carry: State) -> tuple[dict[str, Rows], Tensor | None]:
    """The rows that the optimiser moves in place, and the number of this step, counted for each client."""
    rows = {slot: rows_of(carry, slot) for slot in direction.slots}
    if not direction.counts:
        return rows, None
    carry["updates"] = tensor_of(carry, "updates") + 1
    return rows, tensor_of(carry, "updates")


def _check_edit(edit: Edit, before: Rows, after: Rows) -> None:
    """An edit gives every gradient back in its shape: a lost client axis would broadcast without a word."""
    for name, gradient in before.items():
        if name not in after or after[name].shape != gradient.shape:
            found, expected = tuple(after[name].shape) if name in after else "nothing", tuple(gradient.shape)
            raise RecordError(f"{type(edit).__name__} gives {found} for '{name}', whose gradients are {expected}")


def _factors(sgd: SGD, gradients: Rows, row: Rows, client: Fields, layout: Layout) -> dict[str, Tensor]:
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
