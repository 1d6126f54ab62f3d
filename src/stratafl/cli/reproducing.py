"""`reproduce`: a table of a paper from its data to its verdicts, which can be stopped and gone on with."""

import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from stratafl.cli import INTERRUPTED, reporting
from stratafl.cli.consoles import remarks, results, warnings_on
from stratafl.cli.driving import advance
from stratafl.cli.live import Display, Interrupt, Watch, interruptible, with_notices
from stratafl.config.experiment import paths_in
from stratafl.config.settings import Settings
from stratafl.config.trust import typed
from stratafl.errors import BusyError, DataError, RecordError, RunError, StrataError, shown
from stratafl.evaluation.measure import Line
from stratafl.recipes import Cell, recipes
from stratafl.recipes.claims import MEASURES
from stratafl.recipes.reproduction import RESULT, Reproduction
from stratafl.recipes.result import HERE, cells, heads, legend, write_result
from stratafl.report.verdict import Verdict, tally
from stratafl.runs.comparison import SEEDS

_STYLES = {True: "green", False: "red", None: "dim"}


def reproduce(
    name: str,
    scale: str,
    settings: Settings,
    seeds: int | None,
    out: Path | None,
    minutes: float | None,
    trust: bool = False,
) -> int:
    """All recipes of this name; what a time limit leaves out is listed, and the next call goes on with it."""
    if minutes is not None and not 0 < minutes < float("inf"):
        raise RecordError(f"--minutes is a time above 0, not {minutes:g}")
    if seeds is not None and not 1 <= seeds <= SEEDS:
        raise RecordError(f"--seeds is a whole number from 1 to {SEEDS:,}, not {shown(seeds)}")
    root = out or Path("runs") / "reproduce"
    trusted = typed(paths_in(settings), trust).asked_by(name)
    with warnings_on(remarks()) as settled:
        made = [Reproduction(root, recipe, scale, settings, seeds, trusted) for recipe in recipes(name)]
        return _reproduce(made, minutes, settled)


def _reproduce(made: Sequence[Reproduction], minutes: float | None, settled: Callable[[], None]) -> int:
    lacking = [why for each in made if (why := each.lacks())]  # and what is wrong with a setting is said here
    if len(lacking) == len(made) and not any(one for each in made for _, one in each.outcomes()):
        raise RunError(lacking[0])
    for each in made:
        each.begin()
    limit = None if minutes is None else time.monotonic() + 60 * minutes
    settled()
    for each in made:
        stopped = _run(each, limit)
        judged = write_result(each, shlex.join(["strata", *sys.argv[1:]]))
        _show(each, judged)
        if each.begun:
            reporting.offer([each.folder, *each.begun], each.folder / reporting.REPORT)
        if stopped:
            remarks().print("stopped; call it again to go on")
            return INTERRUPTED
    refused = [why for each in made for why in each.refused.values()]
    if refused and not any(each.begun for each in made):
        raise DataError(refused[0])
    if lacking:
        raise RunError(lacking[0])
    failed = [f"{' in '.join(cell)}: {why}" for each in made for cell, why in each.failed.items()]
    if failed:
        raise RunError(f"{len(failed)} of the rows could not be run, the first: {failed[0]}")
    return 0


def _run(made: Reproduction, limit: float | None) -> bool:
    """Every cell that is not at its end; whether somebody asked to stop."""
    console = remarks()
    totals, before = Counter[str](), Counter[str]()
    for each in made.cells:
        totals[each.row] += each.experiment.run.rounds
        before[each.row] += made.done(each)
    counts = Counter(before)
    with Display(console, totals, before) as display, interruptible(console) as interrupt:
        for each in made.cells:
            if interrupt.asked or _over(limit):
                break
            impossible = each.column in made.refused or (each.row, each.column) in made.failed
            if not impossible and made.outcome(each) is None and made.able(each):
                begun = made.done(each)
                watch = _watch(each, begun, counts, display, interrupt, limit)
                whose = f"{each.row}, {each.column}, seed {each.seed}: "
                _advance(made, each, interrupt, with_notices(watch, console, begun, whose))
    return interrupt.asked and not _over(limit)


def _advance(made: Reproduction, each: Cell, interrupt: Interrupt, watch: Watch) -> None:
    try:
        run = made.run(each)
        if run is None:
            return
        with run:
            made.check(run)
            advance(run, interrupt, watch)
    except BusyError:  # another process is at it, and its numbers will be there next time
        return
    except StrataError as error:  # said at the end: the other cells have nothing to do with it
        made.failed[each.row, each.column] = str(error)


def _watch(
    each: Cell, begun: int, counts: Counter[str], display: Display, interrupt: Interrupt, limit: float | None
) -> Watch:
    others = counts[each.row] - begun

    def watch(rounds: int, history: Sequence[Line]) -> None:
        counts[each.row] = others + rounds
        display.show(each.row, counts[each.row], history)
        interrupt.asked |= _over(limit)

    return watch


def _over(limit: float | None) -> bool:
    return limit is not None and time.monotonic() >= limit


def _show(made: Reproduction, judged: Sequence[Verdict]) -> None:
    console = results()
    console.print(Text(f"{made.recipe.name}: {made.recipe.title}", style="bold"))
    for measure in made.recipe.measures:
        console.print(_table(made, measure))
    for line in legend(made):
        console.print(Text(line, style="dim"))
    for verdict in judged:
        line = f"{verdict.words}: {verdict.claim} [{verdict.column}] {verdict.reason}"
        console.print(Text(line, style="" if verdict.noise or verdict.stand_in else _STYLES[verdict.holds]))
    for lost in made.diverged():
        console.print(Text(f"diverged: {lost}", style="red"))
    for left in made.not_run():
        console.print(Text(f"not run: {left}", style="dim"))
    console.print(Text(f"{tally(judged)}; written to {made.folder / RESULT}", style="bold"))


def _table(made: Reproduction, measure: str) -> Table:
    table = Table(header_style="bold")
    table.add_column(MEASURES[measure].replace(", ", "\n"))
    for name, what in heads(made, measure):
        named = made.shown(name).replace(" in place of ", "\nin place of ") if what == HERE else name
        table.add_column(f"{named}\n{what}", justify="right")
    for row, texts in cells(made, measure):
        table.add_row(row.name, *texts, style="dim" if row.missing else None)
    return table
