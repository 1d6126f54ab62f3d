"""Paired differences between methods: which of two is better, by how much, and how sure that is.

`pairing` says how sure the mean difference of two methods is. Many pairs find something by chance: the level of all
pairs together is 5 % (Holm's correction). It counts all pairs, not only those with the first method, because which
method is first is itself found in the data.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf
from typing import Literal

from stratafl.core.reprs import short_repr
from stratafl.errors import counted
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.report.bootstrap import ALPHA, Uncertainty, sharing
from stratafl.report.formats import apart_by, listed
from stratafl.report.intervals import Interval
from stratafl.report.pairing import Couple, StoredScores, pair_uncertainty
from stratafl.report.ranking import Rank
from stratafl.report.tables import Cell, Table, as_csv, text

Judgement = Literal["better", "worse", "unclear"]
MOST = 100  # more seeds than this are "more than 100"
MANY = 10**6  # seeds: what is still uncertain then is due to the clients


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
    more_seeds: int | None  # would tell, if the difference stays as it is; None: nothing to tell, or more than MOST
    seeds: int
    clients: int
    pairs: int = 1  # that p is adjusted for
    metric: Metric = METRICS["accuracy"]
    limited: bool = False  # not by the seeds: the clients are too few, or for these clients their test samples
    about_these_clients: bool = False  # which the data names, and not about others like them

    @property
    def sentence(self) -> str:
        if not self.seeds:
            return f"{self.first} and {self.second} have no seed in common, so they cannot be compared."
        if self.verdict == "unclear":
            return f"Whether {self.first} or {self.second} is better{self._whom} cannot be told: {self._unclear}."
        only = "; one seed, others may differ" if self.seeds == 1 else ""
        return f"{self.first} is {self._better} by {self.distance}{self._whom} ({self._interval}{only})."

    @property
    def short(self) -> str:
        """The sentence for a narrow line."""
        if not self.seeds:
            return f"{self.first} and {self.second}: no common seed"
        only = ", one seed" if self.seeds == 1 else ""
        if self.verdict != "unclear":
            return f"{self.first} is {self._better} by {self.distance}{self._whom} ({self._limits}{only})"
        return f"{self.first} or {self.second}: cannot be told ({self._limits}{self._too_many}{only}){self._wanted}"

    @property
    def told(self) -> str:
        """The difference, its interval and what would tell, without the names."""
        if self.verdict != "unclear":
            return f"{self.distance}, {self._interval}"
        more = self._wanted.removesuffix(" would tell") if self.seeds > 1 else ""
        return f"{self.distance}, {self._interval}{self._too_many}{more}"

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
    def _better(self) -> str:
        return f"{self.verdict} than {self.second}"

    @property
    def _whom(self) -> str:
        return " for these clients" if self.about_these_clients else ""

    @property
    def _limits(self) -> str:
        """Of the distance, where what is negative favours the other side."""
        low, high = self.limits if self.difference.mean >= 0 else (-self.limits[1], -self.limits[0])
        return f"{apart_by(low, self.metric)} to {apart_by(high, self.metric)}"

    @property
    def _interval(self) -> str:
        return f"95 % interval {self._limits}"

    @property
    def _too_many(self) -> str:
        """Why an interval that excludes 0 tells nothing."""
        return f", not enough for one of {self.pairs} pairs" if self.difference.beyond_noise else ""

    @property
    def _unclear(self) -> str:
        if self.difference.mean == self.difference.low == self.difference.high == 0:
            return "all their scores are equal"
        return f"they differ by {self.distance} ({self._interval}{self._too_many}){self._wanted}"

    @property
    def _wanted(self) -> str:
        if self.difference.low == self.difference.high:
            return ""
        if self.seeds == 1:
            return "; more seeds may tell"
        if self.limited:
            few = "test samples are too few" if self.about_these_clients else "clients differ too much"
            return f"; more seeds may not tell, because {few}"
        if self.more_seeds is None:
            return f"; it would take more than {MOST} more seeds"
        return f"; about {counted(self.more_seeds, 'more seed')} would tell"


def pairs(ranks: Sequence[Rank]) -> list[Paired]:
    """All pairs of methods that can be compared, in the order of the ranking.

    Pairs with a guarded method are corrected apart from the others: it is a second look at the same runs, so whether
    clients were guarded does not decide what is known of the methods themselves.
    """
    rivals = [rank for rank in ranks if not rank.leaks and "score" in rank.numbers]
    stored = StoredScores([one for rank in rivals for one in rank.members] if len(rivals) > 1 else [])
    couples = list(combinations([_Method(rank, stored) for rank in rivals], 2))
    plain = [couple for couple in couples if not any(each.rank.is_guarded for each in couple)]
    found = _corrected(plain) | _corrected([couple for couple in couples if couple not in plain])
    return [found[couple] for couple in couples]


def _corrected(couples: Sequence[tuple["_Method", "_Method"]]) -> dict[tuple["_Method", "_Method"], Paired]:
    known = {couple: pair_uncertainty(_common(*couple)) for couple in couples}
    own = {couple: found for couple, found in known.items() if found is not None}
    each = dict(zip(own, sharing(list(own.values())), strict=True))
    adjusted, level = holm([each[couple].p if couple in each else 1.0 for couple in couples])
    made = [_paired(*couple, each.get(couple), p, level) for couple, p in zip(couples, adjusted, strict=True)]
    return {couple: replace(pair, pairs=len(couples)) for couple, pair in zip(couples, made, strict=True)}


def with_first(found: Sequence[Paired]) -> list[Paired]:
    """The pairs with the method that comes first."""
    return [pair for pair in found if pair.first == found[0].first]


def holm(ps: Sequence[float], alpha: float = ALPHA) -> tuple[list[float], float]:
    """Each p adjusted for all of them, and the level at which the first that is too large was tested."""
    order, adjusted, largest = sorted(range(len(ps)), key=lambda i: ps[i]), [1.0] * len(ps), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - place) * ps[i]))
        adjusted[i] = largest
    left = sum(p >= alpha for p in adjusted)
    return adjusted, alpha / max(left, 1)


def pairs_table(found: Sequence[Paired]) -> Table | None:
    """All pairs: difference, interval, adjusted p and the verdict."""
    if not found:
        return None
    head = ("first", "second", "difference", "95 % interval", "p, corrected", "verdict", "more seeds")
    rows = []
    for pair in found:
        cells = [text(pair.first), text(pair.second), *_numbers(pair)]
        look = "doubtful" if pair.verdict == "unclear" else "holds" if pair.verdict == "better" else "fails"
        words = "cannot be told" if pair.verdict == "unclear" else f"{pair.first} is {pair.verdict}"
        rows.append((*cells, Cell(words, pair.verdict, look), Cell(_more(pair), pair.more_seeds)))
    caption = (
        f"Paired differences, the first minus the second, by seed and client ({_basis(found)}). "
        f"{about(found)} Intervals are of one pair alone; p is corrected for the number of pairs (Holm), and verdicts "
        "follow it."
    )
    return Table("pairs", caption, head, tuple(rows), left=2, written=pairs_csv(found), stacked=True)


def about(found: Sequence[Paired]) -> str:
    """What other runs may differ in from these, and verdicts hold all the same."""
    here, general = (
        [pair for pair in found if pair.seeds and pair.about_these_clients is told] for told in (True, False)
    )
    if not here:
        return "Verdicts are about other seeds and other clients like these."
    named = "about these clients, because the data names them: with other seeds and test samples."
    if not general:
        return f"Verdicts are {named}"
    without = listed([f"{pair.first} and {pair.second}" for pair in general], 3)
    return f"Verdicts are {named} Only those on {without} are about other clients like these."


def pairs_csv(found: Sequence[Paired]) -> str:
    head = ("first", "second", "difference", "low", "high", "p", "p_adjusted", "verdict", "more_seeds")
    rows = []
    for pair in found:
        given = pair.difference
        ends = [end if abs(end) < inf else None for end in (given.low, given.high)]
        told = (pair.p, pair.adjusted, pair.verdict, pair.more_seeds, pair.seeds, pair.clients, pair.sentence)
        rows.append([pair.first, pair.second, given.mean, *ends, *told])
    return as_csv((*head, "seeds", "clients", "sentence"), rows)


def _numbers(pair: Paired) -> tuple[Cell, ...]:
    low, high = (apart_by(end, pair.metric) for end in pair.limits)
    p = "< 0.001" if pair.adjusted < 0.001 else f"{pair.adjusted:.3f}"
    shown = apart_by(pair.difference.mean, pair.metric, "+")
    return Cell(shown), Cell(f"{low} to {high}" if pair.seeds else "–"), Cell(p)


def _more(pair: Paired) -> str:
    if pair.verdict != "unclear" or pair.seeds < 2:
        return "–"
    if pair.limited:
        return "may not tell"
    return f"more than {MOST}" if pair.more_seeds is None else f"about {pair.more_seeds}"


def _basis(found: Sequence[Paired]) -> str:
    """How many seeds and clients the pairs have."""
    seeds, clients = ({getattr(pair, name) for pair in found} for name in ("seeds", "clients"))
    said = [
        counted(max(each), name) if len(each) == 1 else f"up to {counted(max(each), name)}"
        for each, name in ((seeds, "seed"), (clients, "client"))
    ]
    return ", ".join(said)


# From runs to pairs


class _Method:
    """A configuration and those of its runs that have a score, by their seeds."""

    def __init__(self, rank: Rank, stored: StoredScores) -> None:
        self.rank = rank
        self.runs = {one.seeds.parts: stored.run(one) for one in rank.members if "score" in one.numbers()}


def _common(first: _Method, second: _Method) -> list[Couple]:
    return [(run, second.runs[parts]) for parts, run in first.runs.items() if parts in second.runs]


def _paired(first: _Method, second: _Method, found: Uncertainty | None, adjusted: float, level: float) -> Paired:
    one, other, metric = first.rank, second.rank, first.rank.members[0].metric
    if found is None:
        apart = Interval(one.numbers["score"].mean - other.numbers["score"].mean, -inf, inf)
        return Paired(one.label, other.label, apart, 1.0, 1.0, "unclear", None, 0, 0, metric=metric)
    side: Judgement = "better" if metric.sign * found.mean > 0 else "worse"
    verdict: Judgement = side if adjusted < ALPHA else "unclear"
    more, limited = _more_seeds(found, level) if verdict == "unclear" else (None, False)
    common = _common(first, second)
    return Paired(
        first=one.label,
        second=other.label,
        difference=found.interval(),
        p=found.p,
        adjusted=adjusted,
        verdict=verdict,
        more_seeds=more,
        seeds=len(common),
        clients=max(len(run.clients) for run, _ in common),
        metric=metric,
        limited=limited,
        about_these_clients=found.about_these_clients,
    )


def _more_seeds(found: Uncertainty, level: float) -> tuple[int | None, bool]:
    """How many more seeds would tell at this level, if the difference stays; and whether even many may not."""
    if found.seeds < 2 or found.mean == 0:
        return None, False
    if not found.with_seeds(MANY).tells(level):
        return None, True
    enough = (more for more in range(1, MOST + 1) if found.with_seeds(found.seeds + more).tells(level))
    return next(enough, None), False
