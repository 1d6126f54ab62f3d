"""Pairs of methods as a table and as CSV, with what their verdicts are about and corrected for."""

from collections.abc import Sequence

from stratafl.errors import counted
from stratafl.report.formats import NO_VALUE, apart_by, listed
from stratafl.report.paired import MAX_FORECAST_SEEDS, REFERENCES, WORDS, Paired
from stratafl.report.report_tables import Cell, ReportTable, as_csv, text


def pairs_table(compared: Sequence[Paired]) -> ReportTable | None:
    """All pairs: difference, interval, adjusted p and the verdict."""
    if not compared:
        return None
    head = ("first", "second", "difference", "95 % interval", "p, corrected", "verdict", "further seeds")
    looks = {"better": "holds", "worse": "fails", "unclear": "unrun", "same": "unrun"}
    rows = []
    for pair in compared:
        words = "one seed" if pair.is_open and pair.seeds == 1 else WORDS.get(pair.verdict)
        verdict = Cell(words or f"{pair.first} is {pair.verdict}", pair.verdict, looks[pair.verdict])
        cells = [text(pair.first), text(pair.second), *_numbers(pair), verdict]
        rows.append((*cells, Cell(_further_seeds(pair), pair.more_seeds)))
    caption = (
        f"Paired differences, the first minus the second, by seed and client ({_basis(compared)}). "
        f"{whom_verdicts_are_about(compared)} Intervals are for one pair alone; p is corrected for "
        f"{corrected_for(compared)} (Holm), and verdicts follow it."
    )
    return ReportTable("pairs", caption, head, tuple(rows), left=2, written=pairs_csv(compared), stacked=True)


def corrected_for(compared: Sequence[Paired]) -> str:
    """How many pairs p is corrected for, in words."""
    counts = {planned: {pair.pairs for pair in compared if pair.planned is planned} for planned in (True, False)}
    planned, others = (counted(max(counts[kind], default=0), "pair") for kind in (True, False))
    if not counts[True] or not counts[False]:
        return others if counts[False] else planned
    return f"the {planned} with {' or '.join(REFERENCES)}, and for the {others} of other methods"


def whom_verdicts_are_about(compared: Sequence[Paired]) -> str:
    """Other clients like these, or these clients that the data names; the two are mixed if predictions are missing."""
    with_seeds = [pair for pair in compared if pair.seeds]
    about_others = [f"{pair.first} and {pair.second}" for pair in with_seeds if not pair.about_these_clients]
    if len(about_others) == len(with_seeds):
        return "Verdicts generalise to other seeds and other clients like these."
    named = "Verdicts generalise to other seeds and other test samples of these clients, because the data names them."
    return f"{named} Only these generalise to other clients: {listed(about_others, 3)}." if about_others else named


def pairs_csv(compared: Sequence[Paired]) -> str:
    head = ("first", "second", "difference", "low", "high", "p", "p_adjusted", "verdict", "more_seeds")
    rows = []
    for pair in compared:
        ends = pair.difference.ends
        about = (pair.p, pair.adjusted, pair.verdict, pair.more_seeds, pair.seeds, pair.clients, pair.sentence)
        rows.append([pair.first, pair.second, pair.difference.mean, *ends, *about])
    return as_csv((*head, "seeds", "clients", "sentence"), rows)


def _numbers(pair: Paired) -> tuple[Cell, ...]:
    if pair.seeds < 2 or pair.verdict == "same":
        return Cell(apart_by(pair.difference.mean, pair.metric, "+")), Cell(NO_VALUE), Cell(NO_VALUE)
    low, high = (apart_by(end, pair.metric) for end in pair.limits)
    p = "< 0.001" if pair.adjusted < 0.001 else f"{pair.adjusted:.3f}"
    shown = apart_by(pair.difference.mean, pair.metric, "+")
    return Cell(shown), Cell(f"{low} to {high}"), Cell(p)


def _further_seeds(pair: Paired) -> str:
    if not pair.is_open or pair.seeds < 2:
        return NO_VALUE
    if pair.limited:
        return "may not help"
    return f"more than {MAX_FORECAST_SEEDS}" if pair.more_seeds is None else f"about {pair.more_seeds}"


def _basis(compared: Sequence[Paired]) -> str:
    """How many seeds and clients the pairs have."""
    counts = [({pair.seeds for pair in compared}, "seed"), ({pair.clients for pair in compared}, "client")]
    return ", ".join(
        counted(max(different), name) if len(different) == 1 else f"up to {counted(max(different), name)}"
        for different, name in counts
    )
