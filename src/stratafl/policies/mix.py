"""Mix: where training starts, from the download and the client's own state."""

import torch
from torch import Tensor

from stratafl.core.layout import Rows
from stratafl.core.parcel import Field, Parcel
from stratafl.core.records import record
from stratafl.core.round import Round
from stratafl.core.state import State, expand, rows_of
from stratafl.core.steps import Mix, Names
from stratafl.core.task import Task
from stratafl.errors import RecordError


@record
class Take(Mix):
    """What was sent replaces what the client has; the rest of the row is the client's own."""

    field: str = "theta"
    into: str = "theta"

    @property
    def reads(self) -> Names:
        return (f"down.{self.field}",)

    @property
    def writes(self) -> Names:
        return (self.into,)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        own = rows_of(client, self.into) if self.into in client else {}
        row = {**own, **received(down[self.field], own, rnd, len(task))}
        _refuse([name for name in rnd.layout.specs if name not in row], rnd)
        return {self.into: {name: row[name] for name in rnd.layout.specs}}


def received(field: Field, own: Rows, rnd: Round, count: int) -> Rows:
    """The blocks of a field with a row per client; where a mask says that nothing was sent, the client's own."""
    rows = expand(field.rows, count) if field.common else field.rows
    sent = field.sent(rnd.layout)
    if sent is None:
        return rows
    _refuse([name for name in rows if name not in own], rnd)
    return {name: torch.where(sent[name], block, own[name]) for name, block in rows.items()}


def _refuse(missing: list[str], rnd: Round) -> None:
    if missing:
        layers = dict.fromkeys(rnd.layout.layers[rnd.layout.specs[name].layer].name for name in missing)
        named = ", ".join(map(repr, layers))
        raise RecordError(f"mix: Take finds nobody who has all of {named}: neither the download nor the client's state")


@record
class Remember(Mix):
    """Keep what was mixed under another name for the rest of the round, as an anchor."""

    field: str = "theta"
    name: str = "anchor"

    @property
    def reads(self) -> Names:
        return (self.field,)

    @property
    def writes(self) -> Names:
        return (self.name,)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        return {self.name: client[self.field]}


@record
class TakeNumber(Mix):
    """A tensor of the download, one row per client."""

    field: str

    @property
    def reads(self) -> Names:
        return (f"down.{self.field}",)

    @property
    def writes(self) -> Names:
        return (self.field,)

    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        field = down[self.field]
        value: Tensor = field.tensor.expand(len(task), *field.tensor.shape) if field.common else field.tensor
        return {self.field: value}
