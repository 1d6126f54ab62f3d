"""Steps: what fills the slots of a method, and what a step declares about itself.

A round happens in the order serve · mix · train · send · merge; a class here says how a step of each slot is called.
A step is a record that derives from one of them. It declares the fields that it reads and writes (`down.x` and `up.x`
are fields of parcels) and, where the default is not true, what else it needs or offers:

    reads = ("theta", "down.theta")
    writes = field_names("up.{field}")      # where `field` is the step's own
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from stratafl.core.fields import FieldSpec
from stratafl.core.footprint import Footprint
from stratafl.core.form import Bound
from stratafl.core.parcel import Field, Parcel
from stratafl.core.reprs import short_repr
from stratafl.core.round import Round, Setup
from stratafl.core.state import State
from stratafl.core.task import Task

Names = tuple[str, ...]
NO_BOUNDS: Mapping[str, Bound] = MappingProxyType({})


class _FieldNames:
    """The names, filled in from the record that is asked for them; a class has only the templates."""

    def __init__(self, templates: Names) -> None:
        self._templates = templates

    def __get__(self, record: object, cls: type[Any]) -> Names:
        names = (each if record is None else each.format_map(vars(record)) for each in self._templates)
        return tuple(names)


def field_names(*templates: str) -> Names:
    """Names of fields in which a record's own attributes stand in braces, such as `up.{field}`."""
    return cast(Names, _FieldNames(templates))


@dataclass(frozen=True)
class Batching:
    """The batches that a step trains on."""

    size: int
    drop_last: bool = False


class Step:
    """A step of any slot."""

    divides_by_clients = False  # whether it divides by the number of all clients, so that none can join later
    noisy_client = False  # whether it adds noise at a client, which needs a secret of a deployed site
    repeats_absent_classes = False  # whether a client sends what it was sent of a class of which it has no sample

    @property
    def reads(self) -> Names:
        """The fields it needs."""
        return ()

    @property
    def writes(self) -> Names:
        """The fields it gives."""
        return ()

    @property
    def keeps(self) -> Mapping[str, FieldSpec]:
        """The fields that its side keeps for it from round to round, in addition to those that the method declares."""
        return {}

    @property
    def counts(self) -> Names:
        """The fields among them that are counted during training; two steps must not count under one name."""
        return ()

    @property
    def splits(self) -> Names:
        """The splits that it reads, in addition to the one it trains on."""
        return ()

    @property
    def batching(self) -> Batching | None:
        """The batches it trains on, if it does."""
        return None

    @property
    def scores(self) -> bool:
        """Whether it evaluates models, which takes memory as evaluation does."""
        return False

    def check(self, setup: Setup) -> None:
        """Raise if it does not fit the model or the federation; selections of layers are checked without it."""
        return

    def footprint(self, setup: Setup) -> Footprint:
        """Its memory, in addition to states and training."""
        return Footprint()

    def tell(self, rnd: Round, server: State) -> dict[str, Tensor]:
        """What layer diagnostics show of it, each `[L, …]`."""
        return {}

    def communication(self, rnd: Round, server: State) -> dict[str, float]:
        """What it sends that is neither download nor upload, such as `bytes.between` servers."""
        return {}


class Serve(Step, ABC):
    """Server → download."""

    @property
    def masked(self) -> bool:
        """Whether it may leave out layers or columns of what it serves."""
        return False

    def footprint(self, setup: Setup) -> Footprint:
        """A row for each client, unless it says otherwise."""
        return Footprint(client=setup.row_bytes())

    @abstractmethod
    def __call__(self, rnd: Round, server: State, ids: Tensor) -> Mapping[str, Field]:
        """The fields for these clients."""


class Mix(Step, ABC):
    """Download and client state → where training starts."""

    @abstractmethod
    def __call__(self, rnd: Round, client: State, down: Parcel, task: Task) -> State:
        """The fields that change."""


class Train(Step, ABC):
    """A phase of local training."""

    @abstractmethod
    def __call__(self, rnd: Round, client: State, task: Task) -> State:
        """The fields that change."""


class Send(Step, ABC):
    """Client state → upload."""

    @property
    def masked(self) -> bool:
        """Whether it sends a part of its fields, which a mask names."""
        return False

    @abstractmethod
    def __call__(self, rnd: Round, client: State, task: Task) -> Mapping[str, Field]:
        """The fields to send."""


@short_repr
class Unpacked(NamedTuple):
    """A field as merges read it; of whom it could not be read it is NaN, and why: `[C]` booleans by reason."""

    field: Field
    wrong: Mapping[str, Tensor]


class Pack(Step, ABC):
    """A field of the upload → the fields that travel instead, and back; it sees the client's fields that it reads."""

    field: str

    @property
    def bounds(self) -> Mapping[str, Bound]:
        """What values of the fields that travel must be, by field; of all others, finite."""
        return NO_BOUNDS

    @property
    def served(self) -> Names:
        """The fields of the download that the server needs again to unpack."""
        return ()

    @property
    @abstractmethod
    def parts(self) -> Names:
        """The fields that travel, in addition to the rest of the field itself."""

    @abstractmethod
    def pack(self, rnd: Round, client: State, field: Field, task: Task) -> tuple[Mapping[str, Field], State]:
        """The fields that travel, and the fields of the client that change."""

    @abstractmethod
    def unpack(self, rnd: Round, server: State, up: Parcel, down: Parcel, ids: Tensor) -> Unpacked:
        """The field of these clients; `up` has the expected form, and its values may be anything."""


class Merge(Step, ABC):
    """Uploads → server, in one of two ways."""

    compares = False  # whether it compares the updates of clients column by column, which needs all columns of each
    noisy = False  # whether it adds noise in every round, also in one of which every upload was left out
    secure = False  # whether it is safe in secure sums alone
    promise = ""  # against whom what it says to have spent protects

    @property
    def bounds(self) -> Mapping[str, Bound]:
        """What values of uploads must be, such as `{"up.steps": "positive"}`; of all others, finite."""
        return NO_BOUNDS

    @property
    def stores(self) -> Mapping[str, str]:
        """The fields of uploads of which the server keeps every client's latest, and in which of its fields."""
        return {}

    def spent(self, rnd: Round) -> dict[str, float]:
        """What the rounds before this one cost in privacy, by the name in a journal."""
        return {}

    def secure_unit(self, rnd: Round) -> float | None:
        """The unit of its whole numbers in secure sums, if each client adds noise to them."""
        return None

    def secure_noise(self, rnd: Round, client: int, numbers: Tensor) -> Tensor:
        """The noise that a client adds to its whole numbers: int64 of their size."""
        return torch.zeros_like(numbers)


class MergeSums(Merge):
    """Uploads → server, through sums that add up chunk by chunk and rank by rank."""

    def footprint(self, setup: Setup) -> Footprint:
        """Rows and weights in float64, unless it says otherwise."""
        return Footprint(sums=2 * setup.row_bytes(dtype=torch.float64))

    @abstractmethod
    def fold(self, rnd: Round, server: State, sums: State, up: Parcel, ids: Tensor) -> State:
        """The sums with the uploads of these clients in them; `{}` is nothing yet."""

    @abstractmethod
    def finish(self, rnd: Round, server: State, sums: State) -> State:
        """The server's fields that change."""


class MergeRows(Merge):
    """Uploads → server, where all uploads are needed side by side."""

    def footprint(self, setup: Setup) -> Footprint:
        """As much again as the uploads to compute with them, unless it says otherwise."""
        return Footprint(absorbed=setup.row_bytes())

    @abstractmethod
    def absorb(self, rnd: Round, server: State, up: Parcel, ids: Tensor) -> State:
        """The server's fields that change, from the uploads of these clients."""
