"""Intervals of the gains of clients: from test samples that both models answer, and from seeds.

A gain is a difference of scores, method minus alone. Its interval has two sources of noise: other test samples would
give another difference, and so would another seed. `sample_noise` has the first. Seeds are too few to be resampled:
three that happen to agree would make one client in four look certain. So their variance enters as a component of its
own, with Student's t for so few. `docs/understand/gains.md` has the measurements.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stratafl.core.reprs import short_repr
from stratafl.report.intervals import t_quantile

Array = NDArray[np.float64]
PSEUDO_SAMPLES = 2  # samples that are added to each client's, one for and one against the method
PRIOR_FREEDOM = 4  # degrees of freedom that the variance between seeds of all other clients counts for one client


@short_repr
class Noise(NamedTuple):
    """How much the test samples of each client could have moved its gain, arrays `[K]`."""

    size: Array  # samples that the score rests on: those of a mean, the harmonic mean of classes for others
    variance: Array  # of the mean gain over seeds, when test samples are drawn anew
    explained: Array  # the part of the variance between seeds that comes from test samples


@short_repr
@dataclass(frozen=True)
class Limits:
    """The ends of 95 % intervals, `[K]`."""

    low: Array
    high: Array


def gain_limits(gains: Array, noise: Noise, bound: float | None = None, counted: bool = False) -> Limits:
    """95 % intervals of the gains `[S, K]` of K clients with S seeds, cut at ±`bound` where scores have one.

    Every client gets two more samples, one for and one against the method. Otherwise five samples on which both models
    agree would give an interval of width 0. For scores that count right samples these differ by 1, as in the interval
    of paired proportions by Bonett and Price (2012), and move its centre towards 0; `_usual` says what others have.
    """
    mean, full = gains.mean(axis=0), noise.size + PSEUDO_SAMPLES
    samples = with_added_samples(mean, noise, bound, counted)
    seeds, freedom = _between_seeds(gains, noise)
    total = samples + seeds
    with np.errstate(divide="ignore", invalid="ignore"):  # Satterthwaite's degrees of freedom
        combined = total**2 / (samples**2 / (full - 1) + seeds**2 / freedom)
    half = t_quantile(0.05, np.maximum(np.where(total > 0, combined, 1), 1)) * np.sqrt(total)
    centre, end = mean * noise.size / full if counted else mean, np.inf if bound is None else bound
    return Limits(np.clip(centre - half, -end, end), np.clip(centre + half, -end, end))


def with_added_samples(mean: Array, noise: Noise, bound: float | None, counted: bool) -> Array:
    """The variance of the mean gain of each client that comes from its test samples and the two that are added."""
    full, squares = noise.size + PSEUDO_SAMPLES, noise.size**2 * noise.variance  # of the samples' differences
    usual = bound**2 if bound and counted else _usual(squares, noise.size, bound)
    return np.asarray((squares + PSEUDO_SAMPLES * usual + PSEUDO_SAMPLES * noise.size * mean**2 / full) / full**2)


def _usual(squares: Array, size: Array, bound: float | None) -> float:
    """The squared difference of an added sample: the mean one in the federation.

    Where there is a bound, the federation has one more sample that differs by it, because a federation in which both
    models are perfect so far has no usual difference.
    """
    more = 0 if bound is None else 1
    return (float(squares.sum()) + more * (bound or 0) ** 2) / (float(size.sum()) + more)


def _between_seeds(gains: Array, noise: Noise) -> tuple[Array, float]:
    """The variance of the mean over seeds that test samples do not explain, and its degrees of freedom.

    A client's own variance between few seeds is uncertain, so that of the others counts too, as in empirical Bayes; the
    more a seed moves all clients together, the less the others add to what is known.
    """
    seeds, clients = gains.shape
    if seeds == 1:
        return np.zeros(clients), 1.0
    unexplained = gains.var(axis=0, ddof=1) - noise.explained
    prior, usual = min(PRIOR_FREEDOM, (clients - 1) * (seeds - 1)), max(0.0, float(unexplained.mean()))
    shrunk = ((seeds - 1) * unexplained + prior * usual) / (seeds - 1 + prior)
    together = min(1.0, float(gains.mean(axis=1).var(ddof=1)) / usual) if usual else 0.0
    return np.maximum(0, shrunk) / seeds, seeds - 1 + prior * (1 - together)


def noise_of_means(differences: Array, client: NDArray[np.int64], clients: int) -> tuple[Array, Noise]:
    """Gains `[S, K]` and their noise, for scores that are means over samples, in closed form.

    `differences` `[S, n]` are those of each sample with each seed; the bootstrap variance of a mean is Σ(x − mean)²/n².
    """
    count = np.bincount(client, minlength=clients).astype(np.float64)
    seeds, size = len(differences), np.maximum(count, 1)

    def total(values: Array) -> Array:
        return np.stack([np.bincount(client, row, minlength=clients) for row in values])

    gains, mean = total(differences) / size, differences.mean(axis=0, keepdims=True)
    variance = total((mean - gains.mean(axis=0)[client]) ** 2)[0] / size**2
    rest = differences - mean - (gains - gains.mean(axis=0))[:, client]
    explained = total(rest**2).sum(axis=0) / size**2 / max(1, seeds - 1)
    return gains, Noise(count, variance, explained)


def pooled(noises: list[Noise]) -> Noise:
    """The noise of the mean over seeds whose test samples are not the same: each seed's own noise is independent."""
    seeds = len(noises)
    variance = np.mean([each.variance for each in noises], axis=0)
    return Noise(np.sum([each.size for each in noises], axis=0), variance / seeds, variance)
