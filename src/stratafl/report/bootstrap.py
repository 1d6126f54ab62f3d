"""Uncertainty of a mean over seeds and clients: a hierarchical bootstrap of paired differences.

A difference d[s, c] belongs to a seed and a client. What is estimated is the mean over seeds of the weighted mean over
clients. Two things make it uncertain: other seeds, and other clients.

Nested: the partition changes with the seed, so client 3 of one seed is somebody else than client 3 of another one.
Seeds are drawn with replacement, and for every seed that is drawn its own clients.

Crossed: the partition is fixed, or the data names its clients, so a client is the same with every seed. What a method
does for a client does not average out over seeds: clients are drawn once, and that draw is used for all seeds. If they
were drawn anew for every seed, three seeds of 20 clients would count as 60 clients.

A bootstrap of n values has a variance that is too small by (n − 1)/n, a third with 3 seeds: deviations between seeds
are stretched by √(n/(n − 1)), those between clients likewise. Few seeds also make that variance itself uncertain, so
limits do not come from percentiles (three seeds have ten different samples) but from Student's t distribution: from
those with n − 1 and with the clients' degrees of freedom, averaged by their shares of the variance. One distribution
with degrees of freedom in between (Satterthwaite) finds differences where there are none twice as often as it may, when
three seeds happen to be near each other.

With 3 seeds and 15 pairs, a difference would have to be 17 standard errors for a single pair to tell. So pairs share
what they know of seeds (`sharing`), as far as their variances are alike: an empirical Bayes estimate in which the usual
variance counts as much as the logarithms of all of them agree (Smyth 2004), and never more than the pair's own. One
noisy method among quiet ones then neither hides what the others show nor is found different by chance.

If the data names its clients, nobody asks for others (`of_these`): what is uncertain then is other seeds, and other
test samples of the same clients.

The two draws together overestimate the variance somewhat, because the means of seeds already differ by their clients:
the error is on the safe side.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isclose, log, sqrt
from statistics import NormalDist

import numpy as np
import torch
from numpy.typing import NDArray

from stratafl.report.intervals import Interval, t_tail

Array = NDArray[np.float64]
DRAWS = 2000
GROUPS = 1000  # more clients than this are drawn in so many groups
ALPHA = 0.05
POWER = 0.8  # the chance that a forecast of seeds comes true, if the true difference is the one that was found
SAME = 1e-6  # of the largest variance: less is none
ALIKE = 1e6  # half the degrees of freedom of variances that do not differ
UNLUCKY = NormalDist().inv_cdf(POWER)


@dataclass(frozen=True)
class Uncertainty:
    """The mean of paired differences, and its variance by what it comes from."""

    mean: float
    between_seeds: float  # variance that shrinks with every seed
    between_clients: float
    of_both: float  # the part of `between_clients` that shrinks with every seed, because it is not the clients' own
    seeds: int
    clients: float  # as many clients of equal weight are as certain
    crossed: bool
    cells: int  # pairs of a seed and a client
    seed_freedom: float  # degrees of freedom of `between_seeds`
    about_these_clients: bool = False  # `between_clients` is over their test samples, not over other clients

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return sqrt(self.between_seeds + self.between_clients)

    def tail(self, t: float) -> float:
        """The probability of a mean that is at least `t` standard errors from 0 if there is no difference."""
        of_clients = max(self.clients - 1, 1) * (1 if self.crossed else self.seeds)
        # With two seeds their variance is hardly known: a share of standard errors counts it more.
        power = 0.5 if self.seed_freedom <= 1 else 1.0
        of_seeds, others = float(self.between_seeds**power), float(self.between_clients**power)
        parts = ((of_seeds, self.seed_freedom), (others, of_clients))
        return sum(part * t_tail(t, freedom) for part, freedom in parts if part) / (of_seeds + others)

    @property
    def p(self) -> float:
        """How probable a mean so far from 0 is if there is no difference."""
        if self.mean == 0:
            return 1.0
        if isclose(abs(self.mean) + self.error, abs(self.mean), rel_tol=1e-9):
            return 2.0 ** (1 - self.cells)  # all equal: as when a coin falls on the same side so often
        return self.tail(self.mean / self.error)

    def interval(self, alpha: float = ALPHA) -> Interval:
        half = _distance(alpha, self.tail) * self.error if self.error else 0.0
        return Interval(self.mean, self.mean - half, self.mean + half)

    def tells(self, level: float) -> bool:
        """Whether a repetition that is as uncertain finds the difference at this level with a chance of `POWER`."""
        likely = abs(self.mean) - UNLUCKY * self.error
        return likely > 0 and replace(self, mean=likely).p < level

    def with_seeds(self, seeds: int) -> "Uncertainty":
        """As it would be with so many seeds, if nothing else changed."""
        share = self.seeds / seeds
        clients = self.between_clients - (1 - share) * self.of_both
        freedom = self.seed_freedom * (seeds - 1) / max(self.seeds - 1, 1)
        smaller = replace(self, between_seeds=share * self.between_seeds, between_clients=clients)
        return replace(smaller, seeds=seeds, seed_freedom=freedom)


def uncertainty(differences: Array, weights: Array, crossed: bool) -> Uncertainty:
    """Of differences `[seeds, clients]`; a weight of 0 says that there is none."""
    weights = weights / weights.sum(1, keepdims=True)
    values = np.where(weights > 0, differences, 0.0)
    means = (weights * values).sum(1)
    mean, seeds = float(means.mean()), len(means)
    clients = float(np.mean([_clients(each) for each in weights]))
    most = int((weights > 0).sum(1).max())
    weights, values = _grouped(weights, values)
    drawn = _crossed_draws(weights, values) if crossed else _nested_draws(weights, values)  # [seeds, draws]
    chosen = _choices(seeds, seeds, DRAWS)  # [draws, seeds]
    of_seeds = means[chosen].mean(1) - mean
    every = np.arange(DRAWS)[:, None]
    # Nested, a seed that is drawn twice has clients of its own each time: those of another draw.
    draw = every if crossed else (every + (DRAWS // max(seeds, 1)) * np.arange(seeds)) % DRAWS
    of_clients = (drawn[chosen, draw] - means[chosen]).mean(1)
    between_seeds = _variance(of_seeds) * seeds / (seeds - 1) if seeds > 1 else 0.0
    between_clients = _variance(of_clients) * most / (most - 1) if most > 1 else 0.0
    both = between_clients
    if crossed:
        both = min(both, _interaction(weights, values, means, mean))
    cells = int((weights > 0).sum())
    return Uncertainty(mean, between_seeds, between_clients, both, seeds, clients, crossed, cells, max(seeds - 1, 1))


def of_these(about_others: Uncertainty, of_samples: float, samples: float) -> Uncertainty:
    """For these clients and no others: in place of the clients' variance that of so many test samples."""
    of_these_clients = replace(
        about_others, between_clients=of_samples, of_both=0.0, clients=samples, crossed=True, cells=about_others.seeds
    )
    return replace(of_these_clients, about_these_clients=True)


def sharing(pairs: Sequence[Uncertainty]) -> list[Uncertainty]:
    """Each pair with a variance between seeds that also knows those of the others; two pairs share nothing."""
    return [_shared(pair, pairs) for pair in pairs]


def _shared(pair: Uncertainty, pairs: Sequence[Uncertainty]) -> Uncertainty:
    like = np.array([other.between_seeds for other in pairs if other.seeds == pair.seeds])
    like = like[like > SAME * like.max()]  # two rows with equal scores say nothing of the others
    freedom = pair.seeds - 1
    if freedom < 1 or len(like) < 3 or pair.error == 0:  # two methods make one pair, three make three
        return pair
    usual, prior_freedom = usual_variance(like, freedom)
    weight = min(prior_freedom, freedom)
    between_seeds = (freedom * pair.between_seeds + weight * usual) / (freedom + weight)
    return replace(pair, between_seeds=between_seeds, seed_freedom=freedom + weight)


def usual_variance(variances: Array, freedom: int) -> tuple[float, float]:
    """What variances with so many degrees of freedom have in common, and how many degrees of freedom that is worth.

    Smyth (2004): of true variances d₀s₀²/χ²(d₀), the logarithm of an estimate with d degrees of freedom has the
    variance ψ′(d/2) + ψ′(d₀/2) and the mean ln s₀² + ψ(d/2) − ln(d/2) − ψ(d₀/2) + ln(d₀/2).
    """
    logs = np.log(variances) - _log_mean(freedom)
    prior_freedom = 2 * _inverse_trigamma(float(logs.var(ddof=1)) - _trigamma(freedom / 2))
    return float(np.exp(logs.mean() + _log_mean(prior_freedom))), prior_freedom


def _log_mean(freedom: float) -> float:
    """The mean of ln(χ²(f)/f)."""
    return float(torch.special.digamma(torch.tensor(freedom / 2, dtype=torch.float64))) - log(freedom / 2)


def _trigamma(x: float) -> float:
    return float(torch.special.polygamma(1, torch.tensor(x, dtype=torch.float64)))


def _inverse_trigamma(value: float) -> float:
    """The x with ψ′(x) = value, by bisection, because ψ′ falls; at most `ALIKE`."""
    low, high = 0.0, ALIKE
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _trigamma(middle) > value else (low, middle)
    return high


def _distance(probability: float, tail: Callable[[float], float]) -> float:
    """The distance from 0 beyond which a tail has this probability, by bisection: mixed tails have no quantile."""
    low, high = 0.0, 1.0
    while tail(high) > probability:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > probability else (low, middle)
    return (low + high) / 2


def _clients(weights: Array) -> float:
    return float(weights.sum() ** 2 / (weights**2).sum())


def _variance(values: Array) -> float:
    return float(np.mean((values - values.mean()) ** 2))


def _grouped(weights: Array, values: Array) -> tuple[Array, Array]:
    """Many clients as groups, which are drawn whole: the variance is the same, and it takes less time."""
    clients = weights.shape[1]
    if clients <= GROUPS:
        return weights, values
    starts = np.linspace(0, clients, GROUPS, endpoint=False).astype(int)
    sums = np.add.reduceat(weights, starts, axis=1)
    means = np.add.reduceat(weights * values, starts, axis=1) / np.where(sums > 0, sums, 1)
    return sums, means


def _crossed_draws(weights: Array, values: Array) -> Array:
    """The weighted mean of each seed in each draw of clients, the same draws for all seeds: `[seeds, draws]`."""
    counts = _counts(weights.shape[1])
    total = counts @ weights.T
    return (np.divide(counts @ (weights * values).T, total, out=np.zeros_like(total), where=total > 0)).T


def _nested_draws(weights: Array, values: Array) -> Array:
    """The weighted mean of each seed in each draw of its own clients: `[seeds, draws]`."""
    means = np.empty((len(weights), DRAWS))
    for seed, (weight, value) in enumerate(zip(weights, values, strict=True)):
        present = weight > 0
        counts = _counts(int(present.sum()))
        means[seed] = counts @ (weight * value)[present] / (counts @ weight[present])
        # The draws of one seed are those of another in another order: none has the same clients in the same draw.
        means[seed] = np.random.default_rng(seed).permutation(means[seed])
    return means


def _interaction(weights: Array, values: Array, means: Array, mean: float) -> float:
    """The variance of the mean that comes from what a seed does to a client beyond what it does to all."""
    seeds, present = len(weights), weights > 0
    if seeds < 2:
        return 0.0
    share = np.where(present, weights, 0.0)
    clients = (share * (values - means[:, None])).sum(0) / np.maximum(share.sum(0), 1e-300)
    rest = np.where(present, values - means[:, None] - clients, 0.0)
    return float((share**2 * rest**2).sum() / seeds**2 * seeds / (seeds - 1))


@lru_cache(maxsize=64)
def _choices(values: int, count: int, draws: int) -> NDArray[np.int64]:
    return np.random.default_rng(0).integers(values, size=(draws, count))


@lru_cache(maxsize=8)
def _counts(clients: int) -> Array:
    """How often each of so many clients is in each draw of as many: `[draws, clients]`."""
    return np.random.default_rng(1).multinomial(clients, np.full(clients, 1 / clients), size=DRAWS).astype(float)
