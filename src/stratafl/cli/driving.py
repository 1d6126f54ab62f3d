"""Driving a run from round to round, until its end or until a person has had enough."""

import shlex
from pathlib import Path

import torch

from stratafl.cli import INTERRUPTED
from stratafl.cli.consoles import remarks
from stratafl.cli.live import Interrupt, Watch
from stratafl.errors import MemoryLimitError
from stratafl.runs import Follower, Run


def advance(run: Run | Follower, interrupt: Interrupt, watch: Watch) -> bool:
    """Rounds to the end, each shown; False if it was interrupted before."""
    watch(run.progress.t, run.history)
    try:
        for _ in run.rounds():
            watch(run.progress.t, run.history)
            if any(run.process_group.gather(interrupt.asked)):
                return run.finished
    except KeyboardInterrupt:
        return False
    except torch.OutOfMemoryError as error:
        raise MemoryLimitError(
            f"the GPU's memory is full after round {run.progress.t}: if other processes hold some of it, resume when "
            "they have ended, or begin anew with --memory-limit"
        ) from error
    return True


def resuming(folder: Path, code: bool) -> str:
    """The command that goes on."""
    return f"strata resume {shlex.quote(str(folder))}{' --trust' if code else ''}"


def interrupted(folder: Path, code: bool) -> int:
    """Say how to go on; a run that names `code` has to be trusted."""
    remarks().print(f"saved; continue with: {resuming(folder, code)}", markup=False)
    return INTERRUPTED
