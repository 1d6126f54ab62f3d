"""`strata report`: the ranking on the console, as CSV and as a picture, and everything as one HTML file."""

from collections.abc import Callable, Sequence
from pathlib import Path

from rich.text import Text

from stratafl.cli.command_options import ReportOptions
from stratafl.cli.console import PIPED_WIDTH, note_console, print_note, result_console, show_warnings, svg_picture
from stratafl.cli.result_tables import console_ranking, gains_renderables, seeds_differ, target_table
from stratafl.config.deployment import is_federation
from stratafl.config.metric_choice import metric_of
from stratafl.errors import RunError
from stratafl.evaluation.metrics import Metric
from stratafl.files import check_new, write_atomically
from stratafl.report import INCOMPARABLE, MARK, Study, gather, to_csv
from stratafl.report.chance import MAJORITY, NoChoice, how_to_rank
from stratafl.report.flagged_clients import flag_sentences, where_to_look
from stratafl.report.formats import size_text
from stratafl.report.gains_tables import clients_csv
from stratafl.report.guards import guard_sentences
from stratafl.report.in_short import in_short
from stratafl.report.notes import one_class, privacy_findings
from stratafl.report.outcome import OF_ANSWERS, measure, what_counts
from stratafl.report.page import check_report_file, write_report
from stratafl.report.pair_tables import corrected_for, pairs_csv
from stratafl.report.paired import with_first
from stratafl.report.study import only_verdicts, ranked_study

NO_OPTIONS = ReportOptions()


def print_report(folders: Sequence[Path], options: ReportOptions) -> None:
    """Print the ranking, and write the HTML report if a file is given."""
    out = options.out
    federations = [folder for folder in folders if is_federation(folder)]
    if federations:
        if len(folders) > 1 or options != ReportOptions(out=out):
            raise RunError(f"'{federations[0]}' is a federation, which has a report of its own: name it alone, with -o")
        from stratafl.cli.federation_command import print_federation_report  # needs packages of the extra 'flower'

        print_federation_report(federations[0], out)
        return
    if out is not None:
        check_report_file(out)
    by = None if options.metric is None else metric_of(options.metric)
    ranked = [folder for folder in folders if out is None or not only_verdicts(folder)]
    with show_warnings(note_console()) as release_warnings:
        release_warnings()
        study = print_ranking(ranked, options, by) if ranked else None
        if out is not None:
            whole = study if study is not None and len(ranked) == len(folders) else gather(folders, by)
            _write_report(whole, out)


def print_ranking(
    folders: Sequence[Path], options: ReportOptions = NO_OPTIONS, by: Metric | None = None, details: bool = True
) -> Study:
    """Print the ranking of all runs in these folders, by their own metric or by another; write it to files if asked.

    With `details` also who gains and which pairs differ, else what they come to in short. Returns what was read, for
    the report.
    """
    target = options.target
    if target is not None and by is not None:
        raise RunError(
            "--target uses the metric of the runs, so it cannot be combined with --metric: leave out one of them"
        )
    if target is not None and not 0 < target < float("inf"):
        raise RunError(f"--target must be a score above 0, not {target}")
    check_new([options.csv, options.pairs, options.svg, options.clients])
    study = ranked_study(folders, by)
    outcomes, ranks, unranked = study.scored, study.ranks, study.no_choice
    if target is not None and target > 1 and outcomes[0].metric.percent:
        raise RunError(f"--target must be a share above 0 and at most 1, not {target}")
    console = result_console()
    console.print(console_ranking(study, console.width, green=unranked is None))
    notes = [*study.not_started, *(_no_choice_notes(unranked, folders, outcomes[0].metric) if unranked else [])]
    for text in (*(Text(note, style="yellow") for note in notes), *_footnotes(study)):
        console.print(text)
    if details:
        for part in (*gains_renderables(ranks, study.gains, console.width), *pair_lines(study)):
            console.print(part)
        console.print(Text(f"runs: {', '.join(map(str, folders))}", style="dim"))
    short = " ".join(map(str, in_short(study))) if unranked is None else ""
    if short:
        console.print(Text(f"\n{short}", style="bold"))
    elif unranked is None and not details:  # one kind of method, such as one's own and its rival
        for part in pair_lines(study):
            console.print(part)
    if target is not None:
        console.print(target_table(outcomes, target))
    files: list[tuple[str, Path | None, Callable[[], str]]] = [
        ("table", options.csv, lambda: to_csv(ranks)),
        ("clients", options.clients, lambda: clients_csv(ranks, study.gains)),
        ("pairs", options.pairs, lambda: pairs_csv(study.pairs)),
        (
            "picture",
            options.svg,
            lambda: svg_picture("strata compare", console_ranking(study, PIPED_WIDTH), *_footnotes(study)),
        ),
    ]
    for title, path, text_of in files:
        if path is not None:
            write_atomically(path, text_of().encode())
            console.print(Text(f"{title}: {path}"))
    return study


def write_report_if_possible(folders: Sequence[Path], path: Path, study: Study | None = None) -> None:
    """Write the HTML report at the end of another command; if that fails, print a note instead of failing.

    `study` is what was read from these folders, if that is so.
    """
    try:
        _write_report(gather(folders) if study is None else study, path)
    except RunError as error:
        print_note(f"no report was written: {error}")


def _write_report(study: Study, path: Path) -> None:
    count = write_report(study, path)
    result_console().print(Text(f"report: {path} ({size_text(count)}, opens in any browser)"))


def _no_choice_notes(no_choice: NoChoice, folders: Sequence[Path], metric: Metric) -> list[str]:
    """That the scores of this ranking are chance, what probabilities show, and how to rank by them."""
    shown = no_choice.shown
    why = f"The order above may be due to chance. {no_choice.why}"
    if shown is None:
        return [why, *(["Compare again with --metric auroc."] if metric.name in OF_ANSWERS else [])]
    again = [] if shown.at_chance else [how_to_rank(folders, metric)]
    return [why, *map(str, (*shown.findings, *again))]


def _footnotes(study: Study) -> list[Text]:
    """What the table cannot show: leaks, runs that diverged, flagged clients, and what its columns mean."""
    ranks, outcomes = study.ranks, study.scored
    leaks = [Text(f"{MARK} {INCOMPARABLE}", style="bold red")] if any(outcome.leaks for outcome in outcomes) else []
    folders = [str(outcome.folder) for outcome in outcomes if outcome.diverged]
    why = "the loss, or uploads or models of clients, became NaN or infinite"
    lost = [Text(f"diverged ({why}): {', '.join(folders)}", style="bold red")] if folders else []
    same = [Text(f"one answer: {one_class(rank)}", style="yellow") for rank in ranks if rank.one_answer]
    flagged = [Text(sentence, style="yellow") for sentence in flag_sentences(outcomes)]
    look = (
        [Text(f"to inspect its data, run: {command}", style="yellow")] if (command := where_to_look(outcomes)) else []
    )
    guards = [Text(sentence) for sentence in guard_sentences(ranks)]
    privacy = [Text(str(sentence)) for sentence in privacy_findings(ranks)]
    return [*leaks, *lost, *same, *flagged, *look, *guards, *privacy, Text(_caption(study), style="dim")]


def pair_lines(study: Study) -> list[Text]:
    """The pairs with the first method, and what their numbers are."""
    pairs, shown = study.pairs, with_first(study.pairs)
    lines = [Text(pair.sentence) for pair in shown]
    bracketed = [pair for pair in shown if pair.seeds > 1 and pair.verdict != "same"]
    if not bracketed:
        return lines
    unit = "points, " if pairs[0].metric.percent else ""
    many = f"; verdicts are corrected for {corrected_for(pairs)}" if len(pairs) > 1 else ""
    ways = {False: "seeds and clients", True: "seeds and the test samples of these clients"}
    over = " or ".join(ways[here] for here in sorted({pair.about_these_clients for pair in bracketed}))
    return [*lines, Text(f"in brackets: {unit}95 % intervals over {over}{many}", style="dim")]


def _caption(study: Study) -> str:
    ranks, outcomes = study.ranks, study.scored
    most = max(len(rank.seeds) for rank in ranks)
    seeds = "the seeds of each row" if seeds_differ(ranks) else f"{most} seeds"
    parts = [f"test {measure(outcomes[0].metric)} {what_counts(outcomes)}"]
    parts += [f"mean ± standard deviation over {seeds}"] if most > 1 else []
    parts += ["spread: standard deviation over clients", "MB: up and down, all clients", "s: training and server"]
    parts += [f"{MAJORITY}: always predicting each client's most frequent training class"] if study.majority else []
    outside = "baselines outside the federation, of each client's own samples or of all samples in one place"
    parts += [f"logistic regression: {outside}"] if study.baselines else []
    is_own_metric = ":" in outcomes[0].metric.name and not outcomes[0].regression
    parts += [f"{MAJORITY}: unknown, because reports do not run your own metric"] if is_own_metric else []
    new_clients = any(outcome.config["data"]["new_clients"] for outcome in outcomes)
    return "; ".join([*parts, *(["new, trained: new clients after one round"] if new_clients else [])])
