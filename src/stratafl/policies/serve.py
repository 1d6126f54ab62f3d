"""Serve: what clients download."""

from collections.abc import Mapping

from torch import Tensor

from stratafl.core.footprint import Footprint
from stratafl.core.layers import Select, select
from stratafl.core.layout import Columns
from stratafl.core.parcel import Field
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, Value, apply, rows_of
from stratafl.core.steps import Serve, field_names


@record
class Download(Serve):
    """Layers of a server field, or a tensor."""

    layers: Select = select("all")
    field: str = "theta"
    columns: Columns = "all"
    reads = field_names("{field}")
    writes = field_names("down.{field}")

    def sent(self, rnd: Round, server: State) -> Value:
        """What of the field travels: of these layers, what the server keeps."""
        value = server[self.field]
        if isinstance(value, Tensor):
            return value
        names = rnd.layout.only(rnd.layout.travelling(self.layers), self.columns)
        return {name: value[name] for name in names if name in value}


@record
class Broadcast(Download):
    """The same layers of a server field to every client."""

    def footprint(self, setup: Setup) -> Footprint:
        """Nothing: clients look at the server's own tensors."""
        return Footprint()

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        return {self.field: Field(self.sent(rnd, server), common=True)}


@record
class Deliver(Download):
    """To each client its own row of a server field that keeps a row per client."""

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        return {self.field: Field(apply(lambda x: x[ids.to(x.device)], self.sent(rnd, server)))}


@record
class MeanOfRows(Serve):
    """The mean of all clients' rows, as a model for clients without a row: a `welcome`."""

    rows: str = "rows"
    field: str = "theta"
    reads = field_names("{rows}")
    writes = field_names("down.{field}")

    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        return {self.field: Field({name: x.mean(0) for name, x in rows_of(server, self.rows).items()}, common=True)}
