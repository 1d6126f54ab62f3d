"""`strata tune`: every method gets the same trials on validation data, then its choice runs on fresh seeds."""

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.text import Text

from stratafl.cli.command_options import RunOptions, experiment_of, names_in
from stratafl.cli.console import note_console, print_note, result_console, show_warnings, titled_table
from stratafl.cli.display import Display, DisplayedRun, Watch
from stratafl.cli.interrupt import INTERRUPTED, interruptible
from stratafl.cli.report_command import REPORT, pair_lines, ranked_study, write_report_if_possible
from stratafl.cli.run_command import print_interrupted, resume_command, unused_run_folder
from stratafl.cli.workers import Crew, share
from stratafl.config.experiment import paths_in
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.errors import counted
from stratafl.evaluation.measure import Line
from stratafl.report import Study
from stratafl.runs import refuse_existing
from stratafl.runs.comparison import folder_name
from stratafl.runs.directory import ROUNDS
from stratafl.runs.joined import usual_jobs
from stratafl.runs.json_files import read_lines
from stratafl.tuning import PendingRun, Tuning, TuningPlan, advance
from stratafl.tuning.halving import Rung
from stratafl.tuning.tuning import UNTUNED, WINNERS
from stratafl.tuning.tuning_result import HEAD, caption, remarks, result_rows, write_results


def start_tuning(options: RunOptions, names: str, plan: TuningPlan, seeds: int, jobs: int | None) -> int:
    """A new tuning, to its end or until it is interrupted; the exit code."""
    settings, base, methods = options.settings(), experiment_of(options.config), names_in(names)
    trusted = options.trusted([*methods, *paths_in(settings)])
    with show_warnings(note_console()) as release_warnings:
        if options.out is not None:
            refuse_existing(options.out)
        folder = options.out or unused_run_folder("tune")
        tuning = Tuning.create(folder, base, methods, settings, plan, seeds, trusted)
        release_warnings()
        return drive_tuning(tuning, jobs)


def resume_tuning(folder: Path, jobs: int | None, trust: Trust = NO_TRUST) -> int:
    with show_warnings(note_console()) as release_warnings:
        tuning = Tuning.open(folder, trust)
        release_warnings()
        return drive_tuning(tuning, jobs)


def drive_tuning(tuning: Tuning, jobs: int | None) -> int:
    """Finish all trials and the runs of what was chosen, then print the table and write the report; the exit code."""
    console, again = note_console(), resume_command(tuning.folder, tuning.names_code)
    for sentence in plan_sentences(tuning):
        console.print(sentence, markup=False, soft_wrap=False)
    runs = _displayed(tuning)
    jobs = jobs or usual_jobs(len(runs), tuning.base.run.device)
    with Display(console, list(runs.values())) as display, interruptible(console) as interrupt:
        watches = {folder: display.watch(run) for folder, run in runs.items()}
        if jobs == 1:
            finished = advance(tuning, _by_folder(watches), _noted, lambda: interrupt.asked)
        else:
            finished = share(Crew(tuning.folder, tuning.trust, again, jobs), interrupt, watches)
    if not finished:
        return print_interrupted(tuning.folder, tuning.names_code)
    study = print_tuning(tuning)
    write_report_if_possible([tuning.folder], tuning.folder / REPORT, study)
    return 0


def take_tuning(folder: Path, trust: Trust, jobs: int) -> int:
    """The work of one of several processes: whatever is left, or until the process that started it ends."""
    parent = os.getppid()
    with interruptible(note_console(), quiet=True) as interrupt:
        tuning = Tuning.open(folder, trust)
        done = advance(tuning, note=_noted, interrupted=lambda: interrupt.asked or os.getppid() != parent, jobs=jobs)
    return 0 if done else INTERRUPTED


def plan_sentences(tuning: Tuning) -> list[str]:
    """What will be tried, method by method where they differ, and what it costs."""
    plan, seed, sentences = tuning.plan, tuning.base.run.seed, list[str]()
    for search in tuning.searches:
        tried = {each.path: {str(point[each.path]) for point in search.points} for each in search.space}
        several = [f"{_plain(path)} ({len(values)} values)" for path, values in tried.items() if len(values) > 1]
        left = [_plain(path) for path, values in tried.items() if len(values) == 1]
        if plan.sampler == "tpe":
            several, left = [*map(_plain, tried), "by TPE"], []
        text = f"{search.method}: {counted(search.planned, 'trial')} of {', '.join(several) or 'its defaults'}"
        sentences.append(text + (f"; left at default: {', '.join(left)}" if left else ""))
    first, *rest = tuning.searches[0].schedule
    course = [f"{first.trials} for {counted(first.rounds, 'round')}", *(f"{k.trials} for {k.rounds:,}" for k in rest)]
    fresh = f"seeds {seed + 1} to {seed + tuning.seeds}" if tuning.seeds > 1 else f"seed {seed + 1}"
    whose = "of the method with the fewest local steps" if plan.budget == "steps" else "of each method"
    return [
        *sentences,
        f"trials {whose}: {' → '.join(course)}",
        f"trials use validation data; the chosen settings then run on {fresh}",
    ]


def print_tuning(tuning: Tuning) -> Study:
    """Print the table of the result, which methods are better, and what to do next; returns the runs of the winners."""
    results, console = write_results(tuning), result_console()
    table = titled_table("tuned alike", HEAD, names=["method"], text=["chosen"])
    for row in result_rows(results):
        table.add_row(*(cell.replace(" %", "%") for cell in row))
    console.print(table)
    console.print(Text(caption(tuning), style="dim"))
    for sentence in remarks(results):
        console.print(Text(sentence, style="yellow"))
    study = ranked_study([tuning.folder])
    for verdict in pair_lines(study):
        console.print(verdict)
    spent = ", ".join(f"{each.method} {each.rounds:,} rounds and {each.steps:,} steps" for each in results)
    console.print(Text(f"spent on trials: {spent}", style="dim"))
    console.print(Text(f"written to {tuning.folder}: tuned.toml, tuned.csv, trials.csv", style="dim"))
    place = shlex.quote(str(tuning.folder))
    console.print(Text(f"the ranking, and who gains: strata report {place}", style="dim"))
    seeds = max(10, 2 * tuning.seeds)  # those of the winners are the first of them
    console.print(Text(f"more seeds of what was chosen: strata compare --tuned {place} --seeds {seeds}", style="dim"))
    return study


def _displayed(tuning: Tuning) -> dict[Path, DisplayedRun]:
    """Every run that there may be, with the rounds that it is expected to have."""
    displayed: dict[Path, DisplayedRun] = {}
    for search in tuning.searches:
        method, total = search.method, search.rounds
        for number in range(search.planned):
            expected = _expected(search.schedule, number)
            displayed[search.place(number)] = DisplayedRun(method, expected, 0, f"{method}, trial {number}: ")
        for name in (WINNERS, UNTUNED):
            for seed in range(tuning.base.run.seed + 1, tuning.base.run.seed + 1 + tuning.seeds):
                place = tuning.folder / name / folder_name(method) / f"seed-{seed}"
                displayed[place] = DisplayedRun(method, total, 0, f"{method}, seed {seed}: ")
    for folder, run in displayed.items():
        run.done = len(read_lines(folder / ROUNDS))
    return displayed


def _expected(schedule: Sequence[Rung], number: int) -> int:
    """The rounds of a trial if those with the lowest numbers went on; the sum over all trials is right in any case."""
    return max((rung.rounds for rung in schedule if number < rung.trials), default=0)


def _by_folder(watches: dict[Path, Watch]) -> Callable[[PendingRun, int, Sequence[Line]], None]:
    def watch(work: PendingRun, rounds: int, history: Sequence[Line]) -> None:
        if work.folder in watches:  # one beyond the range is not
            watches[work.folder](rounds, history)

    return watch


def _noted(work: PendingRun, message: str) -> None:
    print_note(f"{work.title}: {message}")


def _plain(path: str) -> str:
    return path.removeprefix("algorithm.")
