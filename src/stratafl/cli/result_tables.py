"""Tables of results on the console: the ranking, the cost of a target, who gains. Narrow consoles get fewer columns."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

from stratafl.cli.console import fitting_columns, titled_table
from stratafl.errors import counted
from stratafl.evaluation.metrics import Metric
from stratafl.report import MARK, Outcome, Rank, Spread, Study
from stratafl.report.formats import NO_VALUE, score_text, spread
from stratafl.report.gains import Gains
from stratafl.report.gains.gain_text import gain_unit, how_to_see_gains, reading, share_text, signed, unpaired
from stratafl.report.ranking import has_column
from stratafl.runs.summary import reached

LABEL = 24  # letters of a method that is not folded
# Columns that are left out of a narrow table, the first one first.
RANKING_SPARE = ("best", "converged", "new, trained", "trained", "spread", "received", "s", "MB", "worst 10%")
GAINS_SPARE = ("median", "clients", "worst client")


@dataclass(frozen=True)
class RankingColumn:
    """A number of each method."""

    name: str
    title: str
    shown: Callable[[Spread], str]

    def cell(self, rank: Rank) -> str:
        return self.shown(rank.numbers[self.name]) if self.name in rank.numbers else NO_VALUE


def console_ranking(study: Study, width: int, green: bool = True) -> Table:
    """The ranking; the first is `green` unless its score is chance."""
    ranks = study.ranks
    columns = {column.title: column for column in _columns(ranks, study.measured)}
    rows, several = [*ranks, *study.rows_below], len(ranks) > 1
    widths = ({"#": 2} if tied(ranks) else {}) | {"method": _method_width(rows)}
    widths |= {"seeds": len("seeds")} if seeds_differ(ranks) else {}
    widths |= {title: max(map(cell_len, (title, *map(column.cell, rows)))) for title, column in columns.items()}
    titles = fitting_columns(widths, RANKING_SPARE, width)
    table = titled_table(_title(study.scored), titles, text=["method"])
    for rank in rows:
        cells = {"#": str(rank.place or ""), "method": rank.title, "seeds": str(len(rank.seeds))}
        cells |= {title: column.cell(rank) for title, column in columns.items()}
        style = "dim" if not rank.members else "bold green" if green and several and rank.place == 1 else None
        table.add_row(*(cells[title] for title in titles), style=style)
    return table


def tied(ranks: Sequence[Rank]) -> bool:
    """Whether some share a place: else their order says it."""
    places = [rank.place for rank in ranks if rank.place]
    return len(set(places)) < len(places)


def seeds_differ(ranks: Sequence[Rank]) -> bool:
    return len({len(rank.seeds) for rank in ranks}) > 1


def _columns(ranks: Sequence[Rank], metric: Metric) -> list[RankingColumn]:
    def full(number: Spread) -> str:
        return _close(spread(number, metric))

    def mean(number: Spread) -> str:
        return _close(score_text(number.mean, metric))

    every = [
        RankingColumn("received", "received", full),
        RankingColumn("trained", "trained", full),
        RankingColumn("deployed", "deployed", full),
        RankingColumn("epsilon", "ε", lambda number: f"{number.mean:.3g}"),
        RankingColumn("spread", "spread", mean),
        RankingColumn("worst10", "worst 10%", mean),
        RankingColumn("new_trained", "new, trained", full),
        RankingColumn("bytes", "MB", lambda number: f"{number.mean / 1e6:,.1f}"),
        RankingColumn("seconds", "s", lambda number: f"{number.mean:,.1f}"),
        RankingColumn("converged_round", "converged", lambda number: f"{number.mean:.0f}"),
        RankingColumn("best", "best", full),
    ]
    return [column for column in every if has_column(column.name, ranks)]


def _close(text: str) -> str:
    """Per cent without a space, since terminals are narrow."""
    return text.replace(" %", "%")


def _method_width(ranks: Sequence[Rank]) -> int:
    """The width of a short label, or of the longest word of long ones, which are folded between words."""
    longest = max(cell_len(rank.title) for rank in ranks)
    word = max(cell_len(word) for rank in ranks for word in rank.title.split())
    return max(len("method"), word, min(longest, LABEL))


def _title(outcomes: Sequence[Outcome]) -> str:
    first = outcomes[0].config
    tables = [(each.config["data"], each.config["model"], each.config["run"], each.clients) for each in outcomes]
    if len({(data["name"], model["name"], run["rounds"], clients) for data, model, run, clients in tables}) > 1:
        return counted(len(outcomes), "run")
    data, model = Path(first["data"]["name"]).stem, first["model"]["name"]
    clients, rounds = counted(outcomes[0].clients, "client"), counted(first["run"]["rounds"], "round")
    return f"{data}, {clients} · {model} · {rounds}"


def target_table(outcomes: Sequence[Outcome], target: float) -> Table:
    metric = outcomes[0].metric
    title = f"to {_close(score_text(target, metric))} test {metric.title}"
    table = titled_table(title, ("run", "rounds", "MB", "s"), text=["run"])
    for outcome in outcomes:
        cost = reached(outcome.lines, metric.sign * target, outcome.evaluate)
        cells = ["never", "", ""]
        if cost is not None:
            cells = [str(cost.round), f"{cost.bytes / 1e6:,.1f}", f"{cost.seconds:,.1f}"]
        table.add_row(f"{outcome.folder} {MARK}" if outcome.leaks else str(outcome.folder), *cells)
    return table


def gains_renderables(ranks: Sequence[Rank], gains: Sequence[Gains], width: int) -> list[Table | Text]:
    """The table and what to know about it; one line if `local` was not run; nothing for a single method."""
    if not gains:
        return [Text(str(how), style="dim") for how in how_to_see_gains(ranks)]
    comparable = [each for each in gains if each.clients]
    notes = [
        *(Text(str(note), style="yellow") for note in unpaired(gains)),
        *(Text(str(note), style="dim") for note in reading(gains)),
    ]
    return [*([client_gains_table(comparable, width)] if comparable else []), *notes]


def client_gains_table(gains: Sequence[Gains], width: int) -> Table:
    rows = [_row(each) for each in gains]
    widths = {title: max(map(cell_len, (title, *(row[title] for row in rows)))) for title in rows[0]}
    titles = fitting_columns(widths, GAINS_SPARE, width)
    against = ", ".join(dict.fromkeys(each.alone for each in gains))
    table = titled_table(
        f"clients against {against}: {gain_unit(gains[0].metric)}", titles, text=["method", "worst client"]
    )
    for row in rows:
        table.add_row(*(row[title] for title in titles))
    return table


def _row(gains: Gains) -> dict[str, str]:
    metric = gains.metric
    row = {"method": gains.label, "clients": str(len(gains.clients))}
    row |= {"mean": signed(gains.mean, metric), "median": signed(gains.median, metric)}
    row |= {"better": _close(share_text(gains.better, "gains", gains))}
    row |= {"worse": _close(share_text(gains.worse, "loses", gains))}
    return row | {"worst client": f"{gains.client_label(gains.worst)} {signed(gains.worst.difference, metric)}"}
