"""`strata compare`, `strata tune` and `strata resume`: many runs in one directory, by one process or by several.

A run that a process works on is locked, so the runs themselves are the queue: a process takes any run that is neither
finished nor locked, until none is left. Progress is read from the journals. In a tuning every method gets the same
trials on validation data, then its choice runs on fresh seeds.
"""

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stratafl.cli.command_options import COMPARED, RunOptions, experiment_of, names_in
from stratafl.cli.console import note_console, print_note, result_console, show_warnings, titled_table
from stratafl.cli.display import Display, DisplayedRun, Watch
from stratafl.cli.interrupt import INTERRUPTED, Interrupt, interruptible
from stratafl.cli.report_command import REPORT, pair_lines, print_ranking, ranked_study, write_report_if_possible
from stratafl.cli.run_command import (
    advance_run,
    drive,
    print_interrupted,
    resume_command,
    torchrun_group,
    unused_run_folder,
)
from stratafl.cli.workers import Crew, share
from stratafl.config.experiment import names_code, paths_in
from stratafl.config.trust import NO_TRUST, Trust
from stratafl.data import DATASETS
from stratafl.errors import BusyError, RunError, counted
from stratafl.evaluation.guard import SAFE
from stratafl.evaluation.measure import Line
from stratafl.execute import ProcessGroup
from stratafl.report import Study
from stratafl.report.in_short import suggested_method
from stratafl.runs import Comparison, Member, Run, is_comparison, refuse_existing
from stratafl.runs.comparison import folder_name
from stratafl.runs.directory import CONFIG, ROUNDS, TUNING
from stratafl.runs.extension import extend_run
from stratafl.runs.guard_files import local_beside
from stratafl.runs.joined import JoinedRuns, usual_jobs
from stratafl.runs.json_files import read_lines
from stratafl.tuning import PendingRun, Tuning, TuningPlan, advance
from stratafl.tuning.reuse import reused, untyped_named
from stratafl.tuning.tuning import UNTUNED, WINNERS, is_tuning, read_tuned
from stratafl.tuning.tuning_result import HEAD, caption, remarks, result_rows, write_results


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
            config = None if options.config is None else base
            with untyped_named(tuned, typed) if config is None else nullcontext():
                base, settings = reused(tuned, methods, typed, config)
                asked = trusted.asked_by(tuned / TUNING)
                comparison = Comparison.create(folder, base, methods, seeds, settings, asked, vary)
        release_warnings()
        return drive_comparison(comparison, jobs)


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
    members, console, runs = list(comparison.members()), note_console(), list[DisplayedRun]()
    for member in members:
        done = len(read_lines(member.folder / ROUNDS))
        label = f"{member.method}, seed {member.seed}: "
        runs.append(DisplayedRun(member.method, member.experiment.run.rounds, done, label))
    jobs = jobs or usual_jobs(len(members), members[0].experiment.run.device)
    with Display(console, runs) as display, interruptible(console) as interrupt:
        watches = {member.folder: display.watch(run) for member, run in zip(members, runs, strict=True)}
        if jobs == 1:
            finished = _take(members, interrupt, watches)
        else:
            again = resume_command(comparison.folder, _names_code(members))
            crew = Crew(comparison.folder, comparison.trust, again, min(jobs, len(members)))
            finished = share(crew, interrupt, watches)
    if not finished:
        return print_interrupted(comparison.folder, _names_code(members))
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
    compared, guard = ",".join(dict.fromkeys((SAFE, "fedavg", method))), "" if method == SAFE else " --guard"
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


def _names_code(members: Sequence[Member]) -> bool:
    return any(names_code(member.experiment) for member in members)


def take_runs(comparison: Comparison, jobs: int) -> int:
    """The work of one of several processes: runs until none is left, or until the process that started it ends."""
    parent = os.getppid()

    def watch(rounds: int, history: Sequence[Line]) -> None:
        interrupt.asked |= os.getppid() != parent

    members = list(comparison.members())
    with interruptible(note_console(), quiet=True) as interrupt:
        done = _take(members, interrupt, {member.folder: watch for member in members}, jobs)
    return 0 if done else INTERRUPTED


def _take(members: Sequence[Member], interrupt: Interrupt, watches: Mapping[Path, Watch], jobs: int = 1) -> bool:
    """Finish every run that no other process works on, as many at a time as can be joined; False if interrupted."""
    joined = JoinedRuns(len(members), jobs, members[0].experiment.run.precision)
    stopped = list[Member]()

    def work(member: Member) -> None:
        try:
            if interrupt.asked or not _advanced(member, joined, interrupt, watches[member.folder]):
                stopped.append(member)
        except BusyError:
            return
        except KeyboardInterrupt:
            stopped.append(member)

    try:
        joined.drive(partial(work, member) for member in members)
    except KeyboardInterrupt:
        return False
    return not stopped


def _advanced(member: Member, joined: JoinedRuns, interrupt: Interrupt, watch: Watch) -> bool:
    """Advance a run to its end; False if interrupted. A guard waits for local training with the same seed."""
    with joined.opened(member.run) as run, joined.declared(member.folder, run.sim):
        for note in run.notes:
            print_note(f"{member.method}, seed {member.seed}: {note}")
        return advance_run(run, interrupt, watch, lambda: joined.wait_for(local_beside(member.folder)))


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
    runs = _displayed(tuning)
    jobs = jobs or usual_jobs(len(runs), tuning.base.run.device)
    with Display(console, list(runs.values())) as display, interruptible(console) as interrupt:
        watches = {folder: display.watch(run) for folder, run in runs.items()}
        if jobs == 1:
            finished = advance(tuning, _by_folder(watches), note_work, lambda: interrupt.asked)
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


def _displayed(tuning: Tuning) -> dict[Path, DisplayedRun]:
    """Every run that there may be, with the rounds that it is expected to have."""
    displayed: dict[Path, DisplayedRun] = {}
    for search in tuning.searches:
        method, total = search.method, search.rounds
        for number in range(search.planned):
            # As if the trials with the lowest numbers went on: the sum over all trials is right in any case.
            expected = max((rung.rounds for rung in search.schedule if number < rung.trials), default=0)
            displayed[search.place(number)] = DisplayedRun(method, expected, 0, f"{method}, trial {number}: ")
        for name in (WINNERS, UNTUNED):
            for seed in range(tuning.base.run.seed + 1, tuning.base.run.seed + 1 + tuning.seeds):
                place = tuning.folder / name / folder_name(method) / f"seed-{seed}"
                displayed[place] = DisplayedRun(method, total, 0, f"{method}, seed {seed}: ")
    for folder, run in displayed.items():
        run.done = len(read_lines(folder / ROUNDS))
    return displayed


def _by_folder(watches: dict[Path, Watch]) -> Callable[[PendingRun, int, Sequence[Line]], None]:
    def watch(work: PendingRun, rounds: int, history: Sequence[Line]) -> None:
        if work.folder in watches:  # a trial that widens the range is not displayed
            watches[work.folder](rounds, history)

    return watch


def note_work(work: PendingRun, message: str) -> None:
    print_note(f"{work.title}: {message}")


def _plain(path: str) -> str:
    return path.removeprefix("algorithm.")
