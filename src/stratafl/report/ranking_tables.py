"""Tables of a report: the ranking with its intervals, ablations, and all runs."""

from collections.abc import Mapping, Sequence

from stratafl.errors import counted
from stratafl.report.formats import (
    MARK,
    NO_VALUE,
    difference_text,
    differing,
    duration_text,
    limits,
    minute,
    over_seeds,
    score_text,
    size_text,
    spread,
)
from stratafl.report.intervals import Interval, interval
from stratafl.report.notes import privacy_findings
from stratafl.report.outcome import is_imported, measure, what_counts
from stratafl.report.paired import WORDS, pair_of
from stratafl.report.ranking import DIVERGED, Rank, has_column, to_csv, winner
from stratafl.report.report_tables import Cell, ReportTable, text
from stratafl.report.study import Study

COST_COLUMNS = 2  # of the ranking, the last ones: communication and time
ABLATION_KEYS = 6  # configurations that differ in more keys are no ablation
NUMBERS = {"client_mean": "mean over clients", "spread": "spread", "last": "last round", "best": "best round"}
NUMBERS |= {"received": "as received", "trained": "after training", "converged_round": "converged"}
NEW = {"new_received": "as received", "new_trained": "after one round", "new_deployed": "deployed"}


def ranking_table(study: Study) -> ReportTable:
    """The ranking in as few columns as a decision needs, so that it fits a page; `numbers_table` has the others."""
    first, metric = winner(study.ranks), study.measured
    counts = len({len(rank.seeds) for rank in study.ranks}) > 1
    private = has_column("epsilon", study.ranks)
    head = ("method", *(("seeds",) if counts else ()), metric.title, *(("ε",) if private else ()))
    head = (*head, "against the first", "worst 10 %")

    def row(rank: Rank) -> tuple[Cell, ...]:
        leads = rank is first and len(study.ranks) > 1 and study.no_choice is None
        cells = [text(rank.title, "first" if leads else "")]
        cells += [text(len(rank.seeds))] if counts else []
        lost = "score" not in rank.numbers and rank.diverged
        reached = DIVERGED if lost else spread(rank.numbers.get("score"), metric)
        cells.append(Cell(reached, None, "strong", over_seeds(rank.scores, metric)))
        cells += [Cell(epsilon_text(rank), rank.mean("epsilon"))] if private else []
        cells += [_against(rank, first, study), Cell(score_text(rank.mean("worst10"), metric))]
        return (*cells, Cell(size_text(rank.mean("bytes"))), Cell(duration_text(rank.mean("seconds"))))

    caption = (
        f"Test {measure(metric)} {what_counts(study.outcomes)}; mean ± standard deviation over seeds. "
        "Interval: Student's t over seeds. Against the first: paired difference by seed and client with its 95 % "
        "interval; whether it is worse is corrected for several pairs. Worst 10 %: mean over the clients with "
        "the worst scores. Communication: up and down, all clients, the whole run."
    )
    rows = [row(rank) for rank in (*study.ranks, *study.baselines)]
    if study.baselines:
        caption += " Logistic regression: baselines outside the federation, of each client alone or of pooled samples."
    if study.majority is not None:
        caption += " Majority class: every client always predicts its most frequent training class."
        rows.append(row(study.majority))
    elif is_imported(metric) and not study.regression:
        caption += " Majority class: unknown, because reports do not run your own metric."
    caption = " ".join([caption, *map(str, privacy_findings(study.ranks))])
    behind = {rank.label: paired for rank in study.ranks if first and (paired := _minus(rank, first, study))}
    written = to_csv(study.ranks, behind)
    return ReportTable("ranking", caption, (*head, "communication", "time"), tuple(rows), written=written, stacked=True)


def epsilon_text(rank: Rank) -> str:
    """ε of the whole run; none without noise."""
    mean = rank.mean("epsilon")
    return NO_VALUE if mean is None else f"{mean:.3g}"


def _against(rank: Rank, first: Rank | None, study: Study) -> Cell:
    if first is None or rank is first:
        return Cell("first" if rank is first else NO_VALUE)
    pair = pair_of(study.pairs, rank.label, first.label)
    if pair is None:
        return Cell(NO_VALUE)
    verdict = "one seed" if pair.is_open and pair.seeds == 1 else WORDS.get(pair.verdict, pair.verdict)
    return Cell(difference_text(pair.difference, study.measured), pair.difference.mean, "", verdict)


def _minus(rank: Rank, first: Rank, study: Study) -> Interval | None:
    """The paired difference, this one minus the first."""
    pair = pair_of(study.pairs, rank.label, first.label)
    return pair.difference if pair else None


def numbers_table(study: Study) -> ReportTable | None:
    """The numbers of each method that a referee asks for."""
    columns = {name: title for name, title in NUMBERS.items() if has_column(name, study.ranks)}
    caption = (
        "Other numbers of the same runs. Spread: standard deviation over clients. As received, after training: the "
        "models at these stages in the selected round. Converged: the first round within half a point of the best."
    )
    return _table_of("numbers", caption, columns, study)


def new_clients_table(study: Study) -> ReportTable | None:
    """What clients that took no part in training reach."""
    columns = {name: title for name, title in NEW.items() if has_column(name, study.ranks)}
    new = sorted({run.config["data"]["new_clients"] for run in study.outcomes if run.config["data"]["new_clients"]})
    count = counted(new[0], "new client") if len(new) == 1 else "New clients"
    verb = "takes" if new == [1] else "take"
    caption = (
        f"{count}, which {verb} no part in training: test {study.measured.title} of the model as received, after one "
        "round of training on their own samples, and as deployed; mean ± standard deviation over seeds"
    )
    return _table_of("new", caption, columns, study)


def _table_of(name: str, caption: str, columns: Mapping[str, str], study: Study) -> ReportTable | None:
    """A row of numbers for each method; None if no method has one of them."""
    if not columns:
        return None

    def cell(rank: Rank, key: str) -> Cell:
        mean = rank.mean(key)
        if key == "converged_round":
            return Cell(NO_VALUE if mean is None else f"{mean:.0f}", mean)
        if key == "spread":
            return Cell(score_text(mean, study.measured), mean)
        return Cell(spread(rank.numbers.get(key), study.measured), mean)

    rows = tuple((text(rank.label), *(cell(rank, key) for key in columns)) for rank in study.ranks)
    return ReportTable(name, caption, ("method", *columns.values()), rows)


def runs_table(study: Study) -> ReportTable:
    head = ("run", "method", "seed", "rounds", "selected", study.measured.title, "started", "device", "commit")
    rows = []
    for rank in study.ranks:
        for run in rank.members:
            env, numbers = run.environment, run.numbers()
            rounds = f"{run.rounds} of {run.config['run']['rounds']}"
            value = numbers.get("score")
            scored = Cell(DIVERGED if value is None and run.diverged else score_text(value, study.measured), value)
            cells = [text(run.folder), text(rank.label), text(run.seed), Cell(rounds, run.rounds)]
            cells += [text(int(numbers["selected_round"])), scored, text(minute(env.get("started")))]
            rows.append((*cells, text(env.get("device") or NO_VALUE), text(str(env.get("commit") or NO_VALUE)[:10])))
    return ReportTable("runs", "All runs", head, tuple(rows), left=2)


def ablation_tables(study: Study) -> list[ReportTable]:
    """One table for each method with several configurations, the best one first."""
    groups: dict[str, list[Rank]] = {}
    for rank in study.ranks:
        groups.setdefault(rank.method, []).append(rank)
    several = [(name, group) for name, group in groups.items() if len(group) > 1]
    compared = [(name, group, differing([rank.settings for rank in group])) for name, group in several]
    return [_ablation(number, *each, study) for number, each in enumerate(compared) if len(each[2]) <= ABLATION_KEYS]


def _ablation(number: int, name: str, group: Sequence[Rank], keys: Sequence[str], study: Study) -> ReportTable:
    options = [key.removeprefix("algorithm.") for key in keys]
    head = (*options, "seeds", study.measured.title, "95 % interval", "against the best")
    metric = study.measured

    def row(rank: Rank) -> tuple[Cell, ...]:
        config, against = rank.settings, _minus(rank, group[0], study)
        shown = spread(rank.numbers.get("score"), metric) + (f" {MARK}" if rank.leaks else "")
        cells = [*(text(config.get(key, NO_VALUE)) for key in keys), text(len(rank.seeds))]
        cells += [Cell(shown, rank.mean("score"), "strong")]
        cells += [Cell(limits(interval(rank.scores), metric))]
        behind = "best" if rank is group[0] else difference_text(against, metric)
        return (*cells, Cell(behind, against.mean if against else None))

    caption = f"{name}: configurations that differ in {', '.join(keys)}"
    return ReportTable(f"ablation-{number}", caption, head, tuple(row(rank) for rank in group), left=len(keys))
