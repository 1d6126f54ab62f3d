"""`strata reproduce`: a table of a paper, from its data to its verdicts; a second call continues the first."""

import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby

from rich.table import Table
from rich.text import Text

from stratafl.cli.command_options import ReproduceOptions, settings_of
from stratafl.cli.compare_command import note_work
from stratafl.cli.console import note_console, result_console, show_warnings
from stratafl.cli.display import Display
from stratafl.cli.interrupt import INTERRUPTED, Interrupt, interruptible
from stratafl.cli.report_command import write_report_if_possible
from stratafl.config.experiment import paths_in
from stratafl.config.trust import typed
from stratafl.errors import BusyError, DataError, RecordError, RunError, StrataError, counted, shown
from stratafl.evaluation.measure import Line
from stratafl.recipes import RecipeCell, recipes
from stratafl.recipes.claims import MEASURES
from stratafl.recipes.recorded import by_claims_per_minute
from stratafl.recipes.reproduction import RESULT, Reproduction
from stratafl.recipes.result import HERE, column_heads, legend, table_rows, write_result
from stratafl.report.page import REPORT
from stratafl.report.verdict import Verdict, tally
from stratafl.runs.advancing import DisplayedRun, Watch, advance_run
from stratafl.runs.comparison import MAX_SEEDS
from stratafl.runs.joined import JoinedRuns
from stratafl.tuning import advance as advance_search

_STYLES = {True: "green", False: "red", None: "dim"}


def reproduce_tables(name: str | None, options: ReproduceOptions) -> int:
    """Run all recipes of this name; what a time limit leaves out is listed, and the next call continues with it."""
    if (name is None) != options.every:
        raise RecordError("name one recipe or paper, or give --all for all recipes; see strata reproduce --list")
    if options.every and (options.rows or options.columns):
        raise RecordError("--all runs all rows and columns; name one recipe with --rows or --columns")
    minutes, seeds, settings = options.minutes, options.seeds, settings_of(options.settings)
    if minutes is not None and not 0 < minutes < float("inf"):
        raise RecordError(f"--minutes must be above 0 and finite, not {minutes:g}")
    if seeds is not None and not 1 <= seeds <= MAX_SEEDS:
        raise RecordError(f"--seeds must be from 1 to {MAX_SEEDS:,}, not {shown(seeds)}")
    names = by_claims_per_minute(options.scale) if name is None else [name]
    trusted = typed(paths_in(settings), options.trust).asked_by(name or "--all")
    with show_warnings(note_console()) as release_warnings:
        asked = [recipe.narrowed(options.rows, options.columns) for each in names for recipe in recipes(each)]
        asked = [replace(recipe, tuned=True) if options.tuned else recipe for recipe in asked]
        root, scale = options.folder, options.scale
        reproductions = [Reproduction(root, recipe, scale, settings, seeds, trusted) for recipe in asked]
        return _reproduce(reproductions, minutes, release_warnings, tables=not options.every)


def _reproduce(
    reproductions: Sequence[Reproduction],
    minutes: float | None,
    release_warnings: Callable[[], None],
    tables: bool = True,
) -> int:
    lacking = [why for each in reproductions if (why := each.lacks())]  # also raises if a setting is wrong
    outcomes = (outcome for reproduction in reproductions for _, outcome in reproduction.outcomes())
    if len(lacking) == len(reproductions) and not any(outcomes):  # runs may have been copied from another machine
        raise RunError(lacking[0])
    for reproduction in reproductions:
        reproduction.begin()
    limit = None if minutes is None else time.monotonic() + 60 * minutes
    release_warnings()
    lines, stopped = list[Text](), False
    for reproduction in reproductions:
        stopped = _run(reproduction, limit)
        judged = write_result(reproduction, shlex.join(["strata", *sys.argv[1:]]))
        lines.append(_in_one_line(reproduction, judged))
        if tables:
            _show(reproduction, judged)
        if reproduction.begun:
            write_report_if_possible([reproduction.folder, *reproduction.begun], reproduction.folder / REPORT)
        if stopped:
            break
    if len(reproductions) > 1:
        result_console().print(Text("\n").join(lines), soft_wrap=True)
    if stopped:
        note_console().print("stopped. Run the same command to continue.")
        return INTERRUPTED
    refused = [why for reproduction in reproductions for why in reproduction.refused.values()]
    if refused and not any(reproduction.begun for reproduction in reproductions):
        raise DataError(refused[0])
    if lacking:
        raise RunError(lacking[0])
    failed = [f"{' in '.join(cell)}: {why}" for each in reproductions for cell, why in each.failed.items()]
    if failed:
        raise RunError(f"{counted(len(failed), 'row')} could not be run; the first: {failed[0]}")
    return 0


def _run(reproduction: Reproduction, limit: float | None) -> bool:
    """Run every cell that is not finished; True if interrupted, and not by the time limit."""
    console, runs = note_console(), list[DisplayedRun]()
    for cell in reproduction.cells:
        label = f"{cell.row}, {cell.column}, seed {cell.seed}: "
        runs.append(DisplayedRun(cell.row, cell.experiment.run.rounds, reproduction.done(cell), label))
    with Display(console, runs) as display, interruptible(console) as interrupt:
        watches = [_with_limit(display.watch(run), interrupt, limit) for run in runs]
        pairs = zip(reproduction.cells, watches, strict=True)
        for precision, group in groupby(pairs, key=lambda pair: pair[0].experiment.run.precision):
            alike = list(group)
            joined = JoinedRuns(len(alike), precision=precision)
            try:
                joined.drive(
                    partial(_advance, reproduction, cell, joined, interrupt, watch, limit) for cell, watch in alike
                )
            except KeyboardInterrupt:  # the second press
                break
    return interrupt.asked and not _over(limit)


def _advance(
    reproduction: Reproduction,
    cell: RecipeCell,
    joined: JoinedRuns,
    interrupt: Interrupt,
    watch: Watch,
    limit: float | None,
) -> None:
    """Run a cell that is not finished, unless it cannot be run or time is over."""
    impossible = cell.column in reproduction.refused or (cell.row, cell.column) in reproduction.failed
    if (
        interrupt.asked
        or _over(limit)
        or impossible
        or reproduction.outcome(cell) is not None
        or not reproduction.able(cell)
    ):
        return
    try:
        if not _tuned(reproduction, cell, lambda: interrupt.asked or _over(limit)):
            return
        run = joined.opened(partial(reproduction.run, cell))
        if run is None:
            return
        with run, joined.declared(run.folder, run.sim):
            reproduction.check(run)
            advance_run(run, lambda: interrupt.asked, watch)
    except BusyError:  # another process runs it; the next call reads its numbers
        return
    except StrataError as error:  # reported at the end, since other cells may still run
        reproduction.failed[cell.row, cell.column] = str(error)


def _tuned(reproduction: Reproduction, cell: RecipeCell, interrupted: Callable[[], bool]) -> bool:
    """Tune the row in the column, if that is not done yet; False if it was interrupted, or cannot be done."""
    if reproduction.recipe.tuned and reproduction.choice(cell) is None:
        console = note_console()
        console.print(
            f"tuning {cell.row}, {cell.column}: {counted(len(reproduction.search(cell).points), 'trial')}", markup=False
        )
        try:
            advance_search(reproduction.search(cell), note=note_work, interrupted=interrupted)
        except DataError as error:
            reproduction.refused[cell.column] = str(error)
    return reproduction.experiment(cell) is not None


def _with_limit(watch: Watch, interrupt: Interrupt, limit: float | None) -> Watch:
    def watch_time(rounds: int, history: Sequence[Line]) -> None:
        watch(rounds, history)
        interrupt.asked |= _over(limit)

    return watch_time


def _over(limit: float | None) -> bool:
    return limit is not None and time.monotonic() >= limit


def _show(reproduction: Reproduction, judged: Sequence[Verdict]) -> None:
    console = result_console()
    if reproduction.no_evidence:
        console.print(Text(reproduction.no_evidence, style="bold yellow"))
    console.print(Text(f"{reproduction.recipe.name}: {reproduction.recipe.title}", style="bold"))
    for measure in reproduction.recipe.measures:
        console.print(_table(reproduction, measure))
    for line in legend(reproduction):
        console.print(Text(line, style="dim"))
    for verdict in judged:
        line = f"{verdict.words}: {verdict.claim} [{verdict.column}] {verdict.reason}"
        console.print(Text(line, style="" if not verdict.sure else _STYLES[verdict.holds]))
    for chosen in reproduction.tuning_lines():
        console.print(Text(f"tuned: {chosen}", style="dim"))
    for lost in reproduction.diverged():
        console.print(Text(f"diverged: {lost}", style="red"))
    for left in reproduction.not_run():
        console.print(Text(f"not run: {left}", style="dim"))
    console.print(Text(f"{tally(judged)}; written to {reproduction.folder / RESULT}", style="bold"))


def _in_one_line(reproduction: Reproduction, judged: Sequence[Verdict]) -> Text:
    ended = sum(outcome is not None for _, outcome in reproduction.outcomes())
    runs = f"{ended:,} of {counted(max(ended, len(reproduction.cells)), 'run')}"
    return Text(f"{reproduction.recipe.name}: {runs}; {tally(judged)}; {reproduction.folder / RESULT}")


def _table(reproduction: Reproduction, measure: str) -> Table:
    table = Table(header_style="bold")
    table.add_column(MEASURES[measure].replace(", ", "\n"))
    for name, what in column_heads(reproduction, measure):
        named = reproduction.shown(name).replace(" in place of ", "\nin place of ") if what == HERE else name
        table.add_column(f"{named}\n{what}", justify="right")
    for row, texts in table_rows(reproduction, measure):
        table.add_row(row.name, *texts, style="dim" if row.missing else None)
    return table
