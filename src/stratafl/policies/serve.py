"""Serve: what clients download."""

from collections.abc import Mapping

from torch import Tensor

from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.parcel import Field
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, Value
from stratafl.core.steps import Names, Serve


@record
class Download(Serve):
    """Layers of a server field."""

    layers: Select = select("all")
    field: str = "theta"

    @property
    def reads(self) -> Names:
        return (self.field,)

    @property
    def writes(self) -> Names:
        return (f"down.{self.field}",)


@record
class Broadcast(Download):
    """The same layers of a server field to every client."""

    def footprint(self, setup: Setup) -> Footprint:
        """Nothing: clients look at the server's own tensors."""
        return Footprint()

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        return {self.field: Field(_layers(server[self.field], rnd, self.layers), common=True)}


@record
class Deliver(Download):
    """To each client its own row of a server field that keeps a row per client."""

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        rows = _layers(server[self.field], rnd, self.layers)
        return {self.field: Field(rows[ids] if isinstance(rows, Tensor) else {n: x[ids] for n, x in rows.items()})}


def _layers(value: Value, rnd: Round, layers: Select) -> Value:
    return value if isinstance(value, Tensor) else {name: value[name] for name in rnd.layout.travelling(layers)}
