"""Followers: fields that move along with the row of a descent, once per batch."""

from torch import Tensor

from stratafl.core.layout import Layout, Rows
from stratafl.core.records import record
from stratafl.core.state import State, tensor_of
from stratafl.core.steps import Names
from stratafl.policies.descent import Fields


@record
class Downhill:
    """x ← x − lr·slope, where the gradient rule leaves the slope: a tensor that is learned beside the row."""

    field: str
    slope: str
    lr: float

    @property
    def reads(self) -> Names:
        return (self.field, self.slope)

    @property
    def writes(self) -> Names:
        return (self.field,)

    def __call__(self, row: Rows, client: Fields, layout: Layout, rate: Tensor) -> State:
        return {self.field: tensor_of(client, self.field) - self.lr * tensor_of(client, self.slope)}
