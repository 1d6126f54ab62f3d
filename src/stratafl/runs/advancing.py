"""Advancing runs: one to its end, or all runs of a comparison that no other process works on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from stratafl.errors import BusyError, MemoryLimitError
from stratafl.evaluation.measure import Line
from stratafl.runs.comparison import Comparison, Member
from stratafl.runs.directory import ROUNDS
from stratafl.runs.distributed import FollowerRun
from stratafl.runs.guard_files import local_beside
from stratafl.runs.joined import JoinedRuns
from stratafl.runs.json_files import read_lines
from stratafl.runs.run import Run

Watch = Callable[[int, Sequence[Line]], None]  # rounds done, and their lines
Asked = Callable[[], bool]  # whether to stop


@dataclass
class DisplayedRun:
    """A run as a display has it: the line that shows it, its rounds, and how its notes begin."""

    line: str
    rounds: int
    done: int
    label: str = ""


def displayed_runs(comparison: Comparison) -> dict[Path, DisplayedRun]:
    """The runs of a comparison by folder, as far as they have come."""
    displayed = {}
    for member in comparison.members():
        done, label = len(read_lines(member.folder / ROUNDS)), f"{member.method}, seed {member.seed}: "
        displayed[member.folder] = DisplayedRun(member.method, member.experiment.run.rounds, done, label)
    return displayed


def not_shown(rounds: int, history: Sequence[Line]) -> None:
    """Show nothing."""


def advance_run(
    run: Run | FollowerRun, interrupted: Asked, watch: Watch, before_guard: Callable[[], None] = lambda: None
) -> bool:
    """Run all rounds, and show each to `watch`; False if interrupted before the end."""
    watch(run.progress.t, run.history)
    try:
        for _ in run.rounds():
            watch(run.progress.t, run.history)
            if any(run.process_group.gather(interrupted())):
                return run.finished and not (isinstance(run, Run) and run.unguarded)
        if isinstance(run, Run) and run.unguarded:
            before_guard()
        for _ in run.guarding() if isinstance(run, Run) else ():
            if interrupted():
                return False
    except KeyboardInterrupt:
        return False
    except torch.OutOfMemoryError as error:
        raise MemoryLimitError(
            f"the GPU ran out of memory after round {run.progress.t}: if other processes use this GPU, resume the run "
            "when they have ended; otherwise start a new run with --memory-limit"
        ) from error
    return True


def advance_comparison(
    comparison: Comparison,
    watches: Mapping[Path, Watch],
    note: Callable[[str], object],
    interrupted: Asked,
    jobs: int = 1,
) -> bool:
    """Finish every run that no other process works on, as many at a time as can be joined; False if interrupted.

    `watches` are shown the rounds of runs, by folder; `note` is told what the user should know. There are `jobs`
    processes in all.
    """
    members = list(comparison.members())
    joined = JoinedRuns(len(members), jobs, members[0].experiment.run.precision)
    stopped = list[Member]()

    def work(member: Member) -> None:
        try:
            watch = watches.get(member.folder, not_shown)
            if interrupted() or not _advanced(member, joined, interrupted, watch, note):
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


def _advanced(
    member: Member, joined: JoinedRuns, interrupted: Asked, watch: Watch, note: Callable[[str], object]
) -> bool:
    """Advance a run to its end; False if interrupted. A guard waits for local training with the same seed."""
    with joined.opened(member.run) as run, joined.declared(member.folder, run.sim):
        for text in run.notes:
            note(f"{member.method}, seed {member.seed}: {text}")
        return advance_run(run, interrupted, watch, lambda: joined.wait_for(local_beside(member.folder)))
