"""How much memory this machine has, and how much of it this process takes."""

import os
import resource
from pathlib import Path


def ram() -> int:
    """The RAM of this machine, or what of it this process may have."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        return min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # no such group, or no limit in it
        return whole


def resident() -> int:
    """What of this process is in RAM now."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # no Linux: the most that it ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
