"""A comparison on the terminal: one process, or several that take runs from it until none is left.

A run that somebody is at work on is locked, so the runs themselves are the queue: whoever finds one that is neither
finished nor locked takes it. Progress is read from the journals.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from stratafl.cli import INTERRUPTED, reporting
from stratafl.cli.consoles import remarks
from stratafl.cli.driving import advance, interrupted, resuming
from stratafl.cli.live import Display, Interrupt, Watch, interruptible, with_notices
from stratafl.config.experiment import names_code
from stratafl.errors import BusyError, StrataError
from stratafl.evaluation.measure import Line
from stratafl.runs import Comparison, Member
from stratafl.runs.directory import ROUNDS
from stratafl.runs.environment import TYPED
from stratafl.runs.journal import read_lines

_POLL = 0.2  # seconds between two looks at the journals


class _Tally:
    """How far each run is, shown as one line per method."""

    def __init__(self, display: Display, console: Console, done: dict[tuple[str, int], int]) -> None:
        self._display, self._console, self._done = display, console, done
        self._sizes: dict[tuple[str, int], int] = {}
        self._watches: dict[tuple[str, int], Watch] = {}

    def watch(self, member: Member) -> Watch:
        """The watch over one run."""
        key = (member.method, member.seed)
        if key not in self._watches:
            whose = f"{member.method}, seed {member.seed}: "
            show = partial(self.show, member)
            self._watches[key] = with_notices(show, self._console, self._done.get(key, 0), whose)
        return self._watches[key]

    def show(self, member: Member, rounds: int, history: Sequence[Line]) -> None:
        """So many rounds of a run are done."""
        self._done[member.method, member.seed] = rounds
        total = sum(done for (method, _), done in self._done.items() if method == member.method)
        self._display.show(member.method, total, history)

    def poll(self, members: Sequence[Member]) -> None:
        """Look at the journals that have grown."""
        for member in members:
            path, key = member.folder / ROUNDS, (member.method, member.seed)
            size = path.stat().st_size if path.exists() else 0
            if size > self._sizes.get(key, 0):
                self._sizes[key] = size
                lines = read_lines(path)
                self.watch(member)(len(lines), lines)


def drive(comparison: Comparison, jobs: int) -> int:
    """All runs to their end, then the ranking."""
    members = list(comparison.members())
    totals, before, done_before = Counter[str](), Counter[str](), dict[tuple[str, int], int]()
    for member in members:
        totals[member.method] += member.experiment.run.rounds
        done_before[member.method, member.seed] = len(read_lines(member.folder / ROUNDS))
        before[member.method] += done_before[member.method, member.seed]
    console = remarks()
    with Display(console, totals, before) as display, interruptible(console) as interrupt:
        tally = _Tally(display, console, done_before)
        if jobs == 1:
            done = _take(members, interrupt, tally.watch)
        else:
            done = _share(comparison, members, min(jobs, len(members)), interrupt, tally)
    if not done:
        return interrupted(comparison.folder, _names_code(members))
    reporting.show([comparison.folder])
    reporting.offer([comparison.folder], comparison.folder / reporting.REPORT)
    return 0


def _names_code(members: Sequence[Member]) -> bool:
    return any(names_code(member.experiment) for member in members)


def work(comparison: Comparison) -> int:
    """One of several processes: take runs until none is left, or until the process that started it is gone."""
    parent = os.getppid()

    def look(rounds: int, history: Sequence[Line]) -> None:
        interrupt.asked |= os.getppid() != parent

    with interruptible(remarks(), quiet=True) as interrupt:
        return 0 if _take(list(comparison.members()), interrupt, lambda member: look) else INTERRUPTED


def _take(members: Sequence[Member], interrupt: Interrupt, watch: Callable[[Member], Watch]) -> bool:
    """Every run that nobody else is at work on; False if interrupted."""
    for member in members:
        if interrupt.asked:
            return False
        try:
            with member.run() as run:
                for note in run.notes:
                    remarks().print(f"note: {member.method}, seed {member.seed}: {note}", markup=False)
                if not advance(run, interrupt, watch(member)):
                    return False
        except BusyError:
            continue
        except KeyboardInterrupt:
            return False
    return True


def _share(comparison: Comparison, members: Sequence[Member], jobs: int, interrupt: Interrupt, tally: _Tally) -> bool:
    """The same by several processes; False if they were interrupted."""
    with TemporaryDirectory() as place:
        said = [Path(place) / f"worker-{number}" for number in range(jobs)]
        workers = [_worker(comparison, jobs, path) for path in said]
        _attend(workers, members, interrupt, tally)
        lines = list(dict.fromkeys(line for path in said for line in path.read_text(errors="replace").splitlines()))
    codes = [worker.returncode for worker in workers]
    stopped = (INTERRUPTED, -signal.SIGTERM)
    for code in codes:
        if code not in (0, *stopped):
            raise StrataError(_why(code, lines, comparison))
    for line in lines:
        remarks().print(line, markup=False)
    return not set(stopped) & set(codes)


def _worker(comparison: Comparison, jobs: int, said: Path) -> "subprocess.Popen[bytes]":
    """A process that takes runs, in a session of its own: Ctrl-C reaches this process alone, which tells it."""
    # -P: a file in the current folder that is called like a package is not imported in its place.
    command = [sys.executable, "-P", "-m", "stratafl", "resume", str(comparison.folder), "--worker"]
    command += [f"--typed={name}" for name in sorted(comparison.trust.names)]
    command += ["--trust"] if comparison.trust.everything else []
    environment = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs)), **os.environ}
    environment[TYPED] = json.dumps(sys.argv)
    with said.open("wb") as errors:
        return subprocess.Popen(command, env=environment, stderr=errors, start_new_session=True)


def _attend(
    workers: "Sequence[subprocess.Popen[bytes]]", members: Sequence[Member], interrupt: Interrupt, tally: _Tally
) -> None:
    """Show how far they are; pass on the first Ctrl-C, or that one of them failed, and then the second."""
    told = 0
    while any(worker.poll() is None for worker in workers):
        try:
            time.sleep(_POLL)
            tally.poll(members)
            failed = any(worker.poll() not in (None, 0) for worker in workers)
            if (interrupt.asked or failed) and told == 0:
                told = _tell(workers, 1)
        except KeyboardInterrupt:  # the second press
            told += _tell(workers, max(2 - told, 0))
    tally.poll(members)  # what was written since the last look


def _tell(workers: "Sequence[subprocess.Popen[bytes]]", times: int) -> int:
    for number in range(times):
        time.sleep(_POLL if number else 0)  # two signals at once would arrive as one
        for worker in workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGTERM)
    return times


def _why(code: int, lines: Sequence[str], comparison: Comparison) -> str:
    complaints = [line.removeprefix("strata: ") for line in lines if line.startswith("strata: ")]
    again = resuming(comparison.folder, _names_code(list(comparison.members())))
    if complaints:
        return complaints[-1]
    return (
        f"a process of the comparison ended with {code}: {lines[-1] if lines else 'it was killed'}; go on with: {again}"
    )
