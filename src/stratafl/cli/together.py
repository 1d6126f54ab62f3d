"""The processes that `torchrun` started, as one command: the first speaks, and an error of one ends all of them."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stratafl.execute import SOLO, Team
from stratafl.execute.ranks import Ranks, world


@contextmanager
def together() -> Iterator[Team]:
    """The team that this process belongs to; without `torchrun`, nobody else."""
    if world() == 1:
        yield SOLO
        return
    if int(os.environ["RANK"]):
        sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    team = Ranks.join()
    with team.together():
        yield team
    team.leave()
