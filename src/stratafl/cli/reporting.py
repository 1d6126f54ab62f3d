"""`report`: the ranking as a table on the terminal, as CSV, as a picture, and everything as one HTML file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from stratafl.cli.consoles import PIPED_WIDTH, picture, remarks, results, warnings_on
from stratafl.cli.ranked import table, unlike_seeds
from stratafl.errors import RunError
from stratafl.files import check_folder, check_new, write_atomically
from stratafl.report import INCOMPARABLE, MARK, Outcome, Rank, gather, ranking, read_outcome, run_folders, to_csv
from stratafl.report.flagged_clients import flag_sentences, where_to_look
from stratafl.report.formats import size
from stratafl.report.outcome import measure, what_counts
from stratafl.report.page import is_report, write_report
from stratafl.report.study import not_started, only_verdicts
from stratafl.runs.summary import evaluated, reached

REPORT = "report.html"


def report(folders: Sequence[Path], out: Path | None, **options: Any) -> None:
    """Print the ranking, and write the report where one is asked for."""
    if out is not None:
        _refuse_foreign(out)
    ranked = [folder for folder in folders if out is None or not only_verdicts(folder)]
    with warnings_on(remarks()) as settled:
        settled()
        if ranked:
            show(ranked, **options)
        if out is not None:
            write(folders, out)


def show(
    folders: Sequence[Path], *, csv: Path | None = None, svg: Path | None = None, target: float | None = None
) -> None:
    """Print the ranking of all runs in these folders; write it where asked."""
    if target is not None and not 0 < target <= 1:
        raise RunError(f"--target is an accuracy above 0 and up to 1, not {target}")
    check_new([csv, svg])
    outcomes = _outcomes(folders)
    ranks = ranking(outcomes)
    console = results()
    console.print(table(ranks, outcomes, console.width))
    for text in (*(Text(said, style="yellow") for said in not_started(folders)), *_explanations(ranks, outcomes)):
        console.print(text)
    console.print(Text(f"runs: {', '.join(map(str, folders))}", style="dim"))
    if target is not None and outcomes[0].regression:
        raise RunError("--target is an accuracy, and these runs have no classes")
    if target is not None:
        console.print(_targets(outcomes, target))
    if csv is not None:
        write_atomically(csv, to_csv(ranks).encode())
        console.print(Text(f"table: {csv}"))
    if svg is not None:
        write_atomically(svg, _drawn(ranks, outcomes).encode())
        console.print(Text(f"picture: {svg}"))


def write(folders: Sequence[Path], path: Path) -> None:
    """Write the report of all runs in these folders, and say where it is."""
    count = write_report(gather(folders), path)
    results().print(Text(f"report: {path} ({size(count)}, opens in any browser)"))


def offer(folders: Sequence[Path], path: Path) -> None:
    """The report at the end of something else, which is done all the same where none can be written."""
    try:
        write(folders, path)
    except RunError as error:
        remarks().print(f"note: no report was written: {error}", markup=False)


def _refuse_foreign(path: Path) -> None:
    check_folder(path)
    if path.is_dir():
        raise RunError(f"'{path}' is a folder: name a file, such as {path / REPORT}")
    if path.exists() and not is_report(path):
        raise RunError(f"'{path}' exists and is no report: choose another name, or remove it")


def _outcomes(folders: Sequence[Path]) -> list[Outcome]:
    """What can be reported; runs that have nothing to report yet are named, and fail only if there is nothing else."""
    found = [(folder, read_outcome(folder)) for folder in run_folders(folders)]
    empty = [folder for folder, one in found if not evaluated(one.lines)]
    if len(empty) == len(found):
        raise RunError(f"'{empty[0]}' has no evaluated round yet")
    for folder in empty:
        remarks().print(f"note: '{folder}' has no evaluated round yet", markup=False)
    return [one for _, one in found if evaluated(one.lines)]


def _explanations(ranks: Sequence[Rank], outcomes: Sequence[Outcome]) -> list[Text]:
    leaks = [Text(f"{MARK} {INCOMPARABLE}", style="bold red")] if any(one.leaks for one in outcomes) else []
    folders = [str(one.folder) for one in outcomes if one.diverged]
    why = "the loss, or the upload of every client, became NaN or infinite"
    lost = [Text(f"diverged ({why}): {', '.join(folders)}", style="bold red")] if folders else []
    flagged = [Text(said, style="yellow") for said in flag_sentences(outcomes)]
    look = [Text(f"look at its data with: {command}", style="yellow")] if (command := where_to_look(outcomes)) else []
    return [*leaks, *lost, *flagged, *look, Text(_caption(ranks, outcomes), style="dim")]


def _drawn(ranks: Sequence[Rank], outcomes: Sequence[Outcome]) -> str:
    return picture("strata compare", table(ranks, outcomes, PIPED_WIDTH), *_explanations(ranks, outcomes))


def _caption(ranks: Sequence[Rank], outcomes: Sequence[Outcome]) -> str:
    most = max(len(rank.seeds) for rank in ranks)
    seeds = "the seeds that each row has" if unlike_seeds(ranks) else f"{most} seeds"
    over = f"; mean ± standard deviation over {seeds}" if most > 1 else ""
    new = (
        "; new, trained: new clients after one round" if any(o.config["data"]["new_clients"] for o in outcomes) else ""
    )
    costs = "spread: standard deviation over clients; MB: up and down, all clients"
    return f"test {measure(outcomes[0].regression)} {what_counts(outcomes)}{over}; {costs}{new}"


def _targets(outcomes: Sequence[Outcome], target: float) -> Table:
    made = Table(title=f"to {target:.1%} test accuracy", title_justify="left", header_style="bold")
    for title in ("run", "rounds", "MB", "s"):
        made.add_column(title, justify="left" if title == "run" else "right")
    for one in outcomes:
        cost = reached(one.lines, target, one.evaluate)
        cells = (
            ("never", "", "") if cost is None else (str(cost.round), f"{cost.bytes / 1e6:,.1f}", f"{cost.seconds:,.1f}")
        )
        made.add_row(f"{one.folder} {MARK}" if one.leaks else str(one.folder), *cells)
    return made
