"""Paired differences between methods: which of two is better, by how much, and how sure that is.

Two methods are compared client by client in runs with the same seeds, where both start from the same data, weights and
batches. Whom the difference is about depends on the data. Simulated clients stand for others like them, so other
clients are part of the noise. Clients that the data names, such as hospitals, ask about themselves: then it is other
seeds, and other test samples of these clients. `bootstrap` has the statistics.

Many pairs find something by chance, so p is corrected for their number (Holm). The comparisons that a study is made
for are planned: each method with training alone and with one shared model. They are corrected for these alone, at 5 %
for all of them. All other pairs are corrected for each other, and for all of them, because which method is first is
itself found in the data. One seed says nothing about seeds, so it gives no verdict.
"""

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np

from stratafl.core.reprs import short_repr
from stratafl.errors import counted
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.report import sentences as say
from stratafl.report.bootstrap import ALPHA, Array, Uncertainty, of_these, sharing, uncertainty
from stratafl.report.formats import apart_by
from stratafl.report.gains.gain_intervals import with_added_samples
from stratafl.report.gains.sample_noise import ClientScores, bound_of, paired_noise, stored_scores
from stratafl.report.intervals import Interval, unbounded
from stratafl.report.outcome import SCORED, Outcome
from stratafl.report.ranking import Rank, comparable_ranks
from stratafl.report.sentences import finding
from stratafl.runs.class_counts import counts_array

Judgement = Literal["better", "worse", "unclear", "same"]  # the same: equal numbers in every round
REFERENCES = ("local", "fedavg")  # what every method is planned to be compared with
MAX_FORECAST_SEEDS = 100  # more seeds than this are "more than 100"
UNLIMITED_SEEDS = 10**6  # what is still uncertain then is due to the clients
SENTENCES = {"better": say.PAIR_BETTER, "worse": say.PAIR_WORSE, "unclear": say.PAIR_UNCLEAR}
TURNED: dict[Judgement, Judgement] = {"better": "worse", "worse": "better"}  # the others stay
WORDS = {"unclear": "not significant", "same": "the same"}


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
    planned: bool = False  # whether it is with training alone or with one shared model
    metric: Metric = METRICS["accuracy"]
    limited: bool = False  # not by the seeds: the clients are too few, or for these clients their test samples
    about_these_clients: bool = False  # which the data names, and not about others like them

    def turned(self) -> "Paired":
        """The same comparison with the other method first."""
        other = replace(self, first=self.second, second=self.first, difference=self.difference.turned())
        return replace(other, verdict=TURNED.get(self.verdict, self.verdict))

    @property
    def is_open(self) -> bool:
        """Whether one of the two may still be better."""
        return self.verdict == "unclear"

    @property
    def is_constant(self) -> bool:
        """Whether all scores differ by the same amount."""
        return self.difference.low == self.difference.high

    @property
    def sentence(self) -> str:
        """Which is better, or what is needed to know; without a full stop."""
        if not self.seeds:
            return str(finding(say.PAIR_APART, first=self.first, second=self.second))
        if self.verdict == "same":
            return str(finding(say.PAIR_SAME, first=self.first, second=self.second))
        if self.seeds == 1:
            return str(finding(say.PAIR_ONE_SEED, first=self.first, second=self.second, distance=self.distance))
        compared = finding(SENTENCES[self.verdict], first=self.first, second=self.second, evidence=self.evidence)
        return "; ".join(filter(None, (str(compared), self._outlook)))

    @property
    def evidence(self) -> str:
        """The difference with its interval, and what the reader must know of them."""
        if self.seeds == 1:
            return f"{self.distance}, one seed"
        # The ends of the distance: what is negative favours the other side.
        ends = self.limits if self.difference.mean >= 0 else (-self.limits[1], -self.limits[0])
        low, high = (apart_by(end, self.metric) for end in ends)
        parts = [str(finding(say.PAIR_INTERVAL, distance=self.distance, low=low, high=high))]
        if self.verdict == "unclear" and self.difference.beyond_noise:
            parts.append(f"not significant among {self.pairs} pairs")
        return ", ".join([*parts, *(["for these clients"] if self.about_these_clients else [])])

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
    def _outlook(self) -> str:
        """What may show a difference where there is none yet."""
        if not self.is_open or self.is_constant:
            return ""
        if self.limited:
            return say.OUTLOOK_SAMPLES if self.about_these_clients else say.OUTLOOK_CLIENTS
        if self.more_seeds is None:
            return str(finding(say.OUTLOOK_MANY, seeds=MAX_FORECAST_SEEDS))
        return str(finding(say.OUTLOOK_SEEDS, seeds=counted(self.more_seeds, "further seed")))


def pairs(ranks: Sequence[Rank]) -> list[Paired]:
    """All pairs of methods that can be compared, in the order of the ranking.

    Pairs with a guarded method are corrected apart from the others: it is a second look at the same runs, so whether
    clients were guarded does not decide what is known of the methods themselves. Methods with the same numbers in every
    round count once.
    """
    rivals = comparable_ranks(ranks)
    scored = scored_runs(rivals if len(rivals) > 1 else ())
    methods = [_Method(rank, scored) for rank in rivals]
    originals = {method: next(other for other in methods if same_runs(other, method)) for method in methods}
    references = {originals[method] for method in methods if method.rank.method in REFERENCES}
    couples = list(combinations(dict.fromkeys(originals.values()), 2))
    plain = [couple for couple in couples if not any(method.rank.is_guarded for method in couple)]
    compared = _corrected(plain, references)
    compared |= _corrected([couple for couple in couples if couple not in plain], references)
    return [_renamed(couple, originals, compared) for couple in combinations(methods, 2)]


def _corrected(couples: Sequence["_Couple"], references: Container["_Method"]) -> dict["_Couple", Paired]:
    """Planned pairs, corrected for these alone, and the others, corrected for those."""
    alone = {couple: pair_uncertainty(_common(*couple)) for couple in couples}
    certain = {couple: estimate for couple, estimate in alone.items() if estimate is not None}
    shared = dict(zip(certain, sharing(list(certain.values())), strict=True))
    compared = dict[_Couple, Paired]()
    for planned in (True, False):
        family = [couple for couple in couples if any(method in references for method in couple) is planned]
        adjusted, level = holm([shared[couple].p if _has_seeds(shared.get(couple)) else 1.0 for couple in family])
        for couple, p in zip(family, adjusted, strict=True):
            pair = _paired(*couple, shared.get(couple), p, level)
            compared[couple] = replace(pair, pairs=len(family), planned=planned)
    return compared


def _has_seeds(estimate: Uncertainty | None) -> bool:
    """Whether noise between seeds is known at all."""
    return estimate is not None and estimate.seeds > 1


def _renamed(
    couple: "_Couple", originals: Mapping["_Method", "_Method"], compared: Mapping["_Couple", Paired]
) -> Paired:
    """The comparison of two methods, which is that of the methods with the same numbers."""
    first, second = couple
    original, other = originals[first], originals[second]
    if original is other:
        return _paired_same(first, second)
    in_order = (original, other) in compared
    pair = compared[(original, other)] if in_order else compared[(other, original)].turned()
    return replace(pair, first=first.rank.label, second=second.rank.label)


def _paired_same(first: "_Method", second: "_Method") -> Paired:
    clients = max((len(run.clients) for run in first.runs.values()), default=0)
    no_difference, labels = Interval(0.0, 0.0, 0.0), (first.rank.label, second.rank.label)
    pair = Paired(*labels, no_difference, 1.0, 1.0, "same", None, len(first.runs), clients)
    return replace(pair, metric=first.rank.members[0].metric)


def same_runs(first: "_Method", second: "_Method") -> bool:
    """Whether two configurations gave the same numbers in every round, so that only their names differ."""
    if first is second:
        return True
    couples = _common(first, second)
    return len(couples) == len(first.runs) == len(second.runs) and all(
        (run.score, run.clients, _course(run.outcome)) == (other.score, other.clients, _course(other.outcome))
        for run, other in couples
    )


def _course(run: Outcome) -> list[dict[str, object]]:
    """Scores and losses, round by round."""
    return [{k: value for k, value in line.items() if k.startswith((*SCORED, "train.loss"))} for line in run.lines]


def with_first(compared: Sequence[Paired]) -> list[Paired]:
    """The pairs with the method that comes first."""
    return [pair for pair in compared if pair.first == compared[0].first]


def pair_of(compared: Sequence[Paired], first: str, second: str) -> Paired | None:
    """The comparison of two methods, turned so that `first` comes first; None if they have no seed in common."""
    for pair in compared:
        if {pair.first, pair.second} == {first, second} and pair.seeds:
            return pair if pair.first == first else pair.turned()
    return None


def as_good_as(ranks: Sequence[Rank], compared: Sequence[Paired], method: Rank) -> list[Rank]:
    """The methods that may be as good as this one: no comparison tells them apart."""
    others = [rank for rank in comparable_ranks(ranks) if rank.label != method.label]
    pairs_of_others = [(rank, pair_of(compared, method.label, rank.label)) for rank in others]
    return [rank for rank, pair in pairs_of_others if pair is None or pair.is_open]


def holm(ps: Sequence[float], alpha: float = ALPHA) -> tuple[list[float], float]:
    """Each p adjusted for all of them, and the level at which the first that is too large was tested."""
    order, adjusted, largest = sorted(range(len(ps)), key=lambda i: ps[i]), [1.0] * len(ps), 0.0
    for place, i in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - place) * ps[i]))
        adjusted[i] = largest
    left = sum(p >= alpha for p in adjusted)
    return adjusted, alpha / max(left, 1)


# From runs to pairs


@dataclass(frozen=True, eq=False)
class ScoredRun:
    """A run, or what another model gives for its test samples: the score and those of its clients."""

    outcome: Outcome
    score: float
    clients: Mapping[int, float]
    tested: ClientScores | None = None  # its test samples, if the data names its clients

    @cached_property
    def samples(self) -> dict[int, int]:
        return self.outcome.test_samples()


Couple = tuple[ScoredRun, ScoredRun]  # of two methods with the same seeds


def scored_runs(ranks: Iterable[Rank]) -> dict[Path, ScoredRun]:
    """The runs that have a score, by folder; with their test samples if the data names their clients."""
    runs = [run for rank in ranks for run in rank.members]
    tested = stored_scores(run for run in runs if named_clients(run))
    return {
        run.folder: ScoredRun(run, run.numbers()["score"], run.by_client(), tested.get(run.folder))
        for run in runs
        if "score" in run.numbers()
    }


def pair_uncertainty(couples: Sequence[Couple]) -> Uncertainty | None:
    """Of the differences of two configurations with common seeds; None without a common seed."""
    if not couples:
        return None
    by_seed = [client_differences(*couple) for couple in couples]
    column = {client: at for at, client in enumerate(sorted({client for seed in by_seed for client in seed}))}
    values, weights = np.zeros((2, len(by_seed), len(column)))
    for row, seed in enumerate(by_seed):
        for client, (difference, weight) in seed.items():
            values[row, column[client]], weights[row, column[client]] = difference, weight
    populations = [run.outcome.population for run, _ in couples]
    sampled = None
    if named_clients(couples[0][0].outcome):
        sampled = _sample_variance(couples, dict(zip(column, weights.mean(0), strict=True)))
    crossed = len(set(populations)) == 1
    if not crossed:
        values, weights = _by_partition(populations, values, weights)
    about_others = uncertainty(values, weights, crossed)
    return about_others if sampled is None else of_these(about_others, *sampled)


def client_differences(first: ScoredRun, second: ScoredRun) -> dict[int, tuple[float, float]]:
    """Difference and weight by client, such that the weighted mean is the difference of the two scores.

    A mean over clients or samples is that anyway. A metric of all samples together differs from the mean of clients by
    a constant, which is added.
    """
    score = first.score - second.score
    both = [client for client in first.clients if client in second.clients]
    if not both:  # as if the run were a single client
        return {0: (score, 1.0)}
    equal = first.outcome.evaluate.average == "clients"
    weights = {client: 1.0 if equal else float(first.samples[client] or 1) for client in both}
    total, apart = sum(weights.values()), {client: first.clients[client] - second.clients[client] for client in both}
    shift = score - sum(weights[client] * apart[client] for client in both) / total
    return {client: (apart[client] + shift, weights[client] / total) for client in both}


def _by_partition(populations: Sequence[Hashable], values: Array, weights: Array) -> tuple[Array, Array]:
    """Runs with the same clients count as one, with their mean."""
    different = dict.fromkeys(populations)
    groups = [[row for row, each in enumerate(populations) if each == population] for population in different]
    weighted = weights * values
    sums = [(weighted[rows].sum(0), weights[rows].sum(0)) for rows in groups]
    means = np.array([np.divide(top, below, out=np.zeros_like(top), where=below > 0) for top, below in sums])
    return means, np.array([below for _, below in sums])


def _sample_variance(couples: Sequence[Couple], weights: Mapping[int, float]) -> tuple[float, float] | None:
    """The variance of the mean that comes from test samples and that no seed removes, and of how many samples.

    If all seeds have the same test samples, that is all of it. If each seed draws the share f of a client's samples for
    testing, two seeds have the share f of them in common: (1 − f) of the variance is in that between seeds, f is not.
    """
    tested = [(first.tested, second.tested) for first, second in couples]
    both = [(method, other) for method, other in tested if method and other and method.pairs_with(other)]
    if len(both) < len(couples):
        return None
    first = both[0][0]
    if any(not np.array_equal(method.ids, first.ids) for method, _ in both):
        return None
    shared = all(method.pairs_with(first) for method, _ in both)
    noise = paired_noise(both, first.ids)
    lasting = noise.variance if shared else _tested_share(couples[0][0].outcome) * noise.explained
    few = first.size / np.maximum(first.size - 1, 0.5)  # a bootstrap of n samples has too small a variance
    weight = np.array([weights.get(int(client), 0.0) for client in first.ids])
    variance = float((weight**2 * few * np.where(weight > 0, lasting, 0.0)).sum())
    if not variance:  # every sample tells the same: a few more might not
        means = np.nanmean([method.values - other.values for method, other in both], axis=0)
        with_more = with_added_samples(means, noise, bound_of(first.metric), first.metric.percent)
        variance = float(np.nansum(weight**2 * with_more))
    return variance, float(first.samples.sum())


def _tested_share(outcome: Outcome) -> float:
    stored = (outcome.class_counts or {"counts": {}})["counts"]
    counts = {split: int(counts_array(rows).sum()) for split, rows in stored.items()}
    return counts.get("test", 0) / sum(counts.values()) if counts else 1.0


def named_clients(outcome: Outcome) -> bool:
    """Whether clients come with the data and none of them was drawn."""
    return outcome.config["data"]["partition"] == "auto" and bool(outcome.client_names)


class _Method:
    """A configuration and those of its runs that have a score, by their seeds."""

    def __init__(self, rank: Rank, scored: Mapping[Path, ScoredRun]) -> None:
        self.rank = rank
        self.runs = {run.seeds.parts: scored[run.folder] for run in rank.members if run.folder in scored}


_Couple = tuple[_Method, _Method]


def _common(first: _Method, second: _Method) -> list[Couple]:
    return [(run, second.runs[parts]) for parts, run in first.runs.items() if parts in second.runs]


def _paired(first: _Method, second: _Method, estimate: Uncertainty | None, adjusted: float, level: float) -> Paired:
    rank, other, metric = first.rank, second.rank, first.rank.members[0].metric
    if estimate is None:
        apart = unbounded(rank.numbers["score"].mean - other.numbers["score"].mean)
        return Paired(rank.label, other.label, apart, 1.0, 1.0, "unclear", None, 0, 0, metric=metric)
    side: Judgement = "better" if metric.sign * estimate.mean > 0 else "worse"
    verdict: Judgement = side if adjusted < ALPHA else "unclear"
    more, limited = _more_seeds(estimate, level) if verdict == "unclear" else (None, False)
    common = _common(first, second)
    return Paired(
        first=rank.label,
        second=other.label,
        difference=estimate.interval() if _has_seeds(estimate) else unbounded(estimate.mean),
        p=estimate.p if _has_seeds(estimate) else 1.0,
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
