"""The processes that `torchrun` started, as one command: the first speaks, and an error of one ends all of them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stratafl.execute import SINGLE_PROCESS, ProcessGroup
from stratafl.execute.ranks import Ranks, world_size


@contextmanager
def together() -> Iterator[ProcessGroup]:
    """The process group that this process belongs to; without `torchrun`, nobody else."""
    if world_size() == 1:
        yield SINGLE_PROCESS
        return
    if int(os.environ["RANK"]):
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    process_group = Ranks.join()
    with process_group.together():
        yield process_group
    process_group.leave()
