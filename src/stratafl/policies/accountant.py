"""The guarantee of Gaussian noise on sums after some rounds: (ε, δ) of differential privacy, in closed form.

A round adds noise of `noise` times the largest distance of two neighbours. Rounds without a client say nothing of it,
so that T, the number of rounds it takes part in, is what counts, and all T together are one Gaussian mechanism of noise
`noise`/√T (Dong, Roth, Su, 2022, Corollary 3.3: μ² = Σ μ_t², where μ_t = 1/noise). Its δ(ε) is exact (Balle, Wang,
2018, Theorem 8; Dong, Roth, Su, Corollary 2.13). Parts of a model with noise of their own are one mechanism too, of
1/z² = Σ 1/z_l², again by Corollary 3.3.

Nothing is gained from cohorts being sampled: who takes part follows from the run's seed, which all sites know. So
there is no bound for a sampling here that could be applied to another one.
"""

from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from math import exp, inf, isfinite, sqrt

import torch

from stratafl.core import keys
from stratafl.core.algorithm import Algorithm
from stratafl.core.layers import Select
from stratafl.core.round import Round, Setup
from stratafl.core.steps import Merge
from stratafl.errors import RecordError, counted
from stratafl.policies.keyed_noise import DEVIATION_BITS, DRAW_ERROR

EPSILON, DELTA, BUDGET, NEXT = (f"privacy.{name}" for name in ("epsilon", "delta", "budget", "next"))
STEPS = 200  # of a bisection, after which two numbers are neighbours
FAR, BEYOND = 12, 2e-31  # deviations, and a bound for the probability of a Gaussian's numbers beyond them
MAX_EXPONENT = 700.0  # of e^x in float64


def delta_of(epsilon: float, mu: float) -> float:
    """δ = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ), where μ is the distance of neighbours in standard deviations."""
    # Balle, Wang, Theorem 8, with Δ/σ = μ
    near, far = torch.tensor([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu], dtype=torch.float64)
    first, second = torch.special.log_ndtr(near), epsilon + torch.special.log_ndtr(far)
    return max(0.0, float(first.exp() - second.exp()))


@lru_cache(maxsize=1024)
def epsilon_of(noise: float, rounds: int, delta: float) -> float:
    """The smallest ε, rounded up, for a client that took part in `rounds` rounds; infinite without noise."""
    if not rounds:
        return 0.0
    if not noise or delta <= 0:
        return inf
    mu = rounds**0.5 / noise  # Dong, Roth, Su, Corollary 3.3
    low, high = 0.0, 1.0
    while delta_of(high, mu) > delta:
        high *= 2
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, mu) > delta else (low, middle)
    return high * (1 + 1e-9)  # norms and δ are rounded


def discrete_epsilon_of(noise: float, rounds: int, delta: float, *, helpers: int, columns: int) -> float:
    """The same of discrete Gaussian noise that `helpers` clients add to whole numbers, each of the deviation 2^24.

    Rounding moves each of the columns by half a unit at most, which adds √columns/2 to the distance of neighbours. The
    sum of discrete Gaussians is one but for exp(−π²·4²⁴) (Kairouz, Liu, Steinke, 2021), and up to `FAR` deviations
    its probabilities are within exp(±FAR²/8σ²) of those of a Gaussian that is rounded. What lies beyond, and errors of
    drawing, cost δ once for each neighbour, and e^ε times as much for the second. Where that is more than half of δ,
    from ε of about 40 on, halves of the rounds are counted apart; if one round is beyond it, nothing is promised.
    """
    if not rounds:
        return 0.0
    if not noise:
        return inf
    deviation, drawn = sqrt(helpers) * 2.0**DEVIATION_BITS, float(columns * rounds)
    distance = deviation / noise + sqrt(columns) / 2
    apart = drawn * FAR**2 / (8 * deviation**2)
    gaussian, lost = deviation / distance, drawn * (helpers * DRAW_ERROR + BEYOND)
    most = epsilon_of(gaussian, rounds, delta / 2 * exp(-apart)) + 2 * apart
    left = delta - lost * (1 + exp(min(most, MAX_EXPONENT)))
    if left >= delta / 2:
        return epsilon_of(gaussian, rounds, left * exp(-apart)) + 2 * apart
    if rounds == 1:
        return inf
    return 2 * discrete_epsilon_of(noise, (rounds + 1) // 2, delta / 2, helpers=helpers, columns=columns)


class Accounted(Merge):
    """A merge whose noise comes with a guarantee, and ends when the next round would cost more than its budget."""

    noise: float
    delta: float
    budget: float | None
    layers: Select

    @abstractmethod
    def epsilon(self, setup: Setup, rounds: int) -> float:
        """What a client has spent that took part in this number of rounds."""

    def check_guarantee(self, setup: Setup) -> None:
        """Refuse what would void the guarantee, and a budget that is too small for a single round."""
        plain = [name for name in setup.layout.travelling() if not setup.layout.specs[name].trainable]
        if plain:
            raise RecordError(
                f"BatchNorm statistics such as '{plain[0]}' would be shared without noise: set run.buffers to 'local', "
                "or choose a model without BatchNorm"
            )
        if self.delta >= 1 / setup.clients:
            raise RecordError(
                f"delta={self.delta:g} would allow publishing one of {setup.clients} clients unprotected: choose "
                f"a delta well below {1 / setup.clients:g}"
            )
        if self.budget is not None and (first := self.epsilon(setup, 1)) > self.budget:
            raise RecordError(
                f"dp_budget={self.budget:g} allows no round, because the first one costs epsilon = {first:.3g}: raise "
                "noise or dp_budget"
            )

    def check_budget(self, rnd: Round) -> None:
        """Refuse to add up a round that the budget does not allow; whoever runs rounds stops before it."""
        if self.budget is not None and (why := over_budget(self.spent(rnd))):
            raise RecordError(f"round {rnd.t + 1}: {why}")

    def spent(self, rnd: Round) -> dict[str, float]:
        if not isfinite(self.epsilon(rnd.setup, 1)):
            return {}
        line = {EPSILON: self.epsilon(rnd.setup, most_rounds(rnd.setup, rnd.t)), DELTA: self.delta}
        if self.budget is None:
            return line
        return {**line, BUDGET: self.budget, NEXT: self.epsilon(rnd.setup, most_rounds(rnd.setup, rnd.t + 1))}


def over_budget(line: Mapping[str, float]) -> str | None:
    """Why no round may follow this line of a journal, if its budget allows none."""
    if line.get(NEXT, 0.0) <= line.get(BUDGET, inf):
        return None
    return f"another round would cost epsilon = {line[NEXT]:.3g}, above dp_budget = {line[BUDGET]:g}"


def rounds_allowed(algorithm: Algorithm, setup: Setup) -> int:
    """How many of a run's rounds its budget allows."""
    rounds = range(setup.rounds)
    return bisect_left(rounds, True, key=lambda t: over_budget(algorithm.spent(Round(setup, t))) is not None)


def in_words(spent: Mapping[str, float], rounds: int, promise: str) -> str:
    """The guarantee after this number of rounds: for whom and against whom."""
    return (
        f"privacy after {counted(rounds, 'round')}: every client has epsilon = {spent[EPSILON]:.3g} at "
        f"delta = {spent[DELTA]:g} {promise}"
    )


def most_rounds(setup: Setup, t: int) -> int:
    """In how many of the first t rounds that client takes part which takes part most often."""
    if setup.cohort >= setup.clients:
        return t
    return _participation(setup.seeds.batches, setup.clients, setup.cohort).most(t)


class _Participation:
    """How often clients were sampled; the rounds of a run are counted once."""

    def __init__(self, seed: int, clients: int, cohort: int) -> None:
        self._seed, self._cohort, self._counts = seed, cohort, torch.zeros(clients, dtype=torch.int64)
        self._most = [0]  # after each number of rounds

    def most(self, t: int) -> int:
        for sampled_round in range(len(self._most) - 1, t):
            self._counts[keys.sample(self._seed, sampled_round, len(self._counts), self._cohort)] += 1
            self._most.append(int(self._counts.max()))
        return self._most[t]


_participation = lru_cache(maxsize=16)(_Participation)
