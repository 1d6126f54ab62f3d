"""The processes that execute a round together: all hold the server's state, each the memories of its own clients."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from stratafl.core.algorithm import Total
from stratafl.core.state import State

if TYPE_CHECKING:
    from stratafl.execute.simulation import Simulation

T = TypeVar("T")


class ProcessGroup(Protocol):
    """What processes need of each other; what is asked of it is asked by all of them, in the same order."""

    @property
    def rank(self) -> int:
        """Which of them this process is; 0 is the first, who writes and prints."""

    @property
    def world_size(self) -> int:
        """How many they are."""

    def share(self, sim: "Simulation", ids: Tensor) -> Tensor:
        """Those of the clients whom this process looks after, in their order."""

    def gather(self, value: T) -> list[T]:
        """What each process gives, for all of them."""

    def told(self, value: T) -> T:
        """What the first process gives."""

    def merge(self, total: Total, ids: Tensor, rows: bool) -> Total:
        """What the uploads of the whole cohort come to; `rows` says that some are kept side by side."""

    def collect(self, clients: Mapping[int, State]) -> Mapping[int, State]:
        """The memories of all clients for the first process, and for the others none."""

    def deal(self, sim: "Simulation", clients: Mapping[int, State]) -> Mapping[int, State]:
        """Of the memories that the first process gives, those of this one's share."""


class SingleProcess:
    """One process, which has nobody to talk to."""

    rank, world_size = 0, 1

    def share(self, sim: "Simulation", ids: Tensor) -> Tensor:
        """All of them."""
        return ids

    def gather(self, value: T) -> list[T]:
        """Its own."""
        return [value]

    def told(self, value: T) -> T:
        """As it is."""
        return value

    def merge(self, total: Total, ids: Tensor, rows: bool) -> Total:
        """As it is."""
        return total

    def collect(self, clients: Mapping[int, State]) -> Mapping[int, State]:
        """As they are."""
        return clients

    def deal(self, sim: "Simulation", clients: Mapping[int, State]) -> Mapping[int, State]:
        """As they are."""
        return clients


SINGLE_PROCESS: ProcessGroup = SingleProcess()


class InOneProcess:
    """What executors of one process have in common."""

    process_group: ClassVar[ProcessGroup] = SINGLE_PROCESS


def places(found: Tensor, wanted: Tensor) -> Tensor:
    """Where in `found` each of the wanted ids is; each is there once."""
    where = {client: place for place, client in enumerate(found.tolist())}
    return torch.tensor([where[client] for client in wanted.tolist()], dtype=torch.int64)
