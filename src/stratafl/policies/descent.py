"""A descent: minibatch steps of all clients at once, in place on rows that belong to it.

`Descent` is all that a step closes over. So it is also the name under which a step is captured and kept for later
rounds; what changes from round to round, such as the learning rate, enters as a constant of the scan. The protocols
here are what a method shapes a descent with; `stratafl.policies.train:LocalTraining` puts them together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from stratafl.core import keys
from stratafl.core.layout import Layout, Rows, per_row
from stratafl.core.objectives import Objective
from stratafl.core.state import State, Value, flatten, rows_of, tensor_of
from stratafl.core.steps import Names
from stratafl.core.task import Gradients, Inputs, Stack, Task
from stratafl.errors import RecordError
from stratafl.policies.optimizers import Direction

Fields = Mapping[str, Value]
RATE = "learning rate"  # one per client, a constant of the scan: a step that is kept sees that of its round and run
RESERVED_FIELDS = ("row", "steps", "loss", "factors", "velocity", "moment", "square", "updates", RATE)  # of a scan


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
    """Fields that move along with the row, once per batch: (row, fields, layout, rates `[C]`) → their next values.

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


@dataclass(frozen=True)
class Descent:
    """What a step does with a batch."""

    direction: Direction
    clip: float | None = None
    edits: tuple[Edit, ...] = ()
    rates: tuple[Rate, ...] = ()
    gradient: GradientRule | None = None
    follow: tuple[Follower, ...] = ()
    project: Projection | None = None
    repeats: int = 1
    frozen_modules_train: bool = False

    @property
    def reads(self) -> Names:
        """The fields that its parts need; what the gradient rule gives, followers have."""
        rule = () if self.gradient is None else (self.gradient,)
        provided = () if self.gradient is None else self.gradient.gives
        asked = [name for part in (*self.edits, *self.rates, *rule, *self.follow) for name in part.reads]
        return tuple(name for name in (*asked, *self.followed) if name not in provided)

    @property
    def followed(self) -> Names:
        """The fields that move along with the row."""
        return tuple(name for part in self.follow for name in part.writes)

    @property
    def has_sparse_updates(self) -> bool:
        """Whether an entry without a gradient stays as it is, and nothing depends on it."""
        shaped = (self.edits, self.rates, self.gradient, self.follow, self.project)
        plain = self.direction.optimizer == "sgd" and not self.direction.momentum and not self.direction.weight_decay
        return plain and self.clip is None and not any(shaped)

    @property
    def draws(self) -> int:
        """How many batches a step gets."""
        return 1 if self.gradient is None else self.gradient.draws


@dataclass(frozen=True)
class Passes:
    """Which batches a descent sees."""

    batch: int
    epochs: int | Sequence[int] = 1
    steps: int | None = None
    share: float = 1.0
    drop_last: bool = False
    shuffle: bool = True
    purpose: str = "train"


def descend(
    task: Task,
    descent: Descent,
    passes: Passes,
    trained: Names,
    rate: float,
    row: Rows,
    client: Fields,
    objective: Objective | None = None,
    previous: Fields | None = None,
) -> State:
    """The `row` after descent at this rate, fields that moved along, and each client's `steps` and summed `loss`.

    `previous` is the optimiser's state to go on from, which otherwise begins with zeros.
    """
    objective = objective or task.objective()
    like = next(iter(row.values()))
    count = len(task)
    moved = {*trained, *(n for n in row if task.layout.specs[n].is_statistic)}
    carry: State = {
        # Trained tensors are moved in place, so they are copied; the others are not.
        "row": {n: x.clone(memory_format=torch.contiguous_format) if n in moved else x for n, x in row.items()},
        "steps": torch.zeros(count, dtype=torch.int64, device=like.device),
        "loss": torch.zeros(count, dtype=torch.float64, device=like.device),
        **_optimizer_state(descent.direction, {n: row[n] for n in trained}, previous or {}),
    }
    carry |= {name: client[name] for name in (*objective.carries, *descent.followed)}
    if descent.rates and task.watched:
        carry["factors"] = like.new_zeros(count, len(task.layout.layers))
    reads = [*objective.frozen, *objective.constants, *descent.reads]
    constants = {name: client[name] for name in reads if name not in carry}
    constants[RATE] = like.new_full((count,), rate)
    return task.scan(
        _step(task, descent, objective, trained),
        carry,
        constants=constants,
        name=("descent", descent, objective, trained, "factors" in carry),
        sparse=trained if descent.has_sparse_updates and objective == task.objective() else (),
        draws=descent.draws,
        **vars(passes),
    )


def _optimizer_state(direction: Direction, trained: Rows, before: Fields) -> State:
    """Zeros, or what the clients kept; a copy, because steps move it in place."""
    state: State = {
        slot: {
            n: rows_of(before, slot)[n].clone() if slot in before else torch.zeros_like(x) for n, x in trained.items()
        }
        for slot in direction.slots
    }
    if direction.counts:
        like = next(iter(trained.values()))
        state["updates"] = before.get("updates", like.new_zeros(len(like)))
    return state


def _step(task: Task, descent: Descent, objective: Objective, trained: Names) -> Callable[..., State]:
    direction = descent.direction

    def step(carry: State, client: State, *stacks: Stack) -> State:
        row, rate = dict(rows_of(carry, "row")), tensor_of(client, RATE)
        after = {name: carry[name] for name in carry if name != "row"}
        for repeat in range(descent.repeats):
            fields = {**client, **after}  # edits and rates may ask how far it is
            gradient = _gradient_at(task, descent, objective, trained, fields, _drawn_again(stacks, repeat))
            out, left = (
                (gradient(row), {})
                if descent.gradient is None
                else descent.gradient(gradient, row, fields, task.layout)
            )
            edited = _edited(descent, out.rows, row, fields, task.layout)
            factors = _factors(descent, edited, row, fields, task.layout)
            clipped = _clipped(descent.clip, edited, task.layout)
            _move(row, direction(clipped, row, *_state(direction, after)), rate, factors)
            if descent.project is not None:
                row |= descent.project({name: row[name] for name in trained})
            row |= {name: x for name, x in out.statistics.items() if name in row}
            after |= {"steps": tensor_of(after, "steps") + 1, **out.carry}
            after["loss"] = tensor_of(after, "loss") + out.loss.detach().double()
            if "factors" in carry:
                after["factors"] = tensor_of(after, "factors") + _by_layer(factors, trained, row, task.layout)
        for part in descent.follow:
            moved = part(row, {**client, **after, **left}, task.layout, rate)
            was, now = flatten(after), flatten(moved)
            _check_shapes(part, (name for name in now if name in was), was, now)
            after |= moved
        return {"row": row, **after}

    return step


def _drawn_again(stacks: tuple[Stack, ...], repeat: int) -> tuple[Stack, ...]:
    """The same samples, with new random draws of the model and the objective for each repeat."""
    if repeat == 0:
        return stacks
    return tuple(replace(stack, keys=keys.fold(stack.keys, repeat)) for stack in stacks)


def _gradient_at(
    task: Task,
    descent: Descent,
    objective: Objective,
    trained: Names,
    fields: Fields,
    stacks: tuple[Stack, ...],
) -> GradientAt:
    inputs = Inputs(
        {name: rows_of(fields, name) for name in objective.frozen},
        {name: tensor_of(fields, name) for name in objective.constants},
        {name: tensor_of(fields, name) for name in objective.carries},
    )
    modes = descent.frozen_modules_train

    def gradient(rows: Rows, draw: int = 0) -> Gradients:
        return task.gradients(
            rows, stacks[draw], objective=objective, trained=trained, inputs=inputs, frozen_modules_train=modes
        )

    return gradient


def _edited(descent: Descent, gradients: Rows, row: Rows, client: Fields, layout: Layout) -> Rows:
    for edit in descent.edits:
        edited = edit(gradients, row, client, layout)
        _check_shapes(edit, gradients, gradients, edited)
        gradients = edited
    return gradients


def _clipped(clip: float | None, gradients: Rows, layout: Layout) -> Rows:
    if clip is None:
        return gradients
    factor = (clip / (layout.dot(gradients, gradients).sum(1).sqrt() + 1e-6)).clamp(max=1)
    return {n: g * per_row(factor, g) for n, g in gradients.items()}


def _state(direction: Direction, carry: State) -> tuple[dict[str, Rows], Tensor | None]:
    """The rows that the optimiser moves in place, and the number of this step, counted for each client."""
    rows = {slot: rows_of(carry, slot) for slot in direction.slots}
    if not direction.counts:
        return rows, None
    carry["updates"] = tensor_of(carry, "updates") + 1
    return rows, tensor_of(carry, "updates")


def _check_shapes(part: Edit | Follower, names: Iterable[str], before: Rows, after: Rows) -> None:
    """What an edit or a follower gives keeps its shape.

    A lost client axis, or rates `[C]` along the wrong axis (see `per_row`), would broadcast without a word.
    """
    for name in names:
        if name not in after or after[name].shape != before[name].shape:
            actual, expected = tuple(after[name].shape) if name in after else "nothing", tuple(before[name].shape)
            raise RecordError(f"{type(part).__name__} returns {actual} for '{name}', which has shape {expected}")


def _factors(descent: Descent, gradients: Rows, row: Rows, client: Fields, layout: Layout) -> dict[str, Tensor]:
    factors: Rows = {}
    for rate in descent.rates:
        for name, factor in rate(gradients, row, client, layout).items():
            factors[name] = factors[name] * factor if name in factors else factor
    return factors


def mean_factors(after: State, trained: Names, task: Task) -> Tensor:
    """`[C, L]`: the mean factor on the rate over all steps; 0 for a layer that is not trained."""
    if "factors" in after:
        return tensor_of(after, "factors") / tensor_of(after, "steps").clamp(min=1)[:, None]
    plain = torch.zeros(len(task.layout.layers), dtype=torch.float64, device=task.ids.device)
    plain[[task.layout.specs[name].layer for name in trained]] = 1.0
    return plain.expand(len(task), -1)


def _by_layer(factors: Rows, trained: Names, row: Rows, layout: Layout) -> Tensor:
    """`[C, L]`: the mean factor of the trained tensors of each layer, for observers; 0 where none is trained."""
    like = next(iter(row.values()))
    sums = [like.new_zeros(len(like)) for _ in layout.layers]
    counts = [0] * len(sums)
    for name in trained:
        layer, factor = layout.specs[name].layer, factors.get(name, like.new_ones(1))
        sums[layer] = sums[layer] + factor.reshape(len(factor), -1).mean(1).expand(len(like))
        counts[layer] += 1
    return torch.stack([total / max(count, 1) for total, count in zip(sums, counts, strict=True)], 1)


def _move(row: Rows, direction: Rows, rate: Tensor, factors: Rows) -> None:
    down = -rate
    for name, d in direction.items():
        pace = per_row(down, d)
        row[name].addcmul_(d, pace if name not in factors else pace * factors[name])
