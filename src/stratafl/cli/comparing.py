"""A comparison on the terminal: one process, or several that take runs from it until none is left.

A run that somebody is at work on is locked, so the runs themselves are the queue: whoever finds one that is neither
finished nor locked takes it. Progress is read from the journals.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from stratafl.cli import INTERRUPTED, reporting
from stratafl.cli.consoles import remarks
from stratafl.cli.driving import advance, interrupted
from stratafl.cli.live import Board, Interrupt, Watch, interruptible
from stratafl.errors import BusyError, StrataError
from stratafl.measure import Line
from stratafl.runs import Comparison, Member
from stratafl.runs.files import read_lines

_POLL = 0.2  # seconds between two looks at the journals


class _Tally:
    """How far each run is, shown as one line per method."""

    def __init__(self, board: Board, done: dict[tuple[str, int], int]) -> None:
        self._board, self._done = board, done
        self._sizes: dict[tuple[str, int], int] = {}

    def watch(self, member: Member) -> Watch:
        """A watch over one run."""
        return lambda rounds, history: self.show(member, rounds, history)

    def show(self, member: Member, rounds: int, history: Sequence[Line]) -> None:
        """So many rounds of a run are done."""
        self._done[member.method, member.seed] = rounds
        total = sum(done for (method, _), done in self._done.items() if method == member.method)
        self._board.show(member.method, total, history)

    def poll(self, members: Sequence[Member]) -> None:
        """Look at the journals that have grown."""
        for member in members:
            path, key = member.folder / "rounds.jsonl", (member.method, member.seed)
            size = path.stat().st_size if path.exists() else 0
            if size > self._sizes.get(key, 0):
                self._sizes[key] = size
                lines = read_lines(path)
                self.show(member, len(lines), lines)


def drive(comparison: Comparison, jobs: int) -> int:
    """All runs to their end, then the ranking."""
    members = list(comparison.members())
    totals, before, done_before = Counter[str](), Counter[str](), dict[tuple[str, int], int]()
    for member in members:
        totals[member.method] += member.experiment.run.rounds
        done_before[member.method, member.seed] = len(read_lines(member.folder / "rounds.jsonl"))
        before[member.method] += done_before[member.method, member.seed]
    console = remarks()
    with Board(console, totals, before) as board, interruptible(console) as interrupt:
        tally = _Tally(board, done_before)
        if jobs == 1:
            done = _take(members, interrupt, tally.watch)
        else:
            done = _share(comparison, members, min(jobs, len(members)), interrupt, tally)
    if not done:
        return interrupted(comparison.folder)
    reporting.show([comparison.folder])
    return 0


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
    return True


def _share(comparison: Comparison, members: Sequence[Member], jobs: int, interrupt: Interrupt, tally: _Tally) -> bool:
    """The same by several processes."""
    command = [sys.executable, "-m", "stratafl", "resume", str(comparison.folder), "--worker"]
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    # In a session of their own: Ctrl-C reaches this process alone, which tells them.
    start = partial(subprocess.Popen, command, env=environment, stderr=subprocess.PIPE, text=True)
    workers = [start(start_new_session=True) for _ in range(jobs)]
    told = False
    try:
        while any(worker.poll() is None for worker in workers):
            time.sleep(_POLL)
            tally.poll(members)
            failed = any(worker.poll() not in (None, 0) for worker in workers)
            if (interrupt.asked or failed) and not told:
                told = True
                _tell(workers, signal.SIGTERM)
    except KeyboardInterrupt:
        _tell(workers, signal.SIGTERM)  # a second one: they stop at once
    said = [worker.communicate()[1] for worker in workers]
    codes = [worker.returncode for worker in workers]
    stopped = (INTERRUPTED, -signal.SIGTERM)
    for text, code in zip(said, codes, strict=True):
        if code not in (0, *stopped):
            raise StrataError(
                text.strip().removeprefix("strata: ").splitlines()[-1] if text.strip() else f"exit {code}"
            )
    for line in dict.fromkeys(line for text in said for line in text.splitlines()):
        remarks().print(line, markup=False)
    return not set(stopped) & set(codes)


def _tell(workers: Sequence["subprocess.Popen[str]"], number: int) -> None:
    for worker in workers:
        if worker.poll() is None:
            worker.send_signal(number)
