"""Two ranks as threads of one process: what `torch.distributed` exchanges, exchanged over a barrier.

The executor, the packing and the sums are the real ones; only the network is not there. `rank_worker.py` runs the same
over gloo, in processes.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest
import torch

from stratafl.execute import ranks
from stratafl.execute.ranks import Ranks

T = TypeVar("T")
SECONDS = 60.0  # until a rank that waits for another one gives up


class ThreadNetwork:
    """In place of the module `torch.distributed`."""

    def __init__(self, world_size: int) -> None:
        self.barrier = threading.Barrier(world_size, timeout=SECONDS)
        self.sent: list[Any] = [None] * world_size
        self.local = threading.local()

    def exchanged(self, value: torch.Tensor) -> list[torch.Tensor]:
        self.sent[self.local.rank] = value.clone()
        self.barrier.wait()
        arrived = list(self.sent)
        self.barrier.wait()
        return arrived

    def all_gather(self, buffers: list[torch.Tensor], value: torch.Tensor) -> None:
        self.gather(value, buffers, self.local.rank)

    def gather(self, value: torch.Tensor, buffers: list[torch.Tensor] | None, target: int) -> None:
        for buffer, x in zip(buffers or [], self.exchanged(value), strict=False):
            buffer.copy_(x)

    def broadcast(self, buffer: torch.Tensor, source: int) -> None:
        buffer.copy_(self.exchanged(buffer)[source])

    def all_reduce(self, buffer: torch.Tensor) -> None:
        buffer.copy_(torch.stack(self.exchanged(buffer)).sum(0))

    def wait(self, keys: list[str], timeout: object) -> None:
        """As the store in which the first process says that it has printed an error."""


def by_two_ranks(work: Callable[[Ranks], T]) -> list[T]:
    """What each of two ranks makes of it."""
    network = ThreadNetwork(2)

    def run(rank: int) -> T:
        network.local.rank = rank
        torch.set_num_threads(1)
        try:
            return work(Ranks(network, rank, 2, False))
        except BaseException:
            network.barrier.abort()
            raise

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(ranks, "dist", network)
        return list(pool.map(run, range(2)))
