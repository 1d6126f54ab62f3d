"""The processes that `torchrun` started, as one command: the first one prints, and an error of one ends all."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stratafl.errors import RunError
from stratafl.execute import SINGLE_PROCESS, ProcessGroup
from stratafl.execute.ranks import Ranks, world_size


@contextmanager
def torchrun_group() -> Iterator[ProcessGroup]:
    """The process group of this process; without `torchrun`, a group of one."""
    if world_size() == 1:
        yield SINGLE_PROCESS
        return
    if int(os.environ["RANK"]):
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    process_group = Ranks.join()
    with process_group.together():
        yield process_group
    process_group.leave()


def refuse_torchrun(process_group: ProcessGroup) -> None:
    """Raise if there are several processes: a comparison has processes of its own."""
    if process_group.world_size > 1:
        raise RunError(
            f"a comparison cannot run in {process_group.world_size} processes of torchrun: start it without torchrun "
            "and choose the number of processes with --jobs"
        )
