"""Paired differences between methods: which of two is better, by how much, and how sure that is.

`pairing` says how sure the mean difference of two methods is. Many pairs find something by chance: the level of all
pairs together is 5 % (Holm's correction). It counts all pairs, not only those with the first method, because which
method is first is itself found in the data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf
from pathlib import Path
from typing import Literal

from stratafl.core.reprs import short_repr
from stratafl.errors import counted
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.report import sentences as say
from stratafl.report.bootstrap import ALPHA, Uncertainty, sharing
from stratafl.report.formats import apart_by, listed
from stratafl.report.intervals import Interval
from stratafl.report.pairing import Couple, ScoredRun, pair_uncertainty, scored_runs
from stratafl.report.ranking import Rank, comparable_ranks
from stratafl.report.report_tables import Cell, ReportTable, as_csv, text
from stratafl.report.sentences import finding

Judgement = Literal["better", "worse", "unclear"]
MAX_FORECAST_SEEDS = 100  # more seeds than this are "more than 100"
UNLIMITED_SEEDS = 10**6  # what is still uncertain then is due to the clients
SENTENCES = {"better": say.PAIR_BETTER, "worse": say.PAIR_WORSE, "unclear": say.PAIR_UNCLEAR}
TURNED: dict[Judgement, Judgement] = {"better": "worse", "worse": "better", "unclear": "unclear"}


@short_repr
@dataclass(frozen=True)
class Paired:
    """What is known of two methods: the first minus the second, over the seeds that both have."""

    first: str
    second: str
    difference: Interval  # of this pair alone, 95 %
    p: float
    adjusted: float  # p after Holm's correction
    verdict: Judgement  # of the first
    more_seeds: int | None  # would tell, if the difference stays; None: nothing to tell, or too many
    seeds: int
    clients: int
    pairs: int = 1  # that p is adjusted for
    metric: Metric = METRICS["accuracy"]
    limited: bool = False  # not by the seeds: the clients are too few, or for these clients their test samples
    about_these_clients: bool = False  # which the data names, and not about others like them

    def turned(self) -> "Paired":
        """The same comparison with the other method first."""
        other = replace(self, first=self.second, second=self.first, difference=self.difference.turned())
        return replace(other, verdict=TURNED[self.verdict])

    @property
    def is_constant(self) -> bool:
        """Whether all scores differ by the same amount."""
        return self.difference.low == self.difference.high

    @property
    def sentence(self) -> str:
        """Which is better, or what is needed to know; without a full stop."""
        if not self.seeds:
            return str(finding(say.PAIR_APART, first=self.first, second=self.second))
        compared = finding(SENTENCES[self.verdict], first=self.first, second=self.second, evidence=self.evidence)
        return "; ".join(filter(None, (str(compared), self._outlook)))

    @property
    def evidence(self) -> str:
        """The difference with its interval, and what the reader must know of them."""
        low, high = (apart_by(end, self.metric) for end in self._favourable_limits)
        parts = [str(finding(say.PAIR_INTERVAL, distance=self.distance, low=low, high=high))]
        parts += [f"not significant among {self.pairs} pairs"] if self._is_lost_among_pairs else []
        parts += ["for these clients"] if self.about_these_clients else []
        return ", ".join([*parts, *(["one seed"] if self.seeds == 1 else [])])

    @property
    def distance(self) -> str:
        """The difference without its sign, in points where it is one of shares."""
        size = apart_by(abs(self.difference.mean), self.metric)
        return f"{size} {'point' if size == '1.0' else 'points'}" if self.metric.percent else size

    @property
    def limits(self) -> tuple[float, float]:
        """The ends of the interval, cut where differences of shares end."""
        low, high = self.difference.low, self.difference.high
        return (max(low, -1.0), min(high, 1.0)) if self.metric.percent else (low, high)

    @property
    def _favourable_limits(self) -> tuple[float, float]:
        """Of the distance: what is negative favours the other side."""
        return self.limits if self.difference.mean >= 0 else (-self.limits[1], -self.limits[0])

    @property
    def _is_lost_among_pairs(self) -> bool:
        """Whether the interval alone would exclude 0, but there are many pairs."""
        return self.verdict == "unclear" and self.difference.beyond_noise

    @property
    def _outlook(self) -> str:
        """What may show a difference where there is none yet."""
        if self.verdict != "unclear" or self.is_constant:
            return ""
        if self.seeds == 1:
            return say.OUTLOOK_ONE_SEED
        if self.limited:
            return say.OUTLOOK_SAMPLES if self.about_these_clients else say.OUTLOOK_CLIENTS
        if self.more_seeds is None:
            return str(finding(say.OUTLOOK_MANY, seeds=MAX_FORECAST_SEEDS))
        return str(finding(say.OUTLOOK_SEEDS, seeds=counted(self.more_seeds, "further seed")))


def pairs(ranks: Sequence[Rank]) -> list[Paired]:
    """All pairs of methods that can be compared, in the order of the ranking.

    Pairs with a guarded method are corrected apart from the others: it is a second look at the same runs, so whether
    clients were guarded does not decide what is known of the methods themselves.
    """
    rivals = comparable_ranks(ranks)
    scored = scored_runs(rivals if len(rivals) > 1 else ())
    couples = list(combinations([_Method(rank, scored) for rank in rivals], 2))
    plain = [couple for couple in couples if not any(method.rank.is_guarded for method in couple)]
    compared = _corrected(plain) | _corrected([couple for couple in couples if couple not in plain])
    return [compared[couple] for couple in couples]


def _corrected(couples: Sequence[tuple["_Method", "_Method"]]) -> dict[tuple["_Method", "_Method"], Paired]:
    alone = {couple: pair_uncertainty(_common(*couple)) for couple in couples}
    certain = {couple: uncertainty for couple, uncertainty in alone.items() if uncertainty is not None}
    shared = dict(zip(certain, sharing(list(certain.values())), strict=True))
    adjusted, level = holm([shared[couple].p if couple in shared else 1.0 for couple in couples])
    judged = zip(couples, adjusted, strict=True)
    return {couple: replace(_paired(*couple, shared.get(couple), p, level), pairs=len(couples)) for couple, p in judged}


def with_first(compared: Sequence[Paired]) -> list[Paired]:
    """The pairs with the method that comes first."""
    return [pair for pair in compared if pair.first == compared[0].first]


def pair_of(compared: Sequence[Paired], first: str, second: str) -> Paired | None:
    """The comparison of two methods, turned so that `first` comes first; None if they have no seed in common."""
    for pair in compared:
        if {pair.first, pair.second} == {first, second} and pair.seeds:
            return pair if pair.first == first else pair.turned()
    return None


def holm(ps: Sequence[float], alpha: float = ALPHA) -> tuple[list[float], float]:
    """Each p adjusted for all of them, and the level at which the first that is too large was tested."""
    order, adjusted, largest = sorted(range(len(ps)), key=lambda i: ps[i]), [1.0] * len(ps), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - place) * ps[i]))
        adjusted[i] = largest
    left = sum(p >= alpha for p in adjusted)
    return adjusted, alpha / max(left, 1)


def pairs_table(compared: Sequence[Paired]) -> ReportTable | None:
    """All pairs: difference, interval, adjusted p and the verdict."""
    if not compared:
        return None
    head = ("first", "second", "difference", "95 % interval", "p, corrected", "verdict", "further seeds")
    looks = {"better": "holds", "worse": "fails", "unclear": "doubtful"}
    rows = []
    for pair in compared:
        words = "not significant" if pair.verdict == "unclear" else f"{pair.first} is {pair.verdict}"
        verdict = Cell(words, pair.verdict, looks[pair.verdict])
        cells = [text(pair.first), text(pair.second), *_numbers(pair), verdict]
        rows.append((*cells, Cell(_further_seeds(pair), pair.more_seeds)))
    caption = (
        f"Paired differences, the first minus the second, by seed and client ({_basis(compared)}). "
        f"{whom_verdicts_are_about(compared)} Intervals are for one pair alone; p is corrected for the number of pairs "
        "(Holm), and verdicts follow it."
    )
    return ReportTable("pairs", caption, head, tuple(rows), left=2, written=pairs_csv(compared), stacked=True)


def whom_verdicts_are_about(compared: Sequence[Paired]) -> str:
    """Other clients like these, or these clients that the data names; the two are mixed if predictions are missing."""
    with_seeds = [pair for pair in compared if pair.seeds]
    about_others = [f"{pair.first} and {pair.second}" for pair in with_seeds if not pair.about_these_clients]
    if len(about_others) == len(with_seeds):
        return "Verdicts are about other seeds and other clients like these."
    named = "Verdicts are about other seeds and other test samples of these clients, because the data names them."
    return f"{named} Only these are about other clients: {listed(about_others, 3)}." if about_others else named


def pairs_csv(compared: Sequence[Paired]) -> str:
    head = ("first", "second", "difference", "low", "high", "p", "p_adjusted", "verdict", "more_seeds")
    rows = []
    for pair in compared:
        ends = [end if abs(end) < inf else None for end in (pair.difference.low, pair.difference.high)]
        about = (pair.p, pair.adjusted, pair.verdict, pair.more_seeds, pair.seeds, pair.clients, pair.sentence)
        rows.append([pair.first, pair.second, pair.difference.mean, *ends, *about])
    return as_csv((*head, "seeds", "clients", "sentence"), rows)


def _numbers(pair: Paired) -> tuple[Cell, ...]:
    low, high = (apart_by(end, pair.metric) for end in pair.limits)
    p = "< 0.001" if pair.adjusted < 0.001 else f"{pair.adjusted:.3f}"
    shown = apart_by(pair.difference.mean, pair.metric, "+")
    return Cell(shown), Cell(f"{low} to {high}" if pair.seeds else "–"), Cell(p)


def _further_seeds(pair: Paired) -> str:
    if pair.verdict != "unclear" or pair.seeds < 2:
        return "–"
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


# From runs to pairs


class _Method:
    """A configuration and those of its runs that have a score, by their seeds."""

    def __init__(self, rank: Rank, scored: Mapping[Path, ScoredRun]) -> None:
        self.rank = rank
        self.runs = {run.seeds.parts: scored[run.folder] for run in rank.members if run.folder in scored}


def _common(first: _Method, second: _Method) -> list[Couple]:
    return [(run, second.runs[parts]) for parts, run in first.runs.items() if parts in second.runs]


def _paired(first: _Method, second: _Method, estimate: Uncertainty | None, adjusted: float, level: float) -> Paired:
    rank, other, metric = first.rank, second.rank, first.rank.members[0].metric
    if estimate is None:
        apart = Interval(rank.numbers["score"].mean - other.numbers["score"].mean, -inf, inf)
        return Paired(rank.label, other.label, apart, 1.0, 1.0, "unclear", None, 0, 0, metric=metric)
    side: Judgement = "better" if metric.sign * estimate.mean > 0 else "worse"
    verdict: Judgement = side if adjusted < ALPHA else "unclear"
    more, limited = _more_seeds(estimate, level) if verdict == "unclear" else (None, False)
    common = _common(first, second)
    return Paired(
        first=rank.label,
        second=other.label,
        difference=estimate.interval(),
        p=estimate.p,
        adjusted=adjusted,
        verdict=verdict,
        more_seeds=more,
        seeds=len(common),
        clients=max(len(run.clients) for run, _ in common),
        metric=metric,
        limited=limited,
        about_these_clients=estimate.about_these_clients,
    )


def _more_seeds(estimate: Uncertainty, level: float) -> tuple[int | None, bool]:
    """How many more seeds would tell at this level, if the difference stays; and whether even many may not."""
    if estimate.seeds < 2 or estimate.mean == 0:
        return None, False
    if not estimate.with_seeds(UNLIMITED_SEEDS).tells(level):
        return None, True
    candidates = range(1, MAX_FORECAST_SEEDS + 1)
    return next((more for more in candidates if estimate.with_seeds(estimate.seeds + more).tells(level)), None), False
