"""Lanes: clients side by side on the cores of a CPU, each lane a thread with its share of the cores.

Products of small matrices use one core however many there are; two lanes use two. A row's bits do not depend on who is
beside it, so lanes change nothing but time.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")


def side_by_side(clients: int, device: torch.device) -> int:
    """The number of lanes for so many clients: one per core on a CPU, one on an accelerator."""
    return min(clients, torch.get_num_threads()) if device.type == "cpu" else 1


def in_lanes(run: Callable[[int], T], lanes: int) -> list[T]:
    """`run(lane)` for every lane, at the same time."""
    if lanes == 1:
        return [run(0)]
    return list(_pool(lanes).map(run, range(lanes)))


@cache
def _pool(lanes: int) -> ThreadPoolExecutor:
    share = max(1, torch.get_num_threads() // lanes)
    return ThreadPoolExecutor(lanes, "lane", initializer=torch.set_num_threads, initargs=(share,))
