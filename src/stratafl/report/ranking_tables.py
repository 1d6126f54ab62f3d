"""Tables of a report: the ranking with its intervals, ablations, and all runs."""

from collections.abc import Sequence

from stratafl.report.formats import MARK, NOTHING, difference, differing, duration, limits, minute, score, size, spread
from stratafl.report.intervals import interval
from stratafl.report.outcome import measure, what_counts
from stratafl.report.ranking import DIVERGED, Rank, has_column, to_csv, winner
from stratafl.report.study import Study
from stratafl.report.tables import Cell, Table, text

ABLATION_KEYS = 6  # configurations that differ in more keys are no ablation
TITLES = {"worst10": "worst 10 %", "spread": "spread", "last": "last round", "best": "best round"}
TITLES |= {"received": "as received", "trained": "after training"}


def ranking_table(study: Study) -> Table:
    first, loss = winner(study.ranks), study.regression
    columns = {name: title for name, title in TITLES.items() if has_column(name, study.ranks)}
    head = ("method", "seeds", study.metric, "95 % interval", "against the first", *columns.values())

    def row(rank: Rank) -> tuple[Cell, ...]:
        values, numbers = list(rank.by_seed("score").values()), rank.numbers
        against = rank.difference_from(first) if first and rank is not first else None
        cells = [text(rank.title, "first" if rank is first and len(study.ranks) > 1 else "")]
        lost = "score" not in numbers and rank.diverged
        reached = DIVERGED if lost else spread(numbers.get("score"), loss)
        cells += [text(len(rank.seeds)), Cell(reached, None, "strong")]
        cells += [Cell(limits(interval(values), loss)), Cell("first" if rank is first else difference(against, loss))]
        for name in columns:
            given = numbers.get(name)
            alone = name in ("worst10", "spread")
            cells.append(Cell(score(given.mean if given else None, loss) if alone else spread(given, loss)))
        keys = ("converged_round", "bytes", "seconds")
        converged, sent, seconds = (numbers[key].mean if key in numbers else None for key in keys)
        cells.append(Cell(NOTHING if converged is None else f"{converged:.0f}"))
        return (*cells, Cell(size(sent)), Cell(duration(seconds)))

    caption = (
        f"Test {measure(loss)} {what_counts(study.outcomes)}; mean ± standard deviation over seeds. "
        "Interval: Student's t over seeds. Against the first: paired difference over common seeds (t interval, not "
        "corrected for the number of methods; the pairs of methods have verdicts that are). Spread: standard deviation "
        "over clients. Communication: up and down, all clients."
    )
    rows = tuple(row(rank) for rank in study.ranks)
    written = to_csv(study.ranks, compared=True)
    return Table("ranking", caption, (*head, "converged", "communication", "time"), rows, written=written)


def runs_table(study: Study) -> Table:
    head = ("run", "method", "seed", "rounds", "selected", study.metric, "started", "device", "commit")
    rows = []
    for rank in study.ranks:
        for record in study.of(rank):
            one, env, numbers = record.outcome, record.environment, record.outcome.numbers()
            rounds = f"{one.rounds} of {one.config['run']['rounds']}"
            value = numbers.get("score")
            scored = Cell(DIVERGED if value is None and one.diverged else score(value, study.regression), value)
            cells = [text(one.folder), text(rank.label), text(one.seed), Cell(rounds, one.rounds)]
            cells += [text(int(numbers["selected_round"])), scored, text(minute(env.get("started")))]
            rows.append((*cells, text(env.get("device") or NOTHING), text(str(env.get("commit") or NOTHING)[:10])))
    return Table("runs", "All runs", head, tuple(rows), left=2)


def ablation_tables(study: Study) -> list[Table]:
    """One table for each method with several configurations, the best one first."""
    groups: dict[str, list[Rank]] = {}
    for rank in study.ranks:
        groups.setdefault(str(rank.settings["algorithm.name"]), []).append(rank)
    several = [(name, group) for name, group in groups.items() if len(group) > 1]
    found = [(name, group, differing([rank.settings for rank in group])) for name, group in several]
    return [_ablation(number, *each, study) for number, each in enumerate(found) if len(each[2]) <= ABLATION_KEYS]


def _ablation(number: int, name: str, group: Sequence[Rank], keys: Sequence[str], study: Study) -> Table:
    options = [key.removeprefix("algorithm.") for key in keys]
    head = (*options, "seeds", study.metric, "95 % interval", "against the best")
    loss = study.regression

    def row(rank: Rank) -> tuple[Cell, ...]:
        config, numbers = rank.settings, rank.numbers.get("score")
        against = rank.difference_from(group[0]) if rank is not group[0] else None
        shown = spread(numbers, loss) + (f" {MARK}" if rank.leaks else "")
        cells = [*(text(config.get(key, NOTHING)) for key in keys), text(len(rank.seeds))]
        cells += [Cell(shown, numbers.mean if numbers else None, "strong")]
        cells += [Cell(limits(interval(list(rank.by_seed("score").values())), loss))]
        behind = "best" if rank is group[0] else difference(against, loss)
        return (*cells, Cell(behind, against.mean if against else None))

    caption = f"{name}: configurations that differ in {', '.join(keys)}"
    return Table(f"ablation-{number}", caption, head, tuple(row(rank) for rank in group), left=len(keys))
