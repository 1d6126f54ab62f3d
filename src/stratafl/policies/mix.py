"""Mix: where training starts, from the download and the client's own state."""

from collections.abc import Mapping

import torch
from torch import Tensor

from stratafl.core.fields import FieldSpec, Number
from stratafl.core.footprint import Footprint
from stratafl.core.layout import Rows, per_row
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import record
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, apply, expand, rows_of, tensor_of
from stratafl.core.steps import Batching, Mix, Names, Step, Train, field_names
from stratafl.core.task import Task
from stratafl.errors import RecordError


@record
class Take(Mix):
    """What was sent replaces what the client has; the rest of a row is the client's own."""

    field: str = "theta"
    into: str | None = None  # None: the field of the same name
    reads = field_names("down.{field}")

    @property
    def writes(self) -> Names:
        return (self.into or self.field,)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        (into,), field = self.writes, down[self.field]
        if isinstance(field.value, Tensor):
            return {into: field.value.expand(len(task), *field.value.shape) if field.common else field.value}
        client_rows = rows_of(client, into) if into in client else {}
        row = {**client_rows, **received(field, client_rows, rnd, len(task))}
        return {into: {name: row[name] for name in rnd.layout.specs if name in row}}


def received(field: Field, client_rows: Rows, rnd: Round, count: int) -> Rows:
    """The blocks of a field with a row per client; where a mask says that nothing was sent, the client's own."""
    rows = expand(field.rows, count) if field.common else field.rows
    sent = field.sent(rnd.layout)
    if sent is None:
        return rows
    layers, specs = rnd.layout.layers, rnd.layout.specs
    missing = dict.fromkeys(layers[specs[name].layer].name for name in rows if name not in client_rows)
    if missing:
        named = ", ".join(map(repr, missing))
        raise RecordError(f"mix: Take lacks a part of {named}: neither the download nor the client's state has it")
    return {name: torch.where(sent[name], block, client_rows[name]) for name, block in rows.items()}


@record
class Adopt(Mix):
    """The first time a client is met, its own fields start from what it received; what it did not receive stays.

    Without it the model of a client that joins late would start from the initial weights, although the server has a
    trained one. `met` in the client's state is 1 once it took part.
    """

    fields: tuple[str, ...]
    source: str = "theta"

    @property
    def keeps(self) -> Mapping[str, FieldSpec]:
        return {"met": Number(0.0)}

    @property
    def reads(self) -> Names:
        return (self.source, "met", *self.fields)

    @property
    def writes(self) -> Names:
        return ("met", *self.fields)

    def footprint(self, setup: Setup) -> Footprint:
        """What a client keeps and what it received, put together."""
        return Footprint(client=len(self.fields) * setup.row_bytes())

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        met, source = tensor_of(client, "met"), rows_of(client, self.source)
        new = met == 0
        adopted: State = {
            field: {n: _adopted(new, source.get(n), x) for n, x in rows_of(client, field).items()}
            for field in self.fields
        }
        return {"met": torch.ones_like(met), **adopted}


def _adopted(new: Tensor, source: Tensor | None, client_block: Tensor) -> Tensor:
    return client_block if source is None else torch.where(per_row(new, client_block), source, client_block)


@record
class Remember(Mix):
    """Keep what was mixed under another name for the rest of the round, as an anchor."""

    field: str = "theta"
    name: str = "anchor"
    reads = field_names("{field}")
    writes = field_names("{name}")

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        return {self.name: client[self.field]}


@record
class Fresh(Mix):
    """A field that starts again in every round."""

    field: str
    spec: FieldSpec
    writes = field_names("{field}")

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        value = self.spec.create(rnd.setup, task.ids, "client")
        return {self.field: apply(lambda x: x.to(task.ids.device), value)}


class Wrapping(Step):
    """A step around another one, of which it declares the same."""

    step: Step

    @property
    def reads(self) -> Names:
        return self.step.reads

    @property
    def writes(self) -> Names:
        return self.step.writes

    @property
    def keeps(self) -> Mapping[str, FieldSpec]:
        return self.step.keeps

    @property
    def splits(self) -> Names:
        return self.step.splits

    @property
    def batching(self) -> Batching | None:
        return self.step.batching

    @property
    def scores(self) -> bool:
        return self.step.scores

    def check(self, setup: Setup) -> None:
        self.step.check(setup)

    def footprint(self, setup: Setup) -> Footprint:
        return self.step.footprint(setup)


@record
class Prepare(Wrapping, Mix):
    """A step of training that is part of mixing: clients are evaluated with what it gives."""

    step: Train

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        return self.step(rnd, client, task)
