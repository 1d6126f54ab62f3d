"""Train: phases of local descent."""

import torch
from torch import Tensor

from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.objectives import Objective
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.core.steps import Batching, Train
from stratafl.core.task import Task
from stratafl.errors import RecordError
from stratafl.policies.schedules import Constant, Schedule
from stratafl.runtime.descent import Descent, Edit, Rate, descend

MOMENTUM = 4  # rows more of a client whose velocity of one step becomes that of the next; measured


@record
class SGD(Train):
    """Minibatch SGD on some layers of one row, the others frozen.

    `purpose` keys its shuffles: two descents of one round need two purposes. What a descent counts are the fields
    `steps`, `loss` and `rate`; for another purpose than `train`, such as `head`, `head/steps` and so on. Layers that
    are not trained run in evaluation mode unless `frozen_modules_train`. `steps` counts steps instead of epochs.
    """

    lr: float = 0.05
    epochs: int = 1
    batch: int = 10
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    schedule: Schedule = Constant()
    layers: Select = select("all")
    row: str = "theta"
    objective: Objective | None = None
    edits: tuple[Edit, ...] = ()
    rates: tuple[Rate, ...] = ()
    steps: int | None = None
    drop_last: bool = False
    shuffle: bool = True
    frozen_modules_train: bool = False
    purpose: str = "train"

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", select(self.layers))
        for name in ("edits", "rates"):
            value = getattr(self, name)
            object.__setattr__(self, name, tuple(value) if isinstance(value, tuple | list) else (value,))
        for name in ("lr", "momentum", "weight_decay"):
            _check(name, getattr(self, name), float, 0)
        for name, least in (("epochs", 0), ("batch", 1), ("steps", 1)):
            _check(name, getattr(self, name), int, least)
        if self.clip is not None and not self.clip > 0:
            raise RecordError(f"SGD: clip must be above 0, not {self.clip}")

    @property
    def reads(self) -> tuple[str, ...]:
        o = self.objective
        asked = () if o is None else (*o.frozen, *o.constants, *o.carries)
        return (self.row, *asked, *(name for edit in (*self.edits, *self.rates) for name in edit.reads))

    @property
    def writes(self) -> tuple[str, ...]:
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
        descent = Descent(
            objective=self.objective or task.objective(),
            trained=trained,
            lr=rate,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            clip=self.clip,
            edits=self.edits,
            rates=self.rates,
            frozen_modules_train=self.frozen_modules_train,
        )
        after = descend(
            task,
            descent,
            rows_of(client, self.row),
            client,
            batch=self.batch,
            epochs=self.epochs,
            steps=self.steps,
            drop_last=self.drop_last,
            shuffle=self.shuffle,
            purpose=self.purpose,
        )
        task.note(f"{self.purpose}/loss", tensor_of(after, "loss") / tensor_of(after, "steps").clamp(min=1))
        task.note(f"{self.purpose}/steps", tensor_of(after, "steps"))
        if task.watched:
            task.note(f"{self.purpose}/rates", rate * _mean_factors(after, trained, task))
        carried = {name: after[name] for name in descent.objective.carries}
        counted = self._counted(tensor_of(after, "steps"), tensor_of(after, "loss"), rate, client)
        return {self.row: after["row"], **counted, **carried}

    def _counted(self, steps: Tensor, loss: Tensor, rate: float, client: State) -> State:
        like = next(iter(rows_of(client, self.row).values()))
        return dict(zip(self.counts, (steps, loss, like.new_full((len(steps),), rate)), strict=True))


def _mean_factors(after: State, trained: tuple[str, ...], task: Task) -> Tensor:
    """`[C, L]`: the mean factor on the rate over all steps; 0 for a layer that is not trained."""
    if "factors" in after:
        return tensor_of(after, "factors") / tensor_of(after, "steps").clamp(min=1)[:, None]
    plain = torch.zeros(len(task.layout.layers), dtype=torch.float64, device=task.ids.device)
    plain[[task.layout.specs[name].layer for name in trained]] = 1.0
    return plain.expand(len(task), -1)


def _check(name: str, value: object, kind: type, least: int) -> None:
    if value is None and name == "steps":
        return
    numbers = (int, float) if kind is float else (int,)
    if not isinstance(value, numbers) or isinstance(value, bool):
        raise RecordError(f"SGD: {name} is {'a number' if kind is float else 'a whole number'}, not {value!r}")
    if not value >= least:
        raise RecordError(f"SGD: {name} must be at least {least}, not {value}")
