"""The processes that execute a round together: each holds the server's state and the states of its own clients."""

from collections.abc import Mapping
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from stratafl.core.algorithm import Total
from stratafl.core.state import State
from stratafl.execute.context import SimulationContext

T = TypeVar("T")


class ProcessGroup(Protocol):
    """What processes need of each other; all processes call the same functions in the same order."""

    @property
    def rank(self) -> int:
        """0 is the first process, which writes and prints."""

    @property
    def world_size(self) -> int: ...

    def share(self, sim: SimulationContext, ids: Tensor) -> Tensor:
        """Those of the clients that belong to this process, in their order."""

    def gather(self, value: T) -> list[T]:
        """The values of all processes."""

    def told(self, value: T) -> T:
        """The value of the first process."""

    def merge(self, total: Total, ids: Tensor, rows: bool) -> Total:
        """The total over all processes; `rows` says that some uploads are kept side by side."""

    def collect(self, clients: Mapping[int, State]) -> Mapping[int, State]:
        """All client states in the first process, and none in the others."""

    def deal(self, sim: SimulationContext, clients: Mapping[int, State]) -> Mapping[int, State]:
        """From the client states of the first process, those that belong to this one."""


class SingleProcess:
    """A group of one process."""

    rank, world_size = 0, 1

    def share(self, sim: SimulationContext, ids: Tensor) -> Tensor:
        return ids

    def gather(self, value: T) -> list[T]:
        return [value]

    def told(self, value: T) -> T:
        return value

    def merge(self, total: Total, ids: Tensor, rows: bool) -> Total:
        return total

    def collect(self, clients: Mapping[int, State]) -> Mapping[int, State]:
        return clients

    def deal(self, sim: SimulationContext, clients: Mapping[int, State]) -> Mapping[int, State]:
        return clients


SINGLE_PROCESS: ProcessGroup = SingleProcess()


def places(ids: Tensor, wanted: Tensor) -> Tensor:
    """Where each of the wanted ids is in `found`, which holds each once."""
    where = {client: place for place, client in enumerate(ids.tolist())}
    return torch.tensor([where[client] for client in wanted.tolist()], dtype=torch.int64)
