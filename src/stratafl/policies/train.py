"""Train: minibatch descent of all clients, on some layers of one row.

`LocalTraining` is the record of a descent, `stratafl.policies.descent` performs it. Its fields with a description are
the `[train]` table of a configuration. Methods shape a descent by records:

    edits       change the gradients (a pull towards an anchor, a control variate)
    rates       factors on the learning rate, layer by layer or column by column
    gradient    takes the gradient somewhere else than at the row (a mixture of models, a look-ahead)
    follow      moves other fields along with the row, once per batch (a moving anchor, mixing weights)
    project     brings the row back to where it is allowed to be
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Annotated, Any, Literal, TypeVar

import torch
from torch import Tensor

from stratafl.core.annotations import Range, Tune
from stratafl.core.fields import FieldSpec, Filled, Number
from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.layout import Layout, Rows
from stratafl.core.objectives import CLASS_WEIGHT, Balance, ClassWeighted, Objective, balanced_weights
from stratafl.core.records import Written, record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.core.steps import Batching, Names, Train, field_names
from stratafl.core.task import Task
from stratafl.errors import RecordError, counted, shown
from stratafl.policies.class_weights import (
    LEAST_WEIGHT,
    PLAIN,
    POOLED,
    in_order_of_classes,
    text_of_weights,
    weights_by_name,
)
from stratafl.policies.descent import (
    RESERVED_FIELDS,
    Descent,
    Edit,
    Fields,
    Follower,
    GradientRule,
    Passes,
    Projection,
    Rate,
    descend,
    mean_factors,
)
from stratafl.policies.optimizers import Direction, Optimizer
from stratafl.policies.schedules import Constant, Schedule, parse_schedule, schedule_text

T = TypeVar("T")
MOMENTUM_ROWS = 4  # memory of a client for each row of its optimiser's state, in rows (measured)
MAX_COUNT = 10**9  # of epochs or samples


@record
class Pull:
    """Add strength·(θ − anchor): the gradient of (strength/2)·‖θ − anchor‖²."""

    strength: float
    anchor: str = "anchor"
    reads = field_names("{anchor}")

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


Some = Written("epochs", Annotated[int, Range(least=1, most=MAX_COUNT)], int, int)  # 0 is for steps of methods only
Scheduled = Written("schedule", str, parse_schedule, schedule_text)
Share = Annotated[float, Range(least=0, below=1)]
Weight = Annotated[float, Range(above=0, most=1e6)]


@record
class LocalTraining(Train):
    """Minibatch descent on some layers of one row, the others frozen.

    `purpose` keys its shuffles: two descents of one round need two purposes. What a descent counts are the fields
    `steps`, `loss` and `rate`; for another purpose than `train`, such as `head`, `head/steps` and so on. Layers that
    are not trained run in evaluation mode unless `frozen_modules_train`. `steps` counts steps instead of epochs,
    `epochs_from` names a field with the number of epochs of each client, `share` is the part of its batches that an
    epoch takes, and `repeats` how often each batch is used in a row.
    """

    lr: Annotated[float, Range(least=0, most=1e30), Tune(1e-3, 1.0, log=True), "learning rate"] = 0.05
    epochs: Annotated[int, Range(least=0, most=MAX_COUNT), Some, "local epochs per round"] = 1
    batch: Annotated[int, Range(least=1, most=MAX_COUNT), "samples per batch"] = 10
    optimizer: Annotated[Optimizer, "how a gradient becomes a step"] = "sgd"
    momentum: Annotated[Share, "momentum of SGD"] = 0.0
    nesterov: Annotated[bool, "use Nesterov momentum"] = False
    beta1: Annotated[Share, "decay of the mean of gradients, for Adam"] = 0.9
    beta2: Annotated[Share, "decay of the mean of squared gradients, for Adam"] = 0.999
    epsilon: Annotated[float, Range(above=0, most=1), "added to Adam's denominator"] = 1e-8
    optimizer_state: Annotated[
        Literal["dropped", "kept"], "whether clients drop momentum and moments after each round or keep them"
    ] = "dropped"
    weight_decay: Annotated[float, Range(least=0, most=1e6), "weight decay"] = 0.0
    clip: Annotated[float | None, Range(above=0, most=1e12), "maximum norm of a gradient"] = None
    decay: Annotated[float, Range(above=0, most=1), "the learning rate is multiplied by this after each round"] = 1.0
    schedule: Annotated[
        Schedule,
        Scheduled,
        "the learning rate over the rounds: constant, cosine, cosine:0.1, step:30:0.1, warmup:5+cosine",
    ] = Constant()
    class_weight: Annotated[
        Balance | tuple[Weight, ...] | Mapping[str, Weight] | str,
        "by how much a sample counts in the loss: `balanced` by each client's own classes, n / (K·n_c), so that all",
        "its classes count alike; `pooled` by those of all clients together, which a deployment does not know; or a",
        "weight for each class, as `ill:3,well:1`, a table by name or a list",
    ] = "none"
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
    drop_last: Annotated[bool, "drop the last batch if it is not full"] = False
    shuffle: bool = True
    frozen_modules_train: bool = False
    purpose: str = "train"

    def __post_init__(self) -> None:
        if isinstance(self.class_weight, Mapping):
            object.__setattr__(self, "class_weight", text_of_weights(self.class_weight))
        if isinstance(self.class_weight, str) and self.class_weight not in (*PLAIN, POOLED):
            weights_by_name(self.class_weight)
        if self.optimizer != "sgd" and (self.momentum or self.nesterov):
            raise RecordError(
                f"momentum has no effect with optimizer '{self.optimizer}', which has its own: leave it out"
            )
        if self.nesterov and not self.momentum:
            raise RecordError("nesterov needs a momentum above 0, such as momentum=0.9")
        for name in (*self.descent.followed, *self._carried):
            if name in (*RESERVED_FIELDS, self.row):
                raise RecordError(f"'{name}' is a reserved name of descents: rename the field that moves along")

    @property
    def descent(self) -> Descent:
        """What a step does with a batch."""
        shaped = (self.edits, self.rates, self.gradient, self.follow, self.project, self.repeats)
        return Descent(self.direction, self.clip, *shaped, self.frozen_modules_train)

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
        return (self.row, *asked, *self.descent.reads, *self.keeps, *count)

    @property
    def writes(self) -> Names:
        return (self.row, *self.counts, *self._carried, *self.keeps, *self.descent.followed)

    @property
    def _carried(self) -> Names:
        return () if self.objective is None else self.objective.carries

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
        """The optimiser's state, and copies of gradients that are edited, clipped or decayed."""
        row = setup.row_bytes(setup.layout.trainable(self.layers))
        edited = bool(self.edits) + (self.clip is not None) + bool(self.weight_decay)
        elsewhere = 2 * (self.gradient is not None) + 2 * len(self.follow)
        return Footprint(client=(MOMENTUM_ROWS * len(self.direction.slots) + edited + elsewhere) * row)

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        """The row after descent; as it was, if no layer is to be trained."""
        trained = rnd.layout.trainable(self.layers)
        if not trained or (self.epochs == 0 and self.steps is None and self.epochs_from is None):
            none = torch.zeros_like(task.ids)
            return self._counted(none, none.double(), 0.0, client)
        rate = self.lr * self.decay ** rnd.schedule[0] * self.schedule(*rnd.schedule)
        after = self.descend(task, trained, rate, rows_of(client, self.row), client)
        steps, loss = tensor_of(after, "steps"), tensor_of(after, "loss")
        task.note(f"{self.purpose}/loss", loss / steps.clamp(min=1))
        task.note(f"{self.purpose}/steps", steps)
        if task.watched:
            task.note(f"{self.purpose}/rates", rate * mean_factors(after, trained, task))
        moved = {name: after[name] for name in (*self._carried, *self.descent.followed)}
        optimizer_state = {name: after[name.removeprefix(self._slot(""))] for name in self.keeps}
        return {self.row: after["row"], **self._counted(steps, loss, rate, client), **moved, **optimizer_state}

    def pace(self, t: int, rounds: int) -> tuple[float, float]:
        """The factors on the learning rate that round t of so many has (`stratafl.core.pace`)."""
        return self.decay**t, self.schedule(t, rounds)

    def descend(self, task: Task, trained: Names, rate: float, row: Rows, client: State) -> State:
        """What `stratafl.policies.descent:descend` gives for these tensors, at this rate."""
        epochs = self.epochs if self.epochs_from is None else tensor_of(client, self.epochs_from).long().tolist()
        passes = Passes(self.batch, epochs, self.steps, self.share, self.drop_last, self.shuffle, self.purpose)
        before = {name.removeprefix(self._slot("")): client[name] for name in self.keeps}
        objective, read = self.objective, client
        if self.class_weight != "none":
            objective = ClassWeighted(self.objective or task.objective())
            read = {**client, CLASS_WEIGHT: self._class_weights(task).to(next(iter(row.values())))}
        return descend(task, self.descent, passes, trained, rate, row, read, objective, before)

    def _class_weights(self, task: Task) -> Tensor:
        """`[C, classes]`."""
        counts = task.class_counts()
        if isinstance(self.class_weight, str):
            return balanced_weights(counts)
        assert isinstance(self.class_weight, tuple)
        return torch.tensor(self.class_weight, dtype=torch.float64).expand(counts.shape)

    def check(self, setup: Setup) -> None:
        """Refuse weights of classes that do not fit the data."""
        if self.class_weight == "none":
            return
        if setup.classes is None:
            raise RecordError("class_weight needs classes, but the targets of this data are numbers: leave it out")
        if isinstance(self.class_weight, str) and self.class_weight not in PLAIN:
            wrong = f"class_weight = '{shown(self.class_weight)}' needs the names and counts of classes"
            raise RecordError(f"{wrong}: give it to fit(), as class_weight, or to a run, as train.class_weight")
        if not isinstance(self.class_weight, str) and len(self.class_weight) != setup.classes:
            wrong = f"class_weight has {counted(len(self.class_weight), 'weight')}"
            raise RecordError(f"{wrong} for {counted(setup.classes, 'class', 'classes')}: give one for each class")

    def _counted(self, steps: Tensor, loss: Tensor, rate: float, client: State) -> State:
        like = next(iter(rows_of(client, self.row).values()), loss)  # of a row without layers, as the loss
        return dict(zip(self.counts, (steps, loss, like.new_full((len(steps),), rate)), strict=True))


def tuning(train: LocalTraining, epochs: int, layers: Select = select("all"), purpose: str = "tune") -> LocalTraining:
    """A descent before use, like training but for its epochs: at the full rate, and nothing is kept of it."""
    full = replace(train, schedule=Constant(), decay=1.0, optimizer_state="dropped")
    return replace(full, epochs=epochs, steps=None, layers=layers, purpose=purpose)


def with_training(value: T, **settings: Any) -> T:
    """A record with these settings in each `LocalTraining` that is part of it."""
    return _each_training(value, lambda training: replace(training, **settings))


def with_class_weights(algorithm: T, classes: Sequence[str] | None, counts: Tensor | None) -> T:
    """The algorithm with numbers wherever weights of classes are `pooled` or by name.

    `classes` are names, None if targets are numbers; `counts` are those of all clients' training samples, `[classes]`,
    None where no member knows them.
    """

    def numbered(training: LocalTraining) -> LocalTraining:
        text = training.class_weight
        if not isinstance(text, str) or text in PLAIN or classes is None:  # `check` refuses numbers as targets
            return training
        if text != POOLED:
            return replace(training, class_weight=in_order_of_classes(weights_by_name(text), classes))
        if counts is None:
            raise RecordError(
                "train.class_weight = 'pooled' needs the class counts of all sites, which a deployment does not send: "
                "use 'balanced', or a weight for each class"
            )
        weights = balanced_weights(counts).clamp(min=LEAST_WEIGHT).tolist()
        return replace(training, class_weight=tuple(weights))

    return _each_training(algorithm, numbered)


def _each_training(value: T, change: Callable[[LocalTraining], LocalTraining]) -> T:
    if isinstance(value, LocalTraining):
        return change(value)  # type: ignore[return-value]
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple(_each_training(part, change) for part in value)  # type: ignore[return-value]
    if not is_dataclass(value) or isinstance(value, type):
        return value
    parts = {each.name: getattr(value, each.name) for each in fields(value) if each.init}
    changed = {name: _each_training(part, change) for name, part in parts.items()}
    return replace(value, **{name: part for name, part in changed.items() if part is not parts[name]})


@record
class Copy(Train):
    """One field of the client becomes what another one is."""

    source: str
    into: str
    reads = field_names("{source}")
    writes = field_names("{into}")

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        return {self.into: client[self.source]}


@record
class Accuracy(Train):
    """A_k: the accuracy of the client's model on its own split; kept for its next round."""

    split: str = "train"
    row: str = "theta"
    writes = ("accuracy",)
    scores = True
    reads = field_names("{row}")

    @property
    def splits(self) -> Names:
        return (self.split,)

    def check(self, setup: Setup) -> None:
        """Refuse numbers as targets: nothing would ever be correct."""
        if setup.classes is None:
            raise RecordError("an accuracy needs classes, but the targets of this data are numbers")

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        """A number from 0 to 1 per client."""
        row = rows_of(client, self.row)
        return {"accuracy": task.scores(row, self.split).accuracy.to(next(iter(row.values())).dtype)}
