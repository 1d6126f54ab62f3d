"""Send: what clients upload."""

from collections.abc import Mapping

from stratafl.core.parcel import Field
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State, rows_of
from stratafl.core.steps import Send
from stratafl.core.task import Task
from stratafl.policies.travelling import Travelling


@record
class Upload(Travelling, Send):
    """Layers of the client's row, and its number of training samples n_k, which is sent only if a merge reads it."""

    @property
    def writes(self) -> tuple[str, ...]:
        return (f"up.{self.field}", "up.samples")

    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        row = rows_of(client, self.field)
        layers = {name: row[name] for name in rnd.layout.travelling(self.layers)}
        return {self.field: Field(layers), "samples": Field(task.sizes("train"))}
