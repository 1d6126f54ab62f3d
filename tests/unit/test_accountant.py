"""The accountant against numerical integration, Rényi bounds and known values; keyed noise against what it must be."""

import math
import re

import numpy as np
import pytest
import torch

from stratafl.core.keys import Seeds
from stratafl.core.round import Setup
from stratafl.policies import private
from stratafl.policies.accountant import delta_of, epsilon_of, in_words, most_rounds
from stratafl.policies.private import gaussian, noise_key


def setup(clients=10, participation=1.0, seed=0, **more):
    given = {"rounds": 50, "seeds": Seeds.of(seed), "participation": participation, **more}
    return Setup(None, {}, lambda ids: {}, clients, **given)


# ε and δ


def integrated(epsilon, mu):
    """δ(ε) = ∫ max(0, p − e^ε·q) of two normal densities that are μ apart."""
    x = np.linspace(-12, 12 + mu, 2_000_001)
    p, q = (np.exp(-((x - centre) ** 2) / 2) / math.sqrt(2 * math.pi) for centre in (mu, 0.0))
    return np.trapezoid(np.maximum(0, p - math.exp(epsilon) * q), x)


@pytest.mark.parametrize(("epsilon", "mu"), [(0.0, 1.0), (0.5, 0.3), (1.0, 1.0), (3.0, 1.0), (2.0, 0.5), (8.0, 2.5)])
def test_delta_is_the_integral(epsilon, mu):
    assert delta_of(epsilon, mu) == pytest.approx(integrated(epsilon, mu), rel=1e-4, abs=1e-12)


def renyi(noise, rounds, delta):
    """Rényi divergence α·T/(2z²) of T Gaussian mechanisms, turned into ε (Mironov, 2017): an upper bound."""
    orders = np.concatenate([np.linspace(1.01, 10, 900), np.arange(11, 2000)])
    return float(np.min(orders * rounds / (2 * noise**2) + math.log(1 / delta) / (orders - 1)))


@pytest.mark.parametrize("noise", [0.5, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("rounds", [1, 10, 200])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_epsilon_is_a_little_below_the_bound_of_renyi(noise, rounds, delta):
    found, bound = epsilon_of(noise, rounds, delta), renyi(noise, rounds, delta)
    assert 0.4 * bound < found < bound
    assert integrated_or_zero(found, rounds**0.5 / noise, delta)


def integrated_or_zero(epsilon, mu, delta):
    """ε is enough, and a little less is not."""
    return delta_of(epsilon, mu) <= delta < delta_of(0.999 * epsilon, mu)


def test_known_values():
    """The noise that Balle and Wang's analytic mechanism needs for ε = 1, δ = 1e-5; rounds add up as T/z²."""
    assert epsilon_of(3.730632, 1, 1e-5) == pytest.approx(1.0, rel=1e-5)
    assert epsilon_of(4.0, 16, 1e-5) == pytest.approx(epsilon_of(1.0, 1, 1e-5), rel=1e-12)
    assert epsilon_of(1.0, 0, 1e-5) == 0
    assert epsilon_of(0.0, 3, 1e-5) == math.inf
    assert [epsilon_of(2.0, t, 1e-5) for t in range(1, 9)] == sorted(epsilon_of(2.0, t, 1e-5) for t in range(1, 9))


@pytest.mark.parametrize(("clients", "participation"), [(10, 1.0), (10, 0.3), (100, 0.05)])
def test_the_client_that_takes_part_most_often_counts(clients, participation):
    given = setup(clients, participation, seed=3)
    for t in (0, 1, 7, 30, 12):  # also back again
        often = np.zeros(clients, dtype=int)
        for each in range(t):
            often[given.sampled(each).numpy()] += 1
        assert most_rounds(given, t) == often.max()
    assert most_rounds(given, 30) <= 30


def test_words_say_to_whom_and_that_a_simulation_only_simulates():
    spent = {"privacy.epsilon": 3.14159, "privacy.delta": 1e-5}
    said = in_words(spent, 20, simulated=False)
    assert re.search(r"20 rounds.*3\.14.*1e-05", said)
    assert len(in_words(spent, 20, simulated=True)) > len(said)


# Noise


def test_noise_is_normal_and_independent():
    drawn = gaussian(b"k" * 32, 3, "theta/fc.weight", 400_000).numpy()
    assert abs(drawn.mean()) < 4 / math.sqrt(len(drawn))
    assert drawn.std() == pytest.approx(1, abs=0.005)
    assert (drawn**4).mean() == pytest.approx(3, abs=0.05)
    ordered = np.sort(drawn)
    below = 0.5 * (1 + torch.erf(torch.from_numpy(ordered) / math.sqrt(2)).numpy())
    assert np.abs(below - (np.arange(len(drawn)) + 0.5) / len(drawn)).max() < 1.95 / math.sqrt(len(drawn))  # 0.1 %
    for other in (drawn[1:], gaussian(b"k" * 32, 4, "theta/fc.weight", 400_000).numpy()):
        assert abs(np.corrcoef(drawn[: len(other)], other)[0, 1]) < 4 / math.sqrt(len(drawn))


def test_noise_follows_from_key_round_and_name(monkeypatch):
    first = gaussian(b"k" * 32, 0, "a", 1001)
    assert torch.equal(first, gaussian(b"k" * 32, 0, "a", 1001))
    for other in ((b"l" * 32, 0, "a"), (b"k" * 32, 1, "a"), (b"k" * 32, 0, "b")):
        assert not (first == gaussian(*other, 1001)).any()
    monkeypatch.setattr(private, "NOISE_PIECE", 100)
    pieces = gaussian(b"k" * 32, 0, "a", 1001)
    assert pieces.isfinite().all()
    assert len(pieces.unique()) == 1001  # no piece repeats another


def test_the_key_is_the_secret_or_follows_from_the_seed():
    assert noise_key(setup(secret=b"s" * 32)) == b"s" * 32
    assert noise_key(setup(seed=1)) == noise_key(setup(seed=1)) != noise_key(setup(seed=2))
    assert len(noise_key(setup())) == 32
    assert "sss" not in repr(setup(secret=b"s" * 32))
