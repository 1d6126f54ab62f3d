"""The live display in a terminal: rounds, accuracy so far as a sparkline, time left. A pipe gets one line a minute."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from stratafl.cli.console import print_note
from stratafl.evaluation.flags import Notices
from stratafl.evaluation.measure import NOT_FINITE, Line
from stratafl.evaluation.metrics import METRICS
from stratafl.report.formats import minus
from stratafl.runs.advancing import DisplayedRun, Watch

BASE_SCORES = ("accuracy", "loss", "std", "worst10", NOT_FINITE)
_BARS = "▁▂▃▄▅▆▇█"
_SPARKS = 10
_NAME = 16  # letters of a method's name
EVERY = 60.0  # seconds between two lines where there is no terminal


def sparkline(values: Sequence[float], width: int = _SPARKS) -> str:
    """At most `width` small bars, one per value, from the lowest to the highest."""
    finite = [value for value in values if value == value and abs(value) != float("inf")]
    if len(finite) > width:  # the last value of each of `width` stretches
        finite = [finite[(i + 1) * len(finite) // width - 1] for i in range(width)]
    if not finite:
        return ""
    low, span = min(finite), max(max(finite) - min(finite), 1e-9)
    return "".join(_BARS[min(int((value - low) / span * len(_BARS)), len(_BARS) - 1)] for value in finite)


def scores_so_far(history: Sequence[Line]) -> tuple[str, list[float]]:
    """The test scores of deployed models so far, by the metric that the run has, after the last of them as text.

    Those on validation data if test data is not scored.
    """
    for split in ("test", "validation"):
        for key, shown in _keys(history, split):
            values = [float(line[at]) for line in history if line.get(at := f"{split}.deployed.{key}") is not None]
            if values:
                return minus(shown.format(values[-1])), values
    return "", []


def _keys(history: Sequence[Line], split: str) -> list[tuple[str, str]]:
    """What a score may be called in lines, and how it is written: a metric beyond accuracy and loss comes first."""
    place = f"{split}.deployed."
    last = next((line for line in reversed(history) if f"{place}loss" in line), {})
    further = [key.removeprefix(place) for key in last if key.startswith(place)]
    further = [key for key in further if key not in BASE_SCORES and not key.startswith("client_")]
    scores = []
    for name in further:
        metric = METRICS.get(name.partition("@")[0])
        clients = metric is None or not metric.pooled
        scores.append((f"client_{name}" if clients else name, "{:.1%}" if metric and metric.percent else "{:.4g}"))
    return [*scores, ("accuracy", "{:.1%}"), ("loss", "{:.4g}")]


class Display:
    """A line per method: rounds of all its runs, accuracy of deployed models so far, time left."""

    def __init__(self, console: Console, runs: Sequence[DisplayedRun]) -> None:
        self._console, self._runs, self._said = console, runs, time.monotonic()
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
        lines = dict.fromkeys(run.line for run in runs)
        self._tasks = {line: self._add(line, [run for run in runs if run.line == line], start=False) for line in lines}
        self._all = self._add("all", runs, visible=len(lines) > 1)

    def _add(self, name: str, runs: Sequence[DisplayedRun], **options: bool) -> TaskID:
        label = name if len(name) <= _NAME else "…" + name[1 - _NAME :]
        total, done = sum(run.rounds for run in runs), sum(run.done for run in runs)
        # Rounds done earlier are complete from the start, so they do not count for the speed.
        return self._progress.add_task(label, total=total, completed=done, score="", course="", **options)

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def watch(self, run: DisplayedRun) -> Watch:
        """What to call after each round of a run; it also notes which clients are left out from now on."""
        notices = Notices(run.done)

        def watch(rounds: int, history: Sequence[Line]) -> None:
            run.done = rounds
            self._update(run.line, history)
            for notice in notices.of(history):
                print_note(f"{run.label}{notice}", self._console)

        return watch

    def _update(self, line: str, history: Sequence[Line]) -> None:
        task = self._progress.tasks[self._tasks[line]]
        if task.start_time is None:
            self._progress.start_task(task.id)
        score, values = scores_so_far(history)
        done = sum(run.done for run in self._runs if run.line == line)
        self._progress.update(task.id, completed=done, score=score, course=sparkline(values))
        self._progress.update(self._all, completed=sum(run.done for run in self._runs))
        if not self._console.is_terminal and time.monotonic() - self._said >= EVERY:
            self._say(line, score)

    def _say(self, line: str, score: str) -> None:
        self._said = time.monotonic()
        done, rounds = (sum(getattr(run, each) for run in self._runs) for each in ("done", "rounds"))
        last = f"; {line} {score}" if score else ""
        self._console.print(f"{done:,} of {rounds:,} rounds{last}", markup=False)
