"""What was run, and the ranking with its intervals."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from stratafl.errors import counted
from stratafl.report.formats import NOTHING, difference, duration, limits, listed, minus, score, size, spread
from stratafl.report.intervals import Interval, interval, paired
from stratafl.report.outcomes import Outcome, measure, what_counts
from stratafl.report.places import machine, minute, span, versions
from stratafl.report.ranking import DIVERGED, INCOMPARABLE, Rank, has_column
from stratafl.report.study import Record, Study
from stratafl.report.tables import Cell, Table, as_csv, text


def winner(ranks: Sequence[Rank]) -> Rank | None:
    """The first that is comparable: a method that leaks wins nothing."""
    return next((rank for rank in ranks if not rank.leaks and "score" in rank.numbers), None)


def behind(first: Rank, other: Rank) -> Interval | None:
    """How much the other has more than the first, over the seeds that both have."""
    return paired(other.by_seed("score"), first.by_seed("score"))


def facts(study: Study) -> list[tuple[str, str]]:
    """What was run, on what, in a few pairs of words."""
    outcomes, environments = study.outcomes, [record.environment for record in study.records.values()]
    if not outcomes:
        return []
    seeds = sorted({one.seed for one in outcomes})
    pairs = [
        ("methods", listed([rank.label for rank in study.ranks], 20)),
        ("data", _each(_data(study.records[one.folder]) for one in outcomes)),
        ("model", _each(_model(one, env) for one, env in zip(outcomes, environments, strict=True))),
        ("training", _each(_training(one) for one in outcomes)),
        ("rounds", _each(str(one.config["run"]["rounds"]) for one in outcomes)),
        ("clients per round", _each(f"{100 * one.config['run']['participation']:g} %" for one in outcomes)),
        ("seeds", listed([str(seed) for seed in seeds])),
        ("score", f"test {measure(study.regression)} {what_counts(outcomes)}"),
        ("machine", _each(machine(env) for env in environments)),
        ("versions", _each(versions(env) for env in environments)),
        ("begun", span([str(env["started"]) for env in environments if env.get("started")])),
        ("command", _each(_command(env) for env in sorted(environments, key=_begun))),
    ]
    return [(name, value) for name, value in pairs if value]


def ranking_table(study: Study) -> Table:
    """The ranking: the selected round with its interval, the difference from the first, last, best, costs."""
    first, loss = winner(study.ranks), study.regression
    columns = [
        ("worst10", "worst 10 %"),
        ("spread", "spread"),
        ("last", "last round"),
        ("best", "best round"),
        ("received", "as received"),
        ("trained", "after training"),
    ]
    columns = [column for column in columns if has_column(column[0], study.ranks)]
    head = ("method", "seeds", study.metric, "95 % interval", "against the first", *(title for _, title in columns))

    def row(rank: Rank) -> tuple[Cell, ...]:
        values, numbers = list(rank.by_seed("score").values()), rank.numbers
        against = behind(first, rank) if first and rank is not first else None
        cells = [text(rank.title, "first" if rank is first and len(study.ranks) > 1 else "")]
        cells += [text(len(rank.seeds)), Cell(_score(rank, loss), None, "strong")]
        cells += [Cell(limits(interval(values), loss)), Cell("first" if rank is first else difference(against, loss))]
        for name, _ in columns:
            given = numbers.get(name)
            alone = name in ("worst10", "spread")
            cells.append(Cell(score(given.mean if given else None, loss) if alone else spread(given, loss)))
        means = {
            name: numbers[name].mean if name in numbers else None for name in ("converged_round", "bytes", "seconds")
        }
        converged = means["converged_round"]
        cells.append(Cell(NOTHING if converged is None else f"{converged:.0f}"))
        return (*cells, Cell(size(means["bytes"])), Cell(duration(means["seconds"])))

    caption = (
        f"Test {measure(loss)} {what_counts(study.outcomes)}; mean ± standard deviation over seeds. "
        "Interval: Student's t over seeds. Against the first: difference over common seeds (paired t interval, not "
        "corrected for the number of methods). Spread: standard deviation over clients. Traffic: up and down, all "
        "clients."
    )
    rows = tuple(row(rank) for rank in study.ranks)
    return Table("ranking", caption, (*head, "converged", "traffic", "time"), rows, written=_csv(study))


def _score(rank: Rank, loss: bool) -> str:
    lost = "score" not in rank.numbers and rank.diverged
    return DIVERGED if lost else spread(rank.numbers.get("score"), loss)


def _csv(study: Study) -> str:
    """The ranking in full: mean and deviation of every number, the interval, and the difference from the first."""
    names = list(dict.fromkeys(name for rank in study.ranks for name in rank.numbers))
    spreads = [f"{name}_{part}" for name in names for part in ("mean", "std")]
    limits_ = ["score_low", "score_high", "difference", "difference_low", "difference_high"]
    first, rows = winner(study.ranks), []
    for rank in study.ranks:
        found = [rank.numbers.get(name) for name in names]
        own = interval(list(rank.by_seed("score").values()))
        gap = behind(first, rank) if first and rank is not first else None
        cells = [cell for each in found for cell in ((each.mean, each.std) if each else (None, None))]
        cells += [own.low, own.high] if own else [None, None]
        cells += [gap.mean, gap.low, gap.high] if gap else [None, None, None]
        rows.append([rank.label, len(rank.seeds), *cells, INCOMPARABLE if rank.leaks else None])
    return as_csv(["method", "seeds", *spreads, *limits_, "leaks"], rows)


def runs_table(study: Study) -> Table:
    """Every run, with where it is and how far it got."""
    head = ("run", "method", "seed", "rounds", "selected", study.metric, "begun", "device", "commit")
    rows = []
    for rank in study.ranks:
        for record in study.of(rank):
            one, env, numbers = record.outcome, record.environment, record.outcome.numbers()
            rounds = f"{one.rounds} of {one.config['run']['rounds']}"
            value = numbers.get("score")
            shown = DIVERGED if value is None and one.diverged else score(value, study.regression)
            scored = Cell(shown, value)
            cells = [text(one.folder), text(rank.label), text(one.seed), Cell(rounds, one.rounds)]
            cells += [text(int(numbers["selected_round"])), scored, text(minute(env.get("started")))]
            rows.append((*cells, text(env.get("device") or NOTHING), text(str(env.get("commit") or NOTHING)[:10])))
    return Table("runs", "All runs", head, tuple(rows), left=2)


def _each(values: Iterable[str], most: int = 4) -> str:
    """What is said of the runs, each once; no more than a reader would read."""
    said = list(dict.fromkeys(filter(None, values)))
    return "; ".join(said[:most]) + (f"; and {len(said) - most} more" if len(said) > most else "")


def _data(record: Record) -> str:
    one, data = record.outcome, record.outcome.config["data"]
    partition = data["partition"]
    if partition == "auto":
        partition = "as the data names them" if record.client_names else "iid" if one.regression else "dirichlet"
    shown = {
        "dirichlet": f"Dirichlet shares, α = {data['alpha']:g}",
        "pfllib": f"PFLlib's Dirichlet shares, α = {data['alpha']:g}",
        "classes": f"{counted(data.get('per_client') or 0, 'class', 'classes')} each",
    }
    return f"{Path(data['name']).stem}, {counted(one.clients, 'client')}, {shown.get(partition, partition)}"


def _model(one: Outcome, env: Any) -> str:
    columns = env.get("columns")
    return str(one.config["model"]["name"]) + (f" ({columns:,} parameters)" if isinstance(columns, int) else "")


def _training(one: Outcome) -> str:
    train = one.config["train"]
    epochs, rate = counted(train["epochs"], "local epoch"), minus(f"{train['lr']:g}")
    return f"{epochs}, batch {train['batch']}, rate {rate}"


def _begun(env: Any) -> str:
    return str(env.get("started") or "")


def _command(env: Any) -> str:
    words = env.get("command")
    return " ".join(["strata", *map(str, words[1:])]) if isinstance(words, list) and len(words) > 1 else ""
