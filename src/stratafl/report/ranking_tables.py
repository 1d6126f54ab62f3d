"""Tables of a report: the ranking with its intervals, ablations, and all runs."""

from collections.abc import Mapping, Sequence

from stratafl.errors import counted
from stratafl.report.formats import (
    MARK,
    NOTHING,
    Kind,
    difference,
    differing,
    duration,
    limits,
    minute,
    score,
    size,
    spread,
)
from stratafl.report.intervals import Interval, interval
from stratafl.report.outcome import is_imported, measure, what_counts
from stratafl.report.paired import Paired, pair_of
from stratafl.report.ranking import DIVERGED, Rank, has_column, to_csv, winner
from stratafl.report.study import Study
from stratafl.report.tables import Cell, Table, text

ABLATION_KEYS = 6  # configurations that differ in more keys are no ablation
NUMBERS = {"client_mean": "mean over clients", "spread": "spread", "last": "last round", "best": "best round"}
NUMBERS |= {"received": "as received", "trained": "after training", "converged_round": "converged"}
NEW = {"new_received": "as received", "new_trained": "after one round", "new_deployed": "deployed"}


def ranking_table(study: Study) -> Table:
    """The ranking in as few columns as a decision needs, so that it fits a page; `numbers_table` has the others."""
    first, metric = winner(study.ranks), study.measured
    counts = len({len(rank.seeds) for rank in study.ranks}) > 1
    head = ("method", *(("seeds",) if counts else ()), metric.title, "against the first", "worst 10 %")

    def row(rank: Rank) -> tuple[Cell, ...]:
        values, numbers = list(rank.by_seed("score").values()), rank.numbers
        leads = rank is first and len(study.ranks) > 1 and study.no_choice is None
        cells = [text(rank.title, "first" if leads else "")]
        cells += [text(len(rank.seeds))] if counts else []
        lost = "score" not in numbers and rank.diverged
        reached = DIVERGED if lost else spread(numbers.get("score"), metric)
        worst = numbers.get("worst10")
        cells.append(Cell(reached, None, "strong", _interval(values, metric)))
        cells += [_against(rank, first, study), Cell(score(worst.mean if worst else None, metric))]
        sent, seconds = (numbers[key].mean if key in numbers else None for key in ("bytes", "seconds"))
        return (*cells, Cell(size(sent)), Cell(duration(seconds)))

    caption = (
        f"Test {measure(metric)} {what_counts(study.outcomes)}; mean ± standard deviation over seeds. "
        "Interval: Student's t over seeds. Against the first: paired difference by seed and client with its 95 % "
        "interval; whether it is worse is corrected for the number of pairs. Worst 10 %: mean over the clients with "
        "the worst scores. Communication: up and down, all clients, the whole run."
    )
    rows = [row(rank) for rank in study.ranks]
    if study.majority is not None:
        caption += " Majority class: every client always gives the class that it has most in training."
        rows.append(row(study.majority))
    elif is_imported(metric) and not study.regression:
        caption += " Majority class: unknown, because reports do not run your own metric."
    behind = {rank.label: found for rank in study.ranks if first and (found := _minus(rank, first, study))}
    written = to_csv(study.ranks, behind)
    return Table("ranking", caption, (*head, "communication", "time"), tuple(rows), written=written, stacked=True)


def _interval(values: Sequence[float], kind: Kind) -> str:
    """The t interval over seeds; the two values themselves, of which it would say nothing."""
    if len(values) == 2:
        return " and ".join(score(value, kind) for value in values)
    return f"95 % interval {limits(interval(values), kind)}" if len(values) > 2 else ""


def _against(rank: Rank, first: Rank | None, study: Study) -> Cell:
    if first is None or rank is first:
        return Cell("first" if rank is first else NOTHING)
    pair = _pair(rank, first, study)
    if pair is None:
        return Cell(NOTHING)
    verdict = "not significant" if pair.verdict == "unclear" else pair.verdict
    return Cell(difference(pair.difference, study.measured), pair.difference.mean, "", verdict)


def _pair(rank: Rank, first: Rank, study: Study) -> Paired | None:
    """The comparison with a method that comes before it, if they have a common seed."""
    pair = pair_of(study.pairs, rank.label, first.label)
    return pair if pair is not None and pair.seeds else None


def _minus(rank: Rank, first: Rank, study: Study) -> Interval | None:
    """The paired difference, this one minus the first."""
    pair = _pair(rank, first, study)
    return pair.difference if pair else None


def numbers_table(study: Study) -> Table | None:
    """The numbers of each method that a referee asks for."""
    columns = {name: title for name, title in NUMBERS.items() if has_column(name, study.ranks)}
    caption = (
        "Other numbers of the same runs. Spread: standard deviation over clients. As received, after training: the "
        "models at these stages in the selected round. Converged: the first round within half a point of the best."
    )
    return _table_of("numbers", caption, columns, study)


def new_clients_table(study: Study) -> Table | None:
    """What clients that took no part in training reach."""
    columns = {name: title for name, title in NEW.items() if has_column(name, study.ranks)}
    new = sorted({one.config["data"]["new_clients"] for one in study.outcomes if one.config["data"]["new_clients"]})
    count = counted(new[0], "new client") if len(new) == 1 else "New clients"
    verb = "takes" if new == [1] else "take"
    caption = (
        f"{count}, which {verb} no part in training: test {study.measured.title} of the model as received, after one "
        "round of training on their own samples, and as deployed; mean ± standard deviation over seeds"
    )
    return _table_of("new", caption, columns, study)


def _table_of(name: str, caption: str, columns: Mapping[str, str], study: Study) -> Table | None:
    """A row of numbers for each method; None if no method has one of them."""
    if not columns:
        return None

    def cell(rank: Rank, key: str) -> Cell:
        given = rank.numbers.get(key)
        if key == "converged_round":
            return Cell(NOTHING if given is None else f"{given.mean:.0f}", given.mean if given else None)
        alone = key == "spread"
        kind = study.measured
        shown = score(given.mean if given else None, kind) if alone else spread(given, kind)
        return Cell(shown, given.mean if given else None)

    rows = tuple((text(rank.label), *(cell(rank, key) for key in columns)) for rank in study.ranks)
    return Table(name, caption, ("method", *columns.values()), rows)


def runs_table(study: Study) -> Table:
    head = ("run", "method", "seed", "rounds", "selected", study.measured.title, "started", "device", "commit")
    rows = []
    for rank in study.ranks:
        for record in study.of(rank):
            one, env, numbers = record.outcome, record.environment, record.outcome.numbers()
            rounds = f"{one.rounds} of {one.config['run']['rounds']}"
            value = numbers.get("score")
            scored = Cell(DIVERGED if value is None and one.diverged else score(value, study.measured), value)
            cells = [text(one.folder), text(rank.label), text(one.seed), Cell(rounds, one.rounds)]
            cells += [text(int(numbers["selected_round"])), scored, text(minute(env.get("started")))]
            rows.append((*cells, text(env.get("device") or NOTHING), text(str(env.get("commit") or NOTHING)[:10])))
    return Table("runs", "All runs", head, tuple(rows), left=2)


def ablation_tables(study: Study) -> list[Table]:
    """One table for each method with several configurations, the best one first."""
    groups: dict[str, list[Rank]] = {}
    for rank in study.ranks:
        groups.setdefault(rank.method, []).append(rank)
    several = [(name, group) for name, group in groups.items() if len(group) > 1]
    found = [(name, group, differing([rank.settings for rank in group])) for name, group in several]
    return [_ablation(number, *each, study) for number, each in enumerate(found) if len(each[2]) <= ABLATION_KEYS]


def _ablation(number: int, name: str, group: Sequence[Rank], keys: Sequence[str], study: Study) -> Table:
    options = [key.removeprefix("algorithm.") for key in keys]
    head = (*options, "seeds", study.measured.title, "95 % interval", "against the best")
    metric = study.measured

    def row(rank: Rank) -> tuple[Cell, ...]:
        config, numbers = rank.settings, rank.numbers.get("score")
        against = _minus(rank, group[0], study)
        shown = spread(numbers, metric) + (f" {MARK}" if rank.leaks else "")
        cells = [*(text(config.get(key, NOTHING)) for key in keys), text(len(rank.seeds))]
        cells += [Cell(shown, numbers.mean if numbers else None, "strong")]
        cells += [Cell(limits(interval(list(rank.by_seed("score").values())), metric))]
        behind = "best" if rank is group[0] else difference(against, metric)
        return (*cells, Cell(behind, against.mean if against else None))

    caption = f"{name}: configurations that differ in {', '.join(keys)}"
    return Table(f"ablation-{number}", caption, head, tuple(row(rank) for rank in group), left=len(keys))
