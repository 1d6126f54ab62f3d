"""Progress that a person sees: rounds, accuracy so far, a sparkline, time left; nothing where nobody watches."""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from stratafl.measure import Line
from stratafl.summary import quality

Watch = Callable[[int, Sequence[Line]], None]  # rounds done, and their lines
_BARS = "▁▂▃▄▅▆▇█"
_SPARKS = 10


def sparkline(values: Sequence[float], width: int = _SPARKS) -> str:
    """The last values as small bars, from the lowest to the highest of all."""
    known = [value for value in values if value == value and abs(value) != float("inf")]
    if not known:
        return ""
    low, span = min(known), max(max(known) - min(known), 1e-9)
    return "".join(_BARS[min(int((value - low) / span * len(_BARS)), len(_BARS) - 1)] for value in known[-width:])


class Board:
    """One line per method: rounds done, accuracy of deployed models, its course, time left."""

    def __init__(self, console: Console, lines: dict[str, int]) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[score]:>6}"),
            TextColumn(f"{{task.fields[course]:{_SPARKS}}}", style="cyan"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
            transient=True,
            disable=not console.is_terminal,
            expand=True,
        )
        self._tasks: dict[str, TaskID] = {
            name: self._progress.add_task(name, total=total, start=False, score="", course="")
            for name, total in lines.items()
        }

    def __enter__(self) -> "Board":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, name: str, completed: int, history: Sequence[Line]) -> None:
        """So many rounds of a line are done, the last of them with this history."""
        task = self._progress.tasks[self._tasks[name]]
        if task.start_time is None:
            self._progress.start_task(task.id)
        values = [value for line in history if (value := quality(line, "test.deployed")) != float("-inf")]
        score = "" if not values else f"{values[-1]:.1%}" if values[-1] >= 0 else f"{-values[-1]:.4g}"
        self._progress.update(task.id, completed=completed, score=score, course=sparkline(values))


class Interrupt:
    """Ctrl-C: the first press asks to finish the round, the second stops at once."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self._console, self._quiet = console, quiet
        self.asked = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """A signal arrived."""
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        if not self._quiet:
            self._console.print("finishing this round, then saving (Ctrl-C again stops at once)")


@contextmanager
def interruptible(console: Console, quiet: bool = False) -> Iterator[Interrupt]:
    """Handle SIGINT and SIGTERM while it lasts."""
    interrupt = Interrupt(console, quiet)
    before: dict[int, Any] = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
