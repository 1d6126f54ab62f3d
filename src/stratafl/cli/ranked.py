"""The ranking as a table on the terminal: as many columns as there is room for, and none of them cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len
from rich.table import Table

from stratafl.errors import counted
from stratafl.report import Outcome, Rank, Spread
from stratafl.report.formats import NOTHING, score, spread
from stratafl.report.ranking import has_column

LABEL = 24  # letters of a method up to which it stands in one line
KEPT = 0  # a column that is never left out


@dataclass(frozen=True)
class Column:
    """A number of each method under a title; those easier to spare are left out first."""

    name: str
    title: str
    shown: Callable[[Spread], str]
    spare: int  # how easily, where there is no room

    def cell(self, rank: Rank) -> str:
        """What it says of a method."""
        return self.shown(rank.numbers[self.name]) if self.name in rank.numbers else NOTHING

    def width(self, ranks: Sequence[Rank]) -> int:
        """How many letters its widest line has."""
        return max(map(cell_len, (self.title, *map(self.cell, ranks))))


def table(ranks: Sequence[Rank], outcomes: Sequence[Outcome], width: int) -> Table:
    """The ranking in so many columns of a terminal."""
    columns = _fitting(_columns(ranks, outcomes[0].regression), ranks, width)
    made = Table(title=_title(outcomes), title_justify="left", header_style="bold", padding=(0, 1))
    made.add_column("method", overflow="fold")
    counts = unlike_seeds(ranks)
    if counts:
        made.add_column("seeds", justify="right", no_wrap=True)
    for column in columns:
        made.add_column(column.title, justify="right", no_wrap=True)
    first = next((rank for rank in ranks if not rank.leaks), None)
    for rank in ranks:
        seeds = [str(len(rank.seeds))] if counts else []
        cells = [column.cell(rank) for column in columns]
        made.add_row(rank.title, *seeds, *cells, style="bold green" if rank is first and len(ranks) > 1 else None)
    return made


def unlike_seeds(ranks: Sequence[Rank]) -> bool:
    """Whether some rows are of more seeds than others."""
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
    """Per cent without a space: a terminal is narrow."""
    return text.replace(" %", "%")


def _fitting(columns: Sequence[Column], ranks: Sequence[Rank], width: int) -> list[Column]:
    """The columns for which there is room beside the methods."""
    seeds = [len("seeds")] if unlike_seeds(ranks) else []
    kept = list(columns)
    while True:
        widths = [_method_width(ranks), *seeds, *(column.width(ranks) for column in kept)]
        least = max(kept, key=lambda column: column.spare, default=None)
        if sum(each + 3 for each in widths) + 1 <= width or least is None or least.spare == KEPT:
            return kept
        kept.remove(least)


def _method_width(ranks: Sequence[Rank]) -> int:
    """Of the whole label where it is short; a long one is folded, but never within a word."""
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
