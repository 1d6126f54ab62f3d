"""Ablations: configurations of one method that differ in a few keys, side by side."""

from collections.abc import Sequence

from stratafl.report.formats import difference, limits, spread
from stratafl.report.intervals import interval
from stratafl.report.overview import behind
from stratafl.report.ranking import MARK, Rank, flat_method
from stratafl.report.study import Study
from stratafl.report.tables import Cell, Table, text

FEW = 6  # keys in which an ablation's configurations differ at most


def ablation_tables(study: Study) -> list[Table]:
    """One table for each method that was run in several configurations, the best first."""
    names = dict.fromkeys(_method(rank) for rank in study.ranks)
    groups = {name: [rank for rank in study.ranks if _method(rank) == name] for name in names}
    found = [(name, group, differing(group)) for name, group in groups.items() if len(group) > 1]
    return [_table(number, *each, study) for number, each in enumerate(found) if len(each[2]) <= FEW]


def differing(ranks: Sequence[Rank]) -> list[str]:
    """The keys that do not have one value in all of them."""
    flat = [flat_method(rank.members[0].config) for rank in ranks]
    keys = dict.fromkeys(key for config in flat for key in config)
    return [key for key in keys if len({repr(config.get(key)) for config in flat}) > 1]


def _table(number: int, name: str, group: Sequence[Rank], keys: Sequence[str], study: Study) -> Table:
    head = (
        *(key.removeprefix("algorithm.") for key in keys),
        "seeds",
        study.metric,
        "95 % interval",
        "against the best",
    )

    def row(rank: Rank) -> tuple[Cell, ...]:
        config, numbers = flat_method(rank.members[0].config), rank.numbers.get("score")
        against = behind(group[0], rank) if rank is not group[0] else None
        mark = f" {MARK}" if rank.leaks else ""
        values = list(rank.by_seed("score").values())
        return (
            *(text(config.get(key, "–")) for key in keys),
            text(len(rank.seeds)),
            Cell(f"{spread(numbers, study.regression)}{mark}", numbers.mean if numbers else None, "strong"),
            Cell(limits(interval(values), study.regression)),
            Cell(
                "best" if rank is group[0] else difference(against, study.regression), against.mean if against else None
            ),
        )

    caption = f"{name}: configurations that differ in {', '.join(keys)}"
    return Table(f"ablation-{number}", caption, head, tuple(row(rank) for rank in group), left=len(keys))


def _method(rank: Rank) -> str:
    return str(rank.members[0].config["algorithm"]["name"])
