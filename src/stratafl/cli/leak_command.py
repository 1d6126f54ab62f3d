"""`strata leak`: what the host of a run could learn from its uploads, on the console, as CSV and as a picture."""

import csv
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.text import Text

from stratafl.cli.console import note_console, result_console, show_warnings, titled_table
from stratafl.config.experiment import Experiment
from stratafl.errors import RecordError, counted
from stratafl.files import check_new, write_atomically
from stratafl.leak.leakage import ATTACKS, Leak, leakage
from stratafl.leak.leakage_picture import leakage_picture, strength
from stratafl.report.formats import NO_VALUE
from stratafl.runs.directory import config_of, environment_of, refuse_guard, simulation_of_run

MIN_BOLD_STRENGTH = 0.2  # of the way from guessing to always right: shown in bold


def print_leaks(
    folders: Sequence[Path], rounds: int, clients: int, table: Path | None, picture: Path | None, trust: bool
) -> None:
    """Replay the first rounds of each run, print what the attacks come to, and write the files that are asked for."""
    for name, number, least in (("rounds", rounds, 1), ("clients", clients, 2)):
        if number < least:
            raise RecordError(f"--{name} must be at least {least}, not {number}")
    check_new([table, picture])
    lines, by_method = list[list[str]](), defaultdict[str, list[list[Leak]]](list)
    with show_warnings(note_console()):
        for folder in folders:
            refuse_guard(folder)
            experiment = config_of(folder)
            sim = simulation_of_run(folder, environment_of(folder), experiment, trust, "cpu")
            leaks = leakage(sim, rounds, clients)
            method = _method(experiment)
            by_method[method].append(leaks)
            lines += [[str(folder), method, str(experiment.run.seed), *_csv_cells(leak)] for leak in leaks]
    means = {method: _means(of_method) for method, of_method in by_method.items()}
    console = result_console()
    for method, leaks in means.items():
        last = max((leak.rounds for leak in leaks), default=0)
        title = f"{method}: what the host learns from {counted(last, 'round')} (in brackets: by guessing)"
        console.print(_console_table(title, [leak for leak in leaks if leak.rounds == last]))
    console.print(Text("; ".join(f"{attack}: {says}" for attack, says in ATTACKS.items()), style="dim"))
    console.print(Text("A low number is no proof: other attacks may do better.", style="dim"))
    if table is not None:
        write_atomically(table, _csv(lines).encode())
    if picture is not None:
        write_atomically(picture, leakage_picture(means).encode())


def _method(experiment: Experiment) -> str:
    """The method, with who adds noise and whether the host sees sums alone: they decide what it learns."""
    dp = experiment.algorithm.options.get("dp", "central")
    noise, sums = ("" if dp == "central" else f", dp={dp}"), (", secure" if experiment.server.secure else "")
    return experiment.algorithm.name + noise + sums


def _means(seeds: Sequence[Sequence[Leak]]) -> list[Leak]:
    """The mean over the runs of a method."""
    groups = defaultdict[tuple[str, str, int], list[Leak]](list)
    for leak in (leak for leaks in seeds for leak in leaks):
        groups[leak.layer, leak.attack, leak.rounds].append(leak)
    return [
        Leak(*key, sum(leak.value for leak in same) / len(same), sum(leak.guess for leak in same) / len(same))
        for key, same in groups.items()
    ]


def _console_table(title: str, leaks: Sequence[Leak]) -> object:
    by_place: Mapping[tuple[str, str], Leak] = {(leak.layer, leak.attack): leak for leak in leaks}
    attacks = [attack for attack in ATTACKS if any(leak.attack == attack for leak in leaks)]
    table = titled_table(title, ["layer", *attacks], text=["layer"])
    for layer in dict.fromkeys(leak.layer for leak in leaks):
        table.add_row(layer, *(_cell(by_place.get((layer, attack))) for attack in attacks))
    return table


def _cell(leak: Leak | None) -> Text:
    if leak is None:
        return Text(NO_VALUE, style="dim")
    return Text(f"{leak.value:.2f} ({leak.guess:.2f})", style="bold" if strength(leak) >= MIN_BOLD_STRENGTH else "")


def _csv_cells(leak: Leak) -> list[str]:
    return [leak.layer, leak.attack, str(leak.rounds), f"{leak.value:.4f}", f"{leak.guess:.4f}"]


def _csv(lines: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    head = ("run", "method", "seed", "layer", "attack", "rounds", "value", "guess")
    csv.writer(text, lineterminator="\n").writerows([head, *lines])
    return text.getvalue()
