"""The guarantee of Gaussian noise on a sum after some rounds: (ε, δ) of differential privacy, in closed form.

Two federations are neighbours if they differ in what one client contributes: its updates, or 0 in every round. A round
adds noise of `noise` times the largest norm that a client can contribute. Rounds without a client say nothing of it, so
that T, the number of rounds it takes part in, is what counts, and all T together are one Gaussian mechanism of noise
`noise`/√T (Dong, Roth, Su, 2022). Its δ(ε) is exact (Balle, Wang, 2018).

Nothing is gained from cohorts being sampled: who takes part follows from the run's seed, which all sites know. So
there is no bound for a sampling here that could be applied to another one.
"""

from collections.abc import Mapping
from functools import lru_cache

import torch

from stratafl.core import keys
from stratafl.core.round import Setup
from stratafl.errors import counted

EPSILON, DELTA = "privacy.epsilon", "privacy.delta"
STEPS = 200  # of a bisection, after which two numbers are neighbours


def delta_of(epsilon: float, mu: float) -> float:
    """δ = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ), where μ is the distance of neighbours in standard deviations."""
    near, far = torch.tensor([mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu], dtype=torch.float64)
    first, second = torch.special.log_ndtr(near), epsilon + torch.special.log_ndtr(far)
    return max(0.0, float(first.exp() - second.exp()))


def epsilon_of(noise: float, rounds: int, delta: float) -> float:
    """The smallest ε, rounded up, for a client that took part in `rounds` rounds; infinite without noise."""
    if not rounds:
        return 0.0
    if not noise:
        return float("inf")
    mu = rounds**0.5 / noise
    low, high = 0.0, 1.0
    while delta_of(high, mu) > delta:
        high *= 2
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, mu) > delta else (low, middle)
    return high * (1 + 1e-9)  # norms and δ are rounded


def in_words(spent: Mapping[str, float], rounds: int, *, simulated: bool) -> str:
    """The guarantee after this number of rounds: for whom and against whom."""
    sentence = (
        f"privacy after {counted(rounds, 'round')}: every client has epsilon = {spent[EPSILON]:.3g} at "
        f"delta = {spent[DELTA]:g} against everyone who sees the server's models, but no privacy against the server"
    )
    only = "; this run only simulates it: the seed determines its noise, and its scores have no noise"
    return sentence + (only if simulated else "")


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
