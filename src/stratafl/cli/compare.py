"""`strata compare` and `strata resume`: several methods and seeds, by one process or by several.

A run that a process works on is locked, so the runs themselves are the queue: a process takes any run that is neither
finished nor locked, until none is left. Progress is read from the journals.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from rich.console import Console

from stratafl.cli.console import note_console, print_note, show_warnings
from stratafl.cli.display import Display, DisplayedRun, Watch
from stratafl.cli.interrupt import INTERRUPTED, Interrupt, interruptible
from stratafl.cli.options import RunOptions, experiment_of, names_in
from stratafl.cli.report import REPORT, print_ranking, write_report_if_possible
from stratafl.cli.run import advance, drive, new_folder, print_interrupted, resume_command, torchrun_group
from stratafl.config.experiment import names_code, paths_in
from stratafl.config.trust import NOTHING, Trust
from stratafl.errors import BusyError, RunError, StrataError
from stratafl.evaluation.measure import Line
from stratafl.execute import ProcessGroup
from stratafl.runs import Comparison, Member, Run, is_comparison, refuse_existing
from stratafl.runs.directory import ROUNDS
from stratafl.runs.environment import TYPED
from stratafl.runs.journal import read_lines

Worker: TypeAlias = "subprocess.Popen[bytes]"
_POLL = 0.2  # seconds between two looks at the journals


def start_comparison(options: RunOptions, names: str, seeds: int, jobs: int, vary: str = "all") -> int:
    """A new comparison, to its end or until it is interrupted; the exit code."""
    settings, base, methods = options.settings(), experiment_of(options.config), names_in(names)
    trusted = options.trusted([*methods, *paths_in(settings)])
    with torchrun_group() as process_group, show_warnings(note_console()) as release_warnings:
        refuse_torchrun(process_group)
        if options.out is not None:
            refuse_existing(options.out)
        folder = options.out or new_folder("compare")
        comparison = Comparison.create(folder, base, methods, seeds, settings, trusted, vary)
        release_warnings()
        return drive_comparison(comparison, jobs)


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


def refuse_torchrun(process_group: ProcessGroup) -> None:
    """Raise if there are several processes: a comparison has processes of its own."""
    if process_group.world_size > 1:
        raise RunError(
            f"a comparison cannot run in {process_group.world_size} processes of torchrun: start it without torchrun "
            "and choose the number of processes with --jobs"
        )


def drive_comparison(comparison: Comparison, jobs: int) -> int:
    """Finish all runs, then print the ranking and write the report; the exit code."""
    members, console, runs = list(comparison.members()), note_console(), list[DisplayedRun]()
    for each in members:
        done = len(read_lines(each.folder / ROUNDS))
        label = f"{each.method}, seed {each.seed}: "
        runs.append(DisplayedRun(each.method, each.experiment.run.rounds, done, label))
    with Display(console, runs) as display, interruptible(console) as interrupt:
        watches = {member.folder: display.watch(run) for member, run in zip(members, runs, strict=True)}
        if jobs == 1:
            finished = _take(members, interrupt, watches)
        else:
            finished = _share(comparison, min(jobs, len(members)), interrupt, watches)
    if not finished:
        return print_interrupted(comparison.folder, _names_code(members))
    print_ranking([comparison.folder])
    write_report_if_possible([comparison.folder], comparison.folder / REPORT)
    return 0


def _names_code(members: Sequence[Member]) -> bool:
    return any(names_code(member.experiment) for member in members)


def take_runs(comparison: Comparison) -> int:
    """The work of one of several processes: runs until none is left, or until the process that started it ends."""
    parent = os.getppid()

    def watch(rounds: int, history: Sequence[Line]) -> None:
        interrupt.asked |= os.getppid() != parent

    members = list(comparison.members())
    with interruptible(note_console(), quiet=True) as interrupt:
        done = _take(members, interrupt, {member.folder: watch for member in members})
    return 0 if done else INTERRUPTED


def _take(members: Sequence[Member], interrupt: Interrupt, watches: Mapping[Path, Watch]) -> bool:
    """Finish every run that no other process works on; False if interrupted."""
    for member in members:
        if interrupt.asked:
            return False
        try:
            with member.run() as run:
                for note in run.notes:
                    print_note(f"{member.method}, seed {member.seed}: {note}")
                if not advance(run, interrupt, watches[member.folder]):
                    return False
        except BusyError:
            continue
        except KeyboardInterrupt:
            return False
    return True


def _share(comparison: Comparison, jobs: int, interrupt: Interrupt, watches: Mapping[Path, Watch]) -> bool:
    """Finish every run with several processes; False if interrupted."""
    with TemporaryDirectory() as folder:
        logs = [Path(folder) / f"worker-{number}" for number in range(jobs)]
        workers = [_worker(comparison, jobs, log) for log in logs]
        _wait(workers, interrupt, watches)
        lines = list(dict.fromkeys(line for log in logs for line in log.read_text(errors="replace").splitlines()))
    codes = [worker.returncode for worker in workers]
    stopped = (INTERRUPTED, -signal.SIGTERM)
    for code in codes:
        if code not in (0, *stopped):
            raise StrataError(_failure(code, lines, comparison))
    for line in lines:
        note_console().print(line, markup=False)
    return not set(stopped) & set(codes)


def _worker(comparison: Comparison, jobs: int, log: Path) -> Worker:
    """A process that takes runs, in a session of its own: Ctrl-C reaches only this process, which passes it on."""
    # -P: Python does not import a file of the current folder in place of a package with the same name.
    command = [sys.executable, "-P", "-m", "stratafl", "resume", str(comparison.folder), "--worker"]
    command += [f"--typed={name}" for name in sorted(comparison.trust.names)]
    command += ["--trust"] if comparison.trust.everything else []
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs)), **os.environ}
    environment[TYPED] = json.dumps(sys.argv)
    with log.open("wb") as errors:
        return subprocess.Popen(command, env=environment, stderr=errors, start_new_session=True)


def _wait(workers: Sequence[Worker], interrupt: Interrupt, watches: Mapping[Path, Watch]) -> None:
    """Show progress until all have ended; pass on the first Ctrl-C (also if a worker failed), then the second."""
    sent, sizes = 0, dict.fromkeys(watches, 0)
    while any(worker.poll() is None for worker in workers):
        try:
            time.sleep(_POLL)
            _read_journals(watches, sizes)
            failed = any(worker.poll() not in (None, 0) for worker in workers)
            if (interrupt.asked or failed) and sent == 0:
                sent = _terminate(workers, 1)
        except KeyboardInterrupt:  # the second press
            sent += _terminate(workers, max(2 - sent, 0))
    _read_journals(watches, sizes)  # what was written since the last time


def _read_journals(watches: Mapping[Path, Watch], sizes: dict[Path, int]) -> None:
    """Show the journals that have grown since they had these sizes."""
    for folder, watch in watches.items():
        path = folder / ROUNDS
        size = path.stat().st_size if path.exists() else 0
        if size > sizes[folder]:
            sizes[folder] = size
            lines = read_lines(path)
            watch(len(lines), lines)


def _terminate(workers: Sequence[Worker], times: int) -> int:
    for number in range(times):
        time.sleep(_POLL if number else 0)  # two signals at once would arrive as one
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
    return times


def _failure(code: int, lines: Sequence[str], comparison: Comparison) -> str:
    errors = [line.removeprefix("strata: ") for line in lines if line.startswith("strata: ")]
    if errors:
        return errors[-1]
    again = resume_command(comparison.folder, _names_code(list(comparison.members())))
    last = lines[-1] if lines else "it was killed"
    return f"a process of the comparison ended with code {code}: {last}; continue with: {again}"
