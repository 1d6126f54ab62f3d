"""`strata compare` and `strata resume`: several methods and seeds, by one process or by several.

A run that a process works on is locked, so the runs themselves are the queue: a process takes any run that is neither
finished nor locked, until none is left. Progress is read from the journals.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console

from stratafl.cli.command_options import COMPARED, RunOptions, experiment_of, names_in
from stratafl.cli.console import note_console, print_note, show_warnings
from stratafl.cli.display import Display, DisplayedRun, Watch
from stratafl.cli.interrupt import INTERRUPTED, Interrupt, interruptible
from stratafl.cli.report_command import REPORT, print_ranking, write_report_if_possible
from stratafl.cli.run_command import (
    advance_run,
    drive,
    print_interrupted,
    resume_command,
    torchrun_group,
    unused_run_folder,
)
from stratafl.cli.tune_command import resume_tuning, take_tuning
from stratafl.cli.workers import Crew, share
from stratafl.config.experiment import names_code, paths_in
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.errors import BusyError, RunError
from stratafl.evaluation.measure import Line
from stratafl.execute import ProcessGroup
from stratafl.runs import Comparison, Member, Run, is_comparison, refuse_existing
from stratafl.runs.directory import ROUNDS, TUNING
from stratafl.runs.guard_files import local_beside
from stratafl.runs.joined import JoinedRuns, usual_jobs
from stratafl.runs.json_files import read_lines
from stratafl.tuning.reuse import reused, untyped_named
from stratafl.tuning.tuning import is_tuning, read_tuned


def start_comparison(
    options: RunOptions, names: str, seeds: int, jobs: int | None, vary: str = "all", tuned: Path | None = None
) -> int:
    """A new comparison, to its end or until it is interrupted; the exit code.

    `tuned` is the directory of a tuning: its methods with what it chose, its data and model, and seeds after its own,
    unless the options say otherwise.
    """
    typed, base, methods = options.settings(), experiment_of(options.config), names_in(names)
    trusted = options.trusted([*methods, *paths_in(typed)])
    with torchrun_group() as process_group, show_warnings(note_console()) as release_warnings:
        refuse_torchrun(process_group)
        if options.out is not None:
            refuse_existing(options.out)
        folder = options.out or unused_run_folder("compare")
        if tuned is None:
            comparison = Comparison.create(folder, base, methods, seeds, typed, trusted, vary)
        else:
            methods = methods if names != COMPARED else list(read_tuned(tuned))
            config = None if options.config is None else base
            with untyped_named(tuned, typed) if config is None else nullcontext():
                base, settings = reused(tuned, methods, typed, config)
                asked = trusted.asked_by(tuned / TUNING)
                comparison = Comparison.create(folder, base, methods, seeds, settings, asked, vary)
        release_warnings()
        return drive_comparison(comparison, jobs)


def resume_directory(folder: Path, jobs: int | None, worker: bool, trust: Trust = NO_TRUST) -> int:
    """Continue to the end or until it is interrupted; a `worker` is a process that `compare --jobs` started."""
    if worker:
        with show_warnings(Console(quiet=True)):  # the process that started this one has printed them
            if is_tuning(folder):
                return take_tuning(folder, trust, jobs or 1)
            return take_runs(Comparison.open(folder, trust), jobs or 1)

    def reopen(process_group: ProcessGroup) -> Run:
        if not folder.is_dir():
            raise RunError(f"there is no folder '{folder}': give the directory of a run, a comparison or a tuning")
        if is_comparison(folder) or is_tuning(folder):
            refuse_torchrun(process_group)
        run = Run.open(folder, process_group, trust)
        if run.finished:
            run.notes.append("this run is finished: nothing was left to do")
        return run

    with torchrun_group() as process_group:
        if process_group.world_size > 1 or not (is_comparison(folder) or is_tuning(folder)):
            return drive(process_group, reopen, trust)
        if is_tuning(folder):
            return resume_tuning(folder, jobs, trust)
        with show_warnings(note_console()) as release_warnings:
            comparison = Comparison.open(folder, trust)
            release_warnings()
            return drive_comparison(comparison, jobs)


def refuse_torchrun(process_group: ProcessGroup) -> None:
    """Raise if there are several processes: a comparison has processes of its own."""
    if process_group.world_size > 1:
        raise RunError(
            f"a comparison cannot run in {process_group.world_size} processes of torchrun: start it without torchrun "
            "and choose the number of processes with --jobs"
        )


def drive_comparison(comparison: Comparison, jobs: int | None) -> int:
    """Finish all runs, then print the ranking and write the report; the exit code."""
    members, console, runs = list(comparison.members()), note_console(), list[DisplayedRun]()
    for member in members:
        done = len(read_lines(member.folder / ROUNDS))
        label = f"{member.method}, seed {member.seed}: "
        runs.append(DisplayedRun(member.method, member.experiment.run.rounds, done, label))
    jobs = jobs or usual_jobs(len(members), members[0].experiment.run.device)
    with Display(console, runs) as display, interruptible(console) as interrupt:
        watches = {member.folder: display.watch(run) for member, run in zip(members, runs, strict=True)}
        if jobs == 1:
            finished = _take(members, interrupt, watches)
        else:
            again = resume_command(comparison.folder, _names_code(members))
            crew = Crew(comparison.folder, comparison.trust, again, min(jobs, len(members)))
            finished = share(crew, interrupt, watches)
    if not finished:
        return print_interrupted(comparison.folder, _names_code(members))
    study = print_ranking([comparison.folder])
    write_report_if_possible([comparison.folder], comparison.folder / REPORT, study)
    return 0


def _names_code(members: Sequence[Member]) -> bool:
    return any(names_code(member.experiment) for member in members)


def take_runs(comparison: Comparison, jobs: int) -> int:
    """The work of one of several processes: runs until none is left, or until the process that started it ends."""
    parent = os.getppid()

    def watch(rounds: int, history: Sequence[Line]) -> None:
        interrupt.asked |= os.getppid() != parent

    members = list(comparison.members())
    with interruptible(note_console(), quiet=True) as interrupt:
        done = _take(members, interrupt, {member.folder: watch for member in members}, jobs)
    return 0 if done else INTERRUPTED


def _take(members: Sequence[Member], interrupt: Interrupt, watches: Mapping[Path, Watch], jobs: int = 1) -> bool:
    """Finish every run that no other process works on, as many at a time as can be joined; False if interrupted."""
    joined = JoinedRuns(len(members), jobs, members[0].experiment.run.precision)
    stopped = list[Member]()

    def work(member: Member) -> None:
        try:
            if interrupt.asked or not _advanced(member, joined, interrupt, watches[member.folder]):
                stopped.append(member)
        except BusyError:
            return
        except KeyboardInterrupt:
            stopped.append(member)

    try:
        joined.drive(partial(work, member) for member in members)
    except KeyboardInterrupt:
        return False
    return not stopped


def _advanced(member: Member, joined: JoinedRuns, interrupt: Interrupt, watch: Watch) -> bool:
    """Advance a run to its end; False if interrupted. A guard waits for local training with the same seed."""
    with joined.opened(member.run) as run, joined.declared(member.folder, run.sim):
        for note in run.notes:
            print_note(f"{member.method}, seed {member.seed}: {note}")
        return advance_run(run, interrupt, watch, lambda: joined.wait_for(local_beside(member.folder)))
