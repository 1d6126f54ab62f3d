"""Send: what clients upload."""

from collections.abc import Mapping

from stratafl.core.layers import Select, select
from stratafl.core.parcel import Field
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of
from stratafl.core.steps import Names, Send
from stratafl.core.task import Task


@record
class Upload(Send):
    """Layers of the client's row, and its number of training samples n_k, which is sent only if a merge reads it."""

    layers: Select = select("all")
    field: str = "theta"

    @property
    def reads(self) -> Names:
        return (self.field,)

    @property
    def writes(self) -> Names:
        return (f"up.{self.field}", "up.samples")

    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        row = rows_of(client, self.field)
        layers = {name: row[name] for name in rnd.layout.travelling(self.layers)}
        return {self.field: Field(layers), "samples": Field(task.sizes("train"))}
