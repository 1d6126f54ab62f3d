"""`bench`: the rows as a table, with bars, on the terminal and as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stratafl.bench.request import Request, requested
from stratafl.bench.session import Book, machine, rows
from stratafl.bench.words import MIB, headline, line
from stratafl.cli.consoles import PIPED_WIDTH, picture, remarks, results
from stratafl.errors import counted
from stratafl.files import check_new, write_atomically

Row = dict[str, Any]
WIDE = 110  # columns from which on there is room for where the time went
BAR = 40
ROOMY = ("C", "first, s", "train, s", "server, s")
TITLES = (
    *("model", "method", "N", "C", "B", "first, s", "round, s", "train, s", "server, s", "evaluate, s"),
    *("MiB", "× loop", "× loader"),
)

__all__ = ["request", "show"]
request = requested


def show(asked: Request, json: Path | None, svg: Path | None) -> None:
    """Measure everything, say so as it goes, and print, write and draw the result."""
    check_new([json, svg])
    found, said, console = machine(asked), remarks(), results()
    book, all_rows = Book(json, found), list[Row]()
    said.print(Text(f"rows to measure: {len(list(asked.cells()))}", style="dim"))
    for row in rows(asked):
        book.add(row)
        all_rows.append(row)
        said.print(Text(line(row), style="dim"))
    console.print(_page(all_rows, found, console.width))
    if svg is not None:
        write_atomically(svg, picture("strata bench", _page(all_rows, found, PIPED_WIDTH)).encode())


def _page(all_rows: Sequence[Row], found: Row, width: int) -> RenderableType:
    measured = [row for row in all_rows if "refused" not in row]
    return Group(_table(all_rows, width), *_bars(measured), Text(_caption(found, measured), style="dim"))


def _table(all_rows: Sequence[Row], width: int) -> Table:
    made = Table(title="a round of the engine", title_justify="left", header_style="bold", padding=(0, 1))
    titles = [title for title in TITLES if width >= WIDE or title not in ROOMY]
    for title in titles:
        made.add_column(title, justify="left" if title in ("model", "method") else "right", no_wrap=True)
    for row in all_rows:
        cells = _cells(row)
        made.add_row(*(cells.get(title, "–") for title in titles))
    return made


def _cells(row: Row) -> dict[str, str]:
    """The cells of a row by their titles; without figures where it was not measured."""
    named = {"model": row["model"], "method": row["method"]}
    sizes = {"N": f"{row['clients']:,}", "C": f"{row['cohort']:,}", "B": f"{row['batch']}"}
    if "refused" in row:
        return named | sizes
    engine = row["engine"]
    seconds = {f"{part}, s": f"{engine['median'][part]:.3f}" for part in ("round", "train", "server", "evaluate")}
    first, memory = f"{engine['first_round']:.1f}", f"{engine['peak_memory'] / MIB:,.0f}"
    ratios = {f"× {name}": f"{ratio['round']:.1f}" for name, ratio in row["ratios"].items()}
    return {**named, **sizes, "first, s": first, **seconds, "MiB": memory, **ratios}


def _bars(measured: Sequence[Row]) -> list[Text]:
    """How many times as fast as the plain loop, or without baselines how long a client's step takes."""
    compared = all("loop" in row["ratios"] for row in measured)
    unit = "× the plain loop" if compared else "ms per client-step"
    values = [row["ratios"]["loop"]["round"] if compared else row["engine"]["ms_per_client_step"] for row in measured]
    labels = ["{model} {method} N {clients} C {cohort} B {batch}".format_map(row) for row in measured]
    return [
        Text.assemble(label.ljust(max(map(len, labels))), " ", ("█" * _length(value, values), "green"), f" {value:.2f}")
        for label, value in zip(labels, values, strict=True)
    ] + [Text(f"bars: {unit}", style="dim")] * bool(measured)


def _length(value: float, values: Sequence[float]) -> int:
    return max(1, round(BAR * value / max(values)))


def _caption(found: Row, measured: Sequence[Row]) -> str:
    rounds = len(measured[0]["engine"]["rounds"]) if measured else 0
    return (
        f"{headline(found)}; medians of {counted(rounds, 'round')}, ratios best against best; "
        "loop: clients one by one, loader: with a DataLoader each, both FedAvg on the same batches"
    )
