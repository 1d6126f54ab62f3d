"""Prototypes, the mean features of each class: how clients compute them and how the server averages them."""

from collections.abc import Mapping

import torch
from torch import Tensor

from stratafl.core.fields import FieldSpec, Number
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, rows_of, tensor_of
from stratafl.core.steps import Names, Step, Train, field_names
from stratafl.core.task import Task
from stratafl.errors import RecordError
from stratafl.policies import Mean


class NeedsClasses(Step):
    """A step that refuses data whose targets are numbers."""

    def check(self, setup: Setup) -> None:
        if setup.classes is None:
            say = "this method needs classes, but the targets of this data are numbers: choose another method"
            raise RecordError(say)


class FromFeatures(NeedsClasses, Train):
    """A step that looks at what the head is given, on the training split and in evaluation mode."""

    scores = True  # it takes memory as evaluation does


@record
class ClassMeans(FromFeatures):
    """c_k[y]: the mean features of each class (0 for one that the client does not have), and its class counts."""

    reads = ("theta",)
    writes = ("prototypes", "class_counts")

    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        counts = task.class_counts("train")
        z, y, weight = task.features(rows_of(client, "theta"), "train")
        means = class_sums(z, y, weight, counts.shape[1]) / counts.clamp(min=1)[:, :, None]
        return {"prototypes": means.to(z.dtype), "class_counts": counts}


def class_sums(z: Tensor, y: Tensor, weight: Tensor, classes: int) -> Tensor:
    """`[C, classes, d]` in float64: the features of all samples of each class, summed."""
    member = (y[:, None] == torch.arange(classes, device=y.device)[:, None]) * weight[:, None]
    return member @ z.double().flatten(2)


@record
class Prototypes(Mean):
    """The mean of the clients' prototypes by class counts; `known` is 1 once a client had the class."""

    field: str = "prototypes"
    weights: str = "class_counts"

    @property
    def keeps(self) -> Mapping[str, FieldSpec]:
        return {self.field: Number(width=("classes", "features")), "known": Number(width="classes")}

    @property
    def reads(self) -> Names:
        return (*super().reads, "known")

    writes = field_names("{field}", "known")

    def finish(self, rnd: Round, server: State, sums: State) -> State:
        seen = tensor_of(server, "known")
        (counts,) = rows_of(sums, "bottom").values()  # [classes, d], the same for all features
        return {**super().finish(rnd, server, sums), "known": seen.maximum((counts[:, 0] > 0).to(seen.dtype))}
