"""Send: what clients upload."""

from collections.abc import Mapping

from torch import Tensor

from stratafl.core.layers import Select, select
from stratafl.core.layout import Columns
from stratafl.core.parcel import Field
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State
from stratafl.core.steps import Send, field_names
from stratafl.core.task import Task


@record
class Upload(Send):
    """Layers of a client's field, or a tensor, and its number of training samples n_k if a merge reads it."""

    layers: Select = select("all")
    field: str = "theta"
    columns: Columns = "all"
    reads = field_names("{field}")
    writes = field_names("up.{field}", "up.samples")

    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        value = client[self.field]
        if not isinstance(value, Tensor):
            names = rnd.layout.only(rnd.layout.travelling(self.layers), self.columns)
            value = {name: value[name] for name in names if name in value}
        return {self.field: Field(value), "samples": Field(task.sizes("train"))}
