"""`strata bench`: the rows as a table and as bars, on the console and as a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from stratafl.bench.measurement import MIB, ResultFile, bench_rows, describe_machine, describe_row, machine_facts
from stratafl.bench.options import BenchOptions
from stratafl.bench.request import request_of
from stratafl.cli.console import PIPED_WIDTH, fitting_columns, note_console, result_console, svg_picture, titled_table
from stratafl.errors import counted
from stratafl.files import check_new, write_atomically

Row = dict[str, Any]
BAR = 40  # letters of the longest bar, at most
TITLES = (
    *("model", "method", "N", "C", "B", "first, s", "round, s", "train, s", "server, s", "evaluate, s"),
    *("MiB", "× loop", "× loader"),
)
SPARE = ("C", "first, s", "train, s", "server, s", "MiB", "× loader", "evaluate, s", "B")  # first to go


def run_bench(options: BenchOptions, svg: Path | None) -> None:
    """Measure all rows, print each when it is done, then print, write and draw the result."""
    request = request_of(options)
    check_new([options.json, svg])
    here, notes, console = machine_facts(request), note_console(), result_console()
    file, all_rows = ResultFile(options.json, here), list[Row]()
    notes.print(Text(f"rows to measure: {len(request.cells)}", style="dim"))
    for row in bench_rows(request):
        file.add(row)
        all_rows.append(row)
        notes.print(Text(describe_row(row), style="dim"))
    console.print(_page(all_rows, here, console.width))
    if svg is not None:
        write_atomically(svg, svg_picture("strata bench", _page(all_rows, here, PIPED_WIDTH)).encode())


def _page(all_rows: Sequence[Row], machine: Row, width: int) -> RenderableType:
    measured = [row for row in all_rows if "refused" not in row]
    return Group(_table(all_rows, width), *_bars(measured, width), Text(_caption(machine, measured), style="dim"))


def _table(all_rows: Sequence[Row], width: int) -> Table:
    lines = [dict.fromkeys(TITLES, "–") | _cells(row) for row in all_rows]
    widths = {title: max(len(title), *(len(line[title]) for line in lines)) for title in TITLES}
    titles = fitting_columns(widths, SPARE, width)
    table = titled_table("a round of the engine", titles, names=("model", "method"))
    for line in lines:
        table.add_row(*(line[title] for title in titles))
    return table


def _cells(row: Row) -> dict[str, str]:
    """The cells of a row by title; a row that was not measured has no figures."""
    named = {"model": row["model"], "method": row["method"]}
    sizes = {"N": f"{row['clients']:,}", "C": f"{row['cohort']:,}", "B": f"{row['batch']}"}
    if "refused" in row:
        return named | sizes
    engine = row["engine"]
    seconds = {f"{part}, s": f"{engine['median'][part]:.3f}" for part in ("round", "train", "server", "evaluate")}
    first, memory = f"{engine['first_round']:.1f}", f"{engine['peak_memory'] / MIB:,.0f}"
    ratios = {f"× {name}": f"{ratio['round']:.2f}" for name, ratio in row["ratios"].items()}
    return {**named, **sizes, "first, s": first, **seconds, "MiB": memory, **ratios}


def _bars(measured: Sequence[Row], width: int) -> list[Text]:
    """How many times as fast as the plain loop; without baselines, how long a step of a client takes."""
    if not measured:
        return []
    compared = all("loop" in row["ratios"] for row in measured)
    unit = "× the plain loop" if compared else "ms per client-step"
    values = [row["ratios"]["loop"]["round"] if compared else row["engine"]["ms_per_client_step"] for row in measured]
    labels = ["{model} {method} N {clients} C {cohort} B {batch}".format_map(row) for row in measured]
    longest, largest = max(map(len, labels)), max(values)
    room = min(BAR, width - longest - len(f"  {largest:.2f}"))
    bars = ["█" * max(1, round(room * value / largest)) for value in values]
    lines = [
        Text.assemble(label.ljust(longest), " ", (bar, "green"), f" {value:.2f}")
        for label, bar, value in zip(labels, bars, values, strict=True)
    ]
    return [*lines, Text(f"bars: {unit}", style="dim")]


def _caption(machine: Row, measured: Sequence[Row]) -> str:
    rounds = len(measured[0]["engine"]["rounds"]) if measured else 0
    return (
        "N clients, C per round, B samples per batch; × loop, × loader: time of plain PyTorch divided by the "
        "engine's; loop: one client at a time, loader: with a DataLoader each, both FedAvg on the same batches; "
        f"medians of {counted(rounds, 'round')}, ratios of the best rounds; {describe_machine(machine)}"
    )
