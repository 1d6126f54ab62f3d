"""The accountant against numerical integration, Rényi bounds, known values and another accountant."""

import math
import re

import numpy as np
import pytest

from stratafl.core.keys import Seeds
from stratafl.core.round import Setup
from stratafl.policies import accountant
from stratafl.policies.accountant import (
    delta_of,
    discrete_epsilon_of,
    epsilon_of,
    in_words,
    most_rounds,
    over_budget,
)


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


# ε of T Gaussian mechanisms by Google's PLD accountant, dp-accounting 0.6.0:
#     accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4)
#     accountant.compose(dp_accounting.GaussianDpEvent(noise), rounds)
#     accountant.get_epsilon(delta)
# Its RdpAccountant gives 3 to 14 % more.
BY_PLD = [  # noise, rounds, delta, epsilon
    (0.5, 1, 1e-05, 9.99725615024243),
    (0.5, 10, 1e-05, 46.21121019118735),
    (0.7, 3, 1e-06, 14.26733560656218),
    (1, 1, 1e-05, 4.37717810002493),
    (1, 20, 1e-05, 28.373473804682842),
    (1, 100, 1e-05, 91.81728962407377),
    (1, 100, 1e-08, 105.32724708988734),
    (2, 1, 0.001, 1.352276250668219),
    (2, 50, 1e-05, 20.675508047742515),
    (2, 300, 1e-06, 77.87006746576559),
    (3.730632, 1, 1e-05, 0.9999998925881861),
    (5, 20, 1e-05, 3.8486102850967567),
    (5, 200, 1e-05, 15.456155825694436),
    (5, 1000, 1e-09, 57.23145962282206),
    (8, 100, 1e-06, 6.312060191411408),
    (10, 20, 1e-05, 1.760057161496377),
    (10, 500, 1e-05, 11.480022811714345),
    (20, 100, 1e-05, 1.993091407908809),
    (40, 1000, 1e-06, 3.747217996399201),
    (100, 1000, 1e-05, 1.1993695877381323),
]


def test_twenty_settings_agree_with_the_pld_accountant_of_dp_accounting():
    assert len(BY_PLD) == 20
    for noise, rounds, delta, epsilon in BY_PLD:
        assert epsilon_of(noise, rounds, delta) == pytest.approx(epsilon, rel=1e-6)


# Whole numbers


def exact_delta(epsilon, deviation, distance):
    """δ(ε) of one discrete Gaussian whose neighbours are this many whole numbers apart, summed up."""
    n = np.arange(-40 * deviation, 40 * deviation + 1)
    p, q = (np.exp(-((n - centre) ** 2) / (2 * deviation**2)) for centre in (0, distance))
    return float(np.maximum(0, p / p.sum() - math.exp(epsilon) * q / q.sum()).sum())


@pytest.mark.parametrize(("deviation", "distance"), [(4, 4), (16, 8), (64, 128)])
def test_a_discrete_gaussian_costs_what_a_gaussian_costs_and_no_more_than_is_said(monkeypatch, deviation, distance):
    monkeypatch.setattr(accountant, "DEVIATION_BITS", int(math.log2(deviation)))
    said = discrete_epsilon_of(deviation / distance, 1, 1e-5, helpers=1, columns=1)
    assert exact_delta(said, deviation, distance) <= 1e-5
    assert exact_delta(0.8 * epsilon_of(deviation / distance, 1, 1e-5), deviation, distance) > 1e-5


def test_rounding_adds_to_the_distance_of_neighbours(monkeypatch):
    """By hand: noise 1 of one helper and 2^24 units, a million columns that are each up to half a unit off."""
    usual = epsilon_of(1.0, 10, 1e-5)
    said = discrete_epsilon_of(1.0, 10, 1e-5, helpers=1, columns=10**6)
    assert usual < said < usual * (1 + 2e-4)
    monkeypatch.setattr(accountant, "DEVIATION_BITS", 10)
    monkeypatch.setattr(accountant, "FAR", 0)  # without the bound that so few units make large
    further = 1024 + 4**0.5 / 2
    assert discrete_epsilon_of(1.0, 10, 1e-5, helpers=1, columns=4) == pytest.approx(
        epsilon_of(1024 / further, 10, 1e-5), rel=1e-6
    )
    assert discrete_epsilon_of(0.0, 10, 1e-5, helpers=1, columns=4) == math.inf
    assert discrete_epsilon_of(1.0, 0, 1e-5, helpers=1, columns=4) == 0


def test_tails_and_errors_of_drawing_count_at_a_large_epsilon(monkeypatch):
    """They cost e^ε·lost of δ: up to about 40 nothing, then rounds count in parts, and one round alone is too much."""

    def said(noise, rounds, delta=1e-5):
        return discrete_epsilon_of(noise, rounds, delta, helpers=60, columns=10**6)

    assert said(1.0, 20) == pytest.approx(epsilon_of(1.0, 20, 1e-5), rel=1e-4)
    assert said(1.0, 100) == 2 * said(1.0, 50, 5e-6) == 4 * said(1.0, 25, 2.5e-6)
    assert said(1.0, 25, 2.5e-6) == pytest.approx(epsilon_of(1.0, 25, 2.5e-6), rel=1e-3)
    assert said(0.1, 1) == math.inf == said(0.1, 7) == said(1e-3, 1)
    costs = [said(1.0, rounds) for rounds in (1, 20, 30, 31, 32, 33, 34, 40, 70, 120)]
    assert costs == sorted(costs)
    monkeypatch.setattr(accountant, "BEYOND", 1e-18)  # so that by hand δ is used up between ε of 4 and 9
    lost = 10**6 * (60 * accountant.DRAW_ERROR + 1e-18)
    assert said(2.0, 1, 1e-9) == pytest.approx(
        epsilon_of(2.0, 1, 1e-9 - lost * (1 + math.exp(said(2.0, 1, 5e-10)))), rel=1e-3
    )
    assert said(1.0, 1, 1e-9) == math.inf


def test_more_helpers_make_units_finer_but_change_no_guarantee():
    few, many = (discrete_epsilon_of(2.0, 50, 1e-6, helpers=h, columns=10**5) for h in (2, 200))
    assert many < few == pytest.approx(many, rel=1e-3)


def test_a_budget_ends_where_the_next_round_would_exceed_it():
    line = {"privacy.epsilon": 1.0, "privacy.budget": 2.0, "privacy.next": 2.0}
    assert over_budget(line) is None
    assert over_budget({**line, "privacy.next": 2.0001}) is not None
    assert over_budget({"privacy.epsilon": 9.0}) is None


@pytest.mark.parametrize(("clients", "participation"), [(10, 1.0), (10, 0.3), (100, 0.05)])
def test_the_client_that_takes_part_most_often_counts(clients, participation):
    given = setup(clients, participation, seed=3)
    for t in (0, 1, 7, 30, 12):  # also back again
        often = np.zeros(clients, dtype=int)
        for each in range(t):
            often[given.sampled(each).numpy()] += 1
        assert most_rounds(given, t) == often.max()
    assert most_rounds(given, 30) <= 30


def test_words_say_how_much_and_against_whom():
    spent = {"privacy.epsilon": 3.14159, "privacy.delta": 1e-5}
    assert re.search(r"20 rounds.*3\.14.*1e-05.*all but us", in_words(spent, 20, "against all but us"))
