"""Who gains, on the console: each method against training alone, one row each."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from stratafl.cli.console import fitting_columns, titled_table
from stratafl.report import Rank
from stratafl.report.gains import Gains
from stratafl.report.gains.gain_text import gain_unit, how_to_see_gains, reading, share_text, signed, unpaired

SPARE = ("median", "clients", "worst client")  # first to go


def gains_parts(ranks: Sequence[Rank], found: Sequence[Gains], width: int) -> list[Table | Text]:
    """The table and what to know about it; one line if `local` was not run; nothing for a single method."""
    if not found:
        return [Text(str(how), style="dim") for how in how_to_see_gains(ranks)]
    there = [each for each in found if each.clients]
    notes = [Text(str(note), style="yellow") for note in unpaired(found)]
    notes += [Text(str(note), style="dim") for note in reading(found)]
    return [*([gains_table(there, width)] if there else []), *notes]


def gains_table(found: Sequence[Gains], width: int) -> Table:
    rows = [_row(each) for each in found]
    widths = {title: max(map(cell_len, (title, *(row[title] for row in rows)))) for title in rows[0]}
    titles = fitting_columns(widths, SPARE, width)
    against = ", ".join(dict.fromkeys(each.alone for each in found))
    table = titled_table(
        f"clients against {against}: {gain_unit(found[0].metric)}", titles, text=["method", "worst client"]
    )
    for row in rows:
        table.add_row(*(row[title] for title in titles))
    return table


def _row(each: Gains) -> dict[str, str]:
    metric = each.metric
    row = {"method": each.label, "clients": str(len(each.clients))}
    row |= {"mean": signed(each.mean, metric), "median": signed(each.median, metric)}
    row |= {"better": _close(share_text(each.better, each.surely_better, each))}
    row |= {"worse": _close(share_text(each.worse, each.surely_worse, each))}
    return row | {"worst client": f"{each.client_label(each.worst)} {signed(each.worst.difference, metric)}"}


def _close(text: str) -> str:
    """Per cent without a space, since terminals are narrow."""
    return text.replace(" %", "%")
