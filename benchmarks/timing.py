"""Seconds and bytes, read when the device has finished its work; and other processes that keep the machine busy."""

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from stratafl.child_processes import python_command, safe_environment

STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass
class Seconds:
    """Where the time of a round went."""

    train: float = 0.0
    server: float = 0.0
    evaluate: float = 0.0
    cpu: float = 0.0  # of the whole process in training and server, which other programs hardly change

    @property
    def round(self) -> float:
        """Training and server, without evaluation."""
        return self.train + self.server

    def table(self) -> dict[str, float]:
        return asdict(self) | {"round": self.round}


def median(rounds: Sequence[Seconds]) -> Seconds:
    return Seconds(
        *(statistics.median(getattr(r, part) for r in rounds) for part in ("train", "server", "evaluate", "cpu"))
    )


def fastest(rounds: Sequence[Seconds]) -> Seconds:
    """The fastest round, the fastest evaluation, and the round with the least CPU time."""
    fastest = min(rounds, key=lambda r: r.round)
    return Seconds(
        fastest.train, fastest.server, *(min(getattr(r, part) for r in rounds) for part in ("evaluate", "cpu"))
    )


def now(device: torch.device) -> float:
    """The time, once the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def reset_peak(device: torch.device) -> None:
    gc.collect()  # frees what earlier rows still hold in reference cycles
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with suppress(OSError):  # not every system has it, and not every container allows it
            RESET.write_text("5")  # resets VmHWM


def peak(device: torch.device) -> int:
    """The most bytes since `reset_peak`: torch's allocations on a GPU, else the whole process with its data."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if STATUS.exists():
        line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return 0
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


# Computes until its parent is gone, whatever ended that.
_WORK = """
import os
parent = os.getppid()
while os.getppid() == parent:
    sum(range(100_000))
"""


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes that compute without pause, each on one core, until the block ends."""
    started = [subprocess.Popen(python_command("-c", _WORK), env=safe_environment()) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
