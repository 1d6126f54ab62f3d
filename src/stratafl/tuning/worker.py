"""A worker: a process that advances a tuning until nothing is left to do; several may share it.

What is left to do follows from the journals. A process claims a run before it works on it.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from stratafl.errors import BusyError, DataError, MemoryLimitError, RunError, StageError, TrustError, first_line
from stratafl.evaluation.measure import Line
from stratafl.files import write_atomically
from stratafl.runs import Run, is_run
from stratafl.runs.advancing import DisplayedRun
from stratafl.runs.advancing import Watch as RunWatch
from stratafl.runs.comparison import folder_name
from stratafl.runs.directory import ROUNDS
from stratafl.runs.joined import JoinedRuns
from stratafl.runs.json_files import read_lines
from stratafl.tuning.folder_claims import claimed
from stratafl.tuning.search import Search
from stratafl.tuning.trials import PendingRun, is_open
from stratafl.tuning.tuning import UNTUNED, WINNERS, Tuning

POLL_SECONDS = 0.5  # seconds until a process that has nothing to do looks again
# How PyTorch names what a device lacks; a tensor that is on the wrong one names it in small letters.
DEVICE = re.compile(r"CUDA|CUBLAS|CUDNN|CUSOLVER|NCCL|NVIDIA|DefaultCPUAllocator|\bMPS\b|\bHIP")
Watch = Callable[[PendingRun, int, Sequence[Line]], None]  # rounds done, and their lines
Notes = Callable[[PendingRun, str], None]


def never() -> bool:
    """A tuning that is not interrupted."""
    return False


def silent(*_: object) -> None:
    """Show nothing."""


def advance(
    source: Tuning | Search,
    watch: Watch = silent,
    note: Notes = silent,
    interrupted: Callable[[], bool] = never,
    jobs: int = 1,
) -> bool:
    """Do the work of a tuning, or of one search, until nothing is left; False if interrupted.

    Runs that can be done now are joined, as many as memory allows. Other processes may work on the same, `jobs` in all.
    """
    reports = Reports(watch, note, interrupted)
    while work := source.work():
        taken = _take_together(work, reports, jobs)
        if interrupted():
            return False
        if not taken:  # other processes work on all of it
            time.sleep(POLL_SECONDS)
    return True


@dataclass(frozen=True)
class Reports:
    """Who is told of what is done, and who may stop it."""

    watch: Watch = silent
    note: Notes = silent
    interrupted: Callable[[], bool] = never


def _take_together(work: Sequence[PendingRun], reports: Reports, jobs: int) -> bool:
    """Do the work that no other process does; whether any was done here."""
    joined, taken = JoinedRuns(len(work), jobs, work[0].experiment.run.precision), list[bool]()

    def take(pending: PendingRun) -> None:
        if not reports.interrupted():
            taken.append(_take(pending, reports, joined))

    joined.drive(partial(take, pending) for pending in work)
    return any(taken)


def _take(work: PendingRun, reports: Reports, joined: JoinedRuns) -> bool:
    """Do a piece of work unless another process does; whether it was done here."""
    with claimed(work.folder) as is_ours:
        is_ours = is_ours and is_open(work)  # or else another process has done it
        if is_ours:
            perform(work, reports, joined)
        return is_ours


def perform(work: PendingRun, reports: Reports, joined: JoinedRuns) -> None:
    """Advance a run as far as it is to go; a trial that fails is written down and counts as the worst."""
    try:
        with joined.opened(partial(_run, work)) as run, joined.declared(work.folder, run.sim):
            _to_its_end(run, work, reports)
    except torch.OutOfMemoryError as error:
        raise MemoryLimitError(
            f"{work.title}: the GPU ran out of memory: use fewer processes or a smaller run.memory_limit, and continue"
        ) from error
    except BusyError:
        time.sleep(POLL_SECONDS)
    except (DataError, RunError, TrustError, MemoryLimitError, MemoryError, OSError):
        raise  # what the data, the machine or the folder lacks says nothing about the settings
    except Exception as error:
        if work.failure is None:
            raise
        if _of_the_device(error):
            raise RunError(
                f"{work.title}: {first_line(error, typed=True)}: this trial does not count as failed; see whether the "
                "device works, and continue"
            ) from error
        why = first_line(error, typed=not str(type(error).__module__).startswith("stratafl"))
        write_atomically(work.failure, why.encode())
        reports.note(work, f"this trial failed and counts as the worst: {why}")


def _to_its_end(run: Run, work: PendingRun, reports: Reports) -> None:
    for note in run.notes:
        reports.note(work, note)
    reports.watch(work, run.progress.t, run.history)
    if run.progress.t >= work.rounds:
        return
    for _ in run.rounds():
        reports.watch(work, run.progress.t, run.history)
        if run.progress.t >= work.rounds or reports.interrupted():
            return


def _of_the_device(error: BaseException | None) -> bool:
    """Whether a device failed, which PyTorch often reports as a plain RuntimeError; errors of settings are that too."""
    if isinstance(error, StageError):
        return _of_the_device(error.__cause__)
    if isinstance(error, torch.AcceleratorError):
        return True
    plain = isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError)
    return plain and DEVICE.search(str(error)) is not None


def _run(work: PendingRun) -> Run:
    if is_run(work.folder):
        return Run.open(work.folder, trust=work.trust)
    return Run.create(work.experiment, work.folder, trust=work.trust)


def displayed_trials(tuning: Tuning) -> dict[Path, DisplayedRun]:
    """Every run that there may be, by folder, with the rounds that it is expected to have."""
    displayed: dict[Path, DisplayedRun] = {}
    for search in tuning.searches:
        method, total = search.method, search.rounds
        for number in range(search.planned):
            # As if the trials with the lowest numbers went on: the sum over all trials is right in any case.
            expected = max((rung.rounds for rung in search.schedule if number < rung.trials), default=0)
            displayed[search.place(number)] = DisplayedRun(method, expected, 0, f"{method}, trial {number}: ")
        for name in (WINNERS, UNTUNED):
            for seed in range(tuning.base.run.seed + 1, tuning.base.run.seed + 1 + tuning.seeds):
                place = tuning.folder / name / folder_name(method) / f"seed-{seed}"
                displayed[place] = DisplayedRun(method, total, 0, f"{method}, seed {seed}: ")
    for folder, run in displayed.items():
        run.done = len(read_lines(folder / ROUNDS))
    return displayed


def by_folder(watches: Mapping[Path, RunWatch]) -> Watch:
    """A watch of all work that shows each run to its own."""

    def watch(work: PendingRun, rounds: int, history: Sequence[Line]) -> None:
        if work.folder in watches:  # a trial that widens the range is not displayed
            watches[work.folder](rounds, history)

    return watch
