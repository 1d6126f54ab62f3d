"""Lanes: on a CPU parts of a computation run in parallel threads, each of which takes the next part when it is done.

Parts that wait for no other use all cores, even if other programs use them too. Where one operation uses several
threads it waits for the slowest, and two lanes with half of the parts each would take as long as the slower core.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")
_NAME = "lane"


def in_a_lane() -> bool:
    """Whether this thread is a lane: lanes do not nest."""
    return threading.current_thread().name.startswith(_NAME)


def in_lanes(run: Callable[[T], R], parts: Sequence[T], *, threads: int | None = None) -> list[R]:
    """`run(part)` for every part, as many at a time as there are cores; each has its share of them, or `threads`.

    Whether torch records gradients belongs to a thread: lanes do as the caller does.
    """
    cores = torch.get_num_threads()
    lanes = min(len(parts), cores)
    share = threads or max(1, cores // max(lanes, 1))
    if in_a_lane() or (lanes == 1 and share == cores):
        return [run(part) for part in parts]
    records, infers = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def run_likewise(part: T) -> R:
        with torch.inference_mode(infers), torch.set_grad_enabled(records):
            return run(part)

    return list(_pool(lanes, share).map(run_likewise, parts))


@cache
def _pool(lanes: int, share: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(lanes, _NAME, initializer=use_threads, initargs=(share,))


def use_threads(count: int) -> None:
    """From now on this thread computes with `count` threads, whatever other threads set later.

    Before its first operation a new thread takes the number that any thread set last: asked for it, torch does so now.
    """
    torch.get_num_threads()
    torch.set_num_threads(count)
