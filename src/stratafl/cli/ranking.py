"""The ranking as a table on the console: as many columns as fit, none of them cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.table import Table

from stratafl.cli.console import titled_table
from stratafl.errors import counted
from stratafl.report import Outcome, Rank, Spread
from stratafl.report.formats import NOTHING, score, spread
from stratafl.report.ranking import has_column

LABEL = 24  # letters of a method that is not folded
KEPT = 0  # a column that is never left out


@dataclass(frozen=True)
class Column:
    """A number of each method; where it is narrow, the column with the highest `spare` is left out first."""

    name: str
    title: str
    shown: Callable[[Spread], str]
    spare: int

    def cell(self, rank: Rank) -> str:
        return self.shown(rank.numbers[self.name]) if self.name in rank.numbers else NOTHING

    def width(self, ranks: Sequence[Rank]) -> int:
        return max(map(cell_len, (self.title, *map(self.cell, ranks))))


def ranking_table(ranks: Sequence[Rank], outcomes: Sequence[Outcome], width: int) -> Table:
    """The ranking in at most `width` letters."""
    columns = _fitting(_columns(ranks, outcomes[0].regression), ranks, width)
    with_seeds = ["seeds"] if seeds_differ(ranks) else []
    table = titled_table(
        _title(outcomes), ("method", *with_seeds, *(column.title for column in columns)), text=["method"]
    )
    first = next((rank for rank in ranks if not rank.leaks), None)
    for rank in ranks:
        seeds = [str(len(rank.seeds))] if with_seeds else []
        cells = [column.cell(rank) for column in columns]
        table.add_row(rank.title, *seeds, *cells, style="bold green" if rank is first and len(ranks) > 1 else None)
    return table


def seeds_differ(ranks: Sequence[Rank]) -> bool:
    """Whether some rows have more seeds than others."""
    return len({len(rank.seeds) for rank in ranks}) > 1


def _columns(ranks: Sequence[Rank], regression: bool) -> list[Column]:
    def full(given: Spread) -> str:
        return _close(spread(given, regression))

    def mean(given: Spread) -> str:
        return _close(score(given.mean, regression))

    every = [
        Column("received", "received", full, 4),
        Column("trained", "trained", full, 6),
        Column("deployed", "deployed", full, KEPT),
        Column("spread", "spread", mean, 5),
        Column("worst10", "worst 10%", mean, 1),
        Column("new_trained", "new, trained", full, 7),
        Column("bytes", "MB", lambda given: f"{given.mean / 1e6:,.1f}", 2),
        Column("seconds", "s", lambda given: f"{given.mean:,.1f}", 3),
        Column("converged_round", "converged", lambda given: f"{given.mean:.0f}", 8),
        Column("best", "best", full, 9),
    ]
    return [column for column in every if has_column(column.name, ranks)]


def _close(text: str) -> str:
    """Per cent without a space, since terminals are narrow."""
    return text.replace(" %", "%")


def _fitting(columns: Sequence[Column], ranks: Sequence[Rank], width: int) -> list[Column]:
    """The columns that fit beside the methods."""
    seeds = [len("seeds")] if seeds_differ(ranks) else []
    kept = list(columns)
    while True:
        widths = [_method_width(ranks), *seeds, *(column.width(ranks) for column in kept)]
        least = max(kept, key=lambda column: column.spare, default=None)
        if sum(each + 3 for each in widths) + 1 <= width or least is None or least.spare == KEPT:
            return kept
        kept.remove(least)


def _method_width(ranks: Sequence[Rank]) -> int:
    """The width of a short label, or of the longest word of long ones, which are folded between words."""
    longest = max(cell_len(rank.title) for rank in ranks)
    word = max(cell_len(word) for rank in ranks for word in rank.title.split())
    return max(len("method"), word, min(longest, LABEL))


def _title(outcomes: Sequence[Outcome]) -> str:
    first = outcomes[0].config
    same = {
        (o.config["data"]["name"], o.clients, o.config["model"]["name"], o.config["run"]["rounds"]) for o in outcomes
    }
    if len(same) > 1:
        return counted(len(outcomes), "run")
    data, model = Path(first["data"]["name"]).stem, first["model"]["name"]
    clients, rounds = counted(outcomes[0].clients, "client"), counted(first["run"]["rounds"], "round")
    return f"{data}, {clients} · {model} · {rounds}"
