"""Lanes: clients in parallel threads on a CPU, each with its share of the cores.

Batched products of small matrices use one core; two lanes use two. A row's bits do not depend on the other rows, so
lanes change nothing but time. The two parts are independent: lanes (`side_by_side`, `in_lanes`), and `alone_if_short`.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")
_NAME = "lane"
WORTHWHILE = 2**23
MOST = 2
SHORT = 2**23


def side_by_side(clients: int, elements: int, device: torch.device) -> int:
    """The number of lanes for so many clients with so many numbers in all: two on a CPU where they pay, else one.

    Measured in ms per client-step with 1, 2 and 4 lanes. Where operations are short, lanes wait for Python: small MLP
    0.18, 0.29, – (2 ARM cores) and 0.08, 0.12, 0.47 (8 Xeon cores). The CNN: 15.2, 14.1, – and 5.8, 3.7, 3.6.
    """
    if device.type != "cpu" or in_a_lane() or elements < WORTHWHILE:
        return 1
    return min(clients, torch.get_num_threads(), MOST)


@contextmanager
def alone_if_short(elements: int, device: torch.device) -> Iterator[None]:
    """One thread where operations are so short that threads wait for each other, above all on a shared machine.

    Measured in ms per client-step with one and two threads on 2 ARM cores that others used as well: small MLP 0.21 and
    0.61, with 100 clients 0.14 and 0.24, MLP 784 0.7 and 2.0. With more threads, each of them has to gain more.
    """
    threads = torch.get_num_threads()
    if device.type != "cpu" or in_a_lane() or elements * threads >= SHORT or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def in_a_lane() -> bool:
    """Whether this thread is a lane: lanes do not nest."""
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
