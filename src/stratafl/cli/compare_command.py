"""`strata compare`, `strata tune` and `strata resume`: many runs in one directory, by one process or by several.

A run that a process works on is locked, so the runs themselves are the queue: a process takes any run that is neither
finished nor locked, until none is left. Progress is read from the journals. In a tuning every method gets the same
trials on validation data, then its choice runs on fresh seeds.
"""

import os
import shlex
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stratafl.api.added import stored_numbers
from stratafl.cli.command_options import COMPARED, RunOptions, experiment_of, names_in
from stratafl.cli.console import note_console, print_note, result_console, show_warnings, titled_table
from stratafl.cli.display import Display
from stratafl.cli.interrupt import INTERRUPTED, interruptible
from stratafl.cli.report_command import pair_lines, print_ranking, write_report_if_possible
from stratafl.cli.run_command import drive, print_interrupted, resume_command, torchrun_group
from stratafl.config.experiment import Experiment, paths_in
from stratafl.config.setting_tables import Settings
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.data import DATASETS
from stratafl.errors import RunError, counted, shown
from stratafl.evaluation.guard import SAFE
from stratafl.execute import ProcessGroup
from stratafl.report import Study
from stratafl.report.guards import guard_option
from stratafl.report.in_short import suggested_method
from stratafl.report.page import REPORT
from stratafl.report.study import ranked_study
from stratafl.runs import Comparison, Run, is_comparison, refuse_existing
from stratafl.runs.advancing import advance_comparison, displayed_runs
from stratafl.runs.directory import CONFIG, TUNING, unused_run_folder
from stratafl.runs.extension import extend_run
from stratafl.runs.joined import usual_jobs
from stratafl.runs.logistic import write_baselines
from stratafl.runs.workers import Crew, share
from stratafl.tuning import PendingRun, Tuning, TuningPlan, advance
from stratafl.tuning.reuse import with_tuned
from stratafl.tuning.tuning import is_tuning, read_tuned
from stratafl.tuning.tuning_result import HEAD, caption, remarks, result_rows, write_results
from stratafl.tuning.worker import by_folder, displayed_trials


def start_comparison(
    options: RunOptions, names: str, seeds: int, jobs: int | None, vary: str = "all", tuned: Path | None = None
) -> int:
    """A new comparison, to its end or until it is interrupted; the exit code.

    `tuned` is the directory of a tuning: its methods with what it chose, its data and model, and seeds after its own,
    unless the options say otherwise.
    """
    typed, methods = options.settings(), names_in(names)
    base = experiment_of(options.config, typed)
    trusted = options.trusted([*methods, *paths_in(typed)])
    with torchrun_group() as process_group, show_warnings(note_console()) as release_warnings:
        refuse_torchrun(process_group)
        if options.out is not None:
            refuse_existing(options.out)
        folder = options.out or unused_run_folder("compare")
        if tuned is None:
            comparison = Comparison.create(folder, base, methods, seeds, typed, trusted, vary)
        else:
            methods = methods if names != COMPARED else list(read_tuned(tuned))
            config, asked = None if options.config is None else base, trusted.asked_by(tuned / TUNING)

            def create(base: Experiment, settings: Settings) -> Comparison:
                return Comparison.create(folder, base, methods, seeds, settings, asked, vary)

            comparison = with_tuned(tuned, methods, typed, config, create)
        release_warnings()
        return drive_comparison(comparison, jobs)


def _say_added(folder: Path) -> None:
    """Name clients that were added before: their models are of a round that no longer counts."""
    if names := stored_numbers(folder):
        listed = ", ".join(f"'{shown(name)}'" for name in names)
        note_console().print(f"note: models of added clients stay as they are, add them again: {listed}", markup=False)


def resume_directory(
    folder: Path, jobs: int | None, worker: bool, trust: Trust = NO_TRUST, rounds: int | None = None
) -> int:
    """Continue to the end or until it is interrupted, with `rounds` in all if they are given.

    A `worker` is a process that `compare --jobs` started.
    """
    if worker:
        with show_warnings(Console(quiet=True)):  # the process that started this one has printed them
            if is_tuning(folder):
                return take_tuning(folder, trust, jobs or 1)
            return take_runs(Comparison.open(folder, trust), jobs or 1)

    def reopen(process_group: ProcessGroup) -> Run:
        if not folder.is_dir():
            raise RunError(f"there is no folder '{folder}': give the directory of a run, a comparison or a tuning")
        if is_comparison(folder) or is_tuning(folder):
            refuse_torchrun(process_group)
        if rounds is not None:
            extend_run(folder, rounds, trust)
            _say_added(folder)
        run = Run.open(folder, process_group, trust)
        if run.finished:
            run.notes.append("this run is already finished: there is nothing to do")
        return run

    if rounds is not None and (is_comparison(folder) or is_tuning(folder)):
        raise RunError(
            f"--rounds extends one run, and '{folder}' holds several: leave it out, or start it again longer"
        )
    with torchrun_group() as process_group:
        if process_group.world_size > 1 or not (is_comparison(folder) or is_tuning(folder)):
            return drive(process_group, reopen, trust)
        with show_warnings(note_console()) as release_warnings:
            opened = Tuning.open(folder, trust) if is_tuning(folder) else Comparison.open(folder, trust)
            release_warnings()
            return drive_tuning(opened, jobs) if isinstance(opened, Tuning) else drive_comparison(opened, jobs)


def refuse_torchrun(process_group: ProcessGroup) -> None:
    """Raise if there are several processes: a comparison has processes of its own."""
    if process_group.world_size > 1:
        started = f"torchrun started {process_group.world_size} processes, but a comparison starts its own"
        raise RunError(f"{started}: start it without torchrun and choose the number of processes with --jobs")


def drive_comparison(comparison: Comparison, jobs: int | None) -> int:
    """Finish all runs, then print the ranking and write the report; the exit code."""
    console, runs = note_console(), displayed_runs(comparison)
    jobs = jobs or usual_jobs(len(runs), comparison.base.run.device)
    with Display(console, list(runs.values())) as display, interruptible(console) as interrupt:
        watches = {folder: display.watch(run) for folder, run in runs.items()}
        if jobs == 1:
            finished = advance_comparison(comparison, watches, print_note, lambda: interrupt.asked)
        else:
            again = resume_command(comparison.folder, comparison.names_code)
            crew = Crew(comparison.folder, comparison.trust, again, min(jobs, len(runs)))
            finished = share(crew, watches, _print_line, lambda: interrupt.asked)
    if not finished:
        return print_interrupted(comparison.folder, comparison.names_code)
    write_baselines(comparison)
    study = print_ranking([comparison.folder], details=False)
    write_report_if_possible([comparison.folder], comparison.folder / REPORT, study)
    print_next(study, comparison.folder)
    return 0


def print_next(study: Study, folder: Path) -> None:
    """What to do now, one line each: with these runs, then with data of one's own."""
    method, runs = suggested_method(study), {run.config["algorithm"]["name"]: run for run in reversed(study.outcomes)}
    run, is_known = runs.get(method, study.outcomes[0]), study.outcomes[0].config["data"]["name"] in DATASETS
    # A file of the user's own needs the names of its columns, the model and the metric as well: the run has them all.
    trust = " --trust" if any(":" in run.config[table]["name"] for table in ("algorithm", "model")) else ""
    source = "--data my.csv" if is_known else f"--config {shlex.quote(str(run.folder / CONFIG))}{trust}"
    compared = ",".join(dict.fromkeys((SAFE, "fedavg", method)))
    guard = "" if method == SAFE else guard_option(run.config["data"]["validation"])
    steps = {f"strata report {shlex.quote(str(folder))}": "who gains, and how sure every difference is"}
    if is_known:
        steps["strata advise my.csv --set data.client=site"] = "which method fits your own data"
    steps[f"strata tune {source} -a {compared}"] = "a learning rate for each method"
    few = "; few end worse off than alone" if guard else ""
    steps[f"strata run {source} -a {method}{guard}"] = f"a model for every client{few}"
    width, console = max(map(len, steps)), result_console()
    console.print("next:")
    for command, purpose in steps.items():
        console.print(Text.assemble("  ", command.ljust(width), (f"   {purpose}", "dim")), soft_wrap=True)


def _print_line(line: str) -> None:
    note_console().print(line, markup=False)


def take_runs(comparison: Comparison, jobs: int) -> int:
    """The work of one of several processes: runs until none is left, or until the process that started it ends."""
    parent = os.getppid()

    def is_over() -> bool:
        return interrupt.asked or os.getppid() != parent

    with interruptible(note_console(), quiet=True) as interrupt:
        done = advance_comparison(comparison, {}, print_note, is_over, jobs)
    return 0 if done else INTERRUPTED


def start_tuning(options: RunOptions, names: str, plan: TuningPlan, seeds: int, jobs: int | None) -> int:
    """A new tuning, to its end or until it is interrupted; the exit code."""
    settings, methods = options.settings(), names_in(names)
    base = experiment_of(options.config, settings)
    trusted = options.trusted([*methods, *paths_in(settings)])
    with show_warnings(note_console()) as release_warnings:
        if options.out is not None:
            refuse_existing(options.out)
        folder = options.out or unused_run_folder("tune")
        tuning = Tuning.create(folder, base, methods, settings, plan, seeds, trusted)
        release_warnings()
        return drive_tuning(tuning, jobs)


def drive_tuning(tuning: Tuning, jobs: int | None) -> int:
    """Finish all trials and the runs of what was chosen, then print the table and write the report; the exit code."""
    console, again = note_console(), resume_command(tuning.folder, tuning.names_code)
    for sentence in plan_sentences(tuning):
        console.print(sentence, markup=False, soft_wrap=False)
    runs = displayed_trials(tuning)
    jobs = jobs or usual_jobs(len(runs), tuning.base.run.device)
    with Display(console, list(runs.values())) as display, interruptible(console) as interrupt:
        watches = {folder: display.watch(run) for folder, run in runs.items()}
        if jobs == 1:
            finished = advance(tuning, by_folder(watches), note_work, lambda: interrupt.asked)
        else:
            crew = Crew(tuning.folder, tuning.trust, again, jobs)
            finished = share(crew, watches, _print_line, lambda: interrupt.asked)
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
        done = advance(tuning, note=note_work, interrupted=lambda: interrupt.asked or os.getppid() != parent, jobs=jobs)
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
    table = titled_table("tuned with the same budget", HEAD, names=["method"], text=["chosen"])
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
    console.print(Text(f"for the ranking and who gains, run: strata report {place}", style="dim"))
    seeds = max(10, 2 * tuning.seeds)  # the winners' own seeds are the first of these
    console.print(Text(f"for more seeds, run: strata compare --tuned {place} --seeds {seeds}", style="dim"))
    return study


def note_work(work: PendingRun, message: str) -> None:
    print_note(f"{work.title}: {message}")


def _plain(path: str) -> str:
    return path.removeprefix("algorithm.")
