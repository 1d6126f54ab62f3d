"""`strata resume`: a run or a comparison, from where it was left."""

from pathlib import Path

from rich.console import Console

from stratafl.cli.compare import drive_comparison, take_runs
from stratafl.cli.console import note_console, show_warnings
from stratafl.cli.process_group import refuse_torchrun, torchrun_group
from stratafl.cli.run import drive
from stratafl.config.trust import NOTHING, Trust
from stratafl.errors import RunError
from stratafl.execute import ProcessGroup
from stratafl.runs import Comparison, Run, is_comparison


def resume(folder: Path, jobs: int, worker: bool, trust: Trust = NOTHING) -> int:
    """Continue to the end or until it is interrupted; a `worker` is a process that `compare --jobs` started."""
    if worker:
        with show_warnings(Console(quiet=True)):  # the process that started this one has printed them
            return take_runs(Comparison.open(folder, trust))

    def reopen(process_group: ProcessGroup) -> Run:
        if not folder.is_dir():
            raise RunError(f"there is no folder '{folder}': give the directory of a run or a comparison")
        if is_comparison(folder):
            refuse_torchrun(process_group)
        run = Run.open(folder, process_group, trust)
        if run.finished:
            run.notes.append("this run is finished: nothing was left to do")
        return run

    with torchrun_group() as process_group:
        if process_group.world_size > 1 or not is_comparison(folder):
            return drive(process_group, reopen, trust)
        with show_warnings(note_console()) as release_warnings:
            comparison = Comparison.open(folder, trust)
            release_warnings()
            return drive_comparison(comparison, jobs)
