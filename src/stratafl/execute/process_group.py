"""The processes that execute a round together: each holds the server's state and the states of its own clients."""

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import Tensor

from stratafl.core.algorithm import Total
from stratafl.core.state import State
from stratafl.execute.context import SimulationContext

T = TypeVar("T")


class ProcessGroup:
    """What processes need of each other; all processes call the same functions in the same order.

    This is a group of one process. `ranks.py` has the group of several.
    """

    rank = 0  # of the first process, which writes and prints
    world_size = 1

    def share(self, sim: SimulationContext, ids: Tensor) -> Tensor:
        """Those of the clients that belong to this process, in their order."""
        return ids

    def gather(self, value: T) -> list[T]:
        """The values of all processes."""
        return [value]

    def told(self, value: T) -> T:
        """The value of the first process."""
        return value

    def merge(self, total: Total, ids: Tensor, rows: bool) -> Total:
        """The total over all processes; `rows` says that some uploads are kept side by side."""
        return total

    def collect(self, clients: Mapping[int, State]) -> Mapping[int, State]:
        """All client states in the first process, and none in the others."""
        return clients

    def deal(self, sim: SimulationContext, clients: Mapping[int, State]) -> Mapping[int, State]:
        """From the client states of the first process, those that belong to this one."""
        return clients


SINGLE_PROCESS = ProcessGroup()


def places(ids: Tensor, wanted: Tensor) -> Tensor:
    """Where each of the wanted ids is among `ids`, which hold each once."""
    where = {client: place for place, client in enumerate(ids.tolist())}
    return torch.tensor([where[client] for client in wanted.tolist()], dtype=torch.int64)
