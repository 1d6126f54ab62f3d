"""`strata run`: one run, and how any run is driven to its end or until it is interrupted."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from stratafl.cli.command_options import RunOptions, experiment_of
from stratafl.cli.console import note_console, print_note, show_warnings
from stratafl.cli.display import Display
from stratafl.cli.interrupt import INTERRUPTED, interruptible
from stratafl.cli.report_command import print_ranking
from stratafl.config.experiment import names_code, paths_in, with_values
from stratafl.config.trust import Trust
from stratafl.execute import SINGLE_PROCESS, ProcessGroup
from stratafl.execute.ranks import Ranks, world_size
from stratafl.runs import FollowerRun, Run
from stratafl.runs.advancing import DisplayedRun, advance_run
from stratafl.runs.directory import unused_run_folder


def start_run(options: RunOptions, algorithm: str | None) -> int:
    """A new run, to its end or until it is interrupted; the exit code."""
    settings = options.settings(algorithm=algorithm)
    trusted = options.trusted(paths_in(settings))

    def create(process_group: ProcessGroup) -> Run:
        experiment = with_values(experiment_of(options.config, settings), settings)
        data = Path(experiment.data.name).stem
        folder = options.out or unused_run_folder(f"{experiment.algorithm.name}-{data}-s{experiment.run.seed}")
        return Run.create(experiment, folder, process_group, trusted)

    with torchrun_group() as process_group:
        return drive(process_group, create, trusted)


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


def drive(process_group: ProcessGroup, begin: Callable[[ProcessGroup], Run], trust: Trust) -> int:
    """Advance the run that rank 0 begins, and the other ranks follow; then print its result. The exit code."""
    console = note_console()
    with show_warnings(console) as release_warnings:
        run = begin(process_group) if process_group.rank == 0 else FollowerRun(process_group, trust)
        release_warnings()
        shown = DisplayedRun(run.experiment.algorithm.name, run.trial.rounds, run.progress.t)
        display = Display(console, [shown])
        with interruptible(console, finish_round=process_group.world_size > 1) as interrupt, run, display:
            for note in run.notes:
                print_note(note, console)
            done = advance_run(run, lambda: interrupt.asked, display.watch(shown))
        if isinstance(run, FollowerRun):
            return 0 if done else INTERRUPTED
        if not done:
            return print_interrupted(run.folder, names_code(run.experiment))
        if run.stopped:
            console.print(f"stopped after round {run.progress.t}: {run.stopped}")
        print_ranking([run.folder])
        return 0


def resume_command(folder: Path, names_code: bool) -> str:
    """The command that continues a run or comparison; one that names code needs trust."""
    return f"strata resume {shlex.quote(str(folder))}{' --trust' if names_code else ''}"


def print_interrupted(folder: Path, names_code: bool) -> int:
    """Print how to continue; the exit code."""
    note_console().print(f"saved. To continue, run: {resume_command(folder, names_code)}", markup=False)
    return INTERRUPTED
