"""The narrow waist: everything that an executor knows about an algorithm.

Pure functions over explicit state. The server never sees a client's state, clients never see the server's, only parcels
cross. Client-side functions always have a leading client axis C: the simulator calls them with a whole cohort, a
deployed client calls the very same functions with C = 1.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stratafl.core.footprint import Footprint
from stratafl.core.form import Bound, Form, form_of
from stratafl.core.layout import Rows
from stratafl.core.parcel import Parcel
from stratafl.core.rehearsal import Rehearsal
from stratafl.core.reprs import holder, short_repr
from stratafl.core.round import Participation, Plan, Round, Setup
from stratafl.core.state import State, moved, rows_of
from stratafl.core.steps import Batching, Names
from stratafl.core.task import Task
from stratafl.errors import RecordError, StrataError, first_line

COUNT = "samples"  # the field of an upload that holds n_k


@holder
class Total:
    """What the uploads of a round come to: sums that add up, and rows that are kept side by side."""

    sums: tuple[State, ...] = ()  # one for each merge; () while there is no upload
    rows: tuple[Parcel, ...] = ()
    ids: tuple[Tensor, ...] = ()  # whose rows they are


@short_repr
class Work(NamedTuple):
    """What a client's work gives."""

    client: State  # to keep
    upload: Parcel
    trained: Rows  # the model right after training, for evaluation


@short_repr
class Opened(NamedTuple):
    """Uploads as merges read them, and whose could not be read: `[C]` booleans by reason."""

    uploads: Parcel
    wrong: Mapping[str, Tensor] = MappingProxyType({})


@dataclass(frozen=True)
class Requirements:
    """What an algorithm needs from its executor."""

    splits: Names = ("train",)  # `test` is given only to an algorithm that says what it leaks
    batchings: tuple[Batching, ...] = ()  # of its training steps
    scores: bool = False  # whether it evaluates models as it trains
    participation: Participation = "sampled"  # in its largest round
    rows: bool = False  # whether `absorb` needs every upload side by side, not only their sums
    noise: bool = False  # whether the server adds noise, which must depend on nothing that uploads are
    client_noise: bool = False  # whether clients add noise, which nobody else may know
    secure: bool = False  # whether it is safe in secure sums alone
    extra_rounds: int = 0  # after those that were asked for

    @property
    def batch(self) -> int:
        """The largest batch it trains on, from which memory is estimated."""
        return max((each.size for each in self.batchings), default=1)


class Algorithm(ABC):
    """A federated algorithm, as executors see it."""

    row: str = "theta"  # the field of a client's state that is its model
    global_model: str | None = None  # the server's field that is the global model, if there is one
    leaks: str | None = None  # what it is given that it should not be, such as test accuracy; always reported
    requires: Requirements = Requirements(batchings=(Batching(10),))

    def extend(self, module: nn.Module, example: Tensor, classes: int | None, head: str) -> nn.Module:
        """The model it trains, from the model it was given, whose head is the sub-module at the path `head`.

        `example` is a batch of zeros of the data's shape.
        """
        return module

    def check(self, setup: Setup) -> None:
        """Raise if it names a layer that the model does not have, or does not fit the federation."""
        return

    def footprint(self, setup: Setup) -> Footprint:
        """Its memory in addition to states and training; by default two sums in float64.

        Where uploads are kept side by side, those and as much again to compute with them.
        """
        row, sums = setup.row_bytes(), 2 * setup.row_bytes(dtype=torch.float64)
        if self.requires.rows:
            return Footprint(client=row, sums=sums, upload=row, absorbed=row)
        return Footprint(client=row, sums=sums)

    def plan(self, t: int, rounds: int) -> Plan:
        """The phase of round t, who takes part, whether it is evaluated."""
        return Plan()

    @abstractmethod
    def init(self, setup: Setup) -> State:
        """Server: its state before the first round."""

    @abstractmethod
    def enrol(self, setup: Setup, ids: Tensor) -> State:
        """Client: its state before its first round, a function of (seed, id) alone."""

    @abstractmethod
    def download(self, rnd: Round, server: State, ids: Tensor, new: bool = False) -> Parcel:
        """Server: the parcel for these clients, any of them; `new` ones never took part and have no row here."""

    @abstractmethod
    def receive(self, rnd: Round, client: State, parcel: Parcel, task: Task) -> State:
        """Client: mixing; the state, with in it the model that training would start from."""

    @abstractmethod
    def work(self, rnd: Round, client: State, task: Task) -> Work:
        """Client: training, from what `receive` gave."""

    def open(self, rnd: Round, server: State, uploads: Parcel, ids: Tensor) -> Opened:
        """Server: uploads as merges read them, from what travelled; again, it changes nothing.

        Differences are from what the server sent, so this needs the server's state of the round in which these clients
        worked. What cannot be read is NaN, and the reason says why.
        """
        return Opened(uploads)

    @abstractmethod
    def fold(self, rnd: Round, server: State, total: Total, uploads: Parcel, ids: Tensor) -> Total:
        """Server: the total with the uploads of these clients in it; folding one by one makes chunks invisible."""

    @abstractmethod
    def absorb(self, rnd: Round, server: State, total: Total) -> State:
        """Server: its next state."""

    @property
    def bounds(self) -> Mapping[str, Bound]:
        """What the values of an upload's fields must be; every other field is finite."""
        return {COUNT: "positive"}

    def upload_form(self, rnd: Round, server: State) -> Form:
        """Server: the form of every upload of the round; the same in all rounds of a phase.

        Found by rehearsing the round with a client that has no data, so that no client has to be believed.
        """
        try:
            client, task = self.rehearsed(rnd, server)
            return form_of(self.work(rnd, client, task).upload, rnd.layout).bounded(self.bounds)
        except StrataError:
            raise
        except Exception as error:  # a user's algorithm may fail in any way
            failed = f"a round without data raised {first_line(error, typed=True)}"
            say = "add a method upload_form(rnd, server) that returns it"
            raise RecordError(f"the form of {type(self).__name__}'s uploads is unknown: {failed}; {say}") from error

    def rehearsed(self, rnd: Round, server: State) -> tuple[State, Rehearsal]:
        """What `receive` gives a client that has no data, and its task."""
        ids, task = torch.tensor([0]), Rehearsal(rnd)
        before = moved(self.enrol(rnd.setup, ids), task.ids.device)
        return self.receive(rnd, before, self.download(rnd, server, ids), task), task

    def download_form(self, rnd: Round, ids: Tensor, new: bool = False) -> Form:
        """Client: the form of what it is sent in any round of the phase; every value is finite.

        Found by serving it from the server's initial state, whose tensors need not have values for it.
        """
        try:
            with torch.device("meta"):
                setup = rnd.setup.blank()
                parcel = self.download(replace(rnd, setup=setup), self.init(setup), ids, new)
                return form_of(parcel, rnd.layout).bounded({})
        except Exception:  # a step may read values, which are not there
            return form_of(self.download(rnd, self.init(rnd.setup), ids, new), rnd.layout).bounded({})

    def deploy(self, rnd: Round, client: State, task: Task) -> Rows:
        """Client: the rows it would use in production, from what `receive` gave; may train a copy."""
        return rows_of(client, self.row)

    def tell(self, rnd: Round, server: State) -> dict[str, Tensor]:
        """Server: what layer diagnostics show of it, each `[L, …]`; nothing may depend on it."""
        return {}

    def communication(self, rnd: Round, server: State) -> dict[str, float]:
        """Server: traffic other than downloads and uploads, such as `bytes.between` servers; recorded every round."""
        return {}

    def spent(self, rnd: Round) -> dict[str, float]:
        """Server: what the rounds before this one cost in privacy, where a method says so; recorded every round."""
        return {}

    def secure_unit(self, rnd: Round) -> float | None:
        """The unit of whole numbers in secure sums, if each client adds noise to them."""
        return None

    def secure_noise(self, rnd: Round, client: int, numbers: Tensor) -> Tensor:
        """Client: the noise that it adds to its whole numbers, int64 of their size."""
        return torch.zeros_like(numbers)

    @property
    def promise(self) -> str:
        """Against whom that protects."""
        return ""
