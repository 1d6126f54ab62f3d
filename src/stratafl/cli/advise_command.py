"""`strata advise`: looks at your data, tries a short list of methods, and says what to run."""

import textwrap
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from stratafl.advice import Advice, advice_on, advice_text
from stratafl.advice.advice_files import CONFIG, write_advice
from stratafl.cli.command_options import experiment_of
from stratafl.cli.console import note_console, result_console, show_warnings, titled_table
from stratafl.cli.interrupt import INTERRUPTED
from stratafl.config.experiment import paths_in, with_values
from stratafl.config.setting_tables import Settings
from stratafl.config.trust import typed
from stratafl.errors import RunError
from stratafl.files import check_new
from stratafl.runs.directory import unused_run_folder

ROWS = 40  # of clients that are listed


def give_advice(
    config: Path | None, settings: Settings, out: Path | None, budget: float, caution: float, trust: bool
) -> int:
    """Print the advice and write its files; the exit code."""
    if out is not None and out.exists() and not out.is_dir():
        raise RunError(f"'{out}' is a file: give a folder for {CONFIG} and the other files of the advice")
    if out is not None and out.is_dir():
        check_new([out / CONFIG])
    experiment = with_values(experiment_of(config, settings), settings)
    trusted = typed(paths_in(settings), trust)
    trusted = trusted if config is None else trusted.asked_by(config)
    console = note_console()
    with show_warnings(console), _progress(console) as progress:
        task = progress.add_task("looking at the data", total=None)

        def watch(name: str, spent: int, allowed: int) -> None:
            progress.update(task, description=f"trying {name}", completed=min(spent, allowed), total=allowed)

        try:
            advice = advice_on(experiment, budget=budget, caution=caution, trust=trusted, watch=watch)
        except KeyboardInterrupt:
            progress.stop()
            console.print("stopped before an answer was found: nothing was written")
            return INTERRUPTED
    folder = out or unused_run_folder(f"advise-{Path(experiment.data.name).stem}")
    print_advice(advice, write_advice(advice, folder), result_console())
    return 0


def _progress(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.percentage:>3.0f}%"))
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal)


def print_advice(advice: Advice, config: Path, console: Console) -> None:
    """The answer first, then the evidence."""

    def say(text: str, style: str = "") -> None:
        for line in textwrap.wrap(text, min(console.width, 100), break_long_words=False, break_on_hyphens=False):
            console.print(Text(line, style=style), soft_wrap=True)

    say(advice_text.advice_answer(advice), "bold green" if advice.federate and advice.is_conclusive else "bold")
    for text in advice_text.sentences(advice):
        say(text)
    console.print()
    facts = titled_table("what the data shows", ("fact", "value"), names=["fact"], text=["value"])
    for name, value in advice_text.seen(advice):
        facts.add_row(name, Text(value))
    console.print(facts)
    tried = titled_table(
        "methods tried", ("method", "rounds", advice.metric.title, "expected", "why"), text=["method", "why"]
    )
    for row in advice_text.tried(advice):
        tried.add_row(*map(Text, row))
    console.print(tried)
    if advice.is_conclusive:
        _print_clients(advice, console)
    say(advice_text.basis_text(advice))
    console.print()
    console.print(Text("type next:", style="bold"))
    for line in advice_text.commands(advice, config):
        console.print(Text(f"  {line}"), soft_wrap=True)
    console.print(Text(f"written: {config.parent}/{CONFIG}, advice.md and advice.json"), soft_wrap=True)


def _print_clients(advice: Advice, console: Console) -> None:
    title = advice_text.clients_title(advice)
    title = title[0].lower() + title[1:]
    table = titled_table(title, ("client", "train", "validation", "gain", "verdict"), names=["client", "verdict"])
    for client in advice.clients[:ROWS]:
        table.add_row(*map(Text, advice_text.client_row(client, advice)))
    if len(advice.clients) > ROWS:
        table.add_row(f"… {len(advice.clients) - ROWS:,} more in advice.md", "", "", "", "")
    console.print(table)
