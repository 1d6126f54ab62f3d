"""Lanes: clients side by side on the cores of a CPU, each lane a thread with its share of the cores.

Products of small matrices use one core however many there are; two lanes use two. A row's bits do not depend on who is
beside it, so lanes change nothing but time.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")
_NAME = "lane"
WORTHWHILE = 2**20


def side_by_side(clients: int, elements: int, device: torch.device) -> int:
    """The number of lanes for so many clients with so many numbers in all: one per core on a CPU.

    Below a million numbers lanes lose: their operations are so short that they wait for Python, not for a core
    (20 small MLPs on 2 ARM cores: 0.29 ms per client-step in two lanes, 0.19 in one; with 3 million 0.48 and 0.64).
    """
    if device.type != "cpu" or in_a_lane() or elements < WORTHWHILE:
        return 1
    return min(clients, torch.get_num_threads())


def in_a_lane() -> bool:
    """Whether this thread is a lane already: lanes do not nest."""
    return threading.current_thread().name.startswith(_NAME)


def in_lanes(run: Callable[[int], T], lanes: int) -> list[T]:
    """`run(lane)` for every lane, at the same time."""
    if lanes == 1 or in_a_lane():
        return [run(lane) for lane in range(lanes)]
    return list(_pool(lanes).map(run, range(lanes)))


@cache
def _pool(lanes: int) -> ThreadPoolExecutor:
    share = max(1, torch.get_num_threads() // lanes)
    return ThreadPoolExecutor(lanes, _NAME, initializer=torch.set_num_threads, initargs=(share,))
