"""Paired differences between methods: which of two is better, by how much, and how sure that is.

Two methods are compared client by client in runs with the same seeds, where both start from the same data, weights and
batches. `bootstrap` says how sure the mean of these differences is. Many pairs find something by chance: the level of
all pairs together is 5 % (Holm's correction). It counts all pairs, not only those with the first method, because which
method is first is itself found in the data.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf
from typing import Literal

import numpy as np

from stratafl.core.reprs import short_repr
from stratafl.errors import counted
from stratafl.report.bootstrap import ALPHA, Array, Estimate, Uncertainty, sharing, uncertainty
from stratafl.report.formats import minus
from stratafl.report.intervals import Interval
from stratafl.report.outcome import Outcome
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
    more_seeds: (
        int | None
    )  # that would tell, if the difference stays as it is; None: nothing to tell, or more than MOST
    seeds: int
    clients: int
    pairs: int = 1  # that p is adjusted for
    percent: bool = True
    limited: bool = False  # the clients, not the seeds, are too few
    these: Judgement = "unclear"  # of the first, for these clients alone, if they are the same with every seed

    @property
    def sentence(self) -> str:
        if not self.seeds:
            return f"{self.first} and {self.second} have no seed in common, so they cannot be compared."
        if self.only_these:
            told = f"{self.first} is {self.these} than {self.second} by {self.distance} for these clients"
            return (
                f"{told}; for others like them it cannot be told ({self._interval}), because clients differ too much."
            )
        if self.verdict == "unclear":
            return f"Whether {self.first} or {self.second} is better cannot be told: {self._unclear}."
        only = "; one seed, others may differ" if self.seeds == 1 else ""
        return f"{self.first} is {self.verdict} than {self.second} by {self.distance} ({self._interval}{only})."

    @property
    def short(self) -> str:
        """The sentence for a narrow line."""
        if not self.seeds:
            return f"{self.first} and {self.second}: no common seed"
        only = ", one seed" if self.seeds == 1 else ""
        if self.verdict != "unclear":
            return f"{self.first} is {self.verdict} than {self.second} by {self.distance} ({self._limits}{only})"
        if self.only_these:
            return (
                f"{self.first} is {self.these} than {self.second} for these clients; others may differ ({self._limits})"
            )
        return f"{self.first} or {self.second}: cannot be told ({self._limits}{only}){self._wanted}"

    @property
    def told(self) -> str:
        """The difference, its interval and what would tell, without the names."""
        more = self._wanted.removesuffix(" would tell") if self.verdict == "unclear" and self.seeds > 1 else ""
        return f"{self.distance}, {self._interval}{more}"

    @property
    def distance(self) -> str:
        """The difference without its sign, in points where it is one of shares."""
        size = _number(abs(self.difference.mean), self.percent)
        return f"{size} {'point' if size == '1.0' else 'points'}" if self.percent else size

    @property
    def only_these(self) -> bool:
        """Whether the difference is clear for these clients, and for others like them it is not."""
        return self.verdict == "unclear" and self.limited and self.these != "unclear"

    @property
    def _limits(self) -> str:
        low, high = self._ends
        return minus(f"{_number(low, self.percent)} to {_number(high, self.percent)}")

    @property
    def _ends(self) -> tuple[float, float]:
        """The limits of the distance, where what is negative favours the other side."""
        given = self.difference
        low, high = (given.low, given.high) if given.mean >= 0 else (-given.high, -given.low)
        return (max(low, -1.0), min(high, 1.0)) if self.percent else (low, high)

    @property
    def _interval(self) -> str:
        return f"95 % interval {self._limits}"

    @property
    def _unclear(self) -> str:
        if self.difference.mean == self.difference.low == self.difference.high == 0:
            return "all their scores are equal"
        many = f", not enough for one of {self.pairs} pairs" if self.difference.beyond_noise else ""
        return f"they differ by {self.distance} ({self._interval}{many}){self._wanted}"

    @property
    def _wanted(self) -> str:
        if self.difference.low == self.difference.high or self.only_these:
            return ""
        if self.seeds == 1:
            return "; more seeds may tell"
        if self.limited:
            return "; clients differ too much for more seeds to tell"
        if self.more_seeds is None:
            return f"; it would take more than {MOST} more seeds"
        return f"; about {counted(self.more_seeds, 'more seed')} would tell"


def pairs(ranks: Sequence[Rank]) -> list[Paired]:
    """All pairs of methods that can be compared, in the order of the ranking."""
    couples = list(combinations([_Method(r) for r in ranks if not r.leaks and "score" in r.numbers], 2))
    known = {couple: _uncertainty(_common(*couple)) for couple in couples}
    own = {couple: found for couple, found in known.items() if found is not None}
    each = dict(zip(own, sharing(list(own.values())), strict=True))
    adjusted, level = holm([each[couple].p if couple in each else 1.0 for couple in couples])
    made = [_paired(*couple, each.get(couple), p, level) for couple, p in zip(couples, adjusted, strict=True)]
    return [replace(pair, pairs=len(couples)) for pair in made]


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
        here = f"{pair.first} is {pair.these} for these clients; others may differ"
        unclear = here if pair.only_these else "cannot be told"
        words = unclear if pair.verdict == "unclear" else f"{pair.first} is {pair.verdict}"
        rows.append((*cells, Cell(words, pair.verdict, look), Cell(_more(pair), pair.more_seeds)))
    caption = (
        f"Paired differences, the first minus the second, by seed and client ({_basis(found)}). "
        "Intervals are of one pair alone; p is corrected for the number of pairs (Holm), and verdicts follow it."
    )
    return Table("pairs", caption, head, tuple(rows), left=2, written=pairs_csv(found))


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
    given, percent = pair.difference, pair.percent
    low, high = (max(given.low, -1.0), min(given.high, 1.0)) if percent else (given.low, given.high)
    limits = minus(f"{_number(low, percent)} to {_number(high, percent)}") if pair.seeds else "–"
    p = "< 0.001" if pair.adjusted < 0.001 else f"{pair.adjusted:.3f}"
    return Cell(minus(_number(given.mean, percent, "+"))), Cell(limits), Cell(p)


def _more(pair: Paired) -> str:
    if pair.verdict != "unclear" or pair.seeds < 2:
        return "–"
    if pair.limited:
        return "would not tell"
    return f"more than {MOST}" if pair.more_seeds is None else f"about {pair.more_seeds}"


def _basis(found: Sequence[Paired]) -> str:
    """How many seeds and clients the pairs have."""
    seeds, clients = ({getattr(pair, name) for pair in found} for name in ("seeds", "clients"))
    said = [
        counted(max(each), name) if len(each) == 1 else f"up to {counted(max(each), name)}"
        for each, name in ((seeds, "seed"), (clients, "client"))
    ]
    return ", ".join(said)


def _number(value: float, percent: bool, sign: str = "") -> str:
    """A difference: in points with one digit after the point, or two if it is small."""
    if not percent:
        return f"{value:{sign}.3g}"
    points = 100 * value
    return f"{points:{sign}.2f}" if 0.005 <= abs(points) < 0.095 else f"{points:{sign}.1f}".replace("-0.0", "0.0")


# From runs to differences


class _Run:
    """A run with the scores and numbers of test samples of its clients at the selected round."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome, self.score = outcome, outcome.numbers()["score"]
        self.clients, self.samples = outcome.by_client(), outcome.test_samples()


class _Method:
    """A configuration and those of its runs that have a score, by their seeds."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.runs = {one.seeds.parts: _Run(one) for one in rank.members if "score" in one.numbers()}


Couple = tuple[_Run, _Run]  # of two methods with the same seeds


def _common(first: _Method, second: _Method) -> list[Couple]:
    return [(run, second.runs[parts]) for parts, run in first.runs.items() if parts in second.runs]


def _paired(first: _Method, second: _Method, found: Estimate | None, adjusted: float, level: float) -> Paired:
    one, other, metric = first.rank, second.rank, first.rank.members[0].metric
    if found is None:
        apart = Interval(one.numbers["score"].mean - other.numbers["score"].mean, -inf, inf)
        return Paired(one.label, other.label, apart, 1.0, 1.0, "unclear", None, 0, 0, percent=metric.percent)
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
        percent=metric.percent,
        limited=limited,
        these=side if found.p_of_these_clients < level else "unclear",
    )


def _more_seeds(found: Estimate, level: float) -> tuple[int | None, bool]:
    """How many more seeds would tell at this level, if the difference stays; and whether clients are the obstacle."""
    if found.seeds < 2 or found.mean == 0:
        return None, False
    if found.with_seeds(MANY).p >= level:
        return None, True
    enough = (more for more in range(1, MOST + 1) if found.with_seeds(found.seeds + more).p < level)
    return next(enough, None), False


def _uncertainty(common: Sequence[Couple]) -> Uncertainty | None:
    """Of the differences of two configurations; None without a common seed."""
    if not common:
        return None
    each = [_differences(*couple) for couple in common]
    place = {client: at for at, client in enumerate(sorted({client for found in each for client in found}))}
    differences, weights = np.zeros((2, len(each), len(place)))
    for row, found in enumerate(each):
        for client, (difference, weight) in found.items():
            differences[row, place[client]], weights[row, place[client]] = difference, weight
    populations = [run.outcome.population for run, _ in common]
    crossed = len(set(populations)) == 1
    if not crossed:
        differences, weights = _by_partition(populations, differences, weights)
    return uncertainty(differences, weights, crossed)


def _differences(one: _Run, other: _Run) -> dict[int, tuple[float, float]]:
    """Difference and weight by client, such that the weighted mean is the difference of the two scores.

    A mean over clients or samples is that anyway. A metric of all samples together differs from the mean of clients by
    a constant, which is added.
    """
    score = one.score - other.score
    both = [client for client in one.clients if client in other.clients]
    if not both:  # as if the run were a single client
        return {0: (score, 1.0)}
    equal = one.outcome.evaluate.average == "clients"
    weights = {client: 1.0 if equal else float(one.samples[client] or 1) for client in both}
    whole, each = sum(weights.values()), {client: one.clients[client] - other.clients[client] for client in both}
    shift = score - sum(weights[client] * each[client] for client in both) / whole
    return {client: (each[client] + shift, weights[client] / whole) for client in both}


def _by_partition(populations: Sequence[Hashable], differences: Array, weights: Array) -> tuple[Array, Array]:
    """Runs with the same clients count as one, with their mean."""
    rows = [[i for i, each in enumerate(populations) if each == one] for one in dict.fromkeys(populations)]
    weighted = weights * differences
    sums = [(weighted[some].sum(0), weights[some].sum(0)) for some in rows]
    means = np.array([np.divide(top, below, out=np.zeros_like(top), where=below > 0) for top, below in sums])
    return means, np.array([below for _, below in sums])
