"""Progress that a person sees: rounds, accuracy so far, a sparkline, time left; nothing where nobody watches."""

import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from stratafl.evaluation.flags import Notices
from stratafl.evaluation.measure import Line
from stratafl.report.formats import minus

Watch = Callable[[int, Sequence[Line]], None]  # rounds done, and their lines
_BARS = "▁▂▃▄▅▆▇█"
_SPARKS = 10
_NAME = 16  # letters of a method's name


def sparkline(values: Sequence[float], width: int = _SPARKS) -> str:
    """The course of the values as at most `width` small bars, from the lowest to the highest."""
    known = [value for value in values if value == value and abs(value) != float("inf")]
    if len(known) > width:  # the last value of each of `width` stretches
        known = [known[(i + 1) * len(known) // width - 1] for i in range(width)]
    if not known:
        return ""
    low, span = min(known), max(max(known) - min(known), 1e-9)
    return "".join(_BARS[min(int((value - low) / span * len(_BARS)), len(_BARS) - 1)] for value in known)


def course(history: Sequence[Line]) -> tuple[str, list[float]]:
    """The test accuracies of deployed models so far, or without classes the losses; and the last of them in words."""
    for key, shown in (("accuracy", "{:.1%}"), ("loss", "{:.4g}")):
        values = [float(line[at]) for line in history if line.get(at := f"test.deployed.{key}") is not None]
        if values:
            return minus(shown.format(values[-1])), values
    return "", []


class Display:
    """One line per method: rounds done, accuracy of deployed models, its course, time left."""

    def __init__(self, console: Console, lines: Mapping[str, int], done: Mapping[str, int]) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[score]:>6}"),
            TextColumn(f"{{task.fields[course]:{_SPARKS}}}", style="cyan"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {
            name: self._add(_short(name), total, done[name], start=False) for name, total in lines.items()
        }
        self._all = self._add("all", sum(lines.values()), sum(done.values()), visible=len(lines) > 1)

    def _add(self, name: str, total: int, done: int, start: bool = True, visible: bool = True) -> TaskID:
        # What was done earlier is there from the start, so that it does not count for the speed.
        return self._progress.add_task(
            name, total=total, completed=done, start=start, visible=visible, score="", course=""
        )

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, name: str, completed: int, history: Sequence[Line]) -> None:
        """So many rounds of a line are done, the last of them with this history."""
        task = self._progress.tasks[self._tasks[name]]
        if task.start_time is None:
            self._progress.start_task(task.id)
        score, values = course(history)
        self._progress.update(task.id, completed=completed, score=score, course=sparkline(values))
        done = sum(self._progress.tasks[each].completed for each in self._tasks.values())
        self._progress.update(self._all, completed=done)


def with_notices(watch: Watch, console: Console, begun: int, whose: str = "") -> Watch:
    """A watch that also says which clients are left out, in rounds after those that were done when it began."""
    notices = Notices(begun)

    def look(rounds: int, history: Sequence[Line]) -> None:
        watch(rounds, history)
        for notice in notices.of(history):
            console.print(Text.assemble(("note: ", "yellow"), f"{whose}{notice}"))

    return look


def _short(name: str) -> str:
    return name if len(name) <= _NAME else "…" + name[1 - _NAME :]


class Interrupt:
    """Ctrl-C: the first press asks to finish the round, the second stops at once, unless others depend on this."""

    def __init__(self, console: Console, quiet: bool = False, patient: bool = False) -> None:
        self._console, self._quiet, self._patient = console, quiet, patient
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """A signal arrived."""
        if self.asked:
            if self._patient:  # torchrun passes on what the terminal has sent already
                return
            raise KeyboardInterrupt
        self.asked = True
        if not self._quiet:
            again = "" if self._patient else " (Ctrl-C again stops at once)"
            self._console.print(f"finishing this round, then saving{again}")


def _in_front() -> bool:
    """Whether this process is the one that the terminal talks to."""
    try:
        return sys.stdin is not None and sys.stdin.isatty() and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except OSError:  # a terminal, but not ours
        return False


@contextmanager
def _no_echo_of_controls() -> Iterator[None]:
    """Keep the terminal from writing ^C into the progress display."""
    # In the background, changing the terminal would stop the process.
    if not _in_front():
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    changed = termios.tcgetattr(keyboard)
    changed[3] &= ~termios.ECHOCTL
    termios.tcsetattr(keyboard, termios.TCSANOW, changed)
    try:
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSANOW, before)


@contextmanager
def interruptible(console: Console, quiet: bool = False, patient: bool = False) -> Iterator[Interrupt]:
    """Handle SIGINT and SIGTERM while it lasts."""
    interrupt = Interrupt(console, quiet, patient)
    before: dict[int, Any] = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with _no_echo_of_controls():
            yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
