"""The memory of this machine and of this process, in bytes and in words."""

import os
from math import ceil
from pathlib import Path

from stratafl.errors import RunError


def ram() -> int:
    """The RAM of this machine, or the part of it that this process may use."""
    whole = _system("SC_PHYS_PAGES") * _system("SC_PAGE_SIZE")
    try:
        return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no control group, or no limit in it
        return whole


def resident() -> int:
    """The RAM that this process takes now; on macOS, the most it has taken so far."""
    page = _system("SC_PAGE_SIZE")
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page
    except OSError:
        import resource  # Windows has no such module, and does not get here

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def in_units(size: int) -> str:
    """Bytes as `--memory-limit` reads them: 1.3GB, never less than the size."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size >= factor:
            return f"{ceil(size / factor * 10) / 10:g}{unit}"
    return f"{size}B"


def _system(name: str) -> int:
    if not hasattr(os, "sysconf"):
        raise RunError("cannot find out how much memory this system has: use Linux or macOS (on Windows, WSL)")
    return os.sysconf(name)
